"""Reading JSONL files of runs, which another process may be writing to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...memory.errors import UserError

__all__ = ["read_rows", "steps_to"]


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
