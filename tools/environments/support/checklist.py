"""A checklist: an environment of tool calls in which the agent looks at one thing after the other, and decides what to change.

Of the calls that only read, one is listed at a time, in a fixed order; the calls that change something are listed all the time. After a
change the last reading call is made again. So the state is one answer, short enough to be met again in other tasks, whatever was
done before; how the calls are scored does not change. Every call counts, also the repeated ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Protocol

from ....memory.errors import UserError
from ....memory.records import Observation, Task

__all__ = ["Checklist", "ReadableTools", "informative_calls"]

_MOST_KNOWN = 512
"""Histories whose calls are kept; others are walked again."""


class ReadableTools(Protocol):
    """An environment that knows which of its calls only read."""

    name: str
    horizon: int

    def task(self, seed: int, split: str = "test") -> Task:
        """A task of a split."""
        ...

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these calls."""
        ...

    def only_reads(self, action: str) -> bool:
        """True if the call changes nothing."""
        ...

    def closing_call(self, task: Task, text: str) -> str:
        """The call that ends the episode."""
        ...

    def answer(self, observation: Observation) -> str:
        """The last call's answer."""
        ...


class _Walked(NamedTuple):
    """The calls made so far, the last one of them that only reads, and the reward of the last decision."""

    calls: tuple[str, ...]
    read: str
    reward: float


class Checklist:
    """An environment whose episodes go through a list of reading calls.

    Args:
        tools: the environment of tool calls.
        checks: the reading calls, in order. One whose arguments are not known yet is passed over until they are.
    """

    free_text = False

    def __init__(self, tools: ReadableTools, checks: Sequence[str]) -> None:
        if not checks:
            raise UserError("a checklist needs at least one reading call, got none")
        self.tools, self.checks = tools, tuple(checks)
        self.name, self.horizon = f"checklist/{tools.name}", tools.horizon
        self._known: dict[tuple[str, tuple[str, ...]], _Walked] = {}
        self._lock = threading.Lock()

    def task(self, seed: int, split: str = "test") -> Task:
        """A task of the environment."""
        return self.tools.task(seed, split)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The answer of the last reading call after these decisions. The first listed action is to go on."""
        walked = self._walk(task, tuple(actions))
        shown = self.tools.observe(task, walked.calls)
        if shown.over:
            return replace(shown, reward=walked.reward, actions=())
        end = self.tools.closing_call(task, "")
        done = {*walked.calls}
        ahead = next((check for check in self.checks if check not in done and check in shown.actions), end)
        changes = [call for call in shown.actions if call != end and not self.tools.only_reads(call)] if walked.read else []
        ticket = shown.text.removesuffix(self.tools.answer(shown)).strip()
        text = f"{ticket}\n{walked.read} says:\n{self.tools.answer(shown)}" if walked.read else shown.text.strip()
        return Observation(text, (ahead, *changes), walked.reward, False)

    def abstract(self, observation: Observation) -> str:
        """The observation's text: the kind of task, the last reading call, and its answer."""
        return observation.text

    def calls(self, task: Task, actions: Sequence[str]) -> list[tuple[str, ...]]:
        """The calls that each of these decisions stands for."""
        ends = [0, *(len(self._walk(task, tuple(actions[:n])).calls) for n in range(1, len(actions) + 1))]
        made = self._walk(task, tuple(actions)).calls
        return [made[start:end] for start, end in pairwise(ends)]

    def _walk(self, task: Task, actions: tuple[str, ...]) -> _Walked:
        """All calls that these decisions stand for."""
        walked, start = _Walked((), "", 0.0), 0
        with self._lock:
            for length in range(len(actions), 0, -1):
                if (known := self._known.get((task.id, actions[:length]))) is not None:
                    walked, start = known, length
                    break
        for length in range(start, len(actions)):
            walked = self._step(task, walked, actions[length])
            with self._lock:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[task.id, actions[: length + 1]] = walked
        return walked

    def _step(self, task: Task, walked: _Walked, action: str) -> _Walked:
        is_change = action != self.tools.closing_call(task, "") and not self.tools.only_reads(action)
        calls, read, reward = walked.calls, walked.read if is_change else action, 0.0
        for call in (action, walked.read) if is_change and walked.read else (action,):
            calls = (*calls, call)
            shown = self.tools.observe(task, calls)
            reward += shown.reward or 0.0
            if shown.over:
                break
        return _Walked(calls, read, reward)


def informative_calls(tools: ReadableTools, tasks: Iterable[Task]) -> tuple[str, ...]:
    """The reading calls that tell tasks apart: their answers differ at the start of these tasks.

    Calls by whose answers the arguments of such a call become known are among them. Nothing is changed and no reward is read.
    """
    answers: dict[str, set[str]] = {}
    made_known: dict[str, str] = {}  # a call -> the reading call after which it was listed
    for task in tasks:
        calls: list[str] = []
        shown = tools.observe(task, ())
        listed = {*shown.actions}
        while not shown.over:
            unread = [call for call in shown.actions if tools.only_reads(call) and call not in calls]
            if not unread or len(calls) >= tools.horizon - 1:
                break
            calls.append(unread[0])
            shown = tools.observe(task, calls)
            answers.setdefault(unread[0], set()).add(tools.answer(shown))
            made_known.update((call, unread[0]) for call in shown.actions if call not in listed and call not in made_known)
            listed |= {*shown.actions}
    found = {call for call, texts in answers.items() if len(texts) > 1}
    for call in sorted(found):
        while (call := made_known.get(call, "")) and call not in found:
            found.add(call)
    return tuple(call for call in answers if call in found)
