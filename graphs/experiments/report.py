"""The report of a run: its table, curves and pictures of graphs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError, plural
from ...memory.records import Usage
from ..arms import blueprint
from .folder_settings import run_stem
from .options import SweepSetup
from .play import needs_model
from .progress import say, show

if TYPE_CHECKING:
    from .benchmark import MethodSummary, SeedResult
    from .comparison import Lead
    from .sweep import Job, RunFailure
    from .training_costs import MethodCosts

__all__ = ["bank_overlap_warnings", "report"]


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
    from ...nodes.cached_model import Prices
    from . import benchmark, comparison, cost_curves, episode_curves, sweep, table_notes, training_costs

    options, failed = setup.options, failures or ()
    unfinished = {(one.method, one.seed) for one in failed}
    finished = [[job for job in batch if (job.method, job.seed) not in unfinished] for batch in batches]
    finished = [batch for batch in finished if batch]
    _write_failures(folder, failed)
    lines = _failure_lines(folder, failed)
    if not finished:
        raise UserError("\n".join(lines))
    results = _read_results(setup, finished)
    prices = Prices(options.price_in, options.price_out)
    price = (lambda run: prices.cost(Usage(0, run.input_tokens, run.output_tokens))) if options.has_prices else None
    rows = [
        benchmark.summary(attempts, options.env, options.model if needs_model(batch[0].method, options) else "none", price)
        for attempts, batch in zip(results, finished, strict=True)
    ]
    costs = _training_costs(setup, finished)
    objects = _objects(rows, leads := comparison.leads(results), costs)
    sweep.write_json(folder / "results.json", objects)
    at_cost = [row.as_dict() for cost in cost_curves.COSTS for row in cost_curves.equal_cost(results, cost)]
    sweep.write_json(folder / "curves.json", {"methods": cost_curves.curve_records(results), "equal_cost": at_cost})
    pictures = [folder / f"{name}.{suffix}" for name in ("curves", "costs") for suffix in ("png", "svg")]
    if failures is not None or not all(picture.exists() for picture in pictures):
        title = f"{options.env}, {options.model if options.prior == 'model' else 'uniform prior'}"
        episode_curves.draw_learning_curves(results, title, pictures[:2])
        cost_curves.draw_cost_curves(results, title, pictures[2:])
    drawn = [_draw_into(folder, name, settings) for name, settings in setup.methods.items()]
    tasks = [sweep.played_task(job) for job in finished[0]]
    every = {job.seed: sweep.played_task(job)[0] for batch in finished for job in batch}
    remarks = [
        *table_notes.early_end_notes(rows, options.episodes),
        *table_notes.walkthrough_notes(rows),
        *bank_overlap_warnings(setup, tasks),
        *table_notes.bank_cost_notes(rows),
        *_missing_reward_lines(folder),
        *_silent_failure_lines(rows),
        *table_notes.cost_notes(rows),
        *training_costs.training_notes(costs),
        *lines,
    ]
    if options.json:
        for one in objects:
            show(json.dumps(one))
        for line in [*table_notes.unusable_run_warnings(rows), *remarks]:
            say(line)
    else:
        show(f"{options.env}, {plural(options.episodes, 'episode')}, {_seeds_note(rows)}\n")
        for line in table_notes.unusable_run_warnings(rows):
            show(f"{line}\n")
        tables = [*_tables(rows, leads), *_cost_tables(results), *_aggregate_tables(folder, options.env, results, every)]
        show("\n\n".join([*tables, *([training_costs.costs_table(costs)] if costs else [])]))
        drawn_curves = "  ".join([str(pictures[0]), *(picture.name for picture in pictures[1:])])
        places = [f"\nlearning curves  {drawn_curves}", f"graphs           {'  '.join(map(str, drawn))}"]
        show("\n".join([*places, f"all of it        {folder}", *remarks]))
    return 2 if failed else 0


def _read_results(setup: SweepSetup, finished: Sequence[Sequence[Job]]) -> list[list[SeedResult]]:
    """The results of finished runs by method, with the method's name in tables and one optimum for all methods on a seed."""
    from . import benchmark, sweep

    titles = {name: _table_name(name, settings) for name, settings in setup.methods.items()}
    is_judged = setup.options.judge != "environment"
    results = [
        [replace(sweep.seed_result(job, is_judged=is_judged), method=titles[job.method]) for job in batch] for batch in finished
    ]
    return benchmark.with_common_optimum(results)


def _silent_failure_lines(rows: Sequence[MethodSummary]) -> list[str]:
    """The lines about what went wrong without an error; they are logged, too."""
    from . import table_notes

    lines = [*table_notes.empty_look_up_notes(rows), *table_notes.reply_notes(rows)]
    for line in lines:
        logging.getLogger(__name__).info(line)
    return lines


def _write_failures(folder: Path, failures: Sequence[RunFailure]) -> None:
    """Write failures.json, or remove that of an earlier command."""
    from . import sweep

    if failures:
        sweep.write_json(folder / "failures.json", [asdict(failure) for failure in failures])
    else:
        (folder / "failures.json").unlink(missing_ok=True)


