"""A world in which the agent may give up: the action ends an episode at no cost, and the rest is the world itself."""

from __future__ import annotations

import pickle

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.support.giving_up import GIVE_UP


def test_every_state_has_an_end_at_no_cost() -> None:
    plain, world = open_environment("toy"), pickle.loads(pickle.dumps(open_environment("toy?gives_up=true")))
    task = world.task(1)
    gold = world.gold(task)
    for step in range(len(gold)):
        before, shown = plain.observe(task, gold[:step]), world.observe(task, gold[:step])
        assert shown.actions == tuple(sorted((*before.actions, GIVE_UP)))
        assert (shown.text, shown.reward, shown.over) == (before.text, before.reward, False)
        end = world.observe(task, (*gold[:step], GIVE_UP))
        assert (end.reward, end.over, end.actions) == (0.0, True, ())
    assert world.observe(task, gold) == plain.observe(task, gold)


def test_a_prior_stands_beside_it() -> None:
    world = open_environment("toy?gives_up=true,prior=right-.9")
    task = world.task(1)
    found = world.policy({"task": task, "observation": world.observe(task, ())})["candidates"]
    assert GIVE_UP in [one.action for one in found]


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UserError, match="gives_up=true adds the action 'give up'; got 'yes'"):
        open_environment("toy?gives_up=yes")
    with pytest.raises(UserError, match="written answers"):
        open_environment("math?gives_up=true")
