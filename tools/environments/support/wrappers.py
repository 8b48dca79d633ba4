"""Worlds with something added, by a setting that any world takes.

| setting | the world |
|---|---|
| `toy?gives_up=true` | a further action in every state, `give up`, ends the episode and pays nothing: a method that learns should find out that it ends what could still be paid |
| `toy?prior=right-.99` | comes with a policy that is nearly sure of the solution's action in the states of the solution, and uniform elsewhere |
| `toy?prior=wrong-.9` | the same, sure of another action there, always the same one: a method that learns should unlearn it |
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from ....memory.errors import UserError
from ....memory.records import Candidate, Observation, Task

__all__ = []

GIVE_UP = "give up"
"""The action that ends an episode and costs no points."""


class _WrappedWorld:
    """A world that is another one but for what its class says."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_world":  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self._world, name)


class WorldToGiveUp(_WrappedWorld):
    """The world itself, with `GIVE_UP` among the actions of every state that lists its actions."""

    def __init__(self, world: Any, text: str) -> None:
        super().__init__(world)
        if text != "true":
            raise UserError(f"{world.name}: gives_up=true adds the action {GIVE_UP!r}; got {text!r}")
        if hasattr(world, "read"):
            raise UserError(f"{world.name}: a world of written answers lists no actions to add {GIVE_UP!r} to")

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions."""
        if actions and actions[-1] == GIVE_UP:
            before: Observation = self._world.observe(task, actions[:-1])
            return replace(before, actions=(), reward=0.0, over=True)
        shown: Observation = self._world.observe(task, actions)
        return replace(shown, actions=tuple(sorted((*shown.actions, GIVE_UP)))) if shown.actions else shown


class WorldWithPrior(_WrappedWorld):
    """The world itself, with a `policy` beside it that takes the place of a model.

    Args:
        world: a world with a known solution (`gold`).
        text: the setting's value, `right-P` or `wrong-P`, with the probability P of the prior's action.
    """

    def __init__(self, world: Any, text: str) -> None:
        super().__init__(world)
        found = re.fullmatch(r"(right|wrong)-(0?\.\d+)", text)
        if found is None or not 0 < float(found[2]) < 1:
            raise UserError(
                f"{world.name}: prior is right-P or wrong-P with a probability P, as in prior=wrong-.9; got {text!r}"
            )
        if not hasattr(world, "gold"):
            raise UserError(f"{world.name}: a prior is made from the world's solution, and this world has none")
        self.policy = SurePrior(world, float(found[2]), found[1] == "right")


class SurePrior:
    """A policy that proposes every admissible action with its log-probability, as policies of models do.

    Args:
        world: a world with a known solution.
        probability: the probability of the favourite action, below 1; the others share the rest.
        is_right: True: the favourite is the solution's action; False: another one.
    """

    role: ClassVar[str] = "compute"

    def __init__(self, world: Any, probability: float, is_right: bool) -> None:
        self.world, self.probability, self.is_right = world, probability, is_right
        self._solutions: dict[str, dict[str, str]] = {}  # by task

    def __call__(self, state: Mapping[str, Any]) -> dict[str, list[Candidate]]:
        shown, task = state["observation"], state["task"]
        favourite = self._favourite(task, self.world.abstract(shown), shown.actions)
        count = len(shown.actions)
        if favourite is None:
            return {"candidates": [Candidate(action, -math.log(count)) for action in shown.actions]}
        rest = math.log((1 - self.probability) / (count - 1))
        logits = {action: math.log(self.probability) if action == favourite else rest for action in shown.actions}
        return {"candidates": [Candidate(*one) for one in logits.items()]}

    def _favourite(self, task: Task, key: str, actions: tuple[str, ...]) -> str | None:
        """The action that it is sure of; None outside the solution and where there is no choice."""
        if task.id not in self._solutions:
            self._solutions[task.id] = self._solution_by_state(task)
        right = self._solutions[task.id].get(key)
        if right not in actions or len(actions) < 2:
            return None
        return right if self.is_right else Random(f"wrong {key}").choice([action for action in actions if action != right])

    def _solution_by_state(self, task: Task) -> dict[str, str]:
        """State -> the action that the world's solution takes there (the last one, where it takes several)."""
        found: dict[str, str] = {}
        taken: list[str] = []
        shown = self.world.observe(task, ())
        for action in self.world.gold(task):
            if shown.over:
                break
            found[self.world.abstract(shown)] = action
            taken.append(action)
            shown = self.world.observe(task, taken)
        return found
