"""The results of a run of Training-Free GRPO: tables for people, JSON for programs, learning curves."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....memory.errors import UserError, plural
from ....memory.records import Rollout, Task, Usage
from .bench import complete_rows, learning_step
from .models import spending_meter
from .setup import LibraryArm, TrainingFreeSetup, shared_world

if TYPE_CHECKING:
    from ..evaluation import ArmSummary, Outcome
    from ..learning_curves import LearningStep

__all__ = ["print_progress", "write_report"]


def write_report(setup: TrainingFreeSetup, blueprint: Callable[[str, Any], Any]) -> int:
    """Write results.json, failures.jsonl and the pictures, and print the tables; returns the exit code.

    Args:
        setup: the run.
        blueprint: (method, settings) -> its graph, to be drawn.

    Raises:
        UserError: an arm is not finished although the budget is not spent.
    """
    from .. import evaluation, evaluation_tables, folder

    done = [arm for arm in setup.arms if all(setup.is_finished(arm, seed) for seed in setup.seeds)]
    results = {arm.title: [setup.result(arm, seed) for seed in setup.seeds] for arm in done}
    arms = {title: [_outcome_of_result(title, found) for found in seeds] for title, seeds in results.items()}
    rows = evaluation.arm_summaries(arms, setup.options.env, setup.options.model, setup.baseline_title)
    learning = {arm.title: [_steps(setup, arm, seed) for seed in setup.seeds] for arm in setup.arms if arm.learns}
    spent, cost, over = _spending(setup)
    failures = [
        {"arm": title, "seed": found["seed"], "id": id, "reason": reason}
        for title, seeds in results.items()
        for found in seeds
        for id, reason in _failures(found)
    ]
    by_row = [
        row.as_dict() | {"steps": [[asdict(step) for step in seed] for seed in learning.get(row.arm, [])]} for row in rows
    ]
    for row in by_row:
        row["lost_comparisons"] = sum(step["lost"] for seed in row["steps"] for step in seed)
    paid = {stage: asdict(usage) for stage, usage in spent.items()}
    folder.write_json(setup.folder / "results.json", {"arms": by_row, "paid": paid, "dollars": cost})
    _write_lines(setup.folder / "failures.jsonl", failures)
    pictures = _draw_pictures(setup, learning, arms)
    if len(done) < len(setup.arms) and not over:
        raise UserError(f"{setup.folder}: not all arms were finished; the same command goes on")
    lost = evaluation_tables.lost_comparison_notes(learning)
    for note in lost:
        logging.getLogger(__name__).info(note)
    notes = [*lost, *([f"stopped: {over}"] if over and len(done) < len(setup.arms) else [])]
    if setup.options.json:
        for row in by_row:
            print_line(json.dumps(row))
        for note in notes:
            print_progress(note)
        return 0
    _print_tables(setup, rows, arms, learning)
    if any(usage.calls for usage in spent.values()):
        print_line("\npaid for, by stage (what arms share is paid once)\n")
        print_line(evaluation_tables.usage_table(spent, cost if sum(cost.values()) else {}))
        print_line(_cache_savings(results, spent))
    print_line("")
    _print_files(setup, len(failures), pictures, _save_drawing(setup, blueprint))
    for note in notes:
        print_line(note)
    return 0


def _print_tables(
    setup: TrainingFreeSetup,
    rows: Sequence[ArmSummary],
    arms: Mapping[str, Sequence[Outcome]],
    learning: Mapping[str, Sequence[Sequence[LearningStep]]],
) -> None:
    """Print the comparison of the arms, and the learning steps of those that learn."""
    from .. import evaluation_tables

    print_line(f"{setup.options.env}, {setup.options.model}, {plural(len(setup.seeds), 'seed')}; {_problem_counts(setup)}")
    if rows:
        print_line(
            f"\nunseen problems, {rows[0].problems} a seed, {rows[0].k} rollouts each; [{evaluation_tables.interval_note(rows)}]"
        )
        if setup.baseline_title in arms and len(arms) > 1:
            print_line(f"delta, wins, losses and ties: to {setup.baseline_title}, problem by problem")
        print_line("")
        print_line(evaluation_tables.table(rows))
        for line in ["", *evaluation_tables.lead_notes(arms)] if len(arms) > 1 else []:
            print_line(line)
        if not setup.baseline_title:
            own = setup.arms[0].method
            print_line(f"\nwhat the lessons are worth: the same command with --compare {own}:empty adds the agent without them")
    for title, seeds in learning.items():
        if any(seeds):
            print_line(f"\n{title}, step by step; train is under the library before the step\n")
            print_line(evaluation_tables.steps_table(seeds))


def _print_files(setup: TrainingFreeSetup, failures: int, pictures: Sequence[Path], drawing: Path) -> None:
    """Print where the data came from, and where the files of the run are."""
    options = setup.options
    for spec in filter(None, (options.env, options.test_env)):
        found = getattr(shared_world(spec, options.horizon), "report", None)
        if getattr(found, "dropped_rows", 0):
            print_line(f"data             {spec}: {found}")
    if failures:
        print_line(
            f"failures         {failures}, each counted as 0 where a reward is missing: {setup.folder / 'failures.jsonl'}"
        )
    for arm in setup.arms:
        if arm.learns:
            print_line(f"libraries        {setup.folder / (arm.name.replace(':', '-') + '-s*')}/library.yaml")
    if pictures:
        print_line(f"learning curves  {pictures[0]}  {pictures[1].name}")
    print_line(f"graph            {drawing}")
    print_line(f"all of it        {setup.folder}")


def _problem_counts(setup: TrainingFreeSetup) -> str:
    """The numbers of problems of the first arm that learns, as text."""
    settings = next((arm.settings for arm in setup.arms if arm.library_source != "method"), None)
    return f"{settings.problems} problems to learn from, {settings.held_out} held out" if settings else ""


def _outcome_of_result(title: str, result: Mapping[str, Any]) -> Outcome:
    from ..evaluation import Outcome

    rollouts = [
        Rollout(
            row["id"],
            Task(row["task"], ""),
            row["number"],
            row["reward"],
            steps=row["steps"],
            tool_calls=row["tool_calls"],
            usage=Usage(**row["usage"]),
            error=row["error"],
        )
        for row in result["rollouts"]
    ]
    return Outcome.of(title, result["seed"], rollouts, result["lessons"])


def _failures(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    tested = [(row["id"], row["error"] or "no reward") for row in result["rollouts"] if row["reward"] is None]
    return [*((id, reason) for id, reason in result["failures"]), *tested]


def _steps(setup: TrainingFreeSetup, arm: LibraryArm, seed: int) -> list[LearningStep]:
    """The learning steps of a seed: of its result, or those so far."""
    from ..learning_curves import LearningStep
    from ..recorded import read_rows

    if setup.is_finished(arm, seed):
        return [LearningStep(**step) for step in setup.result(arm, seed)["steps"]]
    path = setup.arm_folder(arm, seed) / "learned.jsonl"
    return [learning_step(seed, row) for row in complete_rows(read_rows(path))] if path.exists() else []


def _spending(setup: TrainingFreeSetup) -> tuple[dict[str, Usage], dict[str, float], str]:
    """The usage paid for by stage, the dollars by stage, and the message of a spent budget (empty if it is not spent)."""
    from ....memory.storage.cache import Cache
    from ....nodes.cached_model import BudgetSpent

    cache = Cache(setup.folder / "cache.sqlite")
    try:
        spent, over = cache.usage_by_stage(), ""
        try:
            spending_meter(setup.options, cache).check()
        except BudgetSpent as error:
            over = str(error)
        return spent, {stage: setup.options.prices(stage).cost(usage) for stage, usage in spent.items()}, over
    finally:
        cache.close()


def _cache_savings(results: Mapping[str, Sequence[Mapping[str, Any]]], spent: Mapping[str, Usage]) -> str:
    """A line on the tokens that the cache saved; empty without results."""
    asked = Usage()
    for seeds in results.values():
        for found in seeds:
            asked += Usage(**found["learned"])
            asked = sum((Usage(**row["usage"]) for row in found["rollouts"]), asked)
    paid = sum(spent.values(), Usage())
    tokens = asked.input_tokens + asked.output_tokens - paid.input_tokens - paid.output_tokens
    return f"from the cache: {max(tokens, 0):,} tokens that arms share or that were there already" if results else ""


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)


def _draw_pictures(
    setup: TrainingFreeSetup, learning: Mapping[str, Sequence[Sequence[LearningStep]]], arms: Mapping[str, Sequence[Outcome]]
) -> list[Path]:
    """Draw the curve of the first arm that learned something."""
    from .. import evaluation, learning_curves

    title, seeds = next(((title, seeds) for title, seeds in learning.items() if any(seeds)), ("", []))
    if not title:
        return []
    pictures = [setup.folder / "curves.png", setup.folder / "curves.svg"]
    measured: list[list[float | None]] = [
        [evaluation.mean_at_k(list(one.rewards.values())) for one in arms.get(arm, [])] for arm in (setup.baseline_title, title)
    ]
    start, end = (numbers or [None] * len(seeds) for numbers in measured)
    learning_curves.draw_library_curves(seeds, start, end, f"{setup.options.env}, {setup.options.model}: {title}", pictures)
    return pictures


def _save_drawing(setup: TrainingFreeSetup, blueprint: Callable[[str, Any], Any]) -> Path:
    from ...wiring import picture

    path = setup.folder / "training-free-grpo.svg"
    if not picture.has_graphviz():
        path = path.with_suffix(".mmd")
    if not path.exists():
        picture.save(blueprint(setup.arms[0].method, setup.arms[0].settings), path)
    return path


def print_line(text: str) -> None:
    """Write a line of results to stdout."""
    sys.stdout.write(text + "\n")


def print_progress(text: str) -> None:
    """Write a line about progress to stderr, and flush it."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
