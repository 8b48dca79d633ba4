"""ReAct (arXiv:2210.03629): think and act in turns, with the episode so far in view and nothing from earlier episodes.

A model that writes states a thought before every action. A model whose actions are scored (`pocket`, `local:`) cannot: for
it ReAct is the policy with the history of the episode. Tasks with one written answer of several steps are played step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...nodes.act.decide import Choose
from ...nodes.act.episode import Act, Begin, progress
from ...nodes.retrieve.attempts import Running
from ...nodes.state import Attempt, Choice, Episode, Planned, Played
from ..wiring.flow import Node, compiled, wire
from ..wiring.parts import Parts

FLOW = """
flowchart LR
  START --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| END
"""


class State(Episode, Planned, Choice):
    """The channels of a ReAct episode."""


@dataclass(frozen=True)
class ReAct:
    """Hyper-parameters."""

    recent: int | None = None
    """How many earlier steps of the episode the model sees; None: as many as fit."""
    temperature: float = 1.0
    """Of the softmax over scored actions; 0 takes the best."""


def build(
    parts: Parts, settings: ReAct | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = settings or ReAct()
    seen = Running(recent=settings.recent, **parts.running())
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "propose": parts.write(seen, "react") if parts.write else parts.policy(seen),
        "choose": Choose(settings.temperature),
        "act": Act(parts.environment, parts.journal, detail=("candidates",), spent=("candidates",)),
    }
    builder = StateGraph(State, input_schema=Attempt, output_schema=Played)
    return compiled(wire(builder, FLOW, nodes, {"act": progress}, chain=chain), **{"name": "react", **compile})
