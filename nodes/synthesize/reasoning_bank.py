"""Lessons drawn from finished attempts and shown to later ones: ReasoningBank (arXiv:2509.25140).

    Task: reach the exit
    Lessons:
    - Trolls fear light (a troll stands at a gate): Hold up the lamp, since nothing else moves it.
    - door black mist. gate troll lamp       a lesson of a model that writes only a line
    door black                               the running attempt
    > mist
    = 1
    gate wolf                                the present observation

A lesson has a title, a description of the situation in which it applies, and a content. `memory.lessons.by_task.Lessons` keeps them.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import Input, Output
from typing_extensions import TypedDict

from ...memory.lessons.by_task import Lessons
from ...memory.records import Lesson, Trajectory, Usage
from ...memory.storage.journal import Journal
from ..act.episode import Environment, FinishedEpisode, build_trajectory
from ..ask import Ask, BadReply
from ..fence import escape_tags
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text, read_object, read_values, read_vote
from ..reply_schemas import BOOLEAN, LESSONS, TEXT, reply_schema
from ..retrieve.attempt_sheet import AttemptOutcome, AttemptSheet
from ..retrieve.attempts import EpisodePrompt, PromptPart
from ..state import EpisodeInput, EpisodeNumber, NoteChannels, StepRewards
from ..text import shorten

__all__ = [
    "AddLessons",
    "Consult",
    "FindUnread",
    "LessonChannels",
    "LessonExtractor",
    "LessonsPart",
    "RouteExtraction",
    "VerdictByReturn",
    "bank_source",
    "extract",
    "extractor_prompts",
    "lessons_text",
    "route_unread",
    "study",
    "verdict",
]


class PromptLessons(TypedDict):
    """The lessons in an episode's prompts."""

    lessons: list[str]
    """Ids of the lessons in this episode's prompts, the most fitting first."""
    used: list[str]
    """Ids of the trajectories that these lessons come from."""


class ReadingChannel(TypedDict):
    """The trajectory of the bank to read next."""

    reading: str
    """Its id; empty: all were read."""


class LearnedChannel(TypedDict):
    """Lessons just drawn from an attempt, and not yet in the library."""

    learned: list[Lesson]


class LessonChannels(PromptLessons, ReadingChannel, LearnedChannel):
    """An episode's lessons: those in its prompts, and those drawn from it."""


# Reading a bank before the first episode


@dataclass(frozen=True)
class FindUnread:
    """Find the first of a bank's trajectories that is not among the library's sources."""

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = False

    library: Lessons
    bank: Mapping[str, AttemptOutcome] = field(repr=False)

    def __call__(self, state: object) -> ReadingChannel:
        return {"reading": next((id for id in self.bank if not self.library.has_source(bank_source(id))), "")}


def bank_source(trajectory_id: str) -> str:
    """The source name of lessons from a bank's trajectory, which belongs to no run."""
    return f"bank/{trajectory_id}"


def route_unread(state: ReadingChannel) -> Literal["unread", "all read"]:
    """Router: is a trajectory of the bank unread?"""
    return "unread" if state["reading"] else "all read"


# Questions about attempts


def extractor_prompts(overrides: Path | None = None) -> dict[str, Prompt]:
    """The prompts for lessons, by the outcome of the attempts (`line`: for a model that writes only a line)."""
    names = ("success", "failure", "attempt", "line")
    return {name: Prompt.load(f"reasoning_bank/{name}", overrides) for name in names}


_ENDS = {True: "success", False: "failure", None: "attempt"}
Item = tuple[str, str, str]
"""Title, description, content."""


