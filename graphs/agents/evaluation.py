"""Does an agent learn? One call that plays tasks in sequence with and without a memory, and compares the arms task by task.

    report = evaluate_learning(make_agent, tasks, reward, arms={
        "none": None,
        "jitrl": lambda store: JitRLMiddleware(store, decide=["resolve"]),
    })
    print(report.table())

In each seed the tasks come in an order of their own, the same for all arms, and each arm begins with an empty store. After each task
its reward is given as feedback. What counts is how the last tasks go: an arm that learns is better there than at the beginning. The
arm `shuffled` is a control: it learns from the rewards of other tasks, drawn at random, and has to fail.

Differences are to the first arm, over the same tasks of the same seeds; intervals are over seeds. **Harm cases** are tasks of the last
part that the first arm passed and the other failed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from ...memory.display import markdown_table, with_interval
from ...memory.errors import UserError
from ...memory.records import Usage
from ...nodes.evaluate.statistics import Interval, interval, mean
from .given_advice import PromptMeter
from .learner import LearningMiddleware

__all__ = ["AgentArm", "AgentTask", "ArmReport", "LearningReport", "TaskResult", "evaluate_learning"]


@dataclass(frozen=True)
class AgentTask:
    """A task for an agent."""

    id: str
    messages: Any
    """The input of the agent: the user's words, or messages."""
    reference: Any = None
    """Whatever the reward function needs to know of it."""


ArmMaker = Callable[[BaseStore], LearningMiddleware[Any]]
"""A store -> the middleware of an arm."""


@dataclass(frozen=True)
class AgentArm:
    """An arm with another memory: anybody's agent, with whatever it remembers."""

    make_agent: Callable[[int], Any]
    """Seed -> the agent."""
    learn: Callable[[Any, AgentTask, Sequence[Any], float | None], None] | None = None
    """(agent, task, messages, reward): told after each task; None: it learns from the conversation alone."""


@dataclass(frozen=True)
class TaskResult:
    """One task of one arm in one seed."""

    arm: str
    seed: int
    position: int
    """Place of the task in the seed's order, from 0."""
    task: str
    reward: float | None
    """None: it could not be played, or the reward function could not tell."""
    usage: Usage
    seconds: float
    failure: str = ""
    """Why it could not be played."""
    sent: int = 0
    """Characters of the prompts of the models that the agent asked."""
    cached: int = 0
    """Of these, those of beginnings that were sent before in the same run: what a prompt cache may know."""


@dataclass(frozen=True)
class ArmReport:
    """One arm over all seeds."""

    arm: str
    first: float
    """Mean reward of the first part of the tasks, over seeds."""
    last: float
    """Mean reward of the last part."""
    last_ci: Interval | None
    """95 % interval over seeds (Student's t); None with one seed."""
    lead: float
    """Mean reward of the last part less that of the first arm, paired by task."""
    lead_ci: Interval | None
    harmed: tuple[str, ...]
    """Tasks of the last part that the first arm passed and this one failed, as `seed/task`."""
    tokens: float
    """Tokens per task, read and written."""
    cached: float
    """Share of the prompts' characters that a prompt cache may know."""
    seconds: float
    """Seconds per task."""
    failures: int
    """Tasks that could not be played; they count as 0."""


@dataclass(frozen=True)
class LearningReport:
    """The results of all arms."""

    results: tuple[TaskResult, ...] = field(repr=False)
    part: float
    """Share of the tasks at either end that `first` and `last` are about."""
    pass_reward: float
    """Least reward of a task that counts as passed."""
    shuffled: Sequence[str] = ()
    """Names of the arms that got the rewards of other tasks."""

    @property
    def arms(self) -> list[ArmReport]:
        """A report of each arm, in the order given."""
        names = list(dict.fromkeys(one.arm for one in self.results))
        base = self._last_rewards(names[0])
        found = []
        for name in names:
            mine = [one for one in self.results if one.arm == name]
            last = self._last_rewards(name)
            per_seed = {seed: mean(list(rewards.values())) for seed, rewards in last.items()}
            leads = [mean([rewards[task] - base[seed][task] for task in rewards]) for seed, rewards in last.items()]
            firsts = [one.reward or 0.0 for one in mine if one.position < self._part_size(one.seed, name)]
            harmed = [
                f"{seed}/{task}"
                for seed, rewards in last.items()
                for task, reward in rewards.items()
                if base[seed][task] >= self.pass_reward > reward
            ]
            found.append(
                ArmReport(
                    arm=name,
                    first=mean(firsts),
                    last=mean(list(per_seed.values())),
                    last_ci=interval(list(per_seed.values())),
                    lead=mean(leads),
                    lead_ci=interval(leads),
                    harmed=tuple(harmed),
                    tokens=mean([float(one.usage.tokens) for one in mine]),
                    cached=sum(one.cached for one in mine) / max(1, sum(one.sent for one in mine)),
                    seconds=mean([one.seconds for one in mine]),
                    failures=sum(bool(one.failure) for one in mine),
                )
            )
        return found

    def table(self) -> str:
        """A Markdown table, one row per arm; brackets hold 95 % intervals over seeds."""
        rows = self.arms
        first = rows[0].arm
        costs = ["tokens/task", "cached", "s/task", "failures"]
        lines = [["arm", "first tasks", "last tasks", f"ahead of {first}", "harmed", *costs]]
        for row in rows:
            lead = "–" if row is rows[0] else with_interval(row.lead, row.lead_ci)
            name = f"{row.arm} (shuffled rewards)" if row.arm in self.shuffled else row.arm
            cells = [name, f"{row.first:.2f}", with_interval(row.last, row.last_ci), lead, str(len(row.harmed))]
            lines.append([*cells, f"{row.tokens:,.0f}", f"{row.cached:.0%}", f"{row.seconds:.2g}", str(row.failures)])
        return markdown_table(lines)

    def _repr_markdown_(self) -> str:
        return self.table()

    def _part_size(self, seed: int, arm: str) -> int:
        return max(1, round(self.part * sum(one.seed == seed and one.arm == arm for one in self.results)))

    def _last_rewards(self, arm: str) -> dict[int, dict[str, float]]:
        """Seed -> task -> its reward in the last part."""
        found: dict[int, dict[str, float]] = {}
        for seed in dict.fromkeys(one.seed for one in self.results):
            mine = [one for one in self.results if one.arm == arm and one.seed == seed]
            start = len(mine) - self._part_size(seed, arm)
            found[seed] = {f"{one.position}:{one.task}": one.reward or 0.0 for one in mine if one.position >= start}
        return found


