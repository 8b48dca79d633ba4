"""Static: the policy alone, every episode as if it were the first. What every learning method is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.storage.journal import Journal
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, Environment, route_episode_end
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult
from ..wiring.flow import Node, compile_graph, wire

FLOW = """
flowchart LR
  START --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| END
"""


class StaticState(EpisodeChannels, ChoiceChannels):
    """The channels of a static episode."""


@dataclass(frozen=True)
class Static:
    """Hyper-parameters."""

    temperature: float = 1.0
    """Of the softmax that the action is drawn from; 0 takes the best."""


def build(
    environment: Environment,
    policy: Node,
    journal: Journal,
    settings: Static | None = None,
    *,
    chain: bool = False,
    **compile: Any,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.jitrl.build`."""
    nodes: dict[str, Node] = {
        "begin": Begin(environment),
        "propose": policy,
        "choose": Choose((settings or Static()).temperature),
        "act": Act(environment, journal, journal_channels=("candidates",), clear_lists=("candidates",)),
    }
    builder = StateGraph(StaticState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}, chain=chain), **{"name": "static", **compile})
