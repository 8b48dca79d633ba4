"""Reports of a run: its progress while it is played, and at the end its table, curves and pictures of graphs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError
from ..studies.old_names import run_stem
from .draw import blueprint
from .options import SweepSetup
from .play import needs_model

if TYPE_CHECKING:
    from ..studies.sweep import Job, RunFailure

__all__ = ["bank_overlap_warnings", "report", "say", "show_progress"]


class ScoreFollower:
    """Reads the scores of a run while another process writes them.

    Args:
        job: the run.
    """

    def __init__(self, job: Job) -> None:
        self.path = job.folder / "episodes.jsonl"
        self.scores: list[float] = []
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
                    self.scores.append(json.loads(line)["score"])
        return self.scores


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def report(
    setup: SweepSetup, folder: Path, batches: Sequence[Sequence[Job]], failures: Sequence[RunFailure] | None = None
) -> int:
    """Write and print the results of finished runs: a table, or with `--json` one object per method. Returns the exit status.

    Args:
        setup: the options and the settings of the methods.
        folder: the run folder.
        batches: the runs of each method.
        failures: the runs that did not get to their end; None if nothing was played, so that the pictures there are right.

    Raises:
        UserError: no run was finished.
    """
    from ..studies import benchmark, sweep

    options, failed = setup.options, failures or ()
    unfinished = {(one.method, one.seed) for one in failed}
    finished = [[job for job in batch if (job.method, job.seed) not in unfinished] for batch in batches]
    finished = [batch for batch in finished if batch]
    _write_failures(folder, failed)
    lines = _failure_lines(folder, failed)
    if not finished:
        raise UserError("\n".join(lines))
    titles = {name: _table_name(name, settings) for name, settings in setup.methods.items()}
    results = [[replace(sweep.seed_result(job), method=titles[job.method]) for job in batch] for batch in finished]
    results = benchmark.with_common_optimum(results)
    rows = [
        benchmark.summary(attempts, options.env, options.model if needs_model(batch[0].method, options) else "none")
        for attempts, batch in zip(results, finished, strict=True)
    ]
    sweep.write_json(folder / "results.json", [row.as_dict() for row in rows])
    pictures = [folder / "curves.png", folder / "curves.svg"]
    if failures is not None or not all(picture.exists() for picture in pictures):
        prior = options.model if options.prior == "model" else "uniform prior"
        benchmark.draw_learning_curves(results, f"{options.env}, {prior}", pictures)
    drawn = [_draw_into(folder, name, settings) for name, settings in setup.methods.items()]
    tasks = [sweep.task_id(job) for job in finished[0]]
    remarks = [
        *benchmark.walkthrough_notes(rows),
        *bank_overlap_warnings(setup, tasks),
        *benchmark.bank_cost_notes(rows),
        *_missing_reward_lines(folder),
        *lines,
    ]
    if options.json:
        for row in rows:
            print(json.dumps(row.as_dict()))
        for line in remarks:
            say(line)
    else:
        print(f"{options.env}, {options.episodes} episodes, {len(batches[0])} seeds; [95 % interval over seeds]\n")
        print(benchmark.table(rows))
        print(f"\nlearning curves  {pictures[0]}  {pictures[1].name}")
        print(f"graphs           {'  '.join(map(str, drawn))}")
        print(f"all of it        {folder}")
        for line in remarks:
            print(line)
    return 2 if failed else 0


def _write_failures(folder: Path, failures: Sequence[RunFailure]) -> None:
    """Write failures.json, or remove that of an earlier command."""
    from ..studies import sweep

    if failures:
        sweep.write_json(folder / "failures.json", [asdict(failure) for failure in failures])
    else:
        (folder / "failures.json").unlink(missing_ok=True)


def _failure_lines(folder: Path, failures: Sequence[RunFailure]) -> list[str]:
    """A line for each method and reason, and what to do; the reason alone where it is the only one."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for failure in failures:
        seeds.setdefault((failure.method, failure.reason), []).append(failure.seed)
    lines = [
        f"{method}, seed{'s' * (len(of) > 1)} {', '.join(map(str, sorted(of)))}: failed: {reason}"
        for (method, reason), of in seeds.items()
    ]
    if lines and not all(failure.fails_again for failure in failures):
        lines[-1] += f"; finished episodes are in {folder}, and the same command goes on from there"
    return lines


