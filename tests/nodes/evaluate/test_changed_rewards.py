"""Judges that change the world's rewards, by hand, and in runs: the learner sees the changed ones, the score stays the world's."""

from typing import Any

import pytest

from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.run_inputs import credits_future, judge_node
from learngraph.memory.errors import UserError
from learngraph.memory.records import Transition
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.evaluate.changed_rewards import hindsight_rewards
from learngraph.tools.environments.keyword_keep import KeywordKeep


def judged(name: str, *rewards: float | None) -> Any:
    journal = Journal()
    head = Journal.start("r", 0, "t")
    for reward in rewards:
        head = journal.append(head, Transition("state", "action", reward))
    judge = judge_node(RunOptions(env="toy", judge=name), KeywordKeep(), None, journal)
    return judge({"head": head, "step": len(rewards), "run": "r", "episode": 0})["rewards"]


@pytest.mark.parametrize(
    ("name", "rewards", "changed"),
    [
        ("shift:0.5", (0.0, 1.0, -1.0), [0.5, 1.5, -0.5]),
        ("shift:-0.5", (0.0, None, 2.0), [-0.5, None, 1.5]),
        ("hindsight", (0.0, 0.0, 1.0, 0.0), [8.1, 9.0, 10.0, -2.0]),
        ("hindsight", (1.0, -1.0, 0.0, 3.0), [10.0, -5.0, 9.0, 10.0]),
        ("hindsight", (0.0, None, 1.0), [9.0, None, 10.0]),
    ],
)
def test_rewards_are_changed(name: str, rewards: tuple[float | None, ...], changed: list[float | None]) -> None:
    assert judged(name, *rewards) == [None if value is None else pytest.approx(value) for value in changed]


def test_hindsight_counts_the_future() -> None:
    assert hindsight_rewards([]) == []
    assert credits_future("hindsight")
    assert not credits_future("shift:1")


@pytest.mark.parametrize("name", ["shift:", "shift:much", "shift:inf"])
def test_a_constant_that_is_no_number_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"adds the number C to every reward, as in shift:-0.1"):
        judged(name, 1.0)
