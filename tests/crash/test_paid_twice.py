"""Nothing is paid twice: after a kill, at most the calls that were in flight are asked for again."""

import pytest

from tests.crash.paid_twice import IN_FLIGHT, METHODS, paid_twice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "moments"), [("adamem", 1), *(pytest.param(method, 10, marks=pytest.mark.long) for method in METHODS)]
)
def test_after_a_kill_only_calls_in_flight_are_asked_for_again(method: str, moments: int) -> None:
    whole, again = paid_twice(method, moments)
    assert whole > 2 * IN_FLIGHT
    assert all(0 <= calls <= IN_FLIGHT for calls in again)
