"""The intervals of `learner.lift()` on simulated desks whose truth is known, looked at after every conversation.

    python tests/performance/bench_lift.py [--desks 1000] [--conversations 1000]

A desk's rewards are 0 or 1. Shown are the share of desks whose interval held the true mean lift at all looks, for a memory that is worth
nothing and for one that learns (its lift grows from 0 to .5); the desks whose worthless memory was found to be worth something; and the
conversations until a memory that helps is found to, and until a lesson that harms is retired (`min_lift=0`, `holdout=.05`): those in
which it was recalled, and had the fewest trials.
"""

from typing import Any

import numpy as np
from rows import make_parser, report

from learngraph.nodes.evaluate.confidence_sequences import log_mixture, robust_effects, scale_of

ALPHA = 0.025
"""The level of one side of a 95 % interval."""


class Desks:
    """The trials of many desks, as arrays (desk, conversation).

    Args:
        with_it: the expected reward of each conversation with the memory or the lesson.
        without: the one without.
        share: probability of the first.
    """

    def __init__(self, desks: int, with_it: Any, without: float, share: float, seed: int) -> None:
        random, shape = np.random.default_rng(seed), (desks, len(with_it))
        treated = random.random(shape) < share
        rewards = random.random(shape) < np.where(treated, with_it, without)
        effects, deviations = robust_effects(rewards, treated, np.full(shape, share))
        self.sums, self.variances = np.cumsum(effects, -1), np.cumsum(deviations**2, -1)
        self.scale, self.truth = scale_of(min(share, 1 - share)), np.cumsum(with_it - without)

    def is_beyond(self, sums: Any) -> Any:
        """Whether an interval ends before a sum of lifts: an array (desk, conversation)."""
        return log_mixture(np.maximum(0.0, sums), self.variances, self.scale, ALPHA) >= np.log(1 / ALPHA)

    def coverage(self) -> float:
        """The share of desks whose interval held the truth at every look."""
        off = self.sums - self.truth
        return float(1 - (self.is_beyond(off) | self.is_beyond(-off)).any(-1).mean())

    def looks_until(self, sign: int) -> tuple[float, float, float]:
        """Conversations until the lift is found to be above (1) or below (-1) 0: median and 90 %; and the share of desks where it was."""
        found = self.is_beyond(sign * self.sums)
        looks = np.where(found.any(-1), found.argmax(-1) + 1, np.inf)
        return float(np.median(looks)), float(np.quantile(looks, 0.9, method="higher")), float(found.any(-1).mean())


def main() -> None:
    """Report the rows."""
    parser = make_parser(__doc__, rounds=1)
    parser.add_argument("--desks", type=int, default=1_000)
    parser.add_argument("--conversations", type=int, default=1_000)
    options = parser.parse_args()
    desks, count = (50, 100) if options.quick else (options.desks, options.conversations)
    flat = np.ones(count)
    of = f"{desks:,} desks, {count:,} conversations each"
    null = Desks(desks, 0.5 * flat, 0.5, 0.9, seed=0)
    learns = Desks(desks, 0.25 + 0.5 * (1 - np.exp(-np.arange(count) / 100)), 0.25, 0.9, seed=1)
    report(
        f"memory worth nothing, control .1: intervals that held the truth at all looks, {of}", null.coverage(), at_least=0.95
    )
    found = null.is_beyond(null.sums) | null.is_beyond(-null.sums)
    report("memory worth nothing: desks where it was found to be worth something", float(found.any(-1).mean()), at_most=0.05)
    report("memory that learns, control .1: intervals that held the truth at all looks", learns.coverage(), at_least=0.95)
    for name, sign, with_it, without, share in (
        ("memory that helps (.75 for .25), control .1: conversations until that is sure", 1, 0.75, 0.25, 0.9),
        ("lesson that harms (.2 for .7), holdout .05: conversations until it is retired", -1, 0.2, 0.7, 0.95),
        ("lesson that harms (.2 for .7), holdout .2: conversations until it is retired", -1, 0.2, 0.7, 0.8),
    ):
        middle, most, share_found = Desks(desks, with_it * flat, without, share, seed=2).looks_until(sign)
        report(name, middle, note=f"nine of ten within {most:.0f}; found at {share_found:.1%} of the desks")


if __name__ == "__main__":
    main()
