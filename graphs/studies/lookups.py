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


def count_look_ups(steps: Path) -> LookUps:
    """The look-ups in a steps.jsonl, for a method that notes at every step what it found (jitrl)."""
    found = [
        empty
        for line in (steps.read_bytes().splitlines(keepends=True) if steps.exists() else ())
        if line.endswith(b"\n")
        and (row := json.loads(line)).get("episode", 0) > 0
        and (empty := _found_nothing(row)) is not None
    ]
    return LookUps(len(found), sum(found))


def _found_nothing(row: Mapping[str, Any]) -> bool | None:
    """True if a step found nothing in memory; None if it looked nothing up."""
    estimates = row.get("estimates")
    return not any(estimate.get("count") for estimate in estimates) if estimates else None
