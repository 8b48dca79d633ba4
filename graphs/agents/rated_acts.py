"""The ratings of the same act in the same situation: they speak for a lesson about the act, or against the lesson."""

import math
import re
from collections import Counter, defaultdict
from typing import NamedTuple

from ...memory.conversations.messages import REPLY
from ...memory.conversations.reviews import REJECTED
from ...memory.records import Trajectory
from ...memory.search.similarity import words

__all__ = ["Evidence", "RatedActs"]

CLEAR = 2.0
"""Standard errors between the ratings against a lesson and the ratings for it, if both were equally likely."""
_NUMBERED = re.compile(r"[^\s'\"(),;=]*\d[^\s'\"(),;=]*")


class Evidence(NamedTuple):
    """The number of ratings for a lesson, with that of its own conversation, and of ratings against the lesson; each user counts once."""

    agree: int
    differ: int

    @property
    def is_outnumbered(self) -> bool:
        """True if the ratings against the lesson are clearly more: seven to one, nine to two."""
        return self.differ - self.agree > CLEAR * math.sqrt(self.differ + self.agree)


class _Act(NamedTuple):
    done: str
    """The situation, whose one word may decide, and the calls in it, without numbers."""
    success: bool
    who: str


class RatedActs:
    """The calls of rated conversations, by what was done, with numbers left out."""

    def __init__(self) -> None:
        self._acts = dict[str, _Act]()
        self._raters = defaultdict[tuple[str, bool], Counter[str]](Counter)
        """What was done, and its success -> the conversations in which each user rated it so."""

    def add(self, trajectory: Trajectory, success: bool | None) -> None:
        """Take in a conversation, in place of what was known of it; one without calls, or whose success is not known, says nothing."""
        if (known := self._acts.pop(trajectory.id, None)) is not None:
            raters = self._raters[known.done, known.success]
            raters[known.who] -= 1
            if not raters[known.who]:
                del raters[known.who]
        calls = [one.action for one in trajectory.transitions if not one.action.startswith((REPLY, REJECTED))]
        if calls and success is not None:
            situation = " ".join(words(_NUMBERED.sub("", trajectory.transitions[0].state)))
            done = "; ".join(dict.fromkeys([situation, *(_NUMBERED.sub("", call) for call in calls)]))
            self._acts[trajectory.id] = act = _Act(done, success, trajectory.user or trajectory.id)
            self._raters[done, success][act.who] += 1

    def evidence(self, id: str) -> Evidence:
        """The ratings of what was done in a conversation."""
        if (own := self._acts.get(id)) is None:
            return Evidence(0, 0)
        return Evidence(len(self._raters[own.done, own.success]), len(self._raters[own.done, not own.success]))
