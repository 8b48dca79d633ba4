"""The state of a method's graph, made from the messages of a conversation, so that its nodes work in an agent unchanged.

    messages so far  ->  task, step, observation, head: what Begin and Act leave in a graph's state

The journal of such an episode keeps nothing: its `head` is the steps themselves, which the messages give at every model call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from ...memory.attempts.trajectories import KeyFunction, whole_prompt_key
from ...memory.conversations.messages import StateKey, steps, text_read
from ...memory.records import Observation, Task, Transition
from ...memory.storage.journal import Journal
from ..wiring.banks import KeyName
from ..wiring.inputs import MethodInputs
from .consultation import Place

__all__ = ["ChatInputs", "ChatWorld"]


@dataclass(frozen=True, slots=True)
class ReadMessages(Observation):
    """The messages that an agent has read since it spoke last."""

    key: str = ""
    """The text by which the state is compared with others."""
    refused: bool = False
    """True if a tool has answered with an error."""


class ChatWorld:
    """A stand-in for an environment, with what nodes ask of it: its name, the text of a state, and whether an action was refused."""

    def __init__(self, name: str) -> None:
        self.name = name

    def abstract(self, observation: Observation) -> str:
        """The text by which the state is compared."""
        return observation.key if isinstance(observation, ReadMessages) else observation.text

    def is_refused(self, observation: Observation) -> bool:
        """True if a tool has answered with an error."""
        return isinstance(observation, ReadMessages) and observation.refused


class ConversationJournal(Journal):
    """A journal whose heads are the steps themselves, so that it keeps nothing."""

    def history(self, head: Any, last: int | None = None) -> tuple[Transition, ...]:
        """The steps of the conversation, oldest first; only the last `last` of them if given."""
        return tuple(head) if last is None else tuple(head)[max(len(head) - last, 0) :]


def state_alone(task: Task, before: Sequence[Transition], state: str) -> str:
    """The state's text by itself: that of a chat says what the user asked for, which worlds say in the task."""
    return state


CHAT_KEYS: dict[KeyName, KeyFunction] = {"structured": state_alone, "whole": whole_prompt_key}
"""phi(s_t) by name, for conversations."""


@dataclass(frozen=True)
class ChatInputs(MethodInputs):
    """The inputs of a method's nodes in a conversation: earlier ones are shown with what was said about them."""

    of_conversations: ClassVar[bool] = True
    max_precedent_tokens: ClassVar[int] = 4_000
    max_history_tokens: ClassVar[int] = 2_000

    @classmethod
    def of(cls, model: BaseChatModel, agent_name: str, prompts: Path | None = None) -> Self:
        """Inputs for an agent's conversations.

        Args:
            model: writes; its window is the room for prompts.
            agent_name: the domain of its trajectories.
            prompts: a directory whose prompt files take the place of those of the same name.
        """
        world: Any = ChatWorld(agent_name)
        return cls.with_chat_model(world, ConversationJournal(), model, prompts=prompts)


def episode_channels(messages: Sequence[AnyMessage], place: Place, state_key: StateKey) -> dict[str, Any]:
    """The channels of an episode at a model call.

    Args:
        messages: all that the agent has read and said, without the system message.
        place: the place of the call.
        state_key: the text by which states are compared.
    """
    done = steps(messages, state_key)
    start = next((n for n in range(len(messages), 0, -1) if isinstance(messages[n - 1], AIMessage)), 0)
    refused = any(isinstance(m, ToolMessage) and m.status == "error" for m in messages[start:])
    return {
        "task": place.task,
        "run": place.thread,
        "episode": place.number,
        "step": len(done),
        "head": done,
        "observation": ReadMessages(text_read(messages), key=str(state_key(messages)), refused=refused),
        "used": [],
        "precedents": [],
        "candidates": [],
        "reasons": [],
    }