@dataclass(frozen=True)
class LessonExtractor:
    """The prompts for lessons from an attempt, and the reader of their replies."""

    sheet: AttemptSheet
    environment: Environment
    prompts: Mapping[str, Prompt] = field(repr=False)
    """See `extractor_prompts`."""
    max_items: int = 3
    """Greatest number of lessons from one attempt."""
    line_only: bool = False
    """True for a model that writes only a line: the line is one lesson, without a title."""
    agent: str = ""
    """The instructions and tools of the agent that made the attempt, where it is known."""

    @property
    def reply_schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of a reply; None for a line."""
        return None if self.line_only else reply_schema(items=LESSONS)

    def messages(self, attempt: AttemptOutcome) -> list[BaseMessage]:
        """The messages, by the outcome of the attempt."""
        sheet = self.sheet([attempt], outcomes=not self.line_only)
        shown = {"instruction": escape_tags(attempt.trajectory.task.instruction), "attempts": sheet}
        if self.line_only:
            return self.prompts["line"].messages(**shown)
        prompt = self.prompts[_ENDS[attempt.success]]
        about = {"agent": self.agent} if "agent" in prompt.placeholders else {}
        return prompt.messages(**shown, **about, most=self.max_items)

    def read(self, reply: str, attempt: AttemptOutcome, source: str, run: str = "") -> list[Lesson]:
        """The lessons in a reply, with this source; a single one without text if the reply has none.

        Raises:
            Unreadable: the reply has another form than asked for.
        """
        items = _line(reply) if self.line_only else _items(reply, self.max_items)
        return self.lessons(items, attempt, source, run)

    def lessons(self, items: Sequence[Item], attempt: AttemptOutcome, source: str, run: str = "") -> list[Lesson]:
        """The items as lessons with this source; without any, a single one without text: it says that the attempt was read."""
        made = attempt.trajectory
        return [
            Lesson(
                id=f"{source}/{n}",
                text=content,
                title=title,
                description=description,
                task=made.task.id,
                instruction=made.task.instruction,
                domain=self.environment.name,
                run=run,
                episode=made.episode if run else 0,
                success=attempt.success,
                sources=(made.id,),
            )
            for n, (title, description, content) in enumerate(items or [("", "", "")])
        ]


def _line(reply: str) -> list[Item]:
    written = " ".join(reply.split())
    return [] if written.strip(".").lower() == "nothing" else [("", "", written)]


def _items(reply: str, most: int) -> list[Item]:
    found = read_values(reply, "items")
    if not isinstance(found, list) or len(found) > most:
        came = f"{len(found)} of them" if isinstance(found, list) else "no such list"
        raise Unreadable(f'asked for {{"items": [...]}} with at most {most} items, got {came}')
    return [_item(one) for one in found]


def _item(found: Any) -> Item:
    names = ("title", "description", "content")
    if not isinstance(found, dict) or found.keys() != {*names}:
        raise Unreadable("asked for items with title, description and content, and nothing else", f", got {str(found)[:80]!r}")
    if not all(isinstance(value, str) and value.strip() for value in found.values()):
        raise Unreadable("asked for a text as title, description and content", f", got {str(found)[:80]!r}")
    title, description, content = (" ".join(found[name].split()) for name in names)
    return title, description, content


@dataclass(frozen=True)
class StudyAsk(Ask[Input, Output]):
    """An `Ask` whose tokens count as `Usage.studied`, since they belong to no attempt."""

    def _dialogue(self, state: Any) -> Generator[tuple[list[BaseMessage], dict[str, Any]], Any, dict[str, Any]]:
        found = yield from super()._dialogue(state)
        usage: Usage = found["usage"]
        return {**found, "usage": Usage(studied=usage.tokens, unreadable=usage.unreadable)}


def study(
    model: Runnable[Any, Any], extractor: LessonExtractor, bank: Mapping[str, AttemptOutcome], again: Prompt
) -> Ask[ReadingChannel, LearnedChannel]:
    """Draw lessons from the bank's trajectory in `reading`."""

    def messages(state: ReadingChannel) -> list[BaseMessage]:
        return extractor.messages(bank[state["reading"]])

    def read(reply: AIMessage, state: ReadingChannel) -> LearnedChannel:
        id = state["reading"]
        return {"learned": extractor.read(answer_text(reply), bank[id], bank_source(id))}

    def on_bad_reply(bad: BadReply, state: ReadingChannel) -> LearnedChannel:
        id = state["reading"]
        return {"learned": extractor.lessons((), bank[id], bank_source(id))}

    form = extractor.reply_schema
    return StudyAsk("reasoning_bank/study", model, messages, read, again, on_bad_reply=on_bad_reply, reply_schema=form)


