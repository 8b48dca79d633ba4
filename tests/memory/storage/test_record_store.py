"""Records in any store, and as JSON."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from waiting import wait_until

from learngraph.memory.errors import UserError
from learngraph.memory.records import Experience, Task, Trajectory, Transition
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.record_store import BadRecord, RecordStore, from_json, read_jsonl, to_json, write_jsonl

NS = ("runs", "coin")


def attempt(i: int, steps: int = 3, run: str = "r") -> Trajectory:
    transitions = tuple(Transition(f"room {t}, attempt {i}", f"go {t}", None if t % 5 == 4 else t / 2) for t in range(steps))
    return Trajectory(f"{run}/{i}", Task(f"coin-{i}", "take the coin", i), transitions, run, i, 0.5)


@pytest.fixture(params=["chroma directory", "in memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseStore]:
    match request.param:
        case "chroma directory":
            with ChromaStore.open(tmp_path / "memory") as chroma:
                yield chroma
        case "in memory":
            yield InMemoryStore()
        case _:
            with SqliteStore.from_conn_string(str(tmp_path / "store.sqlite")) as sqlite:
                sqlite.setup()
                yield sqlite


@pytest.fixture
def records(store: BaseStore) -> RecordStore[Trajectory]:
    return RecordStore(store, NS, Trajectory)


def test_records_come_back_equal_and_in_order(records: RecordStore[Trajectory]) -> None:
    attempts = [attempt(i, steps=i) for i in range(12)]
    for each in attempts[:3]:
        records.put([each])
        ticked = time.time() + 0.002
        wait_until(lambda ticked=ticked: time.time() > ticked)  # the store's clock tells them apart
    records.put(attempts[3:])
    assert sorted(records.all(), key=lambda t: t.episode) == attempts
    if not isinstance(records.store, SqliteStore):  # its clock ticks in whole seconds
        assert records.all()[:3] == attempts[:3]
    assert records.get("r/7") == attempts[7]
    assert records.get("r/99") is None
    again = records.all()
    assert records.all() == again


def test_storing_twice_stores_once(records: RecordStore[Trajectory]) -> None:
    records.put([attempt(1), attempt(2)])
    records.put([attempt(2), attempt(1), attempt(1)])
    assert len(records.all()) == 2
    records.put([attempt(2, steps=9)])
    assert {len(t.transitions) for t in records.all()} == {3, 9}
    records.put([])


def test_delete(records: RecordStore[Trajectory]) -> None:
    records.put([attempt(1), attempt(2), attempt(3)])
    records.delete(["r/1", "r/3", "r/unknown"])
    records.delete([])
    assert records.all() == [attempt(2)]


def test_namespaces_do_not_see_each_other(records: RecordStore[Trajectory]) -> None:
    below = RecordStore(records.store, (*NS, "below"), Trajectory)
    records.put([attempt(1)])
    below.put([attempt(2)])
    assert records.all() == [attempt(1)]
    assert below.all() == [attempt(2)]


def test_all_goes_through_every_page(records: RecordStore[Trajectory], monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MOST_ITEMS", "LEAST_CAP"):
        monkeypatch.setattr(f"learngraph.memory.storage.open_store.{limit}", 4)
    for n in (0, 3, 4, 9):
        records.put([attempt(i) for i in range(n)])
        assert len(records.all()) == n


def test_files_carry_records_over(tmp_path: Path) -> None:
    path = tmp_path / "out" / "attempts.jsonl"
    assert write_jsonl([attempt(i) for i in range(5)], path) == 5
    assert [p.name for p in path.parent.iterdir()] == ["attempts.jsonl"]
    assert read_jsonl(Trajectory, path) == [(i + 1, attempt(i)) for i in range(5)]


def spoilt(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = to_json(attempt(1))
    for path, change in changes.items():
        target: Any = value
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        for part in parents:
            target = target[part]
        if change is KeyError:
            del target[last]
        else:
            target[last] = change
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (spoilt(transitions__1__reward="high"), "field 'transitions[1].reward': expected a number or null, got \"high\""),
        (spoilt(transitions__2__note="x"), "field 'transitions[2].note': Transition has no such field"),
        (spoilt(task__instruction=KeyError), "field 'task.instruction': missing, a Task needs it"),
        (spoilt(episode=1.5), "field 'episode': expected a whole number, got 1.5"),
        (spoilt(episode=True), "field 'episode': expected a whole number, got true"),
        (spoilt(score=False), "field 'score': expected a number, got false"),
        (spoilt(transitions={}), "field 'transitions': expected a list, got {}"),
        (spoilt(task=None), "field 'task': expected a Task as an object, got null"),
        ([1], "expected a Trajectory as an object, got [1]"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, value: Any, says: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(to_json(attempt(0))) + "\n\n" + json.dumps(value) + "\n")
    with pytest.raises(BadRecord) as caught:
        read_jsonl(Trajectory, path)
    assert str(caught.value).startswith(f"{path}, line 3: {says}")
    assert isinstance(caught.value, UserError)


@pytest.mark.parametrize("line", [b'{"id": ', b"\xff\xfe{}"])
def test_a_line_that_is_not_json_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line)
    with pytest.raises(BadRecord, match="line 1: not JSON"):
        read_jsonl(Trajectory, path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*No such file"):
        read_jsonl(Trajectory, tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="cannot write"):
        write_jsonl([], tmp_path)


def test_an_item_that_is_no_record_is_named() -> None:
    store = InMemoryStore()
    store.put(NS, "strange", {"text": "hello"})
    with pytest.raises(BadRecord, match="item 'strange' in runs/coin: field 'text'"):
        RecordStore(store, NS, Trajectory).all()


def test_a_namespace_that_no_store_takes_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be the namespace"):
        RecordStore(InMemoryStore(), ("qwen2.5",), Trajectory)


def test_a_field_with_a_default_may_be_missing() -> None:
    value = {"id": "e", "state": "s", "action": "a", "value": 1}
    read = from_json(Experience, value)
    assert read == Experience("e", "s", "a", 1.0)
    assert type(read.value) is float


texts = st.text(max_size=20)
numbers = st.floats(allow_nan=False)
tasks = st.builds(Task, texts, texts, st.integers(-(2**53), 2**53))
transitions = st.builds(Transition, texts, texts, st.none() | numbers)
trajectories = st.builds(
    Trajectory, texts, tasks, st.lists(transitions, max_size=4).map(tuple), texts, st.integers(0, 9), numbers
)


@given(trajectories)
def test_any_trajectory_survives_json(trajectory: Trajectory) -> None:
    assert from_json(Trajectory, json.loads(json.dumps(to_json(trajectory)))) == trajectory


@dataclass(frozen=True)
class Odd:
    id: str
    kind: Literal["a", "b"]
    parts: dict[str, list[int]]
    child: Task | None = None
    anything: Any = None


def test_the_other_types_a_record_may_have() -> None:
    odd = Odd("1", "a", {"x": [1, 2]}, Task("t", "i"), {"free": [None]})
    assert from_json(Odd, to_json(odd)) == odd
    for value, says in [
        ({"kind": "c"}, 'field \'kind\': expected one of "a", "b"'),
        ({"parts": {"x": [1, "2"]}}, "field 'parts.x[1]': expected a whole number"),
        ({"child": {"id": "t"}}, "field 'child.instruction': missing"),
        ({"child": 3}, "field 'child': expected a Task as an object or null, got 3"),
    ]:
        with pytest.raises(BadRecord) as caught:
            from_json(Odd, to_json(odd) | value)
        assert says in str(caught.value)
    with pytest.raises(TypeError, match="plain data"):
        to_json({"x": object()})
