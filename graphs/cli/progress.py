"""The progress of a run while it is played: episodes, mean score, cost so far, and what a worker is waiting for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...memory.records import Usage
from ..studies.costs import ledger_usage
from ..studies.waits import wait_text
from .options import SweepSetup
from .report import ScoreFollower, say

__all__ = ["show_progress"]


class MethodProgress(NamedTuple):
    """The progress of one method."""

    done: int
    """Finished episodes."""
    score: str
    """Their mean score."""
    cost: str
    """Tokens and dollars so far; empty without any."""


@contextmanager
def show_progress(
    setup: SweepSetup, folder: Path, followers: Mapping[str, Sequence[ScoreFollower]]
) -> Iterator[Callable[[], None]]:
    """Show how far each method is, its mean score and its cost so far: bars on a terminal, else a line at most every 10 s.

    Args:
        setup: the options, with the episodes of each run and the prices.
        folder: the run folder.
        followers: method -> a `ScoreFollower` for each of its runs.

    Yields:
        A function that shows the present state.
    """
    from rich.console import Console

    def state(method: str) -> MethodProgress:
        scores = [score for follower in followers[method] for score in follower.read_scores()]
        mean = f"{sum(scores) / len(scores):.3g}" if scores else "–"
        return MethodProgress(len(scores), mean, _cost(setup, folder, followers[method]))

    totals = {method: setup.options.episodes * len(runs) for method, runs in followers.items()}
    console, waiting = Console(stderr=True), lambda: wait_text(folder)
    bars = _progress_bars(console, totals, state, waiting) if console.is_terminal else _progress_lines(totals, state, waiting)
    with bars as tick:
        yield tick


def _cost(setup: SweepSetup, folder: Path, runs: Sequence[ScoreFollower]) -> str:
    """The tokens and dollars of these runs so far, in words."""
    from ...nodes.cached_model import Prices

    counted = ledger_usage(folder)
    usage = sum((max(run.usage, counted.get(run.name, Usage()), key=lambda one: one.calls) for run in runs), Usage())
    if not (tokens := usage.input_tokens + usage.output_tokens):
        return ""
    options = setup.options
    dollars = f", ${Prices(options.price_in, options.price_out).cost(usage):.4g}" if options.has_prices else ""
    return f"{usage.calls:,} calls, {tokens:,} tokens{dollars}"


@contextmanager
def _progress_bars(
    console: Any, totals: Mapping[str, int], state: Callable[[str], MethodProgress], waiting: Callable[[], str]
) -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TextColumn("episodes")
    score, cost = TextColumn("mean score {task.fields[score]}"), TextColumn("{task.fields[cost]}")
    with Progress(*columns, score, cost, TimeElapsedColumn(), console=console) as bars:
        tasks = {name: bars.add_task(name, total=total, score="–", cost="") for name, total in totals.items()}

        def tick() -> None:
            wait = waiting()
            for name, task in tasks.items():
                now = state(name)
                bars.update(task, completed=now.done, score=now.score, cost="; ".join(filter(None, (now.cost, wait))))

        yield tick


@contextmanager
def _progress_lines(
    totals: Mapping[str, int], state: Callable[[str], MethodProgress], waiting: Callable[[], str]
) -> Iterator[Callable[[], None]]:
    last_time, last_text = time.monotonic(), ""

    def tick(is_last: bool = False) -> None:
        nonlocal last_time, last_text
        states = {name: (state(name), total) for name, total in totals.items()}
        parts = [
            f"{name} {now.done}/{total} mean {now.score}{f' ({now.cost})' if now.cost else ''}"
            for name, (now, total) in states.items()
        ]
        text = "; ".join(filter(None, (", ".join(parts), waiting())))
        if text != last_text and (is_last or time.monotonic() - last_time > 10):
            say(text)
            last_time, last_text = time.monotonic(), text

    yield tick
    tick(is_last=True)
