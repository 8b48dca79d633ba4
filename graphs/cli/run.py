"""`learngraph run METHOD`: play a method, or compare several, on an environment.

The flags become `RunOptions` and the settings of each method; worker processes play the runs (`play.py`), `report.py` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...memory.errors import CommandError, UserError
from ..arms import method_settings, paper_temperature, preset_names, shared_settings
from ..experiments import pool, sweep
from ..experiments.folder_settings import read_settings
from ..experiments.options import RunOptions, SweepSetup
from ..experiments.play import judge_node, loads_model, play
from ..experiments.progress import ProgressRow, ScoreFollower, say, show_progress
from ..experiments.ray_pool import is_ray
from ..experiments.report import bank_overlap_warnings, report
from ..experiments.run_folder import make_job, parse_seeds, run_folder_name, settings_record, shares_memory
from .flags import parse_flags, parse_options_and_settings
from .training_free import learn_and_test

if TYPE_CHECKING:
    from ..experiments.sweep import Job, RunFailure

__all__ = ["check_sweep", "play_missing", "play_sweep", "run", "runs_at_once"]

Failed = TypeVar("Failed")
"""A run that failed."""


def run(args: Sequence[str]) -> int:
    """Play a method, or compare several. Returns the exit status."""
    from .. import methods

    if not args or args[0].startswith("-"):
        if not args or args[0] not in ("-h", "--help"):
            raise CommandError(f"learngraph run METHOD …: which method? there are {', '.join(methods.METHODS)}")
        summaries = "; ".join(f"{name}: {method.summary}" for name, method in methods.METHODS.items())
        about = f"{summaries}. Each has settings of its own: learngraph run METHOD --help"
        parse_flags(RunOptions, ["--help"], "learngraph run METHOD", about)
    name = args[0]
    if any(arg == "--agent" or arg.startswith("--agent=") for arg in args):
        from .agent import run_agent

        return run_agent(name, args[1:])
    rest = args[1:]
    method = methods.find_method(name)
    presets = preset_names(method.settings)
    about = (
        f"{method.summary}. {name}:PRESET has other defaults ({', '.join(presets)}), {name}?SETTING=VALUE changes one. An agent of your own learns with --agent "
        "MODULE:NAME --tasks FILE --reward MODULE:NAME (graphs/cli/agent.py)."
    )
    defaults = method_settings(name)
    if method.has_training_phase:
        return learn_and_test(name, defaults, rest, about)
    title = f"{type(defaults).__name__}: settings of the method"
    options, settings = parse_options_and_settings(RunOptions, defaults, rest, f"learngraph run {name}", about, title)
    if options.model == "uniform":  # as a benchmark file and the studio name it
        options = replace(options, model=RunOptions().model, prior="uniform")
    shared = shared_settings(settings, rest)
    chosen = {name: settings}
    for other in options.compare:
        if methods.find_method(other).has_training_phase:
            raise CommandError(
                f"--compare {other}: it learns on other problems than it plays; learngraph run {other} compares it"
            )
        if other != name:
            chosen[other] = method_settings(other, main=(name, settings), shared=shared)
    found = {one: paper_temperature(one) for one in chosen}
    return play_sweep(SweepSetup(options, chosen, {one: known for one, known in found.items() if known is not None}))


def play_sweep(setup: SweepSetup) -> int:
    """Play all methods of a setup on all its seeds, as far as that is not done, and report. Returns the exit status."""
    options = setup.options
    seeds = parse_seeds(options.seeds)
    if options.episodes < 1 or options.workers < 1:
        raise CommandError(f"--episodes and --workers are at least 1, got {options.episodes} and {options.workers}")
    is_ray(options.engine)  # refuses an unknown one
    if options.max_run_tokens < 0:
        raise CommandError(f"--max-run-tokens is 0 for any number, or more, got {options.max_run_tokens}")
    runs_at_once(setup)
    settings = settings_record(setup, seeds)
    folder = options.out or Path("runs") / run_folder_name(setup, settings)
    if options.dry_run:
        from ..experiments.dry_run import dry_run

        check_sweep(options, [], needs_model=False)
        return dry_run(setup, folder)
    batches = [[make_job(setup, folder, name, seed) for seed in seeds] for name in setup.methods]
    failures: list[RunFailure] | None = None
    _check_history(setup, folder)
    with sweep.claim_folder(folder, settings):
        if all(sweep.is_finished(job) for batch in batches for job in batch):
            say(f"finished already; these are its results (remove {folder} or give another --out to play again)")
        else:
            bank_seeds = seeds if any(getattr(settings, "bank", "") for settings in setup.methods.values()) else []
            played = check_sweep(options, bank_seeds, needs_model=any(loads_model(name, options) for name in setup.methods))
            for line in bank_overlap_warnings(setup, played):
                say(line)
            with _resume_hint(folder), pool.environment_defaults(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"):
                failures = _play_all(setup, batches)
        return report(setup, folder, batches, failures)


def check_sweep(options: RunOptions, seeds: Sequence[int], needs_model: bool) -> list[tuple[str, int | None]]:
    """Find mistakes before workers start. Returns the id and `Task.seed` of these seeds' tasks."""
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


