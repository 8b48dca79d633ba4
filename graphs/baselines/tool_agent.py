"""ReAct with tools (arXiv:2210.03629): the model calls tools as its API offers it, until it writes its answer.

What Training-Free GRPO's agents are: a system message (with the lessons of a library, if there is one), the task, and tools such
as `python` or `search`. Every rollout has tools of its own. The answer is what the environment's `read` finds in the last reply.

    think     call tools, or answer; at the last turn the model is told to answer
    use       carry out the calls in their order; what goes wrong the model is told
    answer    close the tools; the actions of the written answer, one by one
    act       submit it

A rollout is one piece: played again, it calls its tools again (what the model says to equal results may come from a cache).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NotRequired

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.library import Versions
from ...memory.records import UserError
from ...nodes.act.episode import Act
from ...nodes.act.tool_use import Dialogue, Equip, Submit, Think, Tools, Toolset, ToolState, Use, asked_for, left
from ...nodes.prompt import Prompt
from ...nodes.state import Attempt, Choice, Episode, Planned, Played
from ..wiring.flow import Node, compiled, wire
from ..wiring.parts import Parts

FLOW = """
flowchart LR
  START --> begin --> think
  think -->|call tools| use --> think
  think -->|answer| answer --> act
  act -->|next step| answer
  act -->|over| END
"""


class Request(Attempt):
    """What is to be solved, and under which lessons."""

    library: NotRequired[str]
    """Name of the version (`memory.library.Versions`); empty or absent: without lessons."""


class State(Episode, Planned, Choice, ToolState):
    """The channels of an episode with tools."""

    library: NotRequired[str]


class Solved(Played):
    """What comes out of it."""

    answer: str
    tool_calls: int
    transcript: str


@dataclass(frozen=True)
class ToolAgent:
    """Hyper-parameters."""

    turns: int = 20
    """How often the model is asked at most; at the last turn it has to answer. Training-Free GRPO: 50 for mathematics, 20 for the
    web."""
    temperature: float | None = None
    """Of the model; None: its own. Training-Free GRPO: 0.7 when learning, 0.3 when tested."""
    top: int = 0
    """How many lessons are shown at most, the ones that fit the task best; 0: all."""
    output: int = 8000
    """Characters of a tool's answer that the model is shown; longer ones lose their middle."""
    shown: int = 1000
    """Characters of it in the transcript, for those who compare rollouts."""

    def __post_init__(self) -> None:
        for name, least in (("turns", 1), ("temperature", 0), ("top", 0), ("output", 100), ("shown", 100)):
            if (given := getattr(self, name)) is not None and given < least:
                raise UserError(f"tool-agent: {name} is at least {least}, got {given}")


def build(
    parts: Parts,
    settings: ToolAgent | None = None,
    *,
    tools: Tools | None = None,
    lessons: Versions | None = None,
    chain: bool = False,
    **compile: Any,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode, from `Attempt` (and `library`) to `Solved`.

    Args:
        parts: the environment, which can `read` a written answer, and the model, which can call tools.
        settings: the hyper-parameters.
        tools: gives a rollout its tools (`tools.interpreter.Toolbox`); None: there are none.
        lessons: where the library that the input names is looked up.
        chain: as in `graphs.icrl.build`, as are further arguments.

    Raises:
        UserError: there is no model, or the environment cannot read a written answer.
    """
    settings = settings or ToolAgent()
    model, world = parts.asked("tool-agent"), parts.environment
    read = getattr(world, "read", None)
    if world is not None and read is None:  # a drawing has no environment
        raise UserError(
            f"tool-agent: {world.name} is played step by step, and this agent submits one written answer; use react, or a world "
            "that reads answers (math, reasoning:NAME, game24)"
        )
    toolset = Toolset(tools)
    dialogue = Dialogue(
        Prompt.load("tool_agent/solve", parts.prompts),
        Prompt.load("tool_agent/last", parts.prompts),
        Prompt.load("training_free_grpo/lessons", parts.prompts) if lessons else None,
        lessons,
        settings.top,
        settings.turns,
        parts.count,
        parts.room,
    )
    options = {} if settings.temperature is None else {"temperature": settings.temperature}
    nodes: dict[str, Node] = {
        "begin": Equip(world, toolset=toolset),
        "think": Think(model, toolset, dialogue, Prompt.load("ask/again", parts.prompts), options),
        "use": Use(toolset, settings.output, settings.shown),
        "answer": Submit(read or (lambda reply: (reply,)), toolset),
        "act": Act(world, parts.journal),
    }
    builder = StateGraph(State, input_schema=Request, output_schema=Solved)
    return compiled(
        wire(builder, FLOW, nodes, {"think": asked_for, "act": left}, chain=chain), **{"name": "tool-agent", **compile}
    )
