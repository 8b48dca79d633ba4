"""`learngraph run METHOD` or `learngraph run FILE.toml`: play methods on environments, as far as that is not done, and show the results.

    learngraph run jitrl --env toy --compare static 'jitrl?beta=5' --seeds 10
    learngraph run papers/jitrl.toml --only ablations-here

A method with its flags is an experiment of one environment and one model; a file (experiments/spec.py) may name several. Both are
played by experiments/harness.py: the same command goes on with what was killed, and plays more seeds or episodes if more are asked
for.
"""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from ...memory.display import markdown_table
from ...memory.errors import CommandError, UserError, did_you_mean, plural
from ...memory.storage.postgres_store import without_password
from ..arms import make_arm, method_settings, preset_names, shared_settings
from ..experiments.dry_run import CostEstimate, dry_run, forecast
from ..experiments.folder import Sweep, has_begun, parse_seeds, run_folder_name
from ..experiments.harness import claim_sweeps, play_sweeps, runs_at_once, unfinished_runs
from ..experiments.measures import LEARNING_METRICS, METRICS, RUN_METRICS
from ..experiments.options import RunOptions
from ..experiments.pool import is_ray
from ..experiments.progress import say
from ..experiments.spec import Choice, Spec, plan_sweeps, read_spec, read_tables, unplayed_notes
from ..experiments.training_free.checks import check_arms
from ..experiments.training_free.options import LearningOptions, learning_options
from .flags import parse_flags, parse_options_and_settings

__all__ = ["run"]


HEADINGS: Mapping[str, Sequence[str]] = {
    "options": ("env", "model", "seeds", "episodes", "compare", "judge", "out", "workers", "dry_run", "json"),
    "world": ("split", "horizon", "reference", "max_run_tokens"),
    "model": (
        *("prior", "policy", "policy_history_steps", "window", "prompts", "base_url", "request_timeout", "retries"),
        *("model_temperature", "max_tokens", "model_seed", "reasoning_effort", "extra_body"),
    ),
    "learning before playing": (
        *("test_problems", "test_rollouts", "test_env", "test_temperature", "curve"),
        *("critic", "critic_temperature", "critic_base_url", "tools", "corpus", "tool_turns"),
    ),
    "output": ("memory", "checkpoints"),
    "costs": ("token_budget", "dollar_budget", "price_in", "price_out", "critic_price_in", "critic_price_out"),
    "machines": ("engine", "concurrency"),
}
"""Heading of `--help-all` -> options; those of the first stand in `--help`."""


@dataclass(frozen=True)
class FileOptions:
    """The options of an experiment of a file."""

    file: Positional[Path]
    """The file, in TOML."""
    out: Path | None = None
    """Its folder; `runs/bench-NAME` for `NAME.toml` if not given. The same command continues it."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes that play at the same time."""
    engine: str = "processes"
    """Where runs are played: `processes` of this machine, `ray` (a cluster on it, or $RAY_ADDRESS), or `ray://HOST:PORT`."""
    seeds: str | None = None
    """Other seeds than the file's: `5`, `0,3,7` or `20-39`. More of them are added to those that are played."""
    episodes: int | None = None
    """Another number of episodes than the file's. Finished runs go on from their last one."""
    model: tuple[str, ...] = ()
    """Other models than the file's, such as `openai:NAME`."""
    only: tuple[str, ...] = ()
    """Tables of the file, where it has several (all, if only --model is given); and labels of what to play in them, where not all."""
    price_in: float = 0.0
    """Dollars per million tokens read, of the models for which the file has no price. Without one no dollars are shown."""
    price_out: float = 0.0
    """Dollars per million tokens written."""
    token_budget: int = 0
    """Tokens that may be paid for. Each table has an equal share, and in it each environment with each model. What is spent is not played
    on: the same command with more goes on. 0: no limit."""
    dollar_budget: float = 0.0
    """The same in dollars. 0: no limit."""
    dry_run: bool = False
    """Play nothing: say how many runs are left, and what calls and tokens they would take."""
    json: bool = False
    """Print JSON, one object for each method of each table, and nothing else."""


def run(args: Sequence[str]) -> int:
    """Play a method, several, or those of a file. Returns the exit status."""
    from .. import methods

    if not args or args[0].startswith("-"):
        if not args or args[0] not in ("-h", "--help"):
            raise CommandError(f"learngraph run METHOD … or FILE.toml: which method? there are {', '.join(methods.METHODS)}")
        summaries = "; ".join(f"{name}: {method.summary}" for name, method in methods.METHODS.items())
        about = f"{summaries}. Each has settings of its own: learngraph run METHOD --help. FILE.toml is an experiment of many."
        parse_flags(RunOptions, ["--help"], "learngraph run METHOD", about)
    if args[0].endswith(".toml"):
        return _run_file(args)
    return _run_method(args[0], args[1:])


