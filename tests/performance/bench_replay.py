"""How long the replay buffer takes with 2,000 records: append, give, lease, commit, delete; wall time and this thread's CPU time.

    python tests/performance/bench_replay.py [--records 10000] [--folder DIR]

A record has 400 prompt and 100 reply tokens and 1.5 kB of text. `append` and `give` wait for the disk, so name a folder on it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rows import make_parser, medians, report

from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import ReplaySettings
from learngraph.memory.records import ChatRequest, Exchange, ExchangeQuery, Feedback, Reply


def exchange(i: int) -> Exchange:
    reply = Reply("text " * 80, tuple(range(400)), tuple(range(100)), (-0.5,) * 100)
    request = ChatRequest(({"role": "user", "content": "hello " * 180},))
    return Exchange(f"r{i}", "acme", request, reply, "base", family="ab"[i % 2], created=1.0)


def measure(name: str, work: Callable[[int], object], count: int, rounds: int) -> None:
    wall, used = [], 0.0
    for i in range(count):
        begun, cpu = time.perf_counter(), time.thread_time()
        work(i)
        wall.append(1000 * (time.perf_counter() - begun))
        used += 1000 * (time.thread_time() - cpu)
    note = f"99th percentile {sorted(wall)[int(count * 0.99)]:.2f} ms, CPU {used / count:.2f} ms"
    report(f"replay buffer: {name}", medians(wall, rounds), "ms", note=note)


def step(replay: Replay, i: int) -> None:
    """A lease and its commit, one transaction each."""
    batch = replay.lease("acme", "default", 16)
    assert batch is not None
    replay.commit(batch.id, f"v{i}", {"loss": 1.0})


def main() -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--records", type=int, default=2_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.folder))
    count = 200 if options.quick else options.records
    try:
        with Replay(place / "replay.sqlite", ReplaySettings(max_records=count)) as replay:
            works: list[tuple[str, Callable[[int], object], int]] = [
                ("append a reply", lambda i: replay.append(exchange(i)), count),
                ("give feedback", lambda i: replay.add_feedback("acme", f"r{i}", Feedback(reward=float(i % 3 - 1))), count),
                (
                    f"append a reply, which pushes out one of {count:,}",
                    lambda i: replay.append(exchange(count + i)),
                    count // 20,
                ),
                ("lease a batch of 16, and commit it", lambda i: step(replay, i), min(30, count // 20)),
                ("counts", lambda i: (replay.counts("acme"), replay.scopes()), 21),
                ("read 50 records", lambda i: replay.rows(ExchangeQuery("acme", limit=50)), 21),
                ("name another version", lambda i: replay.set_head("acme", "default", f"v{i}"), 21),
                ("delete a record", lambda i: replay.delete("acme", f"r{count - 1 - i}"), 21),
            ]
            for name, work, times in works:
                measure(name, work, times, options.rounds)
        report(f"replay buffer: file of {count:,} records", (place / "replay.sqlite").stat().st_size / 2**20, "MB")
        took = []
        for _ in range(options.rounds):
            begun = time.perf_counter()
            Replay(place / "replay.sqlite").close()
            took.append(1000 * (time.perf_counter() - begun))
        report("replay buffer: open the file", took, "ms")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
