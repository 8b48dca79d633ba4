"""Reading JSONL files of runs, which another process may be writing to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...memory.errors import UserError

__all__ = ["read_rows"]


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
