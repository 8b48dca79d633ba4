"""ReAct with tools (arXiv:2210.03629): the model calls tools as its API offers it, until it writes its answer.

Training-Free GRPO's agents are of this kind. The model gets a system message (with the lessons of a library, if there is one), the
task, and tools such as `python` or `search`. Every rollout has tools of its own. The environment's `read` finds the answer in the
last reply.

    think     call tools, or answer; at the last turn the prompt asks for the answer
    use       carry out the calls in their order; errors go back to the model as results
    answer    close the tools; take the actions of the written answer, one by one
    act       submit the action

A rollout is one piece: when it is played again, it calls its tools again (the model's replies to equal results may come from a cache).
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired

from langgraph.graph import StateGraph

from ...memory.errors import UserError
from ...memory.lessons.versions import LibraryVersions
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
from ...nodes.arguments import Amount, ArgumentCheck, Count, Range
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult, PlanChannels
from ..wiring.flow import Graph, Node, compile_graph, wire
from ..wiring.inputs import NOT_GIVEN, SHARED, MethodInputs, given_settings

__all__ = ["FLOW", "ToolAgent", "build"]

FLOW = """
flowchart LR
  START --> begin --> think
  think -->|call tools| use --> think
  think -->|answer| answer --> act
  act -->|next step| answer
  act -->|over| END
"""


class ToolAgentInput(EpisodeInput):
    """The input of an episode: the task, and the name of the library of lessons."""

    library: NotRequired[str]
    """Name of a version (`memory.lessons.versions.LibraryVersions`); empty or absent: no lessons."""


class ToolAgentState(EpisodeChannels, PlanChannels, ChoiceChannels, ToolChannels):
    """The channels of an episode with tools."""

    library: NotRequired[str]


class ToolAgentOutput(EpisodeResult):
    """The result of an episode: the answer, the number of tool calls, and the transcript."""

    answer: str
    tool_calls: int
    transcript: str


@dataclass(frozen=True)
class ToolAgent(ArgumentCheck):
    """Hyper-parameters."""

    max_turns: Count = 20
    """Calls of the model at most; at the last one it has to answer. Reference code of Training-Free GRPO: 50, on the web 20."""
    temperature: Amount | None = field(default=None, metadata=SHARED)
    """The model's temperature; None: its own default. Training-Free GRPO: 0.7 when learning, 0.3 when tested."""
    lessons_per_prompt: Annotated[int, Range(0)] = 0
    """Lessons shown at most, those that fit the task best first; 0: all."""
    wording: Literal["ours", "paper"] = "ours"
    """`paper`: lessons stand after the task, as in Training-Free GRPO's Fig. 6, and an agent with Python has the system prompt of its
    Fig. 5. The paper shows none for the web."""
    max_output_chars: Annotated[int, Range(100)] = 8000
    """Characters of a tool's result in the prompt; longer results lose their middle."""
    max_transcript_chars: Annotated[int, Range(100)] = 1000
    """Characters of a tool's result in the transcript, which critics read."""


def build(
    inputs: MethodInputs = NOT_GIVEN,
    settings: ToolAgent | None = None,
    *,
    tools: ToolFactory | None = None,
    lessons: LibraryVersions | None = None,
    **compile: Any,
) -> Graph:
    """The graph of one episode, from `ToolAgentInput` to `ToolAgentOutput`.

    Args:
        inputs: the environment, which can `read` a written answer, and the model, which can call tools.
        tools: makes the tools of a rollout (`tools.agent_tools.interpreter.Toolbox`); None: there are none.
        lessons: the versions among which the library of the input is looked up.

    Raises:
        UserError: there is no model, or the environment cannot read a written answer.
    """
    settings = given_settings(inputs, settings, ToolAgent)
    model = inputs.require_chat_model("tool-agent")
    world = inputs.environment
    read = getattr(world, "read", None)
    if world is not None and read is None:  # a drawing has no environment
        raise UserError(
            f"tool-agent: {world.name} is played step by step, and this agent submits one written answer; use react, or a world "
            "that reads answers (questions, math, game24)"
        )
    toolset = Toolset(tools)
    paper = settings.wording == "paper"
    prefix = "paper/training_free_grpo" if paper else "training_free_grpo"
    solve = "paper/training_free_grpo/solve" if paper and getattr(tools, "python", None) is not None else "tool_agent/solve"
    dialogue = Dialogue(
        task_prompt=inputs.prompting.load(solve),
        last_turn_prompt=inputs.prompting.load("tool_agent/last"),
        turns_left_prompt=None if paper else inputs.prompting.load("tool_agent/left"),
        lessons_prompt=inputs.prompting.load(f"{prefix}/lessons") if lessons else None,
        versions=lessons,
        lessons_per_prompt=settings.lessons_per_prompt,
        max_turns=settings.max_turns,
        count_tokens=inputs.prompting.count_tokens,
        max_tokens=inputs.prompting.max_prompt_tokens,
    )
    options = {} if settings.temperature is None else {"temperature": settings.temperature}
    nodes: dict[str, Node] = {
        "begin": BeginWithTools(world, toolset=toolset),
        "think": Think(model, toolset, dialogue, retry_prompt=inputs.prompting.load("ask/again"), options=options),
        "use": UseTools(toolset, settings.max_output_chars, settings.max_transcript_chars),
        "answer": Submit(read or (lambda reply: (reply,)), toolset),
        "act": Act(world, inputs.journal),
    }
    builder = StateGraph(ToolAgentState, input_schema=ToolAgentInput, output_schema=ToolAgentOutput)
    return compile_graph(
        wire(builder, FLOW, nodes, {"think": route_tool_calls, "act": route_remaining_answer}),
        **{"name": "tool-agent", **compile},
    )
