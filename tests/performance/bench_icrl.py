"""ICRL prompting at length: 100 puzzles x 50 rounds, memory, how prompts grow, and how much of them a cache of prefixes saves.

    OMP_NUM_THREADS=1 python tests/performance/bench_icrl.py [--quick]

(a) runs against the stub server (stub_server.py) in one process: fraction of ideal (rounds x latency / wall), CPU ms per call,
    and this process's memory. (b) and (c) need no server. (b) prompt tokens of each round (a token is three characters), for
the three ways to keep attempts. (c) target 16: tokens that must be computed / new tokens over a run. A perfect cache keeps the last
prompt with its reply; new tokens of a round are those beside the ones of the last prompt, computed are those that come after
the longest common beginning. The limit counts what a prompt ends with (the instruction): it comes after what is new, so that it is
computed again. A budget that is reached and a window that slides drop attempts, and the limit counts what follows them, too.
Then the same as the pocket model counts it, with its own cache, in the toy world.
"""

from __future__ import annotations

import asyncio
import gc
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle, pairwise, takewhile
from typing import Any

from bench_rollouts import REPLIES, graph, plans
from langchain_core.messages import AIMessage, BaseMessage
from rows import make_parser, memory_in_use, report
from stub_server import stub

from learngraph.graphs import icrl
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import UncheckpointedGraph
from learngraph.memory.errors import UserError
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.policies import LocalPolicy, PromptView, answer_policy
from learngraph.nodes.prompt import Prompt
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.models.models import open_model

ATTEMPT = re.compile(r"^(?=Attempt \d+)", re.MULTILINE)
"""Where an attempt begins in a prompt."""
KEEPS = {
    "all": icrl.ICRL(selection="all"),
    "budget 2000": icrl.ICRL(selection="budget", max_memory_tokens=2000),
    "last 3": icrl.ICRL(selection="last"),
}


class Said:
    """A model that gives its replies in turn, and keeps the prompts."""

    def __init__(self, replies: Sequence[str]) -> None:
        self.replies, self.prompts = cycle(replies), list[str]()

    def invoke(self, messages: Sequence[BaseMessage], config: Any = None) -> AIMessage:
        """The next reply."""
        self.prompts.append("\n".join(str(message.text) for message in messages))
        return AIMessage(next(self.replies))


def prompts(settings: icrl.ICRL, rounds: int, window: int = 10**6) -> list[str]:
    """The prompt of each round of a run at Game of 24."""
    world, model = open_environment("game24?order=difficulty"), Said(REPLIES)

    def policy(seen: PromptView) -> Any:
        return answer_policy(model, seen, world.read)  # type: ignore[arg-type, union-attr]

    inputs = MethodInputs(world, Journal(), make_policy=policy, window=window)
    UncheckpointedGraph(run.build(icrl.build(inputs, settings))).invoke(plans(world, 1, rounds)[0])
    return model.prompts


