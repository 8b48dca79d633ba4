"""The replay buffer (memory/claas/replay.py) as a SQLite file: tables, ownership, transactions, errors, and packed exchanges."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Protocol, TypeVar

from ..errors import ReplayError, UserError
from ..records import ChatRequest, Exchange, Feedback, Reply, Sampling

__all__ = ["NAME", "ReplayFile", "Statements"]

APPLICATION_ID = 0x6C675F72
"""The file's type in SQLite's header ("lg_r")."""
FORMAT = 1
"""Version of the tables; user_version in SQLite's header."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""Pattern of the names of tenants and adapters."""
LOGPROB_TOLERANCE = 1e-5
"""Nats that a log-probability may be above 0 in 32-bit arithmetic; stored as 0."""
MAX_GROUP_SIZE = 64
"""Largest number of writers that share a transaction."""
CHECKPOINT_COMMITS, CHECKPOINT_PAGES = 100, 20_000
"""Transactions after which a background thread checkpoints the log; pages of the log (4 kB) after which a writer does."""
TABLES = """
CREATE TABLE tenants (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE scopes (tenant TEXT, adapter TEXT, step INTEGER NOT NULL DEFAULT 0, head TEXT NOT NULL DEFAULT '',
    attempt INTEGER NOT NULL DEFAULT 0, records INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tenant, adapter)) WITHOUT ROWID;
CREATE TABLE records (n INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, adapter TEXT NOT NULL, version TEXT NOT NULL,
    base TEXT NOT NULL, made INTEGER NOT NULL, family TEXT NOT NULL, positive INTEGER, state TEXT NOT NULL, reason TEXT NOT NULL
    DEFAULT '', verdict TEXT, times INTEGER NOT NULL DEFAULT 0, revision INTEGER NOT NULL DEFAULT 0, job TEXT NOT NULL DEFAULT '',
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
CREATE TABLE bodies (n INTEGER PRIMARY KEY, about TEXT NOT NULL, prompt BLOB NOT NULL, tokens BLOB NOT NULL, logprobs BLOB NOT NULL);
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
CREATE INDEX by_parent ON updates (tenant, adapter, parent);
CREATE TABLE dates (tenant TEXT, adapter TEXT, version TEXT, made INTEGER NOT NULL, PRIMARY KEY (tenant, adapter, version))
    WITHOUT ROWID;
CREATE TABLE taints (tenant TEXT, version TEXT, PRIMARY KEY (tenant, version)) WITHOUT ROWID;
"""
TRIGGERS = """
CREATE TRIGGER added AFTER INSERT ON records BEGIN
    UPDATE tenants SET bytes = bytes + new.bytes WHERE tenant = new.tenant;
    UPDATE scopes SET records = records + 1 WHERE tenant = new.tenant AND adapter = new.adapter; END;
CREATE TRIGGER grown AFTER UPDATE OF bytes ON records BEGIN
    UPDATE tenants SET bytes = bytes + new.bytes - old.bytes WHERE tenant = new.tenant; END;
CREATE TRIGGER removed AFTER DELETE ON records BEGIN
    DELETE FROM bodies WHERE n = old.n;
    DELETE FROM feedbacks WHERE tenant = old.tenant AND id = old.id;
    UPDATE tenants SET bytes = bytes - old.bytes WHERE tenant = old.tenant;
    UPDATE scopes SET records = records - 1 WHERE tenant = old.tenant AND adapter = old.adapter; END;
"""
"""What SQLite does when a record comes, grows or goes. replay_database.py has the same for Postgres."""
HINTS = {
    sqlite3.SQLITE_FULL: "the disk is full: make room and try again; what was stored before is kept",
    sqlite3.SQLITE_IOERR: "the disk does not take it: make room or repair it, and try again; what was stored before is kept",
    sqlite3.SQLITE_CANTOPEN: "name a file in a directory that can be written",
    sqlite3.SQLITE_BUSY: "another process writes to it: let it end",
    sqlite3.SQLITE_READONLY: "the file cannot be written: give it the rights, or use another one",
    sqlite3.SQLITE_NOTADB: "it is no replay buffer; name another file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a copy, or start a new one",
    sqlite3.SQLITE_TOOBIG: "a value is larger than SQLite stores (1 GB)",
}


Result = TypeVar("Result")


