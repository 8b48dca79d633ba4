"""Throughput of many rollouts at once against a model server, and CPU time per model call. Asserts nothing.

    OMP_NUM_THREADS=1 python tests/performance/bench_rollouts.py [--quick] [--rounds 3]

The stub server (stub_server.py) answers after a fixed latency in a process of its own. A rollout is an ICRL run at Game of 24:
each round one model call. `ideal` is rounds x latency; what is printed is ideal / wall,
after one round that opens the connections. CPU ms are those of this process per model call: on a busy machine they are the
number to trust, wall times share two cores with the server and whatever else runs.
"""

import asyncio
import gc
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
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
from learngraph.graphs.wiring.supersteps import UncheckpointedGraph
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
GAME, GAME_NAME = "game24?order=difficulty", "Game of 24"


Play = Callable[[int], Awaitable[Any]]
"""Plays the rollouts, so many rounds of each."""


def graph(environment: Any, url: str) -> Any:
    """The graph of an ICRL run with a model behind `url`."""
    model = api(url)

    def policy(seen: PromptView) -> Any:
        return answer_policy(model, seen, environment.read)

    return run.build(icrl.build(MethodInputs(environment, Journal(), make_policy=policy, model=model)))


@cache
def api(url: str) -> Any:
    """A model takes a while to open."""
    return open_model("openai:stub", base_url=url)


def plans(environment: Any, count: int, rounds: int, name: str = "run") -> list[Any]:
    """The inputs of `count` runs, one a puzzle."""
    split = "train" if count > 100 else "test"
    return [{"task": environment.task(n, split), "run": f"{name}{n}", "episode": 0, "episodes": rounds} for n in range(count)]


async def timed(play: Play, rounds: int) -> tuple[float, float]:
    """Wall and CPU seconds, one round apart that opens the connections."""
    await play(1)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await play(rounds)
    return time.perf_counter() - wall, time.process_time() - cpu


def at_once(ask: Callable[[], Awaitable[Any]], count: int) -> Play:
    """So many clients, each asking again when it is answered."""

    async def one(rounds: int) -> None:
        for _ in range(rounds):
            await ask()

    return lambda rounds: asyncio.gather(*(one(rounds) for _ in range(count)))  # type: ignore[return-value]


def raw(url: str, count: int, rounds: int) -> tuple[float, float]:
    """Requests of a middling size, with nothing around them: what a client allows for at best."""
    messages = [{"role": "user", "content": "x" * 3000}]
    body, headers = json.dumps({"model": "stub", "messages": messages}).encode(), {"content-type": "application/json"}

    async def ask() -> None:
        json.loads(await api_posts.post(f"{url}/chat/completions", body, headers, 60.0, 0))

    return asyncio.run(timed(at_once(ask, count), rounds))


def chat_model(url: str, count: int, rounds: int) -> tuple[float, float]:
    """The same through LangChain's own `ChatOpenAI`, with no graph, environment or memory around it: what its users pay already."""
    messages = [HumanMessage("x" * 3000)]

    async def all_of_it() -> tuple[float, float]:
        async with DefaultAsyncHttpxClient() as connections:
            model = ChatOpenAI(
                model="stub", base_url=url, api_key=SecretStr("none"), max_retries=0, http_async_client=connections
            )
            return await timed(at_once(lambda: model.ainvoke(messages), count), rounds)

    return asyncio.run(all_of_it())


def loop(url: str, count: int, rounds: int) -> tuple[float, float]:
    """Runs as plain loops (graphs.wiring.supersteps.UncheckpointedGraph)."""
    world = open_environment(GAME)
    runs = UncheckpointedGraph(graph(world, url))
    return asyncio.run(timed(lambda rounds: runs.abatch(plans(world, count, rounds, f"{rounds}-")), rounds))


def _half(url: str, count: int, rounds: int, start: Any, out: Any) -> None:
    loop(url, count, 1)  # imports, and opens the model
    start.wait()
    out.put(loop(url, count, rounds))


def processes(url: str, count: int, rounds: int, number: int = 2) -> tuple[float, float]:
    """Plain loops in `number` processes: the slowest one's wall time, the CPU time of all."""
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(number), context.Queue()
    workers = [context.Process(target=_half, args=(url, count // number, rounds, start, out)) for _ in range(number)]
    for worker in workers:
        worker.start()
    found = [out.get() for _ in workers]
    for worker in workers:
        worker.join()
    return max(wall for wall, _ in found), sum(cpu for _, cpu in found)


WAYS = {
    "a raw client": raw,
    "LangChain's ChatOpenAI alone": chat_model,
    GAME_NAME: loop,
    f"{GAME_NAME}, two processes": processes,
}
BARE, CHAT, OURS, TWO = WAYS


def compare(count: int, calls: int, latency: float, rounds: int, ways: Sequence[str], **targets: Any) -> None:
    """The ways take turns. A target named `WAY, OTHER` is a fraction of the other way's rate, not of the ideal one."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with stub(latency, REPLIES) as url:
        for _ in range(rounds):
            for name in ways:
                found[name].append(WAYS[name](url, count, calls))
    for name, times in found.items():
        what = f"{count} rollouts against a server that takes {latency * 1e3:g} ms, {name}"
        of_ideal = [calls * latency / wall for wall, _ in times]
        note = f"CPU {statistics.median(used for _, used in times) / count / calls * 1e3:.2f} ms a call"
        report(f"{what}: fraction of ideal", of_ideal, limit=1, note=note, **targets.get(name, {}))
        for other in ways:
            if beside := targets.get(f"{name}, {other}"):
                others = [calls * latency / wall for wall, _ in found[other]]
                report(f"{what}: over {other}", ratios(of_ideal, others), **beside)


def main() -> None:
    options = make_parser(__doc__, rounds=3).parse_args()
    gc.collect()
    gc.freeze()
    for count in (8,) if options.quick else (32, 128):
        # 128 at a time are limited by this process, as `CHAT` shows.
        ideal = {"number": 11, **({"at_least": 0.95} if count < 128 else {})}
        targets: dict[str, Any] = {OURS: ideal, f"{OURS}, {CHAT}": {"number": 11, "at_least": 0.95}}
        compare(count, 2 if options.quick else 5, 1.0, options.rounds, (BARE, CHAT, OURS), **targets)
    targets = {
        f"{OURS}, {BARE}": {"number": 12, "limit": 1},
        f"{OURS}, {CHAT}": {"number": 12, "at_least": 0.95},
        TWO: {"number": 12},
    }
    compare(*(8, 5) if options.quick else (128, 20), 0.05, options.rounds, tuple(WAYS), **targets)


if __name__ == "__main__":
    main()
