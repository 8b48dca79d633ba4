"""Tabular: Q-learning over exact states, without any language model. On a fixed start a lookup table goes a long way.

It learns by backing values up along each finished episode; it acts greedily, with exceptions. A method that reads must beat
it, or do what a table cannot: carry over to states it has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.q_table import QTable
from ...memory.storage.journal import Journal
from ...nodes.act.episode import Act, Begin, Environment, route_episode_end
from ...nodes.act.tabular import EpsilonGreedy, LookUpQValues, UpdateQTable
from ...nodes.state import EpisodeInput, EpisodeResult
from ..wiring.flow import Node, compile_graph, wire
from .static import StaticState

FLOW = """
flowchart LR
  START --> begin --> look_up --> choose --> act
  act -->|next step| look_up
  act -->|over| keep --> END
"""


@dataclass(frozen=True)
class Tabular:
    """Hyper-parameters."""

    gamma: float = 0.95
    """Discount per step."""
    learning_rate: float = 0.5
    """Learning rate of a backup, in (0, 1]."""
    epsilon: float = 0.1
    """How often any action is taken instead of the best."""


def build(
    environment: Environment,
    table: QTable,
    journal: Journal,
    settings: Tabular | None = None,
    *,
    chain: bool = False,
    **compile: Any,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.jitrl.build`."""
    nodes: dict[str, Node] = {
        "begin": Begin(environment),
        "look_up": LookUpQValues(table, environment),
        "choose": EpsilonGreedy((settings or Tabular()).epsilon),
        "act": Act(environment, journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "keep": UpdateQTable(table, environment, journal),
    }
    builder = StateGraph(StaticState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}, chain=chain), **{"name": "tabular", **compile})
