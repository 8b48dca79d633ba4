"""Charts of server-rendered pages, as plain values for their templates (tools/serving/pages), and numbers and times in few characters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["bars"]

MAX_POINTS = 120
"""Most points of a curve; more are averaged in groups."""
PLOT = {"width": 320.0, "height": 128.0, "left": 44.0, "right": 312.0, "top": 10.0, "bottom": 104.0}
"""A chart's size, and the edges of the plot in it."""
CURVES = (
    ("reward", "Reward", "mean feedback of each version"),
    ("loss", "Loss", "of the step"),
    ("ess", "Effective sample size", "share of the minibatch"),
    ("age", "Age", "steps behind, mean"),
    ("entropy", "Entropy", "nats per token"),
    ("kl", "KL to the base", "nats per token"),
)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def format_number(value: Any) -> str:
    """A number in a few characters; `–` for none."""
    if not _is_number(value):
        return "–"
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def time_since(value: float, now: float) -> str:
    """The time since a Unix time, in words."""
    seconds = max(0.0, now - value)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def chart(points: Sequence[tuple[float, float]], axis: str = "step") -> dict[str, Any] | None:
    """The places of a curve's points in an SVG of the size of `PLOT`; None: there are no points.

    Args:
        points: (step, value), in order. More than `MAX_POINTS` are averaged in groups.
        axis: what a step is: `step`, or `version`, which is named by the steps behind it.
    """
    if not points:
        return None
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    thinned = [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
    low, high = min(value for _, value in thinned), max(value for _, value in thinned)
    if high - low < 1e-9 * max(1.0, abs(low), abs(high)):
        low, high = low - max(abs(low), 1.0) * 0.1, high + max(abs(high), 1.0) * 0.1
    first, last = thinned[0][0], thinned[-1][0]
    left, bottom, tall = PLOT["left"], PLOT["bottom"], PLOT["bottom"] - PLOT["top"]

    def place(step: float, value: float) -> tuple[str, str]:
        x = left + (PLOT["right"] - left) * ((step - first) / (last - first) if last > first else 0.5)
        return f"{x:.1f}", f"{bottom - tall * (value - low) / (high - low):.1f}"

    dots = [(*place(step, value), f"{axis} {format_number(step)}: {format_number(value)}") for step, value in thinned]
    return {
        "line": " ".join(f"{x},{y}" for x, y, _ in dots),
        "dots": dots,
        "value": format_number(points[-1][1]),
        "marks": [(f"{bottom - tall * share:.1f}", f"{low + (high - low) * share:.2g}") for share in (0, 0.5, 1)],
        "first": format_number(first),
        "end": format_number(last),
    }


def curves(updates: Sequence[Mapping[str, Any]], rewards: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The charts of a learner's steps.

    Args:
        updates: the steps.
        rewards: the mean reward of each version while it answered, which is the reward's curve. A minibatch's mean says little, since
            it holds good and bad exchanges in equal parts.
    """
    found = []
    for name, title, unit in CURVES:
        rows, axis = (rewards, "version") if name == "reward" else (updates, "step")
        points = [(row["step"], row[name]) for row in rows if _is_number(row.get(name))]
        found.append({"title": title, "unit": unit, "axis": axis, "chart": chart(sorted(points), axis)})
    return found


def bars(counts: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Names with their counts and the lengths of their bars, from 0 to 100."""
    most = max((count for _, count in counts), default=0) or 1
    return [{"name": name, "count": format_number(count), "length": 100 * count / most} for name, count in counts]


def age_groups(counts: Mapping[str, int], max_groups: int = 12) -> list[dict[str, Any]]:
    """Bars of records by their age in gradient steps, in at most `max_groups` groups. `counts`: age -> number of records."""
    if not counts:
        return []
    oldest = max(map(int, counts))
    size = math.ceil((oldest + 1) / max_groups)
    groups = dict.fromkeys(range(oldest // size + 1), 0)
    for age, count in counts.items():
        groups[int(age) // size] += count
    return bars([(f"{g * size}" if size == 1 else f"{g * size}–{g * size + size - 1}", count) for g, count in groups.items()])
