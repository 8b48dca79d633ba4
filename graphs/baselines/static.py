"""Static: the policy alone, every episode as if it were the first. What every learning method is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.storage.journal import Journal
from ...nodes.act.decide import Choose
from ...nodes.act.episode import Act, Begin, Environment, progress
from ...nodes.state import Attempt, Choice, Episode, Played
from ..wiring.flow import Node, compiled, wire

FLOW = """
flowchart LR
  START --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| END
"""


class State(Episode, Choice):
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
        "act": Act(environment, journal, detail=("candidates",), spent=("candidates",)),
    }
    builder = StateGraph(State, input_schema=Attempt, output_schema=Played)
    return compiled(wire(builder, FLOW, nodes, {"act": progress}, chain=chain), **{"name": "static", **compile})
