"""The replay buffer (memory/claas/replay.py) as a SQLite file: its tables, its owner, transactions, and errors in words."""

import json
import math
import os
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from ..errors import ReplayError, UserError
from ..records import ChatRequest, Exchange, Feedback, Reply, Sampling

__all__ = ["NAME", "ReplayFile"]

APPLICATION_ID = 0x6C675F72
"""The file's type in SQLite's header ("lg_r")."""
FORMAT = 2
"""Version of the tables; user_version in SQLite's header."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""Pattern of the names of tenants and adapters."""
LOGPROB_TOLERANCE = 1e-5
"""Nats that a log-probability may be above 0 in 32-bit arithmetic; stored as 0."""
CHECKPOINT_COMMITS, CHECKPOINT_PAGES = 100, 20_000
"""Transactions after which a writer copies the log into the file while others go on; pages of the log (4 kB) after which all wait for it."""
TABLES = """
CREATE TABLE scopes (tenant TEXT, adapter TEXT, step INTEGER NOT NULL DEFAULT 0, head TEXT NOT NULL DEFAULT '',
    attempt INTEGER NOT NULL DEFAULT 0, records INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, adapter)) WITHOUT ROWID;
CREATE TABLE records (n INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, adapter TEXT NOT NULL, version TEXT NOT NULL,
    base TEXT NOT NULL, made INTEGER NOT NULL, family TEXT NOT NULL, positive INTEGER, state TEXT NOT NULL, reason TEXT NOT NULL
    DEFAULT '', times INTEGER NOT NULL DEFAULT 0, revision INTEGER NOT NULL DEFAULT 0, job TEXT NOT NULL DEFAULT '',
    feedback TEXT, kl REAL, batch TEXT, appended REAL NOT NULL, bytes INTEGER NOT NULL, "user" TEXT NOT NULL DEFAULT '',
    UNIQUE (tenant, id));
CREATE INDEX by_scope ON records (tenant, adapter, n);
CREATE INDEX by_state ON records (tenant, adapter, state, n);
CREATE INDEX by_tenant ON records (tenant, n);
CREATE INDEX ready ON records (tenant, adapter, n, family, positive, made) WHERE state = 'ready';
CREATE INDEX by_age ON records (tenant, adapter, made) WHERE state = 'ready';
CREATE INDEX done ON records (tenant, n, adapter) WHERE state IN ('consumed', 'rejected') AND batch IS NULL;
CREATE INDEX in_batch ON records (batch) WHERE batch IS NOT NULL;
CREATE INDEX by_user ON records (tenant, adapter, "user", revision, n) WHERE "user" <> '';
CREATE INDEX by_base ON records (tenant, adapter, base) WHERE state = 'ready';
CREATE TABLE bodies (n INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE feedbacks (tenant TEXT, job TEXT, id TEXT NOT NULL, revision INTEGER NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (tenant, job)) WITHOUT ROWID;
CREATE INDEX feedbacks_of ON feedbacks (tenant, id, revision);
CREATE TABLE batches (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, adapter TEXT NOT NULL, step INTEGER NOT NULL, parent TEXT NOT NULL,
    seed INTEGER NOT NULL, ids TEXT NOT NULL, state TEXT NOT NULL, version TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '');
CREATE UNIQUE INDEX unfinished ON batches (tenant, adapter) WHERE state = 'leased';
CREATE TABLE uses (tenant TEXT, id TEXT, batch TEXT, version TEXT NOT NULL, PRIMARY KEY (tenant, id, batch)) WITHOUT ROWID;
CREATE TABLE updates (tenant TEXT, adapter TEXT, step INTEGER, batch TEXT NOT NULL, version TEXT NOT NULL, parent TEXT NOT NULL,
    about TEXT NOT NULL, time REAL NOT NULL, PRIMARY KEY (tenant, adapter, step)) WITHOUT ROWID;
CREATE INDEX by_version ON updates (tenant, adapter, version);
CREATE INDEX by_parent ON updates (tenant, parent);
CREATE TABLE taints (tenant TEXT, version TEXT, PRIMARY KEY (tenant, version)) WITHOUT ROWID;
"""
HINTS = {
    sqlite3.SQLITE_FULL: "the disk is full: make room and try again; what was stored before is kept",
    sqlite3.SQLITE_IOERR: "the disk does not take it: make room or repair it, and try again; what was stored before is kept",
    sqlite3.SQLITE_CANTOPEN: "name a file in a directory that can be written",
    sqlite3.SQLITE_BUSY: "another process writes to it: let it end",
    sqlite3.SQLITE_READONLY: "the file cannot be written: give it the rights, or use another one",
    sqlite3.SQLITE_NOTADB: "it is no replay buffer, or damaged; restore it from a copy, or name another file or --out",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a copy, or start a new one",
    sqlite3.SQLITE_TOOBIG: "a value is larger than SQLite stores (1 GB)",
}
Result = TypeVar("Result")


