"""Where the processor's time goes while `learngraph serve` chats, takes feedback and learns, with 100,000 feedbacks in its buffer.

    python tests/performance/profile_serving.py [--records 100000] [--seconds 60] [--streams 8] [--model guard]

A service of `guard`, whose learner takes turns with the replies (`--learner inline`), so that one process has it all. The buffer is
filled with copies of real replies and feedback; then clients in another process chat and give feedback on every reply. A thread looks
at the stacks of all others 200 times a second, and counts for each the CPU time that its thread used since the last look.

A row is a function of ours, with all that it calls outside of this project (torch, SQLite, LangGraph), and the line of it that was
seen most. A look comes when a thread lets go of the interpreter's lock: short calls that do so (an HMAC, a write to a socket) stand for
the Python code before them, too. Shown are also the gradient steps, and the time that a step takes from one to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import linecache
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from bench_serving import model_of, round_of, show

import learngraph
from learngraph.graphs.claas import CLaaS
from learngraph.memory.claas.replay import Replay
from learngraph.memory.records import ExchangeQuery, Feedback

INTERVAL = 0.005
"""Seconds between two looks."""
KEY = "bench"


class Sampler(threading.Thread):
    """Counts the CPU time of this process's other threads, by the function of ours that they were in."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.seconds: Counter[str] = Counter()
        self.lines: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
        self.libraries: dict[str, Counter[str]] = defaultdict(Counter)

    def run(self) -> None:
        used: dict[int, float] = {}
        while not self.ended.wait(INTERVAL):
            for thread, frame in sys._current_frames().items():
                if thread == self.ident:
                    continue
                try:
                    now = time.clock_gettime(time.pthread_getcpuclockid(thread))
                except OSError:  # it has just ended
                    continue
                passed, used[thread] = now - used.get(thread, now), now
                if passed > 0:
                    self.count(frame, passed)

    def count(self, leaf: FrameType, seconds: float) -> None:
        frame: FrameType | None = leaf
        while frame is not None and not is_ours(frame):
            frame = frame.f_back
        name = "(no function of ours)" if frame is None else f"{place(frame)}:{frame.f_code.co_qualname}"
        self.seconds[name] += seconds
        self.libraries[name][library(leaf)] += seconds
        if frame is not None:
            self.lines[name][frame.f_code.co_filename, frame.f_lineno] += seconds


def is_ours(frame: FrameType) -> bool:
    """True for a function of this project, tests aside."""
    name = frame.f_code.co_filename
    return "/learngraph/" in name


def place(frame: FrameType) -> str:
    """The file of a function, from the root of the project on."""
    parts = Path(frame.f_code.co_filename).parts
    return "/".join(parts[next(i for i, part in enumerate(parts) if part in ("graphs", "nodes", "memory", "tools")) :])


def library(frame: FrameType) -> str:
    """The package that a function is of."""
    name = frame.f_code.co_filename
    if is_ours(frame):
        return "own lines, and what they call in C"
    return name.rpartition("site-packages/")[2].partition("/")[0] if "site-packages" in name else "Python's library"


def settings(records: int) -> CLaaS:
    made = CLaaS()
    return replace(made, replay=replace(made.replay, max_records=2 * records + 10_000, max_megabytes=8192))


def fill(folder: Path, records: int, chosen: CLaaS) -> None:
    """Fill the buffer with copies of the replies in it, each with feedback."""
    with Replay(folder / "replay.sqlite", chosen.replay) as replay:
        found = [row.exchange for row in replay.rows(ExchangeQuery("default", limit=64))]
        began = time.monotonic()

        def store(i: int) -> None:
            told = Feedback(float(i % 2), "" if i % 2 else "Name one thing only.")
            replay.append(replace(found[i % len(found)], id=f"copy-{i}", feedback=told))

        with ThreadPoolExecutor(64) as pool:  # which share transactions, and so waits for the disk
            for _ in pool.map(store, range(records)):
                pass
        print(f"{records:,} replies with feedback stored in {time.monotonic() - began:.0f} s", flush=True)


def talk(url: str, streams: int, seconds: float) -> None:
    """Chat in another process, and show how it went."""
    subprocess.run([sys.executable, __file__, "--url", url, "--streams", str(streams), "--seconds", str(seconds)], check=True)


def show_profile(sampler: Sampler, rows: int = 14) -> None:
    total = sum(sampler.seconds.values())
    print(f"\n{total:.1f} s of CPU\n\n{'s':>6} {'%':>5}  function of ours, its line that was seen most, and where it was then")
    for name, seconds in sampler.seconds.most_common(rows):
        line = linecache.getline(*sampler.lines[name].most_common(1)[0][0]).strip() if sampler.lines[name] else ""
        where, most = sampler.libraries[name].most_common(1)[0]
        print(f"{seconds:>6.2f} {seconds / total:>5.1%}  {name}\n{'':14}{line[:110]}\n{'':14}{where}: {most / seconds:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--model", default="guard")
    parser.add_argument("--url", help="(of the clients' process)")
    options = parser.parse_args()
    if options.url:
        model = asyncio.run(model_of(options.url, KEY))
        show("clients", asyncio.run(round_of(options.url, KEY, model, options.streams, options.seconds, 16, True)))
        return
    chosen = settings(options.records)
    with tempfile.TemporaryDirectory() as folder:
        common: dict[str, Any] = {"model": options.model, "out": folder, "api_key": (KEY,), "port": 0}
        with learngraph.serve(chosen, learner="off", **common) as server:
            talk(server.url.removesuffix("/v1"), 4, 3.0)
        fill(Path(folder), options.records, chosen)
        sampler = Sampler()
        with learngraph.serve(chosen, learner="inline", **common) as server:
            talk(server.url.removesuffix("/v1"), 2, 2.0)  # a first request pays for what a server keeps afterwards
            sampler.start()
            talk(server.url.removesuffix("/v1"), options.streams, options.seconds)
            sampler.ended.set()
            sampler.join()
        with Replay(Path(folder) / "replay.sqlite", chosen.replay) as replay:
            times = sorted(update["time"] for update in replay.updates("default", "default", 10_000))
            gaps = sorted(after - before for before, after in pairwise(times))
            middle = f", {gaps[len(gaps) // 2]:.2f} s from one to the next (median)" if gaps else ""
            print(f"{len(times)} gradient steps{middle}; {sum(replay.counts().values()):,} records")
        show_profile(sampler)


if __name__ == "__main__":
    main()
