"""Files of questions: a JSON list, or one JSON object in each line (JSONL)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ....memory.errors import UserError
from ....memory.records import Task

__all__ = []

_Row = TypeVar("_Row")


def read_objects(world: str, path: Path, expected: str) -> list[tuple[str, Any]]:
    """The objects of a file, each with its position in words: `line 3` or `item 3`.

    Args:
        world: name of the world, for messages.
        path: the file, in UTF-8.
        expected: end of the messages about a damaged file: the layout that was expected.

    Raises:
        UserError: the file cannot be read, is damaged, or holds nothing.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as cause:
        raise UserError(f"{world}: cannot read {path}: {cause}") from cause
    if text.lstrip().startswith("["):
        parts, kind = [text], "item"
    else:
        parts, kind = text.split("\n"), "line"
    found: list[tuple[str, Any]] = []
    for n, part in enumerate(parts, 1):
        if not part.strip():
            continue
        try:
            value = json.loads(part)
        except (ValueError, RecursionError) as cause:
            line = getattr(cause, "lineno", n) if kind == "item" else n
            raise UserError(f"{world}: {path} line {line} is no JSON: {cause}; {expected}") from cause
        found += [(f"item {m}", item) for m, item in enumerate(value, 1)] if kind == "item" else [(f"line {n}", value)]
    if not found:
        raise UserError(f"{world}: {path} is empty; {expected}")
    return found


def find_row(world: str, rows: Sequence[_Row], task: Task) -> _Row:
    """The row of a task, whose seed is its number in the file.

    Raises:
        UserError: the task is of another file.
    """
    if not 0 <= task.seed < len(rows):
        raise UserError(f"{world}: has no task {task.id} (row {task.seed} of {len(rows)})")
    return rows[task.seed]
