"""A folder that several processes share: LangGraph's own `SqliteStore`, opened so that what is deleted is gone.

    with SqliteMemory.open("my-memory") as store: ...

SQLite overwrites deleted bytes with zeros (`secure_delete`); its log, which still has them, is emptied after each deletion.
"""

import logging
import sqlite3
import time
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Self

from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite import SqliteStore

from ..errors import UserError

__all__ = ["SqliteMemory"]

LOG = logging.getLogger(__name__)
FILE = "memory.sqlite"
MOST_WRITES = 2_000
"""Items that are written in one statement; SQLite takes about 6,500."""
WAIT_SECONDS = 5.0
"""How long a write waits for that of another process: a user waits for it, and writes take milliseconds."""


class SqliteMemory(SqliteStore):
    """LangGraph's store in SQLite, in a folder, for several processes and threads."""

    _is_closed = False

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> Self:
        """The store in a folder, which is made if it is not there.

        Raises:
            UserError: the folder cannot be made or read, or its file is no such store.
        """
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
            conn = sqlite3.connect(place / FILE, check_same_thread=False, isolation_level=None, timeout=WAIT_SECONDS)
            try:
                for setting in ("journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON"):
                    conn.execute(f"PRAGMA {setting}")
                store = cls(conn)
                store.setup()
            except BaseException:
                conn.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{place} cannot be opened as a folder of memories: {error}") from error
        return store

    def setup(self) -> None:
        """Make the tables; two processes may do so at once."""
        for left in range(50, -1, -1):
            try:
                return super().setup()
            except sqlite3.Error:
                if not left:
                    raise
                time.sleep(0.02)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations: reads, then writes; after a deletion nothing of what was deleted is in the files.

        Each is a transaction of its own: one that has read cannot wait for another process's write, whatever the timeout.

        Raises:
            UserError: the file was closed.
        """
        if self._is_closed:
            raise UserError("this learner was closed, or its store: make another one to go on")
        every = list(ops)
        reads = [op for op in every if not isinstance(op, PutOp)]
        found = iter(super().batch(reads) if reads else ())
        writes = [op for op in every if isinstance(op, PutOp)]
        for start in range(0, len(writes), MOST_WRITES):
            super().batch(writes[start : start + MOST_WRITES])
        if any(op.value is None for op in writes):
            self._empty_log()
        return [None if isinstance(op, PutOp) else next(found) for op in every]

    def _empty_log(self) -> None:
        with self.lock:
            (is_busy, *_) = self.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            LOG.warning(
                "deleted bytes are still in the log of %s, which another process reads; the next deletion empties it", FILE
            )

    def close(self) -> None:
        """Close the file."""
        self._is_closed = True
        self.conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
