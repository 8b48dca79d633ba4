"""The report of some sweeps: tables on the terminal or as a page, JSON, pictures, and one HTML file whose numbers lead to rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...memory.display import markdown_table
from ...memory.errors import UserError, plural
from ..arms import Arm, blueprint
from .equal_cost import equal_cost_table, rounds_table
from .figures import draw_figures
from .folder import Sweep, has_begun, run_stem, write_json
from .harness import Run, bank_overlap_warnings, read_results
from .measures import USUAL_METRICS
from .notes import table_notes, unusable_warnings
from .page import write_report
from .play import Failures
from .results import SeedResult, played_task
from .spec import NO_MODEL, Spec, unplayed_notes
from .tables import ResultTable, as_objects, fitted_tables, lead_table, markdown_page, score_table
from .training_free.options import LearningOptions
from .training_free.report import learning_report

__all__ = ["Report", "draw_graph", "report_sweeps"]


@dataclass(frozen=True)
class Report:
    """The end of a command: its tables, and what it has to say about them."""

    text: str
    """The tables for the terminal."""
    page: str
    """The tables as a page in Markdown, with the command."""
    objects: Sequence[Mapping[str, Any]]
    """An object for each method of each table, for JSON."""
    notes: Sequence[str] = field(default_factory=tuple)
    """Lines below the tables."""


def report_sweeps(
    file: Spec,
    planned: Sequence[Sweep],
    folder: Path,
    command: str,
    failures: Failures,
    *,
    only: Sequence[str] = (),
    is_file: bool = False,
    draws: bool = True,
) -> Report:
    """Write the results of finished runs into the folder.

    Args:
        file: the experiment.
        planned: its sweeps.
        folder: its folder.
        command: the command that makes the report again.
        failures: the runs that did not get to their end; damaged ones are added.
        only: labels of what is shown, where that is not all.
        is_file: True if the experiment is a file's, and not a method with its flags.
        draws: False keeps the pictures and the HTML report that are there.

    Raises:
        UserError: the only sweep has no finished run.
    """
    results, damaged = read_results(planned, failures)
    failures |= damaged
    tables = make_tables(file, planned, results)
    _write_failures(folder, failures)
    failed = _failure_notes(planned, failures, folder)
    if not results and not is_file:
        raise UserError("\n".join(failed))
    notes = list[str]()
    for table in tables:
        name = f"{table.environment}, {table.model}: " if is_file else ""
        notes += [f"{name}{line}" for line in (*unusable_warnings(table.runs), *table_notes(table, costs=not is_file))]
    for one in planned:
        played = dict.fromkeys(played_task(one.job(key, seed)) for (where, key, seed) in results if where == one.folder)
        shown = [one.job(key, seed).arm for (where, key, seed) in results if where == one.folder]
        notes += bank_overlap_warnings(shown, [*played])
    notes += [*unplayed_notes(file, only), *failed]
    learned = list[str]()
    for one in planned:
        if isinstance(one.options, LearningOptions):
            own = next(table for table in tables if (table.environment, table.model) == (one.world, one.model))
            told, further = learning_report(one, own)
            learned, notes = [*learned, *told], [*notes, *further]
    objects = [one for table in tables for one in as_objects(table)]
    page = markdown_page(file.title, "\n\n".join(filter(None, [file.text, *learned])), command, tables, notes)
    write_json(folder / "results.json", objects)
    (folder / "results.md").write_text(f"{page}\n", encoding="utf-8")
    if draws or not (folder / "report.html").exists():
        with_runs = [table for table in tables if table.runs]
        figures = [[] if learned else draw_figures(table, folder / "figures") for table in with_runs]
        title = file.title or folder.name
        write_report(folder / "report.html", title, file.text.strip(), command, with_runs, notes, figures)
    text = "\n\n".join([*_terminal_parts(planned[0], tables[0], results), *learned]) if tables and not is_file else ""
    return Report(text, page, objects, notes)


def _terminal_parts(one: Sweep, table: ResultTable, results: Mapping[Run, SeedResult]) -> list[str]:
    """The tables of a single sweep as a terminal shows them."""
    runs, seeds = [*table.runs.values()], {run.seed for run in table.all_runs}
    brackets = "[95 % interval over seeds, by Student's t: its ends may lie where no score can]"
    about = f"{len(seeds)} seeds; {brackets}" if len(seeds) > 1 else "1 seed; one seed says nothing about others"
    parts = [
        f"{table.environment}, {plural(table.episodes, 'episode')}, {about}",
        fitted_tables([[row[0], *row[2:]] for row in score_table(table)]),
    ]
    if isinstance(one.options, LearningOptions):
        return parts
    if table.tests["avg"]:
        parts += ["paired by seed, because all methods played the same:", markdown_table(lead_table(table))]
    if len(runs) > 1 and max(len(run.scores) for run in table.all_runs) > 1:
        parts.append(rounds_table(runs))
        if at_cost := equal_cost_table(runs):
            parts += ["at the same cost: what was finished within it", at_cost]
    played = {seed: played_task(one.job(key, seed))[0] for _, key, seed in results}
    return parts + _aggregate_tables(one.options.env, runs, played)


def make_tables(file: Spec, planned: Sequence[Sweep], results: Mapping[Run, SeedResult]) -> list[ResultTable]:
    """The tables of the finished runs, also of methods of the file that are not to be played now."""
    tables = list[ResultTable]()
    for environment in dict.fromkeys(one.world for one in planned):
        here = [one for one in planned if one.world == environment]
        runs, folders = dict[tuple[str, str], list[SeedResult]](), dict[tuple[str, str, int], Path]()
        for one in here:
            for key, arm in one.arms.items():
                if seeds := [seed for seed in one.seeds if (one.folder, key, seed) in results]:
                    found = [results[one.folder, key, seed] for seed in seeds]
                    runs[one.model, arm.label] = [replace(result, method=arm.label) for result in found]
                    folders |= {(one.model, arm.label, seed): one.job(key, seed).folder for seed in seeds}
        for one in [one for one in here if one.model != NO_MODEL] or here:
            # A method that asks no model stands beside those of each model.
            models = [one.model, NO_MODEL]
            shown = {
                arm.label: runs[model, arm.label] for arm in file.methods for model in models if (model, arm.label) in runs
            }
            places = {(label, seed): path for (model, label, seed), path in folders.items() if model in models}
            tables.append(
                ResultTable(
                    environment,
                    one.model,
                    shown,
                    file.against,
                    one.options.episodes,
                    one.options.prices,
                    file.metrics or USUAL_METRICS,
                    places,
                )
            )
    return tables


def _write_failures(folder: Path, failures: Failures) -> None:
    """Write failures.json, or remove that of an earlier command."""
    if not failures:
        (folder / "failures.json").unlink(missing_ok=True)
        return
    rows = [
        {
            **({"sweep": str(place.relative_to(folder))} if place != folder else {}),
            "method": name,
            "seed": seed,
            **asdict(failure),
        }
        for (place, name, seed), failure in failures.items()
    ]
    write_json(folder / "failures.json", rows)


def _failure_notes(planned: Sequence[Sweep], failures: Failures, folder: Path) -> list[str]:
    """A line for each sweep and reason, with the methods and seeds, and what to do."""
    names, budgets = {one.folder: one for one in planned}, dict[Path, str]()
    seeds: dict[tuple[str, str, str], list[int]] = {}
    for (place, key, seed), failure in failures.items():
        one = names[place]
        arm = one.arms[key].label if key in one.arms else key
        name = f"{one.name}: " if one.folder != folder else ""
        # Each run that stops names what was spent until then; the first one is enough.
        reason = budgets.setdefault(place, failure.reason) if failure.kind == "stopped" else failure.reason
        seeds.setdefault((name, f"{failure.kind}: {reason}", arm), []).append(seed)
    by_reason: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for (name, reason, arm), of in seeds.items():
        by_reason.setdefault((name, reason, tuple(sorted(of))), []).append(arm)
    lines = [
        f"{name}{', '.join(arms)}, seed{'s' * (len(of) > 1)} {', '.join(map(str, of))}: {reason}"
        for (name, reason, of), arms in by_reason.items()
    ]
    if lines and has_begun(folder) and not all(failure.fails_again for failure in failures.values()):
        lines[-1] += f"; finished episodes are in {folder}, and the same command goes on from there"
    return lines


def _aggregate_tables(env: str, results: Sequence[Sequence[SeedResult]], played: Mapping[int, str]) -> list[str]:
    """The tables of a world of several tasks, each counting the same; none of other worlds."""
    from ...tools.environments.science_world import is_all_tasks, task_name
    from . import task_groups

    if not is_all_tasks(env):
        return []
    task_of = {seed: task_name(id) for seed, id in played.items()}
    note = "over tasks, scores below 0 as 0; [95 % interval over tasks, by Student's t]"
    return [note, task_groups.aggregate_table(results, task_of), task_groups.task_table(results, task_of)]


def draw_graph(folder: Path, arm: Arm) -> Path:
    """Draw a method's graph into a folder. Returns the file."""
    from ..wiring import picture

    path = folder / f"{run_stem(arm.name)}.svg"
    if path.exists():
        return path
    if not picture.has_graphviz():
        path = path.with_suffix(".mmd")
    picture.save(blueprint(arm.name, arm.settings), path)
    return path
