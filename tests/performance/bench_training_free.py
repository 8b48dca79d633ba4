"""A learning step of Training-Free GRPO against slow models: target 21. Asserts nothing.

    OMP_NUM_THREADS=1 python tests/performance/bench_training_free.py [--quick]
    python tests/performance/bench_training_free.py --serve SECONDS      a chat server on its own; prints its base URL

The model is scripted: what it says is drawn from what it is asked, and names it, so that an answer that went to the wrong place
shows. How long it takes is drawn likewise, from a log-normal distribution. Makespans are told as multiples of a lower bound, the
larger of all work / slots and the longest chain of calls that need each other. `barrier` is what the same calls take where each
stage waits for all of the one before, as in the reference code. The clock jumps to what happens next, so that only the schedule counts.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import re
import selectors
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import Runnable, RunnableConfig
from rows import make_parser, report
from stub_server import Chat, completion, serve, started

from learngraph.graphs.training_free_grpo import TrainingFreeGRPO, build
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.learning_run import CriticModel, RunResources
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Observation, Task, Usage
from learngraph.memory.storage.cache import Cache
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.cached_model import CachedChatModel, ConcurrencyLimit, SpendingLimit
from learngraph.nodes.extract.critic import LessonSettings
from learngraph.tools.models.models import open_model

MEANS = {"rollout": 1.0, "summarise": 0.3, "contrast": 0.5, "propose": 0.3, "consolidate": 0.5}
"""Mean latency of a call by stage, in units of a rollout's."""
SIGMA = 0.6
"""Of the logarithm of a latency."""
REASONS = " and that is all there is to say about the number of this problem, or so it seems to this agent"
"""The end of an answer: a short attempt would be compared without a summary."""


# The world and what is said in it


class Marked:
    """Problems with a number that nothing about any other problem contains; a right answer names it. Half of them earn 1."""

    name, instant, horizon, solved = "marked", True, 1, 1.0

    def task(self, seed: int, split: str = "train") -> Task:
        """Say the number."""
        return Task(f"marked-{split}-{seed}", f"Say the number of this problem, #{seed}#, and a word.", seed)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """Over after one answer. One that belongs to another problem is nobody's."""
        if not actions:
            return Observation("Answer.")
        found = re.fullmatch(rf"#{task.seed}# =(\w+)={REASONS}", actions[0])
        if not found:
            raise ValueError(f"{task.id} was answered {actions[0]!r}")
        return Observation("over", (), float(int(found.group(1), 16) % 2), True)

    def abstract(self, observation: Observation) -> str:
        """The text."""
        return observation.text

    def read(self, reply: str) -> tuple[str, ...]:
        """The answer at the end of a reply."""
        return (reply.rpartition("Answer: ")[2],)

    def optimum(self, task: Task) -> float:
        """1."""
        return 1.0


