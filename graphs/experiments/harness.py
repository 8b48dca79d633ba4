"""The one harness: plays the runs of sweeps that their folders do not hold yet, and reads the results. A damaged run stops no other.

sweeps = plan_sweeps(spec, folder, processes)        arms x worlds x models x seeds (plan.py)
with claim_sweeps(sweeps, folder, name):             one lock a folder
    failures = play_sweeps(sweeps, processes)        in worker processes or on Ray; kill -9 and the same command goes on
    results, damaged = read_results(sweeps, failures)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ...memory.errors import CommandError, UserError
from . import pool
from . import sweep as sweeps
from .options import RunOptions, RunSetup
from .plan import Sweep, growing_record
from .play import judge_node, loads_model, play
from .progress import ProgressRow, ScoreFollower, say, show_progress
from .results import SeedResult
from .run_folder import parse_seeds, shares_memory
from .spec import NO_MODEL
from .sweep import Job, RunFailure
from .training_free.options import LearningOptions, problem_split

__all__ = ["Run", "claim_sweeps", "play_sweeps", "runs_at_once"]

Run = tuple[Path, str, int]
"""Folder of a sweep, method and seed."""
Failures = dict[Run, RunFailure]
"""Run -> why it has no result."""
DAMAGES = (UserError, ValueError, KeyError, TypeError)
"""Errors of reading a run's files. Whatever they hold, the other runs are played and shown."""


@contextmanager
def claim_sweeps(planned: Sequence[Sweep], folder: Path, name: str = "") -> Iterator[None]:
    """Lock the folders of sweeps while the context lasts; those of a benchmark by its name, too.

    Raises:
        UserError: another process works in one of them, or it belongs to other settings.
    """
    with ExitStack() as stack:
        if name:
            stack.enter_context(sweeps.claim_folder(folder, {"bench": name}))
        for one in planned:
            stack.enter_context(sweeps.claim_folder(one.folder, growing_record(one)))
        yield