def evaluate_learning(
    make_agent: Callable[[Sequence[Any], int], Any],
    tasks: Sequence[AgentTask],
    reward: Callable[[AgentTask, Sequence[Any]], float | None],
    *,
    arms: Mapping[str, ArmMaker | AgentArm | None],
    seeds: int = 5,
    part: float = 0.25,
    pass_reward: float = 1.0,
    shuffled: Sequence[str] = (),
    workers: int = 1,
) -> LearningReport:
    """Play the tasks with each arm, and compare the arms.

    Args:
        make_agent: (middleware, seed) -> an agent that takes `{"messages": ...}`, such as one of `create_agent`. It has to keep no
            state of its own between calls: the thread of each task is new.
        tasks: the tasks; each arm plays them all in each seed.
        reward: (task, the messages of the agent) -> its reward; None if it cannot tell, which teaches nothing and counts as 0.
        arms: name -> a function from a store to a middleware; None: the agent alone. The others are compared with the first. Any
            other memory is an arm as well: an `AgentArm`, such as an agent with LangMem's tools.
        seeds: number of orders of the tasks, and of agents.
        part: share of the tasks at either end that the table shows.
        pass_reward: least reward of a task that counts as passed.
        shuffled: names of arms that get the rewards of other tasks, drawn at random: controls.
        workers: threads; the runs of different arms and seeds share nothing.

    Raises:
        UserError: there are no tasks, an id is there twice, or an arm in `shuffled` is unknown.
    """
    if not tasks or len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"evaluate_learning: give one task or more, each with an id of its own; got {len(tasks)} tasks")
    if unknown := set(shuffled) - arms.keys():
        raise UserError(f"evaluate_learning: shuffled names {', '.join(sorted(unknown))}; the arms are {', '.join(arms)}")

    with ThreadPoolExecutor(workers) as pool:
        work = [
            pool.submit(_play_arm, name, seed, arm, make_agent, tasks, reward, name in shuffled)
            for name, arm in arms.items()
            for seed in range(seeds)
        ]
    return LearningReport(tuple(one for some in work for one in some.result()), part, pass_reward, shuffled)


def _play_arm(
    name: str,
    seed: int,
    arm: Any,
    make_agent: Callable[[Sequence[Any], int], Any],
    tasks: Sequence[AgentTask],
    reward: Callable[[AgentTask, Sequence[Any]], float | None],
    is_shuffled: bool,
) -> list[TaskResult]:
    """Play all tasks in the seed's order."""
    other = arm if isinstance(arm, AgentArm) else None
    learner = None if arm is None or other else arm(InMemoryStore())
    agent = other.make_agent(seed) if other else make_agent([learner] if learner is not None else [], seed)
    scope = dict.fromkeys(learner.scope.names, "evaluation") if learner is not None else {}
    random, seen, results = Random(f"{name}/{seed}/rewards"), list[float](), []
    prompts = PromptMeter()
    for position, task in enumerate(Random(seed).sample(list(tasks), len(tasks))):
        thread = f"{seed}-{position}-{task.id}"
        meter, start, failure, found = UsageMetadataCallbackHandler(), time.perf_counter(), "", None
        before = prompts.sent, prompts.cached
        messages: Sequence[Any] = ()
        try:
            config = {"configurable": {"thread_id": thread, **scope}, "callbacks": [meter, prompts]}
            out = agent.invoke({"messages": task.messages}, config)
            messages = out["messages"]
            found = reward(task, messages)
        except Exception as error:  # one task that fails must not end the comparison
            failure = f"{type(error).__name__}: {error}"
        if found is not None:
            seen.append(found)
            if learner is not None and learner.mode != "off":
                learner.feedback(thread, reward=random.choice(seen) if is_shuffled else found, source="evaluation", **scope)
                learner.learn(**scope)
        if other is not None and other.learn is not None and not failure:
            other.learn(agent, task, messages, found)
        usage, sizes = metered_usage(meter), (prompts.sent - before[0], prompts.cached - before[1])
        results.append(TaskResult(name, seed, position, task.id, found, usage, time.perf_counter() - start, failure, *sizes))
    return results


def metered_usage(meter: UsageMetadataCallbackHandler) -> Usage:
    """The usage of all models that a callback has listened to."""
    counts = list(meter.usage_metadata.values())
    return Usage(len(counts), sum(one["input_tokens"] for one in counts), sum(one["output_tokens"] for one in counts))
