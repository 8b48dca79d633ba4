"""The ratings of the same act in the same situation: they speak for a lesson or an attempt, or against it."""

import math
import re
from collections import Counter, defaultdict
from itertools import islice
from typing import NamedTuple

from ...memory.conversations.messages import REPLY
from ...memory.conversations.reviews import REJECTED
from ...memory.records import Trajectory
from ...memory.search.similarity import words

__all__ = ["Evidence", "RatedActs"]

CLEAR = 2.0
"""Standard errors between the ratings against a lesson and the ratings for it, if both were equally likely."""
LAST, MOST_AGAINST = 5, 3
"""Newest ratings of an act, and how many of these may be against an attempt that is shown."""
MOST_READ = 50
"""Newest ratings of an act among which those of different users are looked for."""
WHY_OUTDATED = f"at least {MOST_AGAINST + 1} of the last {LAST} ratings of the same act are against it"
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
        self._in_order = defaultdict[str, dict[str, _Act]](dict)
        """What was done -> its conversations by id, the newest last."""

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
            if known and known.done != done:
                del self._in_order[known.done][trajectory.id]
            self._acts[trajectory.id] = act = _Act(done, success, trajectory.user or trajectory.id)
            self._raters[done, success][act.who] += 1
            self._in_order[done][trajectory.id] = act  # one that is rated again keeps its place
        elif known:
            del self._in_order[known.done][trajectory.id]

    def evidence(self, id: str) -> Evidence:
        """The ratings of what was done in a conversation."""
        if (own := self._acts.get(id)) is None:
            return Evidence(0, 0)
        return Evidence(len(self._raters[own.done, own.success]), len(self._raters[own.done, not own.success]))

    def is_outdated(self, id: str) -> bool:
        """True if nearly all of the last ratings of what was done in a conversation are against its own; each user's newest counts."""
        if (own := self._acts.get(id)) is None:
            return False
        last: dict[str, bool] = {}
        for act in islice(reversed(self._in_order[own.done].values()), MOST_READ):
            last.setdefault(act.who, act.success)
        return sum(success != own.success for success in list(last.values())[:LAST]) > MOST_AGAINST
