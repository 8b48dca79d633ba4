"""What a memory of JitRL takes: the time to open it and ask it, with a snapshot and without, and its bytes in RAM and on disk.

    python tests/performance/bench_memory.py [--rows 10000 100000 1000000] [--visits 10]

Texts are those of bench_retrieval (60 words a state, 50 visits to each room, a fifth of the words changed at each), in episodes of 50
steps that are written to Chroma in a folder. Each memory is opened in processes of their own: first in one that reads all records,
builds the index for the first question, and leaves a snapshot; then in others that find it. Bytes in RAM are those that a process has
more than before, pages of mapped files that it touched included. The file system's cache is warm.
"""

from __future__ import annotations

import multiprocessing
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


def open_memory(where: str, questions: list[str], in_objects: bool, answer: Any) -> None:
    """Open a memory, ask it, and send what that took. `in_objects`: with an index of Python's objects, as where no snapshots are kept."""
    with tempfile.TemporaryDirectory() as folder, open_store(folder) as empty:
        empty.get(NAMESPACE, "")  # the database's own libraries are not the memory's
    before, began, began_cpu = memory_in_use(), time.perf_counter(), time.process_time()
    with open_store(where) as store:
        records = RecordStore(store, NAMESPACE, Trajectory)
        memory = Experiences(*[] if in_objects else [records])
        for one in records.all() if in_objects else ():
            memory.add(one)
        found = memory.neighbours(questions[0], 10, **SCOPE)
        seconds, took, held = time.perf_counter() - began, time.process_time() - began_cpu, memory_in_use() - before
        more = statistics.median([cpu(lambda one=one: memory.neighbours(one, 10, **SCOPE)) for one in questions[1:]])
        closing = time.perf_counter()
    answer.send(Opening(seconds, took, held, more, found, time.perf_counter() - closing))


def run_opening(where: str, questions: list[str], in_objects: bool = False) -> Opening:
    """What opening takes in a new process."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=open_memory, args=(where, questions, in_objects, there))
    process.start()
    there.close()
    found: Opening = here.recv()
    process.join()
    return found


def write_store(where: str, rows: Rows) -> None:
    """Write the episodes."""
    with open_store(where) as store:
        records, episodes = RecordStore(store, NAMESPACE, Trajectory), rows.reshape(-1, 50, LENGTH)
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
    folder = Path(where)
    first = run_opening(where, questions)
    report(
        f"open a memory of {of} in Chroma and ask it, without a snapshot", first.seconds, "s", note=f"{first.cpu:.2f} s of CPU"
    )
    report(f"bytes of RAM a step, {of} in Chroma, without a snapshot", first.held / count)
    report(f"bytes on disk a step, {of}: Chroma", (size_of(folder) - size_of(folder / "snapshots")) / count)
    report(f"bytes on disk a step, {of}: the snapshot", size_of(folder / "snapshots") / count)
    report(f"write the snapshot of {of} while the store is closed", first.closing, "s")
    later = [run_opening(where, questions) for _ in range(rounds)]

    def same(found: Opening) -> str:
        return "the same answer" if found.neighbours == first.neighbours else "ANOTHER answer"

    note = f"{statistics.median(one.cpu for one in later):.2f} s of CPU; {same(later[-1])}"
    name, target = f"open a memory of {of} and ask it, with its snapshot", 5 if count >= 1_000_000 else None
    report(name, [one.seconds for one in later], "s", at_most=target, note=note)
    report(f"bytes of RAM a step, {of}, with its snapshot", [one.held / count for one in later])
    report(f"a question to {of}, CPU, with its snapshot", [1e3 * one.question for one in later], "ms")
    if count <= MOST_IN_OBJECTS:
        plain = run_opening(where, questions, in_objects=True)
        of = f"a question to {of}, CPU, with its snapshot over an index in Python's objects"
        took = ratios([one.question for one in later], [plain.question] * rounds)
        report(of, took, note=f"{1e3 * plain.question:.2f} ms; {same(plain)}")


def main() -> None:
    """Measure the sizes that were asked for."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--visits", type=int, default=1, help="how often each state occurs, to the letter")
    options = parser.parse_args()
    for count in [5_000] if options.quick else options.rows:
        with tempfile.TemporaryDirectory() as folder:
            measure(count, folder, options.rounds, options.visits)


if __name__ == "__main__":
    main()
