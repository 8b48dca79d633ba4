"""How long the replay buffer takes with 10,000 records: append, give, lease, commit, delete; wall time and this thread's CPU time.

    python tests/performance/bench_replay.py [--records 10000] [--folder DIR]

A record has 400 prompt and 100 reply tokens and 1.5 kB of text. `append` and `give` wait for the disk, so name a folder on it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from learngraph.memory.claas.replay import Replay, ReplaySettings
from learngraph.memory.records import ChatRequest, Exchange, Feedback, Reply


def exchange(i: int) -> Exchange:
    reply = Reply("text " * 80, tuple(range(400)), tuple(range(100)), (-0.5,) * 100)
    request = ChatRequest(({"role": "user", "content": "hello " * 180},))
    return Exchange(f"r{i}", "acme", request, reply, "base", family="ab"[i % 2], created=1.0)


def measured(name: str, work: Callable[[int], object], count: int) -> None:
    wall, cpu = [], []
    for i in range(count):
        begun, used = time.perf_counter(), time.thread_time()
        work(i)
        wall.append(1000 * (time.perf_counter() - begun))
        cpu.append(1000 * (time.thread_time() - used))
    wall.sort()
    p50, p99 = wall[count // 2], wall[int(count * 0.99)]
    print(
        f"{name:<10}{count:>6} times: median {p50:7.2f} ms, p99 {p99:7.2f}, worst {wall[-1]:7.2f}; CPU {sum(cpu) / count:6.2f} ms"
    )


def step(replay: Replay, i: int) -> None:
    """A lease and its commit, one transaction each."""
    batch = replay.lease("acme", "default", 16)
    assert batch is not None
    replay.commit(batch.id, f"v{i}", {"loss": 1.0})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.folder))
    count = options.records
    try:
        with Replay(place / "replay.sqlite", ReplaySettings(max_records=count)) as replay:
            begun = time.perf_counter()
            measured("append", lambda i: replay.append(exchange(i)), count)
            print(f"{'':<10}{count / (time.perf_counter() - begun):.0f} a second")
            measured("give", lambda i: replay.add_feedback("acme", f"r{i}", Feedback(reward=float(i % 3 - 1))), count)
            measured("append", lambda i: replay.append(exchange(count + i)), 500)  # now each one pushes another one out

            measured("lease+end", lambda i: step(replay, i), 30)
            measured("counts", lambda i: (replay.counts("acme"), replay.scopes()), 20)
            measured("rows", lambda i: replay.rows("acme", limit=50), 20)
            measured("set_head", lambda i: replay.set_head("acme", "default", f"v{i}"), 20)
            measured("delete", lambda i: replay.delete("acme", f"r{count - 1 - i}"), 20)
        print(f"file: {(place / 'replay.sqlite').stat().st_size / 2**20:.1f} MB")
        begun = time.perf_counter()
        Replay(place / "replay.sqlite").close()
        print(f"open: {1000 * (time.perf_counter() - begun):.1f} ms")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
