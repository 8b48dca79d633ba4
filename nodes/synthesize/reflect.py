"""Nodes that ask a model about a finished attempt: Reflexion's plan for the next one, Self-Refine's feedback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from ...memory.buffer import Buffer
from ...memory.records import Trajectory, Transition
from ...memory.storage.journal import Journal
from ..ask import Ask, State, Unreadable, text
from ..prompt import Prompt
from ..retrieve.attempts import ContextError, Layout, attempts_in_prompt, fit_steps, notes_text

__all__ = ["feedback", "reflect"]


Count = Callable[[str], int]


def reflect(
    model: Runnable[Any, Any],
    buffer: Buffer,
    journal: Journal,
    layout: Layout,
    count: Count = len,
    window: int = 2**31,
    prompts: Path | None = None,
) -> Ask:
    """Reflexion (arXiv:2303.11366): write a new plan into `note`, from the attempt with its rewards and the last plans.

    If the attempt does not fit the window (`window` tokens by `count`), only its last steps are shown.
    """

    def before(state: State) -> str:
        return notes_text(buffer, state)

    return _ask_about_attempt("reflexion/reflect", model, before, journal, layout, count, window, prompts)


def feedback(
    model: Runnable[Any, Any],
    buffer: Buffer,
    journal: Journal,
    layout: Layout,
    count: Count = len,
    window: int = 2**31,
    prompts: Path | None = None,
) -> Ask:
    """Self-Refine (arXiv:2303.17651): write the model's own criticism of the attempt, without rewards, into `note`.

    If the attempt does not fit the window (`window` tokens by `count`), only its last steps are shown.
    """

    def before(state: State) -> str:
        return "".join(layout.attempt(trajectory, shown) for trajectory, shown in attempts_in_prompt(buffer, state))

    return _ask_about_attempt("self_refine/feedback", model, before, journal, layout, count, window, prompts)


def _ask_about_attempt(
    name: str,
    model: Runnable[Any, Any],
    before: Callable[[State], str],
    journal: Journal,
    layout: Layout,
    count: Count,
    window: int,
    prompts: Path | None,
) -> Ask:
    """Ask about the attempt just made; `before` gives the text before it."""
    prompt = Prompt.load(name, prompts)

    def messages(state: State) -> list[BaseMessage]:
        earlier, instruction = before(state), state["task"].instruction
        steps = _attempt_text(state, journal, layout, instruction + earlier, count, window)
        return prompt.messages(instruction=instruction, earlier=earlier, number=state["episode"] + 1, steps=steps)

    return Ask(name, model, messages, _note, Prompt.load("ask/again", prompts))


def _attempt_text(state: State, journal: Journal, layout: Layout, frame: str, count: Count, window: int) -> str:
    """The total of the attempt just made, after those of its last steps that fit beside `frame`."""
    steps = journal.history(state["head"])
    rewards = state.get("rewards") or [None] * len(steps)
    made = tuple(Transition(step.state, step.action, reward) for step, reward in zip(steps, rewards, strict=True))
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
