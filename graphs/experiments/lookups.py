"""The silent failures among the steps of a run: look-ups of memory that found nothing, and steps that are lost.

A method that finds nothing plays as if it had no memory. An episode whose steps are lost has a score that leads nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from .jsonl import read_rows, steps_to

__all__ = ["LookUps", "RunSteps", "read_steps"]


class LookUps(NamedTuple):
    """The look-ups in a run's episodes after its first, in which there is nothing to find."""

    steps: int
    """Steps that looked something up."""
    empty: int
    """Those that found nothing."""
    nearest_miss: float | None = None
    """The greatest similarity among what was not similar enough for them, where the method notes it."""


class RunSteps(NamedTuple):
    """A run's steps.jsonl in short."""

    look_ups: LookUps
    lost: int | None
    """The first episode whose steps are not all there; None if there is no such episode."""


def read_steps(run: Path, episodes: Iterable[Mapping[str, Any]]) -> RunSteps:
    """The steps of a run in short. A file that was read before, and has not changed since, is not read again.

    Args:
        run: the folder of the run.
        episodes: the rows of its finished episodes.

    Raises:
        UserError: a row of the file is no JSON.
    """
    path = run / "steps.jsonl"
    heads = sorted((int(row["episode"]), str(row.get("head", ""))) for row in episodes)
    written = path.stat() if path.exists() else None
    return _read_steps(path, tuple(heads), written and (written.st_mtime_ns, written.st_size))


@lru_cache(maxsize=10_000)
def _read_steps(path: Path, heads: Sequence[tuple[int, str]], written: tuple[int, int] | None) -> RunSteps:
    rows = read_rows(path) if written else []
    by_id = {str(row["id"]): row for row in rows}
    lost = next((episode for episode, head in heads if steps_to(by_id, head) is None), None)
    return RunSteps(_count_look_ups(rows), lost)


def _count_look_ups(rows: Iterable[Mapping[str, Any]]) -> LookUps:
    """The look-ups, for a method that notes at every step what it found (jitrl, adamem)."""
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