def _run_method(name: str, args: Sequence[str]) -> int:
    """Play the method of this name with these flags, beside those that `--compare` names."""
    from ..methods import find_method

    method, defaults = find_method(name), method_settings(name)
    about = (
        f"{method.summary}. {name}:PRESET has other defaults ({', '.join(preset_names(method.settings))}), {name}?SETTING=VALUE "
        "changes one."
    )
    title = f"{type(defaults).__name__}: settings of the method"
    form: type[RunOptions] = LearningOptions if method.has_training_phase else RunOptions
    options, settings = parse_options_and_settings(form, defaults, args, f"learngraph run {name}", about, title, HEADINGS)
    if options.model == "uniform":  # as a file and the studio name it
        options = replace(options, model=RunOptions().model, prior="uniform")
    shared, arms = shared_settings(settings, args), {name: make_arm(name, settings)}
    if method.has_training_phase:  # its arms differ in their own switches alone
        shared = {
            one.name: value
            for one in fields(defaults)
            if one.name != "arm" and (value := getattr(settings, one.name)) != getattr(defaults, one.name)
        }
    for other in options.compare:
        if find_method(other).has_training_phase and not method.has_training_phase:
            raise CommandError(f"--compare {other} learns on other problems than it plays; learngraph run {other} compares it")
        if other != name:
            arms[other] = make_arm(other, method_settings(other, main=(name, settings), shared=shared))
    if options.episodes < 1:
        raise CommandError(f"--episodes is at least 1, got {options.episodes}")
    if options.max_run_tokens < 0:
        raise CommandError(f"--max-run-tokens is 0 for any number, or more, got {options.max_run_tokens}")
    if isinstance(options, LearningOptions):
        options = learning_options(options, arms)
    metrics = LEARNING_METRICS if isinstance(options, LearningOptions) else RUN_METRICS
    model = "uniform prior" if options.prior == "uniform" else options.model
    sweep = Sweep(options, arms, Path(), tuple(parse_seeds(options.seeds)), options.env, model)
    sweep = replace(sweep, folder=options.out or Path("runs") / run_folder_name(sweep))
    rows = tuple(arms.values())
    spec = Spec((Choice(options.env, options.env),), rows, (Choice(model, model),), against=rows[0].label, metrics=metrics)
    if options.dry_run:
        _check_command([sweep], options)
        return dry_run([sweep], unplayed_notes(spec), sweep.folder, as_json=options.json)[0]
    return play_and_report(spec, [sweep], sweep.folder, options, ["learngraph", "run", name, *args])


def _run_file(args: Sequence[str]) -> int:
    """Play the experiment of a file, or those of its tables that `--only` names."""
    from ..experiments.claas_stream import is_stream, play_stream, read_stream

    about = "Plays every method of a file on every environment with every model and seed, and compares them."
    options = parse_flags(FileOptions, args, "learngraph run", about)
    tables = read_tables(options.file)
    wanted = [name for name in options.only if name in tables] if "" not in tables else [""]
    wanted = wanted or [*tables] * bool(options.model and not options.only)
    if not wanted:
        return _list_tables(options, tables)
    only, status, costs = [name for name in options.only if name not in tables], 0, CostEstimate("all")
    tokens, dollars = options.token_budget // len(wanted), options.dollar_budget / len(wanted)
    options = replace(options, token_budget=tokens, dollar_budget=dollars)
    for table in wanted:
        name = f"{options.file.stem}-{table}" if table else options.file.stem
        folder = options.out or Path("runs") / f"bench-{name}"
        folder = folder / table if options.out and len(wanted) > 1 else folder
        place = f"{options.file}, {table}" if table else str(options.file)
        if needs := tables[table].get("needs"):
            say(f"{place} needs {needs}")
        if is_stream(tables[table]):
            stream = read_stream(tables[table], place)
            say(
                f"{place}: {plural(len(stream.jobs()), 'trial')} of {stream.scenarios_per_split} scenarios a split, with {stream.model}"
            )
            if not options.dry_run:
                print(play_stream(stream, name, folder, options.workers, options.engine))
            continue
        spec = _with_flags(read_spec(tables[table], [*METRICS], place), options)
        planned = _share_budget(plan_sweeps(spec, folder, options.workers, only), options)
        if options.dry_run:
            _check_command(planned, options)
            missing, cost = dry_run(planned, unplayed_notes(spec, only), folder, as_json=options.json)
            status, costs = max(status, missing), costs + cost
            continue
        command = ["learngraph", "run", str(options.file)]
        for one in ("seeds", "episodes"):
            if (given := getattr(options, one)) is not None:
                command += [f"--{one}", str(given)]
        for one in ("model", "only"):
            chosen = [table] * bool(table) + only if one == "only" else options.model
            command += [f"--{one}", *chosen] if chosen else []
        if table:
            say(f"{place}: {forecast(planned)}")
        status = max(status, play_and_report(spec, planned, folder, options, command, name, only))
    if options.dry_run and len(wanted) > 1 and not options.json:
        price = f", ${costs.dollars:,.2f}" if costs.dollars else ""
        print(f"\nall tables: about {costs.calls:,} calls{price}; --seeds N plays fewer tasks, or more")
    return status