def _play_all(setup: SweepSetup, batches: Sequence[Sequence[Job]]) -> list[RunFailure]:
    """Play what is not finished, and show the progress. Returns the runs that failed."""
    options = setup.options
    rows = [
        ProgressRow(
            batch[0].method, options.episodes * len(batch), [*map(ScoreFollower, batch)], (options.price_in, options.price_out)
        )
        for batch in batches
    ]
    with show_progress(rows) as tick:
        failures = play_missing([(setup, batches)], play, options.workers, tick, engine=options.engine)
        tick()
    return failures


def play_missing(
    sweeps: Sequence[tuple[SweepSetup, Sequence[Sequence[Job]]]],
    play: Callable[[tuple[SweepSetup, Sequence[Job]]], list[Failed] | None],
    processes: int,
    tick: Callable[[], None],
    **more: Any,
) -> list[Failed]:
    """Play the runs of sweeps that are not finished, in one set of worker processes.

    Args:
        sweeps: each with the runs of each of its methods.
        play: plays some runs in turn, and returns those that failed.
        processes: number of worker processes.
        tick: called a few times a second.
        more: further arguments of `pool.run_workers`.

    Returns:
        The runs that failed.
    """
    by_concurrency: dict[int, list[tuple[SweepSetup, Sequence[Job]]]] = {}
    for setup, batches in sweeps:
        work = by_concurrency.setdefault(runs_at_once(setup), [])
        for batch in batches:
            left = tuple(job for job in batch if not sweep.is_finished(job))
            in_turn = left and shares_memory(setup, batch[0].method)
            work += [(setup, left)] if in_turn else [(setup, (job,)) for job in left]
    failed: list[list[Failed]] = []
    for concurrency, work in by_concurrency.items():
        if work:
            share = max(1, concurrency * min(processes, len(work)) // len(work))
            parallel = [
                (setup, [replace(job, attempts_at_once=_attempts_at_once(setup, job, share)) for job in jobs])
                for setup, jobs in work
            ]
            failed += pool.run_workers(parallel, play, processes, tick, concurrency, **more)
    return [failure for some in failed for failure in some]


def _attempts_at_once(setup: SweepSetup, job: Job, most: int) -> int:
    """Number of a run's episodes that are played at the same time: one where a run may end before its last episode."""
    from .. import methods

    may_end_early = job.stops_at_full_score or job.max_run_tokens
    is_limited = setup.options.token_budget or setup.options.dollar_budget  # attempts that it cuts would be paid again
    return most if methods.find_method(job.method).has_independent_attempts and not (may_end_early or is_limited) else 1


def runs_at_once(setup: SweepSetup) -> int:
    """Number of runs that a process plays at the same time."""
    options = setup.options
    remote = options.model.startswith("openai:") and any(loads_model(name, options) for name in setup.methods)
    wanted = options.concurrency if options.concurrency is not None else 16 if remote else 1
    if wanted < 1:
        raise CommandError(f"--concurrency is at least 1, got {wanted}")
    if wanted > 1 and not remote:
        raise CommandError(f"--concurrency {wanted} is for models behind an API (openai:NAME); --workers for the others")
    return wanted


def _check_history(setup: SweepSetup, folder: Path) -> None:
    """Refuse to put JitRL, which shows a model few of an episode's steps, beside baselines that were shown all of them.

    Raises:
        CommandError: the folder holds such baselines.
    """
    path = folder / "settings.json"
    if setup.options.policy_history_steps is not None or not setup.shows_recent_steps or not path.exists():
        return
    from ..methods import SHOWN_AS_JITRL, find_method

    try:
        there = SweepSetup(setup.options, read_settings(path).get("methods") or {})
    except (OSError, ValueError):
        return  # the folder is refused when it is claimed, with a message
    saw_all = [name for name in there.methods if name.partition(":")[0] in SHOWN_AS_JITRL]
    if saw_all and not there.shows_recent_steps:
        new = next(name for name in setup.methods if find_method(name).needs_logits)
        raise CommandError(
            f"{folder}: {saw_all[0]} was shown all earlier steps of an episode there, and {new} is shown fewer; give another --out"
        )


@contextmanager
def _resume_hint(folder: Path) -> Iterator[None]:
    """Say that the same command goes on, after an error or Ctrl-C."""
    hint = f"finished episodes are in {folder}, and the same command goes on from there"
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {hint}")
        raise
    except UserError as error:
        if error.fails_again:
            raise
        raise UserError(f"{error}; {hint}") from None