class Statements(Protocol):
    """A connection that runs SQL: SQLite's, or replay_database.py's to Postgres. Values stand for `?`."""

    def execute(self, text: str, values: Any = (), /) -> Any:
        """Run a statement; its rows are tuples, by `fetchone`, `fetchall` or one after the other."""
        ...

    def executemany(self, text: str, values: Any, /) -> Any:
        """Run a statement once for each of several tuples of values."""
        ...


class _Group:
    """Writers that share a transaction."""

    def __init__(self) -> None:
        self.ended = Event()
        self.size = 0
        self.error: BaseException | None = None


class ReplayFile:
    """An open file: reads and transactions for the threads of the process that owns it.

    Raises:
        ReplayError: the file is open in another process, damaged, something else, or cannot be written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.where = str(path)
        self._lock = Lock()
        self._copying, self._counting, self._waiting, self._group = Lock(), Lock(), 0, _Group()
        self._due, self._commits, self._closing = Event(), 0, False
        self._readers: deque[sqlite3.Connection] = deque()
        self._copier: Thread | None = None
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
            raise ReplayError(f"replay buffer at {self.path} is open in {who}; end it, or name another file") from None
        except OSError as error:
            self._owner.release()
            raise ReplayError(
                f"replay buffer at {self.path}: {error.strerror or error}; name a file in a directory that can be written"
            ) from error

    def _prepare(self) -> None:
        base = self._base
        (mark,) = base.execute("PRAGMA application_id").fetchone()
        if mark != APPLICATION_ID and base.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise ReplayError(f"replay buffer at {self.path}: this is a database of something else; name another file")
        if mark == APPLICATION_ID:
            (version,) = base.execute("PRAGMA user_version").fetchone()
            if version != FORMAT:
                raise ReplayError(
                    f"replay buffer at {self.path}: format {version}, this program reads {FORMAT}; name another file"
                )
            (found,) = base.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise ReplayError(f"replay buffer at {self.path}: {found}; {HINTS[sqlite3.SQLITE_CORRUPT]}")
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=FULL")
        base.execute("PRAGMA secure_delete=ON")
        base.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        if mark == APPLICATION_ID:
            base.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what was deleted just before a crash leaves the log, too
        else:
            base.executescript(
                f"BEGIN IMMEDIATE; {TABLES} {TRIGGERS} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; COMMIT;"
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
                    self._dismiss()

    def _dismiss(self) -> None:
        """Close idle connections for reading."""
        with suppress(IndexError):
            while True:
                self._readers.pop().close()

    @contextmanager
    def writing(self, tenant: str) -> Iterator[sqlite3.Connection]:
        """A transaction of a tenant: all or nothing, and on disk at the end.

        Concurrent writers share one transaction, and so one wait for the disk. Each has a savepoint, so that an error undoes only its
        own work. The last writer in the queue commits for all.
        """
        with self._user_errors():
            with self._counting:
                self._waiting += 1
            with self._lock:
                with self._counting:
                    self._waiting -= 1
                if not self._base.in_transaction:
                    self._base.execute("BEGIN IMMEDIATE")
                    self._group = _Group()
                group = self._group
                group.size += 1
                self._base.execute("SAVEPOINT one")
                try:
                    yield self._base
                    self._base.execute("RELEASE one")
                except BaseException as error:
                    if self._base.in_transaction:
                        self._base.execute("ROLLBACK TO one")
                        self._base.execute("RELEASE one")
                    else:
                        group.error = error  # a full disk ends the whole transaction
                        group.ended.set()
                    raise
                finally:
                    if not self._waiting or group.size >= MAX_GROUP_SIZE:
                        self._end_group(group)
            while not group.ended.wait(0.02):  # the writer that should commit may have been interrupted
                with self._lock:
                    self._end_group(group)
            if group.error is not None:
                raise group.error

    def _end_group(self, group: _Group) -> None:
        """Commit. An error is raised in every writer of the group."""
        if group.ended.is_set():
            return
        try:
            self._base.execute("COMMIT")
        except BaseException as error:
            group.error = error
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
        group.ended.set()
        self._commits += 1
        if self._commits % CHECKPOINT_COMMITS == 0:
            if self._copier is None:
                self._copier = Thread(target=self._checkpoint_log, name="replay", daemon=True)
                self._copier.start()
            self._due.set()

    def _checkpoint_log(self) -> None:
        """The background thread: checkpoint the log, so that no request waits for it."""
        with closing(sqlite3.connect(self.path, 5.0, isolation_level=None)) as base:
            while True:
                self._due.wait()
                self._due.clear()
                if self._closing:
                    return
                with (
                    self._copying,
                    suppress(sqlite3.Error),
                ):  # an error here (a full disk) comes again in the next writer, which reports it
                    base.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def truncate_log(self) -> None:
        """Checkpoint and truncate the log, so that deleted records are in no file.

        Raises:
            ReplayError: the disk or another reader prevents it. Opening the file again does it.
        """
        with self._user_errors(), self._copying, self._lock:
            if self._base.in_transaction:
                self._end_group(self._group)
            busy, *_ = self._base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise ReplayError(
                f"replay buffer at {self.path}: deleted, but another program is reading the file: end it, and open it again"
            )

    shared = False
    """False: one process has the file open."""

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
        self._due.set()
        if self._copier is not None:
            self._copier.join()
        with self._lock:
            self._dismiss()
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
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): json_safe(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(each) for each in value]
    return value


def pack(exchange: Exchange) -> tuple[str, bytes, bytes, bytes]:
    """An exchange without its feedback: (JSON in ASCII, prompt ids, token ids, log-probabilities).

    Numbers take 4 bytes where that is exact, as for a network's float32, else 8.

    Raises:
        UserError: an invalid name or id, or log-probabilities that do not match the tokens (unless the reply's `flaw` says why).
    """
    check_name(exchange.tenant, "tenant")
    check_name(exchange.adapter, "adapter")
    if not exchange.id or len(exchange.id) > 200 or not exchange.id.isprintable():
        raise UserError(f"an exchange's id has 1 to 200 printable characters, got {exchange.id[:60]!r}")
    what, reply = f"exchange {exchange.id!r}", exchange.reply
    if not reply.token_ids and not reply.flaw:
        raise UserError(f"{what} has no token ids: only what was sampled can be learned from")
    if not reply.logprobs and not reply.flaw:
        raise UserError(f"{what} has no log-probabilities: the engine must give that of each token it sampled")
    if len(reply.logprobs) != len(reply.token_ids) and not reply.flaw:
        raise UserError(
            f"{what} has {len(reply.logprobs)} log-probabilities for {len(reply.token_ids)} token ids: one each, the end of turn included"
        )
    for i, value in enumerate(reply.logprobs):
        if not value <= LOGPROB_TOLERANCE or math.isinf(value):
            raise UserError(f"{what}: the log-probability of token {i} is {value}, not a finite number of at most 0")
    about = {field.name: getattr(exchange, field.name) for field in fields(exchange)}
    request, answer = about.pop("request"), about.pop("reply")
    del about["feedback"], about["tenant"]
    if not exchange.user:
        del about["user"]
    about["request"] = {field.name: getattr(request, field.name) for field in fields(request)}
    about["request"]["sampling"] = {field.name: getattr(request.sampling, field.name) for field in fields(request.sampling)}
    about["reply"] = {field.name: getattr(answer, field.name) for field in fields(answer)}
    for name in ("prompt_ids", "token_ids", "logprobs"):
        del about["reply"][name]
    for name in ("thoughts", "flaw"):
        if not about["reply"][name]:
            del about["reply"][name]
    try:
        text = json.dumps(about, allow_nan=False, separators=(",", ":"))
        ids = [array("I", numbers).tobytes() for numbers in (reply.prompt_ids, reply.token_ids)]
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{what} cannot be stored: {error}; needed are JSON and token ids from 0 to 2^32 - 1") from error
    logprobs = [min(value, 0.0) for value in reply.logprobs]
    short = array("f", logprobs)
    return text, ids[0], ids[1], (short if list(short) == logprobs else array("d", logprobs)).tobytes()


def unpack(tenant: str, body: Sequence[Any], feedback: str | None) -> Exchange:
    """The exchange of a `pack`, with its feedback as JSON; None: no feedback."""
    text, *packed = body
    prompt, tokens = array("I"), array("I")
    prompt.frombytes(packed[0])
    tokens.frombytes(packed[1])
    logprobs = array("f" if len(packed[2]) == 4 * len(tokens) else "d")
    logprobs.frombytes(packed[2])
    about = json.loads(text)
    request, reply = about.pop("request"), about.pop("reply")
    return Exchange(
        tenant=tenant,
        request=ChatRequest(**{**request, "sampling": Sampling(**request["sampling"])}),
        reply=Reply(**reply, prompt_ids=tuple(prompt), token_ids=tuple(tokens), logprobs=tuple(logprobs)),
        feedback=None if feedback is None else Feedback(**json.loads(feedback)),
        **about,
    )
