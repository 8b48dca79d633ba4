"""The worth of a memory and of each item in it, from trials of an agent in service: its control arm, and items that are withheld.

A thread's draw is a hash of its id, so that restarts and processes agree. It counts from the first call at which memory has something,
and its probabilities are kept with the entry (memory/conversations/trials.py). Intervals hold at any time one looks
(nodes/evaluate/confidence_sequences.py): an item is retired as soon as its upper end is below `min_lift`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...memory.conversations.trials import MemoryTrial
from ...memory.display import markdown_table, with_interval
from ...memory.errors import UserError, plural
from ...nodes.evaluate.confidence_sequences import effect_interval
from ...nodes.evaluate.statistics import Interval, mean

__all__ = ["Lift", "LiftRow", "ThreadTrial", "TrialLedger", "TrialPlan"]

MOST_SHARE = 0.5
MOST_ITEM_CHARS = 80
"""Characters of a text by which an item of memory is named."""


@dataclass(frozen=True)
class TrialPlan:
    """The shares of an agent's threads that prove its memory.

    Raises:
        UserError: a share is none, or `min_lift` without `holdout`.
    """

    control: float = 0.0
    holdout: float = 0.0
    min_lift: float | None = None

    def __post_init__(self) -> None:
        for name in ("control", "holdout"):
            if not 0 <= (share := getattr(self, name)) <= MOST_SHARE:
                raise UserError(f"{name} is a share of the threads from 0 to {MOST_SHARE}, got {share!r}")
        if self.min_lift is not None and not self.holdout:
            raise UserError("min_lift retires items by what they are worth, which needs holdout=, such as 0.05")

    def draw(self, key: str, ledger: TrialLedger, known: Mapping[str, Any] | None, *, is_guided: bool) -> ThreadTrial:
        """The draw of a thread.

        Args:
            key: of the method and the thread.
            ledger: the trials until now.
            known: what was drawn at earlier calls of the thread.
            is_guided: False: no advice is given to anybody, and nothing is tried.
        """
        if not is_guided:
            return ThreadTrial(key, TrialPlan(), ledger, is_advised=False)
        record = dict(known or {})
        return ThreadTrial(key, self, ledger, record.get("is_advised", uniform(f"{key}/control") >= self.control), record)

    @property
    def is_on(self) -> bool:
        """True if anything is drawn."""
        return self.control > 0 or self.holdout > 0


@dataclass(frozen=True)
class LiftRow:
    """The lift of the memory or of an item: the mean reward with it less that without."""

    name: str
    trials: int
    without: int
    """Trials of these in which there was no advice, or the item was withheld."""
    lift: float
    interval: Interval
    """95 %, at all times together."""


@dataclass(frozen=True)
class Lift:
    """The worth of a method's memory in a scope, in units of reward."""

    method: str
    memory: LiftRow | None
    """None without trials of `control`."""
    items: tuple[LiftRow, ...] = ()
    """The items that were tried, those of the least lift first."""
    tokens: float = 0.0
    """Tokens a conversation that advice costs."""
    harmed: tuple[str, ...] = ()
    """Threads with advice that earned less than those of their task without, on average."""
    retired: tuple[str, ...] = ()

    def table(self) -> str:
        """A Markdown table: the memory, then its items."""
        lines = [["", "trials", "without", "lift", ""]]
        for row in ([self.memory] if self.memory else []) + list(self.items):
            note = "retired" if row.name in self.retired else ""
            lines.append([row.name, str(row.trials), str(row.without), with_interval(row.lift, row.interval), note])
        return markdown_table(lines)

    def __str__(self) -> str:
        if self.memory is None and not self.items:
            return f"{self.method}: no trials are rated yet: give control=0.1 or holdout=0.05, and feedback"
        cost = f"advice costs {self.tokens:,.0f} tokens a conversation"
        return f"{self.method}: {cost}; {plural(len(self.harmed), 'conversation')} with it earned less than the control\n{self.table()}"

    def _repr_markdown_(self) -> str:
        return self.table()


