"""The progress of runs while they are played: episodes, mean score, cost so far, and what a worker is waiting for."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...memory.records import Usage
from .costs import ledger_usage, row_usage

__all__ = ["say", "show"]


class ScoreFollower:
    """Reads the scores and the costs of a run while another process writes them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "episodes.jsonl"
        self.name = folder.name
        self.scores: list[float] = []
        self.usage = Usage()
        """The usage of the finished episodes."""
        self._at = 0

    def read_scores(self) -> list[float]:
        """The scores of all episodes so far."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._at)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    row = json.loads(line)
                    self.scores.append(row["score"])
                    self.usage += row_usage(row)
        return self.scores


def show(text: str) -> None:
    """Print to stdout: results."""
    sys.stdout.write(f"{text}\n")


def say(text: str) -> None:
    """Print a line to stderr: progress, and what went wrong."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class ProgressRow(NamedTuple):
    """Runs whose progress is shown together."""

    name: str
    episodes: int
    """Number of episodes of all these runs."""
    runs: Sequence[ScoreFollower]
    prices: tuple[float, float] = (0.0, 0.0)
    """Dollars per million tokens read, and written; 0 and 0: no dollars are shown."""
    counts_runs: bool = False
    """True: the number of finished runs is shown, and not the mean score, which says nothing about runs of several methods."""


@contextmanager
def show_progress(rows: Sequence[ProgressRow], totals: Sequence[ProgressRow] = ()) -> Iterator[Callable[[], None]]:
    """Show how far each row is, its mean score, its cost and the time left: bars on a terminal, else a line at most every 10 s.

    Args:
        rows: the runs.
        totals: rows that take the place of the others where there is no terminal, and stand above them where there is.

    Yields:
        A function that shows the present state.
    """
    from rich.console import Console

    folders = {run.path.parent.parent for row in rows for run in row.runs}

    def waiting() -> str:
        return "; ".join(dict.fromkeys(filter(None, map(wait_text, sorted(folders)))))

    console = Console(stderr=True)
    shown = [*totals, *rows] if console.is_terminal else totals or rows
    with _progress_bars(console, shown, waiting) if console.is_terminal else _progress_lines(shown, waiting) as tick:
        yield tick


def _state(row: ProgressRow) -> tuple[int, str, str]:
    """(finished episodes, their mean score or the finished runs, calls and tokens and dollars so far) of a row."""
    scores = [run.read_scores() for run in row.runs]
    done = sum(map(len, scores))
    if row.counts_runs:
        each = row.episodes // max(1, len(row.runs))
        note = f"{sum(len(some) >= each for some in scores)}/{len(scores)} runs"
    else:
        note = f"mean {sum(map(sum, scores)) / done:.3g}" if done else "mean –"
    return done, note, _cost(row)


def _cost(row: ProgressRow) -> str:
    """The calls, tokens and dollars of these runs so far, in words."""
    from ...nodes.cached_model import Prices

    ledgers = {folder: ledger_usage(folder) for folder in {run.path.parent.parent for run in row.runs}}
    usage = Usage()
    for run in row.runs:
        counted = ledgers[run.path.parent.parent].get(run.name, Usage())
        usage += max(run.usage, counted, key=lambda one: one.calls)
    if not (tokens := usage.tokens):
        return ""
    dollars = f", ${Prices(*row.prices).cost(usage):.4g}" if any(row.prices) else ""
    return f"{usage.calls:,} calls, {tokens:,} tokens{dollars}"


@contextmanager
def _progress_bars(console: Any, rows: Sequence[ProgressRow], waiting: Callable[[], str]) -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TextColumn("episodes")
    note, cost = TextColumn("{task.fields[note]}"), TextColumn("{task.fields[cost]}")
    with Progress(*columns, note, cost, TextColumn("left"), TimeRemainingColumn(), console=console) as bars:
        tasks = [bars.add_task(row.name, total=row.episodes, note="", cost="") for row in rows]

        def tick() -> None:
            wait = waiting()
            for row, task in zip(rows, tasks, strict=True):
                done, note_now, cost_now = _state(row)
                bars.update(task, completed=done, note=note_now, cost="; ".join(filter(None, (cost_now, wait))))

        yield tick


@contextmanager
def _progress_lines(rows: Sequence[ProgressRow], waiting: Callable[[], str]) -> Iterator[Callable[[], None]]:
    begin, last_time, last_text = time.monotonic(), -math.inf, ""
    before, total = sum(_state(row)[0] for row in rows), sum(row.episodes for row in rows)

    def tick(is_last: bool = False) -> None:
        nonlocal begin, last_time, last_text
        if not is_last and time.monotonic() - last_time <= 10:
            return
        states = [(row, *_state(row)) for row in rows]
        parts = [f"{row.name} {done}/{row.episodes} {note}{f' ({cost})' if cost else ''}" for row, done, note, cost in states]
        done = sum(state[1] for state in states)
        begin = time.monotonic() if done == before else begin  # workers and models that start are no pace
        left = (time.monotonic() - begin) / max(1, done - before) * (total - done) / 60
        ahead = "the time left is told once a twentieth is played"
        if 20 * (done - before) >= total - before:
            ahead = f"about {left:.1f} min left at this pace" if done < total else ""
        text = "; ".join(filter(None, (", ".join(parts), ahead, waiting())))
        if text != last_text:
            say(text)
            last_time, last_text = time.monotonic(), text

    tick()
    yield tick
    tick(is_last=True)


# Waits of workers before they ask a server again, told to this process by a file in the run folder

WAITING = "waiting.json"
"""Name of the file with the latest wait of any worker."""


def note_wait(folder: Path, wait: Any) -> None:
    """Say in the run folder that this process waits before another try; a listener of tools/models/api_posts.py."""
    note = {"until": time.time() + wait.seconds, "reason": wait.reason, "seconds": round(wait.seconds, 1), "tries": wait.tries}
    if folder.is_dir():  # else the run was removed meanwhile
        (folder / WAITING).write_text(json.dumps(note), encoding="utf-8")


def wait_text(folder: Path) -> str:
    """Words about a wait that is going on; empty if there is none."""
    try:
        note = json.loads((folder / WAITING).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or half written
        return ""
    if note["until"] < time.time():
        return ""
    return f"waiting {note['seconds']:g} s after try {note['tries']}: {note['reason']}"
