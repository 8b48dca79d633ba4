"""Worker processes: what they say, and how often."""

from __future__ import annotations

import logging

import pytest

from learngraph.graphs.studies.workers import RepeatFilter


def test_a_warning_is_shown_three_times(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test_workers")
    repeats = RepeatFilter()
    logger.addFilter(repeats)
    try:
        for n in range(10):
            logger.warning("no usable reply in %d tries", n)
        logger.warning("another one")
    finally:
        logger.removeFilter(repeats)
    assert caplog.messages == [
        "no usable reply in 0 tries",
        "no usable reply in 1 tries",
        "no usable reply in 2 tries (more of these are only counted)",
        "another one",
    ]