def exponent(totals: Sequence[float]) -> float:
    """k of total ~ rounds^k, from the last doubling."""
    return math.log2(totals[-1] / totals[len(totals) // 2 - 1])


def computed(prompts: Sequence[str], size: Callable[[str], int] = len) -> tuple[int, int]:
    """Sizes of what comes after the longest common beginning with the prompt before, and of what is new in it; over a run.

    New are the lines that the prompt before did not have, or not as often: what a layout that only ever appends would add. An
    instruction that moves on with the end of the prompt is not new in that sense, but has to be computed again.
    """
    rest = fresh = 0
    for before, now in zip(["", *prompts], prompts, strict=False):
        same = next((n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
        rest += size(now[same:])
        new = Counter(now.split("\n")) - Counter(before.split("\n"))
        fresh += size("".join(f"{line}\n" for line in new.elements()))
    return rest, fresh


def least(prompts: Sequence[str]) -> int:
    """Size of what is new in each prompt, and of the lines after it that the prompt before ended with, too.

    Where an attempt is shown no more, or in another form, all attempts after it are computed again: which attempts are shown is
    the method's choice, and they stand in the order of time.
    """
    size = 0
    for before, now in pairwise(["", *prompts]):
        past, present = ATTEMPT.split(before), ATTEMPT.split(now)
        same = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(past, present, strict=False)))
        if same < len(past) - 1:
            size += sum(map(len, present[same:]))
            continue
        old, lines = before.split("\n"), now.split("\n")
        new = Counter(lines) - Counter(old)
        end = Counter(
            line for line, _ in takewhile(lambda two: two[0] == two[1], zip(reversed(lines), reversed(old), strict=False))
        )
        size += sum(len(line) + 1 for line in (new | end).elements())
    return size


def at_length(count: int, rounds: int, latency: float, tries: int) -> None:
    world = open_environment("game24?order=difficulty")
    fractions, calls, grown = list[float](), list[float](), list[float]()
    with stub(latency, REPLIES) as url:
        runs = UncheckpointedGraph(graph(world, url))
        gc.collect()
        gc.freeze()

        async def play(name: str) -> tuple[float, float]:
            await runs.abatch(plans(world, count, 1, f"warm{name}"))
            wall, cpu, start = time.perf_counter(), time.process_time(), memory_in_use() / 1e6
            await runs.abatch(plans(world, count, rounds, name))
            grown.append((memory_in_use() / 1e6 - start) * 1e3 / count / rounds)
            return time.perf_counter() - wall, time.process_time() - cpu

        for n in range(tries):
            wall, cpu = asyncio.run(play(f"run{n}-"))
            fractions.append(rounds * latency / wall)
            calls.append(cpu / count / rounds * 1e3)
    what = f"{count} puzzles x {rounds} rounds against a server that takes {latency * 1e3:g} ms, one process"
    report(f"{what}: fraction of ideal", fractions, limit=1)
    report(f"{what}: CPU per call", calls, "ms")
    report(f"{what}: growth of memory per attempt", grown, "kB", note=f"{memory_in_use() / 1e6:.0f} MB at the end")


def growth(rounds: int) -> None:
    for name, settings in KEEPS.items():
        sizes = [len(prompt) / 3 for prompt in prompts(settings, rounds)]
        totals = [sum(sizes[: n + 1]) for n in range(len(sizes))]
        note = f"{totals[-1]:.0f} in all; the last prompt has {sizes[-1]:.0f}"
        what = f"prompt tokens of an ICRL run of {rounds} rounds grow with rounds to the power of, attempts: {name}"
        report(what, exponent(totals), note=note)


def layout(rounds: int) -> None:
    several = {**KEEPS, "budget, not reached": icrl.ICRL(), "budget, no instruction": icrl.ICRL(instruction="none")}
    for name, settings in several.items():
        texts = prompts(settings, rounds)
        rest, fresh = computed(texts)
        what = f"prompt tokens computed over new ones, an ICRL run of {rounds} rounds, attempts: {name}"
        note = f"{100 * rest / sum(map(len, texts)):.0f} % of the prompts"
        limit = least(texts) / fresh
        report(what, rest / fresh, number=16, at_most=1.05 * limit, limit=limit, note=note)


class Watched:
    """A model that scores, and keeps the prompts."""

    def __init__(self, model: Any) -> None:
        self.model, self.prompts = model, list[str]()

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> Any:
        """The model's."""
        self.prompts.append("\n".join(str(message.text) for message in messages))
        return self.model.score(messages, options)


def pocket(rounds: int) -> None:
    """The toy world, step by step: every step is a prompt."""
    world, kinds = (
        open_environment("toy"),
        {"all": icrl.ICRL(selection="all"), "budget 300": icrl.ICRL(max_memory_tokens=300), "last 3": KEEPS["last 3"]},
    )
    for name, settings in {**kinds, "all, no instruction": icrl.ICRL(selection="all", instruction="none")}.items():
        model: Any = open_model("pocket", threads=1)
        watched = Watched(model)

        def policy(show: PromptView, watched: Watched = watched) -> Any:
            return LocalPolicy(watched, show, Prompt.load("act/score"))

        def count(text: str, model: Any = model) -> int:
            return len(model.tokenizer(text)["input_ids"])

        inputs = MethodInputs(world, Journal(), make_policy=policy, count_tokens=count, window=model.window)
        what = f"the same as `pocket` counts it at every step of {rounds} rounds of the toy world, attempts: {name}"
        try:
            UncheckpointedGraph(run.build(icrl.build(inputs, settings))).invoke(plans(world, 1, rounds)[0])
        except UserError as error:
            report(what, [], note=str(error))
            continue
        (_, fresh), usage = computed(watched.prompts, count), model.usage
        report(
            what,
            usage.prefilled_tokens / fresh,
            note=f"{100 * usage.prefilled_tokens / usage.prompt_tokens:.0f} % of the prompts",
        )


def main() -> None:
    asked = make_parser(__doc__, rounds=3).parse_args()
    at_length(*(10, 5) if asked.quick else (100, 50), 0.05, asked.rounds)
    growth(20 if asked.quick else 100)
    layout(20 if asked.quick else 100)
    pocket(3 if asked.quick else 15)


if __name__ == "__main__":
    main()
