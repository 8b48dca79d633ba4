"""Paired comparison of the first method of a table with each other one. Pure functions.

All methods play the same seeds, and a seed is a task (or, where there is one task only, its random numbers). Tasks differ more
than methods do, so the intervals of two methods may overlap although one is better on every task. The difference is therefore
taken seed by seed, and the interval is that of the mean difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...memory.display import markdown_table
from ...nodes.evaluate.statistics import mean
from .benchmark import SeedResult, final_count, last_episodes
from .evaluation import Difference, Outcome, difference

__all__ = ["Lead", "differences_table", "leads", "paired_difference", "signed_difference"]


@dataclass(frozen=True)
class Lead:
    """The lead of one method over another, paired by seed, in the environment's units."""

    method: str
    over: str
    """The method that it is compared with."""
    seeds: int
    """Number of seeds that both have played."""
    avg: Difference
    """Difference of the mean scores over all episodes."""
    final: Difference
    """Difference of the mean scores over the last tenth of the episodes, at least three."""

    @property
    def verdict(self) -> str:
        """The 95 % interval of the mean scores' difference in words: ahead, behind, not told apart. Empty without an interval."""
        band = self.avg.over_seeds
        if band is None:
            return ""
        return "ahead" if band[0] > 0 else "behind" if band[1] < 0 else "not told apart"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Intervals are over seeds; a win is a seed with a higher mean score over all episodes."""
        parts = {"avg": asdict(self.avg), "final": asdict(self.final)}
        numbers = {
            key: value
            for name, part in parts.items()
            for key, value in ((name, part["mean"]), (f"{name}_ci", part["over_seeds"]))
        }
        counts = {name: parts["avg"][name] for name in ("wins", "losses", "ties")}
        return {"method": self.method, "over": self.over, "seeds": self.seeds, **numbers, **counts, "verdict": self.verdict}


def leads(methods: Sequence[Sequence[SeedResult]]) -> list[Lead]:
    """The first method's lead over each of the others, on the seeds that both have played. A method without such seeds is left out.

    Args:
        methods: for each method its results, one per seed.
    """
    ours, *others = methods
    found = []
    for theirs in others:
        shared = {a.seed for a in ours} & {a.seed for a in theirs}
        if shared:
            pair = [[a for a in seeds if a.seed in shared] for seeds in (ours, theirs)]
            found.append(
                Lead(
                    ours[0].method,
                    theirs[0].method,
                    len(shared),
                    paired_difference(pair, _mean_score),
                    paired_difference(pair, _final_score),
                )
            )
    return found


def paired_difference(pair: Sequence[Sequence[SeedResult]], measure: Callable[[SeedResult], float]) -> Difference:
    """The difference of two methods in a number per seed; each seed counts as one problem."""
    one, other = ([Outcome(a.method, a.seed, {str(a.seed): (measure(a),)}, (0,)) for a in seeds] for seeds in pair)
    return difference(one, other)


def _mean_score(result: SeedResult) -> float:
    return mean(result.scores)


def _final_score(result: SeedResult) -> float:
    return mean(result.scores[-final_count(len(result.scores)) :])


def differences_table(found: Sequence[Lead], episodes: int) -> str:
    """A Markdown table of paired differences: a row for each method that the first one is compared with.

    Args:
        found: what `leads` returns, at least one.
        episodes: number of episodes of the longest run.
    """
    head = f"{found[0].method} minus"
    lines = [[head, "mean score", last_episodes(episodes), "seeds won / lost / tied", "95 % interval says"]]
    for lead in found:
        counts = f"{lead.avg.wins} / {lead.avg.losses} / {lead.avg.ties}"
        lines.append([lead.over, signed_difference(lead.avg), signed_difference(lead.final), counts, lead.verdict or "–"])
    return markdown_table(lines)


def signed_difference(found: Difference) -> str:
    """A difference with its interval over seeds, all with their signs."""
    band = found.over_seeds
    return f"{found.mean:+.3g}" if band is None else f"{found.mean:+.3g} [{band[0]:+.3g}, {band[1]:+.3g}]"
