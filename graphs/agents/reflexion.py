"""Reflexion in an agent of LangChain: after a conversation with feedback the model writes a note for the next one.

    agent = create_agent(model, tools, middleware=[learner := ReflexionMiddleware("memory", task=kind_of_issue)])

The notes on the last conversations of the same task stand in the prompt, or without a `task` those on the conversations that began
most like this one; the conversations and their rewards do not. The
nodes are those of Reflexion's graph (graphs/baselines/reflexion.py): compose, and the one that asks for a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from langchain_core.runnables import Runnable
from langgraph.store.base import BaseStore

from ...memory.attempts.buffer import Buffer
from ...memory.conversations.store import Reflection
from ...memory.records import Observation, Task, Trajectory, Transition
from ...nodes.ask import Ask, estimate_tokens
from ...nodes.fence import escape_tags
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import Compose, note_line, notes_text
from ...nodes.retrieve.chat_layout import ChatLayout
from ...nodes.synthesize.reflect import write_about_attempt
from ..baselines.reflexion import Reflexion
from .attempts import ConversationAttempts
from .consultation import Consultation, Place
from .critic import CriticMiddleware, CriticOptions
from .given_advice import AdvicePlace

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["ReflexionMiddleware"]


class ReflexionMiddleware(CriticMiddleware[ConversationAttempts]):
    """Shows the notes that a model wrote on earlier conversations of the same task.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        critic: the chat model that writes notes; the agent's own if not given.
        settings: Reflexion's: the last three notes, or those that fit into `max_memory_tokens`.
        prompts: a directory whose prompt files take the place of those of the same name.
        options: those of `CriticMiddleware`. `task` says which conversations are attempts at the same; without it, as many are shown
            of those that began most like this one.
    """

    method: ClassVar[str] = "reflexion"
    remedy: ClassVar[str] = "few conversations are attempts at the same; give a task that more of them share"
    default_place: ClassVar[AdvicePlace] = "thread"  # what is shown is of the task, which is the thread's

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        critic: Runnable[Any, Any] | None = None,
        settings: Reflexion | None = None,
        prompts: Path | None = None,
        **options: Unpack[CriticOptions],
    ) -> None:
        super().__init__(store, critic=critic, **options)
        self.settings, self.prompts = settings or Reflexion(), prompts
        self._layout = ChatLayout("sparse", count_tokens=estimate_tokens, names_request=True)
        self._prompt = Prompt.load("reflexion/conversations", prompts)

    def make_content(self) -> ConversationAttempts:
        """The conversations that have a note."""
        return ConversationAttempts(by_request=self._task is None)

    def question(
        self, trajectory: Trajectory, content: ConversationAttempts, critic: Runnable[Any, Any], card: str
    ) -> tuple[Ask[Any, Any], dict[str, Any]]:
        """Reflexion's node `reflect`, and the conversation that it reads with the notes before it."""
        window = self.window_of(critic)
        buffer, state = self._compose(trajectory.task, content, window, frozenset([trajectory.id]))
        words = " ".join(trajectory.note.split())
        state |= {
            "head": trajectory.id,
            "rewards": [step.reward for step in trajectory.transitions],
            "observation": Observation(f"Feedback in words: {escape_tags(words)}" if words else ""),
        }
        node = write_about_attempt(
            "reflexion/conversation",
            model=critic,
            buffer=buffer,
            journal=_OneConversation(trajectory.transitions),  # type: ignore[arg-type]
            layout=self._layout,
            count=estimate_tokens,
            window=window * 3 // 4,
            prompts=self.prompts,
            agent=card,
        )
        return node, state

    def reflection(self, trajectory: Trajectory, answer: dict[str, Any] | None) -> Reflection:
        """The note."""
        return Reflection("", "", "", note=answer["note"] if answer else "")

    def add_reflection(self, content: ConversationAttempts, trajectory: Trajectory, reflection: Reflection | None) -> None:
        """Put the note on a conversation into the memory, in place of the former one."""
        if reflection is not None and reflection.note:
            content.add(replace(trajectory, note=reflection.note))
        else:
            content.remove(trajectory)

    def _compose(
        self, task: Task, content: ConversationAttempts, window: int, hidden: frozenset[str] = frozenset()
    ) -> tuple[Buffer, dict[str, Any]]:
        """The earlier attempts at a task that have notes, without hidden ones, and the state after Reflexion's node `compose`."""
        only = None
        if self._task is None and self.settings.selection == "last":
            alike = [id for id in content.best_alike(task.id, task.instruction, "") if id not in hidden]
            only = alike[: self.settings.last_n]
        buffer, number = content.buffer(task.id, "", hidden, only)
        compose = Compose(
            buffer,
            render=note_line,
            count_tokens=estimate_tokens,
            window=window,
            keep=self.settings.selection,
            budget=self.settings.max_memory_tokens,
            last=self.settings.last_n,
        )
        state: dict[str, Any] = {"task": task, "run": "", "episode": number, "observation": Observation("")}
        if not len(buffer):
            return buffer, {**state, "shown": []}
        return buffer, {**state, **compose(state)}  # type: ignore[arg-type]

    def advise(self, request: ModelRequest[Any], place: Place, content: ConversationAttempts) -> Consultation:
        """Call the model with the notes."""
        hidden, beyond = frozenset[str](), frozenset([""])
        while beyond:
            buffer, state = self._compose(place.task, content, self.window_of(request.model), hidden)
            shown = [one.id for one in reversed(state["shown"])]
            beyond = frozenset(shown) - frozenset(self.share_out(place, shown, str, among=content.ids(place.task.id)))
            hidden |= beyond

        def text(ids: Sequence[str]) -> str:
            state["shown"] = [one for one in all_shown if one.id in ids]
            lines = notes_text(buffer, state)
            return self._prompt.text(lessons=escape_tags(lines.rstrip())) if lines else ""

        all_shown = state["shown"]
        section = text(place.choose(shown, text))
        recalled, lines = [one.id for one in state["shown"]], notes_text(buffer, state)
        entry = {"recalled": recalled, "tokens": estimate_tokens(section), "said": lines.splitlines()[1:]}
        return (yield from self.ask_with(request, section, entry))


@dataclass(frozen=True)
class _OneConversation:
    """A stand-in for a journal that holds the steps of one conversation."""

    transitions: Sequence[Transition]

    def history(self, head: str, last: int | None = None) -> Sequence[Transition]:
        """The steps, oldest first."""
        return self.transitions
