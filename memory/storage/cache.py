"""A persistent key-value cache in SQLite. Keys are digests of all inputs of a value; costs are recorded by stage.

The first value stored under a key stays. A later `put` under that key returns the first value, so threads and processes that
share a file go on with the same values, whatever their order. The costs of a later value count all the same.

`get` takes about 20 us and `put` about 100 us for a reply of 3 kB, so event loops may call both directly. A `put` also
waits while another process writes, which is as short, and about once in a thousand pages for the disk.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
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
"""The mark of a cache in the file's header ("lg_c")."""
TABLES = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT NOT NULL, stage TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS spent (stage TEXT, what TEXT, amount INTEGER NOT NULL, PRIMARY KEY (stage, what)) WITHOUT ROWID;
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
    """An error: the cache cannot be read or written. The message names the cause and a remedy."""


class Cache:
    """Values by key, in a SQLite file or, without a path, in memory.

    A cache is safe for threads and event loops. Several processes may share a file, each with a `Cache` of its own, opened
    after any fork. A killed process loses no value whose `put` returned. A power cut may lose the last values, which are then
    computed again, but never the file (write-ahead log, synchronous=NORMAL).

    Raises:
        CacheError: the file cannot be opened or written, is damaged, or is something else.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self._lock = Lock()
        with self._user_errors():
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            # This class begins and ends transactions itself, instead of Python's module.
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
        while True:  # SQLite itself does not wait where two processes switch to the write-ahead log at once
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
        """Turn SQLite's errors into `CacheError`."""
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

    def put(self, key: str, value: Any, stage: str, usage: Usage | None = None) -> Any:
        """Store a value unless the key has one, and return the stored value, which every later `get` returns too.

        Args:
            key: `cache_key` of all that the value depends on.
            value: a JSON value other than None, which means "not stored". Tuples come back as lists.
            stage: the purpose of the value; costs are added up by stage.
            usage: the cost of this value, without that of the values it was made from. It counts even if the value is not
                stored, since it was paid.

        Raises:
            ValueError: the value is None, or the cache is closed.
            CacheError: the file cannot be written.
        """
        if value is None:
            raise ValueError("a cache holds no None: it says that nothing is stored")
        text = json.dumps(value)  # in ASCII: half a surrogate pair in a model's reply is not valid UTF-8
        with self._writing() as base:
            base.executemany(ADD_COST, _costs(stage, usage))
            new = base.execute("INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (key, text, stage)).rowcount
            if not new:
                (text,) = base.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return json.loads(text)

    def add_cost(self, stage: str, usage: Usage) -> None:
        """Add up the cost of something that is not stored."""
        with self._writing() as base:
            base.executemany(ADD_COST, _costs(stage, usage))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction."""
        with self._user_errors(), self._lock:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:  # a full disk may have ended it already
                    self._base.execute("ROLLBACK")
                raise

    def usage_by_stage(self) -> dict[str, Usage]:
        """The cost of all values, by stage, over all processes and runs that used this file. Cached values cost nothing."""
        with self._user_errors(), self._lock:
            rows = self._base.execute("SELECT stage, what, amount FROM spent ORDER BY stage, what").fetchall()
        found: dict[str, dict[str, int]] = {}
        for stage, what, amount in rows:
            found.setdefault(stage, {})[what] = amount
        return {stage: Usage(**amounts) for stage, amounts in found.items()}

    def close(self) -> None:
        """Close the file. Later calls raise ValueError."""
        with self._lock:
            self._base.close()


def _costs(stage: str, usage: Usage | None) -> list[tuple[str, str, int]]:
    counted = asdict(usage) if usage is not None else {}
    return [(stage, what, amount) for what, amount in counted.items() if amount]


def cache_key(*parts: Any) -> str:
    """A digest of JSON values and records. Equal parts have equal digests in every process and on every machine.

    Records count with their type and all fields. Tuples equal lists. The keys of dicts are strings, in any order.

    Raises:
        TypeError: a part is neither a JSON value nor a record; names it.
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
