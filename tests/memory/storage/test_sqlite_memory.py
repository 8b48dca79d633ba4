"""A folder of agents' memories: LangGraph's SqliteStore, shared by processes, in which deleted bytes are gone."""

from pathlib import Path

import pytest
from forks import Python
from langgraph.store.base import GetOp, PutOp, SearchOp

from learngraph.memory.conversations.store import ConversationStore
from learngraph.memory.conversations.turns import Turn
from learngraph.memory.errors import UserError
from learngraph.memory.records import Task, Transition
from learngraph.memory.storage.open_store import open_agent_store
from learngraph.memory.storage.sqlite_memory import SqliteMemory


def fill(store: SqliteMemory, threads: range, word: str) -> ConversationStore:
    conversations = ConversationStore(store, ("agents", "agent", "tenant"))
    for n in threads:
        for turn in range(2):
            steps = (Transition(f"I am {word}. " * 50, f"reply: hello {word}", 0.0),)
            conversations.record(f"t{n}", Turn(f"m{turn}", steps), Task("agent", word))
            conversations.rate(f"t{n}", 1.0, f"said {word}")
    return conversations


def test_what_is_forgotten_is_in_no_byte_of_the_folder(tmp_path: Path) -> None:
    with SqliteMemory.open(tmp_path) as store:
        kept, gone = fill(store, range(20), "annberg"), fill(store, range(20, 40), "zaphod")
        assert len(kept.trajectories.all()) == 80
        assert gone.forget([f"t{n}" for n in range(20, 40)]) == 20
        found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}  # as it lies there while the store is open
        assert any(b"annberg" in held for held in found.values())
        assert [name for name, held in found.items() if b"zaphod" in held] == []


def test_many_writes_at_once_and_their_deletion(tmp_path: Path) -> None:
    with SqliteMemory.open(tmp_path) as store:
        store.batch([PutOp(("a",), str(n), {"n": n}, index=False) for n in range(10_000)])
        assert store.batch([GetOp(("a",), "9999")])[0].value == {"n": 9999}  # type: ignore[union-attr]
        store.batch([PutOp(("a",), str(n), None) for n in range(10_000)])
        assert store.search(("a",)) == []


WRITER = """
import sys
from learngraph.memory.storage.sqlite_memory import SqliteMemory
with SqliteMemory.open(sys.argv[1]) as store:
    for n in range(100):
        store.put(("a",), sys.argv[2] + str(n), {"n": n}, index=False)
"""


@pytest.mark.slow
def test_processes_share_a_folder(tmp_path: Path) -> None:
    writers = [Python("-c", WRITER, tmp_path, name) for name in ("x", "y", "z")]
    assert [one.wait() for one in writers] == [0, 0, 0]
    with SqliteMemory.open(tmp_path) as store:
        assert len(store.search(("a",), limit=1000)) == 300


def test_a_folder_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be opened as a folder of memories"):
        open_agent_store(str(tmp_path / "file"))
    (tmp_path / "memory.sqlite").write_text("no database " * 1000)
    with pytest.raises(UserError, match="not a database"):
        open_agent_store(str(tmp_path))


def test_a_transaction_that_writes_has_not_read_so_that_it_waits_for_other_processes(tmp_path: Path) -> None:
    """SQLite lets no transaction that has read wait for a write of another: it is `database is locked` at once."""
    said: list[str] = []
    with SqliteMemory.open(tmp_path) as store:
        store.conn.set_trace_callback(said.append)
        assert store.batch([PutOp(("a",), "new", {"n": 1}), GetOp(("a",), "old"), SearchOp(("a",))]) == [None, None, []]
    parts = " ".join(said).split("BEGIN")[1:]
    assert [("SELECT" in part, "INSERT" in part) for part in parts] == [(True, False), (False, True)]
