"""The suite of stores: LangGraph's stores and ours pass it but for what is listed, and it finds what is broken on purpose."""

from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from store_tests import StoreTests

from learngraph.memory.storage.chroma_store import ChromaStore


class TestChromaInMemory(StoreTests):
    lacks = frozenset({"durability", "sharing"})

    def open_store(self, place: Path, index: Any) -> BaseStore:
        return ChromaStore.memory(index=index)


@pytest.mark.slow
class TestChromaFolder(StoreTests):
    lacks = frozenset({"sharing"})

    def open_store(self, place: Path, index: Any) -> BaseStore:
        return ChromaStore.open(place / "memory", index=index)
