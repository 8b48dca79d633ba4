"""Tabular: Q-learning over exact states, without any language model. On a fixed start a lookup table goes a long way.

    look_up   Q(s, a) of every admissible action, the initial value where it was never tried
    choose    the best one, or with probability epsilon any
    keep      backwards over the finished episode: Q(s, a) += learning_rate (r + gamma max Q(s', .) - Q(s, a))

A method that reads must beat it, or do what a table cannot: carry over to states that it has not seen.
"""

from dataclasses import dataclass
from typing import Any

from ...memory.returns.q_table import QTable
from ...nodes.act.tabular import EpsilonGreedy, LookUpQValues, UpdateQTable
from ..wiring.episode import episode_graph, episode_nodes
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, MethodInputs, given_settings

__all__ = ["FLOW", "Tabular", "build"]

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
    """Discount per step, in [0, 1]."""
    learning_rate: float = 0.5
    """The share of the way that a backup goes to its target, in (0, 1]."""
    epsilon: float = 0.1
    """The probability that any action is taken instead of the best."""
    initial_value: float = 0.0
    """Q of an untried action, in reward units. Above what can be earned (optimism) the table tries every action of a state."""


def build(inputs: MethodInputs = NOT_GIVEN, settings: Tabular | None = None, **compile: Any) -> Graph:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, Tabular)
    table = QTable(inputs.records, settings.gamma, settings.learning_rate, settings.initial_value)
    nodes: dict[str, Node] = {
        **episode_nodes(inputs),
        "look_up": LookUpQValues(table, inputs.environment),
        "choose": EpsilonGreedy(settings.epsilon),
        "keep": UpdateQTable(table, inputs.environment, inputs.journal, inputs.judge),
    }
    return episode_graph("tabular", FLOW, nodes, **compile)
