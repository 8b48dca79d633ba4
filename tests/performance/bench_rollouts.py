"""Throughput of many rollouts at once against a model server, and CPU time per model call. Asserts nothing.

    OMP_NUM_THREADS=1 python tests/performance/bench_rollouts.py [--quick] [--rounds 3]

The stub server (stub_server.py) answers after a fixed latency in a process of its own. A rollout is an ICRL run at Game of 24:
each round one model call. `ideal` is rounds x latency; what is printed is ideal / wall,
after one round that opens the connections. CPU ms are those of this process per model call: on a busy machine they are the
number to trust, wall times share two cores with the server and whatever else runs.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr
from rows import make_parser, ratios, report
from stub_server import stub

from learngraph.graphs import icrl
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import UncheckpointedGraph, merge_steps
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
"""Different replies, so that no round repeats the one before."""


Way = Callable[[int, int], tuple[float, float]]
"""Plays so many rollouts of so many calls; gives wall and CPU seconds."""


class Guess:
    """The cheapest environment: one written answer, scored by its length. Compare with it to see the cost of an environment."""

    name, instant = "guess", True

    def task(self, seed: int, split: str = "test") -> Task:
        """The task: say something."""
        return Task(f"guess-{seed}", "say something" + " of worth" * 120, seed)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The episode is over after one answer."""
        return Observation("say it", (), float(len(actions[-1]) % 7) if actions else 0.0, bool(actions))

    def abstract(self, observation: Observation) -> str:
        """The text of the observation."""
        return observation.text

    def read(self, reply: str) -> tuple[str, ...]:
        """The reply as one action."""
        return (" ".join(reply.split()),)


def graph(environment: Any, url: str, journal: Journal | None = None, transform: Any = None, **compile: Any) -> Any:
    """The graph of an ICRL run with a model behind `url`; `transform`: of the graph of a round."""
    model = api(url)

    def policy(seen: PromptView) -> Any:
        return answer_policy(model, seen, environment.read)

    inputs = MethodInputs(environment, journal or Journal(), make_policy=policy, model=model)
    episode = icrl.build(inputs)
    return run.build(transform(episode) if transform else episode, **compile)


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


def chat_model(url: str, count: int, rounds: int, chars: int = 3000) -> tuple[float, float]:
    """The same through LangChain's own `ChatOpenAI`, with no graph, environment or memory around it: what its users pay already."""
    messages = [HumanMessage("x" * chars)]

    async def all_of_it() -> tuple[float, float]:
        async with DefaultAsyncHttpxClient() as connections:
            model = ChatOpenAI(
                model="stub", base_url=url, api_key=SecretStr("none"), max_retries=0, http_async_client=connections
            )

            async def one(rounds: int) -> None:
                for _ in range(rounds):
                    await model.ainvoke(messages)

            async def play(warm: int) -> None:
                await asyncio.gather(*(one(warm or rounds) for _ in range(count)))

            return await timed(play)

    return asyncio.run(all_of_it())


def loop(environment: Any, url: str, count: int, rounds: int) -> tuple[float, float]:
    """Runs as plain loops (graphs.wiring.supersteps.UncheckpointedGraph)."""

    runs = UncheckpointedGraph(graph(environment, url))

    async def play(warm: int) -> None:
        await runs.abatch(plans(environment, count, warm or rounds, "warm" if warm else "run"))

    return asyncio.run(timed(play))


def langgraph(environment: Any, url: str, count: int, rounds: int) -> tuple[float, float]:
    """The same runs in LangGraph's engine, without checkpoints."""

    runs = graph(environment, url, transform=merge_steps)

    async def play(warm: int) -> None:
        await runs.abatch(plans(environment, count, warm or rounds, "warm" if warm else "run"))

    return asyncio.run(timed(play))