def drawn(*inputs: Any) -> str:
    """A word that says from what it was drawn."""
    return blake2b(repr(inputs).encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Gist:
    """What counts in a prompt; how it is worded may change, and no reply or latency with it."""

    problems: tuple[str, ...]
    """Numbers of problems."""
    words: tuple[str, ...]
    """Of answers."""
    insights: tuple[str, ...]
    """Lessons and what is to become lessons."""

    @classmethod
    def of(cls, told: str) -> Gist:
        """Of a prompt."""
        patterns = r"#(\d+)#", r"=(\w+)=", r"When \d+ comes up, do \w+"
        return cls(*(tuple(dict.fromkeys(re.findall(pattern, told))) for pattern in patterns))


def say(stage: str, told: str, seed: int | None) -> str:
    """A reply to a prompt, made of it. `MIXED`, if the prompt holds what belongs to different problems."""
    gist = Gist.of(told)
    if len(gist.problems) > 1 or (stage in ("rollout", "summarise", "contrast") and not gist.problems):
        return f"MIXED {stage} {gist}"
    number = min(gist.problems, default="")
    if stage == "rollout":
        return f"The number is easy to see.\nAnswer: #{number}# ={drawn(gist, seed)}={REASONS}"
    if stage == "summarise":
        return f"At #{number}# the agent said ={gist.words[0]}=." if len(gist.words) == 1 else f"MIXED {stage} {gist}"
    if stage == "contrast":
        return json.dumps({"lessons": [f"When {number} comes up, do {drawn(gist)}"], "helpful": [], "harmful": []})
    new = [insight for insight in gist.insights if f"] {insight}" not in told]
    edits = [{"op": "add", "text": insight, "from": [n]} for n, insight in enumerate(new, 1)]
    if not edits or (stage == "propose" and len(edits) > 1):
        return f"MIXED {stage} {gist}"
    return json.dumps({"edits": edits})


def latency(stage: str, told: str, seed: int | None, salt: str) -> float:
    """Of a call, in units of a rollout's mean."""
    chance = random.Random(drawn(stage, Gist.of(told), seed if stage == "rollout" else None, salt))
    return MEANS[stage] * chance.lognormvariate(-SIGMA * SIGMA / 2, SIGMA)


@dataclass(frozen=True)
class Call:
    """One that was made."""

    stage: str
    problem: str
    latency: float


@dataclass(frozen=True)
class Slow(Runnable[Any, Any]):
    """A scripted model in this process."""

    stage: str
    unit: float = 1.0
    """Seconds of a rollout's call on average."""
    salt: str = ""
    """Other latencies, the same replies."""
    calls: list[Call] = field(default_factory=list)
    seed: None = None

    def _told(self, messages: Sequence[BaseMessage], seed: int | None) -> tuple[AIMessage, float]:
        told = "\n".join(message.text for message in messages)
        reply, takes = say(self.stage, told, seed), latency(self.stage, told, seed, self.salt)
        gist = Gist.of(told)
        number = "" if self.stage == "consolidate" else [*gist.problems, *(text.split()[1] for text in gist.insights[-1:])][0]
        self.calls.append(Call(self.stage, number, takes))
        read, written = len(told) // 4, len(reply) // 4
        used = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
        return AIMessage(reply, usage_metadata=used, response_metadata={"finish_reason": "stop"}), takes * self.unit

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        reply, seconds = self._told(input, kwargs.get("seed"))
        time.sleep(seconds)
        return reply

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        reply, seconds = self._told(input, kwargs.get("seed"))
        await asyncio.sleep(seconds)
        return reply


# The run


@dataclass(frozen=True)
class Played:
    """A learning run, with all that must not depend on what ended first."""

    result: dict[str, Any]
    libraries: dict[str, str]
    """By version: their YAML."""
    rulings: dict[str, tuple[Any, ...]]
    log: list[dict[str, Any]]
    """Without times."""
    spent: dict[str, Usage]


@dataclass(frozen=True)
class Plan:
    """What is played, and on what."""

    problems: int = 32
    group: int = 8
    slots: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(128))
    cache: Cache = field(default_factory=Cache)
    settings: dict[str, Any] = field(default_factory=dict)
    held_out: int = 0
    meter: SpendingLimit | None = None

    def graph(self, model: Callable[[str], Runnable[Any, Any]]) -> tuple[Any, Callable[[Any], Played]]:
        """The graph, and what makes a `Played` of its output. `model`: stage -> a model."""
        world, versions, log = Marked(), LibraryVersions(), Rows()

        def recorded(_: Any, stage: str) -> CachedChatModel:
            return CachedChatModel(model(stage), stage, self.cache, stage, self.meter, self.slots)

        inputs = MethodInputs.with_chat_model(world, Journal(), recorded(None, "rollout"))  # type: ignore[arg-type]
        chosen: dict[str, Any] = {"held_out": 0, "accept": "always", "epochs": 1}
        chosen["lessons"] = LessonSettings(duplicate_similarity=2.0, max_lessons=10_000, max_library_tokens=10**6)
        built = build(
            inputs,
            TrainingFreeGRPO(**{"problems": self.problems, "group_size": self.group, **chosen, **self.settings}),
            problems=[world.task(n) for n in range(self.problems)],
            held_out=[world.task(1000 + n, "dev") for n in range(self.held_out)],
            resources=RunResources(versions, self.cache, log),
            critic=CriticModel(cache_model=recorded),
        )

        def played(result: Any) -> Played:
            names = versions.names()
            kept = [{name: value for name, value in row.items() if name != "seconds"} for row in log.values()]
            return Played(
                result,
                {
                    name: replace(versions.at(name), written_by="", tested_with="").to_yaml() for name in names
                },  # models have names
                {name: versions.rulings(name) for name in names},
                kept,
                self.cache.usage_by_stage(),
            )

        return built, played

    def run(self, model: Callable[[str], Runnable[Any, Any]]) -> Played:
        """In threads, as `invoke` does."""
        graph, played = self.graph(model)
        return played(graph.invoke({"run": "run"}))

    async def play(self, model: Callable[[str], Runnable[Any, Any]]) -> Played:
        """In this event loop."""
        graph, played = self.graph(model)
        return played(await graph.ainvoke({"run": "run"}))


