"""The one harness: plays the runs of sweeps that their folders do not hold yet, and reads the results. A damaged run stops no other.

sweeps = plan_sweeps(spec, folder, processes)        arms x worlds x models x seeds (spec.py)
with claim_sweeps(sweeps, folder, name):             one lock a folder (folder.py)
    failures = play_sweeps(sweeps, processes)        in worker processes or on Ray; kill -9 and the same command goes on
    results, damaged = read_results(sweeps, failures)
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...memory.errors import CommandError, UserError
from ..arms import Arm
from . import pool
from .folder import Job, Sweep, claim_folder, growing_record
from .play import Failures, RunFailure, play
from .progress import ProgressRow, ScoreFollower, say, show_progress
from .results import SeedResult, is_finished, read_result
from .run_inputs import judge_node, loads_model
from .spec import NO_MODEL
from .training_free.options import LearningOptions, learning_arms

__all__ = ["Run", "claim_sweeps", "play_sweeps", "runs_at_once"]

Run = tuple[Path, str, int]
"""Folder of a sweep, method and seed: the key of a job."""
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
            stack.enter_context(claim_folder(folder, {"bench": name}))
        for one in planned:
            stack.enter_context(claim_folder(one.folder, growing_record(one)))
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
        failures |= refused
        if not batches:
            continue
        try:
            from .stages import make_stages

            seen = _check_sweep(one, batches)
            make_stages(one, [batch[0].arm.name for batch in batches], partial(_play_stage, processes=processes, engine=engine))
            for line in bank_overlap_warnings((batch[0].arm for batch in batches), seen):
                say(line)
            left.append((one, batches))
        except UserError as error:
            if not is_file:
                raise
            say(f"{one.name}: not played: {error}")
            failures |= {job.key: RunFailure(str(error), error.fails_again) for batch in batches for job in batch}
    if not left:
        return failures, False
    rows = [_progress_row(one.name, [(one, batches)]) for one, batches in left]
    totals = [_progress_row("all", left)]
    if not is_file:
        ((only, batches),) = left
        rows, totals = [_progress_row(batch[0].arm.name, [(only, [batch])], counts_runs=False) for batch in batches], []
    with pool.environment_defaults(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"), show_progress(rows, totals) as tick:
        failures |= _play_missing(left, processes, tick, engine)
        tick()
    return failures, True


def _play_stage(stage: Sweep, processes: int, engine: str) -> None:
    """Play a sweep that another one waits for."""
    with claim_sweeps([stage], stage.folder):
        failures, _ = play_sweeps([stage], processes, engine)
    for failure in failures.values():
        raise UserError(f"{stage.folder}: {failure.reason}")


def _play_missing(
    left: Sequence[tuple[Sweep, Sequence[Sequence[Job]]]], processes: int, tick: Callable[[], None], engine: str
) -> Failures:
    """Play runs in one set of worker processes. Returns those that failed."""
    by_concurrency: dict[int, list[Sequence[Job]]] = {}
    for one, batches in left:
        work = by_concurrency.setdefault(runs_at_once(one), [])
        learners = learning_arms(one.arms) if isinstance(one.options, LearningOptions) else {}
        for batch in batches:
            if batch[0].arm.name not in learners:
                work += [batch] if batch[0].arm.shares_memory else [(job,) for job in batch]
        for seed in one.seeds:  # what libraries are learned from is played once for all arms of a seed
            if jobs := [job for batch in batches for job in batch if job.seed == seed and job.arm.name in learners]:
                work.append(jobs)
    failures: Failures = {}
    for concurrency, work in by_concurrency.items():
        share = max(1, concurrency * min(processes, len(work)) // len(work))
        parallel = [[replace(job, attempts_at_once=_attempts_at_once(job, share)) for job in jobs] for jobs in work]
        for failed in pool.run_workers(parallel, play, processes, tick, concurrency, lost=_lost_failures, engine=engine):
            failures |= failed
    return failures


def _check_sweep(sweep: Sweep, batches: Sequence[Sequence[Job]]) -> list[tuple[str, int | None]]:
    """Find mistakes before workers start. Returns the id and `Task.seed` of each seed's task where a method reads a bank."""
    from ...tools.environments.catalogue import open_environment
    from ...tools.models.models import MODELS, open_model

    options = sweep.options
    environment = open_environment(options.env, horizon=options.horizon)
    judge_node(options, environment, model=object(), journal=None)
    has_bank = any(getattr(arm.settings, "bank", "") for arm in sweep.arms.values())
    tasks = [environment.task(seed, options.split) for seed in sweep.seeds] if has_bank else []
    environment.close()
    kind = options.model.partition(":")[0]
    known = {name.partition(":")[0] for name in MODELS}
    needs_model = any(loads_model(batch[0].arm, options) for batch in batches)
    if needs_model and (kind not in known or kind == "openai"):  # the others load their weights: in the workers
        open_model(options.model, **options.model_arguments())
    return [(task.id, task.seed) for task in tasks]


