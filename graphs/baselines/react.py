"""ReAct (arXiv:2210.03629): think and act in turns, with the episode so far in view and nothing from earlier episodes.

A model that writes states a thought before every action. A model whose actions are scored (`pocket`, `local:`) cannot: for
it ReAct is the policy with the history of the episode. Tasks with one written answer of several steps are played step by step.
"""

from dataclasses import dataclass, field
from typing import Any

from ..wiring.episode import ChoiceSettings, episode_graph, episode_nodes
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, SHARED, THINK_THEN_ACT, MethodInputs, given_settings

__all__ = ["FLOW", "ReAct", "build"]

FLOW = """
flowchart LR
  START --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| END
"""


@dataclass(frozen=True)
class ReAct(ChoiceSettings):
    """Hyper-parameters."""

    history_steps: int | None = field(default=None, metadata=SHARED)
    """Earlier steps of the episode in the prompt, at most; None: as many as fit."""


def build(inputs: MethodInputs = NOT_GIVEN, settings: ReAct | None = None, **compile: Any) -> Graph:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, ReAct)
    view = inputs.episode_prompt(max_steps=settings.history_steps)
    nodes: dict[str, Node] = {
        **episode_nodes(inputs, settings.temperature),
        "propose": inputs.acting_policy(view, THINK_THEN_ACT),
    }
    return episode_graph("react", FLOW, nodes, **compile)
