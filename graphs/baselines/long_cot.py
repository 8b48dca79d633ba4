"""Long chain of thought: try, check, go back and try again within one reply, then answer. One pass, no reward."""

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
  START --> begin --> reason --> choose --> act
  act -->|next step| reason
  act -->|over| END
"""


class State(Episode, Planned, Choice):
    """The channels of an attempt with long reasoning."""


@dataclass(frozen=True)
class LongChainOfThought:
    """Nothing to set."""


def build(
    parts: Parts, settings: LongChainOfThought | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "reason": parts.writer("long-cot")(Running(**parts.running()), "long-cot"),
        "choose": Choose(),
        "act": Act(parts.environment, parts.journal, detail=("candidates",), spent=("candidates",)),
    }
    builder = StateGraph(State, input_schema=Attempt, output_schema=Played)
    return compiled(wire(builder, FLOW, nodes, {"act": progress}, chain=chain), **{"name": "long-cot", **compile})
