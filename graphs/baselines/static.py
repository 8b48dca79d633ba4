"""Static: the policy alone, every episode as if it were the first. Every learning method is measured against it."""

from dataclasses import dataclass, replace
from typing import Any

from ..wiring.episode import ChoiceSettings, episode_graph, episode_nodes
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, MethodInputs, given_settings, uniform_policy

__all__ = ["FLOW", "Static", "build", "build_random"]

FLOW = """
flowchart LR
  START --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| END
"""


@dataclass(frozen=True)
class Static(ChoiceSettings):
    """Hyper-parameters."""


def build(inputs: MethodInputs = NOT_GIVEN, settings: Static | None = None, **compile: Any) -> Graph:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, Static)
    nodes: dict[str, Node] = {
        **episode_nodes(inputs, settings.temperature),
        "propose": inputs.make_policy(inputs.recent_steps_view()),
    }
    return episode_graph("static", FLOW, nodes, **compile)


def build_random(inputs: MethodInputs = NOT_GIVEN, settings: Static | None = None, **compile: Any) -> Graph:
    """The same graph with a uniform policy: every admissible action is equally likely."""
    settings = given_settings(inputs, settings, Static)
    return build(replace(inputs, make_policy=uniform_policy), settings, **{"name": "random", **compile})
