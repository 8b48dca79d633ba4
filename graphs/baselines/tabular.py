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
from ...nodes.act.episode import Act, Begin, Environment, progress
from ...nodes.act.tabular import EpsilonGreedy, Keep, LookUp
from ...nodes.state import Attempt, Played
from ..wiring.flow import Node, compiled, wire
from .static import State

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
    rate: float = 0.5
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
        "look_up": LookUp(table, environment),
        "choose": EpsilonGreedy((settings or Tabular()).epsilon),
        "act": Act(environment, journal, detail=("candidates",), spent=("candidates",)),
        "keep": Keep(table, environment, journal),
    }
    builder = StateGraph(State, input_schema=Attempt, output_schema=Played)
    return compiled(wire(builder, FLOW, nodes, {"act": progress}, chain=chain), **{"name": "tabular", **compile})
