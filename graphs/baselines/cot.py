"""Chain of thought (arXiv:2201.11903): reason, then answer, in one pass. Nothing is carried from one attempt to the next."""

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


class ChainOfThoughtState(EpisodeChannels, PlanChannels, ChoiceChannels):
    """The channels of a chain-of-thought attempt."""


@dataclass(frozen=True)
class ChainOfThought:
    """Nothing to set."""


def build(
    parts: MethodInputs, settings: ChainOfThought | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "reason": parts.require_writer("cot")(EpisodePrompt(**parts.prompt_arguments()), "cot"),
        "choose": Choose(),
        "act": Act(parts.environment, parts.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
    }
    builder = StateGraph(ChainOfThoughtState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}, chain=chain), **{"name": "cot", **compile})
