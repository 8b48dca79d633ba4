"""Lessons drawn from finished attempts, and shown to later ones: ReasoningBank (arXiv:2509.25140).

    Task: reach the exit
    Lessons:
    - Trolls fear light (a troll stands at a gate): Hold up the lamp, since nothing else moves it.
    - door black mist. gate troll lamp       what a model writes that only writes a line
    door black                               the running attempt
    > mist
    = 1
    gate wolf                                what the agent sees

An item has a title, a description that says when it applies, and a content. The library keeps them: `memory.lessons.Lessons`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from typing_extensions import TypedDict

from ...memory.buffer import Buffer
from ...memory.lessons import Lessons
from ...memory.records import Lesson, Trajectory, Usage
from ...memory.storage.journal import Journal
from ..act.episode import Environment, finished
from ..act.policies import json_object
from ..ask import Ask, State, Unreadable, text
from ..prompt import Prompt
from ..retrieve.attempts import ContextError, Layout, Running, fitting
from ..state import Episode, Judged, Noted

__all__ = [
    "Banked",
    "Consult",
    "Ended",
    "Extractor",
    "Keep",
    "Pool",
    "Rollouts",
    "Sheet",
    "Taught",
    "Verdict",
    "ended",
    "extract",
    "item",
    "pooled",
    "questions",
    "study",
    "unread",
    "verdict",
]


class Banked(TypedDict):
    """What an episode has to do with the library of lessons."""

    reading: str
    """Id of the bank's trajectory that is read next; empty: all were read."""
    lessons: list[str]
    """Ids of the lessons that this episode is given, the most fitting first."""
    used: list[str]
    """Ids of the trajectories that these were learned from."""
    learned: list[Lesson]
    """What was just drawn from an attempt, and is not kept yet."""


class Ended(NamedTuple):
    """An attempt and how it ended."""

    trajectory: Trajectory
    success: bool | None
    """None where nobody knows."""
    why: str = ""
    """What a model said in judging it."""


# Reading a bank before the first episode


@dataclass(frozen=True)
class Pool:
    """Find the first of a bank's trajectories that nothing was learned from yet."""

    role: ClassVar[str] = "memory"
    waits: ClassVar[bool] = False

    library: Lessons
    bank: Mapping[str, Ended] = field(repr=False)

    def __call__(self, state: Episode) -> dict[str, str]:
        return {"reading": next((id for id in self.bank if not self.library.learned(pooled(id))), "")}


def pooled(trajectory: str) -> str:
    """The source that lessons from a bank's trajectory name: it belongs to no run."""
    return f"bank/{trajectory}"


def unread(state: Banked) -> Literal["unread", "all read"]:
    """Router: is there something left to read in the bank?"""
    return "unread" if state["reading"] else "all read"


# What a model is asked about attempts


@dataclass(frozen=True)
class Sheet:
    """Writes attempts down for a model that is asked about them, within its window."""

    layout: Layout
    count: Callable[[str], int] = field(default=len, repr=False)
    """Tokens of a text."""
    window: int = 2**31
    """Tokens of the longest prompt, without what stands around what is shown."""

    def __call__(self, attempts: Sequence[Ended], *, outcomes: bool = True) -> str:
        """The attempts one after the other; of those that do not fit, the last steps.

        `outcomes`: several are marked with how they ended, and what a judge said stands below.
        """
        task = attempts[0].trajectory.task
        share = (self.window - self.count(f"Task: {task.instruction}\n")) // len(attempts)
        told = ""
        for number, (trajectory, success, why) in enumerate(attempts, 1):
            word = {True: " (success)", False: " (failure)", None: ""}[success] if outcomes and len(attempts) > 1 else ""
            head = f"Attempt {number}{word}:\n"
            end = self.layout.total(trajectory) + (f"Judged: {why}\n" if outcomes and why else "")
            steps = fitting(trajectory.transitions, self.layout, head + end, self.count, share)
            if steps is None:
                raise ContextError(
                    f"attempt {trajectory.id} does not fit into {share} tokens; use a model with a larger window"
                )
            told += head + steps + end
        return told


def questions(overrides: Path | None = None) -> dict[str, Prompt]:
    """What is asked about attempts, by how they ended."""
    names = ("success", "failure", "attempt", "contrast", "line")
    return {name: Prompt.load(f"reasoning_bank/{name}", overrides) for name in names}


