"""Judges that know the world's rewards and change them, for controls: the learner sees changed rewards, the score stays the world's.

A method should do as well with them, or find out what is new: a constant in every reward means nothing, and dense rewards in
hindsight say the same in another way.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...memory.errors import UserError
from ...memory.storage.journal import Journal
from ..state import HeadChannel, RewardChannels
from .judge import EnvironmentJudge

__all__ = ["ChangedRewards", "hindsight_judge", "shift_judge"]


@dataclass(frozen=True)
class ChangedRewards:
    """Judge by the environment's rewards after a change. A step without a reward stays without one."""

    role: ClassVar[str] = "compute"

    journal: Journal
    change: Callable[[Sequence[float]], Sequence[float]]
    """The known rewards of an episode in order -> as many others."""
    credits_future: bool = False
    """True if a changed reward counts all that followed from its step."""

    def __call__(self, state: HeadChannel) -> RewardChannels:
        found = EnvironmentJudge(self.journal)(state)
        known = iter(self.change([reward for reward in found["rewards"] if reward is not None]))
        return {**found, "rewards": [None if reward is None else next(known) for reward in found["rewards"]]}


def shift_judge(journal: Journal, text: str) -> ChangedRewards:
    """Add a constant to every reward.

    Args:
        journal: holds the attempt.
        text: the constant, in the world's units.

    Raises:
        UserError: it is no finite number.
    """
    try:
        constant = float(text)
    except ValueError:
        constant = math.nan
    if not math.isfinite(constant):
        raise UserError(f"--judge shift:C adds the number C to every reward, as in shift:-0.1; got {text!r}")
    return ChangedRewards(journal, lambda rewards: [reward + constant for reward in rewards])


def hindsight_judge(journal: Journal) -> ChangedRewards:
    """Reward every step by all that followed from it (`hindsight_rewards`)."""
    return ChangedRewards(journal, hindsight_rewards, credits_future=True)


def hindsight_rewards(rewards: Sequence[float]) -> list[float]:
    """Dense rewards in [-10, 10] that count all that followed, as JitRL's judge gives them.

    10 for a step that pays, 10 * 0.9^d for a step d steps before the next step that pays, -5 for a step that loses points, and
    -2 for a step after which nothing is paid any more.
    """
    found: list[float] = []
    ahead: float | None = None
    for reward in reversed(rewards):
        ahead = 10.0 if reward > 0 else None if ahead is None else 0.9 * ahead
        found.append(-5.0 if reward < 0 else -2.0 if ahead is None else ahead)
    return found[::-1]
