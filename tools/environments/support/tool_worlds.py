"""The common part of worlds whose actions are tool calls, which an agent of LangChain can play with its own tools."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....memory.records import Observation, Task
from .calls import ToolDescription
from .worlds import LiveWorld, Solvable

if TYPE_CHECKING:  # imports parts of LangChain, which only agents need
    from .tool_episodes import ToolEpisode

__all__ = ["ToolWorld"]


class ToolWorld(LiveWorld, Solvable):
    """A world whose actions are tool calls, which an agent of LangChain can play with its own tools."""

    free_text = True

    def episode(self, task: Task) -> ToolEpisode:
        """An episode that an agent of LangChain plays with the benchmark's tools."""
        from .tool_episodes import ToolEpisode

        return ToolEpisode(self, task)

    @abstractmethod
    def describe_tools(self, task: Task, actions: Sequence[str] = ()) -> tuple[ToolDescription, ...]:
        """The tools that an agent may call after these actions, with the benchmark's descriptions."""

    def system_prompt(self, task: Task) -> str:
        """The system message that the benchmark gives its agents; empty for none."""
        return ""

    @abstractmethod
    def request(self, task: Task, actions: Sequence[str]) -> str:
        """The user's message that the agent has to answer after these actions."""

    @abstractmethod
    def answer(self, observation: Observation) -> str:
        """The last call's answer, as its tool gave it."""

    @abstractmethod
    def closing_call(self, task: Task, text: str) -> str:
        """The action that stands for a message from the agent to the user."""
