"""Checkpoints: every record comes back equal under the strict serializer, and broken places are said in words."""

import asyncio
import dataclasses
import os
import sqlite3
import subprocess
import sys
import threading
import types
from contextlib import closing
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from learngraph.memory.errors import UserError
from learngraph.memory.records import RECORDS
from learngraph.memory.storage.checkpoints import open_checkpoints, open_checkpoints_async
from learngraph.memory.storage.serializer import allow_records, serializer

THREAD: Any = {"configurable": {"thread_id": "1"}}


def example(hint: Any) -> Any:
    """A value of this type, without defaults, so that a new record or field is covered as soon as it is there."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{f.name: example(hints[f.name]) for f in dataclasses.fields(hint)})
    if origin is tuple:
        return (example(args[0]), example(args[0])) if args[1:] == (...,) else tuple(map(example, args))
    if origin is list:
        return [example(args[0])]
    if origin is dict:
        return {example(args[0]): example(args[1])}
    if origin in (Union, types.UnionType):
        return example(args[0])
    if origin is not None and args and isinstance(args[0], str):
        return args[0]  # Literal
    return {str: "grüße", int: 7, float: -0.25, bool: True, Any: {"x": [1, None]}}[hint]


class State(TypedDict, total=False):
    records: list[Any]


def graph(saver: BaseCheckpointSaver[Any]) -> Any:
    builder = StateGraph(State)
    builder.add_node("make", lambda state: {"records": [example(record) for record in RECORDS]})
    builder.add_edge(START, "make")
    builder.add_edge("make", END)
    return builder.compile(checkpointer=saver)


def check(records: list[Any]) -> None:
    assert [type(r) for r in records] == list(RECORDS)
    for record, read in zip(RECORDS, records, strict=True):
        made = example(record)
        assert read == made
        for field in dataclasses.fields(record):
            assert type(getattr(read, field.name)) is type(getattr(made, field.name)), (record, field.name)


def test_the_serializer_restores_nothing_else() -> None:
    serde = serializer()
    read = serde.loads_typed(serde.dumps_typed({"x": Stranger("a")}))
    assert not isinstance(read["x"], Stranger)


@dataclasses.dataclass
class Stranger:
    text: str


@pytest.mark.parametrize("place", ["file", ":memory:"])
def test_records_in_a_state_survive_sqlite(place: str, tmp_path: Path) -> None:
    where = str(tmp_path / "new" / "checkpoints.sqlite") if place == "file" else place
    with open_checkpoints(where) as saver:
        graph(saver).invoke({}, THREAD)
        check(graph(saver).get_state(THREAD).values["records"])
    if place == "file":
        with open_checkpoints(where) as saver:
            check(graph(saver).get_state(THREAD).values["records"])


async def test_records_in_a_state_survive_sqlite_async(tmp_path: Path) -> None:
    where = tmp_path / "new" / "checkpoints.sqlite"
    async with open_checkpoints_async(where) as saver:
        await graph(saver).ainvoke({}, THREAD)
    async with open_checkpoints_async(where) as saver:
        check((await graph(saver).aget_state(THREAD)).values["records"])
    with open_checkpoints(where) as saver:
        check(graph(saver).get_state(THREAD).values["records"])


async def test_what_was_being_stored_when_a_run_broke_off_locks_nobody_out(tmp_path: Path) -> None:
    """A nested graph's task is between a write and its commit when the saver is closed; the error still holds its frame."""
    where = tmp_path / "checkpoints.sqlite"
    stored, end = asyncio.Event(), asyncio.Event()

    async def store(saver: Any) -> None:
        async with saver.lock, saver.conn.cursor() as cursor:
            row = ("1", "", "0", "task", "", 0, "channel", "null", b"")
            await cursor.executemany("INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [row])
            stored.set()
            await end.wait()
            await saver.conn.commit()

    async with open_checkpoints_async(where) as saver:
        await graph(saver).ainvoke({}, THREAD)
        task = asyncio.create_task(store(saver))
        await stored.wait()
    with closing(sqlite3.connect(where, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not other.execute("SELECT * FROM writes WHERE task_id = 'task'").fetchall()
    end.set()
    with pytest.raises(ValueError, match=r"no active connection|Connection closed"):  # nor does it write later
        await task
    with open_checkpoints(where) as saver:
        check(graph(saver).get_state(THREAD).values["records"])


def test_the_same_under_langgraphs_strict_switch() -> None:
    if os.environ.get("LANGGRAPH_STRICT_MSGPACK") == "true":
        pytest.skip("this run has the switch on already")
    ours = [__file__, "-q", "-p", "no:cacheprovider", "-k", "restores or survive", "--import-mode=importlib"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *ours],
        env=os.environ | {"LANGGRAPH_STRICT_MSGPACK": "true"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert "Deserializing unregistered" not in ran.stdout + ran.stderr


def test_steps_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    with open_checkpoints(tmp_path / "c.sqlite") as saver:
        connection: sqlite3.Connection = saver.conn  # type: ignore[attr-defined]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (1,)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(graph(saver).invoke({}, THREAD)))
        thread.start()
        thread.join()
        check(found[0]["records"])


@pytest.mark.parametrize("spoil", ["directory", "junk", "under a file"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_place_that_cannot_be_used_is_said(tmp_path: Path, spoil: str, asynchronous: bool) -> None:
    where = tmp_path / "c.sqlite"
    if spoil == "directory":
        where.mkdir()
    else:
        where.write_bytes(b"junk" * 500)
        where = where / "inside" if spoil == "under a file" else where

    def run() -> None:
        with open_checkpoints(where):
            pass

    async def run_async() -> None:
        async with open_checkpoints_async(where):
            pass

    with pytest.raises(UserError, match=f"checkpoints at {where}: "):
        asyncio.run(run_async()) if asynchronous else run()
    assert not where.is_file() or where.read_bytes() == b"junk" * 500


def test_no_byte_of_a_deleted_thread_is_left_after_close(tmp_path: Path) -> None:
    builder = StateGraph(State)
    builder.add_node("say", lambda state: {"records": [f"{state['records'][0]}-{i:03d} " * 100 for i in range(50)]})
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    with open_checkpoints(tmp_path / "c.sqlite") as saver:
        for name in ("secret", "kept"):
            builder.compile(checkpointer=saver).invoke({"records": [name]}, {"configurable": {"thread_id": name[0]}})
        saver.delete_thread("s")
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"kept-049" in left
    assert b"secret" not in left


def test_a_full_disk_is_said_where_it_happens(tmp_path: Path) -> None:
    def run() -> None:
        with open_checkpoints(tmp_path / "c.sqlite") as saver:
            connection: sqlite3.Connection = saver.conn  # type: ignore[attr-defined]
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count={pages}")
            for i in range(100):
                graph(saver).invoke({}, {"configurable": {"thread_id": str(i)}})

    with pytest.raises(UserError, match="the disk is full: make room and resume"):
        run()


def test_what_goes_wrong_inside_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), open_checkpoints(tmp_path / "c.sqlite"):
        (tmp_path / "other").read_text()
    with pytest.raises(sqlite3.OperationalError, match="no such table"), open_checkpoints(":memory:") as saver:
        saver.conn.execute("SELECT * FROM things")  # type: ignore[attr-defined]


def test_postgres_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.postgres", None)
    with pytest.raises(UserError, match=r"pip install 'learngraph\[postgres\]'"), open_checkpoints("postgresql://localhost/x"):
        pass
    with pytest.raises(UserError, match="give a path"), open_checkpoints("mysql://localhost"):
        pass


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_plain_serializer_of_langgraph_restores_every_record_once_they_are_allowed(kind: type) -> None:
    allow_records()
    plain, record = (
        JsonPlusSerializer(allowed_msgpack_modules=None),
        example(kind),
    )  # the strict one, which blocks what it does not know
    assert plain.loads_typed(plain.dumps_typed(record)) == record