def _table_name(method: str, settings: Any) -> str:
    """A method's name in tables, with the remark that its settings add to it."""
    remark = getattr(settings, "remark", "")
    return f"{method} ({remark})" if remark else method


def bank_overlap_warnings(setup: SweepSetup, played: Sequence[str]) -> list[str]:
    """A line for each bank with trajectories of tasks (by id) that are played: methods may know these by heart."""
    from ...memory.trajectories import read_bank

    tasks, lines = set(played), list[str]()
    for bank in dict.fromkeys(filter(None, (getattr(settings, "bank", "") for settings in setup.methods.values()))):
        if known := tasks & {trajectory.task.id for trajectory in read_bank(bank)}:
            lines.append(f"{len(known)} of {len(tasks)} played tasks are in the bank {bank}: these scores are no test")
    return lines


def _missing_reward_lines(folder: Path) -> list[str]:
    """A line for each method some of whose attempts have no reward."""
    from ...nodes.evaluate.judge import NO_REWARDS_REASON
    from ..studies import calibration

    found = calibration.read_run_folder(folder)
    lines = [calibration.missing_reward_note(rated, method, NO_REWARDS_REASON) for method, (rated, _) in found.items()]
    return [line for line in lines if line]


def _draw_into(folder: Path, method: str, settings: Any) -> Path:
    from ..wiring import picture

    path = folder / f"{run_stem(folder, method, 0)}.svg"
    if path.exists():
        return path
    if not picture.has_graphviz():
        path = path.with_suffix(".mmd")
    picture.save(blueprint(method, settings), path)
    return path


@contextmanager
def show_progress(followers: Mapping[str, Sequence[Any]], episodes: int) -> Iterator[Callable[[], None]]:
    """Show how far each method is, and its mean score so far: bars on a terminal, else a line at most every 10 s.

    Args:
        followers: method -> a `ScoreFollower` for each of its runs.
        episodes: of each run.

    Yields:
        A function that shows the present state.
    """
    from rich.console import Console

    def state(method: str) -> tuple[int, str]:
        scores = [score for follower in followers[method] for score in follower.read_scores()]
        return len(scores), f"{sum(scores) / len(scores):.3g}" if scores else "–"

    totals = {method: episodes * len(runs) for method, runs in followers.items()}
    console = Console(stderr=True)
    with _progress_bars(console, totals, state) if console.is_terminal else _progress_lines(totals, state) as tick:
        yield tick


@contextmanager
def _progress_bars(
    console: Any, totals: Mapping[str, int], state: Callable[[str], tuple[int, str]]
) -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TextColumn("episodes")
    with Progress(*columns, TextColumn("mean score {task.fields[score]}"), TimeElapsedColumn(), console=console) as bars:
        tasks = {name: bars.add_task(name, total=total, score="–") for name, total in totals.items()}

        def tick() -> None:
            for name, task in tasks.items():
                done, score = state(name)
                bars.update(task, completed=done, score=score)

        yield tick


@contextmanager
def _progress_lines(totals: Mapping[str, int], state: Callable[[str], tuple[int, str]]) -> Iterator[Callable[[], None]]:
    from time import monotonic

    last_time, last_text = monotonic(), ""

    def tick() -> None:
        nonlocal last_time, last_text
        states = {name: (state(name), total) for name, total in totals.items()}
        text = ", ".join(f"{name} {done}/{total} mean {score}" for name, ((done, score), total) in states.items())
        finished = all(done == total for (done, _), total in states.values())
        if text != last_text and (finished or monotonic() - last_time > 10):
            say(text)
            last_time, last_text = monotonic(), text

    yield tick
