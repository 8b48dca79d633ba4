"""Opening a store by where it is, as `--memory` and the middlewares do, and reading all of a namespace."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from langgraph.store.base import BaseStore, IndexConfig, SearchItem

from ..errors import UserError
from .outages import RESTART_SECONDS, TURN_SECONDS

if TYPE_CHECKING:
    from .chroma_store import ChromaStore
    from .postgres_store import PostgresMemory

__all__ = ["is_postgres", "open_agent_store", "open_store"]

MOST_ITEMS = 1 << 30
"""More items than any store holds."""
LEAST_CAP = 100
"""Fewer items than any store caps its answers at."""


def is_postgres(where: str) -> bool:
    """True for the URL of a Postgres database."""
    return where.startswith(("postgresql://", "postgres://"))


def open_store(
    where: str | os.PathLike[str], *, index: IndexConfig | None = None, patience: float = RESTART_SECONDS
) -> ChromaStore | PostgresMemory:
    """The store at a place, which is to be closed (or used in a `with`).

    Args:
        where: a directory (Chroma), a Chroma server's `http://host:port`, or `postgresql://user:password@host/database`.
        index: LangGraph's configuration of a vector index.
        patience: seconds for which a batch waits for a server that does not answer.

    Raises:
        UserError: it cannot be opened; the message says why.
    """
    if is_postgres(os.fspath(where)):
        from .postgres_store import PostgresMemory

        return PostgresMemory(os.fspath(where), index=index, patience=patience)
    from .chroma_store import ChromaStore

    return ChromaStore.open(where, index=index, patience=patience)


def open_agent_store(where: str) -> BaseStore:
    """The store of an agent's memory at a place.

    Args:
        where: a directory (SQLite, which processes share), `chroma:DIRECTORY`, or what else `open_store` opens.

    Raises:
        UserError: it cannot be opened; the message says why.
    """
    if not (chroma := where.removeprefix("chroma:")).strip():
        raise UserError(f"a store is a folder or a URL; got {where!r}: is an environment variable not set?")
    if cut := re.match(r"(https?|postgres\w*)//", where):
        raise UserError(f"a store is a folder or a URL; got {where!r}: did you mean {cut[1]}://{where[cut.end() :]}?")
    if chroma != where or "://" in where or os.path.exists(os.path.join(where, "chroma.sqlite3")):
        return open_store(chroma, patience=TURN_SECONDS)
    try:
        from .sqlite_memory import SqliteMemory
    except ImportError as error:
        raise UserError(
            f"a memory in the folder {where} needs LangGraph's store in SQLite: pip install langgraph-checkpoint-sqlite"
        ) from error
    return SqliteMemory.open(where)


def all_items(store: BaseStore, prefix: tuple[str, ...]) -> list[SearchItem]:
    """All items whose namespace begins with these labels, in the store's order.

    They are asked for at once: stores that sort by time, as Postgres does, give items of one time in any order, and pages of such
    an order lose some and repeat others. Stores that cap their answers are asked again.
    """
    found: dict[tuple[tuple[str, ...], str], SearchItem] = {}
    while page := store.search(prefix, limit=MOST_ITEMS, offset=len(found)):
        before = len(found)
        found |= {(item.namespace, item.key): item for item in page}
        if is_all(page) or len(found) == before:
            break
    return list(found.values())


def is_all(page: Sequence[SearchItem]) -> bool:
    """True if an answer to a search without a limit is so short that no store has cut it."""
    return len(page) < LEAST_CAP
