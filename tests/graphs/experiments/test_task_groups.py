"""A world of many tasks as one number, worked out by hand."""

from typing import Any

from learngraph.graphs.experiments import task_groups
from learngraph.graphs.experiments.results import SeedResult
from learngraph.nodes.evaluate.statistics import interval


def result(seed: int, scores: list[float], method: str = "icrl", **more: Any) -> SeedResult:
    n = len(scores)
    return SeedResult(method, seed, 100.0, tuple(scores), tuple(scores), (1,) * n, solved=100.0, **more)


TASKS = {0: "boil", 30: "boil", 1: "melt"}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_each_task_counts_the_same_and_a_fatal_mistake_is_0() -> None:
    ours = [result(0, [-100, 50], answer=1), result(30, [100, 100], answer=0), result(1, [0, 10], answer=0)]
    theirs = [result(0, [0, 0], "random"), result(30, [-100, -100], "random"), result(1, [20, 0], "random")]
    means = task_groups.task_means(ours, TASKS, task_groups.mean_score)
    assert means == {"boil": 62.5, "melt": 5.0}  # (25 + 100) / 2, whatever the number of variations
    head, _, first, other = task_groups.aggregate_table([ours, theirs], TASKS).splitlines()
    assert cells(head)[0] == "mean of 2 tasks"
    low, high = interval([62.5, 5.0]) or (0, 0)
    assert cells(first)[1] == f"33.8 [{low:.3g}, {high:.3g}]"
    assert cells(first)[2].startswith("42.5 [")  # (75 + 10) / 2
    assert cells(first)[3:] == ["37.5", "0.250", "0.125", "–"]  # the answer: (75 + 0) / 2
    assert cells(other)[2].startswith("10 [")  # no attempt counts less than 0
    low, high = interval([62.5, -5.0]) or (0, 0)
    assert cells(other)[3:] == ["–", "0.000", "0.250", f"+28.8 [{low:+.3g}, {high:+.3g}]"]


def test_a_method_that_played_fewer_tasks_is_compared_on_those() -> None:
    ours, theirs = [result(0, [40]), result(1, [10])], [result(1, [30], "react")]
    assert cells(task_groups.task_table([ours, theirs], TASKS).splitlines()[2]) == ["boil", "40.0", "–"]
    table = task_groups.aggregate_table([ours, theirs], TASKS).splitlines()
    assert cells(table[3]) == ["react", "30", "30", "–", "0.000", "0.000", "-20"]
    assert "ahead" not in task_groups.aggregate_table([ours], TASKS)
