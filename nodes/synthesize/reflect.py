"""Nodes that ask a model about a finished attempt: Reflexion's plan for the next one, Self-Refine's feedback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from ...memory.buffer import Buffer
from ...memory.records import Trajectory
from ...memory.storage.journal import Journal
from ..ask import Ask, State, Unreadable, text
from ..prompt import Prompt
from ..retrieve.attempts import ContextError, Layout, attempts_in_prompt, fit_steps, notes_text

__all__ = ["AttemptPrompt", "write_about_attempt"]


Count = Callable[[str], int]
AttemptPrompt = Literal["reflexion/reflect", "self_refine/feedback"]
"""Name of a prompt about a finished attempt.

- `reflexion/reflect`: Reflexion (arXiv:2303.11366), from the attempt with its rewards and the last plans to a new plan.
- `self_refine/feedback`: Self-Refine (arXiv:2303.17651), the model's own criticism of the attempt, without a reward.
"""


def write_about_attempt(
    name: AttemptPrompt,
    model: Runnable[Any, Any],
    buffer: Buffer,
    journal: Journal,
    layout: Layout,
    count: Count = len,
    window: int = 2**31,
    prompts: Path | None = None,
) -> Ask:
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
    """
    prompt = Prompt.load(name, prompts)

    def messages(state: State) -> list[BaseMessage]:
        earlier, instruction = _earlier_text(name, buffer, layout, state), state["task"].instruction
        steps = _attempt_text(state, journal, layout, instruction + earlier, count, window)
        return prompt.messages(instruction=instruction, earlier=earlier, number=state["episode"] + 1, steps=steps)

    return Ask(name, model, messages, _note, Prompt.load("ask/again", prompts))


def _earlier_text(name: AttemptPrompt, buffer: Buffer, layout: Layout, state: State) -> str:
    """The text that stands before the attempt: the last plans, or the earlier attempts."""
    if name == "reflexion/reflect":
        return notes_text(buffer, state)
    return "".join(layout.attempt(trajectory, shown) for trajectory, shown in attempts_in_prompt(buffer, state))


def _attempt_text(state: State, journal: Journal, layout: Layout, frame: str, count: Count, window: int) -> str:
    """The total of the attempt just made, after those of its last steps that fit beside `frame`."""
    steps = journal.history(state["head"])
    rewards = state.get("rewards") or [None] * len(steps)
    made = tuple(replace(step, reward=reward) for step, reward in zip(steps, rewards, strict=True))
    total = layout.total(Trajectory(state["head"], state["task"], made))
    shown = fit_steps(made, layout, frame + total, count, window)
    if shown is None:
        raise ContextError(f"{count(frame)} tokens of task and earlier attempts leave no room in a window of {window}")
    return shown + total


def _note(reply: AIMessage, state: State) -> Mapping[str, Any]:
    written = " ".join(text(reply).split())
    if not written:
        raise Unreadable("asked for a few sentences, got an empty reply")
    return {"note": written}
