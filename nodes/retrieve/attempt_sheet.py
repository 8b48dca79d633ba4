"""Finished attempts as one text, for a model that is asked about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...memory.records import Trajectory
from ..fence import escape_tags
from .attempts import ContextError, Layout, fit_steps

__all__ = ["AttemptOutcome", "AttemptSheet"]


class AttemptOutcome(NamedTuple):
    """An attempt and how it ended."""

    trajectory: Trajectory
    success: bool | None
    """None: unknown."""
    why: str = ""
    """The reason that a judging model gave; empty without one."""


@dataclass(frozen=True)
class AttemptSheet:
    """Lay out attempts as a text that fits the window of the model that reads it."""

    layout: Layout
    count: Callable[[str], int] = field(default=len, repr=False)
    """Tokens of a text."""
    window: int = 2**31
    """Tokens that the text and the task's instruction may take together; the rest of the prompt is not counted."""

    def __call__(self, attempts: Sequence[AttemptOutcome], *, outcomes: bool = True) -> str:
        """The attempts one after the other, each within an equal share of the window; of longer ones, the last steps.

        Args:
            attempts: on one task, at least one.
            outcomes: whether the text says how each of several attempts ended, and what the judge said of it.

        Raises:
            ContextError: not even an attempt's head and total fit into its share.
        """
        task = attempts[0].trajectory.task
        share = (self.window - self.count(f"Task: {task.instruction}\n")) // len(attempts)
        sheet = ""
        for number, (trajectory, success, why) in enumerate(attempts, 1):
            word = {True: " (success)", False: " (failure)", None: ""}[success] if outcomes and len(attempts) > 1 else ""
            head = f"Attempt {number}{word}:\n"
            end = self.layout.attempt_end(trajectory) + (f"Judged: {escape_tags(why)}\n" if outcomes and why else "")
            steps = fit_steps(trajectory.transitions, self.layout, head + end, self.count, share)
            if steps is None:
                raise ContextError(
                    f"attempt {trajectory.id} does not fit into {share} tokens; use a model with a larger window"
                )
            sheet += head + steps + end
        return sheet
