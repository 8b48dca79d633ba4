"""An append-only JSONL file of rows with ids. A row written twice is stored once, and a crash costs at most the last line."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from ..errors import UserError
from .branches import ABSENT, History, branching

__all__ = ["Rows", "RowsError"]

_encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would make an encoder for every row


class RowsError(UserError, RuntimeError):
    """An error: the file cannot be read or written."""


@branching("append", but=("sync", "close"))
class Rows:
    """Rows by id (the row's `id` field), in the order of writing.

    Rows that are written in a branch (memory/storage/branches.py) are read there alone, and do not reach the file before it is kept.

    Only one process may write to a file. A last line that a crash cut short is dropped when the file is opened; a resumed run
    writes it again.

    Args:
        path: the file, made if missing; None: the rows are in memory only.
        keep: the fields that stay in memory, None for all; the file has all fields.

    Raises:
        RowsError: the file cannot be read or written.
    """

    def __init__(self, path: Path | str | None = None, keep: Collection[str] | None = None) -> None:
        self.path = Path(path) if path else None
        self._keep = keep
        self._rows: dict[str, Mapping[str, Any]] = {}
        self._history = History[Mapping[str, Any]](limit=None)  # of this process; rows of the file are older
        self._lock = Lock()
        self._file = None
        if self.path:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if self.path.exists():
                    self._load(self.path)
                self._file = self.path.open("ab", buffering=0)  # a buffer would write a row later that found no room before
            except OSError as error:
                raise RowsError(f"cannot open {self.path}: {error.strerror}") from error

    def _load(self, path: Path) -> None:
        end = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    row = json.loads(line)
                    self._rows[row["id"]] = self._fields_in_memory(row)
                except (ValueError, KeyError, TypeError) as error:
                    raise RowsError(f"{path}, line {number}: expected a JSON object with an id, got {line[:60]!r}") from error
                end += len(line)
        if end < path.stat().st_size:
            os.truncate(path, end)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write `row` unless there is one with its id."""
        with self._lock:
            if row["id"] in self._rows:
                return
            if self._file and self.path:
                line = _encode(row).encode() + b"\n"
                end, left = os.fstat(self._file.fileno()).st_size, memoryview(line)
                try:
                    while left:
                        left = left[self._file.write(left) :]
                except OSError as error:
                    os.truncate(self.path, end)  # half a row must not stand before the next one
                    raise RowsError(f"cannot write to {self.path}: {error.strerror}; the rows before are kept") from error
            self._rows[row["id"]] = self._fields_in_memory(row)
            self._history.note(row["id"])

    def __repr__(self) -> str:
        return f"Rows({str(self.path) if self.path else ''})"

    replaces = False
    """A row that is there is not replaced."""

    def as_of(self, moment: str) -> Rows:
        """A copy of the rows as they were at a moment (memory/storage/branches.py), in memory."""
        made = Rows(keep=self._keep)
        with self._lock:
            made._rows = self._history.undo(self._rows, moment)
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """id -> row, of those written since a moment; `ABSENT` for those deleted."""
        with self._lock:
            return {id: self._rows.get(str(id), ABSENT) for id in self._history.keys_since(moment)}

    def _fields_in_memory(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return row if self._keep is None else {name: row[name] for name in self._keep if name in row}

    def sync(self) -> None:
        """Flush the file to the disk, so that its rows survive a power cut."""
        if self._file:
            os.fsync(self._file.fileno())

    def get(self, id: str) -> Mapping[str, Any] | None:
        """The row with this id, or None."""
        return self._rows.get(id)

    def values(self) -> list[Mapping[str, Any]]:
        """All rows, oldest first."""
        with self._lock:
            return list(self._rows.values())

    def __contains__(self, id: object) -> bool:
        return id in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