class ReplayFile:
    """An open file: reads and transactions for the threads of the process that owns it.

    Raises:
        ReplayError: the file is open in another process, damaged, something else, or cannot be written.
    """

    shared = False
    """False: one process has the file open."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.where = str(path)
        self._writers, self._disk, self._copying = Lock(), Lock(), Lock()
        self._commits = self._synced = 0
        self._log: int | None = None
        self._readers: deque[sqlite3.Connection] = deque()
        self._closing = False
        self._lock_file()
        try:
            with self._user_errors():
                with suppress(OSError):  # SQLite says it better
                    os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # its log takes on the file's rights
                self._base = sqlite3.connect(self.path, 5.0, isolation_level=None, check_same_thread=False)
                try:
                    self._prepare()
                except BaseException:
                    self._base.close()
                    raise
        except BaseException:
            self._owner.release()
            raise

    def _lock_file(self) -> None:
        from filelock import FileLock, Timeout

        signed = self.path.with_name(self.path.name + ".pid")
        # any thread may close the file
        self._owner = FileLock(self.path.with_name(self.path.name + ".lock"), thread_local=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._owner.acquire(timeout=0)
            signed.write_text(str(os.getpid()), encoding="utf-8")
        except Timeout:
            pid = signed.read_text(encoding="utf-8") if signed.exists() else ""
            who = "this process" if pid == str(os.getpid()) else f"process {pid or '(unknown)'}"
            raise ReplayError(f"replay buffer at {self.path} is open in {who}; end it, or name another file or --out") from None
        except OSError as error:
            self._owner.release()
            hint = HINTS[sqlite3.SQLITE_CANTOPEN]
            raise ReplayError(f"replay buffer at {self.path}: {error.strerror or error}; {hint}") from error

    def _prepare(self) -> None:
        base, what = self._base, f"replay buffer at {self.path}"
        (mark,) = base.execute("PRAGMA application_id").fetchone()
        if mark != APPLICATION_ID and base.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise ReplayError(f"{what}: this is a database of something else; name another file or --out")
        if mark == APPLICATION_ID:
            (version,) = base.execute("PRAGMA user_version").fetchone()
            if version != FORMAT:
                hint = "start the release that wrote it, or name another file or --out"
                raise ReplayError(f"{what}: format {version}, this program reads {FORMAT}; {hint}")
            (found,) = base.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise ReplayError(f"{what}: {found}; {HINTS[sqlite3.SQLITE_CORRUPT]}")
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=NORMAL")  # `writing` syncs the log itself, once for all that wait for it
        base.execute("PRAGMA secure_delete=ON")
        base.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        if mark == APPLICATION_ID:
            base.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what was deleted just before a crash leaves the log, too
        else:
            base.executescript(
                f"BEGIN IMMEDIATE; {TABLES} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; COMMIT;"
            )

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into `ReplayError`."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise ValueError(f"replay buffer at {self.path}: {error}") from error  # closed: the caller's mistake
        except sqlite3.Error as error:
            hint = HINTS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
            if hint is None:
                raise
            raise ReplayError(f"replay buffer at {self.path}: {error}; {hint}") from error

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading that is not in use elsewhere. It waits for no writer, and sees committed transactions."""
        with self._user_errors():
            try:
                base = self._readers.pop()
            except IndexError:
                base = sqlite3.connect(self.path, 5.0, isolation_level=None, check_same_thread=False)
                base.execute("PRAGMA query_only=ON")
                base.execute("PRAGMA cache_size=-256")  # kB
            try:
                if self._closing:
                    raise sqlite3.ProgrammingError("it is closed")
                yield base
            finally:
                self._readers.append(base)
                if self._closing:
                    self._close_readers()

    def _close_readers(self) -> None:
        with suppress(IndexError):
            while True:
                self._readers.pop().close()

    @contextmanager
    def writing(self, tenant: str) -> Iterator[sqlite3.Connection]:
        """A transaction of a tenant: all or nothing, and on disk at the end."""
        with self._user_errors():
            with self._writers:
                self._base.execute("BEGIN IMMEDIATE")
                try:
                    yield self._base
                    self._base.execute("COMMIT")
                except BaseException:
                    if self._base.in_transaction:
                        self._base.execute("ROLLBACK")
                    raise
                self._commits = number = self._commits + 1
            self._sync_log(number)
            if number % CHECKPOINT_COMMITS == 0:
                with self._copying, suppress(ReplayError, ValueError), self.reading() as base:
                    base.execute("PRAGMA wal_checkpoint(PASSIVE)")  # an error here (a full disk) comes again in the next writer

    def _sync_log(self, number: int) -> None:
        """Wait until a transaction is on the disk. One wait serves all transactions that were committed before it began."""
        with self._disk:
            if self._synced < number:
                if self._log is None:
                    self._log = os.open(f"{self.path}-wal", os.O_RDWR)
                committed = self._commits
                try:
                    os.fsync(self._log)
                except OSError as error:
                    hint = HINTS[sqlite3.SQLITE_IOERR]
                    raise ReplayError(f"replay buffer at {self.path}: {error.strerror or error}; {hint}") from error
                self._synced = committed

    def truncate_log(self) -> None:
        """Copy the log into the file and truncate it, so that deleted records are in no file.

        Raises:
            ReplayError: the disk or another reader prevents it. Opening the file again does it.
        """
        with self._user_errors(), self._copying, self._writers:
            busy, *_ = self._base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise ReplayError(
                f"replay buffer at {self.path}: deleted, but another program is reading the file: end it, and open it again"
            )

    def repeat_if_away(self, work: Callable[[], Result]) -> Result:
        """The work's result. A file is never away; Postgres may be."""
        return work()

    def claim(self, tenant: str, adapter: str) -> bool:
        """True: the process that has the file is the only one that learns."""
        return True

    def copy_to(self, path: Path) -> None:
        """Write a copy of the buffer to a new file."""
        with self.reading() as base, closing(sqlite3.connect(path)) as copy:
            base.backup(copy)

    def close(self) -> None:
        """Close the file, and let another process open it."""
        self._closing = True
        with self._copying, self._disk, self._writers:
            self._close_readers()
            if self._log is not None:
                os.close(self._log)
                self._log = None
            self._base.close()
            self._owner.release()


