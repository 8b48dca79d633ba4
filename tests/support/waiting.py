"""Waiting in tests: for a condition, until a moment drawn at random, or to see that nothing happens.

Tests sleep nowhere else (tests/test_architecture.py). On a machine of any speed a condition is waited for, a kill may come at any
moment, and what must not happen does not happen.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

PATIENCE = 120.0
"""Seconds after which a test that waits is said to hang."""


def wait_until(is_met: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait for what another thread or process does. A condition that takes its time is looked at less often."""
    deadline = (looked := time.monotonic()) + seconds
    while not is_met():
        now = time.monotonic()
        assert now < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(max(0.005, 2 * (now - looked)))
        looked = time.monotonic()


async def until(is_met: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait for what another task, thread or process does; other tasks go on."""
    deadline = time.monotonic() + seconds
    while not is_met():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        await asyncio.sleep(0.005)


def wait_at_random(chance: Random, most: float) -> None:
    """Wait for at most so many seconds: what comes next may come at any moment."""
    time.sleep(chance.uniform(0, most))


async def let_others_run(seconds: float = 0.05) -> None:
    """Give tasks and threads time to do what they must not do. Where they are slower, the test passes as well."""
    await asyncio.sleep(seconds)


def has_ended(process: int) -> bool:
    """Whether a process is gone, or only waits to be buried."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def longer_than(limit: float) -> None:
    """Let a limit (seconds) of the code under test pass."""
    time.sleep(2 * limit)
