"""Training-Free GRPO: what of GRPO's arithmetic is left, against its definition; the interval of the accept test, exactly."""

import math
from itertools import product

import pytest

from learngraph.nodes.extract.groups import advantages, has_spread


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
