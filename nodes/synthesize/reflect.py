"""Nodes that ask a model about a finished attempt: Reflexion's plan for the next one, Self-Refine's feedback."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NotRequired

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from ...memory.attempts.buffer import Buffer
from ...memory.records import Trajectory
from ...memory.storage.journal import Journal
from ..ask import Ask, State
from ..fence import escape_tags
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text
from ..retrieve.attempts import (
    ContextError,
    EpisodePrompt,
    Layout,
    PromptPart,
    ShownNotes,
    attempts_in_prompt,
    fit_steps,
    notes_text,
)
from ..state import EpisodeInput, EpisodeNumber, HeadChannel, NoteChannels, ObservationChannel, ShownChannel, StepRewards

__all__ = [
    "AttemptPrompt",
    "JudgedAttempt",
    "NotesPart",
    "attempt_text",
    "route_next_attempt",
    "route_shared_attempt",
    "write_about_attempt",
]


Count = Callable[[str], int]
AttemptPrompt = Literal[
    "reflexion/reflect",
    "reflexion/plan",
    "reflexion/conversation",
    "self_refine/feedback",
    "self_refine/criticism",
    "self_refine/rewarded_feedback",
    "self_refine/rewarded_criticism",
]
"""Name of a prompt about a finished attempt.

- `reflexion/plan`: Reflexion (arXiv:2303.11366), from the attempt with its rewards and the last plans to a new plan.
  `reflexion/reflect` asks for it on one line, of a model that continues a text, such as `pocket`; `reflexion/conversation` for a
  note on a conversation with a user that is of use in other ones.
- `self_refine/criticism`: Self-Refine (arXiv:2303.17651), the model's own criticism of the attempt, without a reward.
  `self_refine/feedback` asks for it on one line. The prompts with `rewarded` in their names do so of an attempt with its rewards.
"""
_MARKS = {
    "reflexion/plan": "Plan",
    "reflexion/conversation": "Plan",
    "self_refine/criticism": "Feedback",
    "self_refine/rewarded_criticism": "Feedback",
}
"""Prompt -> the word after which the note stands; the note is the whole reply to the others."""


class AttemptWithNotes(EpisodeInput, HeadChannel, ObservationChannel, ShownChannel):
    """An attempt that is over, and the earlier ones that its prompts showed."""

    rewards: NotRequired[list[float | None]]


def write_about_attempt(
    name: AttemptPrompt,
    model: Runnable[Any, Any],
    buffer: Buffer,
    journal: Journal,
    layout: Layout,
    count: Count = len,
    window: int = 2**31,
    prompts: Path | None = None,
    agent: str = "",
) -> Ask[AttemptWithNotes, NoteChannels]:
    """A node that asks the model for a few sentences about the attempt just made and puts them into `note`.

    If the attempt does not fit the window, only its last steps are shown.

    Args:
        name: the prompt, which decides what the model is asked for.
        model: the chat model.
        buffer: the earlier attempts with their notes.
        journal: the steps of the attempts.
        layout: how attempts are written in a prompt.
        count: counts the tokens of a text.
        window: tokens that fit the model's context, by `count`.
        prompts: folder with the user's own prompts.
        agent: the instructions and tools of the agent, for prompts that have a place for it.
    """
    prompt = Prompt.load(name, prompts)
    about = {"agent": agent} if "agent" in prompt.placeholders else {}

    def messages(state: AttemptWithNotes) -> list[BaseMessage]:
        earlier, instruction = _earlier_text(name, buffer, layout, state), state["task"].instruction
        steps = attempt_text(state, journal, layout, instruction + earlier, count, window)
        return prompt.messages(
            instruction=escape_tags(instruction), earlier=earlier, number=state["episode"] + 1, steps=steps, **about
        )

    def read(reply: AIMessage, state: AttemptWithNotes) -> NoteChannels:
        written = answer_text(reply)
        if mark := _MARKS.get(name):
            written = re.split(rf"^[ \t*_#]*{mark}[ \t*_]*:[ \t*_]*", written, flags=re.MULTILINE | re.IGNORECASE)[-1]
        note = written.strip() if mark else " ".join(written.split())
        if not note:
            raise Unreadable(f"asked for a few sentences after '{mark}:', got none")
        return {"note": note}

    return Ask(name, model, messages, read, Prompt.load("ask/again", prompts), on_bad_reply=lambda bad, state: {"note": ""})


class PlannedAttempt(EpisodeNumber):
    """The number of an attempt, and how many attempts the run makes."""

    episodes: NotRequired[int]


class JudgedAttempt(StepRewards, PlannedAttempt):
    """The rewards of an attempt, and whether the run makes another one."""


@dataclass(frozen=True, kw_only=True)
class NotesPart(PromptPart[ShownNotes]):
    """The notes on earlier attempts, without the attempts: Reflexion."""

    buffer: Buffer

    def text(self, state: ShownNotes, prompt: EpisodePrompt) -> str:
        """The notes on the attempts that `Compose` chose."""
        return notes_text(self.buffer, state)


def route_next_attempt(state: PlannedAttempt) -> Literal["another attempt", "last attempt"]:
    """Router: will another attempt of the run read a note on this one?"""
    return "last attempt" if 0 < state.get("episodes", 0) <= state["episode"] + 1 else "another attempt"


def route_shared_attempt(state: PlannedAttempt) -> Literal["another attempt", "last attempt"]:
    """Router where tasks share their attempts: those at other tasks come after a run's last one, and will read a note on it."""
    return "another attempt"


def _earlier_text(name: AttemptPrompt, buffer: Buffer, layout: Layout, state: AttemptWithNotes) -> str:
    """The text that stands before the attempt: the last plans, or the earlier attempts."""
    if name.startswith("reflexion/"):
        return notes_text(buffer, state)
    return "".join(layout.attempt(trajectory, shown) for trajectory, shown in attempts_in_prompt(buffer, state))


def attempt_text(state: State, journal: Journal, layout: Layout, frame: str, count: Count, window: int) -> str:
    """The end of the attempt just made, after those of its last steps that fit beside `frame`."""
    steps = journal.history(state["head"])
    rewards = state.get("rewards") or [None] * len(steps)
    made = tuple(replace(step, reward=reward) for step, reward in zip(steps, rewards, strict=True))
    attempt = Trajectory(state["head"], state["task"], made, last_observation=state["observation"].text)
    end = layout.attempt_end(attempt)
    shown = fit_steps(made, layout, frame + end, count, window)
    if shown is None:
        raise ContextError(f"{count(frame)} tokens of task and earlier attempts leave no room in a window of {window}")
    return shown + end
