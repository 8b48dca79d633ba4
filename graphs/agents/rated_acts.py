"""The ratings of the same act in the same situation: they speak for a lesson or an attempt, or against it."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container
from itertools import islice
from typing import NamedTuple

from ...memory.conversations.messages import REPLY
from ...memory.conversations.reviews import REJECTED
from ...memory.records import Trajectory
from ...memory.search.similarity import words

__all__ = ["RatedActs", "names_a_call"]

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
_NAMES = re.compile(r"(\w+)\(|'([^']*)'")
"""The tool of a call, and the texts among its arguments."""


class _Act(NamedTuple):
    done: str
    """The situation, whose one word may decide, and the calls in it, without numbers."""
    success: bool
    who: str
    used: tuple[str, ...]
    """Ids of the conversations whose lessons were shown."""


class RatedActs:
    """The calls of rated conversations, by what was done, with numbers left out.

    Args:
        share: the share of one user in the newest conversations of an act, in (0, 1].
    """

    def __init__(self, share: float = 1.0) -> None:
        self._most = max(int(NEWEST * share), 1)
        self._acts = dict[str, _Act]()
        self._in_order = defaultdict[str, dict[str, _Act]](dict)
        """What was done -> its conversations by id, the newest last."""

    def add(self, trajectory: Trajectory, success: bool | None) -> None:
        """Take in a conversation, in place of what was known of it; one without calls, or whose success is not known, says nothing."""
        known = self._acts.pop(trajectory.id, None)
        if (calls := _calls(trajectory)) and success is not None:
            situation = " ".join(words(_NUMBERED.sub("", trajectory.transitions[0].state)))
            done = "; ".join(dict.fromkeys([situation, *(_NUMBERED.sub("", call) for call in calls)]))
            if known and known.done != done:
                del self._in_order[known.done][trajectory.id]
            self._acts[trajectory.id] = act = _Act(done, success, trajectory.user or trajectory.id, trajectory.used)
            self._in_order[done][trajectory.id] = act  # one that is rated again keeps its place
        elif known:
            del self._in_order[known.done][trajectory.id]

    def is_overruled(self, id: str, among: Container[str]) -> bool:
        """True if a conversation's lessons on its calls hold no more: the newest ratings of these are clearly against it, or `NEWEST`
        later ones among some have taken its place. A success speaks for the lessons that were shown before it."""
        if (own := self._acts.get(id)) is None:
            return False
        rated = self._newest(own.done, self._most)
        agree = sum(act.success == own.success or (act.success and id in act.used) for act in rated.values())
        later = self._newest(own.done, self._most, among)
        return len(rated) - 2 * agree > CLEAR * math.sqrt(len(rated)) or (len(later) == NEWEST and id not in later)

    def is_outdated(self, id: str) -> bool:
        """True if nearly all of the last ratings of what was done in a conversation are against its own; each user's newest counts."""
        if (own := self._acts.get(id)) is None:
            return False
        last = islice(self._newest(own.done, 1).values(), LAST)
        return sum(act.success != own.success for act in last) > MOST_AGAINST

    def _newest(self, done: str, most: int, among: Container[str] | None = None) -> dict[str, _Act]:
        """The newest `NEWEST` conversations of an act, among some, by id; of one user at most so many."""
        found, held = dict[str, _Act](), Counter[str]()
        for id, act in islice(reversed(self._in_order[done].items()), MOST_READ):
            if held[act.who] < most and (among is None or id in among):
                held[act.who] += 1
                found[id] = act
                if len(found) == NEWEST:
                    break
        return found


def names_a_call(trajectory: Trajectory, text: str) -> bool:
    """True if a text names a tool of a conversation, or a text of three characters or more in its calls, perhaps with `s`, `ed` or `ing`."""
    found = (one for call in _calls(trajectory) for one in _NAMES.findall(_NUMBERED.sub("", call)))
    names = "|".join(re.escape(_as_words(tool or given)) for tool, given in found if tool or len(_as_words(given)) > 3)
    return bool(names) and re.search(rf"(?:{names})(?:s|ed|ing)?(?!\S)", _as_words(text)) is not None


def _calls(trajectory: Trajectory) -> list[str]:
    return [one.action for one in trajectory.transitions if not one.action.startswith((REPLY, REJECTED))]


def _as_words(text: str) -> str:
    return "".join(f" {word}" for word in words(text))
