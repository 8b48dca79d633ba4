"""The CPU of whole episodes: with a large memory, and from the first to the thousandth episode of a run.

    OMP_NUM_THREADS=1 python tests/performance/bench_episodes.py [--count 100000] [--episodes 1000] [--methods jitrl adamem]
    OMP_NUM_THREADS=1 python tests/performance/bench_episodes.py --profile adamem      where the time of an episode goes

No model is measured: it answers at once, finds all actions equally likely, and writes another line after each attempt.

- A large memory: episodes of 50 steps through rooms of 60 words. `repeated`: each room's text is the same at every visit, and the
  memory was filled by walks through the same rooms. `new`: a fifth of the words differ at each visit.
- A long run: a toy world of 8 steps, all memory in this process. The model's window is so small that whatever fills it does so
  within the first hundred episodes. What grows later is the cost of finding and keeping, not what a definition shows the model.

Times are CPU times (process_time) of one thread where OMP_NUM_THREADS=1. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
from bench_retrieval import LENGTH, text, zipf
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from rows import cpu, make_parser, ratios, report

from learngraph.graphs import adamem, jitrl
from learngraph.graphs.methods import find_method
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.attempts.trajectories import Trajectories
from learngraph.memory.records import Observation, Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.tools.environments.keyword_keep import ANSWERS, MOVES, KeywordKeep

STEPS, ROOMS = 50, 500
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


# A large memory


class Walk:
    """A world of rooms of 60 words; each action leads to another room, the same one for the same actions."""

    name = "bench"
    instant = True
    solved = 1.0
    horizon = STEPS

    def __init__(self, is_new: bool) -> None:
        self._is_new = is_new
        self._rooms = zipf(np.random.default_rng(0), (ROOMS, LENGTH))
        self.actions = tuple(f"go {number}" for number in range(8))

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The room after these actions."""
        at = len(actions)
        draw = np.random.default_rng([task.seed, at, sum(map(ord, "".join(actions[-1:])))])
        words = self._rooms[draw.integers(ROOMS)].copy()
        if self._is_new:
            changed = draw.random(LENGTH) < 0.2
            words[changed] = zipf(draw, int(changed.sum()))
        over = at >= self.horizon
        return Observation(text(words.tolist()), () if over else self.actions, float(at % 10 == 9), over)

    def abstract(self, observation: Observation) -> str:
        """The text."""
        return observation.text

    def task(self, seed: int) -> Task:
        """The walk from another start."""
        return Task(f"walk-{seed}", "find the way out", seed)

    def walked(self, number: int) -> Trajectory:
        """A random walk."""
        draw, taken, steps = np.random.default_rng(number), list[str](), list[Transition]()
        seen = self.observe(self.task(number), ())
        while not seen.over:
            action = self.actions[draw.integers(8)]
            taken.append(action)
            after = self.observe(self.task(number), taken)
            steps.append(Transition(seen.text, action, after.reward))
            seen = after
        return Trajectory(f"before/{number}", self.task(number), tuple(steps), "before", number, domain=self.name)


def build_episode(method: str, world: Walk, count: int) -> Any:
    """The graph of an episode with so many steps in its memory."""
    inputs = MethodInputs.with_scoring_model(world, Journal(), Canned(window=32_768))  # type: ignore[arg-type]
    memory: Any = Experiences(gamma=jitrl.JitRL().gamma) if method == "jitrl" else Trajectories(success=lambda one: True)
    for number in range(count // STEPS):
        memory.add(world.walked(number))
    if method == "jitrl":
        return merge_steps(jitrl.build(inputs, jitrl.JitRL(cross_task=True), experiences=memory))
    return merge_steps(adamem.build(inputs, adamem.AdaMEM(cross_task=True), memory=memory))


def play(graph: Any, world: Walk, number: int) -> None:
    """Play an episode."""
    graph.invoke({"task": world.task(10**6 + number), "run": f"run{number}", "episode": 0}, ANY)


def large_memory(method: str, counts: Sequence[int], rounds: int) -> None:
    """Report the CPU of a step at each size, and its growth."""
    for name, is_new in (("texts that repeat", False), ("texts always new", True)):
        costs: dict[int, list[float]] = {}
        for count in counts:
            world = Walk(is_new)
            graph = build_episode(method, world, count)
            play(graph, world, 0)  # the first question makes what later ones use
            costs[count] = [cpu(lambda n=n: play(graph, world, n)) / STEPS for n in range(1, rounds + 1)]  # noqa: B023
            of = f"a step of {method} with {count:,} remembered steps, {name}; CPU, all of the episode counted"
            report(of, [1e3 * took for took in costs[count]], "ms")
        if len(counts) > 1:
            growth = ratios(costs[counts[-1]], costs[counts[0]])
            report(f"the same, growth from {counts[0]:,} to {counts[-1]:,} remembered steps", growth)


def profile(method: str, count: int) -> None:
    """Print where the time of some episodes goes: the functions by their own time."""
    for name, is_new in (("texts that repeat", False), ("texts always new", True)):
        world = Walk(is_new)
        graph = build_episode(method, world, count)
        play(graph, world, 0)
        seen = cProfile.Profile()
        seen.enable()
        for number in range(1, 4):
            play(graph, world, number)
        seen.disable()
        print(f"\n{method}, {count:,} remembered steps, {name}: 3 episodes of {STEPS} steps")
        for order in ("tottime", "cumtime"):
            pstats.Stats(seen).strip_dirs().sort_stats(order).print_stats(30)


# A long run


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
    parser.add_argument("--count", type=int, default=100_000, help="steps in the large memory")
    parser.add_argument("--episodes", type=int, default=1_000, help="of the long run; 0: none")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="of the long run")
    parser.add_argument("--profile", choices=["adamem", "jitrl"], help="print where the time goes, and nothing else")
    options: argparse.Namespace = parser.parse_args()
    count, episodes = (2_000, min(options.episodes, 20)) if options.quick else (options.count, options.episodes)
    if options.profile:
        profile(options.profile, count)
        return
    for method in ("adamem", "jitrl") if count else ():
        large_memory(method, (min(1_000, count // 2), count), options.rounds)
    if episodes:
        growth(options.methods, episodes, options.rounds)


if __name__ == "__main__":
    main()
