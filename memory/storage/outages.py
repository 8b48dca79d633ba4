"""Waiting for a store's server that does not answer."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["RESTART_SECONDS", "TURN_SECONDS", "outlast"]

RESTART_SECONDS = 60.0
"""Seconds in which a server may restart, or the network to it come back, while work waits for it."""
TURN_SECONDS = 2.0
"""The same in an agent's turn, for which a user waits."""
T = TypeVar("T")


def outlast(work: Callable[[], T], is_outage: Callable[[Exception], bool], seconds: float) -> T:
    """The result of the work, which is begun anew while its error is an outage, for so many seconds; then the error is raised."""
    until = time.monotonic() + seconds
    while True:
        try:
            return work()
        except Exception as error:
            if not is_outage(error) or time.monotonic() > until:
                raise
            time.sleep(0.2)
