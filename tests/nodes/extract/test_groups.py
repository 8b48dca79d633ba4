"""Rewards of groups, worked out by hand."""

import math
from typing import Any

import pytest

from learngraph.memory.records import Rollout, Task
from learngraph.nodes.extract.groups import (
    AssignRewards,
    EmitComparison,
    OpenGroup,
    advantages,
    fan_out_summaries,
    has_spread,
    mean,
    reward_std,
    route_comparison,
)

TASK = Task("t", "what is it?")


def rollout(number: int, reward: float | None, answer: str = "a", **more: Any) -> Rollout:
    return Rollout(f"r/0/t/{number}", TASK, number, reward, answer, error="" if reward is not None else "lost", **more)


def group(*rewards: float | None, answers: str = "", **more: Any) -> dict[str, Any]:
    """The state of a group whose rollouts ended in the opposite order."""
    rollouts = [rollout(n, reward, answers[n : n + 1] or "a") for n, reward in enumerate(rewards)]
    return {"task": TASK, "run": "r", "step": 0, "library": "r/0", "rollouts": rollouts[::-1], **more}


def test_spread_and_advantages_by_hand() -> None:
    # 1, 1, 0, 0, 0: mean 0.4, variance (2 * 0.36 + 3 * 0.16) / 5 = 0.24
    assert mean([1, 1, 0, 0, 0]) == 0.4
    assert reward_std([1, 1, 0, 0, 0]) == pytest.approx(math.sqrt(0.24))
    assert advantages([1, 1, 0, 0, 0]) == pytest.approx([0.6 / math.sqrt(0.24)] * 2 + [-0.4 / math.sqrt(0.24)] * 3)
    # 1, 0.5, missing, 0: mean 0.5, variance 1 / 6
    found = advantages([1, 0.5, None, 0])
    assert found[2] is None
    assert [found[n] for n in (0, 1, 3)] == pytest.approx([0.5 * math.sqrt(6), 0, -0.5 * math.sqrt(6)])
    assert advantages([0.7, 0.7, None]) == [0, 0, None]
    assert reward_std([0.3]) == reward_std([]) == 0


def test_rewards_that_differ_by_no_more_than_the_spread_are_alike() -> None:
    assert has_spread([1, 0])
    assert not has_spread([0.5, 0.5, 0.5])
    assert not has_spread([0.1 + 0.2, 0.3])  # floats
    assert not has_spread([1, None])
    assert has_spread([1.0, 0.999])


@pytest.mark.parametrize(
    ("rewards", "kind"),
    [
        ((1.0, 0.0), "mixed"),
        ((1.0, 1.0), "alike"),
        ((0.0, 0.0), "alike"),
        ((1.0, None), "failed"),
        ((None, None), "failed"),
        ((1.0, None, 0.0), "mixed"),
    ],
)
def test_kinds_of_groups(rewards: tuple[float | None, ...], kind: str) -> None:
    node = AssignRewards()
    found = node(group(*rewards))  # type: ignore[arg-type]
    assert found["kind"] == kind
    assert found["rewards"] == list(rewards)  # by number, whichever ended first
    assert found["failures"] == [f"rollout {n}: lost" for n, reward in enumerate(rewards) if reward is None]
    assert route_comparison({"kind": kind}) == ("compare" if kind == "mixed" else "no lesson")  # type: ignore[typeddict-item]


def test_what_a_group_hands_over_is_by_number() -> None:
    state = {**group(1.0, None, 0.0), **OpenGroup()(group(1.0))}  # type: ignore[arg-type]
    state |= AssignRewards()(state)
    state |= {"insights": ["look first"], "votes": [("L0", 1)]}
    (found,) = EmitComparison()(state)["comparisons"]  # type: ignore[arg-type]
    assert (found.task, found.rewards, found.truths, found.kind) == ("t", (1.0, None, 0.0), (1.0, None, 0.0), "mixed")
    assert (found.insights, found.votes, found.failures) == (("look first",), (("L0", 1),), ("rollout 1: lost",))
    assert [work["number"] for work in fan_out_summaries(state)] == [0, 2]  # type: ignore[arg-type]
