"""Reading a run's rows and steps, which another process may be writing, and the silent failures among the steps.

A method that finds nothing in memory plays as if it had none. An episode whose steps are lost has a score that leads nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ...memory.errors import UserError

__all__ = ["LookUps", "RunSteps"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a JSONL file that another process may be writing to.

    Raises:
        UserError: a row is no JSON.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):  # cut short by a crash, and its writer will write it again; or being written just now
            break
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(
                f"{path}, line {number}, is damaged ({error}); remove {path.parent} to play that run from its start"
            ) from error
    return rows


def steps_to(steps: Mapping[str, Mapping[str, Any]], head: str) -> list[Mapping[str, Any]] | None:
    """The rows of the steps that lead to a head, oldest first; None if one is missing.

    Args:
        steps: id -> row of a step.
        head: the id of the last step, or of the start of an episode, which holds a `/`.
    """
    found: list[Mapping[str, Any]] = []
    while "/" not in head:
        if head not in steps:
            return None
        found.append(steps[head])
        head = str(steps[head]["parent"])
    return found[::-1]


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
