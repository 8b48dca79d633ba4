"""The methods by name: what the command line offers, and how each is put together from the same parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.graph.state import CompiledStateGraph

from ..memory.experiences import TrajectoryShelf
from ..memory.journal import Journal
from ..memory.q_table import QTable
from ..memory.records import UserError
from ..nodes.episode import Environment
from ..nodes.policies import UniformPolicy
from . import jitrl
from .baselines import static, tabular
from .flow import Node

Graph = CompiledStateGraph[Any, Any, Any, Any]


@dataclass(frozen=True)
class Parts:
    """What a method is put together from."""

    environment: Environment
    policy: Node
    """Proposes candidates with logits."""
    journal: Journal
    shelf: TrajectoryShelf | None = None
    """Where finished episodes are kept for good; None keeps them in the process."""
    judge: Node | None = None
    """Rewards the steps of a finished episode; None: the environment's own rewards."""


@dataclass(frozen=True)
class Method:
    """A name on the command line."""

    summary: str
    settings: type
    """Its hyper-parameters, a dataclass with defaults."""
    build: Callable[..., Graph]
    """(parts, settings, chain=, **compile) -> the graph of an episode."""
    needs_model: bool = True
    remembers: bool = True
    """Whether it keeps finished episodes on a shelf."""


def _jitrl(parts: Parts, settings: jitrl.JitRL, **compile: Any) -> Graph:
    memory = settings.memory(parts.shelf)
    return jitrl.build(parts.environment, parts.policy, memory, parts.journal, settings, parts.judge, **compile)


def _static(parts: Parts, settings: static.Static, **compile: Any) -> Graph:
    return static.build(parts.environment, parts.policy, parts.journal, settings, **compile)


def _random(parts: Parts, settings: static.Static, **compile: Any) -> Graph:
    return static.build(parts.environment, UniformPolicy(), parts.journal, settings, **{"name": "random", **compile})


def _tabular(parts: Parts, settings: tabular.Tabular, **compile: Any) -> Graph:
    table = QTable(parts.shelf, settings.gamma, settings.rate)
    return tabular.build(parts.environment, table, parts.journal, settings, **compile)


METHODS: Mapping[str, Method] = {
    "jitrl": Method("recalls what similar states earned, adds the advantage to the logits", jitrl.JitRL, _jitrl),
    "static": Method("the policy alone, every episode as if it were the first", static.Static, _static, remembers=False),
    "random": Method("any admissible action", static.Static, _random, needs_model=False, remembers=False),
    "tabular": Method("Q-learning over exact states, no language model", tabular.Tabular, _tabular, needs_model=False),
}


def method(name: str) -> Method:
    """The method of this name.

    Raises:
        UserError: there is none; says which there are.
    """
    if name not in METHODS:
        raise UserError(f"no method is called '{name}'; there are {', '.join(sorted(METHODS))}")
    return METHODS[name]
