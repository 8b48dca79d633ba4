"""Progress of an episode, told by its rewards."""

import pytest

from learngraph.memory.returns.progress import last_progress, made_progress


@pytest.mark.parametrize(
    ("rewards", "steps"),
    [
        ([0, 0, 1, 0], [2]),
        ([1, 1, 1], [0]),  # a constant pays every step
        ([0.5, 0.5, 1.5, 0.5], [0, 2]),
        ([0.17, -0.17, 0.17, -0.17, 0.17], [0]),  # points given, taken back and given again
        ([0, 0.17, -0.17, 0.17, 0.2], [1, 4]),
        ([-1, -1, -1], []),
        ([None, 1, None, 2], [1, 3]),
        ([], []),
    ],
)
def test_progress_is_a_new_high_by_more_than_usual(rewards: list[float | None], steps: list[int]) -> None:
    assert [step for step, made in enumerate(made_progress(rewards)) if made] == steps
    assert last_progress(rewards) == (steps[-1] + 1 if steps else 0)
