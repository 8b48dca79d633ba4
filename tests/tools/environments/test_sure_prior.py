"""A world with a prior: sure of the solution's action or of another one, uniform elsewhere, and otherwise the world itself."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.environments.catalogue import open_environment


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


def test_what_it_cannot_read_is_refused() -> None:
    for text in ("good-.9", "right", "wrong-9"):
        with pytest.raises(UserError, match=r"prior is right-P or wrong-P"):
            open_environment(f"toy?prior={text}")
    with pytest.raises(UserError, match="no setting 'colour'"):
        open_environment("toy?prior=right-.9,colour=red")