# Outcomes of attempts


@dataclass(frozen=True)
class VerdictByReturn:
    """Write the outcome of the attempt into `note`: `success` or `failure` by its return, `unknown` if a reward is missing."""

    role: ClassVar[str] = "compute"

    success_threshold: float | None
    """The return from which an attempt is a success."""

    def __call__(self, state: StepRewards) -> NoteChannels:
        known = [reward for reward in state["rewards"] if reward is not None]
        if self.success_threshold is None or len(known) < len(state["rewards"]):
            return {"note": "unknown"}
        return {"note": "success" if math.fsum(known) >= self.success_threshold else "failure"}


def verdict(
    model: Runnable[Any, Any], environment: Environment, journal: Journal, sheet: AttemptSheet, prompts: Path | None = None
) -> Ask[FinishedEpisode, NoteChannels]:
    """Ask a model for the outcome of the attempt and the reason, in `note`. The prompt shows no rewards."""
    prompt, blind = Prompt.load("reasoning_bank/verdict", prompts), replace(sheet, layout=replace(sheet.layout, rewards="none"))

    def messages(state: FinishedEpisode) -> list[BaseMessage]:
        attempt = AttemptOutcome(build_trajectory(state, environment, journal), None)
        return prompt.messages(instruction=state["task"].instruction, attempts=blind([attempt]))

    def read(reply: AIMessage, state: FinishedEpisode) -> NoteChannels:
        answer = answer_text(reply)
        found = read_object(answer, "success")
        success, reason = found.get("success"), found.get("reason")
        if not isinstance(success, bool):
            success = read_vote(f"success: {success}", "success")
        if success is None or not isinstance(reason, str) or not reason.strip():
            raise Unreadable('asked for {"success": true or false, "reason": "..."}', f", got {shorten(answer[-80:])}")
        return {"note": f"{'success' if success else 'failure'}: {' '.join(reason.split())}"}

    again, form = Prompt.load("ask/again", prompts), reply_schema(success=BOOLEAN, reason=TEXT)
    unknown: NoteChannels = {"note": "unknown"}
    return Ask("reasoning_bank/verdict", model, messages, read, again, on_bad_reply=lambda *_: unknown, reply_schema=form)


def outcome_from_note(trajectory: Trajectory) -> AttemptOutcome:
    """An attempt with the outcome that `VerdictByReturn` or `verdict` wrote into its note."""
    word, _, why = trajectory.note.partition(": ")
    return AttemptOutcome(trajectory, {"success": True, "failure": False}.get(word), why)


# Lessons from the run's own attempts


@dataclass(frozen=True)
class RouteExtraction:
    """Router: are lessons drawn from this attempt?"""

    online: bool = True
    """False: no lessons are drawn from the run's own attempts."""

    def __call__(self, state: EpisodeNumber) -> Literal["learn", "go on"]:
        return "learn" if self.online else "go on"


class EpisodeWithVerdict(FinishedEpisode, NoteChannels):
    """A finished episode with its verdict."""


def extract(
    model: Runnable[Any, Any], extractor: LessonExtractor, journal: Journal, again: Prompt
) -> Ask[EpisodeWithVerdict, LearnedChannel]:
    """Draw lessons from the attempt just made."""

    def attempt(state: EpisodeWithVerdict) -> AttemptOutcome:
        return outcome_from_note(build_trajectory(state, extractor.environment, journal, state["note"]))

    def read(reply: AIMessage, state: EpisodeWithVerdict) -> LearnedChannel:
        source = f"{state['run']}/{state['episode']}"
        return {"learned": extractor.read(answer_text(reply), attempt(state), source, state["run"])}

    def messages(state: EpisodeWithVerdict) -> list[BaseMessage]:
        return extractor.messages(attempt(state))

    def on_bad_reply(bad: BadReply, state: EpisodeWithVerdict) -> LearnedChannel:
        source = f"{state['run']}/{state['episode']}"
        return {"learned": extractor.lessons((), attempt(state), source, state["run"])}

    form = extractor.reply_schema
    return Ask("reasoning_bank/extract", model, messages, read, again, on_bad_reply=on_bad_reply, reply_schema=form)


