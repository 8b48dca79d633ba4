"""The rewards in a judge's reply: one for each step, by the step's number.

A model that judges sixty steps miscounts. So it is asked for entries that name their step, and one that is missing or cannot be read
costs that step alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..read_reply import Unreadable, read_number

__all__ = []


def read_step_rewards(found: Any, limits: Sequence[tuple[float, float]]) -> tuple[list[float | None], str]:
    """The reward of each step, None where the reply has none, and a sentence about those; it is empty if all are there.

    Args:
        found: a list of {"step": 1, "reward": 3}, an object {"1": 3}, or a plain list with a number for each step.
        limits: the least and the greatest reward of each step.

    Raises:
        Unreadable: `found` is nothing of the kind, or a plain list of another length, whose numbers belong to no step for sure.
    """
    by_step = _number_entries(found, len(limits))
    rewards, wrong = list[float | None](), list[str]()
    for step, (low, high) in enumerate(limits, 1):
        entry = by_step.get(step)
        value = entry.get("reward") if isinstance(entry, Mapping) else entry
        if step not in by_step:
            rewards.append(None)
            wrong.append(f"got no reward for step {step}")
        elif (number := read_number(value)) is not None and low <= number <= high:
            rewards.append(number)
        else:
            rewards.append(None)
            wrong.append(f"asked for rewards from {low:g} to {high:g}, got {value!r} for step {step}")
    return rewards, "; ".join(wrong)


def _number_entries(found: Any, count: int) -> dict[int, Any]:
    """The entries by number of their step."""
    if isinstance(found, int | float) and count == 1:
        return {1: found}
    if isinstance(found, Mapping):
        return {int(step): entry for step, entry in found.items() if str(step).strip().isdigit()}
    if isinstance(found, list) and found and all(isinstance(entry, Mapping) and "step" in entry for entry in found):
        return {int(entry["step"]): entry for entry in found if str(entry["step"]).strip().isdigit()}
    if isinstance(found, list) and len(found) == count:
        return dict(enumerate(found, 1))
    came = f"{len(found)} without numbers" if isinstance(found, list) else "none"
    raise Unreadable(
        f'asked for {count} rewards, got {came}; write {{"step": 1, "reward": ...}} for each of the steps 1 to {count}'
    )
