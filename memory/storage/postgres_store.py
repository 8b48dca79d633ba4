"""LangGraph's store in Postgres, opened by its URL: for memories that several machines share.

Needs the extra `[postgres]`: `pip install 'learngraph[postgres]'`. What is added to LangGraph's class: a batch that meets a
connection that broke is tried again while the server restarts (its writes are upserts, so twice is as good as once); errors are
sentences without the password; and texts that Postgres cannot hold in JSON (the character NUL, halves of characters, both of
which models write) are escaped in the database and come back as they were.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from langgraph.store.base import BaseStore, IndexConfig, Item, Op, PutOp, Result

from ..errors import Unavailable, UserError
from .outages import RESTART_SECONDS, outlast

if TYPE_CHECKING:
    from langgraph.store.postgres import PostgresStore

__all__ = ["PostgresMemory", "error_text", "escape", "unescape", "without_password"]

CONNECTIONS = 4
"""Connections of a store at most. Threads beyond wait for one."""
TRY_LOCK, UNLOCK_SETUP = "SELECT 1 WHERE pg_try_advisory_lock(7167223)", "SELECT pg_advisory_unlock(7167223)"
"""Queries around the making of tables, which fails if two processes do it at once. The number is ours alone; the end of a
connection unlocks, too. The first is asked again until it gives a row: a statement that waited in the server would hold a snapshot,
and LangGraph's `CREATE INDEX CONCURRENTLY`, in the process that has the lock, waits for the end of all snapshots."""
ASK_AGAIN = 0.05
"""Seconds between two questions for the lock."""
_ESCAPE = "\ue000"
"""The sign before the code of an escaped character; of the range that is free for private use, and escaped itself."""
_UNWELCOME = re.compile(f"[\x00\ud800-\udfff{_ESCAPE}]")
_ESCAPED = re.compile(f"{_ESCAPE}([0-9a-f]{{4}})")
_IN_HOST = re.compile(r"^(\w+://[^/?#@:]*):([^/?#]*)@")  # to the last `@`: a password may have one of its own
_IN_QUERY = re.compile(r"(?<=[?&])(?:ssl)?password=([^&#]*)&?")


class PostgresMemory(BaseStore):
    """A store in Postgres. Several processes and machines may have it open; each sees the others' writes at once.

    Args:
        url: `postgresql://user:password@host/database`.
        index: LangGraph's configuration of a vector index; it needs the server's extension pgvector.
        patience: seconds for which a batch waits for a server that does not answer.

    Raises:
        UserError: a package is missing, the server does not answer, or it refuses.
    """

    supports_ttl = False

    def __init__(self, url: str, *, index: IndexConfig | None = None, patience: float = RESTART_SECONDS) -> None:
        try:
            import psycopg
            from langgraph.store.postgres import PostgresStore
            from psycopg.rows import dict_row
            from psycopg_pool import ConnectionPool
        except ImportError as error:
            raise UserError(f"a memory in Postgres needs a package ({error}): pip install 'learngraph[postgres]'") from error
        self._pool: Any = ConnectionPool(
            url,
            min_size=1,
            max_size=CONNECTIONS,
            timeout=min(10.0, patience),
            check=ConnectionPool.check_connection,
            kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row, "connect_timeout": 10},
            open=False,
        )
        try:
            with psycopg.connect(
                url, autocommit=True, connect_timeout=10
            ) as connection:  # says why it fails, which the pool does not
                while connection.execute(TRY_LOCK).fetchone() is None:
                    time.sleep(ASK_AGAIN)
                self._pool.open()
                self._store: PostgresStore = PostgresStore(self._pool, index=index)  # type: ignore[arg-type]
                self._store.setup()
        except Exception as error:
            self._pool.close()
            raise _as_user_error(error, url) or error from error
        self._url, self._patience = url, patience

    def __repr__(self) -> str:
        return "PostgresMemory()"

    def close(self) -> None:
        """Close its connections. A second close does nothing."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The results of the operations, in their order; reads see what was there before the batch.

        Raises:
            Unavailable: the server did not come back.
            UserError: it refuses.
        """
        asked = [_with_escapes(op) for op in ops]

        def work() -> list[Result]:
            return [_without_escapes(result) for result in self._store.batch(asked)] if asked else []

        try:
            return outlast(work, _is_outage, self._patience)
        except Exception as error:
            raise _as_user_error(error, self._url) or error from error

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`, in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))


def _is_outage(error: BaseException) -> bool:
    """True for a connection that broke or could not be had: another try may do."""
    from psycopg import InterfaceError, OperationalError

    return isinstance(error, OperationalError | InterfaceError)  # the pool's timeouts are OperationalErrors


def _as_user_error(error: BaseException, url: str) -> UserError | None:
    """A database's error as a sentence; None for other errors."""
    from psycopg import Error

    kind = Unavailable if _is_outage(error) else UserError
    return kind(f"memory in Postgres: {error_text(error, url)}") if isinstance(error, Error) else None


def find_passwords(url: str) -> list[str]:
    """The passwords in a URL: that of its user, and those of its query."""
    return [text for text in (*(found[1] for found in _IN_HOST.findall(url)), *_IN_QUERY.findall(url)) if text]


def without_password(url: str) -> str:
    """A place without the passwords in its URL, which belong into no file and no message."""
    return re.sub(r"[?&]$", "", _IN_QUERY.sub("", _IN_HOST.sub(r"\1@", url))) if "://" in url else url


def error_text(error: BaseException, url: str) -> str:
    """The text of a database's error in one line, without the passwords in the URL."""
    words = " ".join(str(error).split()) or type(error).__name__
    for password in find_passwords(url):
        # A password with an `@` of its own is cut there by the parser, which then says the rest as a host.
        for piece in {password, unquote(password), *password.split("@")} - {""}:
            words = words.replace(piece, "…")
    return words


def escape(text: str) -> str:
    """A text that Postgres can hold."""
    return _UNWELCOME.sub(lambda found: f"{_ESCAPE}{ord(found[0]):04x}", text) if _UNWELCOME.search(text) else text


def unescape(text: str) -> str:
    """The text that `escape` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if _ESCAPE in text else text


def _with_escapes(op: Op) -> Op:
    if isinstance(op, PutOp) and op.value is not None:
        return op._replace(value=_mapped(op.value, escape))
    return op


def _without_escapes(result: Result) -> Result:
    if isinstance(result, list):
        return [_without_escapes(one) if isinstance(one, Item) else one for one in result]  # type: ignore[return-value]
    if isinstance(result, Item):
        result.value = _mapped(result.value, unescape)
    return result


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with its texts changed, names of fields included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(name, change): _mapped(one, change) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(one, change) for one in value]
    return value
