"""The worth of a memory and of each item in it, from trials of an agent in service: its control arm, and items that are withheld.

A thread's draw is a hash of its id, so that restarts and processes agree. It counts from the first call at which memory has something,
and its probabilities are kept with the entry (memory/conversations/trials.py). Intervals hold at any time one looks
(nodes/evaluate/confidence_sequences.py): an item is retired as soon as its upper end is below `min_lift`.

Only rated conversations have a reward, and advice may change who is rated: an agent that errs less is corrected less, and what is left of
its errors are the hard ones. Where the shares of both arms that are rated differ by more than `CHANCE` standard errors, the rewards say
nothing of the rest: the interval is all that rewards allow, and nothing is retired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any

from ...memory.conversations.store import ConversationStore
from ...memory.conversations.trials import MemoryTrial
from ...memory.display import markdown_table, with_interval
from ...memory.errors import UserError, plural
from ...nodes.arguments import ArgumentCheck, Range
from ...nodes.evaluate.confidence_sequences import effect_interval
from ...nodes.evaluate.statistics import Interval, mean

__all__ = ["Lift", "LiftRow", "ThreadTrial", "TrialLedger", "TrialPlan"]

TrialShare = Annotated[float, Range(0, 0.5)]
"""A share of the threads."""
CHANCE = 1.5
"""Standard errors by which the shares of two arms that are rated may differ by chance."""
MOST_ROWS = 10
"""Items in the text of a lift."""
MOST_ITEM_CHARS = 80
"""Characters of a text by which an item of memory is named."""


@dataclass(frozen=True)
class TrialPlan(ArgumentCheck):
    """The shares of an agent's threads that prove its memory.

    Raises:
        UserError: a share is none, or `min_lift` without `holdout`.
    """

    control: TrialShare = 0.0
    holdout: TrialShare = 0.0
    min_lift: float | None = None

    def __post_init__(self) -> None:
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
    rated: tuple[float, float] = (1.0, 1.0)
    """Share of the conversations with it that are rated, and of those without."""
    is_selected: bool = False
    """True: these shares differ by more than chance, so that the lift cannot be told."""


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

    def table(self, most: int | None = None) -> str:
        """A Markdown table: the memory, then its items.

        Args:
            most: the number of items, of which those that were both shown and withheld come first; None: all.
        """
        lines = [["", "trials", "without", "rated with and without", "lift", ""]]
        told = sorted(self.items, key=lambda row: not 0 < row.without < row.trials) if most is not None else self.items
        for row in ([self.memory] if self.memory else []) + list(told[:most]):
            note = "retired" if row.name in self.retired else "cannot be told" if row.is_selected else ""
            lift = with_interval(row.lift, row.interval) if 0 < row.without < row.trials else "–"  # one kind alone says nothing
            one, none = row.rated
            lines.append([row.name, str(row.trials), str(row.without), f"{one:.0%}, {none:.0%}", lift, note])
        return markdown_table(lines)

    def __str__(self) -> str:
        if self.memory is None and not self.items:
            words = "then feedback on conversations for which memory had something"
            return f"{self.method}: no trial is rated yet: give control=0.1 or holdout=0.05, {words}"
        said = f"{plural(len(self.harmed), 'conversation')} with it earned less than the control on average; `harmed` names them, to look into"
        if self.memory is not None and not self.memory.without:
            said = "no conversation of the control is rated yet"
        elif self.memory is not None and self.memory.is_selected:
            one, none = self.memory.rated
            said = f"whether it helps cannot be told: {one:.0%} of the conversations with it are rated, and {none:.0%} of those without, "
            said += "so the two kinds may differ; rate the others, too, such as calls that a person let pass (reviews=[TOOL])"
        return f"{self.method}: advice costs {self.tokens:,.0f} tokens a conversation; {said}\n{self._short_table()}"

    def _short_table(self) -> str:
        left = len(self.items) - MOST_ROWS
        return self.table(MOST_ROWS) + (f"\n{plural(left, 'more item')}: table() has all" if left > 0 else "")

    def _repr_markdown_(self) -> str:
        return self._short_table()


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
        self.unrated: Sequence[Mapping[str, Any]] = ()
        """The draws for the conversations without a reward."""
        self._doubted = dict[str, int]()

    def add(
        self, trials: Iterable[MemoryTrial], unrated: Callable[[str], Sequence[Mapping[str, Any]]] | None = None
    ) -> list[LiftRow]:
        """Take in trials, in place of those of their ids; returns what is retired by them.

        Args:
            trials: of any method.
            unrated: a method -> what was drawn for conversations without a reward, asked before something is retired.
        """
        changed = set[str]()
        for one in trials:
            if one.id.startswith(f"{self.method}/"):
                self._trials[one.id] = one
                if one.item:
                    self._items.setdefault(one.item, {})[one.id] = one
                    changed.add(one.item)
        found = self._bad_rows(changed - self.retired.keys())
        found = [row for row in found if row.trials > 1.1 * self._doubted.get(row.name, 0)]  # to ask takes long
        if found and unrated is not None:
            self.unrated = unrated(self.method)
            self._doubted |= {row.name: row.trials for row in found}
            found = self._bad_rows({row.name for row in found})
        self.retired |= {row.name: row for row in found}
        return found

    def _bad_rows(self, items: Collection[str]) -> list[LiftRow]:
        rows = [] if self.min_lift is None else [self._item_row(item) for item in sorted(items)]
        return [row for row in rows if row.without and row.interval[1] < (self.min_lift or 0.0)]

    def count(self, item: str) -> int:
        """The number of an item's trials."""
        return len(self._items.get(item, ()))

    def lift(self) -> Lift:
        """The worth of the memory and of its items, by the trials."""
        advised = [one for one in self._trials.values() if one.is_advised]
        drawn = [one for one in self._trials.values() if one.share < 1]
        others = [one["is_advised"] for one in self.unrated if one["share"] < 1]
        memory = self._row("memory", drawn, [(one.is_advised, one.share) for one in drawn], others) if drawn else None
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
        others = [one["is_shown"] for one in self.unrated if one.get("item") == item]
        return self._row(item, trials, [(one.is_shown, one.item_share) for one in trials], others)

    def _row(
        self, name: str, trials: Sequence[MemoryTrial], draws: Sequence[tuple[bool, float]], unrated: Sequence[bool]
    ) -> LiftRow:
        # Until a reward below 0 is seen, none is expected.
        least = -1.0 if any(one.reward < 0 for one in self._trials.values()) else 0.0
        pairs = sorted(zip(trials, draws, strict=True), key=lambda pair: (pair[0].at, pair[0].id))
        rewards = [(one.reward - least) / (1 - least) for one, _ in pairs]
        found = effect_interval(rewards, [drawn for _, (drawn, _) in pairs], [share for _, (_, share) in pairs])
        with_it = sum(drawn for drawn, _ in draws)
        counts = [(with_it, sum(unrated)), (len(pairs) - with_it, len(unrated) - sum(unrated))]
        sizes = [max(1, given + missing) for given, missing in counts]
        one, none = (given / size for (given, _), size in zip(counts, sizes, strict=True))
        share = min(1.0, len(pairs) / sum(sizes))
        chance = CHANCE * math.sqrt(share * (1 - share) * sum(1 / size for size in sizes))
        is_selected = all(map(sum, counts)) and abs(one - none) > chance
        low, high = (-1.0, 1.0) if is_selected else (found.low, found.high)
        interval = ((1 - least) * low, (1 - least) * high)
        lift = (1 - least) * found.mean if len({*rewards}) > 1 else 0.0  # equal rewards differ by nothing, whatever was drawn
        return LiftRow(name, len(pairs), counts[1][0], lift, interval, (one, none), is_selected)


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


def measure_lift(kept: ConversationStore, method: str, min_lift: float | None = None) -> Lift:
    """The lift of a method's memory by all that is kept of a scope."""
    ledger = TrialLedger(method, min_lift)
    ledger.unrated = unrated_draws(kept, method)
    ledger.add(kept.trials.all())
    return ledger.lift()


def unrated_draws(kept: ConversationStore, method: str) -> list[dict[str, Any]]:
    """The draws of a method for each conversation that has no reward, and is not quarantined."""
    known = {one.thread for one in kept.trials.all()} | {one.id for one in kept.open_quarantines()}
    advice = ([entry for turn in one.turns for entry in turn.advice] for one in kept.turns.all() if one.id not in known)
    drawn = ([one["trial"] for one in found if "trial" in one and one["method"] == method] for found in advice)
    return [found[-1] for found in drawn if found]


def retirement(row: LiftRow) -> str:
    """A retired item with its lift, in words."""
    return f"{row.name}, whose lift is {with_interval(row.lift, row.interval)} over {plural(row.trials, 'conversation')}"


def uniform(key: str) -> float:
    """A number in [0, 1) that is the same for the same key everywhere."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) / 2**64
