"""Scores by what they cost: the newest score and the running maximum against rounds, tokens, calls and seconds. Pure functions, and a picture.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from ...memory.display import markdown_table, with_interval
from ...memory.errors import plural
from ...nodes.evaluate.statistics import Interval, PairedTest, interval, mean, paired_test
from .figures import COLOURS, LINE_STYLES, dress_axes, new_figure, save_figure
from .results import SeedResult

__all__ = ["EqualCost"]

Cost = Literal["tokens", "calls", "seconds"]
Kind = Literal["newest", "best"]
COSTS: tuple[Cost, ...] = ("tokens", "calls", "seconds")
_POINTS = 120
"""Points of a drawn curve."""
_MOST_BANDS = 3
"""Methods up to which intervals are drawn as bands; more of them hide one another."""
_Methods = Sequence[Sequence[SeedResult]]
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


def rounds_table(methods: _Methods, most: int = 6) -> str:
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

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self)


def equal_cost(methods: _Methods, cost: Cost = "tokens", budget: float | None = None) -> list[EqualCost]:
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

    newest, best = [of("newest")(a) for a in seeds], [of("best")(a) for a in seeds]
    leads: dict[Kind, PairedTest | None] = {"newest": None, "best": None}
    if first:
        leads = {kind: paired_test(*({a.seed: of(kind)(a) for a in some} for some in (first, seeds))) for kind in leads}
    episodes = [float(bisect_right(spent, budget)) for a in seeds if (spent := costs_so_far(a, cost))]
    return EqualCost(
        seeds[0].method,
        cost,
        budget,
        mean(episodes),
        mean(newest),
        interval(newest),
        mean(best),
        interval(best),
        leads["newest"],
        leads["best"],
    )


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


# The picture


def draw_cost_curves(methods: _Methods, title: str, paths: Sequence[Path]) -> None:
    """Draw the newest score and the running maximum against rounds and against each cost that was measured.

    Each curve is the mean over seeds. With up to three methods, bands are its 95 % intervals over seeds. A method that spends nothing
    (without a model) has no curve over tokens.

    Args:
        methods: for each method its results, one per seed.
        title: text above the picture.
        paths: files to write; the suffix gives the format (.png, .svg).
    """
    from matplotlib.ticker import MaxNLocator

    costs = [cost for cost in COSTS if any(all(costs_so_far(a, cost) for a in seeds) for seeds in methods)]
    columns: list[Cost | Literal["rounds"]] = ["rounds", *costs]
    figure = new_figure(3.6 * len(columns) + 0.6, 7.2)
    kinds: Mapping[Kind, str] = {"newest": "newest score", "best": "best score so far"}
    for row, (kind, name) in enumerate(kinds.items()):
        for at, column in enumerate(columns):
            axes = figure.add_subplot(2, len(columns), row * len(columns) + at + 1)
            dress_axes(axes, name if not at else "")
            for n, seeds in enumerate(methods):
                _draw_curve(axes, n, seeds, column, kind, bands=len(methods) <= _MOST_BANDS)
            axes.set_xlabel(f"{column} so far" if row else "")
            axes.set_xlim(left=0)
            if column == "rounds":
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    count = len(methods[0])
    figure.suptitle(f"{title}   ({f'mean of {count} seeds' if count > 1 else 'one seed'})", x=0.01, ha="left", fontsize=12)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
    save_figure(figure, paths)


def _draw_curve(axes: Any, number: int, seeds: Sequence[SeedResult], column: str, kind: Kind, *, bands: bool) -> None:
    """Draw the curve of a method, and its intervals if `bands`."""
    cost: Cost | None = next((one for one in COSTS if one == column), None)
    if cost is None:
        rounds = min(len(a.scores) for a in seeds)
        budgets = [float(n) for n in range(1, rounds + 1)]
        values = [_column(seeds, kind, n) for n in range(rounds)]
    else:
        ends = [spent[-1] for a in seeds if (spent := costs_so_far(a, cost))]
        if len(ends) < len(seeds):
            return
        budgets = [max(ends) * n / _POINTS for n in range(_POINTS + 1)]
        found = [[score_within(a, budget, cost, kind) for a in seeds] for budget in budgets]
        budgets = [b for b, column_ in zip(budgets, found, strict=True) if None not in column_]
        values = [[v for v in column_ if v is not None] for column_ in found if None not in column_]
    colour, style = COLOURS[number % len(COLOURS)], LINE_STYLES[number % len(LINE_STYLES)]
    step: Any = {"drawstyle": "steps-post"} if cost else {}
    axes.plot(
        budgets, [mean(v) for v in values], color=colour, ls=style, lw=2.4 if not number else 1.7, label=seeds[0].method, **step
    )
    if bands and (spans := [span for v in values if (span := interval(v))]) and len(spans) == len(budgets):
        # The interval is Student's; its ends may lie where no seed can score, and are cut there.
        least, most = min(map(min, values)), max(map(max, values))
        low, high = zip(*((max(a, least), min(b, most)) for a, b in spans), strict=True)
        axes.fill_between(budgets, low, high, color=colour, alpha=0.12, lw=0, step="post" if cost else None)


def _column(seeds: Sequence[SeedResult], kind: Kind, number: int) -> list[float]:
    return [a.scores[number] if kind == "newest" else max(a.scores[: number + 1]) for a in seeds]
