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
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from typing_extensions import TypedDict

from ...memory.buffer import Buffer
from ...memory.lessons import Lessons
from ...memory.records import Lesson, Trajectory, Usage
from ...memory.storage.journal import Journal
from ..act.episode import Environment, build_trajectory
from ..act.policies import json_object
from ..ask import Ask, State, Unreadable, text
from ..prompt import Prompt
from ..retrieve.attempt_sheet import AttemptOutcome, AttemptSheet
from ..retrieve.attempts import EpisodePrompt
from ..state import EpisodeChannels, NoteChannels, RewardChannels

__all__ = [
    "AddLessons",
    "Consult",
    "FindUnread",
    "LessonChannels",
    "LessonExtractor",
    "ReasoningBankPrompt",
    "RouteExtraction",
    "VerdictByReturn",
    "bank_source",
    "extract",
    "extractor_prompts",
    "lesson_line",
    "outcome_from_note",
    "route_unread",
    "study",
    "verdict",
]


class LessonChannels(TypedDict):
    """What an episode has to do with the library of lessons."""

    reading: str
    """Id of the bank's trajectory that is read next; empty: all were read."""
    lessons: list[str]
    """Ids of the lessons that this episode is given, the most fitting first."""
    used: list[str]
    """Ids of the trajectories that these were learned from."""
    learned: list[Lesson]
    """What was just drawn from an attempt, and is not kept yet."""


# Reading a bank before the first episode


@dataclass(frozen=True)
class FindUnread:
    """Find the first of a bank's trajectories that nothing was learned from yet."""

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = False

    library: Lessons
    bank: Mapping[str, AttemptOutcome] = field(repr=False)

    def __call__(self, state: EpisodeChannels) -> dict[str, str]:
        return {"reading": next((id for id in self.bank if not self.library.has_source(bank_source(id))), "")}


def bank_source(trajectory_id: str) -> str:
    """The source that lessons from a bank's trajectory name: it belongs to no run."""
    return f"bank/{trajectory_id}"


def route_unread(state: LessonChannels) -> Literal["unread", "all read"]:
    """Router: is there something left to read in the bank?"""
    return "unread" if state["reading"] else "all read"


# What a model is asked about attempts


def extractor_prompts(overrides: Path | None = None) -> dict[str, Prompt]:
    """What is asked about attempts, by how they ended."""
    names = ("success", "failure", "attempt", "contrast", "line")
    return {name: Prompt.load(f"reasoning_bank/{name}", overrides) for name in names}


@dataclass(frozen=True)
class LessonExtractor:
    """What drawing lessons from attempts needs to know."""

    sheet: AttemptSheet
    environment: Environment
    prompts: Mapping[str, Prompt] = field(repr=False)
    """See `questions`."""
    max_items: int = 3
    """Items from one attempt at most."""
    max_contrast_items: int = 5
    """Items from several attempts at most."""
    line_only: bool = False
    """For a model that writes nothing but a line: it is one item, without a title."""

    def messages(self, attempts: Sequence[AttemptOutcome]) -> list[BaseMessage]:
        """What the model is asked: by how the attempt ended, or about several in contrast."""
        last, told = attempts[-1], self.sheet(attempts, outcomes=not self.line_only)
        shown = {"instruction": last.trajectory.task.instruction, "attempts": told}
        if self.line_only:
            return self.prompts["line"].messages(**shown)
        if len(attempts) > 1:
            return self.prompts["contrast"].messages(**shown, most=self.max_contrast_items)
        return self.prompts[_ENDS[last.success]].messages(**shown, most=self.max_items)

    def read(self, reply: str, attempts: Sequence[AttemptOutcome], source: str, run: str = "") -> list[Lesson]:
        """The items of a reply as lessons from this source; one without text if nothing was learned.

        Raises:
            Unreadable: it does not hold what was asked for.
        """
        items = (
            _line(reply) if self.line_only else _items(reply, self.max_contrast_items if len(attempts) > 1 else self.max_items)
        )
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
class StudyAsk(Ask):
    """Counts its tokens apart: they are those of no attempt."""

    def _dialogue(self, state: State) -> Generator[list[BaseMessage], AIMessage, dict[str, Any]]:
        found = yield from super()._dialogue(state)
        usage: Usage = found["usage"]
        return {**found, "usage": Usage(studied=usage.input_tokens + usage.output_tokens)}


def study(model: Runnable[Any, Any], extractor: LessonExtractor, bank: Mapping[str, AttemptOutcome], again: Prompt) -> Ask:
    """Draw lessons from the bank's trajectory in `reading`."""

    def messages(state: State) -> list[BaseMessage]:
        return extractor.messages([bank[state["reading"]]])

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        id = state["reading"]
        return {"learned": extractor.read(text(reply), [bank[id]], bank_source(id))}

    return StudyAsk("reasoning_bank/study", model, messages, read, again)


# How an attempt ended


class EndedEpisode(EpisodeChannels, RewardChannels, NoteChannels):
    """An episode that is over, with its rewards, and a note that begins with how it ended."""


