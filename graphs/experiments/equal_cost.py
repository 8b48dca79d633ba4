"""Scores by what they cost: the newest score and the running maximum after so many rounds, tokens, calls or seconds. Pure functions.

Methods are compared at the same number of rounds (episodes) in the table of a run. Here they are compared at the same cost, as
their rounds may cost ten times as much as one another's.

The rule is that of a step: at a budget b, a run has the episodes that were over when it had spent b. Nothing is interpolated between
two episodes, since half an attempt has no score. A run that ended keeps its last values. Before its first episode is over a run has
no score, and the mean over seeds begins where all seeds have one.

    newest   the score of the last finished episode
    best     the highest score so far, the running maximum; only an oracle can pick that episode
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from ...memory.display import markdown_table, with_interval
from ...memory.errors import plural
from ...nodes.evaluate.statistics import Interval, PairedTest, interval, mean, paired_test
from .results import SeedResult

__all__ = ["EqualCost"]

Cost = Literal["tokens", "calls", "seconds"]
Kind = Literal["newest", "best"]
COSTS: tuple[Cost, ...] = ("tokens", "calls", "seconds")
Methods = Sequence[Sequence[SeedResult]]
"""For each method its results, one per seed."""


def costs_so_far(result: SeedResult, cost: Cost) -> list[float] | None:
    """The costs of a run up to the end of each of its episodes; None where that was not measured, or nothing was spent."""
    each: Sequence[float | None] = {
        "tokens": result.tokens_by_episode,
        "calls": result.calls_by_episode,
        "seconds": result.seconds,
    }[cost]
    known = [amount for amount in each if amount is not None]
    if len(known) < len(result.scores) or not any(known):
        return None
    return list(accumulate(known))


def score_within(result: SeedResult, budget: float, cost: Cost, kind: Kind = "newest") -> float | None:
    """The score that a run has within a budget, by the rule of the module; None before its first episode is over."""
    spent = costs_so_far(result, cost)
    finished = bisect_right(spent, budget) if spent else 0
    if not finished:
        return None
    return result.scores[finished - 1] if kind == "newest" else max(result.scores[:finished])


# The same number of rounds


def rounds_table(methods: Methods, most: int = 6) -> str:
    """A Markdown table of the running maximum after some rounds: 1, 2, 4, 8 … and the last that all runs have played."""
    last = min(len(a.scores) for seeds in methods for a in seeds)
    chosen = [*[2**n for n in range(last.bit_length()) if 2**n < last][: most - 1], last]
    lines = [["best so far after", *(plural(n, "round") for n in chosen)]]
    for seeds in methods:
        highest = [[max(a.scores[:n]) for a in seeds] for n in chosen]
        lines.append([seeds[0].method, *(with_interval(mean(column), interval(column)) for column in highest)])
    return markdown_table(lines)


# The same cost


@dataclass(frozen=True)
class EqualCost:
    """A method at a budget that all compared methods have spent."""

    method: str
    cost: Cost
    budget: float
    episodes: float
    """Episodes that were over within the budget, mean over seeds."""
    newest: float
    newest_ci: Interval | None
    best: float
    best_ci: Interval | None
    lead_newest: PairedTest | None
    """The first method's newest score minus this one's, paired by seed; None for the first itself."""
    lead_best: PairedTest | None
    """The same of the running maximum."""


def equal_cost(methods: Methods, cost: Cost = "tokens", budget: float | None = None) -> list[EqualCost]:
    """The methods at the same cost. A method that spends nothing of it, or has no score within the budget on some seed, is left out.

    Args:
        methods: for each method its results, one per seed; the others are compared with the first.
        cost: the unit of the budget.
        budget: the budget of each run; the greatest that all runs have spent if not given, so that none is carried beyond its end.
    """
    spending = [seeds for seeds in methods if all(costs_so_far(a, cost) for a in seeds)]
    if not spending:
        return []
    if budget is None:
        budget = min(spent[-1] for seeds in spending for a in seeds if (spent := costs_so_far(a, cost)))
    ready = [seeds for seeds in spending if all(score_within(a, budget, cost) is not None for a in seeds)]
    return [
        _at_budget(seeds, ready[0] if n and ready[0] is methods[0] else None, cost, budget) for n, seeds in enumerate(ready)
    ]


def _at_budget(seeds: Sequence[SeedResult], first: Sequence[SeedResult] | None, cost: Cost, budget: float) -> EqualCost:
    def of(kind: Kind) -> Callable[[SeedResult], float]:
        return lambda result: score_within(result, budget, cost, kind) or 0.0

    def lead(kind: Kind) -> PairedTest | None:
        return paired_test(*({a.seed: of(kind)(a) for a in some} for some in (first, seeds))) if first else None

    newest, best = [of("newest")(a) for a in seeds], [of("best")(a) for a in seeds]
    episodes = [float(bisect_right(spent, budget)) for a in seeds if (spent := costs_so_far(a, cost))]
    scores = mean(newest), interval(newest), mean(best), interval(best)
    return EqualCost(seeds[0].method, cost, budget, mean(episodes), *scores, lead("newest"), lead("best"))


def equal_cost_table(rows: Sequence[EqualCost]) -> str:
    """A Markdown table of `equal_cost`, with the first method's leads over the others."""
    first = rows[0]
    lead = f"{first.method} is ahead by"
    lines = [[f"after {first.budget:,.0f} {first.cost}", "episodes", "newest score", lead, "best so far", lead]]
    for row in rows:
        leads = ["–" if one is None else one.as_text() for one in (row.lead_newest, row.lead_best)]
        scores = [with_interval(row.newest, row.newest_ci), with_interval(row.best, row.best_ci)]
        lines.append([row.method, f"{row.episodes:.1f}", scores[0], leads[0], scores[1], leads[1]])
    return markdown_table(lines)
