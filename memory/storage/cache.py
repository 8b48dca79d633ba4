"""What was computed once and is never paid for again: values by a digest of all that they depend on, in a SQLite file.

Whoever computed a value first has said what it is: a second one is not stored, and whoever came with it is given the first.
Threads and processes that share a file thus go on with the same values, whatever the order in which they come. Beside the
values stands what they cost, by stage, the cost of values that came second included.

`get` takes about 20 us and `put` 100 for a reply of 3 kB (tests/performance/bench_training_free.py), so event loops may call
both directly. A `put` also waits while another process writes, which takes it as little, and once in a thousand pages or so
for the disk.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

from ..errors import UserError
from ..records import Usage

__all__ = ["Cache", "CacheError", "cache_key"]

LOCK_TIMEOUT = 30.0
"""Seconds to wait for another process that is writing to the same file."""
APPLICATION_ID = 0x6C675F63
"""The mark in the file's header that says what it is ("lg_c")."""
TABLES = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT NOT NULL, stage TEXT NOT NULL, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS spent (stage TEXT, what TEXT, amount REAL NOT NULL, PRIMARY KEY (stage, what)) WITHOUT ROWID;
"""
ADD_COST = "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"
HINTS = {
    sqlite3.SQLITE_FULL: "the disk is full: make room and run again; what was stored before is kept",
    sqlite3.SQLITE_IOERR: "the disk does not take it: make room or repair it, and run again; what was stored before is kept",
    sqlite3.SQLITE_CANTOPEN: "name a file in a directory that can be written",
    sqlite3.SQLITE_BUSY: f"another process has been writing to it for {LOCK_TIMEOUT:g} s: let it end, or use another file",
    sqlite3.SQLITE_READONLY: "the file cannot be written: give it the rights, or use another one",
    sqlite3.SQLITE_NOTADB: "it is no cache; name another file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a copy, or start a new one",
    sqlite3.SQLITE_TOOBIG: "a value is larger than SQLite stores (1 GB)",
}


class CacheError(UserError, RuntimeError):
    """The cache cannot be read or written; says why, and what would do."""


class Cache:
    """Values by key, in a SQLite file or, without a path, in memory.

    Safe for threads and event loops; several processes may share a file, each with a `Cache` of its own (one that was opened
    before a fork is not the child's). A killed process loses nothing that `put` returned from; a power cut may cost the last
    values, which are then computed again, and never the file (write-ahead log, synchronous=NORMAL).

    Raises:
        CacheError: the file cannot be opened or written, is damaged, or is something else.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self._lock = Lock()
        with self._user_errors():
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            # Transactions are begun and ended here, and not by Python's module.
            self._base = sqlite3.connect(self.path or ":memory:", LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._base.close()
                raise

    def _prepare(self) -> None:
        (mark,) = self._base.execute("PRAGMA application_id").fetchone()
        if mark != APPLICATION_ID and self._base.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            # Another process may have made the tables since the mark was read.
            (mark,) = self._base.execute("PRAGMA application_id").fetchone()
            if mark != APPLICATION_ID:
                raise CacheError(f"cache at {self.path}: this is a database of something else; name another file")
        self._base.execute("PRAGMA synchronous=NORMAL")
        if mark == APPLICATION_ID:
            return
        end = time.monotonic() + LOCK_TIMEOUT
        while True:  # where two processes change to the write-ahead log at once, SQLite does not wait of itself
            try:
                self._base.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.005)
        self._base.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA application_id={APPLICATION_ID}; COMMIT;")

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        """SQLite's errors as the user's."""
        where = f"cache at {self.path}" if self.path else "cache in memory"
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise ValueError(f"{where}: {error}") from error  # closed: the caller's mistake
        except sqlite3.Error as error:
            hint = HINTS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
            if hint is None:
                raise
            raise CacheError(f"{where}: {error}; {hint}") from error
        except OSError as error:
            raise CacheError(f"{where}: {error.strerror}; name a file in a directory that can be written") from error

    def get(self, key: str) -> Any | None:
        """The JSON value stored under a key, a new copy each time; None if there is none."""
        with self._user_errors(), self._lock:
            row = self._base.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None

    def put(self, key: str, value: Any, stage: str, usage: Usage | None = None, seconds: float = 0.0) -> Any:
        """Store a value, unless there is one, and return what is stored: what comes back is what every later `get` returns.

        Args:
            key: `key` of all that the value depends on.
            value: as JSON; anything but None, which stands for "not there". Tuples come back as lists.
            stage: what the value is for: costs are added up by it.
            usage: what the value cost, without what earlier values cost that it was made from. Counts in any case: who comes
                second has paid, too.
            seconds: that it took.
        """
        if value is None:
            raise ValueError("a cache holds no None: it says that nothing is stored")
        text = json.dumps(value)  # in ASCII: half a surrogate pair of a model's reply is no UTF-8
        costs = [(stage, what, amount) for what, amount in _costs(usage, seconds) if amount]
        with self._user_errors(), self._lock:
            base = self._base
            base.execute("BEGIN IMMEDIATE")
            try:
                base.executemany(ADD_COST, costs)
                row = (key, text, stage, seconds)
                new = base.execute("INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row).rowcount
                if not new:
                    (text,) = base.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
                base.execute("COMMIT")
            except BaseException:
                if base.in_transaction:  # a full disk may have ended it already
                    base.execute("ROLLBACK")
                raise
        return json.loads(text)

    def usage_by_stage(self) -> dict[str, Usage]:
        """What was paid for through this file, by stage: by all processes, and in earlier runs. Values found there cost nothing."""
        found: dict[str, dict[str, int]] = {}
        for stage, what, amount in self._costs():
            if what != "seconds":
                found.setdefault(stage, {})[what] = int(amount)
        return {stage: Usage(**amounts) for stage, amounts in found.items()}

    def seconds_by_stage(self) -> dict[str, float]:
        """How long the values took, added up by stage."""
        return {stage: amount for stage, what, amount in self._costs() if what == "seconds"}

    def _costs(self) -> list[tuple[str, str, float]]:
        with self._user_errors(), self._lock:
            return self._base.execute("SELECT stage, what, amount FROM spent ORDER BY stage, what").fetchall()

    def close(self) -> None:
        """Close the file; nothing can be asked any more."""
        with self._lock:
            self._base.close()


def _costs(usage: Usage | None, seconds: float) -> Iterator[tuple[str, float]]:
    if usage is not None:
        for field in fields(usage):
            yield field.name, getattr(usage, field.name)
    yield "seconds", seconds


def cache_key(*parts: Any) -> str:
    """A digest of JSON values and records: equal parts have the same, others another, in every process and on every machine.

    Records count with their type and all fields; tuples and lists are the same; names of dicts are strings, in any order.

    Raises:
        TypeError: naming what has no such digest.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=_plain)
    return blake2b(text.encode(), digest_size=20).hexdigest()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"": type(value).__name__, **{field.name: getattr(value, field.name) for field in fields(value)}}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no digest of {value!r} ({type(value).__name__}): JSON values and records have one")
