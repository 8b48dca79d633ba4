"""One number for a world of many tasks: ScienceWorld's thirty, each counting the same. Pure functions.

Seeds of such a world are variations of its tasks. First each task gets the mean over its variations and episodes of the scores, where a
score below 0 (a fatal mistake) counts as 0; then the aggregate is the mean over the tasks. Its 95 % interval is Student's over the
tasks, and so is that of the paired difference: the tasks are the units, since variations of one task are no further tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...memory.display import format_number, markdown_table, with_interval
from ...nodes.evaluate.statistics import Interval, interval, mean
from .results import SeedResult

__all__ = ["Aggregate"]


@dataclass(frozen=True)
class Aggregate:
    """One method over all tasks, in the environment's units."""

    method: str
    tasks: Mapping[str, float]
    """Task -> its mean score over variations and episodes, clipped at 0."""
    best_by_task: Mapping[str, float]
    """Task -> the highest score of a variation's episodes, mean over the variations, clipped at 0."""
    mean: float
    mean_ci: Interval | None
    """95 % interval over the tasks; None for fewer than two."""
    best: float
    """The mean over the tasks of the running maximum at the end; an oracle picks those episodes."""
    best_ci: Interval | None
    answer: float | None
    """The same of the attempts that the method itself chose; None if it chose none."""
    solved: float | None
    """Share of all episodes that solved their task, each task counting the same; None if the world does not define it."""
    fatal: float
    """Share of all episodes that ended below 0, each task counting the same."""
    lead: float | None = None
    """The first method's mean minus this one's over the tasks that both have played; None for the first."""
    lead_ci: Interval | None = None


def aggregate(methods: Sequence[Sequence[SeedResult]], task_of: Mapping[int, str]) -> list[Aggregate]:
    """Aggregate each method over the tasks that it has played.

    Args:
        methods: for each method its results, one per seed; the others are compared with the first.
        task_of: seed -> name of its task.
    """
    found: list[Aggregate] = []
    for seeds in methods:
        ordered = sorted(seeds, key=lambda a: task_of[a.seed])
        groups = {name: list(some) for name, some in groupby(ordered, key=lambda a: task_of[a.seed])}
        means, bests = _over(groups, _mean_score), _over(groups, lambda a: max(0.0, *a.scores))
        answers = all(a.answer is not None for a in seeds)
        shared = [task for task in means if found and task in found[0].tasks]
        gaps = [found[0].tasks[task] - means[task] for task in shared]
        found.append(
            Aggregate(
                seeds[0].method,
                means,
                bests,
                mean(list(means.values())),
                interval(list(means.values())),
                mean(list(bests.values())),
                interval(list(bests.values())),
                mean(list(_over(groups, _answer_score).values())) if answers else None,
                mean(list(_over(groups, _solved_share).values())) if all(a.solved is not None for a in seeds) else None,
                mean(list(_over(groups, lambda a: mean([float(score < 0) for score in a.scores])).values())),
                mean(gaps) if gaps else None,
                interval(gaps),
            )
        )
    return found


def _over(groups: Mapping[str, Sequence[SeedResult]], number: Callable[[SeedResult], float]) -> dict[str, float]:
    return {name: mean([number(a) for a in some]) for name, some in groups.items()}


def _mean_score(result: SeedResult) -> float:
    return mean([max(0.0, score) for score in result.scores])


def _answer_score(result: SeedResult) -> float:
    return max(0.0, result.scores[result.answer or 0])


def _solved_share(result: SeedResult) -> float:
    return mean([float(score >= (result.solved or 0.0)) for score in result.scores])


def aggregate_table(rows: Sequence[Aggregate]) -> str:
    """A Markdown table with a row per method: the aggregate, and the first method's lead."""
    head = [f"mean of {len(rows[0].tasks)} tasks", "score", "best attempt", "answer", "solved", "fatal"]
    lines = [[*head, *([f"{rows[0].method} is ahead by"] if len(rows) > 1 else [])]]
    for row in rows:
        shares = [format_number(row.answer, ".3g"), format_number(row.solved, ".3f"), f"{row.fatal:.3f}"]
        lead = "–" if row.lead is None else f"{row.lead:+.3g}"
        if row.lead_ci is not None:
            lead += f" [{row.lead_ci[0]:+.3g}, {row.lead_ci[1]:+.3g}]"
        cells = [row.method, with_interval(row.mean, row.mean_ci), with_interval(row.best, row.best_ci), *shares]
        lines.append([*cells, *([lead] if len(rows) > 1 else [])])
    return markdown_table(lines)


def task_table(rows: Sequence[Aggregate]) -> str:
    """A Markdown table with a row per task: each method's mean score."""
    tasks = sorted({task for row in rows for task in row.tasks})
    lines = [["task, score", *(row.method for row in rows)]]
    return markdown_table([*lines, *([task, *(format_number(row.tasks.get(task), ".1f") for row in rows)] for task in tasks)])
