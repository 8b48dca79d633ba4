"""What methods are put together from: an environment, a way to make policies, a journal, a judge, a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import Runnable
from typing_extensions import TypedDict

from ..memory.experiences import TrajectoryShelf
from ..memory.journal import Journal
from ..memory.records import UserError
from ..nodes.attempts import Layout
from ..nodes.episode import Environment
from ..nodes.judge import EnvironmentJudge
from ..nodes.policies import Seen, UniformPolicy
from .flow import Node

_LAYOUT = Layout()
WINDOW = 32_768
"""Tokens of the window of a model that does not say."""


def estimated(text: str) -> int:
    """Tokens of a text for a model that does not count them itself: three characters each, more than most need."""
    return -(-len(text) // 3)


def uniform(seen: Seen) -> Node:
    """A policy that looks at nothing: any admissible action."""
    return UniformPolicy()


class Shown(TypedDict):
    """The arguments of `nodes.attempts.Running` that every method shares."""

    journal: Journal
    layout: Layout
    count: Callable[[str], int]
    window: int
    brief: str


@dataclass(frozen=True)
class Parts:
    """What a method is put together from."""

    environment: Environment
    journal: Journal
    policy: Callable[[Seen], Node] = uniform
    """Makes the node that proposes candidates with logits, from what its prompts show."""
    shelf: TrajectoryShelf | None = None
    """Where finished episodes are kept for good; None keeps them in the process."""
    judge: Node | None = None
    """Rewards the steps of a finished episode; None: the environment's own rewards."""
    recent: int | None = None
    """How many earlier steps of the episode a policy without a method of its own is shown; None: all."""
    model: Runnable[Any, Any] | None = None
    """A chat model, for methods that have something written."""
    write: Callable[[Seen, str], Node] | None = None
    """Makes a policy that writes with a prompt of that name; None: the model only scores actions."""
    count: Callable[[str], int] = estimated
    """Tokens of a text, as the model counts."""
    window: int = WINDOW
    """Tokens of the longest prompt and reply together."""
    prompts: Path | None = None
    """A directory whose prompt files take the place of those of the same name."""

    def judged(self) -> Node:
        """The judge, or the environment's rewards."""
        return self.judge or EnvironmentJudge(self.journal)

    def running(self, layout: Layout = _LAYOUT, brief: str = "") -> Shown:
        """What `Running` and its kind need to know, by name.

        The running attempt is written as `layout` says, but without rewards where a judge will give them at the end.
        """
        hidden: Literal["none"] = "none"
        return {
            "journal": self.journal,
            "layout": replace(layout, rewards=hidden) if self.judge else layout,
            "count": self.count,
            "window": self.window,
            "brief": brief,
        }

    def asked(self, method: str) -> Runnable[Any, Any]:
        """The chat model, for a method that cannot do without.

        Raises:
            UserError: there is none.
        """
        if self.model is None:
            raise UserError(f"{method} has a model write; use --model pocket, local:PATH or openai:NAME, not a uniform prior")
        return self.model

    def writer(self, method: str) -> Callable[[Seen, str], Node]:
        """What makes policies that write, for a method that cannot do without.

        Raises:
            UserError: the model only scores actions.
        """
        if self.write is None:
            raise UserError(f"{method} reasons in writing before it acts; give a model that writes (--model openai:NAME)")
        return self.write