@dataclass(frozen=True)
class Extractor:
    """What drawing lessons from attempts needs to know."""

    sheet: Sheet
    environment: Environment
    prompts: Mapping[str, Prompt] = field(repr=False)
    """See `questions`."""
    most: int = 3
    """Items from one attempt at most."""
    contrasted: int = 5
    """Items from several attempts at most."""
    plain: bool = False
    """For a model that writes nothing but a line: it is one item, without a title."""

    def messages(self, attempts: Sequence[Ended]) -> list[BaseMessage]:
        """What the model is asked: by how the attempt ended, or about several in contrast."""
        last, told = attempts[-1], self.sheet(attempts, outcomes=not self.plain)
        shown = {"instruction": last.trajectory.task.instruction, "attempts": told}
        if self.plain:
            return self.prompts["line"].messages(**shown)
        if len(attempts) > 1:
            return self.prompts["contrast"].messages(**shown, most=self.contrasted)
        return self.prompts[_ENDS[last.success]].messages(**shown, most=self.most)

    def read(self, reply: str, attempts: Sequence[Ended], source: str, run: str = "") -> list[Lesson]:
        """The items of a reply as lessons from this source; one without text if nothing was learned.

        Raises:
            Unreadable: it does not hold what was asked for.
        """
        items = _line(reply) if self.plain else _items(reply, self.contrasted if len(attempts) > 1 else self.most)
        last, outcomes = attempts[-1].trajectory, {attempt.success for attempt in attempts}
        alike = attempts[-1].success if len(outcomes) == 1 else None
        return [
            Lesson(
                id=f"{source}/{n}",
                text=content,
                title=title,
                description=description,
                task=last.task.id,
                instruction=last.task.instruction,
                domain=self.environment.name,
                run=run,
                episode=last.episode if run else 0,
                success=alike,
                sources=tuple(attempt.trajectory.id for attempt in attempts),
            )
            for n, (title, description, content) in enumerate(items or [("", "", "")])
        ]


_ENDS = {True: "success", False: "failure", None: "attempt"}
Item = tuple[str, str, str]
"""Title, description, content."""


def _line(reply: str) -> list[Item]:
    written = " ".join(reply.split())
    if not written:
        raise Unreadable("asked for a line, or 'nothing', got an empty reply")
    return [] if written.strip(".").lower() == "nothing" else [("", "", written)]


def _items(reply: str, most: int) -> list[Item]:
    found = json_object(reply).get("items")
    if not isinstance(found, list) or len(found) > most:
        came = f"{len(found)} of them" if isinstance(found, list) else "no such list"
        raise Unreadable(f'asked for {{"items": [...]}} with at most {most} items, got {came}')
    return [_item(one) for one in found]


def _item(found: Any) -> Item:
    names = ("title", "description", "content")
    if not isinstance(found, dict) or found.keys() != {*names}:
        raise Unreadable(f"asked for items with title, description and content, and nothing else, got {str(found)[:80]!r}")
    if not all(isinstance(value, str) and value.strip() for value in found.values()):
        raise Unreadable(f"asked for a text as title, description and content, got {str(found)[:80]!r}")
    title, description, content = (" ".join(found[name].split()) for name in names)
    return title, description, content


@dataclass(frozen=True)
class Study(Ask):
    """Counts its tokens apart: they are those of no attempt."""

    def _dialogue(self, state: State) -> Generator[list[BaseMessage], AIMessage, dict[str, Any]]:
        found = yield from super()._dialogue(state)
        usage: Usage = found["usage"]
        return {**found, "usage": Usage(studied=usage.input_tokens + usage.output_tokens)}


def study(model: Runnable[Any, Any], extractor: Extractor, bank: Mapping[str, Ended], again: Prompt) -> Ask:
    """Draw lessons from the bank's trajectory in `reading`."""

    def messages(state: State) -> list[BaseMessage]:
        return extractor.messages([bank[state["reading"]]])

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        id = state["reading"]
        return {"learned": extractor.read(text(reply), [bank[id]], pooled(id))}

    return Study("reasoning_bank/study", model, messages, read, again)


# How an attempt ended


class Over(Episode, Judged, Noted):
    """An episode that is over, with its rewards, and a note that begins with how it ended."""


@dataclass(frozen=True)
class Verdict:
    """Say in `note` how the attempt ended: by its return. `unknown`, if a reward is missing."""

    role: ClassVar[str] = "compute"

    least: float | None
    """The return from which an attempt is a success."""

    def __call__(self, state: Judged) -> Noted:
        known = [reward for reward in state["rewards"] if reward is not None]
        if self.least is None or len(known) < len(state["rewards"]):
            return {"note": "unknown"}
        return {"note": "success" if math.fsum(known) >= self.least else "failure"}


