"""What a run of Training-Free GRPO came to: tables for people, JSON for programs, learning curves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....memory.records import Rollout, Task, Usage, UserError
from .bench import meter_of, step_of, whole_rows
from .setup import Arm, Setup, opened_world

if TYPE_CHECKING:
    from ..evaluation import Outcome, Step

__all__ = ["report", "say", "tell"]


def report(setup: Setup, blueprint: Callable[[str, Any], Any]) -> int:
    """Write results.json, failures.jsonl and the pictures, and print the tables; returns the exit code.

    Args:
        setup: the run.
        blueprint: (method, settings) -> its graph, to look at.

    Raises:
        UserError: an arm is not finished, though the budget is not spent.
    """
    from .. import evaluation, sweep

    options = setup.options
    done = [arm for arm in setup.arms if all(setup.finished(arm, seed) for seed in setup.seeds)]
    results = {arm.title: [setup.result(arm, seed) for seed in setup.seeds] for arm in done}
    arms = {title: [_outcome(title, found) for found in seeds] for title, seeds in results.items()}
    rows = evaluation.rows(arms, options.env, options.model, setup.against)
    learning = {arm.title: [_steps(setup, arm, seed) for seed in setup.seeds] for arm in setup.arms if arm.learns}
    spent, cost, over = _spent(setup)
    failures = [
        {"arm": title, "seed": found["seed"], "id": id, "reason": reason}
        for title, seeds in results.items()
        for found in seeds
        for id, reason in _failures(found)
    ]
    by_row = [
        row.as_dict() | {"steps": [[asdict(step) for step in seed] for seed in learning.get(row.arm, [])]} for row in rows
    ]
    sweep.write(
        setup.folder / "results.json",
        {"arms": by_row, "paid": {stage: asdict(usage) for stage, usage in spent.items()}, "dollars": cost},
    )
    _write_lines(setup.folder / "failures.jsonl", failures)
    pictures = _pictures(setup, learning, arms)
    said = [f"stopped: {over}"] if over and len(done) < len(setup.arms) else []
    if len(done) < len(setup.arms) and not over:
        raise UserError(f"{setup.folder}: not all arms were finished; the same command goes on")
    if options.json:
        for row in by_row:
            tell(json.dumps(row))
        for line in said:
            say(line)
        return 0
    tell(f"{options.env}, {options.model}, {len(setup.seeds)} seeds; {_asked_for(setup)}")
    if rows:
        tell(f"\nunseen problems, {rows[0].problems} a seed, {rows[0].k} rollouts each; [{evaluation.compared(rows)}]")
        if setup.against in arms and len(arms) > 1:
            tell(f"delta, wins, losses and ties: to {setup.against}, problem by problem")
        tell("")
        tell(evaluation.table(rows))
        for line in ["", *evaluation.ahead(arms)] if len(arms) > 1 else []:
            tell(line)
    for title, seeds in learning.items():
        if any(seeds):
            tell(f"\n{title}, step by step; train is under the library before the step\n")
            tell(evaluation.steps_table(seeds))
    if any(usage.calls for usage in spent.values()):
        tell("\npaid for, by stage (what arms share is paid once)\n")
        tell(evaluation.ledger(spent, cost if sum(cost.values()) else {}))
        tell(_spared(results, spent))
    tell("")
    for spec in filter(None, (options.env, options.test_env)):
        found = getattr(opened_world(spec, options.horizon), "report", None)
        if getattr(found, "dropped", 0):
            tell(f"data             {spec}: {found}")
    if failures:
        tell(
            f"failures         {len(failures)}, each counted as 0 where a reward is missing: {setup.folder / 'failures.jsonl'}"
        )
    for arm in setup.arms:
        if arm.learns:
            tell(f"libraries        {setup.folder / (arm.name.replace(':', '-') + '-s*')}/library.yaml")
    if pictures:
        tell(f"learning curves  {pictures[0]}  {pictures[1].name}")
    tell(f"graph            {_drawn(setup, blueprint)}")
    tell(f"all of it        {setup.folder}")
    for line in said:
        tell(line)
    return 0


def _asked_for(setup: Setup) -> str:
    settings = next((arm.settings for arm in setup.arms if arm.way != "method"), None)
    return f"{settings.problems} problems to learn from, {settings.held_out} held out" if settings else ""


def _outcome(title: str, result: Mapping[str, Any]) -> Outcome:
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


def _steps(setup: Setup, arm: Arm, seed: int) -> list[Step]:
    """The learning steps of a seed: of its result, or of what is there so far."""
    from .. import sweep
    from ..evaluation import Step

    if setup.finished(arm, seed):
        return [Step(**step) for step in setup.result(arm, seed)["steps"]]
    path = setup.place(arm, seed) / "learned.jsonl"
    return [step_of(seed, row) for row in whole_rows(sweep.written(path))] if path.exists() else []


def _spent(setup: Setup) -> tuple[dict[str, Usage], dict[str, float], str]:
    """What was paid for by stage, the same in dollars, and what is said of a budget that is spent."""
    from ....memory.storage.cache import Cache
    from ....nodes.cached_model import BudgetSpent

    cache = Cache(setup.folder / "cache.sqlite")
    try:
        spent, over = cache.spent(), ""
        try:
            meter_of(setup.options, cache).check()
        except BudgetSpent as error:
            over = str(error)
        return spent, {stage: setup.options.prices(stage).of(usage) for stage, usage in spent.items()}, over
    finally:
        cache.close()


def _spared(results: Mapping[str, Sequence[Mapping[str, Any]]], spent: Mapping[str, Usage]) -> str:
    """A line on what the arms would have paid without the cache."""
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


def _pictures(
    setup: Setup, learning: Mapping[str, Sequence[Sequence[Step]]], arms: Mapping[str, Sequence[Outcome]]
) -> list[Path]:
    """Draw the curve of the first arm that learned something."""
    from .. import evaluation

    title, seeds = next(((title, seeds) for title, seeds in learning.items() if any(seeds)), ("", []))
    if not title:
        return []
    pictures = [setup.folder / "curves.png", setup.folder / "curves.svg"]
    measured: list[list[float | None]] = [
        [evaluation.mean_at_k(list(one.rewards.values())) for one in arms.get(arm, [])] for arm in (setup.against, title)
    ]
    start, end = (numbers or [None] * len(seeds) for numbers in measured)
    evaluation.curves(seeds, start, end, f"{setup.options.env}, {setup.options.model}: {title}", pictures)
    return pictures


def _drawn(setup: Setup, blueprint: Callable[[str, Any], Any]) -> Path:
    from ...wiring import picture

    path = setup.folder / "training-free-grpo.svg"
    if not picture.can_draw():
        path = path.with_suffix(".mmd")
    if not path.exists():
        picture.save(blueprint(setup.arms[0].method, setup.arms[0].settings), path)
    return path


def tell(text: str) -> None:
    """A line of what was asked for, to stdout."""
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """A line on how it goes, to stderr, at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
