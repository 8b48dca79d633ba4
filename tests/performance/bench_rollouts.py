"""Many rollouts at once against a model server: rows 11 and 12 of the performance targets. Asserts nothing.

    OMP_NUM_THREADS=1 python tests/performance/bench_rollouts.py [--quick]

The stub server (stub_server.py) answers after a fixed latency in a process of its own. A rollout is an ICRL run at Game of 24:
each round one model call. `ideal` is rounds x latency; what is printed is ideal / wall, of the fastest of `--repeat` tries,
after one round that opens the connections. CPU ms are those of this process per model call: on a busy machine they are the
number to trust, wall times share two cores with the server and whatever else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from stub_server import stub

from learngraph.graphs import icrl
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.loop import PlainLoop
from learngraph.graphs.wiring.parts import MethodInputs
from learngraph.memory.records import Observation, Task
from learngraph.memory.storage.checkpoints import open_checkpoints
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.policies import PromptView, answer_policy
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.models import api_posts
from learngraph.tools.models.models import open_model

REPLIES = [
    f"Step 1: {a} + {b} = {a + b} (left: {a + b} {b} 11)\nStep 2: {a + b} * {b} = {(a + b) * b} (left: {(a + b) * b} 11)\n"
    f"Step 3: {(a + b) * b} - 11 = {(a + b) * b - 11} (left: {(a + b) * b - 11})\nAnswer: ({a} + {b}) * {b} - 11 = 24"
    for a in range(1, 14)
    for b in range(1, 12)
]
"""Different ones, so that nothing is known from the round before."""


class Guess:
    """The cheapest world there is: one written answer, worth its length. Beside it one sees what an environment costs."""

    name, instant = "guess", True

    def task(self, seed: int, split: str = "test") -> Task:
        """Say something."""
        return Task(f"guess-{seed}", "say something" + " of worth" * 120, seed)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """Over after one answer."""
        return Observation("say it", (), float(len(actions[-1]) % 7) if actions else 0.0, bool(actions))

    def abstract(self, observation: Observation) -> str:
        """The text."""
        return observation.text

    def read(self, reply: str) -> tuple[str, ...]:
        """The reply as one action."""
        return (" ".join(reply.split()),)


def graph(environment: Any, url: str, journal: Journal | None = None, once: bool = False, **compile: Any) -> Any:
    """The graph of an ICRL run with a model behind `url`; `once`: with one checkpoint a round."""
    model = api(url)

    def policy(seen: PromptView) -> Any:
        return answer_policy(model, seen, environment.read)

    parts = MethodInputs(environment, journal or Journal(), make_policy=policy, model=model)
    episode: Any = icrl.build(parts, chain=True)
    return run.build(PlainLoop(episode) if once else episode, **compile)


@cache
def api(url: str) -> Any:
    """A model takes a while to open."""
    return open_model("openai:stub", base_url=url)


def plans(environment: Any, count: int, rounds: int, name: str = "run") -> list[Any]:
    """The inputs of `count` runs, one a puzzle."""
    split = "train" if count > 100 else "test"
    return [{"task": environment.task(n, split), "run": f"{name}{n}", "episode": 0, "episodes": rounds} for n in range(count)]


async def timed(play: Callable[[int], Awaitable[Any]]) -> tuple[float, float]:
    """Wall and CPU seconds of `play(rounds)`, one round apart that opens the connections."""
    await play(1)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await play(0)
    return time.perf_counter() - wall, time.process_time() - cpu


def raw(url: str, count: int, rounds: int, chars: int = 3000) -> tuple[float, float]:
    """The same number of requests of a middling size, with nothing around them: what a client allows for at best."""
    messages = [{"role": "user", "content": "x" * chars}]
    body, headers = json.dumps({"model": "stub", "messages": messages}).encode(), {"content-type": "application/json"}

    async def one(rounds: int) -> None:
        for _ in range(rounds):
            json.loads(await api_posts.post(f"{url}/chat/completions", body, headers, 60.0, 0))

    async def play(warm: int) -> None:
        await asyncio.gather(*(one(warm or rounds) for _ in range(count)))

    return asyncio.run(timed(play))


def loop(environment: Any, url: str, count: int, rounds: int) -> tuple[float, float]:
    """Runs as plain loops (graphs.wiring.loop.PlainLoop)."""

    runs = PlainLoop(graph(environment, url))

    async def play(warm: int) -> None:
        await runs.abatch(plans(environment, count, warm or rounds, "warm" if warm else "run"))

    return asyncio.run(timed(play))


def langgraph(environment: Any, url: str, count: int, rounds: int) -> tuple[float, float]:
    """The same runs in LangGraph's engine, without checkpoints."""

    runs = graph(environment, url)

    async def play(warm: int) -> None:
        await runs.abatch(plans(environment, count, warm or rounds, "warm" if warm else "run"))

    return asyncio.run(timed(play))