def digest(*parts: str) -> str:
    """A hash of strings: 24 hexadecimal digits."""
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def check_name(name: str, what: str) -> str:
    """The name of a tenant or an adapter.

    Raises:
        UserError: it is invalid.
    """
    if not NAME.fullmatch(name):
        raise UserError(f"{what} {name!r}: small letters, digits, - and _ make a name, at most 63, the first a letter or digit")
    return name


def json_safe(value: Any) -> Any:
    """A value that JSON can hold: dataclasses become objects, NaN and infinities become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        value = _by_field(value)
    if isinstance(value, Mapping):
        return {str(name): json_safe(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(each) for each in value]
    return value


def _by_field(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def pack(exchange: Exchange) -> str:
    """An exchange without its feedback, as JSON in ASCII.

    Raises:
        UserError: an invalid name or id, or log-probabilities that do not match the tokens (unless the reply's `flaw` says why).
    """
    check_name(exchange.tenant, "tenant")
    check_name(exchange.adapter, "adapter")
    if not exchange.id or len(exchange.id) > 200 or not exchange.id.isprintable():
        raise UserError(f"an exchange's id has 1 to 200 printable characters, got {exchange.id[:60]!r}")
    what, reply = f"exchange {exchange.id!r}", exchange.reply
    tokens, given = len(reply.token_ids), len(reply.logprobs)
    if not reply.flaw and not tokens and not reply.billed:
        raise UserError(f"{what} has no token ids: only what was sampled can be learned from")
    if not reply.flaw and tokens != given:
        raise UserError(f"{what} has {given} log-probabilities for {tokens} token ids: one each, the end of turn included")
    for i, value in enumerate(reply.logprobs):
        if not value <= LOGPROB_TOLERANCE or math.isinf(value):
            raise UserError(f"{what}: the log-probability of token {i} is {value}, not a finite number of at most 0")
    if not all(0 <= id < 2**32 for id in (*reply.prompt_ids, *reply.token_ids)):
        raise UserError(f"{what} cannot be stored: token ids from 0 to 2^32 - 1 are needed")
    kept = replace(exchange, feedback=None, reply=replace(reply, logprobs=tuple(min(value, 0.0) for value in reply.logprobs)))
    try:
        return json.dumps(kept, default=_by_field, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} cannot be stored: {error}; needed is what JSON can hold") from error


def unpack(body: str, feedback: str | None) -> Exchange:
    """The exchange of a `pack`, with its feedback as JSON; None: no feedback."""
    about = json.loads(body)
    request = about["request"] | {"sampling": Sampling(**about["request"]["sampling"])}
    given = None if feedback is None else Feedback(**json.loads(feedback))
    return Exchange(**about | {"request": ChatRequest(**request), "reply": Reply(**about["reply"]), "feedback": given})
