"""What a memory of JitRL takes: the time to open it and ask it, with a snapshot and without, and its bytes in RAM and on disk.

    python tests/performance/bench_memory.py [--rows 10000 100000 1000000] [--visits 10] [--folder DIR] [--postgres URL]

Texts are those of bench_retrieval (60 words a state, 50 visits to each room, a fifth of the words changed at each), in episodes of 50
steps that are written to Chroma in a folder, or to an empty Postgres database. Each memory is opened in processes of their own:
first in one that reads all records, builds the index for the first question, and leaves a snapshot; then in others that find it.
Bytes in RAM are those that a process has more than before, pages of mapped files that it touched included. The file system's cache is
warm. `--folder` keeps the stores, and finds those of an earlier call. Of Postgres, no snapshots are kept.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_retrieval import LENGTH, Rows, corpus, cpu, episode, near_query, text
from rows import make_parser, memory_in_use, ratios, report

from learngraph.memory.records import Trajectory
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.open_store import open_store
from learngraph.memory.storage.record_store import RecordStore

NAMESPACE = ("bench",)
SCOPE: Any = {"task": "task-0", "domain": "bench"}
EPISODES_AT_ONCE = 50
MOST_IN_OBJECTS = 100_000
"""Steps that fit into memory as Python's objects: 12 kB each."""


@dataclass(frozen=True)
class Opening:
    """What it took a process to open a memory and ask it."""

    seconds: float
    """Until the first answer."""
    cpu: float
    held: int
    """Bytes of RAM."""
    question: float
    """CPU seconds of a later question, the median of some."""
    neighbours: tuple[Any, ...]
    """The first answer."""
    closing: float
    """Seconds to close it, and write what there is to write."""


def open_memory(where: str, questions: list[str], count: int, answer: Any) -> None:
    """Open a memory, ask it, and send what that took."""
    with tempfile.TemporaryDirectory() as folder, open_store(folder) as empty:
        empty.get(NAMESPACE, "")  # the database's own libraries are not the memory's
    if "://" in where:
        with open_store(where) as empty:
            empty.get(NAMESPACE, "")
    before, began, began_cpu = memory_in_use(), time.perf_counter(), time.process_time()
    with open_store(where) as store:
        memory = Experiences(RecordStore(store, NAMESPACE, Trajectory))
        found = memory.neighbours(questions[0], 10, **SCOPE)
        seconds, took, held = time.perf_counter() - began, time.process_time() - began_cpu, memory_in_use() - before
        assert len(memory) == count
        more = statistics.median([cpu(lambda one=one: memory.neighbours(one, 10, **SCOPE)) for one in questions[1:]])
        closing = time.perf_counter()
    closing = time.perf_counter() - closing
    answer.send(Opening(seconds, took, held, more, found, closing))


def ask_objects(where: str, questions: list[str], count: int, answer: Any) -> None:
    """Ask a memory of the same records whose index lies in Python's objects, as it does where no snapshots are kept."""
    with open_store(where) as store:
        memory = Experiences()
        for one in RecordStore(store, NAMESPACE, Trajectory).all():
            memory.add(one)
        found = memory.neighbours(questions[0], 10, **SCOPE)
        assert len(memory) == count
        answer.send(
            (statistics.median([cpu(lambda one=one: memory.neighbours(one, 10, **SCOPE)) for one in questions[1:]]), found)
        )


def run_process(target: Any, where: str, questions: list[str], count: int) -> Any:
    """The result of a function in a new process."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(where, questions, count, there))
    process.start()
    there.close()
    found = here.recv()
    process.join()
    return found


def run_opening(where: str, questions: list[str], count: int) -> Opening:
    """What opening takes in a new process."""
    found: Opening = run_process(open_memory, where, questions, count)
    return found


def write_store(where: str, rows: Rows) -> None:
    """Write the episodes, unless they are there."""
    with open_store(where) as store:
        records, episodes = RecordStore(store, NAMESPACE, Trajectory), rows.reshape(-1, 50, LENGTH)
        if records.get(f"bench/{len(episodes) - 1}") is not None:
            return
        for start in range(0, len(episodes), EPISODES_AT_ONCE):
            some = enumerate(episodes[start : start + EPISODES_AT_ONCE], start)
            records.put([episode(number, steps.tolist()) for number, steps in some])


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(count: int, where: str, rounds: int, visits: int) -> None:
    """Report what a memory of `count` transitions takes."""
    draw = np.random.default_rng(0)
    rows = np.tile(corpus(count // visits, draw), (visits, 1))
    questions = [text(near_query(rows, draw)) for _ in range(51)]
    write_store(where, rows)
    del rows
    of = f"{count:,} steps{f', {visits} visits to each state' if visits > 1 else ''}"
    folder = None if "://" in where else Path(where)
    if folder is not None:
        shutil.rmtree(folder / "snapshots", ignore_errors=True)
    first = run_opening(where, questions, count)
    kind = "in Chroma" if folder is not None else "in Postgres"
    report(f"open a memory of {of} {kind} and ask it, without a snapshot", first.seconds, "s", note=f"{first.cpu:.2f} s of CPU")
    report(f"bytes of RAM a step, {of} {kind}, without a snapshot", first.held / count)
    if folder is None:
        return
    report(f"bytes on disk a step, {of}: Chroma", (size_of(folder) - size_of(folder / "snapshots")) / count)
    report(f"bytes on disk a step, {of}: the snapshot", size_of(folder / "snapshots") / count)
    report(f"write the snapshot of {of} while the store is closed", first.closing, "s")
    later = [run_opening(where, questions, count) for _ in range(rounds)]
    same = all(one.neighbours == first.neighbours for one in later)
    note = f"{statistics.median(one.cpu for one in later):.2f} s of CPU; {'the same' if same else 'ANOTHER'} answer"
    target = 5 if count >= 1_000_000 else None
    report(
        f"open a memory of {of} and ask it, with its snapshot", [one.seconds for one in later], "s", at_most=target, note=note
    )
    report(f"bytes of RAM a step, {of}, with its snapshot", [one.held / count for one in later])
    report(f"a question to {of}, CPU, with its snapshot", [1e3 * one.question for one in later], "ms")
    if count <= MOST_IN_OBJECTS:
        plain, found = run_process(ask_objects, where, questions, count)
        same = "the same" if found == first.neighbours else "ANOTHER"
        of = f"a question to {of}, CPU, with its snapshot over an index in Python's objects"
        report(of, ratios([one.question for one in later], [plain] * rounds), note=f"{1e3 * plain:.2f} ms; {same} answer")


def main() -> None:
    """Measure the sizes that were asked for."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--visits", type=int, default=1, help="how often each state occurs, to the letter")
    parser.add_argument("--folder", type=Path, help="where the stores stay; otherwise they are temporary")
    parser.add_argument("--postgres", help="URL of an empty database to measure in place of Chroma; for one size only")
    options = parser.parse_args()
    for count in [5_000] if options.quick else options.rows:
        if options.postgres:
            measure(count, options.postgres, options.rounds, options.visits)
        elif options.folder:
            measure(count, str(options.folder / f"{count}-{options.visits}"), options.rounds, options.visits)
        else:
            with tempfile.TemporaryDirectory() as folder:
                measure(count, folder, options.rounds, options.visits)


if __name__ == "__main__":
    main()
