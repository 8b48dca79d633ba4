"""One episode of a tool-agent benchmark, played by a LangChain agent with its real tools.

`ToolEpisode` offers the environment's tools as LangChain tools, and writes every call into the list of actions. So the episode
of an agent is one of the environment like any other: `environment.observe(task, episode.actions)` shows how it ended, with the
official reward, and `replay_actions` makes it a trajectory.
"""

import threading
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool

from ....memory.records import Observation, Task
from .calls import Call

__all__ = ["ToolEpisode"]


class ToolEpisode:
    """An episode that an agent plays by tool calls and messages. Calls made at the same time are carried out one by one."""

    def __init__(self, environment: Any, task: Task) -> None:
        self.environment = environment
        self.task = task
        self.actions: list[str] = []
        """The actions so far."""
        self.score = 0.0
        """Sum of the rewards so far."""
        self.messages: list[AnyMessage] = []
        """The conversation that `play` has had so far."""
        self._lock = threading.Lock()
        self._last: Observation = environment.observe(task, ())

    @property
    def over(self) -> bool:
        """True once the episode has ended; then `score` is final."""
        return self._last.over

    @property
    def system_prompt(self) -> str:
        """The system message that the benchmark gives its agents; empty for none."""
        return str(self.environment.system_prompt(self.task))

    @property
    def request(self) -> str:
        """The user's message that the agent has to answer now."""
        return str(self.environment.request(self.task, self.actions))

    @property
    def tools(self) -> list[BaseTool]:
        """The tools that the agent may call now, bound to this episode."""
        return [
            StructuredTool(
                name=tool.name,
                description=tool.description,
                args_schema=dict(tool.schema),
                func=self._function(tool.name),
                # An agent has nothing to say any more once it has called the tool that ends the episode.
                return_direct=not tool.parameters and str(Call(tool.name)) == self.environment.closing_call(self.task, ""),
            )
            for tool in self.environment.describe_tools(self.task, self.actions)
        ]

    def call(self, action: str) -> str:
        """Take one action, and return its answer. After the end nothing is done, and the answer says so."""
        with self._lock:
            if self.over:
                return "The episode is over: nothing was done."
            self._last = self.environment.observe(self.task, [*self.actions, action])
            self.actions.append(action)
            self.score += self._last.reward or 0.0
            return str(self.environment.answer(self._last))

    def say(self, text: str) -> None:
        """Send a message to the user: it ends the turn, or the episode. Nothing happens if the episode is over."""
        self.call(self.environment.closing_call(self.task, text))

    def play(self, make_agent: Callable[[list[BaseTool], str | None], Any]) -> float:
        """Let an agent play the episode to its end, and return its score.

        Args:
            make_agent: makes the agent (of `langchain.agents.create_agent`, or any Runnable over `{"messages": ...}`) from the tools and the
                system message of the present turn, `lambda tools, prompt: create_agent(model, tools, system_prompt=prompt)`.
        """
        while not self.over:
            agent = make_agent(self.tools, self.system_prompt or None)
            self.messages = agent.invoke({"messages": [*self.messages, HumanMessage(self.request)]})["messages"]
            self.say(self.messages[-1].text)
        return self.score

    def _function(self, name: str) -> Callable[..., str]:
        def call_tool(**arguments: Any) -> str:
            return self.call(str(Call(name, arguments)))

        return call_tool
