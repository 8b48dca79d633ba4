"""The selection of attempts for a prompt, within a budget of tokens. Pure functions.

The policy, for any number of attempts:

1. If all of them fit, all are shown whole: the prompt only grows at its end.
2. Else the best and the newest are shown whole, before all others.
3. The others are divided at the last multiple of `block` before the newest. Of the older ones, repeats (the same actions and
   rewards) are merged with a count. Those with the most facts (state, action, sign of the reward) that neither the best nor one
   chosen before them shows are shown whole, further ones as one line each, by falling return; the rest is left out.
4. The later ones are appended: whole while there is room (repeats as a line), then as lines.

Each kind has its share of the budget, so that a larger budget never shows less. Between two multiples of `block` the prompt
changes only at its end, apart from the two attempts of rule 2, so caches of a prompt's beginning stay valid.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, count
from math import inf
from operator import itemgetter
from threading import Lock

from ...memory.records import Shown, Trajectory

__all__ = ["KnownAttempts", "all_attempts"]

TokenCost = Callable[[Shown, Trajectory], int]
"""(form, attempt) -> tokens of the attempt in this form."""

_SHARES = {"old": 0.4, "old lines": 0.1, "new": 0.25, "new lines": 0.05}
"""Shares of the budget once there are older attempts. The rest is for the best and the newest, which may take more."""


Fact = tuple[str, str, int | None]
"""(state, action, sign of the reward or None) of a step."""


def best_attempt(attempts: Sequence[Trajectory], known: KnownAttempts | None = None) -> Trajectory:
    """The attempt with the highest return; among equals the shortest, then the first. The newest if no return is known."""
    known = known or KnownAttempts()
    best = max(attempts, key=lambda t: (known(t).value, -len(t.transitions), -t.episode))
    return best if known(best).value > -inf else attempts[-1]


def all_attempts(attempts: Sequence[Trajectory]) -> list[Shown]:
    """All attempts, whole: the paper's unbounded buffer."""
    return [Shown(t.id) for t in attempts]


@dataclass(frozen=True)
class _Known:
    """All that the selection asks of an attempt, computed once."""

    attempt: Trajectory
    """Kept, so that its id stays unique."""
    identity: int
    """The number of its `attempt_identity`."""
    facts: int
    """A bit for each of its facts: whatever an attempt has that others lack is counted in one operation."""
    value: float
    """The return; -inf where it is not known."""


