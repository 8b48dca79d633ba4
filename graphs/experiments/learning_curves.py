"""Learning steps of a training-free run, and the curves of what its library is worth after each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...nodes.evaluate.statistics import interval, mean
from .figures import COLOURS, save_figure, score_axes

__all__ = ["LearningStep"]


@dataclass(frozen=True)
class LearningStep:
    """The measurements of one learning step of one seed."""

    seed: int
    step: int
    """Number of the step, from 0."""
    train: float
    """Mean reward of the step's rollouts, under the library before it; a missing reward counts as 0."""
    held_out: float | None
    """Mean reward on the held-out problems under the library after it; None: not measured."""
    lessons: int
    """Number of lessons in the library after the step."""
    accepted: bool
    """True if the step changed the library."""
    groups: int = 0
    """Number of groups that were compared."""
    test: float | None = None
    """Mean reward on the test problems under the library after it; None: not measured."""
    lost: int = 0
    """Number of groups from which nothing was learned because rollouts, or the reply that compares them, were missing."""
    problems: int = 0
    """Number of groups, one for each problem of the step; 0 in a run of an earlier version."""


# One value per seed; None: not measured
_Column = list[float | None]


def draw_library_curves(
    seeds: Sequence[Sequence[LearningStep]],
    start: Sequence[float | None],
    end: Sequence[float | None],
    title: str,
    paths: Sequence[Path],
) -> None:
    """Draw the mean reward under the library after each step, with its 95 % interval over seeds.

    A seed that stops early keeps its library, so its last value is carried forward.

    Args:
        seeds: the learning steps of each seed.
        start: for each seed, the mean reward on the test problems under the empty library; None: not measured.
        end: the same under the library that the seed has learned.
        title: text above the picture.
        paths: files to write; the suffix gives the format (.png, .svg).
    """
    seeds_note = f"mean of {n} seeds, 95 % interval" if (n := len(seeds)) > 1 else "one seed"
    figure, axes = score_axes(title, f"learning steps taken ({seeds_note})", "mean reward")
    last = max((step.step for steps in seeds for step in steps), default=-1)
    tests = [[first, *_carry_forward(steps, last, "test")] for first, steps in zip(start, seeds, strict=True)]
    for measured, product in zip(tests, end, strict=True):
        if last >= 0 and measured[-1] is None:
            measured[-1] = product
    held_out = [_carry_forward(steps, last, "held_out") for steps in seeds]
    train = [[_value_at_step(steps, n, "train") for n in range(last + 1)] for steps in seeds]
    _draw_line(axes, tests, 0, COLOURS[0], "test")
    _draw_line(axes, held_out, 1, COLOURS[1], "held out")
    _draw_line(axes, train, 0, COLOURS[2], "train (library before the step)")
    axes.set_ylim(0, 1.05)
    if axes.lines:
        figure.legend(loc="outside right upper", frameon=False)
    save_figure(figure, paths)


def _draw_line(axes: Any, seeds: Sequence[_Column], offset: int, colour: str, label: str) -> None:
    """Draw the mean over seeds at each step where there is a value, and its interval where all steps have one.

    Args:
        axes: matplotlib's, to draw on.
        seeds: for each seed, a value per step; None: not measured.
        offset: place of the first value on the x axis, in learning steps.
        colour: of the line.
        label: in the legend.
    """
    known = [
        (offset + n, column)
        for n, values in enumerate(zip(*seeds, strict=True))
        if (column := [value for value in values if value is not None])
    ]
    if not known:
        return
    at = [n for n, _ in known]
    is_complete = at == list(range(at[0], at[-1] + 1))  # otherwise only the beginning and the end were measured
    middles = [mean(column) for _, column in known]
    axes.plot(at, middles, color=colour, lw=2, ls="-" if is_complete else ":", marker="o", ms=4, label=label)
    bands = [(n, band) for n, column in known if (band := interval(column)) is not None]
    if bands and is_complete:
        steps = [n for n, _ in bands]
        axes.fill_between(steps, [b[0] for _, b in bands], [b[1] for _, b in bands], color=colour, alpha=0.1, lw=0)


def _carry_forward(steps: Sequence[LearningStep], last: int, name: str) -> list[float | None]:
    """A field of each step up to `last`, the last step of all seeds; after a seed's own last step its value repeats."""
    values: list[float | None] = []
    for number in range(last + 1):
        has_ended = not steps or number > steps[-1].step
        values.append(values[-1] if has_ended and values else _value_at_step(steps, number, name))
    return values


def _value_at_step(steps: Sequence[LearningStep], number: int, name: str) -> float | None:
    value: float | None = next((getattr(step, name) for step in steps if step.step == number), None)
    return value
