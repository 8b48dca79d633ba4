"""A branch of every kind of memory: it sees the past, writes apart, and is kept or dropped; what is real stays byte for byte."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langgraph.store.memory import InMemoryStore

from learngraph.memory.attempts.buffer import Buffer
from learngraph.memory.attempts.trajectories import Trajectories
from learngraph.memory.claas.replay import Replay
from learngraph.memory.lessons.by_task import Lessons
from learngraph.memory.lessons.library import Library
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import (
    ChatRequest,
    Exchange,
    ExchangeQuery,
    Feedback,
    Lesson,
    Reply,
    Task,
    Trajectory,
    Transition,
)
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.returns.q_table import QTable
from learngraph.memory.storage.branches import Branch, BranchError, moment_of_time, new_moment
from learngraph.memory.storage.branching_store import BranchingStore
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore
from learngraph.memory.storage.rows import Rows
from learngraph.memory.storage.stored_rows import StoredRows


@dataclass
class Kept:
    """A memory under test: how to write the n-th record, told one way or another, and what it holds."""

    memory: Any
    write: Callable[[int, str], Any]
    read: Callable[[], dict[str, str]]
    bytes: Callable[[], Any] = lambda: None
    replaces: bool = True


def episode(n: int, told: str) -> Trajectory:
    step = Transition(f"state {n}", told, 1.0)
    return Trajectory(f"r/{n}", Task("t", "a task"), (step,), "r", n, 1.0, "toy")


def records_in(store: Any = None) -> RecordStore[Trajectory]:
    return RecordStore(store or InMemoryStore(), ("toy",), Trajectory)


def experiences(folder: Path) -> Kept:
    records = records_in()
    memory = Experiences(records)
    read = lambda: {one.id.rpartition("/")[0]: one.action for one in memory}  # noqa: E731
    return Kept(memory, lambda n, told: memory.add(episode(n, told)), read, records.all)


def trajectories(folder: Path) -> Kept:
    records = records_in()
    memory = Trajectories(records, bank=[replace(episode(9, "old"), id="bank/9", run="bank")])
    read = lambda: {one.id: one.transitions[0].action for one in memory if one.run == "r"}  # noqa: E731
    return Kept(memory, lambda n, told: memory.add(episode(n, told)), read, records.all)


def buffer(folder: Path) -> Kept:
    records = records_in()
    memory = Buffer(records)
    read = lambda: {one.id: one.transitions[0].action for one in memory.attempts("r", "t", 99)}  # noqa: E731
    return Kept(memory, lambda n, told: memory.add(episode(n, told)), read, records.all)


def q_table(folder: Path) -> Kept:
    records = records_in()
    memory = QTable(records)

    def read() -> dict[str, str]:
        tried = {n: memory.values("r", 99, f"state {n}", ["one", "other"]) for n in range(6)}
        return {f"r/{n}": "one" if one > other else "other" for n, (one, other) in tried.items() if one != other}

    return Kept(memory, lambda n, told: memory.add(episode(n, told)), read, records.all)


def chroma(folder: Path) -> Kept:
    store = ChromaStore.open(folder / "chroma")
    records = records_in(store)
    read = lambda: {one.id: one.transitions[0].action for one in records.all()}  # noqa: E731
    return Kept(records, lambda n, told: records.put([episode(n, told)]), read, lambda: store.search(("toy",), limit=99))


def lessons(folder: Path) -> Kept:
    records: RecordStore[Lesson] = RecordStore(InMemoryStore(), ("lessons",), Lesson)
    memory = Lessons(records)
    write = lambda n, told: memory.add([Lesson(f"r/{n}/0", told, instruction="a task")])  # noqa: E731
    return Kept(memory, write, lambda: {one.id[:3]: one.text for one in memory}, records.all)


def journal(folder: Path) -> Kept:
    path = folder / "steps.jsonl"
    rows = Rows(path)
    write = lambda n, told: rows.append({"id": f"r/{n}", "told": told})  # noqa: E731
    return Kept(rows, write, lambda: {row["id"]: row["told"] for row in rows.values()}, path.read_bytes, replaces=False)


def versions(rows: Any, bytes: Any, replaces: bool = False) -> Kept:
    memory = LibraryVersions(rows=rows)

    def write(n: int, told: str) -> None:
        memory.put(f"r/{n}", Library((Lesson(f"L{n}", told),)))
        memory.move(f"r/{n}")

    def read() -> dict[str, str]:
        assert memory.head in ("", *memory.names())
        return {name: memory.at(name).lessons[0].text for name in memory.names()}

    return Kept(memory, write, read, bytes, replaces)


def library(folder: Path) -> Kept:
    path = folder / "library.jsonl"
    return versions(Rows(path), path.read_bytes)


def library_in_a_store(folder: Path) -> Kept:
    store = InMemoryStore()
    return versions(StoredRows(store, ("library",)), lambda: store.search(("library",), limit=99))


def replay(folder: Path) -> Kept:
    memory = Replay(folder / "replay.sqlite")

    def write(n: int, told: str) -> None:
        reply = Reply("Hello!", (1, 2), (7, 8), (-0.5, -0.25))
        request = ChatRequest(({"role": "user", "content": "Hi"},))
        memory.append(Exchange(f"r/{n}", "acme", request, reply, base="b", created=5.0))
        memory.add_feedback("acme", f"r/{n}", Feedback(1.0, told))

    def read() -> dict[str, str]:
        rows = memory.rows(ExchangeQuery("acme"))[::-1]
        return {row.exchange.id: row.exchange.feedback.text for row in rows if row.exchange.feedback}

    return Kept(memory, write, read, lambda: list(memory._database._base.iterdump()))


def store(inside: Any) -> Kept:
    memory = BranchingStore(inside)
    write = lambda n, told: memory.put(("a", "b"), f"r/{n}", {"told": told})  # noqa: E731
    read = lambda: {one.key: one.value["told"] for one in sorted(memory.search(("a",), limit=99), key=lambda one: one.key)}  # noqa: E731
    return Kept(memory, write, read, lambda: inside.search(("a",), limit=99))


def in_memory_store(folder: Path) -> Kept:
    return store(InMemoryStore())


def chroma_store(folder: Path) -> Kept:
    return store(ChromaStore.open(folder / "chroma"))


KINDS = [experiences, trajectories, buffer, q_table, lessons, journal, library, library_in_a_store, replay]
KINDS += [chroma, in_memory_store, chroma_store]


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_sees_the_past_and_its_own_writes_and_is_dropped_or_kept(kind: Any, tmp_path: Path) -> None:
    kept: Kept = kind(tmp_path)
    kept.write(0, "one")
    moment = new_moment()
    kept.write(1, "one")
    real = kept.bytes()
    branch = Branch(moment)
    with branch.play():
        assert kept.read() == {"r/0": "one"}
        kept.write(2, "one")
        assert kept.read() == {"r/0": "one", "r/2": "one"}
    between = new_moment()
    with branch.play():
        kept.write(3, "other")
    assert kept.bytes() == real
    assert kept.read() == {"r/0": "one", "r/1": "one"}
    earlier = branch.at(between)
    with earlier.play():
        assert kept.read() == {"r/0": "one", "r/2": "one"}
        kept.write(4, "one")
    with branch.play():
        assert kept.read() == {"r/0": "one", "r/2": "one", "r/3": "other"}
    earlier.drop()
    with earlier.play():
        assert kept.read() == {"r/0": "one"}
    assert kept.bytes() == real
    branch.keep()
    assert kept.read() == {"r/0": "one", "r/1": "one", "r/2": "one", "r/3": "other"}
    assert branch.keep() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_told_otherwise_meanwhile_is_kept_only_on_request(kind: Any, tmp_path: Path) -> None:
    kept: Kept = kind(tmp_path)
    branch = Branch()
    kept.write(0, "one")
    with branch.play():
        kept.write(0, "other")
        assert kept.read() == {"r/0": "other"}
    real = kept.bytes()
    with pytest.raises(BranchError, match=r"other records of .*0"):
        branch.keep()
    assert kept.bytes() == real
    if kind in (journal, library, library_in_a_store):
        with pytest.raises(BranchError, match="a log keeps what came first"):
            branch.keep(replace=True)
        assert kept.bytes() == real
    else:
        branch.keep(replace=True)
        assert kept.read() == {"r/0": "other"}


@pytest.mark.parametrize("kind", [experiences, trajectories, buffer, q_table, lessons, chroma, in_memory_store, chroma_store])
def test_a_replaced_record_is_seen_as_it_was(kind: Any, tmp_path: Path) -> None:
    kept: Kept = kind(tmp_path)
    kept.write(0, "one")
    kept.write(1, "one")
    moment = new_moment()
    kept.write(0, "other")
    with Branch(moment).play():
        assert kept.read() == {"r/0": "one", "r/1": "one"}
    assert kept.read()["r/0"] == "other"


def test_pruned_episodes_come_back_in_their_order() -> None:
    memory = Experiences()
    for n in range(3):
        memory.add(episode(n, "one"))
    moment = new_moment()
    memory.prune(keep_last=1)
    memory.add(episode(3, "one"))
    with Branch(moment).play():
        assert [one.episode for one in memory] == [0, 1, 2]
        assert len(memory.neighbours("state 0", 3, task="t", domain="toy")) == 3
    assert [one.episode for one in memory] == [2, 3]


def test_a_later_process_sees_the_past_by_the_times_of_the_store() -> None:
    records = records_in()
    Experiences(records).add(episode(0, "one"))
    moment = new_moment()
    Experiences(records).add(episode(1, "one"))
    later = Experiences(records)
    with Branch(moment).play():
        assert [one.episode for one in later] == [0]
    assert len(later) == 2


def test_a_store_shows_what_was_replaced_and_deleted_since() -> None:
    inside = InMemoryStore()
    first = later = BranchingStore(inside)
    first.put(("a",), "x", {"n": 1})
    first.put(("a",), "gone", {"n": 1})
    moment = new_moment()
    first.put(("a",), "x", {"n": 2})
    first.put(("b",), "new", {"n": 2})
    first.delete(("a",), "gone")
    with Branch(moment).play():
        assert {one.key: one.value["n"] for one in later.search((), limit=99)} == {"x": 1, "gone": 1}
        assert later.list_namespaces() == [("a",)]
    assert {one.key for one in later.search((), limit=99)} == {"x", "new"}
    assert later.list_namespaces() == [("a",), ("b",)]
    assert [one.key for one in later.search((), limit=1)] != []
    with Branch().play():
        later.put(("c",), "y", {"n": 3})
        assert later.list_namespaces(max_depth=1) == [("a",), ("b",), ("c",)]
        assert later.list_namespaces(prefix=("c",)) == [("c",)]
    assert inside.get(("c",), "y") is None


def test_a_search_by_meaning_ranks_the_branch_with_the_past() -> None:
    embed = DeterministicFakeEmbedding(size=64)
    memory = BranchingStore(InMemoryStore(index={"dims": 64, "embed": embed, "fields": ["text"]}))
    for n in range(300):
        memory.put(("a",), f"old {n}", {"text": f"old {n}"})
    branch = Branch()
    for n in range(300):
        memory.put(("a",), f"late {n}", {"text": f"late {n}"})
    with branch.play():
        memory.put(("a",), "mine", {"text": "mine"})
        memory.delete(("a",), "old 5")
        assert [one.key for one in memory.search(("a",), query="mine", limit=1)] == ["mine"]
        assert [one.key for one in memory.search(("a",), query="old 7", limit=1)] == ["old 7"]
        found = [one.key for one in memory.search(("a",), query="old 5", limit=1000)]
        assert len(found) == 300
        assert "old 5" not in found
        pages = [one.key for start in range(0, 400, 100) for one in memory.search(("a",), limit=100, offset=start)]
        assert sorted(pages) == sorted(found)
        assert memory.search(("a",), filter={"text": "mine"})[0].key == "mine"
    assert memory.get(("a",), "old 5") is not None
    assert memory.get(("a",), "mine") is None


async def _both(memory: BranchingStore) -> Any:
    await memory.aput(("a",), "x", {"n": 1})
    return await memory.aget(("a",), "x")


def test_asynchronous_use_of_a_store() -> None:
    import asyncio

    memory = BranchingStore(InMemoryStore())
    with Branch().play():
        assert asyncio.run(_both(memory)).value == {"n": 1}
    assert memory.get(("a",), "x") is None
    assert asyncio.run(_both(memory)).value == {"n": 1}


def test_a_journal_in_a_branch_of_a_branch(tmp_path: Path) -> None:
    steps = Journal(tmp_path / "steps.jsonl")
    start = steps.start("r", 0, "t")
    first = steps.append(start, Transition("s", "a", 1.0))
    one = Branch()
    with one.play():
        second = steps.append(first, Transition("s", "b", 1.0))
    two = one.at(new_moment())
    with two.play():
        third = steps.append(second, Transition("s", "c", 1.0))
    two.keep()
    assert [step.action for step in steps.history(third)] == ["a", "b", "c"]
    assert [step.action for step in Journal(tmp_path / "steps.jsonl").history(third)] == ["a", "b", "c"]


def test_moments_follow_the_clock() -> None:
    from datetime import UTC, datetime, timedelta

    moments = [new_moment() for _ in range(200)]
    assert moments == sorted(set(moments))
    now = datetime.now(UTC)
    assert moment_of_time(now - timedelta(seconds=1)) < new_moment() < moment_of_time(now + timedelta(seconds=60))


KILLED = """
import os, sys
from learngraph.memory.storage.branches import Branch
from learngraph.memory.storage.rows import Rows
rows = Rows(sys.argv[1])
for n in range(3): rows.append({"id": f"real {n}"})
branch = Branch()
with branch.play():
    for n in range(50): rows.append({"id": f"mine {n}"})
real, count = Rows.append, [0]
def append(self, row):
    real(self, row)
    if self is rows:
        count[0] += 1
        if count[0] == int(sys.argv[2]): os.kill(os.getpid(), 9)
Rows.append = append
branch.keep()
"""


@pytest.mark.parametrize("after", [1, 25])
def test_a_kill_while_a_branch_is_kept_loses_nothing_real(after: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, path, str(after)], check=False)
    assert done.returncode == -9
    ids = [row["id"] for row in Rows(path).values()]
    assert ids[:3] == ["real 0", "real 1", "real 2"]
    assert ids[3:] == [f"mine {n}" for n in range(after)]
