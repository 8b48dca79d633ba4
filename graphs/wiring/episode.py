"""The parts of an episode that methods share: the temperature of the choice, and the nodes around the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...memory.attempts.buffer import Buffer
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin
from ...nodes.retrieve.attempts import Push
from .flow import Node
from .inputs import SHARED, MethodInputs

__all__ = ["ChoiceSettings", "attempt_nodes", "episode_nodes"]


@dataclass(frozen=True)
class ChoiceSettings:
    """The hyper-parameter of every method that draws its action from scored ones."""

    temperature: float = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax over scored actions; 0 takes the best. A model that writes has its own temperature."""


def episode_nodes(
    inputs: MethodInputs, temperature: float = 1.0, initial_values: Mapping[str, Any] | None = None
) -> dict[str, Node]:
    """The nodes `begin`, `choose` and `act` of an episode whose journal keeps the candidates of each step.

    Args:
        inputs: the world and the journal.
        temperature: of the softmax over scored actions; 0 takes the best.
        initial_values: the first values of the method's own channels, by name.
    """
    return {
        "begin": Begin(inputs.environment, initial_values or {}),
        "choose": Choose(temperature),
        "act": Act(inputs.environment, inputs.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
    }


def attempt_nodes(inputs: MethodInputs, temperature: float, buffer: Buffer) -> dict[str, Node]:
    """The nodes of `episode_nodes`, `judge`, and `push`, which adds the finished attempt to the buffer."""
    judge, push = inputs.judge_node(), Push(buffer, inputs.environment, inputs.journal)
    return {**episode_nodes(inputs, temperature), "judge": judge, "push": push}
