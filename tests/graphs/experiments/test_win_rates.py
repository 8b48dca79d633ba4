"""Win rates: verdicts of two orders, and control of length on simulated judges whose preference is known."""

import math
import random

import pytest

from learngraph.graphs.experiments.win_rates import JudgedPair, length_controlled_rate, preference, win_rate, win_rate_table


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (8, 2, "win"),
        (2, 8, "loss"),
        (8, 8, "changed with order"),  # whichever is shown first
        (2, 2, "changed with order"),
        (5, 5, "tie"),
        (8, 5, "tie"),  # preferred in one order, as good in the other
        (5, 8, "tie"),
        (None, 2, "missing"),
        (8, None, "missing"),
    ],
)
def test_a_verdict_needs_both_orders(first: float | None, second: float | None, verdict: str) -> None:
    assert preference(first, second) == verdict


def test_ties_and_changed_verdicts_are_half_a_win_and_counted() -> None:
    verdicts = ["win", "win", "loss", "tie", "changed with order", "missing"]
    row = win_rate("a", "b", [JudgedPair(verdict, 10, 10) for verdict in verdicts])  # type: ignore[arg-type]
    assert row is not None
    assert (row.rate, row.pairs) == (3 / 5, 5)
    assert row.verdicts == {"win": 2, "loss": 1, "tie": 1, "changed with order": 1, "missing": 1}
    assert row.longer == 0.5
    assert win_rate("a", "b", [JudgedPair("missing", 1, 2)]) is None


def judged(theta: float, phi: float, count: int, longer_by: float, seed: int = 0) -> list[JudgedPair]:
    """Verdicts of a judge who prefers quality by `theta` and length by `phi`; the first answers are longer by about `longer_by`."""
    draws, pairs = random.Random(seed), list[JudgedPair]()
    for _ in range(count):
        first, second = 1000 + draws.gauss(longer_by, 200), 1000 + draws.gauss(0, 200)
        chance = 1 / (1 + math.exp(-(theta + phi * math.tanh((first - second) / 283))))
        pairs.append(JudgedPair("win" if draws.random() < chance else "loss", int(first), int(second)))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize(("theta", "fair"), [(0.0, 0.5), (1.0, 0.731)])
def test_a_judge_who_prefers_length_is_corrected(theta: float, fair: float) -> None:
    row = win_rate("a", "b", judged(theta, phi=2.0, count=2000, longer_by=250))
    assert row is not None
    assert row.rate > fair + 0.1  # the raw rate is off
    assert row.rate_ci is not None
    assert row.rate_ci[0] > fair
    assert row.controlled == pytest.approx(fair, abs=0.04)
    assert row.controlled_ci is not None
    assert row.controlled_ci[0] < fair < row.controlled_ci[1]
    assert row.length_effect == pytest.approx(2.0, abs=0.3)


@pytest.mark.slow
def test_a_judge_who_does_not_look_at_length_is_left_alone() -> None:
    row = win_rate("a", "b", judged(0.8, phi=0.0, count=2000, longer_by=250))
    assert row is not None
    assert row.controlled == pytest.approx(row.rate, abs=0.04)


def test_a_method_that_always_wins_has_a_finite_fit() -> None:
    rate, effect = length_controlled_rate([1.0] * 50, [float(n) for n in range(-25, 25)])
    assert 0.9 < rate < 1
    assert math.isfinite(effect)
    assert length_controlled_rate([1.0, 0.0], [7.0, 7.0]) == (pytest.approx(0.5), pytest.approx(0.0))  # equal gaps say nothing
    assert length_controlled_rate([0.5] * 10, [0.0] * 10)[0] == pytest.approx(0.5)


def test_the_table_names_both_methods() -> None:
    row = win_rate("icrl", "cot", judged(0, 1, 30, 100))
    assert row is not None
    table = win_rate_table([row])
    assert table.splitlines()[0].startswith("| icrl wins against")
    assert "| cot" in table
