"""Win rates between methods: a judge compares their answers to the same prompts, in both orders, with and without control of length.

A verdict is a win (1), a loss (0), or half a win: where the judge finds both as good, or changes its mind with the order. The win rate
is the mean over prompts.

Judges prefer long answers. The length-controlled win rate is what the win rate would be if both answers were always equally long
(Dubois et al., 2024, arXiv:2404.04475). The preference is modelled as

    P(first wins) = sigmoid(theta + phi * tanh(d / s))      d = length of the first - length of the second, s = std of d

and the controlled rate is sigmoid(theta). Their model also has a term for how hard a prompt is, fitted over many models, which two
methods cannot identify. There is no kept package for this: `alpaca-eval` had its last release in 2024, and its model is bound to its
own prompts and baseline. So the fit stands here, by scipy.

Where one method's answers are always the longer ones by about as much, no judge's verdicts can tell length from quality. The table
says so (`longer`): the controlled rate is then an extrapolation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...memory.display import format_number, markdown_table, with_interval
from ...nodes.evaluate.statistics import Interval, interval, mean

__all__ = ["JudgedPair", "WinRate", "preference", "win_rate", "win_rate_table"]

Verdict = Literal["win", "loss", "tie", "changed with order", "missing"]
LENGTH_PENALTY = 0.5
"""Weight of the squared coefficients in the fit, in units of one prompt. It keeps them finite where one method always wins, and hardly
changes them where there are many prompts."""
_DRAWS = 400
"""Resamples of the bootstrap interval of a controlled rate."""


def preference(first: float | None, second: float | None) -> Verdict:
    """The verdict for the first method from a judge's two scores, where 5 means as good as each other.

    Args:
        first: how good the first method's answer is against the other, where it is shown first; None: no reply could be read.
        second: how good the other's answer is against it, where the other is shown first.
    """
    if first is None or second is None:
        return "missing"
    signs = (first > 5) - (first < 5), (second < 5) - (second > 5)
    if signs in ((1, 1), (-1, -1)):
        return "win" if signs[0] > 0 else "loss"
    return "changed with order" if signs in ((1, -1), (-1, 1)) else "tie"


@dataclass(frozen=True)
class JudgedPair:
    """The judge's verdict for the first of two methods on one prompt, and the characters of both answers."""

    verdict: Verdict
    first_length: int
    second_length: int


@dataclass(frozen=True)
class WinRate:
    """The win rate of one method against another."""

    method: str
    over: str
    """The method that it is compared with."""
    verdicts: Mapping[str, int]
    """Verdict -> number of prompts. Those without a verdict count for nothing; a tie, and one that changed with the order, as half a win."""
    rate: float
    rate_ci: Interval | None
    """95 % interval over prompts, by Student's t."""
    controlled: float
    """The win rate at equal length."""
    controlled_ci: Interval | None
    """95 % interval over prompts, by the percentile bootstrap; None for fewer than two."""
    length_effect: float
    """phi: above 0, the judge prefers the longer answer."""
    lengths: tuple[float, float]
    """Mean characters of the two methods' answers."""
    longer: float
    """Share of the prompts on which the first method's answer is the longer one; equal ones count half."""

    @property
    def pairs(self) -> int:
        """Prompts with a verdict."""
        return sum(self.verdicts.values()) - self.verdicts.get("missing", 0)


def win_rate(method: str, over: str, pairs: Sequence[JudgedPair]) -> WinRate | None:
    """The win rate of a method over another from the judge's verdicts; None without any."""
    known = [pair for pair in pairs if pair.verdict != "missing"]
    if not known:
        return None
    values = [{"win": 1.0, "loss": 0.0}.get(pair.verdict, 0.5) for pair in known]
    gaps = [float(pair.first_length - pair.second_length) for pair in known]
    controlled, effect = length_controlled_rate(values, gaps)
    return WinRate(
        method,
        over,
        dict(Counter(pair.verdict for pair in pairs)),
        rate=mean(values),
        rate_ci=interval(values),
        controlled=controlled,
        controlled_ci=_bootstrap(values, gaps),
        length_effect=effect,
        lengths=(mean([float(pair.first_length) for pair in known]), mean([float(pair.second_length) for pair in known])),
        longer=mean([(gap > 0) + (gap == 0) / 2 for gap in gaps]),
    )


def length_controlled_rate(values: Sequence[float], gaps: Sequence[float]) -> tuple[float, float]:
    """The win rate at equal length, and phi, by logistic regression with half wins as half; see the module.

    Args:
        values: for each prompt 1, 0 or 0.5.
        gaps: for each prompt the first answer's length minus the second's.
    """
    import numpy as np
    from scipy.optimize import minimize  # type: ignore[import-untyped]
    from scipy.special import expit, log_expit  # type: ignore[import-untyped]

    won, lengths = np.asarray(values, dtype=float), np.asarray(gaps, dtype=float)
    spread = lengths.std()
    # Without any spread of lengths the term is a constant, which theta holds already.
    term = np.tanh(lengths / spread) if spread > 1e-9 else np.zeros_like(lengths)

    def loss(coefficients: Any) -> tuple[float, Any]:
        logits = coefficients[0] + coefficients[1] * term
        error = expit(logits) - won
        value = -(won * log_expit(logits) + (1 - won) * log_expit(-logits)).sum()
        value += LENGTH_PENALTY / 2 * coefficients @ coefficients
        return value, np.array([error.sum(), error @ term]) + LENGTH_PENALTY * coefficients

    theta, phi = minimize(loss, np.zeros(2), jac=True, method="BFGS").x
    return float(expit(theta)), float(phi)


def _bootstrap(values: Sequence[float], gaps: Sequence[float]) -> Interval | None:
    """The percentile bootstrap interval of the controlled rate over prompts."""
    import numpy as np
    from scipy.stats import bootstrap  # type: ignore[import-untyped]

    if len(values) < 2:
        return None
    found = bootstrap(
        (values, gaps),
        lambda *resampled: length_controlled_rate(*resampled)[0],
        n_resamples=_DRAWS,
        vectorized=False,
        paired=True,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def win_rate_table(rows: Sequence[WinRate]) -> str:
    """A Markdown table with a row for each comparison."""
    head = ["win rate", "at equal length", "won / lost / tied", "changed with order", "no verdict", "characters", "longer"]
    lines = [[f"{rows[0].method} wins against", *head]]
    for row in rows:
        won, lost, tied, changed, missing = (str(row.verdicts.get(name, 0)) for name in get_args(Verdict))
        rates = [with_interval(row.rate, row.rate_ci), with_interval(row.controlled, row.controlled_ci)]
        lengths = f"{row.lengths[0]:,.0f} to {row.lengths[1]:,.0f}"
        counts = [f"{won} / {lost} / {tied}", changed, missing]
        lines.append([row.over, *rates, *counts, lengths, format_number(row.longer, ".2f")])
    return markdown_table(lines)
