"""Scores by what they cost: the newest score and the running maximum after so many rounds, or tokens. Pure functions.

Methods are compared at the same number of rounds (episodes) in the table of a run. Here they are compared at the same cost, as
their rounds may cost ten times as much as one another's.

The rule is that of a step: at a budget b, a run has the episodes that were over when it had spent b. Nothing is interpolated between
two episodes, since half an attempt has no score. A run that ended keeps its last values. Before its first episode is over a run has
no score, and the mean over seeds begins where all seeds have one.

    newest   the score of the last finished episode
    best     the highest score so far, the running maximum; only an oracle can pick that episode
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from ...memory.display import markdown_table, with_interval
from ...memory.errors import plural
from ...nodes.evaluate.statistics import interval, mean, paired_test
from .results import SeedResult

__all__ = []

Kind = Literal["newest", "best"]
KINDS: tuple[Kind, ...] = ("newest", "best")
Methods = Sequence[Sequence[SeedResult]]
"""For each method its results, one per seed."""


def tokens_so_far(result: SeedResult) -> list[int] | None:
    """The tokens of a run up to the end of each of its episodes; None where they were not counted, or none was spent."""
    known = result.tokens_by_episode
    return list(accumulate(known)) if len(known) >= len(result.scores) and any(known) else None


def score_within(result: SeedResult, budget: float, kind: Kind = "newest") -> float | None:
    """The score that a run has within a budget of tokens, by the rule of the module; None before its first episode is over."""
    spent = tokens_so_far(result)
    finished = bisect_right(spent, budget) if spent else 0
    if not finished:
        return None
    return result.scores[finished - 1] if kind == "newest" else max(result.scores[:finished])


# The same number of rounds


def rounds_table(methods: Methods) -> str:
    """A Markdown table of the running maximum after some rounds: 1, 2, 4, 8, 16, and the last that all runs have played."""
    last = min(len(a.scores) for seeds in methods for a in seeds)
    chosen = [*[2**n for n in range(last.bit_length()) if 2**n < last][:5], last]
    lines = [["best so far after", *(plural(n, "round") for n in chosen)]]
    for seeds in methods:
        highest = [[max(a.scores[:n]) for a in seeds] for n in chosen]
        lines.append([seeds[0].method, *(with_interval(mean(column), interval(column)) for column in highest)])
    return markdown_table(lines)


# The same cost


def equal_cost_table(methods: Methods) -> str:
    """A Markdown table of the methods after as many tokens as all runs have spent, with the first method's leads over the others.

    A method that spends none, or has no score by then on some seed, is left out; of fewer than two methods there is no table.
    """
    spending = [seeds for seeds in methods if all(tokens_so_far(a) for a in seeds)]
    budget = min((spent[-1] for seeds in spending for a in seeds if (spent := tokens_so_far(a))), default=0.0)
    ready = [seeds for seeds in spending if all(score_within(a, budget) is not None for a in seeds)]
    if len(ready) < 2:
        return ""
    lead = f"{ready[0][0].method} is ahead by"
    lines = [[f"after {budget:,.0f} tokens", "episodes", "newest score", lead, "best so far", lead]]
    for seeds in ready:
        cells = [f"{mean([float(bisect_right(spent, budget)) for a in seeds if (spent := tokens_so_far(a))]):.1f}"]
        for kind in KINDS:
            ours, theirs = ({a.seed: score_within(a, budget, kind) for a in some} for some in (ready[0], seeds))
            scores = [score or 0.0 for score in theirs.values()]
            test = None if seeds is ready[0] else paired_test(ours, theirs)
            cells += [with_interval(mean(scores), interval(scores)), "–" if test is None else test.as_text()]
        lines.append([seeds[0].method, *cells])
    return markdown_table(lines)
