"""One number for a world of many tasks: ScienceWorld's thirty, each counting the same. Pure functions.

Seeds of such a world are variations of its tasks. First each task gets the mean over its variations and episodes of the scores, where a
score below 0 (a fatal mistake) counts as 0; then the aggregate is the mean over the tasks. Its 95 % interval is Student's over the
tasks, and so is that of the paired difference: the tasks are the units, since variations of one task are no further tasks.
"""

from collections.abc import Callable, Mapping, Sequence

from ...memory.display import format_number, markdown_table, with_interval
from ...nodes.evaluate.statistics import interval, mean
from .equal_cost import Methods
from .results import SeedResult

__all__ = []


def task_means(
    seeds: Sequence[SeedResult], task_of: Mapping[int, str], number: Callable[[SeedResult], float]
) -> dict[str, float]:
    """Task -> the mean of a number over its variations. `task_of`: seed -> name of its task."""
    found: dict[str, list[float]] = {}
    for one in seeds:
        found.setdefault(task_of[one.seed], []).append(number(one))
    return {task: mean(values) for task, values in sorted(found.items())}


def mean_score(result: SeedResult) -> float:
    """The mean of a run's scores, those below 0 as 0."""
    return mean([max(0.0, score) for score in result.scores])


def aggregate_table(methods: Methods, task_of: Mapping[int, str]) -> str:
    """A Markdown table with a row per method, over the tasks that it has played: score, best attempt (an oracle picks it), the attempt that
    the method chose, shares of episodes that solved their task and that ended below 0, and the first method's lead."""
    first = task_means(methods[0], task_of, mean_score)
    head = [f"mean of {len(first)} tasks", "score", "best attempt", "answer", "solved", "fatal"]
    lines = [[*head, *([f"{methods[0][0].method} is ahead by"] if len(methods) > 1 else [])]]
    for seeds in methods:
        scores, best = task_means(seeds, task_of, mean_score), task_means(seeds, task_of, lambda a: max(0.0, *a.scores))
        answer = solved = None
        if all(a.answer is not None for a in seeds):
            answer = mean([*task_means(seeds, task_of, lambda a: max(0.0, a.scores[a.answer or 0])).values()])
        if all(a.solved is not None for a in seeds):
            solved = mean(
                [*task_means(seeds, task_of, lambda a: mean([float(s >= (a.solved or 0)) for s in a.scores])).values()]
            )
        fatal = mean([*task_means(seeds, task_of, lambda a: mean([float(s < 0) for s in a.scores])).values()])
        cells = [with_interval(mean(values), interval(values)) for values in ([*scores.values()], [*best.values()])]
        cells += [format_number(answer, ".3g"), format_number(solved, ".3f"), f"{fatal:.3f}"]
        gaps = [first[task] - score for task, score in scores.items() if task in first]
        lead = "–" if seeds is methods[0] or not gaps else f"{mean(gaps):+.3g}"
        if lead != "–" and (ci := interval(gaps)) is not None:
            lead += f" [{ci[0]:+.3g}, {ci[1]:+.3g}]"
        lines.append([seeds[0].method, *cells, *([lead] if len(methods) > 1 else [])])
    return markdown_table(lines)


def task_table(methods: Methods, task_of: Mapping[int, str]) -> str:
    """A Markdown table with a row per task: each method's mean score."""
    means = [task_means(seeds, task_of, mean_score) for seeds in methods]
    lines = [["task, score", *(seeds[0].method for seeds in methods)]]
    tasks = sorted({task for of_method in means for task in of_method})
    return markdown_table([*lines, *([task, *(format_number(one.get(task), ".1f") for one in means)] for task in tasks)])
