"""A rehearsal of a run: a stand-in for its model, which costs nothing, plays a part of it, and the tokens of its prompts are counted.

The stand-in takes the next step of the world's solution half of the time, and else an action that is listed; it reasons in `THOUGHT`
tokens before it answers. What a model will do is not known: one that ends its tasks later, or thinks for longer, costs more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from ...memory.conversations.messages import read_call
from ...memory.records import Task, Usage
from ...memory.storage.journal import Journal
from ...memory.storage.rows import Rows
from ...nodes import ask
from ..wiring.inputs import DEFAULT_WINDOW
from .costs import row_usage
from .folder import Job
from .run_inputs import make_method_inputs, shared_environment

__all__ = []

CHARACTERS = 4
"""Characters of a token: what tokenizers of large models need of English and of JSON, on average."""
THOUGHT, WORDS = 120, 40
"""Tokens of the reasoning before a reply, and of each text in it, such as a lesson."""
EPISODES, RUNS, TASKS = 6, 2, 4
"""Episodes, runs of a method, and tasks of an agent that are rehearsed at most."""


def rehearse(jobs: Sequence[Job]) -> list[Usage]:
    """The usage of each episode of a method's runs, as means over the few whose solutions are of usual length."""
    options = jobs[0].options
    world = shared_environment(options.env, options.horizon)
    if hasattr(world, "solution"):
        lengths = {job.seed: len(world.solution(world.task(job.seed, options.split))) for job in jobs}
        usual = sum(lengths.values()) / len(lengths)
        jobs = sorted(jobs, key=lambda job: abs(lengths[job.seed] - usual))
    runs = [_rehearse_run(job, WatchedWorld(world, job.run)) for job in jobs[:RUNS]]
    return [mean_usage([run[n] for run in runs]) for n in range(options.episodes)]


def _rehearse_run(job: Job, world: WatchedWorld) -> list[Usage]:
    from langgraph.checkpoint.memory import InMemorySaver

    from ...memory.claas.weights import TrainingLog
    from .play import RunFiles, run_graph

    bank = getattr(job.arm.settings, "bank", "")
    if bank and not Path(bank).exists():  # it is made before the first episode
        job = replace(job, arm=replace(job.arm, settings=replace(job.arm.settings, bank="")))
    log, saver, most = Rows(), InMemorySaver(), job.options.episodes
    files = RunFiles(Journal(), log, Rows(), Rows(), None, saver, TrainingLog(Rows()))
    begin = {"task": world.task(job.seed, job.options.split), "run": job.run, "episode": 0, "tokens": 0}
    config: Any = {"configurable": {"thread_id": job.thread}, "recursion_limit": 1_000_000}
    with _no_warnings():
        run_graph(job, world, files, StandIn(world=world)).invoke(begin | {"episodes": min(most, EPISODES)}, config)
    return extrapolate([row_usage(row) for row in log.values()], most)


