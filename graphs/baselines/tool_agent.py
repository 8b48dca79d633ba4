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

from ...memory.errors import UserError
from ...memory.library import LibraryVersions
from ...nodes.act.episode import Act
from ...nodes.act.tool_use import (
    BeginWithTools,
    Dialogue,
    Submit,
    Think,
    ToolChannels,
    ToolFactory,
    Toolset,
    UseTools,
    route_remaining_answer,
    route_tool_calls,
)
from ...nodes.prompt import Prompt
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult, PlanChannels
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.parts import MethodInputs

FLOW = """
flowchart LR
  START --> begin --> think
  think -->|call tools| use --> think
  think -->|answer| answer --> act
  act -->|next step| answer
  act -->|over| END
"""


class ToolAgentInput(EpisodeInput):
    """What is to be solved, and under which lessons."""

    library: NotRequired[str]
    """Name of the version (`memory.library.Versions`); empty or absent: without lessons."""


class ToolAgentState(EpisodeChannels, PlanChannels, ChoiceChannels, ToolChannels):
    """The channels of an episode with tools."""

    library: NotRequired[str]


class ToolAgentOutput(EpisodeResult):
    """What comes out of it."""

    answer: str
    tool_calls: int
    transcript: str


@dataclass(frozen=True)
class ToolAgent:
    """Hyper-parameters."""

    max_turns: int = 20
    """How often the model is asked at most; at the last turn it has to answer. Training-Free GRPO: 50 for mathematics, 20 for the
    web."""
    temperature: float | None = None
    """Of the model; None: its own. Training-Free GRPO: 0.7 when learning, 0.3 when tested."""
    lessons_per_prompt: int = 0
    """How many lessons are shown at most, the ones that fit the task best; 0: all."""
    max_output_chars: int = 8000
    """Characters of a tool's answer that the model is shown; longer ones lose their middle."""
    max_transcript_chars: int = 1000
    """Characters of it in the transcript, for those who compare rollouts."""

    def __post_init__(self) -> None:
        for name, least in (
            ("max_turns", 1),
            ("temperature", 0),
            ("lessons_per_prompt", 0),
            ("max_output_chars", 100),
            ("max_transcript_chars", 100),
        ):
            if (given := getattr(self, name)) is not None and given < least:
                raise UserError(f"tool-agent: {name} is at least {least}, got {given}")


def build(
    parts: MethodInputs,
    settings: ToolAgent | None = None,
    *,
    tools: ToolFactory | None = None,
    lessons: LibraryVersions | None = None,
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
    model, world = parts.require_chat_model("tool-agent"), parts.environment
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
        settings.lessons_per_prompt,
        settings.max_turns,
        parts.count_tokens,
        parts.max_prompt_tokens,
    )
    options = {} if settings.temperature is None else {"temperature": settings.temperature}
    nodes: dict[str, Node] = {
        "begin": BeginWithTools(world, toolset=toolset),
        "think": Think(model, toolset, dialogue, Prompt.load("ask/again", parts.prompts), options),
        "use": UseTools(toolset, settings.max_output_chars, settings.max_transcript_chars),
        "answer": Submit(read or (lambda reply: (reply,)), toolset),
        "act": Act(world, parts.journal),
    }
    builder = StateGraph(ToolAgentState, input_schema=ToolAgentInput, output_schema=ToolAgentOutput)
    return compile_graph(
        wire(builder, FLOW, nodes, {"think": route_tool_calls, "act": route_remaining_answer}, chain=chain),
        **{"name": "tool-agent", **compile},
    )
