"""`learngraph bench FILE.toml`: methods x environments x models x seeds in worker processes, then tables of all of them.

Each environment and model is a sweep as `learngraph run` plays it, in a folder of its own; file.py describes the file.
The same command goes on with what was killed, plays more seeds or episodes if more are asked for, and else only shows the results.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from ....memory.errors import CommandError, UserError
from ...experiments import pool
from ...experiments import sweep as sweeps
from ...experiments.bench.figures import draw_figures
from ...experiments.bench.remarks import table_remarks
from ...experiments.benchmark import SeedResult, with_common_optimum
from ...experiments.measures import METRICS, USUAL_METRICS
from ...experiments.options import SweepSetup
from ...experiments.page import write_report
from ...experiments.plan import BenchSweep, growing_record, plan_sweeps, sweep_prices, unplayed_notes
from ...experiments.play import loads_model, play
from ...experiments.progress import ProgressRow, ScoreFollower, say, show_progress
from ...experiments.run_folder import parse_seeds
from ...experiments.spec import NO_MODEL, BenchFile, read_bench_file
from ...experiments.sweep import Job, RunFailure
from ...experiments.tables import BenchTable, as_objects, latex_table, markdown_page, paired_table, score_table
from ...experiments.unfinished import Failures, Run, is_done, read_results, unfinished_runs
from ..flags import parse_flags
from ..run import check_sweep, play_missing, runs_at_once

__all__ = ["bench"]


@dataclass(frozen=True)
class BenchOptions:
    """The options of a benchmark."""

    file: Positional[Path]
    """The benchmark file, in TOML."""
    out: Path | None = None
    """Its folder; `runs/bench-NAME` for `NAME.toml` if not given. The same command continues it."""
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes that play at the same time."""
    engine: str = "processes"
    """Where runs are played: `processes` of this machine, `ray` (a cluster on it, or $RAY_ADDRESS), or `ray://HOST:PORT`."""
    seeds: str | None = None
    """Other seeds than the file's: `5`, `0,3,7` or `20-39`. More of them are added to those that are played."""
    episodes: int | None = None
    """Another number of episodes than the file's. Finished runs go on from their last one."""
    only: tuple[str, ...] = ()
    """Labels of the environments, models and methods to play, where that is not all."""
    price_in: float = 0.0
    """Dollars per million tokens read, of the models for which the file has no price. Without one no dollars are shown."""
    price_out: float = 0.0
    """Dollars per million tokens written."""
    dry_run: bool = False
    """Play nothing: say how many runs are left, and what calls and tokens they would take."""
    json: bool = False
    """Print JSON, one object for each method of each table, and nothing else."""
    write: Path | None = None
    """A page whose lines between `<!-- bench NAME -->` and `<!-- /bench -->` are replaced by the tables and the command."""


def bench(args: Sequence[str]) -> int:
    """Play a benchmark, as far as that is not done, and show its tables. Returns the exit status."""
    about = "Plays every method of a benchmark file on every environment with every model and seed, and compares them."
    options = parse_flags(BenchOptions, args, "learngraph bench", about)
    if options.jobs < 1:
        raise CommandError(f"--jobs is at least 1, got {options.jobs}")
    file = _with_flags(read_bench_file(options.file, [*METRICS]), options)
    name = options.file.stem
    folder = options.out or Path("runs") / f"bench-{name}"
    planned = plan_sweeps(file, folder, options.jobs, options.only)
    for one in planned:
        runs_at_once(one.setup)
    if options.write:
        _find_block(options.write, name)  # before hours of play
    if options.dry_run:
        from ...experiments.bench.dry_run import show_dry_run

        return show_dry_run(planned, unplayed_notes(file, options.only), folder)
    with ExitStack() as stack:
        stack.enter_context(sweeps.claim_folder(folder, {"bench": name}))
        for one in planned:
            stack.enter_context(sweeps.claim_folder(one.folder, growing_record(one)))
        failures = _play(planned, options.jobs, options.engine, folder)
        return _report(file, options, folder, planned, failures)


def _with_flags(file: BenchFile, options: BenchOptions) -> BenchFile:
    """The benchmark with the seeds, episodes and prices of the command."""
    changes: dict[str, Any] = {name: given for name in ("seeds", "episodes") if (given := getattr(options, name)) is not None}
    if options.seeds is not None:
        parse_seeds(options.seeds)
    if options.episodes is not None and options.episodes < 1:
        raise CommandError(f"--episodes is at least 1, got {options.episodes}")
    prices: dict[str, Any] = {"price_in": options.price_in, "price_out": options.price_out}
    if min(prices.values()) < 0:
        raise CommandError(f"--price-in and --price-out are at least 0, got {options.price_in:g} and {options.price_out:g}")

    def left(there: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in there.items() if name not in changes}

    models = [model if model.price_in or model.price_out else replace(model, **prices) for model in file.models]
    return replace(
        file,
        models=tuple(replace(one, options=left(one.options)) for one in models),
        environments=tuple(replace(one, options=left(one.options)) for one in file.environments),
        options=left(file.options),
        **changes,
    )