def scripted(unit: float = 1.0, salt: str = "") -> tuple[Callable[[str], Slow], list[Call]]:
    """Stage -> a scripted model; and the calls that they will have made."""
    calls: list[Call] = []
    return lambda stage: Slow(stage, unit, salt, calls), calls


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is there; where there is nothing to do, it is later at once."""
        found: list[Any] = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("everybody waits, and nothing will happen")
            self.now += max(timeout, 0.0)
        return found


class Virtual(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next thing that will happen; work in threads is done on the spot."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the start, as far as anybody waited for them."""
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Now, and here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def virtually(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """The result, and how long it took by the jumping clock."""
    with asyncio.Runner(loop_factory=Virtual) as runner:
        result = runner.run(work)
        return result, runner.get_loop().time()


# Bounds


def chain(calls: Sequence[Call]) -> float:
    """The longest chain of calls that need each other: the slowest of each stage of a group, then `consolidate`."""
    slowest: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for call in calls:
        slowest[call.problem][call.stage] = max(slowest[call.problem][call.stage], call.latency)
    last = sum(slowest.pop("", {}).values())
    return max(sum(stages.values()) for stages in slowest.values()) + last


def bound(calls: Sequence[Call], slots: int) -> float:
    """No schedule takes less."""
    return max(sum(call.latency for call in calls) / slots, chain(calls))


def barrier(calls: Sequence[Call], slots: int) -> float:
    """Every stage waits for all of the one before; within a stage, calls go in the order of problems."""
    end = 0.0
    for stage in MEANS:
        free = [end] * slots
        for call in sorted((call for call in calls if call.stage == stage), key=lambda call: int(call.problem or 0)):
            heapq.heappush(free, heapq.heappop(free) + call.latency)
        end = max(free)
    return end


def ratios(plan: Plan, salt: str = "") -> tuple[float, float, list[Call]]:
    """(the graph's makespan, that of barriers), as multiples of the lower bound, in virtual time; and the calls."""
    model, calls = scripted(salt=salt)
    _, took = virtually(plan.play(model))
    least = bound(calls, plan.slots.limit)
    return took / least, barrier(calls, plan.slots.limit) / least, calls


# A chat server in a process of its own


class ScriptedChat(Chat):
    """One connection. The model's name is the stage."""

    def reply(self, content: bytes) -> tuple[dict[str, object], float]:
        """What the stage says, and when."""
        asked = json.loads(content)
        stage, seed = asked["model"], asked.get("seed")
        told = "\n".join(message["content"] for message in asked["messages"])
        return completion(say(stage, told, seed), len(told) // 4, 4), latency(stage, told, seed, "") * self.latency


@contextmanager
def served(unit: float) -> Iterator[Callable[[str], Runnable[Any, Any]]]:
    """Stage -> a model behind such a server."""
    with started([__file__, "--serve", str(unit)]) as url:
        yield lambda stage: open_model(f"openai:{stage}", base_url=url)


def main() -> None:
    asked = make_parser(__doc__, rounds=10)
    asked.add_argument("--serve", type=float)
    options = asked.parse_args()
    if options.serve is not None:
        asyncio.run(serve(lambda: ScriptedChat(options.serve, iter(()))))
        return
    problems = 8 if options.quick else 32
    for slots in (128,) if options.quick else (128, 16, 64, 256):
        draws = [str(n or "") for n in range(options.rounds if slots == 128 else 2)]
        found = [ratios(Plan(problems=problems, slots=ConcurrencyLimit(slots)), salt) for salt in draws]
        what = f"a step of {problems} problems x 8 on {slots} slots, makespan over the lower bound, virtual time"
        number = {"number": 21, "at_most": 1.25} if slots == 128 else {}
        report(what, [ours for ours, _, _ in found], limit=1, note="rounds are draws of latencies", **number)
        report(
            "the same with a barrier after each stage, as in the reference code", [theirs for _, theirs, _ in found], limit=1
        )


if __name__ == "__main__":
    main()