@dataclass(frozen=True)
class AddLessons:
    """Add the lessons just drawn to the library."""

    role: ClassVar[str] = "memory"

    library: Lessons

    @property
    def is_blocking(self) -> bool:
        """True if it writes to a disk; the node then runs in a thread where others would wait for it."""
        return self.library.is_durable

    def __call__(self, state: LearnedChannel) -> LearnedChannel:
        self.library.add(state["learned"])
        return {"learned": []}


# Lessons in prompts


@dataclass(frozen=True)
class Consult:
    """Look up, once per episode, the lessons learned on the tasks most like this one."""

    role: ClassVar[str] = "memory"

    library: Lessons
    environment: Environment
    k: int = 1
    by: Literal["tasks", "items"] = "tasks"
    """The unit of k: tasks, with all their lessons, or single lessons."""
    min_similarity: float = 0.0
    """The least similarity of a task, in [0, 1]."""
    limit: int | None = None
    """Greatest number of lessons; None: all of these tasks."""

    def __call__(self, state: EpisodeInput) -> PromptLessons:
        found = self.library.search(
            state["task"].instruction,
            self.k,
            by=self.by,
            min_similarity=self.min_similarity,
            domain=self.environment.name,
            before=(state["run"], state["episode"]),
            limit=self.limit,
        )
        used = dict.fromkeys(id for lesson in found for id in lesson.sources)
        return {"lessons": [lesson.id for lesson in found], "used": list(used)}


@dataclass(frozen=True, kw_only=True)
class LessonsPart(PromptPart[PromptLessons]):
    """The lessons that were looked up."""

    library: Lessons
    max_lesson_tokens: int = 2**31
    """Greatest number of tokens of all lessons together. The most fitting ones stand last, next to the situation."""
    _rendered_lessons: dict[tuple[str, ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last text by its lessons: each prompt of an episode needs it again."""

    def text(self, state: PromptLessons, prompt: EpisodePrompt) -> str:
        """The lessons, the same at every step of an episode. Equal lessons are shown once."""
        asked = tuple(state["lessons"])
        shown = self._rendered_lessons.get(asked)
        if shown is None:
            shown = lessons_text(self.library, asked, self.max_lesson_tokens, prompt.count_tokens)
            self._rendered_lessons.clear()  # another thread may do so at any time
            self._rendered_lessons[asked] = shown
        return shown


OLD = 20
"""Conversations from which on their number stands beside a lesson."""


def lessons_text(
    library: Lessons,
    ids: Sequence[str],
    max_tokens: int,
    count_tokens: Callable[[str], int],
    age: Callable[[str], int] | None = None,
) -> str:
    """Lessons as a list in a prompt, the most fitting last, as many as `max_tokens` have room for. Equal lessons are shown once. With the
    age of a source, in conversations: each with the number of those that it was drawn from, and how long ago the newest of them was."""
    lines, shown, sources = "", set[str](), defaultdict[str, set[str]](set)
    for lesson in map(library.lesson, ids if age else ()):
        sources[lesson_line(lesson)].update(lesson.sources)
    for id in ids:  # a task may have thousands: those after the first that does not fit are not looked at
        line = lesson_line(library.lesson(id))
        if line in shown:
            continue
        origin = [f"from {len(sources[line])} conversations"] * (len(sources[line]) > 1)
        if age and (least := min(map(age, sources[line]))) >= OLD:
            origin.append(f"{'the newest ' if origin else ''}{least // 10 * 10} conversations ago")
        told = f"{line.rstrip()} ({', '.join(origin)})\n" if origin else line
        if count_tokens(f"Lessons:\n{told}{lines}") > max_tokens:
            break
        shown.add(line)
        lines = told + lines
    return f"Lessons:\n{lines}" if lines else ""


def lesson_line(lesson: Lesson) -> str:
    """A lesson as one line of a prompt."""
    when = f" ({lesson.description.rstrip('.')})" if lesson.description else ""
    head = f"{lesson.title}{when}: " if lesson.title else ""
    return f"- {' '.join(f'{head}{lesson.text}'.split())}\n"
