"""Static: the policy alone, every episode as if it were the first. Every learning method is measured against it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, route_episode_end
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.inputs import SHARED, MethodInputs, uniform_policy

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

    temperature: float = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax that the action is drawn from; 0 takes the best."""


def build(inputs: MethodInputs, settings: Static | None = None, **compile: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = settings or Static()
    nodes: dict[str, Node] = {
        "begin": Begin(inputs.environment),
        "propose": inputs.make_policy(inputs.recent_steps_view()),
        "choose": Choose(settings.temperature),
        "act": Act(inputs.environment, inputs.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
    }
    builder = StateGraph(StaticState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}), **{"name": "static", **compile})


def build_random(
    inputs: MethodInputs, settings: Static | None = None, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The same graph with a uniform policy: every admissible action is equally likely."""
    return build(replace(inputs, make_policy=uniform_policy), settings, **{"name": "random", **compile})
