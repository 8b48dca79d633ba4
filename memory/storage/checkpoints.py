"""Storage of graph checkpoints: a SQLite file, this process's memory, or Postgres."""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from ..errors import UserError
from .open_store import is_postgres
from .postgres_store import ASK_AGAIN, TRY_LOCK, UNLOCK_SETUP, error_text
from .serializer import serializer

__all__ = ["drop_inner_checkpoints", "open_checkpoints", "open_checkpoints_async"]

LOCK_TIMEOUT = 30.0
"""Seconds to wait for another process that is writing to the same file."""

# A commit does not wait for the disk, which makes a step 5 to 6 times as fast. A power cut may lose the last steps, which are
# then done again; a killed process loses none, and the file stays whole.
NO_WAIT = "PRAGMA synchronous=NORMAL"


class _Connection(sqlite3.Connection):
    """A connection that overwrites what it deletes, and ends its transaction when it is closed.

    A run that breaks off closes the connection while tasks of its nested graphs may still be writing. SQLite keeps a connection
    open as long as a statement belongs to it, and with it the lock of its transaction: until the exception that holds the
    cursor is gone. The same command, run again in this process, would then wait for itself.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA secure_delete = ON")  # not every build of SQLite does so by itself

    def close(self) -> None:
        with suppress(sqlite3.Error):  # closed already
            self.rollback()
        super().close()


@contextmanager
def open_checkpoints(where: str | os.PathLike[str]) -> Iterator[BaseCheckpointSaver[Any]]:
    """A saver for `invoke` and `stream`: at a path (SQLite), `:memory:`, or `postgresql://user@host/database`.

    Raises:
        UserError: the database cannot be opened, is none, or its disk is full.
    """
    where = os.fspath(where)
    if _is_postgres(where):
        opened = _postgres("langgraph.checkpoint.postgres").PostgresSaver.from_conn_string(where)
        with _errors(where), opened as saver:
            saver.serde = serializer()
            while saver.conn.execute(TRY_LOCK).fetchone() is None:
                time.sleep(ASK_AGAIN)
            saver.setup()
            saver.conn.execute(UNLOCK_SETUP)
            yield saver
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    with (
        _errors(where),
        closing(sqlite3.connect(where, timeout=LOCK_TIMEOUT, check_same_thread=False, factory=_Connection)) as connection,
    ):
        connection.execute(NO_WAIT)
        saver = _with_numbered_versions(SqliteSaver(connection, serde=serializer()))
        saver.setup()
        yield saver


def drop_inner_checkpoints(saver: Any) -> None:
    """Delete from a SQLite file the checkpoints within subgraphs, such as the episodes of a run.

    A thread can still go back to the start of any subgraph; what lies within them can no longer be looked at or forked.

    Args:
        saver: what `open_checkpoints` gives for a path.
    """
    with _errors("the checkpoints"):
        saver.conn.execute("delete from checkpoints where checkpoint_ns != ''")
        saver.conn.execute("delete from writes where checkpoint_ns != ''")
        saver.conn.commit()
        saver.conn.execute("vacuum")


@asynccontextmanager
async def open_checkpoints_async(where: str | os.PathLike[str]) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """A saver for `ainvoke` and `astream`; see `open_checkpoints`."""
    where = os.fspath(where)
    if _is_postgres(where):
        opened = _postgres("langgraph.checkpoint.postgres.aio").AsyncPostgresSaver.from_conn_string(where)
        with _errors(where):
            async with opened as saver:
                saver.serde = serializer()
                while await (await saver.conn.execute(TRY_LOCK)).fetchone() is None:
                    await asyncio.sleep(ASK_AGAIN)
                await saver.setup()
                await saver.conn.execute(UNLOCK_SETUP)
                yield saver
        return
    import aiosqlite
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    with _errors(where):
        # Where a place cannot be opened, aiosqlite's thread fails a moment later, in a loop that has ended.
        _Connection(where).close()
        async with aiosqlite.connect(where, timeout=LOCK_TIMEOUT, factory=_Connection) as connection:
            await connection.execute(NO_WAIT)
            saver = _with_numbered_versions(AsyncSqliteSaver(connection, serde=serializer()))
            await saver.setup()
            yield saver


def _with_numbered_versions(saver: Any) -> Any:
    """The saver with a channel's versions numbered 1, 2, 3, … Its own strings of 51 characters outweigh small states.

    The strings keep versions of parallel branches apart in savers that store values by version; these savers store them inline.
    """
    saver.get_next_version = MethodType(BaseCheckpointSaver.get_next_version, saver)
    return saver


def _postgres(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(f"checkpoints in Postgres need a package ({error}): pip install 'learngraph[postgres]'") from error


def _is_postgres(where: str) -> bool:
    if is_postgres(where):
        return True
    if "://" in where:
        raise UserError(f"checkpoints at {where}: give a path, ':memory:' or postgresql://user@host/database")
    return False


@contextmanager
def _errors(where: str) -> Iterator[None]:
    """Turn the database's errors into `UserError`, also those of steps that run while the saver is open."""
    try:
        if where != ":memory:" and not _is_postgres(where):
            Path(where).parent.mkdir(parents=True, exist_ok=True)
        yield
    except sqlite3.OperationalError as error:
        hint = {
            sqlite3.SQLITE_FULL: "the disk is full: make room and resume",
            sqlite3.SQLITE_CANTOPEN: "name a file in a directory that can be written",
            sqlite3.SQLITE_BUSY: "another process is writing to it: let it end, or use another file",
            sqlite3.SQLITE_READONLY: "the file cannot be written",
        }.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if hint is None:
            raise
        raise UserError(f"checkpoints at {where}: {error}; {hint}") from error
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise
        raise UserError(
            f"checkpoints at {where}: {error}; nothing was changed: restore the file from a copy, or name a new one"
        ) from error
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        if error.filename and str(error.filename) in (where, *map(str, Path(where).parents)):
            raise UserError(f"checkpoints at {where}: {error.strerror}") from error
        raise
    except Exception as error:
        if not (_is_postgres(where) and _is_postgres_error(error)):
            raise
        raise UserError(f"checkpoints in Postgres: {error_text(error, where)}") from error


def _is_postgres_error(error: Exception) -> bool:
    """True for a server that went away, is shutting down or refuses, and for a URL that cannot be read."""
    from psycopg import InterfaceError, OperationalError, ProgrammingError

    return isinstance(error, InterfaceError | OperationalError | ProgrammingError)
