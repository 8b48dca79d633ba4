"""Worker processes: what they say, and how often."""

import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forks
import pytest

from learngraph.graphs.arms import make_arm
from learngraph.graphs.experiments import harness, pool, progress, report
from learngraph.graphs.experiments.folder import Sweep
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.play import RunFailure
from learngraph.graphs.experiments.pool import RepeatFilter, run_workers
from learngraph.graphs.experiments.training_free.options import LearningOptions, learning_options
from learngraph.memory.errors import UserError


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


def square(number: int) -> int:
    """The square of a number; at 3 the process is killed."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


@pytest.mark.slow
def test_a_killed_process_loses_its_own_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "get_context", lambda _: forks.CONTEXT)  # a fresh Python takes seconds
    assert sorted(run_workers([1, 2, 3, 4, 5, 6], square, 2, lost=lambda number: -number)) == [-3, 1, 4, 16, 25, 36]
    with pytest.raises(UserError, match="a worker process was killed"):
        run_workers([3, 4], square, 1)


def test_arms_that_share_no_library_are_work_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ["training-free-grpo", "training-free-grpo?arm=empty"]
    arms = {name: make_arm(name) for name in (*shared, "tool-agent")}
    sweep = Sweep(learning_options(LearningOptions(), arms), arms, Path("run"), (0, 1))
    handed: list[list[str]] = []

    def run(work: Any, *args: Any, **more: Any) -> list[Any]:
        handed.extend([f"{job.arm.name}, {job.seed}" for job in jobs] for jobs in work)
        return []

    monkeypatch.setattr(pool, "run_workers", run)
    assert harness._play_missing([(sweep, sweep.batches())], 2, lambda: None, "processes") == {}
    assert handed == [["tool-agent, 0"], ["tool-agent, 1"], *([f"{name}, {seed}" for name in shared] for seed in (0, 1))]


def test_a_sweep_whose_budget_is_spent_is_one_line() -> None:
    arms = {name: make_arm(name) for name in ("react", "static")}
    sweep = Sweep(RunOptions(), arms, Path("run"), (0, 1), "toy", "pocket")
    spent = {
        (sweep.folder, name, seed): RunFailure(f"the budget of $1 is spent: {seed} calls", kind="stopped")
        for name in arms
        for seed in (0, 1)
    }
    (line,) = report._failure_notes([sweep], spent, Path("elsewhere"))
    assert line == "toy, pocket: react, static, seeds 0, 1: stopped: the budget of $1 is spent: 0 calls"


def test_the_time_left_is_told_by_what_was_played_and_not_by_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now: list[Any] = [0.0, 0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(progress, "_state", lambda row: (now[1], "", ""))
    rows: Any = [SimpleNamespace(name="jitrl", episodes=8)]
    with progress._progress_lines(rows, lambda: "") as tick:
        for now[:] in ([240.0, 0], [252.0, 1]):  # four minutes of starting, then 12 s an episode
            tick()
    assert "jitrl 1/8 ; about 1.4 min left at this pace" in capsys.readouterr().err
