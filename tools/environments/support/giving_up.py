"""A world with a further action in every state, `give up`, that ends the episode at no cost: `toy?gives_up=true`.

To give up pays nothing and takes nothing, so a method that learns should find out that it ends what could still be paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....memory.errors import UserError
from ....memory.records import Observation, Task

__all__ = ["WorldToGiveUp"]

GIVE_UP = "give up"
"""The action that ends an episode and costs no points."""


class WorldToGiveUp:
    """The world itself, with `GIVE_UP` among the actions of every state that lists its actions.

    Args:
        world: the world.
        text: the setting's value, `true`.

    Raises:
        UserError: the value is another, or the world takes written answers and lists no actions.
    """

    def __init__(self, world: Any, text: str) -> None:
        if text != "true":
            raise UserError(f"{world.name}: gives_up=true adds the action {GIVE_UP!r}; got {text!r}")
        if hasattr(world, "read"):
            raise UserError(f"{world.name}: a world of written answers lists no actions to add {GIVE_UP!r} to")
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_world":  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self._world, name)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions."""
        if actions and actions[-1] == GIVE_UP:
            before: Observation = self._world.observe(task, actions[:-1])
            return replace(before, actions=(), reward=0.0, over=True)
        shown: Observation = self._world.observe(task, actions)
        return replace(shown, actions=tuple(sorted((*shown.actions, GIVE_UP)))) if shown.actions else shown