def durable(environment: Any, url: str, count: int, rounds: int, once: bool = True) -> tuple[float, float]:
    """As `learngraph run --concurrency` plays them: threads, a journal and a SQLite file of checkpoints for each run.

    `once`: a checkpoint a round, as it does for tasks with one written answer; else one at every step.
    """

    def one(folder: Path, plan: Any) -> None:
        journal = Journal(folder / plan["run"] / "steps.jsonl")
        with open_checkpoints(folder / plan["run"] / "checkpoints.sqlite") as saver:
            config: Any = {"configurable": {"thread_id": plan["run"]}}
            graph(environment, url, journal=journal, once=once, checkpointer=saver).invoke(plan, config, durability="async")
        journal.close()

    def play(rounds: int) -> None:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(count) as pool:
            for done in [pool.submit(one, Path(folder), plan) for plan in plans(environment, count, rounds)]:
                done.result()

    play(1)
    wall, cpu = time.perf_counter(), time.process_time()
    play(rounds)
    return time.perf_counter() - wall, time.process_time() - cpu


def _half(environment: str, url: str, count: int, rounds: int, start: Any, out: Any) -> None:
    world = open_environment(environment)

    async def play() -> None:
        runs = PlainLoop(graph(world, url))
        await runs.abatch(plans(world, count, 1, "warm"))
        start.wait()
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        await runs.abatch(plans(world, count, rounds))
        out.put((time.perf_counter() - wall, time.process_time() - cpu))

    asyncio.run(play())


def processes(environment: str, url: str, count: int, rounds: int, number: int = 2) -> tuple[float, float]:
    """Plain loops in `number` processes: the slowest one's wall time, the CPU time of all."""
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(number), context.Queue()
    workers = [
        context.Process(target=_half, args=(environment, url, count // number, rounds, start, out)) for _ in range(number)
    ]
    for worker in workers:
        worker.start()
    found = [out.get() for _ in workers]
    for worker in workers:
        worker.join()
    return max(wall for wall, _ in found), sum(cpu for _, cpu in found)


def line(name: str, count: int, rounds: int, latency: float, found: tuple[float, float], beside: float = 0.0) -> float:
    wall, cpu = found
    fraction = rounds * latency / wall
    ratio = f"{fraction / beside:.2f}" if beside else ""
    print(f"{name:<44}{count:>5}{latency:>8g}{fraction:>10.3f}{ratio:>9}{cpu / count / rounds * 1e3:>10.2f}", flush=True)
    return fraction


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--repeat", type=int, default=1)
    options = asked.parse_args()
    game, guess = "game24?order=difficulty", Guess()
    world = open_environment(game)
    gc.collect()
    gc.freeze()
    print(f"{'':<44}{'M':>5}{'latency':>8}{'of ideal':>10}{'of raw':>9}{'CPU ms':>10}")

    def best(play: Callable[[], tuple[float, float]]) -> tuple[float, float]:
        return min(play() for _ in range(options.repeat))

    with stub(1.0, REPLIES) as url:
        for count in (32, 128):
            rounds = 3 if options.quick else 5
            base = line("raw client", count, rounds, 1.0, best(lambda: raw(url, count, rounds)))  # noqa: B023
            line("row 11: plain loop, game24", count, rounds, 1.0, best(lambda: loop(world, url, count, rounds)), base)  # noqa: B023
    with stub(0.05, REPLIES) as url:
        count, rounds = 100, 10 if options.quick else 30
        base = line("raw client", count, rounds, 0.05, best(lambda: raw(url, count, rounds)))
        line("row 12: plain loop, guess", count, rounds, 0.05, best(lambda: loop(guess, url, count, rounds)), base)
        line("row 12: plain loop, game24", count, rounds, 0.05, best(lambda: loop(world, url, count, rounds)), base)
        line("row 12: two processes, game24", count, rounds, 0.05, best(lambda: processes(game, url, count, rounds)))
        line("LangGraph's engine, game24", count, 10, 0.05, best(lambda: langgraph(world, url, count, 10)), base)
        line("durable, threads, game24", 16, 10, 0.05, best(lambda: durable(world, url, 16, 10)))
        line("the same, a checkpoint at every step", 16, 10, 0.05, best(lambda: durable(world, url, 16, 10, once=False)))
    with stub(1.0, REPLIES) as url:
        line("durable, threads, game24", 32, 3, 1.0, best(lambda: durable(world, url, 32, 3)))


if __name__ == "__main__":
    main()
