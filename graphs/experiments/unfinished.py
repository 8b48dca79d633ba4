"""A benchmark's folder: the runs that are left to play, and the results of those that are finished. A damaged run stops no other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ...memory.errors import UserError
from . import sweep as sweeps
from .benchmark import SeedResult
from .plan import BenchSweep
from .progress import ScoreFollower
from .run_folder import shares_memory
from .sweep import Job, RunFailure

__all__ = ["Failures", "Run", "is_done", "read_results", "unfinished_runs"]

Run = tuple[Path, str, int]
"""Folder of a sweep, method and seed."""
Failures = dict[Run, RunFailure]
"""Run -> why it has no result."""
DAMAGES = (UserError, ValueError, KeyError, TypeError)
"""Errors of reading a run's files. Whatever they hold, the other runs are played and shown."""


def is_done(job: Job) -> bool:
    """True if the run is finished and its files can be read."""
    try:
        return sweeps.is_finished(job)
    except DAMAGES:
        return False  # among the failures, if it was to be played


def unfinished_runs(one: BenchSweep) -> tuple[list[list[Job]], list[RunFailure]]:
    """The runs of a sweep that are to be played, method by method, and those that cannot be: their files are damaged."""
    batches, refused = [], []
    for batch in one.batches():
        left = []
        for job in batch:
            try:
                if not sweeps.is_finished(job):
                    ScoreFollower(job).read_scores()
                    left.append(job)
            except DAMAGES as error:
                refused.append(_damage(job, error))
        if left and shares_memory(one.setup, batch[0].method) and _memory_is_ahead(batch, left):
            reason = (
                "its seeds share one memory and are played in turn, and later ones have been played already: it cannot be given "
                "more episodes or earlier seeds; give another --out"
            )
            refused += [RunFailure(job.method, job.seed, reason, fails_again=True) for job in left]
        elif left:
            batches.append(left)
    return batches, refused


def read_results(planned: Sequence[BenchSweep], failed: Collection[Run]) -> tuple[Mapping[Run, SeedResult], Failures]:
    """The results of the finished runs but the failed ones, and those whose files turn out to be damaged."""
    results: dict[Run, SeedResult] = {}
    failures: Failures = {}
    for one in planned:
        is_judged = one.setup.options.judge != "environment"
        for run in ((one.folder, key, seed) for key in one.arms for seed in one.seeds):
            job = one.job(run[1], run[2])
            if run in failed:
                continue
            try:
                if not sweeps.is_finished(job):
                    continue
                result = sweeps.seed_result(job, is_judged=is_judged)
                if not all(map(math.isfinite, (result.optimum, *result.scores))):
                    raise ValueError("a score is not a finite number")
                results[run] = result
            except DAMAGES as error:
                failures[run] = _damage(job, error)
    return results, failures


def _damage(job: Job, error: Exception) -> RunFailure:
    if isinstance(error, UserError):
        reason = str(error)
    else:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        reason = f"{job.folder} is damaged ({text}); remove it to play that run from its start"
    return RunFailure(job.method, job.seed, reason, fails_again=True)


def _memory_is_ahead(batch: Sequence[Job], left: Sequence[Job]) -> bool:
    """True if a run that is to be played comes before one that has begun, or has an end already."""
    first = batch.index(left[0])
    return (left[0].folder / "result.json").exists() or any((job.folder / "steps.jsonl").exists() for job in batch[first + 1 :])
