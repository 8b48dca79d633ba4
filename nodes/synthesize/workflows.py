"""Workflows: ways through a task, written down after attempts at it and shown in the prompts of later ones (AWM, arXiv:2409.07429).

    <workflows>
    Open the gate (when it is closed):
    1. In the hall, a postcard lies on the table: read postcard
    2. It says {the word}: say {the word}
    </workflows>

    Your steps in this attempt so far:
    …

What was written after an attempt is the attempt's note, so it is kept, forked and resumed with it. A model that writes only a line
(`pocket`) writes lessons and reads them as such.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from ...memory.attempts.buffer import Buffer
from ...memory.records import Shown, Trajectory
from ...memory.storage.journal import Journal
from ..ask import Ask, BadReply
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text
from ..retrieve.attempts import ContextError, EpisodePrompt, Layout, PromptPart, ShownNotes, attempts_in_prompt, note_line
from ..state import NoteChannels
from .reflect import AttemptWithNotes, JudgedAttempt, attempt_text, route_next_attempt

__all__ = [
    "RouteInduction",
    "WorkflowPrompt",
    "WorkflowWriter",
    "WorkflowsPart",
    "has_succeeded",
    "note_block",
    "write_workflows",
]

WorkflowPrompt = Literal["awm/induce", "awm/rewrite", "awm/line"]
"""Name of a prompt: new workflows from a success, the whole workflow anew, or either on one line."""
_MARK = re.compile(r"^[ \t*_#]*Workflows?[ \t*_]*:[ \t*_]*", flags=re.MULTILINE | re.IGNORECASE)


def note_block(trajectory: Trajectory, shown: Shown) -> str:
    """The note on an attempt with its line breaks; empty without a note."""
    return f"{trajectory.note.strip()}\n" if trajectory.note.strip() else ""


@dataclass(frozen=True)
class WorkflowWriter:
    """The inputs of a prompt for workflows: the attempt, the workflows so far, and how much may be written."""

    buffer: Buffer
    journal: Journal
    layout: Layout
    count_tokens: Callable[[str], int]
    window: int
    """Tokens that fit the model's context."""
    max_note_tokens: int
    """Tokens of what is written after one attempt; further lines are cut."""

    def texts(self, state: AttemptWithNotes, name: WorkflowPrompt) -> tuple[str, str]:
        """The workflows that this attempt's prompts showed, and the attempt; its last steps if not all fit.

        If not even those fit, the workflows of the oldest attempts are left out.
        """
        instruction, shown = state["task"].instruction, state["shown"]
        for first in range(len(shown) + 1):
            earlier = _workflows(self.buffer, {**state, "shown": shown[first:]}, lines=name == "awm/line")
            try:
                frame = instruction + earlier
                steps = attempt_text(state, self.journal, self.layout, frame, self.count_tokens, self.window)
            except ContextError:
                if first == len(shown):
                    raise
            else:
                break
        return earlier, steps

    def clip(self, note: str) -> str:
        """The first lines of a note that fit; if not even the first does, as many of its words."""
        for separator in ("\n", " "):
            kept = ""
            for piece in note.split(separator):
                longer = f"{kept}{separator}{piece}" if kept else piece
                if self.count_tokens(longer) > self.max_note_tokens:
                    break
                kept = longer
            if kept:
                return kept
        return ""


def write_workflows(
    name: WorkflowPrompt, model: Runnable[Any, Any], writer: WorkflowWriter, prompt: Prompt, again: Prompt
) -> Ask[AttemptWithNotes, NoteChannels]:
    """A node that asks for workflows after an attempt and puts them into `note`.

    If no reply can be used, the attempt leaves no new workflow; with `awm/rewrite` the old one stays.
    """

    def messages(state: AttemptWithNotes) -> list[BaseMessage]:
        earlier, steps = writer.texts(state, name)
        number, instruction = state["episode"] + 1, state["task"].instruction
        return prompt.messages(instruction=instruction, earlier=earlier, number=number, steps=steps)

    def read(reply: AIMessage, state: AttemptWithNotes) -> NoteChannels:
        written = answer_text(reply)
        if name == "awm/line":
            line = " ".join(written.split())
            return {"note": "" if _says_none(line) else writer.clip(line)}
        marked = _MARK.split(written)[1:]
        if not marked:
            raise Unreadable(f"asked for a line '{'Workflow:' if name == 'awm/rewrite' else 'Workflows:'}' and text after it")
        note = marked[-1].strip()
        if not note or (name == "awm/rewrite" and _says_none(note)):
            raise Unreadable("asked for text after that line, got none")
        return {"note": "" if _says_none(note) else writer.clip(note)}

    def keep_old(bad: BadReply, state: AttemptWithNotes) -> NoteChannels:
        return {"note": _workflows(writer.buffer, state, bare=True).strip() if name == "awm/rewrite" else ""}

    return Ask(name, model, messages, read, again, on_bad_reply=keep_old)


def _says_none(text: str) -> bool:
    return text.strip(" .*_\"'").lower() in ("none", "nothing", "")


def _workflows(buffer: Buffer, state: Mapping[str, Any], *, lines: bool = False, bare: bool = False) -> str:
    """The notes on the attempts that `Compose` chose, equal ones once; empty without notes."""
    attempts = attempts_in_prompt(buffer, state)
    if lines:
        notes = "".join(dict.fromkeys(note_line(*one) for one in attempts))
        return f"Lessons:\n{notes}" if notes else ""
    notes = "\n".join(filter(None, dict.fromkeys(note_block(*one) for one in attempts)))
    return notes if bare or not notes else f"<workflows>\n{notes}</workflows>\n\n"


def has_succeeded(rewards: Sequence[float | None], threshold: float) -> bool:
    """True if the rewards of an attempt are all known and add up to the threshold."""
    known = [reward for reward in rewards if reward is not None]
    return len(known) == len(rewards) > 0 and math.fsum(known) >= threshold


@dataclass(frozen=True)
class RouteInduction:
    """Router: are workflows to be written after this attempt?

    They are not after the last attempt of a run, since none would read them; but for those at other tasks, if tasks share their attempts.
    """

    role: ClassVar[str] = "compute"

    success_threshold: float | None
    """The return from which an attempt is a success; None: every attempt is learned from."""
    cross_task: bool = False
    """True if tasks share their attempts."""

    def __call__(self, state: JudgedAttempt) -> Literal["learn", "go on"]:
        if not self.cross_task and route_next_attempt(state) == "last attempt":
            return "go on"
        if self.success_threshold is None:
            return "learn"
        return "learn" if has_succeeded(state["rewards"], self.success_threshold) else "go on"


@dataclass(frozen=True, kw_only=True)
class WorkflowsPart(PromptPart[ShownNotes]):
    """The workflows that earlier attempts left."""

    buffer: Buffer
    lines: bool = False
    """True for a model that writes only lines."""

    def texts(self, state: ShownNotes, prompt: EpisodePrompt) -> Iterator[str]:
        """The workflows; then without those of the oldest attempt, of the two oldest, and so on."""
        shown = state["shown"]
        for first in range(len(shown) + 1):
            yield _workflows(self.buffer, {**state, "shown": shown[first:]}, lines=self.lines)
