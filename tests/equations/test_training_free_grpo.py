"""Training-Free GRPO: what of GRPO's arithmetic is left, against its definition; the interval of the accept test, exactly."""

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learngraph.nodes.extract.groups import advantages, has_spread, reward_std


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_binary_rewards_have_an_advantage_where_the_paper_sees_winners_and_losers(size: int) -> None:
    """Sec. 3: groups with std(r) = 0 have no advantage. For rewards of 0 and 1 that is 0 < mean < 1, and A is known in closed
    form: with k of G right, sqrt((G - k) / k) for the winners, and -sqrt(k / (G - k)) for the losers."""
    for rewards in product((0.0, 1.0), repeat=size):
        right = sum(rewards)
        assert has_spread(rewards) == (0 < right / size < 1)
        for reward, advantage in zip(rewards, advantages(rewards), strict=True):
            if not 0 < right < size:
                assert advantage == 0
            elif reward:
                assert advantage == pytest.approx(math.sqrt((size - right) / right))
            else:
                assert advantage == pytest.approx(-math.sqrt(right / (size - right)))


@given(st.lists(st.integers(0, 20), min_size=2, max_size=6))
def test_the_deviation_is_that_of_the_population(twentieths: list[int]) -> None:
    exact = [Fraction(n, 20) for n in twentieths]
    middle = sum(exact) / len(exact)
    variance = sum((x - middle) ** 2 for x in exact) / len(exact)
    assert reward_std([float(x) for x in exact]) == pytest.approx(math.sqrt(variance), abs=1e-12)
