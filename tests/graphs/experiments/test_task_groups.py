"""A world of many tasks as one number, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from learngraph.graphs.experiments import task_groups
from learngraph.graphs.experiments.results import SeedResult
from learngraph.nodes.evaluate.statistics import interval


def result(seed: int, scores: list[float], method: str = "icrl", **more: Any) -> SeedResult:
    n = len(scores)
    return SeedResult(method, seed, 100.0, tuple(scores), tuple(scores), (1,) * n, solved=100.0, **more)


TASKS = {0: "boil", 30: "boil", 1: "melt"}


def test_each_task_counts_the_same_and_a_fatal_mistake_is_0() -> None:
    ours = [result(0, [-100, 50], answer=1), result(30, [100, 100], answer=0), result(1, [0, 10], answer=0)]
    theirs = [result(0, [0, 0], "random"), result(30, [-100, -100], "random"), result(1, [20, 0], "random")]
    first, other = task_groups.aggregate([ours, theirs], TASKS)
    assert first.tasks == {"boil": 62.5, "melt": 5.0}  # (25 + 100) / 2, whatever the number of variations
    assert first.best_by_task == {"boil": 75.0, "melt": 10.0}
    assert (first.mean, first.best, first.answer) == (33.75, 42.5, (75 + 0) / 2)
    assert first.mean_ci == interval([62.5, 5.0])
    assert (first.solved, first.fatal, first.lead) == (0.25, 0.125, None)
    assert (other.tasks, other.answer, other.fatal) == ({"boil": 0.0, "melt": 10.0}, None, 0.25)
    assert other.lead == pytest.approx((62.5 - 5.0) / 2)
    assert other.lead_ci == interval([62.5, -5.0])
    assert other.best == 10.0, "no attempt counts less than 0"


def test_a_method_that_played_fewer_tasks_is_compared_on_those() -> None:
    ours, theirs = [result(0, [40]), result(1, [10])], [result(1, [30], "react")]
    first, other = task_groups.aggregate([ours, theirs], TASKS)
    assert (first.mean, other.mean, other.lead, other.lead_ci) == (25, 30, -20, None)
    lines = task_groups.task_table([first, other]).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["boil", "40.0", "–"]
    table = task_groups.aggregate_table([first, other]).splitlines()
    assert "mean of 2 tasks" in table[0]
    assert [cell.strip() for cell in table[3].split("|")[1:-1]] == ["react", "30", "30", "–", "0.000", "0.000", "-20"]
    assert "ahead" not in task_groups.aggregate_table([first])
