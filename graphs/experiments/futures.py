"""The wait for work that is played elsewhere: in processes of this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

__all__ = ["collect_results"]


def collect_results(
    numbers: Mapping[Future[list[Any]], int], died: type[Exception], tick: Callable[[], None]
) -> tuple[list[Any], list[int]]:
    """Wait for all parts of some work, and call `tick` several times a second meanwhile.

    Args:
        numbers: the future of each part -> its number.
        died: the error of a part whose process was killed.
        tick: called at each turn.

    Returns:
        The results of the parts, in the order in which they ended, and the numbers of those whose process was killed, sorted.
    """
    found, left = list[Any](), list[int]()
    pending = set(numbers)
    while pending:
        done, pending = wait(pending, timeout=0.3, return_when=FIRST_COMPLETED)
        tick()
        for future in done:
            try:
                found += future.result()
            except died:
                left.append(numbers[future])
    return found, sorted(left)