def bank_overlap_warnings(arms: Iterable[Arm], played: Sequence[tuple[str, int | None]]) -> list[str]:
    """A line for each bank with trajectories of tasks that are played: methods may know these by heart.

    Tasks are given by id and `Task.seed`, which names the instance: one game has several ids where specs name it differently.
    """
    from ...memory.attempts.trajectories import read_bank

    tasks, lines = set(played), list[str]()
    for bank in dict.fromkeys(filter(None, (getattr(arm.settings, "bank", "") for arm in arms))):
        held = [trajectory.task for trajectory in read_bank(bank)]
        ids, seeds = {task.id for task in held}, {task.seed for task in held}
        if known := [id for id, seed in tasks if id in ids or seed in seeds]:
            lines.append(f"{len(known)} of {len(tasks)} played tasks are in the bank {bank}: these scores are no test")
    return lines


def _attempts_at_once(job: Job, most: int) -> int:
    """Number of a run's episodes that are played at the same time: one where a run may end before its last episode."""
    options = job.options
    # Attempts that a limit cuts would be paid again.
    is_limited = options.max_run_tokens or options.token_budget or options.dollar_budget
    return most if job.arm.method.has_independent_attempts and not is_limited else 1


def runs_at_once(sweep: Sweep) -> int:
    """Number of runs that a process plays at the same time."""
    options = sweep.options
    remote = options.model.startswith("openai:") and any(loads_model(arm, options) for arm in sweep.arms.values())
    wanted = options.concurrency if options.concurrency is not None else 16 if remote else 1
    if wanted < 1:
        raise CommandError(f"--concurrency is at least 1, got {wanted}")
    if isinstance(options, LearningOptions):  # there it is the number of calls
        return 1
    if wanted > 1 and not remote:
        raise CommandError(f"--concurrency {wanted} is for models behind an API (openai:NAME); --workers for the others")
    return wanted


def _lost_failures(jobs: Sequence[Job]) -> Failures:
    """The failures of runs whose process was killed."""
    failure = RunFailure("the process that played it was killed (out of memory?)")
    return {job.key: failure for job in jobs if not is_done(job)}


def _progress_row(name: str, parts: Sequence[tuple[Sweep, Sequence[Sequence[Job]]]], counts_runs: bool = True) -> ProgressRow:
    """The progress of the runs of some sweeps; dollars only where all of them have one price."""
    runs = [ScoreFollower(job.folder) for _, batches in parts for batch in batches for job in batch]
    episodes = sum(job.options.episodes for _, batches in parts for batch in batches for job in batch)
    prices = {(one.options.price_in, one.options.price_out) for one, _ in parts if one.model != NO_MODEL}
    return ProgressRow(name, episodes, runs, prices.pop() if len(prices) == 1 else (0.0, 0.0), counts_runs)


# What the folders hold


def is_done(job: Job) -> bool:
    """True if the run is finished and its files can be read."""
    try:
        return is_finished(job)
    except DAMAGES:
        return False  # among the failures, if it was to be played


def unfinished_runs(one: Sweep) -> tuple[list[list[Job]], Failures]:
    """The runs of a sweep that are to be played, method by method, and those that cannot be: their files are damaged."""
    batches, refused = list[list[Job]](), Failures()
    for batch in one.batches():
        left = []
        for job in batch:
            try:
                if not is_finished(job):
                    ScoreFollower(job.folder).read_scores()
                    left.append(job)
            except DAMAGES as error:
                refused[job.key] = _damage(job, error)
        if left and left[0].arm.shares_memory and _memory_is_ahead(batch, left):
            reason = (
                "its seeds share one memory and are played in turn, and later ones have been played already: it cannot be given "
                "more episodes or earlier seeds; give another --out"
            )
            refused |= {job.key: RunFailure(reason, fails_again=True) for job in left}
        elif left:
            batches.append(left)
    return batches, refused


def read_results(planned: Sequence[Sweep], failed: Collection[Run]) -> tuple[Mapping[Run, SeedResult], Failures]:
    """The results of the finished runs but the failed ones, and those whose files turn out to be damaged."""
    results: dict[Run, SeedResult] = {}
    failures: Failures = {}
    for job in (one.job(name, seed) for one in planned for name in one.arms for seed in one.seeds):
        if job.key in failed:
            continue
        try:
            if is_finished(job):
                result = read_result(job)
                if not all(map(math.isfinite, (result.optimum, *result.scores))):
                    raise ValueError("a score is not a finite number")
                results[job.key] = result
        except DAMAGES as error:
            failures[job.key] = _damage(job, error)
    return results, failures


def _damage(job: Job, error: Exception) -> RunFailure:
    if isinstance(error, UserError):
        return RunFailure(str(error), fails_again=True)
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return RunFailure(f"{job.folder} is damaged ({text}); remove it to play that run from its start", fails_again=True)


def _memory_is_ahead(batch: Sequence[Job], left: Sequence[Job]) -> bool:
    """True if a run that is to be played comes before one that has begun, or has an end already."""
    first = batch.index(left[0])
    return (left[0].folder / "result.json").exists() or any(
        (job.folder / "episodes.jsonl").exists() for job in batch[first + 1 :]
    )
