"""The CPU of whole episodes, from the first to the thousandth of a run.

    OMP_NUM_THREADS=1 python tests/performance/bench_episodes.py [--episodes 1000] [--methods jitrl adamem]

No model is measured: it answers at once, finds all actions equally likely, and writes another line after each attempt. The world is a
toy of 8 steps, all memory in this process. The model's window is so small that whatever fills it does so within the first hundred
episodes: what grows later is the cost of finding and keeping, not what a definition shows the model. Times are CPU times (process_time)
of one thread where OMP_NUM_THREADS=1. Nothing is asserted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from rows import make_parser, ratios, report

from learngraph.graphs.methods import find_method
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.tools.environments.keyword_keep import ANSWERS, MOVES, KeywordKeep

WORDS = [word for words in (*ANSWERS.values(), *MOVES.values()) for word in words]
BIN = 100
"""Episodes whose means are compared."""
METHODS = (
    "static",
    "jitrl",
    "jitrl:paper",
    "prompt-update",
    "adamem",
    "synapse",
    "best-of-n",
    "reflexion",
    "self-refine",
    "reasoning-bank",
    "awm",
    "awm?variant=rewrite",
    "memory",
    "icrl",
    "icrl:paper",
    "evotest",
    "tabular",
)
LEAST_GROWTH = 1.2
"""The target for the growth from the first hundred episodes to the last."""
ANY: Any = {"recursion_limit": 1_000_000}


class Canned(BaseChatModel):
    """A model in this process that answers at once."""

    window: int = 2048
    written: int = 0

    @property
    def _llm_type(self) -> str:
        return "canned"

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> list[float]:
        """The same for every action."""
        return [0.0] * len(options)

    def get_num_tokens(self, text: str) -> int:
        """Four characters each."""
        return -(-len(text) // 4)

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.written += 1
        usage: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}  # servers count, too
        reply = AIMessage(self.reply(messages), usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def reply(self, messages: Sequence[BaseMessage]) -> str:
        """Another line each time."""
        return f"door red fern {self.written}"


class CannedWriter(Canned):
    """The same, for methods that have a model write its actions or an object."""

    def reply(self, messages: Sequence[BaseMessage]) -> str:
        """The object that EvoTest asks for, or one of the actions that are listed."""
        if "JSON object" in messages[0].text:
            return json.dumps({"guide": super().reply(messages), "examples": self.written % 4})
        listed = [word for word in WORDS if word in messages[-1].text.rpartition("ctions")[2]]
        return f"Action: {listed[self.written % len(listed)]}"


class Clock(Rows):
    """The log of a run, which notes the CPU time at the end of each episode."""

    def __init__(self) -> None:
        super().__init__()
        self.times = [time.process_time()]

    def append(self, row: Mapping[str, Any]) -> None:
        """As `Rows.append`."""
        super().append(row)
        self.times.append(time.process_time())

    @property
    def costs(self) -> list[float]:
        """CPU seconds of each episode."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def long_run(name: str, episodes: int) -> list[float]:
    """CPU seconds of each episode of a run."""
    method, world, log = find_method(name), KeywordKeep(8), Clock()
    preset = name.partition(":")[2]
    settings: Callable[[], Any] = getattr(method.settings, preset) if preset else method.settings
    if method.needs_chat:
        inputs = MethodInputs.with_chat_model(world, Journal(), CannedWriter(), window=Canned().window)
    else:
        inputs = MethodInputs.with_scoring_model(world, Journal(), Canned())  # type: ignore[arg-type]
    graph = run.build(merge_steps(method.build(inputs, settings())), log)
    plan: Any = {"task": world.task(0), "run": "bench", "episode": 0, "episodes": episodes}
    log.times = [time.process_time()]
    graph.invoke(plan, ANY)
    return log.costs


def chunk_means(costs: Sequence[float], count: int) -> list[float]:
    """Means of `count` successive parts: what is done once in some episodes counts, too."""
    size = max(1, len(costs) // count)
    return [fmean(costs[start : start + size]) for start in range(0, len(costs), size)][:count]


def growth(methods: Sequence[str], episodes: int, rounds: int) -> None:
    """Report the growth of each method's cost from the first hundred episodes to the last."""
    size = min(BIN, episodes // 2)
    for name in methods:
        costs = long_run(name, episodes)
        early, late = (chunk_means(some, rounds) for some in (costs[:size], costs[-size:]))
        bins = [costs[start : start + size] for start in range(0, episodes - size + 1, max(size, episodes // 5))]
        means = (median(chunk_means(some, rounds)) for some in (*bins, costs[-size:]))
        note = "ms an episode: " + ", ".join(f"{1e3 * took:.1f}" for took in means)
        of = f"CPU of an episode of {name}: the last {size} of {episodes:,} over the first {size}"
        report(of, ratios(late, early), at_most=LEAST_GROWTH, note=note)


def main() -> None:
    """Measure what was asked for."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--episodes", type=int, default=1_000)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    growth(options.methods, min(options.episodes, 20) if options.quick else options.episodes, options.rounds)


if __name__ == "__main__":
    main()
