"""Long chain of thought: try, check, go back and try again within one reply, then answer. One pass, no reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, route_episode_end
from ...nodes.retrieve.attempts import EpisodePrompt
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult, PlanChannels
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.parts import MethodInputs

FLOW = """
flowchart LR
  START --> begin --> reason --> choose --> act
  act -->|next step| reason
  act -->|over| END
"""


class LongChainOfThoughtState(EpisodeChannels, PlanChannels, ChoiceChannels):
    """The channels of an attempt with long reasoning."""


@dataclass(frozen=True)
class LongChainOfThought:
    """Nothing to set."""


def build(
    parts: MethodInputs, settings: LongChainOfThought | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "reason": parts.require_writer("long-cot")(EpisodePrompt(**parts.prompt_arguments()), "long-cot"),
        "choose": Choose(),
        "act": Act(parts.environment, parts.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
    }
    builder = StateGraph(LongChainOfThoughtState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}, chain=chain), **{"name": "long-cot", **compile})
