"""Checks of the arguments that every environment takes: settings, step limit, split and task number, actions.

Each check raises a UserError that begins with the environment's name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ....memory.errors import UserError, plural
from ....memory.records import Task

__all__ = []

_Item = TypeVar("_Item")


def check_settings(owner: str, settings: Iterable[str], known: Sequence[str]) -> None:
    """Raise a UserError if a setting is not among the known ones."""
    for key in settings:
        if key not in known:
            raise UserError(f"{owner} no setting {key!r}; it has {', '.join(known) or 'none'}")


def check_horizon(name: str, horizon: int) -> None:
    """Raise a UserError if a step limit is below 1."""
    if horizon < 1:
        raise UserError(f"{name}: horizon must be at least 1, got {horizon}")


def check_split(name: str, split: str, splits: Iterable[str] = ("train", "dev", "test")) -> None:
    """Raise a UserError if there is no such split."""
    known = tuple(splits)
    if split not in known:
        raise UserError(f"{name}: no split {split!r}; there are {', '.join(known)}")


def pick_task(name: str, splits: Mapping[str, Sequence[_Item]], split: str, seed: int, note: str = "") -> _Item:
    """The `seed`-th item of a split.

    Args:
        name: the environment's, for messages.
        splits: by split, its items (numbers of tasks, puzzles, …).
        split: the split.
        seed: place in it, from 0.
        note: end of the message if there is no such task.
    """
    check_split(name, split, splits)
    items = splits[split]
    if not 0 <= seed < len(items):
        have = f"tasks 0 to {len(items) - 1}" if items else "no tasks"
        raise UserError(f"{name}: {split} has {have}, got {seed}{note}")
    return items[seed]


def check_actions(name: str, actions: Sequence[str]) -> None:
    """Raise a UserError if one text was given in the place of a sequence of actions."""
    if isinstance(actions, str):
        raise UserError(f"{name}: actions must be a sequence of strings, got the string {actions!r}")


def check_step(name: str, task: Task, step: int, action: object, over: bool, *, empty: bool = False) -> None:
    """Raise a UserError if the episode was over before an action, or the action is not a text."""
    if over:
        raise UserError(f"{name}: {task.id} was over after {plural(step, 'step')}, got one more action: {action!r}")
    if not isinstance(action, str) or not (empty or action.strip()):
        raise UserError(f"{name}: step {step} of {task.id}: the action must be a text, got {action!r}")
