"""Intervals of a mean effect that hold at any time one looks, where treatments were drawn with known shares. Pure functions.

[H] Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Ann. Statist. 49 (2021).
[W] Waudby-Smith, Wu, Ramdas, Karampatziakis, Mineiro, "Anytime-valid off-policy inference for contextual bandits" (2024).

The estimand is the mean of the effects until now, which may drift, as where a memory grows. The package `confseq` has the bound of
[H], too, but no wheel: it has to be compiled, with Boost.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["EffectInterval", "effect_interval"]

CLIP = 0.25, 0.75
"""Least and greatest expected reward: what is further off costs variance, what is closer costs scale (see `scale_of`)."""
PRIOR = 2.0
"""Rewards of one half that an expected reward begins with."""
TUNED_FOR = 10.0
"""Variance, in squared scales, for which the bound is the narrowest."""


class EffectInterval(NamedTuple):
    """The mean effect of a treatment on rewards from 0 to 1, with an interval that holds at all times together."""

    mean: float
    low: float
    high: float


def robust_effects(rewards: Any, treated: Any, shares: Any) -> tuple[Any, Any]:
    """The effect that each trial shows, and its deviation from what was expected before it [W, doubly robust].

    With a_i whether trial i was treated, p_i its probability, r_i in [0, 1] its reward, and f_1, f_0 the expected rewards of both
    arms from the trials before i (clipped to `CLIP`):

        deviation_i = a_i / p_i (r_i - f_1) - (1 - a_i) / (1 - p_i) (r_i - f_0)
        effect_i = f_1 - f_0 + deviation_i,    whose expectation given the past is the trial's true effect

    Args:
        rewards: r, along the last axis in the order of the trials.
        treated: a.
        shares: p.
    """
    r, a, p = np.asarray(rewards, float), np.asarray(treated, float), np.asarray(shares, float)

    def expected_rewards(drawn: Any) -> Any:
        total, count = (np.cumsum(x, -1) - x for x in (drawn * r, drawn))
        return np.clip((PRIOR / 2 + total) / (PRIOR + count), *CLIP)

    one, none = expected_rewards(a), expected_rewards(1 - a)
    deviations = a / p * (r - one) - (1 - a) / (1 - p) * (r - none)
    return one - none + deviations, deviations


def scale_of(least_share: float) -> float:
    """A bound on the size of all deviations, where each arm was drawn with at least this probability."""
    return CLIP[1] / least_share


def log_mixture(total: Any, variance: Any, scale: float, alpha: float) -> Any:
    """Log of the gamma-exponential mixture supermartingale [H, Proposition 9] at a sum of deviations.

    With rho that tunes it, a = rho / c^2, b = (V + rho) / c^2, x = b + s / c, and P the regularized lower incomplete gamma function:

        m(s, V) = a^a / (Gamma(a) P(a, a))  Gamma(b) P(b, x) / x^b  exp(s / c + V / c^2)

    It exceeds 1 / alpha, for a sum of deviations of at least -c each less their expectations, at any time with probability alpha at most.

    Args:
        total: s, at least 0, and any number of sums at once.
        variance: V, the sum of their squares [H, Theorem 4].
        scale: c.
        alpha: the level for which it is tuned.
    """
    from scipy.special import gammainc, gammaln  # type: ignore[import-untyped]

    odds = 2 * math.log(1 / (2 * alpha))
    a = TUNED_FOR / (odds + math.log1p(odds))
    v = np.asarray(variance, float) / scale**2
    b, x = v + a, v + a + np.asarray(total, float) / scale
    start = a * math.log(a) - gammaln(a) - math.log(gammainc(a, a))
    return start + gammaln(b) + np.log(gammainc(b, x)) - b * np.log(x) + x - a


def mixture_bound(variance: float, scale: float, alpha: float) -> float:
    """The sum of deviations at which the mixture of `log_mixture` reaches 1 / alpha."""
    low, high, goal = 0.0, scale, math.log(1 / alpha)
    while log_mixture(high, variance, scale, alpha) < goal:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if log_mixture(middle, variance, scale, alpha) < goal else (low, middle)
    return high


def effect_interval(rewards: Sequence[float], treated: Sequence[bool], shares: Sequence[float]) -> EffectInterval:
    """The mean effect of a treatment, with a 95 % confidence sequence: with probability .05 at most, any of all looks errs.

    Args:
        rewards: from 0 to 1, in the order of the trials; at least one.
        treated: whether each trial was treated.
        shares: the probability with which it was.
    """
    effects, deviations = robust_effects(rewards, treated, shares)
    least = min(min(p, 1 - p) for p in shares)
    mean = float(np.mean(effects))
    half = mixture_bound(float(np.sum(deviations**2)), scale_of(least), 0.025) / len(effects)
    low, high = min(1.0, max(-1.0, mean - half)), max(-1.0, min(1.0, mean + half))
    return EffectInterval(min(max(mean, low), high), low, high)  # the mean of the effects may lie beyond what an effect can be
