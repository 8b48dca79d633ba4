"""What a memory of JitRL takes: bytes a transition in RAM and on disk, and the time to open it. Asserts nothing.

    python tests/performance/bench_memory.py [--rows 10000 100000 1000000] [--visits 10] [--postgres URL]

Texts are those of bench_retrieval (60 words a state, 50 visits to each room, a fifth of the words changed at each), in episodes of 50
steps that are written to Chroma in a folder, or to an empty Postgres database. Each memory is opened in a process of its own, which
reads all records, and asks one question, which builds the index. Bytes in RAM are what that process has more than before.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_retrieval import LENGTH, corpus, episode, near_query, text

from learngraph.memory.experiences import Experiences
from learngraph.memory.records import Trajectory
from learngraph.memory.storage.open_store import open_store
from learngraph.memory.storage.shelf import RecordStore

NAMESPACE = ("bench",)


def memory_in_use() -> int:
    """Bytes of RAM that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def open_memory(where: str, question: str, answer: Any) -> None:
    """Open a memory and ask it once; send the seconds of both, and the bytes that it took."""
    with open_store(where) as empty:
        empty.get(NAMESPACE, "")  # what the database's own libraries take is not the memory's
        before = memory_in_use() if "://" in where else 0
    if not before:
        before = 150_000_000  # Chroma reads a folder on opening: its libraries and ours, empty, take about this
    began = time.perf_counter()
    with open_store(where) as store:
        memory = Experiences(RecordStore(store, NAMESPACE, Trajectory))
        opened = time.perf_counter()
        memory.neighbours(question, 10, task="task-0", domain="bench")
        answer.send((opened - began, time.perf_counter() - opened, memory_in_use() - before, len(memory)))


def measure(count: int, where: str, draw: np.random.Generator, visits: int = 1) -> None:
    """Write `count` transitions to a store, open it, and print what that takes."""
    rows = np.tile(corpus(count // visits, draw), (visits, 1))
    question = text(near_query(rows, draw))
    began = time.perf_counter()
    with open_store(where) as store:
        shelf = RecordStore(store, NAMESPACE, Trajectory)
        for number, steps in enumerate(rows.reshape(-1, 50, LENGTH)):
            shelf.put([episode(number, steps.tolist())])
    writing = time.perf_counter() - began
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=open_memory, args=(where, question, there))
    process.start()
    opening, asking, held, number = here.recv()
    process.join()
    assert number == count
    disk = ""
    if "://" not in where:
        disk = f"{sum(path.stat().st_size for path in Path(where).rglob('*') if path.is_file()) / count:,.0f} bytes on disk, "
    print(
        f"{count:>9,} transitions in {where.split(':')[0] if '://' in where else 'chroma'}: {held / count:,.0f} bytes in RAM, {disk}"
        f"opened in {opening:.1f} s, first question {asking:.1f} s; an episode written in {writing / (count / 50) * 1e3:.1f} ms",
        flush=True,
    )


def main() -> None:
    """Measure the sizes that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--visits", type=int, default=1, help="how often each state occurs, to the letter")
    parser.add_argument("--postgres", help="URL of an empty database to measure in place of Chroma; for one size only")
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    for count in options.rows:
        if options.postgres:
            measure(count, options.postgres, draw, options.visits)
        else:
            with tempfile.TemporaryDirectory() as folder:
                measure(count, folder, draw, options.visits)


if __name__ == "__main__":
    main()
