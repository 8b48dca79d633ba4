"""Look-ups of memory in a run that found nothing: a method that finds nothing plays as if it had no memory, without an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["LookUps", "count_look_ups"]


class LookUps(NamedTuple):
    """The look-ups in a run's episodes after its first, in which there is nothing to find."""

    steps: int
    """Steps that looked something up."""
    empty: int
    """Those that found nothing."""
    nearest_miss: float | None = None
    """The greatest similarity among what was not similar enough for them, where the method notes it."""


def count_look_ups(steps: Path) -> LookUps:
    """The look-ups in a steps.jsonl, for a method that notes at every step what it found (jitrl, adamem)."""
    lines = steps.read_bytes().splitlines(keepends=True) if steps.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
    found = [(row, _found_nothing(row)) for row in rows if row.get("episode", 0) > 0]
    misses = [row["nearest_similarity"] for row, empty in found if empty and "nearest_similarity" in row]
    return LookUps(
        sum(empty is not None for _, empty in found), sum(bool(empty) for _, empty in found), max(misses, default=None)
    )


def _found_nothing(row: Mapping[str, Any]) -> bool | None:
    """True if a step found nothing in memory; None if it looked nothing up."""
    if row.get("nearest_similarity") is not None:
        return not row.get("precedents")
    estimates = row.get("estimates")
    return not any(estimate.get("count") for estimate in estimates) if estimates else None
