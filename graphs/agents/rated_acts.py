"""The ratings of the same act in the same situation: they speak for a lesson or an attempt, or against it."""

import math
import re
from collections import defaultdict
from collections.abc import Container
from itertools import islice
from typing import NamedTuple

from ...memory.conversations.messages import REPLY
from ...memory.conversations.reviews import REJECTED
from ...memory.records import Trajectory
from ...memory.search.similarity import words

__all__ = ["Evidence", "RatedActs"]

CLEAR = 2.0
"""Standard errors between the ratings against a lesson and the ratings for it, if both were equally likely."""
NEWEST = 8
"""Newest ratings of an act that count for its lessons and its value, and steps that a strategist reads, so that these follow a truth
that changes."""
MOST_ALIKE = 64
"""Conversations most like the present one, of which the best that are not outdated are shown."""
LAST, MOST_AGAINST = 5, 3
"""Newest ratings of an act, and how many of these may be against an attempt that is shown."""
MOST_READ = 50
"""Newest ratings of an act among which those of different users are looked for."""
WHY_OUTDATED = f"at least {MOST_AGAINST + 1} of the last {LAST} ratings of the same act are against it"
_NUMBERED = re.compile(r"[^\s'\"(),;=]*\d[^\s'\"(),;=]*")


class Evidence(NamedTuple):
    """The number of ratings for a lesson and against it, among the newest of the same act; each user's newest counts."""

    agree: int
    differ: int

    @property
    def is_outnumbered(self) -> bool:
        """True if the ratings against the lesson are clearly more: five to none, seven to one."""
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
        self._in_order = defaultdict[str, dict[str, _Act]](dict)
        """What was done -> its conversations by id, the newest last."""

    def add(self, trajectory: Trajectory, success: bool | None) -> None:
        """Take in a conversation, in place of what was known of it; one without calls, or whose success is not known, says nothing."""
        known = self._acts.pop(trajectory.id, None)
        calls = [one.action for one in trajectory.transitions if not one.action.startswith((REPLY, REJECTED))]
        if calls and success is not None:
            situation = " ".join(words(_NUMBERED.sub("", trajectory.transitions[0].state)))
            done = "; ".join(dict.fromkeys([situation, *(_NUMBERED.sub("", call) for call in calls)]))
            if known and known.done != done:
                del self._in_order[known.done][trajectory.id]
            self._acts[trajectory.id] = act = _Act(done, success, trajectory.user or trajectory.id)
            self._in_order[done][trajectory.id] = act  # one that is rated again keeps its place
        elif known:
            del self._in_order[known.done][trajectory.id]

    def evidence(self, id: str) -> Evidence:
        """The newest ratings of what was done in a conversation."""
        if (own := self._acts.get(id)) is None:
            return Evidence(0, 0)
        ratings = self._newest_ratings(own.done)[:NEWEST]
        return Evidence(ratings.count(own.success), ratings.count(not own.success))

    def is_old(self, id: str, among: Container[str]) -> bool:
        """True if what was done in a conversation was rated in `NEWEST` later ones among some, by as many users besides its own."""
        if (own := self._acts.get(id)) is None:
            return False
        since = set[str]()
        for other, act in islice(reversed(self._in_order[own.done].items()), MOST_READ):
            if other == id or len(since) == NEWEST:
                break
            since |= {act.who} - {own.who} if other in among else set()
        return len(since) == NEWEST

    def is_outdated(self, id: str) -> bool:
        """True if nearly all of the last ratings of what was done in a conversation are against its own; each user's newest counts."""
        if (own := self._acts.get(id)) is None:
            return False
        return self._newest_ratings(own.done)[:LAST].count(not own.success) > MOST_AGAINST

    def _newest_ratings(self, done: str) -> list[bool]:
        """The outcomes of an act in the newest conversation of each user, the newest first."""
        last: dict[str, bool] = {}
        for act in islice(reversed(self._in_order[done].values()), MOST_READ):
            last.setdefault(act.who, act.success)
        return list(last.values())
