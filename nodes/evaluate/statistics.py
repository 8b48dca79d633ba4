"""Means, intervals and paired tests, all by scipy. Pure functions."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Interval", "PairedTest", "interval", "mean", "paired_test"]

Interval = tuple[float, float]
"""The lower and the upper end of a confidence interval."""
DRAWS = 10_000
"""Resamples of a permutation test; with up to 13 seeds it counts all sign changes."""
_SAME = 1e-9


def mean(numbers: Sequence[float]) -> float:
    """The arithmetic mean; there must be at least one number."""
    return math.fsum(numbers) / len(numbers)


def interval(numbers: Sequence[float]) -> Interval | None:
    """The 95 % interval of the mean by Student's t (n - 1 degrees of freedom); None for fewer than two numbers.

    Only the quantile is scipy's: `scipy.stats.t.interval` gives NaN where all numbers are equal, and importing scipy.stats takes
    over half a second more.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    n = len(numbers)
    if n < 2:
        return None
    middle = mean(numbers)
    half = float(stdtrit(n - 1, 0.975)) * statistics.stdev(numbers) / math.sqrt(n)
    return middle - half, middle + half


@dataclass(frozen=True)
class PairedTest:
    """The difference of two methods in one metric, paired by seed: first minus second."""

    differences: Mapping[int, float]
    """Seed -> difference."""
    mean: float
    by_t: Interval | None
    """95 % interval of the mean difference by Student's t; None with a single seed."""
    permutation_p: float | None
    """Two-sided p value of a paired permutation test (sign changes); None with a single seed."""
    wins: int
    """Number of seeds with a positive difference."""
    losses: int
    """Number of seeds with a negative one."""

    @property
    def ties(self) -> int:
        """Number of seeds with the same number."""
        return len(self.differences) - self.wins - self.losses

    def as_text(self) -> str:
        """The mean difference with its interval by t, all with their signs."""
        middle = 0.0 if abs(self.mean) < _SAME else self.mean
        return f"{middle:+.3g}" + (f" [{self.by_t[0]:+.3g}, {self.by_t[1]:+.3g}]" if self.by_t else "")

    def verdict(self) -> str:
        """`ahead`, `behind`, or `not told apart` by the 95 % interval by t; empty with a single seed."""
        if self.by_t is None:
            return ""
        low, high = self.by_t
        return "ahead" if low > 0 else "behind" if high < 0 else "not told apart"


def paired_test(first: Mapping[int, float | None], second: Mapping[int, float | None]) -> PairedTest | None:
    """Compare two methods on the seeds for which both have a number; None without such seeds.

    p values are of this one comparison: they are not corrected for the number of comparisons in a table.
    """
    pairs = {seed: (first[seed], second[seed]) for seed in first if seed in second}
    found = {seed: one - other for seed, (one, other) in pairs.items() if one is not None and other is not None}
    if not found:
        return None
    deltas = [0.0 if abs(delta) <= _SAME else delta for delta in found.values()]
    return PairedTest(
        found,
        mean(deltas),
        interval(deltas),
        _permutation_p(deltas),
        wins=sum(delta > 0 for delta in deltas),
        losses=sum(delta < 0 for delta in deltas),
    )


def _permutation_p(deltas: Sequence[float]) -> float | None:
    """The p value of the permutation test."""
    if len(deltas) < 2:
        return None
    if not any(deltas):
        return 1.0
    import numpy as np
    from scipy.stats import permutation_test  # type: ignore[import-untyped]

    def middle(sample: Any, axis: int) -> Any:
        return np.mean(sample, axis=axis)

    data = np.asarray(deltas, dtype=float)
    test = permutation_test(
        (data,), middle, permutation_type="samples", n_resamples=DRAWS, vectorized=True, rng=np.random.default_rng(0)
    )
    return float(test.pvalue)
