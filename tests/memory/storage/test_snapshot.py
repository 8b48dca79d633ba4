"""Snapshots: a memory that is opened with one answers as one made anew, whatever was written, and whatever became of the snapshot."""

import json
import os
import shutil
import signal
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from forks import Python
from waiting import wait_at_random
from xxhash import xxh3_128_hexdigest

from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.returns import experiences, scope
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.search.segments import IndexSegment, TokenSegments
from learngraph.memory.search.similarity import JaccardIndex, words
from learngraph.memory.storage import snapshot
from learngraph.memory.storage.branching_store import BranchingStore
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.record_store import RecordStore

NAMES = ("toy", "episodes")
WORDS = [*"abcdefghijklmno", "1", "2", "\u00e4", "\ud800"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots of a few experiences, in parts of a few rows."""
    monkeypatch.setattr(experiences, "LEAST_UNSAVED", 1)
    for module in (experiences, scope):
        monkeypatch.setattr(module, "PART_ROWS", 8)
    monkeypatch.setattr(scope, "MERGE_ROWS", 40)


def episode(number: int, draw: Random, run: str = "run") -> Trajectory:
    steps = tuple(
        Transition(" ".join(draw.choices(WORDS, k=draw.randrange(7))), draw.choice("abc"), draw.choice([0.0, 1.0, 0.25, None]))
        for _ in range(draw.randrange(6))
    )
    task = Task(f"task-{draw.randrange(2)}", "find it")
    return Trajectory(f"{run}/{number}", task, steps, run, number, domain="toy", lost=draw.random() < 0.2)


def records_in(store: Any) -> RecordStore[Trajectory]:
    return RecordStore(store, NAMES, Trajectory)


def answers(memory: Experiences, draw: Random) -> list[Any]:
    """The answers to some questions, of all kinds."""
    found: list[Any] = [len(memory)]
    for _ in range(3):
        state = " ".join(draw.choices(WORDS, k=5))
        about: dict[str, Any] = {"task": f"task-{draw.randrange(2)}", "domain": "toy", "cross_task": draw.random() < 0.5}
        about["before"] = draw.choice([None, ("run", draw.randrange(20))])
        about["window"] = draw.choice([None, None, draw.randrange(9)])
        near = memory.neighbours(state, draw.randrange(1, 6), draw.choice([0.0, 0.3]), **about)
        found += [near, memory.moments(**about), memory.raw_neighbours(state, 0.2, **about)]
        found += [memory.visits(one.id, **about) for one in near[:2]]
    return found


def anew(records: RecordStore[Trajectory]) -> Experiences:
    """A memory of the same records, in the same order, that has never seen a snapshot."""
    made = Experiences()
    for one in records.all():
        made.add(one)
    return made


def manifests(place: Path) -> list[Path]:
    return sorted(place.glob("snapshots/*/*/manifest.json"))


def from_snapshot(memory: Experiences) -> bool:
    return any(one.saved > 0 for one in memory._scopes.values())


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]
)
def test_answers_are_those_of_a_memory_made_anew_whatever_was_written(tmp_path: Path, seed: int) -> None:
    """Random additions, changed rewards, prunes and reopenings; the answers to random questions stay equal."""
    draw, number, used = Random(seed), 0, 0
    for _ in range(5):
        with ChromaStore.open(tmp_path) as store:
            memory = Experiences(records_in(store))
            for _ in range(draw.randrange(1, 4)):
                match draw.choice(["add", "add", "add", "ask", "change", "prune", "delete"]):
                    case "add":
                        for _ in range(draw.randrange(1, 9)):
                            memory.add(episode(number, draw))
                            number += 1
                    case "change" if number:
                        memory.add(episode(draw.randrange(number), draw))
                    case "prune" if draw.random() < 0.4:
                        memory.prune(keep_last=draw.randrange(30))
                    case "delete" if number and draw.random() < 0.4:  # past the memory
                        records_in(store).delete([f"run/{draw.randrange(number)}"])
                        memory.reload()
                assert answers(memory, Random(number)) == answers(anew(records_in(store)), Random(number))
                used += from_snapshot(memory)
    assert used


def fill(place: Path, count: int = 40, seed: int = 1) -> None:
    with ChromaStore.open(place) as store:
        draw = Random(seed)
        records_in(store).put([episode(number, draw) for number in range(count)])
        ask_all(Experiences(records_in(store)))


def ask_all(memory: Experiences) -> None:
    """Open all scopes; the memory lives until its store is closed."""
    for task, cross_task in (("task-0", False), ("task-1", False), ("", True)):
        memory.neighbours("a b", 3, task=task, cross_task=cross_task, domain="toy")
    assert memory._snapshots is not None
    memory._snapshots.store.kept = memory  # type: ignore[attr-defined]


def check(place: Path, *, snapshot: bool) -> None:
    """The memory answers as one made anew, with or without a snapshot."""
    with ChromaStore.open(place) as store:
        memory = Experiences(records_in(store))
        memory.neighbours("a b", 3, task="", cross_task=True, domain="toy")
        assert from_snapshot(memory) is snapshot
        found = answers(memory, Random(0))
        assert found == answers(anew(records_in(store)), Random(0))


def test_a_memory_opens_without_reading_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    assert manifests(tmp_path)
    read: list[str] = []
    monkeypatch.setattr(RecordStore, "_record", lambda self, key, value: read.append(key))
    with ChromaStore.open(tmp_path) as store:
        memory = Experiences(records_in(store))
        assert len(memory) > 50
        assert memory.neighbours("a b", 3, task="task-0", domain="toy")
        assert memory.moments(task="task-0", domain="toy")
        assert not store._items
    assert not read


def test_what_comes_after_a_snapshot_is_added(tmp_path: Path) -> None:
    fill(tmp_path)
    with ChromaStore.open(tmp_path) as store:
        records_in(store).put([episode(number, Random(number)) for number in range(40, 45)])
    check(tmp_path, snapshot=True)


@pytest.mark.parametrize("change", ["replace", "delete", "earlier"])
def test_a_snapshot_of_records_that_have_changed_is_not_used(tmp_path: Path, change: str) -> None:
    fill(tmp_path)
    with ChromaStore.open(tmp_path) as store:
        records = records_in(store)
        kept = {path: path.read_bytes() for path in tmp_path.glob("snapshots/**/*") if path.is_file()}
        match change:
            case "replace":
                records.put([episode(0, Random(99))])
            case "delete":
                records.delete(["run/0"])
                assert not manifests(tmp_path)  # what is deleted is nowhere kept
            case "earlier":  # written by a machine whose clock is late
                records.put([episode(50, Random(99))])
                entry = store._items[NAMES]["run/50"]
                entry.created_at = entry.created_at.replace(year=2020)
                assert store._chroma
                store._chroma.write([entry], [])
        for path, content in kept.items():  # as if a copy had been put back
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    check(tmp_path, snapshot=False)


def test_a_snapshot_of_another_store_is_not_used(tmp_path: Path) -> None:
    fill(tmp_path / "a", seed=1)
    fill(tmp_path / "b", seed=2)
    shutil.rmtree(tmp_path / "b" / "snapshots")
    shutil.copytree(tmp_path / "a" / "snapshots", tmp_path / "b" / "snapshots")
    check(tmp_path / "b", snapshot=False)


@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "manifest", "format", "empty"])
def test_a_damaged_snapshot_is_not_used(tmp_path: Path, damage: str) -> None:
    fill(tmp_path)
    for path in manifests(tmp_path):
        files = sorted(path.parent.glob("*.npy"), key=lambda file: file.stat().st_size)
        match damage:
            case "cut" if files:
                os.truncate(files[-1], files[-1].stat().st_size // 2)
            case "flip" if files:
                content = bytearray(files[-1].read_bytes())
                content[-1] ^= 1
                files[-1].write_bytes(content)
            case "missing" if files:
                files[0].unlink()
            case "manifest":
                path.write_text(path.read_text().replace("run/1", "run/7"))
            case "format":
                text = json.dumps(json.loads(path.read_text().partition("\n")[2]) | {"format": 0})
                path.write_text(xxh3_128_hexdigest(text.encode()) + "\n" + text)
            case "empty":
                path.write_text("")
    check(tmp_path, snapshot=False)


def rewards_as_they_are(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
    return [*rewards]


def test_a_snapshot_for_other_settings_is_not_used(tmp_path: Path) -> None:
    fill(tmp_path)
    with ChromaStore.open(tmp_path) as store:
        for others in ({"gamma": 0.9}, {"tokens": words}, {"credit": rewards_as_they_are}):
            memory = Experiences(records_in(store), **others)  # type: ignore[arg-type]
            memory.neighbours("a", 3, task="task-0", domain="toy")
            assert not from_snapshot(memory)
        unnamed = Experiences(records_in(store), tokens=lambda text: text.split())
        assert unnamed._snapshots is None


def test_only_tokens_that_are_texts_make_snapshots(tmp_path: Path) -> None:
    with ChromaStore.open(tmp_path) as store:
        memory = Experiences(records_in(store), tokens=numbers)
        memory.add(episode(1, Random(3)))
        memory.neighbours("a", 3, task="task-0", domain="toy")
    assert not manifests(tmp_path)


def numbers(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def fill_and_save(store: ChromaStore) -> None:
    """A memory with snapshots of all that it holds; `save` waits for the thread that writes them."""
    memory, draw = Experiences(records_in(store)), Random(1)
    for number in range(8):
        memory.add(episode(number, draw))
    ask_all(memory)  # the memory lives until its store is closed
    memory.save()


def test_another_object_that_writes_is_noticed(tmp_path: Path) -> None:
    """Its changes are not in the first one's memory, so that one must write no snapshot."""
    with ChromaStore.open(tmp_path) as store:
        fill_and_save(store)
        assert manifests(tmp_path)
        shutil.rmtree(tmp_path / "snapshots")
        other = Experiences(records_in(store))
        other.add(episode(3, Random(77)))
        del other
    assert not manifests(tmp_path)
    check(tmp_path, snapshot=False)


def test_memories_of_other_settings_write_one_folder_and_each_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as one is written, one with all rows twice takes its place: another memory's, which may have another gamma."""
    write = snapshot.Snapshots.write

    def write_two(self: snapshot.Snapshots, name: str, meta: Any, arrays: Any) -> Any:
        found, count = write(self, name, meta, arrays), meta.get("segments", 0)
        again = {f"{int(key.split('.')[0]) + count}.{key.split('.')[1]}": arrays[key] for key in arrays if "." in key}
        write(self, name, {**meta, "identity": "another", "segments": 2 * count}, {**arrays, **again})
        return found

    fill(tmp_path)
    shutil.rmtree(tmp_path / "snapshots")
    monkeypatch.setattr(snapshot.Snapshots, "write", write_two)
    with ChromaStore.open(tmp_path) as store:
        memory = Experiences(records_in(store))
        ask_all(memory)
        memory.save()
        assert from_snapshot(memory)
        assert answers(memory, Random(1)) == answers(anew(records_in(store)), Random(1))


def test_a_store_whose_snapshot_cannot_be_written_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(snapshot, "_write_array", refuse)
        fill(tmp_path)
    assert not manifests(tmp_path)
    check(tmp_path, snapshot=False)


def test_a_store_that_keeps_branches_keeps_snapshots_too(tmp_path: Path) -> None:
    for count in (12, 16):
        with ChromaStore.open(tmp_path) as store:
            memory, draw = Experiences(records_in(BranchingStore(store))), Random(1)
            ask_all(memory)
            assert from_snapshot(memory) is (count == 16)
            for number in range(count):
                memory.add(episode(number, draw))
            ask_all(memory)
            assert answers(memory, Random(0)) == answers(anew(records_in(store)), Random(0))


def test_as_of_and_prune_read_what_was_not_read(tmp_path: Path) -> None:
    fill(tmp_path)
    with ChromaStore.open(tmp_path) as store:
        memory = Experiences(records_in(store))
        memory.neighbours("a", 3, task="task-0", domain="toy")
        assert [one.id for one in memory.as_of("")] == [one.id for one in anew(records_in(store))]
        assert memory.recall_table("a b", task="task-0", domain="toy").rows
        assert memory.prune(keep_last=7) == 33
        assert answers(memory, Random(5)) == answers(anew(records_in(store)), Random(5))


def test_a_snapshot_is_written_while_the_memory_grows(tmp_path: Path) -> None:
    with ChromaStore.open(tmp_path) as store:
        memory, draw = Experiences(records_in(store)), Random(4)
        memory.neighbours("a", 3, task="task-0", domain="toy")
        for number in range(30):
            memory.add(episode(number, draw))
            if number % 10 == 0:
                assert answers(memory, Random(number)) == answers(anew(records_in(store)), Random(number))
        if memory._saving:
            memory._saving.join()
        assert manifests(tmp_path)
        assert from_snapshot(memory)


def test_threads_ask_and_store_while_snapshots_are_written(tmp_path: Path) -> None:
    with ChromaStore.open(tmp_path) as store:
        memory, over, failures = Experiences(records_in(store)), threading.Event(), list[BaseException]()

        def ask() -> None:
            draw = Random(2)
            try:
                while not over.is_set():
                    memory.neighbours(" ".join(draw.choices(WORDS, k=4)), 4, task="task-0", domain="toy")
            except BaseException as error:
                failures.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        draw = Random(5)
        for number in range(30):
            memory.add(episode(number, draw))
        over.set()
        asking.join()
        assert not failures
        assert answers(memory, Random(1)) == answers(anew(records_in(store)), Random(1))


WRITER = """
    import sys
    from pathlib import Path
    from random import Random
    sys.path[:0] = [{tests!r}, {support!r}]
    import test_snapshot as t
    for module, name, value in ((t.experiences, "LEAST_UNSAVED", 1), (t.experiences, "PART_ROWS", 12), (t.scope, "PART_ROWS", 12)):
        setattr(module, name, value)
    with t.ChromaStore.open({place!r}) as store:
        memory = t.Experiences(t.records_in(store))
        draw = Random(len(memory))
        while True:
            memory.neighbours("a", 3, task="task-0", domain="toy")
            memory.add(t.episode(len(memory._episodes), draw))
            print(len(memory._episodes), flush=True)
            memory.save()
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_memory_that_answers_as_one_made_anew(tmp_path: Path) -> None:
    """A process that writes snapshots all the time is killed, again and again; the next one goes on from what it finds."""
    draw, used = Random(8), 0
    code = textwrap.dedent(WRITER).format(
        tests=str(Path(__file__).parent), support=str(Path(__file__).parents[2] / "support"), place=str(tmp_path)
    )
    for _ in range(4):
        writer = Python("-c", code)
        assert writer.stdout is not None
        for _ in range(draw.randrange(3, 12)):
            stored = int(writer.stdout.readline())
        wait_at_random(draw, 0.1)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        with ChromaStore.open(tmp_path) as store:
            memory = Experiences(records_in(store))
            assert len(memory._episodes) >= stored
            assert answers(memory, Random(0)) == answers(anew(records_in(store)), Random(0))
            used += from_snapshot(memory)
            memory._scopes.clear()  # this process writes none
    assert used > 1


def test_segments_find_what_one_index_finds() -> None:
    """Rows in one index, and in segments of any size, merged or not, with a part that grows."""
    draws = Random(0)
    for _ in range(60):
        plain, split = JaccardIndex(), TokenSegments()
        for _ in range(draws.randrange(1, 90)):
            tokens = frozenset(draws.choices(WORDS, k=draws.randrange(6)))
            assert plain.find(tokens) == split.find(tokens)
            if plain.find(tokens) is None:
                plain.add(tokens)
                split.add(tokens)
            event = draws.random()
            if event < 0.1:
                split.end_segment()
            elif event < 0.3:
                split.begin_part()
                made = [part if isinstance(part, IndexSegment) else IndexSegment.of(part) for part in split.parts[:-1]]
                split.put_segments([IndexSegment.merge(made)] if made and event < 0.2 else made)
        assert len(split) == len(plain)
        for _ in range(20):
            query, k = frozenset(draws.choices(WORDS, k=draws.randrange(6))), draws.randrange(9)
            least = draws.choice([0.0, 0.2, 0.5, 1.0])
            for one, other in zip(plain.nearest(query, k, least, None), split.nearest(query, k, least), strict=True):
                np.testing.assert_array_equal(one, other)
