"""Runs of the command line that are played in the test's own process, without pictures: workers and matplotlib take seconds."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.experiments import figures, pool, report, run_inputs
from learngraph.graphs.experiments.training_free import report as training_report

DRAW_LIBRARY_CURVES = training_report.draw_library_curves


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
    monkeypatch.setattr(report, "draw_figures", lambda *_: [])
    monkeypatch.setattr(training_report, "draw_library_curves", lambda *_: None)
    monkeypatch.chdir(folder)
    run_inputs.shared_environment.cache_clear()
    return folder


def draw_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs of this test draw their pictures after all."""
    monkeypatch.setattr(report, "draw_figures", figures.draw_figures)
    monkeypatch.setattr(training_report, "draw_library_curves", DRAW_LIBRARY_CURVES)
