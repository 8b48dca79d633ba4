"""Have the model write about a finished attempt: Reflexion's plan for the next one, Self-Refine's feedback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from ..memory.buffer import Buffer
from ..memory.journal import Journal
from ..memory.records import Shown, Trajectory, Transition
from .ask import Ask, State, Unreadable, text
from .attempts import Layout, chosen, lessons
from .prompt import Prompt

__all__ = ["feedback", "reflect"]


def reflect(model: Runnable[Any, Any], buffer: Buffer, journal: Journal, layout: Layout, prompts: Path | None = None) -> Ask:
    """Reflexion (arXiv:2303.11366): from the attempt with its rewards and the last plans to a new plan, in `note`."""
    prompt = Prompt.load("reflexion/reflect", prompts)

    def messages(state: State) -> list[BaseMessage]:
        return prompt.messages(
            instruction=state["task"].instruction,
            lessons=lessons(buffer, state),
            number=state["episode"] + 1,
            steps=_finished(state, journal, layout),
        )

    return Ask("reflexion/reflect", model, messages, _note, Prompt.load("ask/again", prompts))


def feedback(model: Runnable[Any, Any], buffer: Buffer, journal: Journal, layout: Layout, prompts: Path | None = None) -> Ask:
    """Self-Refine (arXiv:2303.17651): what the model itself finds wrong with the attempt, without a reward, in `note`."""
    prompt = Prompt.load("self_refine/feedback", prompts)

    def messages(state: State) -> list[BaseMessage]:
        return prompt.messages(
            instruction=state["task"].instruction,
            earlier="".join(layout.attempt(trajectory, shown) for trajectory, shown in chosen(buffer, state)),
            number=state["episode"] + 1,
            steps=_finished(state, journal, layout),
        )

    return Ask("self_refine/feedback", model, messages, _note, Prompt.load("ask/again", prompts))


def _finished(state: State, journal: Journal, layout: Layout) -> str:
    """The steps of the attempt just made, and its total."""
    steps = journal.history(state["head"])
    rewards = state.get("rewards") or [None] * len(steps)
    made = tuple(Transition(step.state, step.action, reward) for step, reward in zip(steps, rewards, strict=True))
    attempt = Trajectory(state["head"], state["task"], made, episode=state["episode"])
    return layout.attempt(attempt, Shown(attempt.id)).partition("\n")[2]


def _note(reply: AIMessage, state: State) -> Mapping[str, Any]:
    written = " ".join(text(reply).split())
    if not written:
        raise Unreadable("asked for a few sentences, got an empty reply")
    return {"note": written}
