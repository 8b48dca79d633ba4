"""Worlds with something added: an action that gives up, or a prior that is sure of an action; the rest is the world itself."""

import math
import pickle
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.support.wrappers import GIVE_UP


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


def probabilities(world: Any, actions: tuple[str, ...]) -> dict[str, float]:
    task = world.task(1)
    found = world.policy({"task": task, "observation": world.observe(task, actions)})["candidates"]
    return {one.action: math.exp(one.logit) for one in found}


@pytest.mark.parametrize("text", ["right-.9", "wrong-.99"])
def test_it_is_sure_in_the_states_of_the_solution_alone(text: str) -> None:
    world = open_environment(f"toy?prior={text}", horizon=5)
    kind, probability = text[:5], float(text[6:])
    task, plain = world.task(1), open_environment("toy", horizon=5)
    gold = world.gold(task)
    assert (world.horizon, gold) == (5, plain.gold(task))
    for step in range(3):
        seen = probabilities(world, gold[:step])
        assert sum(seen.values()) == pytest.approx(1)
        favourite = max(seen, key=seen.__getitem__)
        assert seen[favourite] == pytest.approx(probability)
        assert (favourite == gold[step]) == (kind == "right")
        assert seen == probabilities(world, gold[:step])  # always the same one
    assert pickle.loads(pickle.dumps(world)).gold(task) == gold


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("toy?gives_up=yes", "gives_up=true adds the action 'give up'; got 'yes'"),
        ("math?gives_up=true", "written answers"),
        ("toy?prior=good-.9", "prior is right-P or wrong-P"),
        ("toy?prior=right", "prior is right-P or wrong-P"),
        ("toy?prior=wrong-9", "prior is right-P or wrong-P"),
        ("toy?prior=right-.9,colour=red", "no setting 'colour'"),
    ],
)
def test_what_cannot_be_added_is_refused(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        open_environment(spec)
