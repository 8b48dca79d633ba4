"""The learning curves of a comparison of agents: the mean reward as tasks go by, arm by arm, with 95 % intervals over seeds.

`draw_agent_curves(report)` takes what `evaluate_learning` returns. The picture shows itself in a notebook.
"""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...nodes.evaluate.statistics import mean
from ..agents.evaluation import LearningReport
from .figures import MARKERS, draw_curve, save_figure, score_axes

__all__ = ["AgentCurves", "draw_agent_curves"]


@dataclass(frozen=True)
class AgentCurves:
    """A picture of learning curves, which shows itself in a notebook."""

    figure: Any
    """A matplotlib figure."""

    def save(self, path: Path) -> None:
        """Write the picture; the suffix gives the format (.png, .svg)."""
        save_figure(self.figure, [path])

    def _repr_png_(self) -> bytes:
        target = BytesIO()
        self.figure.savefig(target, format="png", dpi=100)
        return target.getvalue()


def block_means(report: LearningReport, arm: str, block: int) -> list[list[float]]:
    """For each block of `block` tasks that follow each other, the mean reward of each seed; a task without a reward counts as 0.

    Tasks at the end that fill no block belong to the last one.
    """
    seeds: dict[int, list[float]] = {}
    for one in report.results:
        if one.arm == arm:
            seeds.setdefault(one.seed, []).append(one.reward or 0.0)
    count = min((len(rewards) for rewards in seeds.values()), default=0)
    if not 1 <= block <= count:
        raise UserError(f"a block of a learning curve is 1 task or more, and at most the {count} of a seed; got {block}")
    starts = range(0, count - block + 1, block)
    ends = [*starts[1:], count]
    return [[mean(rewards[start:end]) for rewards in seeds.values()] for start, end in zip(starts, ends, strict=True)]


def draw_agent_curves(report: LearningReport, block: int = 8, title: str = "") -> AgentCurves:
    """Draw the mean reward of each block of tasks, an arm a line, with 95 % intervals over seeds (Student's t).

    Args:
        report: the result of `evaluate_learning`.
        block: tasks that a point is the mean of.
        title: text above the picture.
    """
    figure, axes = score_axes(title, "tasks played", f"mean reward of {block} tasks")
    arms = list(dict.fromkeys(one.arm for one in report.results))
    for number, arm in enumerate(arms):
        points = block_means(report, arm, block)
        where = [block * (n + 1) for n in range(len(points))]
        draw_curve(axes, number, arm, where, points, band=True, marker=MARKERS[number % len(MARKERS)], ms=4)
    axes.legend(frameon=False, fontsize=9)
    return AgentCurves(figure)
