"""Statistics of a calibration: rank correlation, ROC area, isotonic regression, and intervals over seeds. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...nodes.evaluate.statistics import Interval, interval, mean

__all__ = ["MIN_SEEDS", "Isotonic", "SeedEstimate", "auroc", "isotonic", "jackknife_estimate", "mean_estimate", "spearman"]

MIN_SEEDS = 5
"""No interval is given over fewer seeds."""


@dataclass(frozen=True)
class SeedEstimate:
    """An estimate with its 95 % interval over seeds."""

    value: float | None
    """None where it is not defined: all r are equal, or all attempts are good, or none is."""
    interval: Interval | None
    """None with fewer than five seeds, and where leaving out any seed changes nothing."""
    seeds: int
    """Number of seeds behind the estimate."""


def spearman(rewards: Sequence[float], scores: Sequence[float]) -> float | None:
    """Spearman's rank correlation, in [-1, 1], with mean ranks for ties; None if all rewards or all scores are equal."""
    from scipy.stats import spearmanr  # type: ignore[import-untyped]

    if len(set(rewards)) < 2 or len(set(scores)) < 2:
        return None
    return float(spearmanr(rewards, scores).statistic)


def auroc(rewards: Sequence[float], good: Sequence[bool]) -> float | None:
    """The area under the ROC curve, in [0, 1]: P(r of a good attempt > r of another) + P(equal) / 2; None without both kinds."""
    from scipy.stats import mannwhitneyu

    of_good = [reward for reward, is_good in zip(rewards, good, strict=True) if is_good]
    of_others = [reward for reward, is_good in zip(rewards, good, strict=True) if not is_good]
    if not of_good or not of_others:
        return None
    # The asymptotic p-value is not used, but is quicker than the exact one.
    u = mannwhitneyu(of_good, of_others, method="asymptotic").statistic
    return float(u) / (len(of_good) * len(of_others))


@dataclass(frozen=True)
class Isotonic:
    """A non-decreasing mapping from r to r*: linear between knots, constant beyond them."""

    rewards: tuple[float, ...]
    """r of the knots, ascending."""
    scores: tuple[float, ...]
    """r* of the knots."""

    def __call__(self, reward: float) -> float:
        """r* for a reward r."""
        import numpy as np

        return float(np.interp(reward, self.rewards, self.scores))


def isotonic(rewards: Sequence[float], scores: Sequence[float]) -> Isotonic:
    """The non-decreasing mapping from r to r* with the least squared error (pool adjacent violators)."""
    from scipy.optimize import isotonic_regression  # type: ignore[import-untyped]

    by_reward: dict[float, list[float]] = {}
    for reward, score in zip(rewards, scores, strict=True):
        by_reward.setdefault(reward, []).append(score)
    knots = sorted(by_reward)
    weights = [len(by_reward[knot]) for knot in knots]
    fitted = isotonic_regression([mean(by_reward[knot]) for knot in knots], weights=weights)
    return Isotonic(tuple(knots), tuple(map(float, fitted.x)))


def jackknife_estimate(
    seeds: Sequence[Sequence[tuple[float, float]]],
    statistic: Callable[[Sequence[Sequence[tuple[float, float]]]], float | None],
    limits: Interval,
) -> SeedEstimate:
    """A statistic of all attempts together, with its 95 % interval by the jackknife, leaving out one seed at a time.

    Args:
        seeds: for each seed the pairs (r, r*) of its attempts.
        statistic: computes the estimate from such seeds; None where it is not defined.
        limits: lowest and highest possible value, at which the interval is cut.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    value, n = statistic(seeds), len(seeds)
    without = [statistic([*seeds[:i], *seeds[i + 1 :]]) for i in range(n)] if n >= MIN_SEEDS else []
    known = [one for one in without if one is not None]
    if value is None or not known or len(known) < n or len(set(known)) == 1:
        return SeedEstimate(value, None, n)  # equal values (AUROC 1, say) are no sign of certainty
    middle = mean(known)
    half = float(stdtrit(n - 1, 0.975)) * math.sqrt((n - 1) / n * math.fsum((one - middle) ** 2 for one in known))
    return SeedEstimate(value, (max(limits[0], value - half), min(limits[1], value + half)), n)


def mean_estimate(values: Sequence[float | None]) -> SeedEstimate:
    """The mean over the seeds that have a value, with its 95 % interval."""
    known = [value for value in values if value is not None]
    if not known:
        return SeedEstimate(None, None, 0)
    return SeedEstimate(mean(known), interval(known) if len(known) >= MIN_SEEDS else None, len(known))
