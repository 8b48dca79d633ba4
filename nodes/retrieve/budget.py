"""The selection of attempts for a prompt, within a budget of tokens. Pure functions.

The policy, for any number of attempts:

1. If all of them fit, all are shown whole: the prompt only grows at its end.
2. Else the best and the newest are shown whole, before all others.
3. The others are divided at the last multiple of `block` before the newest. Of the older ones, repeats (the same actions and
   rewards) are merged with a count. Those with the most facts (state, action, sign of the reward) that no chosen attempt shows
   are shown whole, further ones as one line each, by falling return; the rest is left out.
4. The later ones are appended: whole while there is room (repeats as a line), then as lines.

Each kind has its share of the budget, so that a larger budget never shows less. Between two multiples of `block` the prompt
changes only at its end, apart from the two attempts of rule 2, so caches of a prompt's beginning stay valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import accumulate
from math import inf

from ...memory.records import Shown, Trajectory

__all__ = ["KnownAttempts", "all_attempts", "attempt_identity", "best_attempt", "select_within_budget"]

TokenCost = Callable[[Shown, Trajectory], int]
"""(form, attempt) -> tokens of the attempt in this form."""

_SHARES = {"old": 0.4, "old lines": 0.1, "new": 0.25, "new lines": 0.05}
"""Shares of the budget once there are older attempts. The rest is for the best and the newest, which may take more."""


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
    facts: set[tuple[str, str, int | None]]
    value: float
    """The return; -inf where it is not known."""


class KnownAttempts:
    """The cache of what `select_within_budget` asks of attempts: a run selects from the same ones in every later round."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by the id of the attempt's object
        self._identities: dict[Hashable, int] = {}  # identity -> its number

    def __call__(self, attempt: Trajectory) -> _Known:
        found = self._known.get(id(attempt))
        if found is None:
            number = self._identities.setdefault(attempt_identity(attempt), len(self._identities))
            value = -inf if attempt.value is None else attempt.value
            found = _Known(attempt, number, _facts(attempt), value)
            self._known[id(attempt)] = found
        return found


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
    known = known or KnownAttempts()
    if all(spent <= budget for spent in accumulate(size(Shown(t.id), t) for t in attempts)):
        return all_attempts(attempts)
    anchor = (len(attempts) - 1) // block * block  # the newest is always a later one
    old, new = attempts[:anchor], attempts[anchor:]
    chosen: dict[str, Shown] = {}
    by_id = {t.id: t for t in attempts}
    about = {t.id: known(t) for t in attempts}
    counts = Counter(about[t.id].identity for t in old)

    def take(found: Iterable[tuple[Trajectory, bool]], room: float) -> None:
        """Choose these up to the first that does not fit, so that a larger room takes the same ones and more."""
        used = 0
        for t, entire in found:
            shown = Shown(t.id, entire, counts.get(about[t.id].identity, 1) if entire else 1)
            cost = size(shown, t)
            if used + cost > room:
                break
            chosen[t.id] = shown
            used += cost

    winner, newest = best_attempt(attempts, known), attempts[-1]
    first = [winner] if about[winner.id].identity == about[newest.id].identity else [winner, newest]
    # Their room is reserved even if they do not fit, so that a larger budget never leaves less for the others.
    spent = sum(size(Shown(t.id, True, counts.get(about[t.id].identity, 1)), t) for t in first)
    take(((t, True) for t in first), budget)
    if not chosen:
        take([(winner, False)], budget)
    fixed = set(chosen)
    chosen_identities = {about[id].identity for id in chosen}
    shares = _SHARES if old else {"old": 0.0, "old lines": 0.0, "new": 0.6, "new lines": 0.2}
    rest = sum(shares.values())
    rooms = {name: max(0.0, min(share * budget, (budget - spent) * share / rest)) for name, share in shares.items()}

    firsts = {about[t.id].identity: t for t in reversed(old)}.values()  # of every group of repeats
    others = [t for t in reversed(firsts) if t.id not in fixed and about[t.id].identity not in chosen_identities]
    take(((t, True) for t in _most_informative(others, [by_id[id] for id in chosen], about)), rooms["old"])
    by_return = sorted(others, key=lambda t: (about[t.id].value, t.episode), reverse=True)
    take(((t, False) for t in by_return if t.id not in chosen), rooms["old lines"])

    later = [t for t in new if t.id not in fixed]
    seen = {about[id].identity for id, shown in chosen.items() if shown.whole}
    repeats = {
        t.id
        for n, t in enumerate(later)
        if about[t.id].identity in seen or any(about[t.id].identity == about[s.id].identity for s in later[:n])
    }
    take(((t, True) for t in later if t.id not in repeats), rooms["new"])
    take(((t, False) for t in later if t.id not in chosen), rooms["new lines"])
    return [chosen[t.id] for t in attempts if t.id in chosen]


def attempt_identity(trajectory: Trajectory) -> Hashable:
    """A key that equal attempts share: actions in canonical form, rewards, and the note.

    Attempts with the same actions but different rewards (a judge may err) are different evidence, and stay apart.
    """
    steps = tuple((" ".join(step.action.lower().split()), step.reward) for step in trajectory.transitions)
    return steps, trajectory.note


def _most_informative(
    attempts: Sequence[Trajectory], shown: Sequence[Trajectory], about: Mapping[str, _Known]
) -> Iterator[Trajectory]:
    """The attempts, greedily by the number of facts that neither `shown` nor earlier ones have; then higher return, newer.

    That number only falls. So one that is still the best after counting anew needs no comparison with the others, whose numbers
    are too high if anything.
    """
    told = {fact for t in shown for fact in about[t.id].facts}
    queue = [(-len(about[t.id].facts - told), -about[t.id].value, -t.episode, n) for n, t in enumerate(attempts)]
    heapify(queue)
    while queue:
        _, value, episode, n = queue[0]
        facts = about[attempts[n].id].facts
        counted = (-len(facts - told), value, episode, n)
        if counted > queue[0]:
            heapreplace(queue, counted)
            continue
        heappop(queue)
        told |= facts
        yield attempts[n]


def _facts(trajectory: Trajectory) -> set[tuple[str, str, int | None]]:
    """(state, action, sign of the reward or None) of each step."""
    return {
        (step.state, step.action, None if step.reward is None else (step.reward > 0) - (step.reward < 0))
        for step in trajectory.transitions
    }
