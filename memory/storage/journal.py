"""The journal: an append-only JSONL file with every step of every episode.

A graph's state holds only `head`, the id of the last step, and the journal holds the history behind it, so checkpoints stay
small however long an episode gets. A step's id is a hash of (parent id, step). So a step written twice is stored once, a
resumed episode finds its own steps again, and two forks share their common past and never overwrite each other.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from ..display import ShownAsTable, Table, make_table
from ..errors import UserError
from ..records import Transition
from .rows import Rows

__all__ = ["Journal", "JournalError"]

_encode = json.JSONEncoder(ensure_ascii=False).encode
_FIELDS = ("id", "parent", "step", "state", "action", "reward", "observation")
MAX_HISTORIES = 64
"""Episodes whose history is kept from step to step: nodes ask for it at each step, and to build it anew reads every step so far."""


def _transition(row: Mapping[str, Any]) -> Transition:
    return Transition(row["state"], row["action"], row["reward"], row.get("observation", ""))


class JournalError(UserError, RuntimeError):
    """An error: a state names a step that this journal does not hold."""


class Journal(ShownAsTable):
    """Steps by id, in memory, and in a JSONL file if a path is given.

    Args:
        path: the file, made if missing; None: the journal lasts as long as the process.
        details: additional fields of a row that stay in memory, None for all; the file has all fields.

    Raises:
        RowsError: the file cannot be read or written.
    """

    def __init__(self, path: Path | str | None = None, details: Sequence[str] | None = ()) -> None:
        self._rows = Rows(path, keep=None if details is None else (*_FIELDS, *details))
        self._histories: dict[str, tuple[Transition, ...]] = {}  # head -> history, the one asked for last at the end
        self._lock = Lock()

    @staticmethod
    def start(run: str, episode: int, task: str) -> str:
        """The head of an episode without steps."""
        return f"{run}/{episode}/{task}"

    def append(self, head: str, step: Transition, **more: Any) -> str:
        """Write `step` after `head` and return the new head. `more` are further fields of the row (JSON values).

        A step that is already in the journal is not written again. Its observation is no part of its id, and is written only
        where it differs from the state.
        """
        key = _encode([head, step.state, step.action, step.reward])
        id = hashlib.blake2b(key.encode(), digest_size=10).hexdigest()
        parent = self._rows.get(head)
        t = parent["step"] + 1 if parent else 0
        row = {"id": id, "parent": head, "step": t, "state": step.state, "action": step.action, "reward": step.reward}
        if step.observation and step.observation != step.state:
            row["observation"] = step.observation
        self._rows.append({**row, **more})
        return id

    def history(self, head: str, last: int | None = None) -> tuple[Transition, ...]:
        """The steps up to `head`, oldest first; only the last `last` of them if given.

        Raises:
            JournalError: `head` is neither the start of an episode nor a step written here.
        """
        row = self._rows.get(head)
        if row is None or last is not None:
            return tuple(map(_transition, self.rows(head, last)))
        with self._lock:
            found = self._histories.pop(head, None)
            before = self._histories.pop(row["parent"], None) if found is None else None
        if found is None:
            found = tuple(map(_transition, self.rows(head))) if before is None else (*before, _transition(row))
        with self._lock:
            self._histories[head] = found
            if len(self._histories) > MAX_HISTORIES:
                del self._histories[next(iter(self._histories))]
        return found

    def rows(self, head: str, last: int | None = None) -> list[Mapping[str, Any]]:
        """The rows of the steps up to `head`, as `history`: `step`, `state`, `action`, `reward`, `observation` if it has one, and the
        `details`."""
        found: list[Mapping[str, Any]] = []
        while last is None or len(found) < last:
            row = self._rows.get(head)
            if row is None:
                if "/" not in head:
                    raise JournalError(f"{self} has no step {head!r}: the state belongs to another journal")
                break
            found.append(row)
            head = row["parent"]
        return found[::-1]

    @property
    def is_durable(self) -> bool:
        """True if the journal is written to a file."""
        return self._rows.path is not None

    def sync(self) -> None:
        """Flush the file to the disk, so that the steps so far survive a power cut."""
        self._rows.sync()

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def table(self) -> Table:
        """A table of the steps, the newest first."""
        rows = self._rows.values()[::-1]
        shown = ((row["step"], row["state"], row["action"], row["reward"], row["id"], row["parent"]) for row in rows)
        return make_table(repr(self), ("step", "state", "action", "reward", "id", "after"), shown, len(rows))

    def __repr__(self) -> str:
        return f"Journal({len(self)} steps{f' in {self._rows.path}' if self._rows.path else ''})"
