"""A call within a time limit returns what the function returns, and is given up in time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from learngraph.tools.environments.support.time_limit import call_within


def test_results_and_errors_come_back_as_they_are() -> None:
    assert call_within(10, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        call_within(10, divmod, 7, 0)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: call_within(10, pow, n, 2), range(200))) == [n**2 for n in range(200)]


def test_a_call_that_does_not_return_is_given_up_and_the_next_one_is_not_late() -> None:
    done = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0.1 seconds"):
        call_within(0.1, done.wait)
    assert call_within(10, pow, 2, 3) == 8
    done.set()
    assert call_within(10, pow, 2, 4) == 16  # the late answer is nobody's