def verdict(
    model: Runnable[Any, Any], environment: Environment, journal: Journal, sheet: Sheet, prompts: Path | None = None
) -> Ask:
    """Have a model say how the attempt ended and why, in `note`. It is told no rewards."""
    prompt, blind = Prompt.load("reasoning_bank/verdict", prompts), replace(sheet, layout=replace(sheet.layout, rewards="none"))

    def messages(state: State) -> list[BaseMessage]:
        attempt = Ended(finished(state, environment, journal), None)  # type: ignore[arg-type]
        return prompt.messages(instruction=state["task"].instruction, attempts=blind([attempt]))

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        found = json_object(text(reply))
        success, reason = found.get("success"), found.get("reason")
        if not isinstance(success, bool) or not isinstance(reason, str) or not reason.strip():
            raise Unreadable(f'asked for {{"success": true or false, "reason": "..."}}, got {text(reply)[-80:]!r}')
        return {"note": f"{'success' if success else 'failure'}: {' '.join(reason.split())}"}

    return Ask("reasoning_bank/verdict", model, messages, read, Prompt.load("ask/again", prompts))


def ended(trajectory: Trajectory) -> Ended:
    """An attempt with what `Verdict` or `verdict` noted of it."""
    word, _, why = trajectory.note.partition(": ")
    return Ended(trajectory, {"success": True, "failure": False}.get(word), why)


# Lessons from the run's own attempts


@dataclass(frozen=True)
class Rollouts:
    """Router: are there enough attempts since something was learned last?"""

    number: int = 1
    online: bool = True

    def __call__(self, state: Episode) -> Literal["learn", "go on"]:
        return "learn" if self.online and (state["episode"] + 1) % self.number == 0 else "go on"


def extract(
    model: Runnable[Any, Any], extractor: Extractor, buffer: Buffer, journal: Journal, again: Prompt, rollouts: int = 1
) -> Ask:
    """Draw lessons from the attempt just made, or from it and those before it, `rollouts` of them, in contrast."""

    def attempts(state: State) -> list[Ended]:
        this = finished(state, extractor.environment, journal, state["note"])  # type: ignore[arg-type]
        start = this.episode + 1 - rollouts
        before = buffer.attempts(this.run, this.task.id, this.episode)
        return [ended(t) for t in (*(t for t in before if t.episode >= start), this)]

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        source = f"{state['run']}/{state['episode']}"
        return {"learned": extractor.read(text(reply), attempts(state), source, state["run"])}

    def messages(state: State) -> list[BaseMessage]:
        return extractor.messages(attempts(state))

    return Ask("reasoning_bank/extract", model, messages, read, again)


@dataclass(frozen=True)
class Keep:
    """Add what was learned to the library."""

    role: ClassVar[str] = "memory"

    library: Lessons

    @property
    def waits(self) -> bool:
        """Whether it writes to a disk: see `graphs.flow.waits`."""
        return self.library.durable

    def __call__(self, state: Banked) -> dict[str, Any]:
        self.library.add(state["learned"])
        return {"learned": []}


# Lessons in prompts


@dataclass(frozen=True)
class Consult:
    """Look up, once an episode, what was learned on the tasks most like this one."""

    role: ClassVar[str] = "memory"

    library: Lessons
    environment: Environment
    k: int = 1
    by: Literal["tasks", "items"] = "tasks"
    """What k counts: tasks, with all that was learned on them, or lessons."""

    def __call__(self, state: Episode) -> dict[str, Any]:
        found = self.library.search(
            state["task"].instruction,
            self.k,
            by=self.by,
            domain=self.environment.name,
            before=(state["run"], state["episode"]),
        )
        used = dict.fromkeys(id for lesson in found for id in lesson.sources)
        return {"lessons": [lesson.id for lesson in found], "used": list(used)}


@dataclass(frozen=True, kw_only=True)
class Taught(Running):
    """The episode so far under the lessons that were looked up at its start; without any, what ReAct shows."""

    library: Lessons
    room: int = 2**31
    """Tokens of all lessons together. The most fitting ones stand last, next to the situation; others may find no room."""
    _told: dict[tuple[str, ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last text by the lessons in it: each prompt of an episode asks for it again."""

    def before(self, state: Mapping[str, Any]) -> str:
        """The same text at every step of an episode. Lessons that say the same are shown once."""
        asked = tuple(state["lessons"])
        told = self._told.get(asked)
        if told is None:
            told = self._listed([self.library.lesson(id) for id in asked])
            self._told.clear()  # another thread may do so at any time
            self._told[asked] = told
        return told

    def _listed(self, lessons: Sequence[Lesson]) -> str:
        told = ""
        for line in dict.fromkeys(map(item, lessons)):
            if self.count(f"Lessons:\n{line}{told}") > self.room:
                break
            told = line + told
        return f"Lessons:\n{told}" if told else ""

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        shown = self if self.before(state) else replace(self, brief="")
        return super(Taught, shown).__call__(state)


def item(lesson: Lesson) -> str:
    """A lesson in one line of a prompt."""
    when = f" ({lesson.description.rstrip('.')})" if lesson.description else ""
    head = f"{lesson.title}{when}: " if lesson.title else ""
    return f"- {' '.join(f'{head}{lesson.text}'.split())}\n"