@dataclass(frozen=True)
class VerdictByReturn:
    """Say in `note` how the attempt ended: by its return. `unknown`, if a reward is missing."""

    role: ClassVar[str] = "compute"

    success_threshold: float | None
    """The return from which an attempt is a success."""

    def __call__(self, state: RewardChannels) -> NoteChannels:
        known = [reward for reward in state["rewards"] if reward is not None]
        if self.success_threshold is None or len(known) < len(state["rewards"]):
            return {"note": "unknown"}
        return {"note": "success" if math.fsum(known) >= self.success_threshold else "failure"}


def verdict(
    model: Runnable[Any, Any], environment: Environment, journal: Journal, sheet: AttemptSheet, prompts: Path | None = None
) -> Ask:
    """Have a model say how the attempt ended and why, in `note`. It is told no rewards."""
    prompt, blind = Prompt.load("reasoning_bank/verdict", prompts), replace(sheet, layout=replace(sheet.layout, rewards="none"))

    def messages(state: State) -> list[BaseMessage]:
        attempt = AttemptOutcome(build_trajectory(state, environment, journal), None)  # type: ignore[arg-type]
        return prompt.messages(instruction=state["task"].instruction, attempts=blind([attempt]))

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        found = json_object(text(reply))
        success, reason = found.get("success"), found.get("reason")
        if not isinstance(success, bool) or not isinstance(reason, str) or not reason.strip():
            raise Unreadable(f'asked for {{"success": true or false, "reason": "..."}}, got {text(reply)[-80:]!r}')
        return {"note": f"{'success' if success else 'failure'}: {' '.join(reason.split())}"}

    return Ask("reasoning_bank/verdict", model, messages, read, Prompt.load("ask/again", prompts))


def outcome_from_note(trajectory: Trajectory) -> AttemptOutcome:
    """An attempt with what `Verdict` or `verdict` noted of it."""
    word, _, why = trajectory.note.partition(": ")
    return AttemptOutcome(trajectory, {"success": True, "failure": False}.get(word), why)


# Lessons from the run's own attempts


@dataclass(frozen=True)
class RouteExtraction:
    """Router: are there enough attempts since something was learned last?"""

    interval: int = 1
    online: bool = True

    def __call__(self, state: EpisodeChannels) -> Literal["learn", "go on"]:
        return "learn" if self.online and (state["episode"] + 1) % self.interval == 0 else "go on"


def extract(
    model: Runnable[Any, Any], extractor: LessonExtractor, buffer: Buffer, journal: Journal, again: Prompt, rollouts: int = 1
) -> Ask:
    """Draw lessons from the attempt just made, or from it and those before it, `rollouts` of them, in contrast."""

    def attempts(state: State) -> list[AttemptOutcome]:
        this = build_trajectory(state, extractor.environment, journal, state["note"])  # type: ignore[arg-type]
        start = this.episode + 1 - rollouts
        before = buffer.attempts(this.run, this.task.id, this.episode)
        return [outcome_from_note(t) for t in (*(t for t in before if t.episode >= start), this)]

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        source = f"{state['run']}/{state['episode']}"
        return {"learned": extractor.read(text(reply), attempts(state), source, state["run"])}

    def messages(state: State) -> list[BaseMessage]:
        return extractor.messages(attempts(state))

    return Ask("reasoning_bank/extract", model, messages, read, again)


@dataclass(frozen=True)
class AddLessons:
    """Add what was learned to the library."""

    role: ClassVar[str] = "memory"

    library: Lessons

    @property
    def is_blocking(self) -> bool:
        """Whether it writes to a disk: see `graphs.flow.waits`."""
        return self.library.is_durable

    def __call__(self, state: LessonChannels) -> dict[str, Any]:
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

    def __call__(self, state: EpisodeChannels) -> dict[str, Any]:
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
class ReasoningBankPrompt(EpisodePrompt):
    """The episode so far under the lessons that were looked up at its start; without any, what ReAct shows."""

    library: Lessons
    max_lesson_tokens: int = 2**31
    """Tokens of all lessons together. The most fitting ones stand last, next to the situation; others may find no room."""
    _rendered_lessons: dict[tuple[str, ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last text by the lessons in it: each prompt of an episode asks for it again."""

    def text_before(self, state: Mapping[str, Any]) -> str:
        """The same text at every step of an episode. Lessons that say the same are shown once."""
        asked = tuple(state["lessons"])
        told = self._rendered_lessons.get(asked)
        if told is None:
            told = self._render_lessons([self.library.lesson(id) for id in asked])
            self._rendered_lessons.clear()  # another thread may do so at any time
            self._rendered_lessons[asked] = told
        return told

    def _render_lessons(self, lessons: Sequence[Lesson]) -> str:
        told = ""
        for line in dict.fromkeys(map(lesson_line, lessons)):
            if self.count_tokens(f"Lessons:\n{line}{told}") > self.max_lesson_tokens:
                break
            told = line + told
        return f"Lessons:\n{told}" if told else ""

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        shown = self if self.text_before(state) else replace(self, brief="")
        return super(ReasoningBankPrompt, shown).__call__(state)


def lesson_line(lesson: Lesson) -> str:
    """A lesson in one line of a prompt."""
    when = f" ({lesson.description.rstrip('.')})" if lesson.description else ""
    head = f"{lesson.title}{when}: " if lesson.title else ""
    return f"- {' '.join(f'{head}{lesson.text}'.split())}\n"
