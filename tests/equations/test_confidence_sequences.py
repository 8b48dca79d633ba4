"""The intervals that hold at any time one looks, by hand and by numbers of other origin."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from learngraph.nodes.evaluate.confidence_sequences import effect_interval, log_mixture, mixture_bound, robust_effects


def test_doubly_robust_effects_by_hand() -> None:
    """Before the first trial both arms expect 1/2; after a treated reward of 1 the treated arm expects (1 + 1) / 3."""
    effects, deviations = robust_effects([1.0, 0.0, 1.0], [True, False, True], [0.8, 0.8, 0.5])
    assert deviations == pytest.approx([1 / 0.8 * 0.5, -1 / 0.2 * (0 - 0.5), 1 / 0.5 * (1 - 2 / 3)])
    assert effects == pytest.approx([0.625, 2 / 3 - 1 / 2 + 2.5, 2 / 3 - 1 / 3 + 2 / 3])


def test_the_mixture_is_the_integral_of_its_supermartingales() -> None:
    """Proposition 9 of Howard et al.: exp(l s - psi_E(l) V) averaged over l = u / c, with a gamma density of 1 - u, cut off at 1."""
    odds = 2 * math.log(1 / 0.05)
    a = 10.0 / (odds + math.log1p(odds))

    def weight(u: float) -> float:
        return float((1 - u) ** (a - 1) * math.exp(-a * (1 - u)))

    def value(u: float) -> float:
        return weight(u) * math.exp(u * 12.0 / 3.0 - (-math.log(1 - u) - u) * 45.0 / 9.0)

    expected = quad(value, 0, 1)[0] / quad(weight, 0, 1)[0]
    assert float(log_mixture(12.0, 45.0, 3.0, 0.025)) == pytest.approx(math.log(expected))
    assert float(log_mixture(mixture_bound(45.0, 3.0, 0.025), 45.0, 3.0, 0.025)) == pytest.approx(math.log(40), abs=1e-4)


@pytest.mark.parametrize(("with_it", "without", "sign"), [(0.9, 0.2, 1), (0.2, 0.9, -1), (0.5, 0.5, 0)])
def test_an_interval_finds_an_effect_and_no_more(with_it: float, without: float, sign: int) -> None:
    random = np.random.default_rng(0)
    treated = random.random(600) < 0.9
    rewards = random.random(600) < np.where(treated, with_it, without)
    found = effect_interval(rewards.astype(float).tolist(), treated.tolist(), [0.9] * 600)
    assert found.low <= with_it - without <= found.high
    assert (found.low > 0) - (found.high < 0) == sign
