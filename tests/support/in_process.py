"""Runs of the command line that are played in the test's own process: starting workers takes seconds."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.experiments import pool, run_inputs


def play_in_process(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Let sweeps play their batches one after the other in this process, in `folder`, with environments of their own."""

    def work(
        batches: Sequence[Any],
        play: Callable[[Any], Any],
        workers: int,
        tick: Callable[[], None],
        concurrency: int = 1,
        lost: Callable[[Any], Any] | None = None,
        engine: str = "processes",
    ) -> list[Any]:
        found = []
        for batch in batches:
            if (given := play(batch)) is not None:
                found.append(given)
            tick()
        return found

    monkeypatch.setattr(pool, "run_workers", work)
    monkeypatch.chdir(folder)
    run_inputs.shared_environment.cache_clear()
    return folder
