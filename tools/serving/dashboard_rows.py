"""The dashboard's charts, tables and cards, as plain values for its templates.

Values come from the service's rows and may be anything: what is odd is left out or shown as `?`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "ages",
    "ago",
    "as_mapping",
    "as_rows",
    "bars",
    "chart",
    "clip_text",
    "convert_rows",
    "curves",
    "exchange_card",
    "finite_number",
    "format_number",
    "version_row",
]

MAX_POINTS = 120
"""Most points of a curve; more are averaged in groups."""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 320.0, 128.0, 44.0, 10.0, 104.0
"""A chart's size and the edges of the plot in it, which ends 8 before the right edge."""

CURVES = (
    ("reward", "Reward", "mean feedback of each version"),
    ("loss", "Loss", "of the step"),
    ("ess", "Effective sample size", "share of the minibatch"),
    ("age", "Age", "steps behind, mean"),
    ("entropy", "Entropy", "nats per token"),
    ("kl", "KL to the base", "nats per token"),
)
STATES = ("pending", "ready", "leased", "consumed", "held", "rejected")


def finite_number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def format_number(value: Any) -> str:
    """A number in a few characters; `–` for none."""
    found = finite_number(value)
    if found is None:
        return "–"
    if found == int(found) and abs(found) < 1e6:
        return str(int(found))
    return f"{found:.3g}"


def clip_text(value: Any, max_chars: int = 2000) -> str:
    """A value as text, cut to a length; empty for None."""
    found = value if isinstance(value, str) else "" if value is None else str(value)
    return found if len(found) <= max_chars else f"{found[:max_chars]} …"