def durable(environment: Any, url: str, count: int, rounds: int, once: bool = True) -> tuple[float, float]:
    """As `learngraph run --concurrency` plays them: threads, a journal and a SQLite file of checkpoints for each run.

    `once`: a checkpoint a round, as it does for tasks with one written answer; else one at every step.
    """

    transform = UncheckpointedGraph if once else merge_steps

    def one(folder: Path, plan: Any) -> None:
        journal = Journal(folder / plan["run"] / "steps.jsonl")
        with open_checkpoints(folder / plan["run"] / "checkpoints.sqlite") as saver:
            config: Any = {"configurable": {"thread_id": plan["run"]}}
            graph(environment, url, journal, transform, checkpointer=saver).invoke(plan, config, durability="async")
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
        runs = UncheckpointedGraph(graph(world, url))
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


def main() -> None:
    options = make_parser(__doc__, rounds=3).parse_args()
    game, guess = "game24?order=difficulty", Guess()
    world = open_environment(game)
    gc.collect()
    gc.freeze()

    def compare(count: int, calls: int, latency: float, ways: dict[str, Way], **targets: Any) -> None:
        """The ways take turns. A target named `WAY, OTHER` is a fraction of the other way's rate, not of the ideal one."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                found[name].append(way(count, calls))
        for name, times in found.items():
            what = f"{count} rollouts against a server that takes {latency * 1e3:g} ms, {name}"
            of_ideal = [calls * latency / wall for wall, _ in times]
            note = f"CPU {statistics.median(used for _, used in times) / count / calls * 1e3:.2f} ms a call"
            report(f"{what}: fraction of ideal", of_ideal, limit=1, note=note, **targets.get(name, {}))
            for other in ways:
                if beside := targets.get(f"{name}, {other}"):
                    others = [calls * latency / wall for wall, _ in found[other]]
                    report(f"{what}: over {other}", ratios(of_ideal, others), **beside)

    bare, chat = "a raw client", "LangChain's ChatOpenAI alone"
    with stub(1.0, REPLIES) as url:
        ways: dict[str, Way] = {
            bare: lambda count, calls: raw(url, count, calls),
            chat: lambda count, calls: chat_model(url, count, calls),
            "Game of 24": lambda count, calls: loop(world, url, count, calls),
        }
        for count in (8,) if options.quick else (32, 128):
            # 128 at a time are limited by this process, as `chat` shows.
            ideal = {"at_least": 0.95} if count < 128 else {}
            targets: dict[str, Any] = {
                "Game of 24": {"number": 11, **ideal},
                f"Game of 24, {chat}": {"number": 11, "at_least": 0.95},
            }
            compare(count, 2 if options.quick else 5, 1.0, ways, **targets)
        compare(
            4 if options.quick else 32,
            3,
            1.0,
            {"Game of 24, durable, threads": lambda count, calls: durable(world, url, count, calls)},
        )
    with stub(0.05, REPLIES) as url:
        own, goal = {"number": 12, "limit": 1}, {"number": 12, "at_least": 0.95}
        ways = {
            bare: lambda count, calls: raw(url, count, calls),
            chat: lambda count, calls: chat_model(url, count, calls),
            "an environment that costs nothing": lambda count, calls: loop(guess, url, count, calls),
            "Game of 24": lambda count, calls: loop(world, url, count, calls),
            "Game of 24, two processes": lambda count, calls: processes(game, url, count, calls),
            "Game of 24, in LangGraph's engine": lambda count, calls: langgraph(world, url, count, calls),
        }
        targets = {
            f"an environment that costs nothing, {bare}": own,
            f"an environment that costs nothing, {chat}": goal,
            f"Game of 24, {bare}": own,
            f"Game of 24, {chat}": goal,
            "Game of 24, two processes": {"number": 12},
        }
        compare(*(8, 5) if options.quick else (128, 20), 0.05, ways, **targets)
        ways = {
            "Game of 24, durable, threads": lambda count, calls: durable(world, url, count, calls),
            "the same, a checkpoint at every step": lambda count, calls: durable(world, url, count, calls, once=False),
        }
        compare(4 if options.quick else 16, 10, 0.05, ways)


if __name__ == "__main__":
    main()