# Playing


def _play(planned: Sequence[BenchSweep], jobs: int, engine: str, folder: Path) -> Failures:
    """Play what is left. Returns the runs that failed."""
    failures: Failures = {}
    left: list[tuple[BenchSweep, list[list[Job]]]] = []
    for one in planned:
        batches, refused = unfinished_runs(one)
        failures |= _by_run((one.folder, failure) for failure in refused)
        if not batches:
            continue
        try:
            bank_seeds = one.seeds if any(getattr(settings, "bank", "") for settings in one.setup.methods.values()) else []
            check_sweep(one.setup.options, bank_seeds, any(loads_model(of[0].method, one.setup.options) for of in batches))
            left.append((one, batches))
        except UserError as error:  # such as a package that is missing: the others go on
            say(f"{one.name}: not played: {error}")
            unplayed = (RunFailure(job.method, job.seed, str(error), error.fails_again) for of in batches for job in of)
            failures |= _by_run((one.folder, failure) for failure in unplayed)
    if not left:
        return failures
    rows, total = [_progress_row(one.name, [(one, batches)]) for one, batches in left], _progress_row("all", left)
    try:
        with (
            pool.environment_defaults(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"),
            show_progress(rows, [total]) as tick,
        ):
            work = [(one.setup, batches) for one, batches in left]
            failures |= _by_run(play_missing(work, play_alone, jobs, tick, lost=_lost_failures, engine=engine))
            tick()
    except KeyboardInterrupt:
        say(f"stopped; finished episodes are in {folder}, and the same command goes on from there")
        raise
    return failures


def _by_run(failures: Iterable[tuple[Path, RunFailure]]) -> Failures:
    return {(folder, failure.method, failure.seed): failure for folder, failure in failures}


def play_alone(work: tuple[SweepSetup, Sequence[Job]]) -> list[tuple[Path, RunFailure]] | None:
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


def _lost_failures(work: tuple[SweepSetup, Sequence[Job]]) -> list[tuple[Path, RunFailure]]:
    """The failures of runs whose process was killed."""
    reason = "the process that played it was killed (out of memory?)"
    return [(job.folder.parent, RunFailure(job.method, job.seed, reason)) for job in work[1] if not is_done(job)]


def _progress_row(name: str, parts: Sequence[tuple[BenchSweep, Sequence[Sequence[Job]]]]) -> ProgressRow:
    """The progress of the runs of some sweeps; dollars only where all of them have one price."""
    runs = [ScoreFollower(job) for _, batches in parts for batch in batches for job in batch]
    episodes = sum(job.episodes for _, batches in parts for batch in batches for job in batch)
    prices = {(one.setup.options.price_in, one.setup.options.price_out) for one, _ in parts if one.model.label != NO_MODEL}
    return ProgressRow(name, episodes, runs, prices.pop() if len(prices) == 1 else (0.0, 0.0), counts_runs=True)


# Results


def make_tables(file: BenchFile, planned: Sequence[BenchSweep], results: Mapping[Run, SeedResult]) -> list[BenchTable]:
    """The tables of the finished runs, also of methods of the file that are not to be played now."""
    tables = list[BenchTable]()
    for environment in dict.fromkeys(one.environment.label for one in planned):
        here = [one for one in planned if one.environment.label == environment]
        runs, folders = dict[tuple[str, str], list[SeedResult]](), dict[tuple[str, str, int], Path]()
        for one in here:
            for key, arm in one.arms.items():
                if seeds := [seed for seed in one.seeds if (one.folder, key, seed) in results]:
                    found = [results[one.folder, key, seed] for seed in seeds]
                    runs[one.model.label, arm.label] = [replace(result, method=arm.label) for result in found]
                    folders |= {(one.model.label, arm.label, seed): one.job(key, seed).folder for seed in seeds}
        runs = dict(zip(runs, with_common_optimum([*runs.values()]), strict=True))
        for one in [one for one in here if one.model.label != NO_MODEL] or here:
            # A method that asks no model stands beside those of each model.
            models = [one.model.label, NO_MODEL]
            shown = {
                arm.label: runs[model, arm.label] for arm in file.methods for model in models if (model, arm.label) in runs
            }
            places = {(label, seed): path for (model, label, seed), path in folders.items() if model in models}
            tables.append(
                BenchTable(
                    environment,
                    one.model.label,
                    shown,
                    file.against,
                    one.setup.options.episodes,
                    sweep_prices(one),
                    file.metrics or USUAL_METRICS,
                    places,
                )
            )
    return tables


def _report(
    file: BenchFile,
    options: BenchOptions,
    folder: Path,
    planned: Sequence[BenchSweep],
    failures: Failures,
) -> int:
    """Write and print the results. Returns the exit status."""
    results, damaged = read_results(planned, failures)
    failures |= damaged
    tables = make_tables(file, planned, results)
    remarks = [line for table in tables for line in table_remarks(table)]
    notes = [*remarks, *unplayed_notes(file, options.only), *_failure_notes(planned, failures)]
    page = markdown_page(file.title, file.text, _command(options), tables, notes)
    objects = [one for table in tables for one in as_objects(table)]
    sweeps.write_json(folder / "results.json", objects)
    if failures:
        rows = [{"sweep": str(place.relative_to(folder)), **asdict(failure)} for (place, _, _), failure in failures.items()]
        sweeps.write_json(folder / "failures.json", rows)
    else:
        (folder / "failures.json").unlink(missing_ok=True)
    (folder / "results.md").write_text(f"{page}\n", encoding="utf-8")
    (folder / "results.tex").write_text(_latex(tables), encoding="utf-8")
    with_runs = [table for table in tables if table.runs]
    figures = draw_figures(with_runs, folder / "figures") if with_runs else {}
    title = file.title or options.file.stem
    write_report(folder / "report.html", title, file.text.strip(), _command(options), with_runs, notes, figures)
    if options.write:
        write_block(options.write, options.file.stem, page)
    if options.json:
        for one in objects:
            print(json.dumps(one))
        for note in notes:
            say(note)
    else:
        print(page)
        print(f"\nreport           {folder / 'report.html'}: every number there leads to its rows")
        print(f"all of it        {folder}: results.md, results.tex, results.json, figures")
    return 2 if failures else 0


def _failure_notes(planned: Sequence[BenchSweep], failures: Failures) -> list[str]:
    """A line for each sweep, method and reason, with the seeds."""
    names = {one.folder: one for one in planned}
    seeds: dict[tuple[str, str, str], list[int]] = {}
    for (place, key, seed), failure in failures.items():
        one = names[place]
        seeds.setdefault(
            (one.name, one.arms[key].label if key in one.arms else key, f"{failure.kind}: {failure.reason}"), []
        ).append(seed)
    by_reason: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for (name, arm, reason), of in seeds.items():
        by_reason.setdefault((name, reason, tuple(sorted(of))), []).append(arm)
    return [
        f"{name}: {', '.join(arms)}, seed{'s' * (len(of) > 1)} {', '.join(map(str, of))}: {reason}"
        for (name, reason, of), arms in by_reason.items()
    ]


def _latex(tables: Sequence[BenchTable]) -> str:
    parts = ["% needs \\usepackage{booktabs,graphicx}\n"]
    for table in tables:
        name = f"{table.environment}, {table.model}"
        if table.runs:
            parts.append(latex_table(score_table(table), name))
        if table.tests["avg"]:
            parts.append(latex_table(paired_table(table), f"{name}: {table.against} against the others, paired by seed"))
    return "\n".join(parts)


def _command(options: BenchOptions) -> str:
    """The command that makes these tables again."""
    words = ["learngraph", "bench", str(options.file)]
    for name in ("seeds", "episodes"):
        if (given := getattr(options, name)) is not None:
            words += [f"--{name}", str(given)]
    if options.only:
        words += ["--only", *options.only]
    return shlex.join(words)


# A page with a block for the tables


def _find_block(path: Path, name: str) -> tuple[str, str]:
    """The text of a page before and after its block, with the marks."""
    begin, end = f"<!-- bench {name} -->", f"<!-- /bench {name} -->"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--write {path}: cannot be read ({error.strerror or error})") from None
    end = end if end in text else "<!-- /bench -->"
    before, mark, rest = text.partition(begin)
    inside, close, after = rest.partition(end)
    if not mark or not close or "<!-- bench " in inside or text.count(begin) > 1:
        raise CommandError(
            f"--write {path}: needs one line {begin} and, after it, a line <!-- /bench -->, between which the tables go"
        )
    return before + mark, close + after


def write_block(path: Path, name: str, page: str) -> None:
    """Put the tables into the block of this name of a page; the rest of the page stays as it is."""
    before, after = _find_block(path, name)
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"{before}\n\n{page}\n\n{after}", encoding="utf-8")
    part.replace(path)