def _failure_lines(folder: Path, failures: Sequence[RunFailure]) -> list[str]:
    """A line for each method and reason, and what to do; the reason alone where it is the only one."""
    seeds: dict[tuple[str, str, str], list[int]] = {}
    for failure in failures:
        seeds.setdefault((failure.method, failure.kind, failure.reason), []).append(failure.seed)
    lines = [
        f"{method}, seed{'s' * (len(of) > 1)} {', '.join(map(str, sorted(of)))}: {kind}: {reason}"
        for (method, kind, reason), of in seeds.items()
    ]
    if lines and not all(failure.fails_again for failure in failures):
        lines[-1] += f"; finished episodes are in {folder}, and the same command goes on from there"
    return lines


def _training_costs(setup: SweepSetup, finished: Sequence[Sequence[Job]]) -> list[MethodCosts]:
    """The costs of all methods if one of them trains weights; else none, for tokens and seconds stand in the table."""
    from .training_costs import method_costs

    if not any(job.trains_weights for batch in finished for job in batch):
        return []
    return [method_costs(_table_name(batch[0].method, setup.methods[batch[0].method]), batch) for batch in finished]


def _objects(rows: Sequence[MethodSummary], leads: Sequence[Lead], costs: Sequence[MethodCosts]) -> list[dict[str, Any]]:
    """One object per method for JSON; `lead_of_first` is the first method's lead over it, paired by seed."""
    differences = {lead.over: lead.as_dict() for lead in leads}
    spent = {one.method: {"training_costs": one.as_dict()} for one in costs}
    return [{**row.as_dict(), "lead_of_first": differences.get(row.method), **spent.get(row.method, {})} for row in rows]


def _tables(rows: Sequence[MethodSummary], leads: Sequence[Lead]) -> list[str]:
    """The table of the methods, and that of the first one's leads if there are others."""
    from . import benchmark, comparison

    if not leads:
        return [benchmark.table(rows)]
    note = "paired by seed, because all methods played the same:"
    return [benchmark.table(rows), note, comparison.differences_table(leads, rows[0].episodes)]


def _cost_tables(results: Sequence[Sequence[SeedResult]]) -> list[str]:
    """The running maxima of several methods, and their scores at the same number of tokens if several spend any."""
    from . import cost_curves

    if len(results) < 2 or max(len(a.scores) for seeds in results for a in seeds) < 2:
        return []
    tables = [cost_curves.rounds_table(results)]
    if len(found := cost_curves.equal_cost(results)) > 1:
        tables += ["at the same cost: what was finished within it", cost_curves.equal_cost_table(found)]
    return tables


def _aggregate_tables(folder: Path, env: str, results: Sequence[Sequence[SeedResult]], played: Mapping[int, str]) -> list[str]:
    """The tables of a world of several tasks, each counting the same; none of other worlds. They are kept as JSON, too.

    Args:
        folder: the run folder.
        env: the world.
        results: for each method its results, one per seed.
        played: seed -> id of the task that it played.
    """
    from ...tools.environments.science_world import is_all_tasks, task_name
    from . import sweep, task_groups

    if not is_all_tasks(env):
        return []
    found = task_groups.aggregate(results, {seed: task_name(id) for seed, id in played.items()})
    sweep.write_json(folder / "tasks.json", [one.as_dict() for one in found])
    note = "over tasks, scores below 0 as 0; [95 % interval over tasks, by Student's t]"
    return [note, task_groups.aggregate_table(found), task_groups.task_table(found)]


def _seeds_note(rows: Sequence[MethodSummary]) -> str:
    """How many seeds, and what stands in the brackets of the table."""
    count = len(rows[0].seeds)
    if count == 1:
        return "1 seed; one seed says nothing about others"
    return f"{count} seeds; [95 % interval over seeds, by Student's t: its ends may lie where no score can]"


def _table_name(method: str, settings: Any) -> str:
    """A method's name in tables, with the remark that its settings add to it."""
    remark = getattr(settings, "remark", "")
    return f"{method} ({remark})" if remark else method


def bank_overlap_warnings(setup: SweepSetup, played: Sequence[tuple[str, int | None]]) -> list[str]:
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


def _missing_reward_lines(folder: Path) -> list[str]:
    """A line for each method some of whose attempts have no reward."""
    from ...nodes.evaluate.judge import NO_REWARDS_REASON
    from . import calibration

    found = calibration.read_run_folder(folder)
    lines = [calibration.missing_reward_note(rated, method, NO_REWARDS_REASON) for method, (rated, _) in found.items()]
    return [line for line in lines if line]


def _draw_into(folder: Path, method: str, settings: Any) -> Path:
    from ..wiring import picture

    path = folder / f"{run_stem(method)}.svg"
    if path.exists():
        return path
    if not picture.has_graphviz():
        path = path.with_suffix(".mmd")
    picture.save(blueprint(method, settings), path)
    return path
