"""The methods by name: what the command line offers, and how each is put together from the same parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from langgraph.graph.state import CompiledStateGraph

from ..memory.errors import UserError
from ..memory.q_table import QTable
from ..nodes.act.policies import RecentStepsPrompt
from . import adamem, icrl, jitrl, training_free_grpo
from .baselines import (
    best_of_n,
    cot,
    long_cot,
    react,
    reasoning_bank,
    reflexion,
    self_refine,
    static,
    synapse,
    tabular,
    tool_agent,
)
from .wiring.parts import MethodInputs, uniform_policy

Graph = CompiledStateGraph[Any, Any, Any, Any]


@dataclass(frozen=True)
class Method:
    """A name on the command line."""

    summary: str
    settings: type
    """Its hyper-parameters, a dataclass with defaults; its class methods are presets."""
    build: Callable[..., Graph]
    """(parts, settings, chain=, **compile) -> the graph of an episode; see `learns`."""
    needs_model: bool = True
    has_memory: bool = True
    """Whether it keeps finished episodes on a shelf."""
    needs_logits: bool = False
    """Whether it works with logits: a model that is not scored then states its confidence in several actions."""
    needs_writer: bool = False
    """Whether it has a model write, also where policies only score actions."""
    needs_writing_policy: bool = False
    """Whether its actions come from a model that writes, so that a model that scores them will not do."""
    commit: Literal["best", "last"] = "best"
    """Which attempt a run ends with: the one with the highest reward that the method saw, or the last."""
    has_training_phase: bool = False
    """Whether it learns on some problems to play others: `build` makes the graph of learning, and not of an episode."""


def _jitrl(parts: MethodInputs, settings: jitrl.JitRL, **compile: Any) -> Graph:
    memory = settings.memory(parts.shelf)
    policy = parts.make_policy(RecentStepsPrompt(parts.journal, parts.history_steps))
    return jitrl.build(parts.environment, policy, memory, parts.journal, settings, parts.judge, **compile)


def _static(parts: MethodInputs, settings: static.Static, **compile: Any) -> Graph:
    policy = parts.make_policy(RecentStepsPrompt(parts.journal, parts.history_steps))
    return static.build(parts.environment, policy, parts.journal, settings, **compile)


def _random(parts: MethodInputs, settings: static.Static, **compile: Any) -> Graph:
    return _static(replace(parts, make_policy=uniform_policy), settings, **{"name": "random", **compile})


def _tabular(parts: MethodInputs, settings: tabular.Tabular, **compile: Any) -> Graph:
    table = QTable(parts.shelf, settings.gamma, settings.learning_rate)
    return tabular.build(parts.environment, table, parts.journal, settings, **compile)


METHODS: Mapping[str, Method] = {
    "jitrl": Method(
        "recalls what similar states earned, adds the advantage to the logits", jitrl.JitRL, _jitrl, needs_logits=True
    ),
    "icrl": Method("shows the model its own attempts with their rewards, round after round", icrl.ICRL, icrl.build),
    "adamem": Method(
        "recalls what was done in states like the present one, and writes a strategy from it on the spot",
        *(adamem.AdaMEM, adamem.build),
    ),
    "training-free-grpo": Method(
        "learns lessons by comparing attempts at many problems, and plays others with them",
        *(training_free_grpo.TrainingFreeGRPO, training_free_grpo.build),
        has_memory=False,
        has_training_phase=True,
    ),
    "react": Method(
        "thinks and acts in turns; nothing is carried over", react.ReAct, react.build, has_memory=False, commit="last"
    ),
    "cot": Method(
        "reasons step by step, then answers, in one pass",
        *(cot.ChainOfThought, cot.build),
        has_memory=False,
        needs_writing_policy=True,
        commit="last",
    ),
    "long-cot": Method(
        "tries, checks and tries again within one reply, then answers",
        *(long_cot.LongChainOfThought, long_cot.build),
        has_memory=False,
        needs_writing_policy=True,
        commit="last",
    ),
    "tool-agent": Method(
        "calls tools as its API offers it, until it writes its answer; what run training-free-grpo --tools gives them to",
        *(tool_agent.ToolAgent, tool_agent.build),
        has_memory=False,
        needs_writing_policy=True,
        commit="last",
    ),
    "best-of-n": Method("independent attempts, the one with the highest reward wins", best_of_n.BestOfN, best_of_n.build),
    "self-refine": Method(
        "criticises its own attempt, and makes another; sees no reward",
        *(self_refine.SelfRefine, self_refine.build),
        needs_writer=True,
        commit="last",
    ),
    "reflexion": Method(
        "writes down after every attempt what to do differently", reflexion.Reflexion, reflexion.build, needs_writer=True
    ),
    "synapse": Method(
        "shows whole earlier attempts at the task most like this one, the same at every step", synapse.Synapse, synapse.build
    ),
    "reasoning-bank": Method(
        "keeps lessons from successes and failures, shows those of the task most like this one",
        *(reasoning_bank.ReasoningBank, reasoning_bank.build),
        needs_writer=True,
    ),
    "static": Method(
        "the policy alone, every episode as if it were the first",
        *(static.Static, _static),
        has_memory=False,
        needs_logits=True,
        commit="last",
    ),
    "random": Method("any admissible action", static.Static, _random, needs_model=False, has_memory=False, commit="last"),
    "tabular": Method("Q-learning over exact states, no language model", tabular.Tabular, _tabular, needs_model=False),
}


def find_method(name: str) -> Method:
    """The method of this name.

    Raises:
        UserError: there is none; says which there are.
    """
    if name not in METHODS:
        raise UserError(f"no method is called '{name}'; there are {', '.join(sorted(METHODS))}")
    return METHODS[name]