class TrialLedger:
    """The rated trials of a method in a scope, and what they say. Not safe to use from threads.

    Args:
        method: the method's name.
        min_lift: items whose interval ends below it are retired; None: no item is.
    """

    def __init__(self, method: str, min_lift: float | None = None) -> None:
        self.method, self.min_lift = method, min_lift
        self._trials = dict[str, MemoryTrial]()
        self._items = dict[str, dict[str, MemoryTrial]]()
        self.retired = dict[str, LiftRow]()
        """Item -> its lift when it was retired."""

    def add(self, trials: Iterable[MemoryTrial]) -> list[LiftRow]:
        """Take in trials, in place of those of their ids; returns what is retired by them."""
        changed = set[str]()
        for one in trials:
            if one.id.startswith(f"{self.method}/"):
                self._trials[one.id] = one
                if one.item:
                    self._items.setdefault(one.item, {})[one.id] = one
                    changed.add(one.item)
        rows = [] if self.min_lift is None else [self._item_row(item) for item in sorted(changed - self.retired.keys())]
        found = [row for row in rows if row.without and row.interval[1] < (self.min_lift or 0.0)]
        self.retired |= {row.name: row for row in found}
        return found

    def count(self, item: str) -> int:
        """The number of an item's trials."""
        return len(self._items.get(item, ()))

    def lift(self) -> Lift:
        """The worth of the memory and of its items, by the trials."""
        advised = [one for one in self._trials.values() if one.is_advised]
        drawn = [one for one in self._trials.values() if one.share < 1]
        memory = self._row("memory", drawn, [(one.is_advised, one.share) for one in drawn]) if drawn else None
        rows = sorted((self._item_row(item) for item in self._items), key=lambda row: row.lift)
        without = dict[str, list[float]]()
        for one in drawn:
            if not one.is_advised:
                without.setdefault(one.task, []).append(one.reward)
        harmed = [one.thread for one in advised if one.task in without and one.reward < mean(without[one.task])]
        cost = mean([float(one.tokens) for one in advised]) if advised else 0.0
        return Lift(self.method, memory, tuple(rows), cost, tuple(harmed), tuple(self.retired))

    def _item_row(self, item: str) -> LiftRow:
        trials = list(self._items[item].values())
        return self._row(item, trials, [(one.is_shown, one.item_share) for one in trials])

    def _row(self, name: str, trials: Sequence[MemoryTrial], draws: Sequence[tuple[bool, float]]) -> LiftRow:
        # Until a reward below 0 is seen, none is expected.
        low = -1.0 if any(one.reward < 0 for one in self._trials.values()) else 0.0
        pairs = sorted(zip(trials, draws, strict=True), key=lambda pair: (pair[0].at, pair[0].id))
        rewards = [(one.reward - low) / (1 - low) for one, _ in pairs]
        found = effect_interval(rewards, [drawn for _, (drawn, _) in pairs], [share for _, (_, share) in pairs])
        size, without = 1 - low, sum(not drawn for drawn, _ in draws)
        return LiftRow(name, len(pairs), without, size * found.mean, (size * found.low, size * found.high))


@dataclass
class ThreadTrial:
    """The draw of a thread, at a model call."""

    key: str = ""
    """Of the method and the thread."""
    plan: TrialPlan = field(default_factory=TrialPlan)
    ledger: TrialLedger = field(default_factory=lambda: TrialLedger(""))
    is_advised: bool = True
    """False: no advice is given, in the control arm or in the mode `observe`."""
    record: dict[str, Any] = field(default_factory=dict)
    """The draw as plain data, once memory had something."""
    said: list[str] = field(default_factory=list)

    @property
    def begins(self) -> bool:
        """True if something is drawn, and memory has had nothing for the thread yet."""
        return self.plan.is_on and not self.record

    def left_out(self, recalled: Iterable[str]) -> Collection[str]:
        """The recalled items that are not shown: the retired ones, and the one that is withheld."""
        ids = list(dict.fromkeys(recalled))
        out = {id for id in ids if id in self.ledger.retired}
        self.said += [f"left out, since it is retired: {retirement(self.ledger.retired[id])}" for id in sorted(out)]
        ids = [id for id in ids if id not in out]
        if not ids or not self.plan.is_on:
            return out
        if self.begins:
            self.record = {"is_advised": self.is_advised, "share": 1 - self.plan.control}
            if self.is_advised and self.plan.holdout:
                item = min(ids, key=self.ledger.count)
                shown = uniform(f"{self.key}/holdout") >= self.plan.holdout
                self.record |= {"item": item, "is_shown": shown, "item_share": 1 - self.plan.holdout}
        if not self.record["is_advised"]:
            self.said.append("no advice was given: the thread belongs to the control arm")
        elif not self.record.get("is_shown", True) and self.record["item"] in ids:
            self.said.append(f"withheld, to see what it is worth: {self.record['item']}")
            out.add(self.record["item"])
        return out


def retirement(row: LiftRow) -> str:
    """A retired item with its lift, in words."""
    return f"{row.name}, whose lift is {with_interval(row.lift, row.interval)} over {plural(row.trials, 'conversation')}"


def uniform(key: str) -> float:
    """A number in [0, 1) that is the same for the same key everywhere."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) / 2**64