def play_sweeps(
    planned: Sequence[Sweep], processes: int, engine: str = "processes", *, is_file: bool = False
) -> tuple[Failures, bool]:
    """Play what is left of some sweeps. Returns the runs that failed, and whether anything was left.

    Raises:
        UserError: a sweep cannot be played, such as for a missing package; of those of a file the others are played.
    """
    failures: Failures = {}
    left: list[tuple[Sweep, list[list[Job]]]] = []
    for one in planned:
        batches, refused = unfinished_runs(one)
        failures |= _by_run((one.folder, failure) for failure in refused)
        if not batches:
            continue
        try:
            bank_seeds = one.seeds if any(getattr(settings, "bank", "") for settings in one.setup.methods.values()) else []
            needs_model = any(loads_model(of[0].method, one.setup.options) for of in batches)
            tasks = _check_sweep(one.setup.options, bank_seeds, needs_model)
            for line in bank_overlap_warnings(one.setup, tasks):
                say(line)
            left.append((one, batches))
        except UserError as error:
            if not is_file:
                raise
            say(f"{one.name}: not played: {error}")
            unplayed = (RunFailure(job.method, job.seed, str(error), error.fails_again) for of in batches for job in of)
            failures |= _by_run((one.folder, failure) for failure in unplayed)
    if not left:
        return failures, False
    rows = [_progress_row(one.name, [(one, batches)]) for one, batches in left]
    totals = [_progress_row("all", left)]
    if not is_file:
        ((only, batches),) = left
        rows, totals = [_progress_row(batch[0].method, [(only, [batch])], counts_runs=False) for batch in batches], []
    with (
        pool.environment_defaults(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"),
        show_progress(rows, totals) as tick,
    ):
        failures |= _by_run(_play_missing([(one.setup, batches) for one, batches in left], processes, tick, engine))
        tick()
    return failures, True


def check_learning(setup: RunSetup) -> None:
    """Find mistakes in runs that learn before they play, before they do.

    Raises:
        UserError: an arm cannot run, or there are too few problems.
    """
    if isinstance(setup.options, LearningOptions):
        from .training_free.dry_run import check_arms

        for seed in parse_seeds(setup.options.seeds):
            problem_split(setup, seed)
        check_arms(setup)


def _play_missing(
    left: Sequence[tuple[RunSetup, Sequence[Sequence[Job]]]], processes: int, tick: Callable[[], None], engine: str
) -> list[tuple[Path, RunFailure]]:
    """Play runs in one set of worker processes. Returns those that failed, each with its sweep's folder."""
    by_concurrency: dict[int, list[tuple[RunSetup, Sequence[Job]]]] = {}
    for setup, batches in left:
        work = by_concurrency.setdefault(runs_at_once(setup), [])
        for batch in batches:
            if isinstance(setup.options, LearningOptions):  # what is learned from is played once for all arms of a seed
                continue
            work += [(setup, batch)] if shares_memory(setup, batch[0].method) else [(setup, (job,)) for job in batch]
        if isinstance(setup.options, LearningOptions):
            jobs = [job for batch in batches for job in batch]
            work += [(setup, [job for job in jobs if job.seed == seed]) for seed in dict.fromkeys(job.seed for job in jobs)]
    failed: list[list[tuple[Path, RunFailure]]] = []
    for concurrency, work in by_concurrency.items():
        share = max(1, concurrency * min(processes, len(work)) // len(work))
        parallel = [
            (setup, [replace(job, attempts_at_once=_attempts_at_once(setup, job, share)) for job in jobs])
            for setup, jobs in work
        ]
        failed += pool.run_workers(parallel, play_alone, processes, tick, concurrency, lost=_lost_failures, engine=engine)
    return [failure for some in failed for failure in some]


def _check_sweep(options: RunOptions, seeds: Sequence[int], needs_model: bool) -> list[tuple[str, int | None]]:
    """Find mistakes before workers start. Returns the id and `Task.seed` of each of these seeds' tasks."""
    from ...tools.environments.catalogue import open_environment
    from ...tools.models.models import MODELS, open_model

    environment = open_environment(options.env, horizon=options.horizon)
    judge_node(options, environment, model=object(), journal=None)
    tasks = [environment.task(seed, options.split) for seed in seeds]
    environment.close()
    kind = options.model.partition(":")[0]
    known = {name.partition(":")[0] for name in MODELS}
    if needs_model and (kind not in known or kind == "openai"):  # the others load their weights: in the workers
        open_model(options.model, **options.model_arguments())
    return [(task.id, task.seed) for task in tasks]


def bank_overlap_warnings(setup: RunSetup, played: Sequence[tuple[str, int | None]]) -> list[str]:
    """A line for each bank with trajectories of tasks that are played: methods may know these by heart.

    Tasks are given by id and `Task.seed`, which names the instance: one game has several ids where specs name it differently.
    """
    from ...memory.attempts.trajectories import read_bank

    tasks, lines = set(played), list[str]()
    for bank in dict.fromkeys(filter(None, (getattr(settings, "bank", "") for settings in setup.methods.values()))):
        held = [trajectory.task for trajectory in read_bank(bank)]
        ids, seeds = {task.id for task in held}, {task.seed for task in held}
        if known := [id for id, seed in tasks if id in ids or seed in seeds]:
            lines.append(f"{len(known)} of {len(tasks)} played tasks are in the bank {bank}: these scores are no test")
    return lines


def _attempts_at_once(setup: RunSetup, job: Job, most: int) -> int:
    """Number of a run's episodes that are played at the same time: one where a run may end before its last episode."""
    from .. import methods

    may_end_early = job.stops_at_full_score or job.max_run_tokens
    is_limited = setup.options.token_budget or setup.options.dollar_budget  # attempts that it cuts would be paid again
    return most if methods.find_method(job.method).has_independent_attempts and not (may_end_early or is_limited) else 1


def runs_at_once(setup: RunSetup) -> int:
    """Number of runs that a process plays at the same time."""
    options = setup.options
    remote = options.model.startswith("openai:") and any(loads_model(name, options) for name in setup.methods)
    wanted = options.concurrency if options.concurrency is not None else 16 if remote else 1
    if wanted < 1:
        raise CommandError(f"--concurrency is at least 1, got {wanted}")
    if isinstance(options, LearningOptions):  # there it is the number of calls
        return 1
    if wanted > 1 and not remote:
        raise CommandError(f"--concurrency {wanted} is for models behind an API (openai:NAME); --workers for the others")
    return wanted


def play_alone(work: tuple[RunSetup, Sequence[Job]]) -> list[tuple[Path, RunFailure]] | None:
    """Play runs in turn, in a worker process. Whatever goes wrong ends these runs alone.

    Returns:
        The runs that failed, each with its sweep's folder; None if none did.
    """
    _, jobs = work
    try:
        failed = play(work)
    except Exception as error:  # an error of ours or of a method from outside; `play` has made its traceback a text
        jobs[0].folder.mkdir(parents=True, exist_ok=True)
        (jobs[0].folder / "error.txt").write_text(f"{str(error).strip()}\n", encoding="utf-8")
        cause = error.__context__ or error  # the traceback's last line may be a note of LangGraph's, with an id of its own
        told = next(iter(str(cause).strip().splitlines()), "")
        reason = f"{type(cause).__name__}{': ' * bool(told)}{told} ({jobs[0].folder / 'error.txt'} has the traceback)"
        failed = [RunFailure(job.method, job.seed, reason) for job in jobs if not is_done(job)]
    return None if failed is None else [(jobs[0].folder.parent, failure) for failure in failed]


def _lost_failures(work: tuple[RunSetup, Sequence[Job]]) -> list[tuple[Path, RunFailure]]:
    """The failures of runs whose process was killed."""
    reason = "the process that played it was killed (out of memory?)"
    return [(job.folder.parent, RunFailure(job.method, job.seed, reason)) for job in work[1] if not is_done(job)]


def _by_run(failures: Iterable[tuple[Path, RunFailure]]) -> Failures:
    return {(folder, failure.method, failure.seed): failure for folder, failure in failures}


def _progress_row(name: str, parts: Sequence[tuple[Sweep, Sequence[Sequence[Job]]]], counts_runs: bool = True) -> ProgressRow:
    """The progress of the runs of some sweeps; dollars only where all of them have one price."""
    runs = [ScoreFollower(job) for _, batches in parts for batch in batches for job in batch]
    episodes = sum(job.episodes for _, batches in parts for batch in batches for job in batch)
    prices = {(one.setup.options.price_in, one.setup.options.price_out) for one, _ in parts if one.model.label != NO_MODEL}
    return ProgressRow(name, episodes, runs, prices.pop() if len(prices) == 1 else (0.0, 0.0), counts_runs)


# What the folders hold


def is_done(job: Job) -> bool:
    """True if the run is finished and its files can be read."""
    try:
        return sweeps.is_finished(job)
    except DAMAGES:
        return False  # among the failures, if it was to be played


def unfinished_runs(one: Sweep) -> tuple[list[list[Job]], list[RunFailure]]:
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


def read_results(planned: Sequence[Sweep], failed: Collection[Run]) -> tuple[Mapping[Run, SeedResult], Failures]:
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