def _list_tables(options: FileOptions, tables: Mapping[str, Mapping[str, Any]]) -> int:
    """Show the tables of a file, of which `--only` names none."""
    if options.only:
        name = options.only[0]
        raise CommandError(f"{options.file}: --only {name}: it has no such table{did_you_mean(name, tables, 'it has')}")
    rows = [[name, table.get("title", ""), table.get("needs", "") or "nothing more"] for name, table in tables.items()]
    print(markdown_table([["--only", "table", "needs"], *rows], left=3))
    print(f"\nlearngraph run {options.file} --only {next(iter(tables))} plays one; with --dry-run it says what it would cost")
    return 0


def _with_flags(spec: Spec, options: FileOptions) -> Spec:
    """The experiment with the seeds, episodes and prices of the command."""
    changes: dict[str, Any] = {name: given for name in ("seeds", "episodes") if (given := getattr(options, name)) is not None}
    if options.seeds is not None:
        parse_seeds(options.seeds)
    if options.episodes is not None and options.episodes < 1:
        raise CommandError(f"--episodes is at least 1, got {options.episodes}")
    prices = {"price_in": options.price_in, "price_out": options.price_out}
    if min(prices.values()) < 0:
        raise CommandError(f"--price-in and --price-out are at least 0, got {options.price_in:g} and {options.price_out:g}")

    def left(one: Choice) -> Choice:
        return replace(one, options={name: value for name, value in one.options.items() if name not in changes})

    models = [
        left(one if prices.keys() & one.options else replace(one, options={**one.options, **prices}))
        for one in ([Choice(name, name) for name in options.model] or spec.models)
    ]
    environments, rest = tuple(map(left, spec.environments)), left(Choice("", options=spec.options)).options
    return replace(spec, models=tuple(models), environments=environments, options=rest, **changes)


def _share_budget(planned: Sequence[Sweep], options: FileOptions) -> list[Sweep]:
    """The sweeps, each that asks a model with an equal share of the command's budgets."""
    paid = sum(one.options.prior == "model" for one in planned) or 1
    shares = {"token_budget": options.token_budget // paid, "dollar_budget": options.dollar_budget / paid}
    given: dict[str, Any] = {name: share for name, share in shares.items() if getattr(options, name)}
    return [_with_budget(one, given) if given and one.options.prior == "model" else one for one in planned]


def _with_budget(sweep: Sweep, given: Mapping[str, Any]) -> Sweep:
    changed = replace(sweep.options, **given)
    if isinstance(changed, LearningOptions):  # what it knows of the arms is no argument, and would be lost
        changed = learning_options(changed, sweep.arms)
    return replace(sweep, options=changed)


def play_and_report(
    spec: Spec,
    planned: Sequence[Sweep],
    folder: Path,
    options: RunOptions | FileOptions,
    command: Sequence[str],
    name: str = "",
    only: Sequence[str] = (),
) -> int:
    """Play what is left, and print what there is. Returns the exit status."""
    _check_command(planned, options)
    with claim_sweeps(planned, folder, name):
        with _resume_hint(folder):
            failures, has_played = play_sweeps(planned, options.workers, options.engine, is_file=bool(name))
        if not has_played and not failures:
            say(f"finished already; these are its results (remove {folder} or give another --out to play again)")
        from ..experiments.report import draw_graph, report_sweeps

        report = report_sweeps(
            spec,
            planned,
            folder,
            shlex.join(map(without_password, command)),
            failures,
            only=only,
            is_file=bool(name),
            draws=has_played,
        )
        graphs = [] if name else [draw_graph(folder, arm) for arm in planned[0].arms.values()]
    if options.json:
        for row in report.objects:
            print(json.dumps(row))
        for note in report.notes:
            say(note)
        return 2 if failures else 0
    print(report.page if name else "\n".join([report.text, "", *report.notes]))
    print(f"\nreport           {folder / 'report.html'}: every run there leads to its rows")
    print(f"all of it        {folder}: results.md, results.json, figures")
    if graphs:
        print(f"graphs           {'  '.join(map(str, graphs))}")
    return 2 if failures else 0


def _check_command(planned: Sequence[Sweep], options: RunOptions | FileOptions) -> None:
    """Find mistakes of a command before anything is played."""
    if options.workers < 1:
        raise CommandError(f"--workers is at least 1, got {options.workers}")
    is_ray(options.engine)  # refuses an unknown one
    for one in planned:
        runs_at_once(one)
    for one in planned:
        if isinstance(one.options, LearningOptions) and (options.dry_run or unfinished_runs(one)[0]):
            check_arms(one, asks_model=not options.dry_run)


@contextmanager
def _resume_hint(folder: Path) -> Iterator[None]:
    """Say that the same command goes on, after an error or Ctrl-C, where something was played."""
    hint = f"; finished episodes are in {folder}, and the same command goes on from there"
    try:
        yield
    except KeyboardInterrupt:
        say("stopped" + (hint if has_begun(folder) else ""))
        raise
    except UserError as error:
        if error.fails_again or not has_begun(folder):
            raise
        raise UserError(f"{error}{hint}") from None