def ago(value: Any, now: float) -> str:
    """The time since a Unix time, in words; `?` if it is no such time."""
    found = finite_number(value)
    if found is None or not 0 < found < 4e9:
        return "?"
    seconds = max(0.0, now - found)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def as_rows(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; other items are left out."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def chart(points: Sequence[tuple[float, float]], axis: str = "step") -> dict[str, Any] | None:
    """The places of a curve's points in an SVG of `WIDTH` x `HEIGHT`; None: there are no points.

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
    wide, tall = WIDTH - 8 - LEFT, BOTTOM - TOP

    def place(step: float, value: float) -> tuple[str, str]:
        x = LEFT + wide * ((step - first) / (last - first) if last > first else 0.5)
        return f"{x:.1f}", f"{BOTTOM - tall * (value - low) / (high - low):.1f}"

    dots = [(*place(step, value), f"{axis} {format_number(step)}: {format_number(value)}") for step, value in thinned]
    return {
        "line": " ".join(f"{x},{y}" for x, y, _ in dots),
        "dots": dots,
        "last": dots[-1],
        "value": format_number(points[-1][1]),
        "marks": [(f"{BOTTOM - tall * share:.1f}", f"{low + (high - low) * share:.2g}") for share in (0, 0.5, 1)],
        "first": format_number(first),
        "end": format_number(last),
    }


def curves(updates: Iterable[Mapping[str, Any]], rewards: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The charts of a learner's steps.

    Args:
        updates: the steps.
        rewards: the mean reward of each version while it answered, which is the reward's curve. A minibatch's mean says little, since
            it holds good and bad exchanges in equal parts.
    """
    pairs = [(finite_number(row.get("step")), finite_number(row.get("reward"))) for row in rewards]
    means = sorted((step, value) for step, value in pairs if step is not None and value is not None)
    seen = [(step, update) for update in updates if (step := finite_number(update.get("step"))) is not None]
    found = []
    for name, title, unit in CURVES:
        points = [(step, value) for step, update in seen if (value := finite_number(update.get(name))) is not None]
        points, axis = (means, "version") if name == "reward" else (points, "step")
        found.append({"title": title, "unit": unit, "axis": axis, "chart": chart(points, axis)})
    return found


def bars(counts: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    """Names with their counts and the lengths of their bars, from 0 to 100."""
    kept = list(counts)
    most = max((count for _, count in kept), default=0) or 1
    return [{"name": name, "count": format_number(count), "length": f"{100 * count / most:.1f}"} for name, count in kept]


def ages(value: Any, max_groups: int = 12) -> list[dict[str, Any]]:
    """Bars of records by their age in gradient steps, in at most `max_groups` groups.

    Args:
        value: a list of ages, or age -> count.
    """
    if isinstance(value, list | tuple):
        counted: dict[int, float] = {}
        for age in value:
            if (found := finite_number(age)) is not None and found >= 0:
                counted[int(found)] = counted.get(int(found), 0) + 1
    else:
        pairs = ((str(age), finite_number(count)) for age, count in as_mapping(value).items())
        counted = {
            int(age): count for age, count in pairs if age.isascii() and age.isdigit() and len(age) < 10 and count is not None
        }
    if not counted:
        return []
    size = max(1, math.ceil((max(counted) + 1) / max_groups))
    groups: dict[int, float] = dict.fromkeys(range(max(counted) // size + 1), 0)
    for age, count in counted.items():
        groups[age // size] += count
    return bars((f"{g * size}" if size == 1 else f"{g * size}–{g * size + size - 1}", count) for g, count in groups.items())


def version_row(row: Mapping[str, Any], live: str, canary: str, now: float) -> dict[str, Any]:
    """A line of the versions' table."""
    label = clip_text(row.get("label"), 200)
    checks = [
        {
            "name": clip_text(check.get("name"), 60),
            "value": format_number(check.get("value")),
            "limit": format_number(check.get("limit")),
            "passed": check.get("passed") is True,
            "is_measured": finite_number(check.get("value")) is not None,
            "note": clip_text(check.get("note"), 300),
        }
        for check in as_rows(row.get("gate"))
    ]
    state = "live" if label and label == live else "canary" if label and label == canary else clip_text(row.get("state"), 20)
    return {
        "label": label,
        "name": clip_text(row.get("name") or label.rpartition("@")[2], 80),
        "step": format_number(row.get("step")),
        "state": state,
        "tainted": row.get("tainted") is True,
        "created": ago(row.get("created"), now),
        "why": clip_text(row.get("why"), 300),
        "gate": checks,
        "reward": format_number(row.get("reward")),
        "feedbacks": format_number(row.get("feedbacks")),
        "learned_from": format_number(row.get("learned_from")),
        "promotes": bool(label) and state in ("candidate", "canary", "retired"),
    }


def exchange_card(row: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The card of an exchange."""
    asked = [message for message in as_rows(row.get("messages")) if message.get("role") in ("user", "tool")]
    feedback = as_mapping(row.get("feedback"))
    reward = finite_number(feedback.get("reward"))
    return {
        "id": clip_text(row.get("id"), 80),
        "adapter": clip_text(row.get("adapter"), 80),
        "version": clip_text(row.get("version"), 200).rpartition("@")[2] or "base",
        "state": clip_text(row.get("state"), 20) or "?",
        "reason": clip_text(row.get("reason"), 200),
        "created": ago(row.get("created"), now),
        "asked": clip_text(asked[-1].get("content") if asked else row.get("raw"), 1500),
        "reply": clip_text(row.get("reply"), 1500),
        "family": clip_text(row.get("family"), 60),
        "has_feedback": bool(feedback),
        "reward": "" if reward is None else f"{reward:+.2f}",
        "good": None if reward is None else reward > 0,
        "text": clip_text(feedback.get("text"), 600),
        "source": clip_text(feedback.get("source"), 40),
    }


def convert_rows(items: Any, make: Callable[[Mapping[str, Any]], dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The converted rows, and the number of rows that could not be converted."""
    found, odd = [], 0
    for item in items if isinstance(items, list | tuple) else []:
        try:
            found.append(make(item))
        except Exception:  # one bad row must not hide the others
            odd += 1
    return found, odd