class KnownAttempts:
    """The cache of what `select_within_budget` asks of attempts: a run selects from the same ones in every later round."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by the id of the attempt's object
        self._identities: dict[Hashable, int] = {}  # identity -> its number
        self._facts: dict[Fact, int] = {}  # fact -> its bit
        self._older = _Older(self)
        self.lock = Lock()
        """Held during a selection: graphs in other threads may select, too."""

    def __call__(self, attempt: Trajectory) -> _Known:
        found = self._known.get(id(attempt))
        if found is None:
            number = self._identities.setdefault(attempt_identity(attempt), len(self._identities))
            facts = sum(1 << self._facts.setdefault(fact, len(self._facts)) for fact in _facts(attempt))
            value = -inf if attempt.value is None else attempt.value
            found = self._known[id(attempt)] = _Known(attempt, number, facts, value)
        return found

    def older(self, attempts: Sequence[Trajectory]) -> _Older:
        """The part of the selection that all rounds of a block share. From block to block only the further attempts are added to it."""
        have = self._older.attempts
        if attempts[: len(have)] != have:
            self._older = _Older(self)
        if len(attempts) > len(self._older.attempts):
            self._older.grow(attempts)
        return self._older


class _Older:
    """The older attempts of a selection, with repeats counted, and in the orders in which they are chosen."""

    def __init__(self, known: KnownAttempts) -> None:
        self.attempts: Sequence[Trajectory] = []
        self.best: list[Trajectory] = []  # one, or none yet
        self.counts: Counter[int] = Counter()  # identity -> attempts
        self.by_return: list[Trajectory] = []  # of every group of repeats the first
        self._known = known
        self._firsts: list[Trajectory] = []  # the same by time
        self._shown_facts = 0
        self._queue: list[tuple[int, float, int, int]] = []
        self._informative: list[Trajectory] = []
        self._further: Iterator[Trajectory] = iter(())

    def grow(self, attempts: Sequence[Trajectory]) -> None:
        """Add the attempts that follow those which are there."""
        for t in attempts[len(self.attempts) :]:
            self.best = [best_attempt([*self.best, t], self._known)]
            identity = self._known(t).identity
            if identity not in self.counts:
                insort(self.by_return, t, key=lambda t: (-self._known(t).value, -t.episode))
                self._firsts.append(t)
            self.counts[identity] += 1
        self.attempts = attempts
        self._rank()

    def informative(self, winner: Trajectory) -> Iterator[Trajectory]:
        """One of each group of repeats, by the facts that neither `winner` nor earlier ones have. It goes only as far as it is read.

        Without any return the winner is just the newest, another one in every round: then its facts do not count.
        """
        shown = self._known(winner).facts if self._known(winner).value > -inf else 0
        if self._shown_facts != shown:
            self._shown_facts, self._queue = shown, []
            self._rank()
        for n in count():
            if n == len(self._informative):
                following = next(self._further, None)
                if following is None:
                    return
                self._informative.append(following)
            yield self._informative[n]

    def _rank(self) -> None:
        """Begin to choose anew. Those that were compared with what is shown need not be compared again."""
        for n, t in enumerate(self._firsts[len(self._queue) :], len(self._queue)):
            known = self._known(t)
            self._queue.append((-(known.facts & ~self._shown_facts).bit_count(), -known.value, -t.episode, n))
        self._informative, self._further = [], _most_informative(self._firsts, self._queue, self._shown_facts, self._known)


def select_within_budget(
    attempts: Sequence[Trajectory], size: TokenCost, budget: int, block: int = 5, known: KnownAttempts | None = None
) -> list[Shown]:
    """The attempts to show, in the order of `attempts`, by the policy above.

    Args:
        attempts: oldest first, at least one.
        size: tokens of an attempt in a given form.
        budget: the greatest number of tokens of all shown attempts together.
        block: the older attempts are selected anew every `block` attempts.
        known: what earlier calls have computed of the attempts.
    """
    if all(spent <= budget for spent in accumulate(size(Shown(t.id), t) for t in attempts)):
        return all_attempts(attempts)
    known = known or KnownAttempts()
    with known.lock:
        return _select(attempts, size, budget, block, known)


def _select(attempts: Sequence[Trajectory], size: TokenCost, budget: int, block: int, known: KnownAttempts) -> list[Shown]:
    """The selection where not all attempts fit."""
    anchor = (len(attempts) - 1) // block * block  # the newest is always a later one
    older, new = known.older(attempts[:anchor]), attempts[anchor:]
    chosen: dict[str, tuple[int, Shown]] = {}  # id -> episode, form
    whole: set[int] = set()  # identities

    def take(found: Iterable[tuple[Trajectory, bool]], room: float) -> None:
        """Choose these up to the first that does not fit, so that a larger room takes the same ones and more."""
        used = 0
        for t, entire in found:
            shown = Shown(t.id, entire, older.counts.get(known(t).identity, 1) if entire else 1)
            cost = size(shown, t)
            if used + cost > room:
                break
            chosen[t.id] = (t.episode, shown)
            used += cost
            if entire:
                whole.add(known(t).identity)

    winner, newest = best_attempt([*older.best, *new], known), attempts[-1]
    first = [winner] if known(winner).identity == known(newest).identity else [winner, newest]
    # Their room is reserved even if they do not fit, so that a larger budget never leaves less for the others.
    spent = sum(size(Shown(t.id, True, older.counts.get(known(t).identity, 1)), t) for t in first)
    take(((t, True) for t in first), budget)
    if not chosen:
        take([(winner, False)], budget)
    fixed = [t for t in first if t.id in chosen]
    seen = {known(t).identity for t in fixed}
    shares = _SHARES if anchor else {"old": 0.0, "old lines": 0.0, "new": 0.6, "new lines": 0.2}
    rest = sum(shares.values())
    rooms = {name: max(0.0, min(share * budget, (budget - spent) * share / rest)) for name, share in shares.items()}

    take(((t, True) for t in older.informative(winner) if known(t).identity not in seen), rooms["old"])
    lines = (t for t in older.by_return if known(t).identity not in seen and t.id not in chosen)
    take(((t, False) for t in lines), rooms["old lines"])

    later = [t for t in new if t not in fixed]
    repeats = {
        t.id
        for n, t in enumerate(later)
        if known(t).identity in whole or any(known(t).identity == known(s).identity for s in later[:n])
    }
    take(((t, True) for t in later if t.id not in repeats), rooms["new"])
    take(((t, False) for t in later if t.id not in chosen), rooms["new lines"])
    return [shown for _, shown in sorted(chosen.values(), key=itemgetter(0))]


def attempt_identity(trajectory: Trajectory) -> Hashable:
    """A key that equal attempts share: actions in canonical form, rewards, and the note.

    Attempts with the same actions but different rewards (a judge may err) are different evidence, and stay apart.
    """
    steps = tuple((" ".join(step.action.lower().split()), step.reward) for step in trajectory.transitions)
    return steps, trajectory.note


def _most_informative(
    attempts: Sequence[Trajectory], queue: Sequence[tuple[int, float, int, int]], shown: int, known: KnownAttempts
) -> Iterator[Trajectory]:
    """The attempts, greedily by the number of facts that are neither `shown` nor in earlier ones; then higher return, newer.

    That number only falls. So one that is still the best after counting anew needs no comparison with the others, whose numbers
    are too high if anything.

    Args:
        attempts: one of each group of repeats.
        queue: for each its number of facts that are not shown, its return and its episode, all negative, and its place in `attempts`.
        shown: a bit for each fact that is shown.
        known: what is known of the attempts.
    """
    left = list(queue)
    heapify(left)
    while left:
        _, value, episode, n = left[0]
        facts = known(attempts[n]).facts
        counted = (-(facts & ~shown).bit_count(), value, episode, n)
        if counted > left[0]:
            heapreplace(left, counted)
            continue
        heappop(left)
        shown |= facts
        yield attempts[n]


def _facts(trajectory: Trajectory) -> set[Fact]:
    return {
        (step.state, step.action, None if step.reward is None else (step.reward > 0) - (step.reward < 0))
        for step in trajectory.transitions
    }
