"""The source stays under the ceilings of shape.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import shape


def test_nothing_is_above_its_ceiling() -> None:
    assert shape.faults() == []


def test_arrows_that_close_a_circle_run_back_up() -> None:
    assert shape.arrows_up({("a", "b"), ("b", "c")}) == 0
    assert shape.arrows_up({("a", "b"), ("b", "c"), ("c", "a"), ("c", "b")}) == 2
