"""A pytest plugin: runs LangGraph's own store tests on ChromaStore (see test_langgraph_store_suite.py).

The tests' modules stay as they are; only the store classes that they import are replaced by stand-ins.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from langgraph.store.base import Op, Result
from langgraph.store.base.batch import AsyncBatchedBaseStore

from learngraph.memory.storage.chroma_store import ChromaStore

DURABLE = os.environ.get("SUITE_STORE") == "directory"
os.fsync = lambda file: None  # type: ignore[assignment,misc]  # no test cuts the power


def opened(index: Any) -> ChromaStore:
    if index and "text_fields" in index:  # the SQL stores' name for `fields`
        index = index | {"fields": index["text_fields"]}
    if not DURABLE:
        return ChromaStore.memory(index=index)
    return ChromaStore.open(tempfile.mkdtemp(dir=os.environ["SUITE_DIRECTORY"]), index=index)


class InMemoryStore(ChromaStore):
    """Made by its constructor, as LangGraph's is, and never closed by the tests."""

    def __init__(self, *, index: Any = None) -> None:
        vars(self).update(vars(opened(index)))


class SqliteStore(ChromaStore):
    """Made by `from_conn_string`, and set up before it is used."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, path: str, *, index: Any = None) -> Iterator[ChromaStore]:
        with opened(index) as store:
            store.setup = lambda: None  # type: ignore[attr-defined]
            yield store


class AsyncSqliteStore(AsyncBatchedBaseStore):
    """LangGraph's way to gather concurrent calls into batches, around ours."""

    def __init__(self, store: ChromaStore) -> None:
        super().__init__()
        self.store = store
        self.index_config, self.embeddings = store.index_config, store.embeddings

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self.store.batch(ops)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await self.store.abatch(ops)

    async def setup(self) -> None:
        pass

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, path: str, *, index: Any = None) -> AsyncIterator[AsyncSqliteStore]:
        with opened(index) as store:
            yield cls(store)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.getparent(pytest.Module).obj for item in items}:  # type: ignore[union-attr]
        for ours in (InMemoryStore, SqliteStore, AsyncSqliteStore):
            if hasattr(module, ours.__name__):
                setattr(module, ours.__name__, ours)