def rehearse_agent(job: Job, problems: Sequence[Task], tests: Sequence[Task]) -> tuple[Usage, Usage]:
    """The mean usage of a task that an agent learns from, with that of its critic, and of a task that it is tested on."""
    from ..agents.agent_method import open_learner, teach

    world, settings = WatchedWorld(shared_environment(job.options.env, job.options.horizon), job.run), job.arm.settings
    model, problems, tests = StandIn(world=world), problems[:TASKS], tests[:TASKS]
    learner = open_learner(settings, world, tests[0], model) if settings.learner else None
    inputs = make_method_inputs(job.options, world, model, Journal(), job.arm.method)
    graph = job.arm.method.build(inputs, settings, learner=learner)
    with _no_warnings():
        if learner is not None:
            list(teach(graph, learner, problems, "rehearsal", settings.shuffled))
        taught = len(model.spent)
        for task in tests:
            graph.invoke({"task": task, "run": f"rehearsal/{task.id}", "episode": 0})
    parts = (model.spent[:taught], len(problems)), (model.spent[taught:], len(tests))
    first, second = (share(sum(spent, Usage()), 1 / max(1, count)) for spent, count in parts)
    return first, second


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Log errors alone: what a stand-in does not manage is nothing to report."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def extrapolate(known: Sequence[Usage], count: int) -> list[Usage]:
    """The usage of `count` episodes, the first of which are known. Calls stay as they were; their prompts grow on as they did."""
    half = len(known) // 2
    late = mean_usage(known[half:])
    growth = max(0.0, (late.input_tokens - mean_usage(known[:half] or known).input_tokens) / max(1, half))
    most = max(late.input_tokens, late.calls * DEFAULT_WINDOW // 2)  # what methods show of a memory ends there
    later = [late.input_tokens + growth * (n - (half + len(known) - 1) / 2) for n in range(len(known), count)]
    return [*known[:count], *(Usage(late.calls, min(most, round(read)), late.output_tokens) for read in later)]


def share(usage: Usage, factor: float) -> Usage:
    """A part or a multiple of a usage."""
    return Usage(*(round(factor * one) for one in (usage.calls, usage.input_tokens, usage.output_tokens)))


def mean_usage(known: Sequence[Usage]) -> Usage:
    """The mean of some episodes' usage."""
    return share(sum(known, Usage()), 1 / len(known))


class WatchedWorld:
    """A world that knows where its player stands, and what could be done next."""

    def __init__(self, world: Any, name: str) -> None:
        self._world, self.random = world, Random(name)
        self._task, self._actions, self._listed = Task("", "", 0), tuple[str, ...](), tuple[str, ...]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def observe(self, task: Task, actions: Sequence[str]) -> Any:
        """The world's observation."""
        found = self._world.observe(task, actions)
        self._task, self._actions, self._listed = task, tuple(actions), found.actions
        return found

    def episode(self, task: Task) -> Any:
        """An episode that an agent plays with the world's tools."""
        from ...tools.environments.support.tool_episodes import ToolEpisode

        return ToolEpisode(self, task)

    def next_actions(self, count: int = 1) -> list[str]:
        """Actions that may be taken now, the likeliest first: half of the time the next one of the solution."""
        gold, done = self._world.solution(self._task) if hasattr(self._world, "solution") and self._task.id else (), 0
        for action in self._actions:
            done += done < len(gold) and action == gold[done]
        end = self._world.closing_call(self._task, "") if hasattr(self._world, "closing_call") else ""  # nobody ends at random
        listed = [one for one in self._listed if one != end]
        drawn = self.random.sample(listed, min(count, len(listed)))
        takes_any = getattr(self._world, "free_text", False) or not self._listed
        following = [one for one in gold[done : done + 1] if takes_any or one in self._listed]
        if following and (self.random.random() < 0.5 or not drawn):
            drawn.insert(0, following[0])
        return list(dict.fromkeys(drawn))[:count] or ["wait"]


class StandIn(BaseChatModel):
    """A chat model that answers each prompt of ours in the form that it asks for, and says what its request and reply would cost."""

    takes_reply_schema: ClassVar[bool] = True
    window: ClassVar[int | None] = None
    world: Any
    spent: list[Usage] = Field(default_factory=list)
    """The usage of each call so far."""

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def get_num_tokens(self, text: str) -> int:
        """An estimate by characters."""
        return len(text) // CHARACTERS

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """The model with tools that it may call."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools])

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        said = self._reply(messages, kwargs)
        sent = [ask.text(one) + json.dumps(one.tool_calls if isinstance(one, AIMessage) else []) for one in [*messages, said]]
        more = json.dumps([kwargs.get("tools"), kwargs.get("reply_schema")])
        read, written = self.get_num_tokens("".join([more, *sent[:-1]])) + 4 * len(messages), self.get_num_tokens(sent[-1])
        self.spent.append(Usage(1, read, written))
        said.usage_metadata = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        return ChatResult(generations=[ChatGeneration(message=said)])

    def _reply(self, messages: Sequence[BaseMessage], sent: Mapping[str, Any]) -> AIMessage:
        asked, action = ask.text(messages[-1]), self.world.next_actions()[0]
        if tools := [tool["function"]["name"] for tool in sent.get("tools") or ()]:
            name, arguments = read_call(action)
            call: Any = {"name": name, "args": arguments, "id": f"call-{len(self.spent)}"}
            return AIMessage("", tool_calls=[call]) if name in tools else AIMessage(self._words(WORDS))
        if len(messages) > 1 and isinstance(messages[-2], AIMessage) and asked.startswith("That reply cannot be used"):
            return AIMessage(ask.text(messages[-2]))  # it meant what it said
        if schema := sent.get("reply_schema"):
            return AIMessage(json.dumps(self._value(schema, "")))
        end, lines = asked[-400:], [self._words(THOUGHT)]
        lines += [f"{mark}: {self.world.random.choice(['yes', 'no'])}" for mark in ("Memory", "Refresh") if f"{mark}:" in end]
        lines += [f"{mark}:\n- if {self._words(WORDS)}" for mark in ("Strategy", "Plan", "Learned") if f"{mark}:" in end]
        mark = "Action: " * ("Action:" in end)
        return AIMessage("\n".join([lines[0], f"{mark}{action}", *lines[1:]] if mark or len(lines) == 1 else lines))

    def _words(self, tokens: int) -> str:
        """Words that nobody has written before: what is like an earlier text would be left out of a memory."""
        letters = self.world.random.choices("abcdefghijklmnopqrstuvwxyz     ", k=tokens * CHARACTERS)
        return " ".join("".join(letters).split())

    def _value(self, schema: Mapping[str, Any], name: str) -> Any:
        kind = schema["type"]
        if name == "options":
            return [{"action": one, "confidence": 50 // (n + 1)} for n, one in enumerate(self.world.next_actions(3))]
        if kind == "object":
            return {key: self._value(one, key) for key, one in schema["properties"].items()}
        if kind == "array":
            return [self._value(schema["items"], name) for _ in range(2)]
        text = "add" if name == "op" else self._words(THOUGHT if name == "thoughts" else WORDS)
        values = {"number": 1, "boolean": self.world.random.random() < 0.5, "string": text}
        return values.get(kind) if isinstance(kind, str) else None
