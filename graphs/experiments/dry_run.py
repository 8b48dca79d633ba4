"""`learngraph run … --dry-run`: the runs that are left, and the calls, tokens and dollars that they would take, without a call.

The numbers are those of the episodes that the folder holds, or of a rehearsal (rehearsal.py). Of a method that learns before it plays they
come from its settings, stage by stage.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...memory.display import markdown_table
from ...memory.errors import UserError, plural
from ...memory.records import Usage
from ..arms import Arm
from .costs import CACHE, ledger_usage, row_usage
from .folder import Sweep, check_settings, growing_record, run_stem
from .harness import unfinished_runs
from .progress import show
from .recorded import read_rows
from .rehearsal import extrapolate, mean_usage, rehearse, rehearse_agent, share
from .run_inputs import loads_model, shared_environment
from .training_free.options import ROLLOUT_STAGES, LearningOptions, problem_split

__all__ = ["CostEstimate", "dry_run", "forecast"]

TYPICAL_TOKENS: Mapping[str, tuple[float, float]] = {
    "rollout": (1_500, 600),
    "summarise": (4_000, 500),
    "contrast": (4_000, 700),
    "propose": (2_500, 300),
    "extract": (4_500, 1_000),
    "consolidate": (6_000, 1_500),
    "invent": (2_000, 1_500),
}
"""Tokens read and written by a call of a stage, where none were measured: of a model that reasons in writing, without tools."""
SCORED_TOKENS = (200, 0)
"""The same of a call that scores listed actions, and writes nothing."""
TYPICAL_TOKENS_WITH_TOOLS = (8_000, 700)
"""The same within a rollout with tools: a call reads the results of the calls before it."""
CALLS_WITH_TOOLS = 6
"""Calls of a rollout with tools. The paper's agents called 5.9 tools on the problems they learned from."""
SHARE_COMPARED = 0.5
"""Assumed share of groups whose rewards differ. The public log of a run shows 0.31."""


@dataclass(frozen=True)
class CostEstimate:
    """The calls, tokens and dollars that a method is expected to take over all its seeds, from their first episode."""

    method: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0
    measured: int = 0
    """Episodes in the folder that the numbers are taken from; 0: from assumptions."""
    stages: Mapping[str, int] = field(default_factory=dict)
    """Calls of each stage, of a method that learns before it plays."""

    def __add__(self, other: CostEstimate) -> CostEstimate:
        """The sum of two estimates, under this one's name."""
        return CostEstimate(
            self.method,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.dollars + other.dollars,
        )

    def times(self, share: float) -> CostEstimate:
        """The estimate of a share of the runs."""
        calls, read, written = (round(share * one) for one in (self.calls, self.input_tokens, self.output_tokens))
        return CostEstimate(self.method, calls, read, written, share * self.dollars)


class LeftCosts(NamedTuple):
    """The runs of a method that are left, and what they would take."""

    sweep: Sweep
    arm: Arm
    runs: int
    estimate: CostEstimate


def dry_run(planned: Sequence[Sweep], notes: Sequence[str], folder: Path, *, as_json: bool = False) -> tuple[int, CostEstimate]:
    """Print what the runs that are left would take, method by method. Returns the exit status, which is 2 if some cannot be played, and
    the sum."""
    costs, found, problems = _costs_left(planned, folder)
    total = sum((one.estimate for one in costs), CostEstimate("all"))
    if as_json:
        for estimate in found:
            show(json.dumps(asdict(estimate)))
        return 2 if problems else 0, total
    lines = [["environment", "model", "method", "runs left", "episodes", "calls", "tokens read", "tokens written", "dollars"]]
    for sweep, arm, count, one in costs:
        numbers = (sweep.options.episodes, one.calls, one.input_tokens, one.output_tokens)
        dollars = f"{one.dollars:,.2f}" if sweep.options.has_prices else "–"
        left = f"{count} of {len(sweep.seeds)}"
        lines.append([sweep.world, sweep.model, arm.label, left, *(f"{number:,}" for number in numbers), dollars])
    if len(costs) > 1:
        sums = (f"{number:,}" for number in (total.calls, total.input_tokens, total.output_tokens))
        lines.append(["all", "", "", "", "", *sums, f"{total.dollars:,.2f}" if total.dollars else "–"])
    runs = plural(sum(one.runs for one in costs), "run")
    said = f"{folder}: no model was asked. {runs} left; from their first episode they would take about"
    show(f"{said}\n\n{markdown_table(lines, left=3)}")
    is_alone = planned[0].folder == folder
    told = [*(_assumptions(planned[0], found) if is_alone else ()), *_budget_notes(costs), *notes]
    show("\n" + "\n".join([*problems, *told]))
    return 2 if problems and not is_alone else 0, total


def forecast(planned: Sequence[Sweep]) -> str:
    """Say how many runs are left, and what cannot be played here."""
    left = sum(len(batch) for one in planned for batch in unfinished_runs(one)[0])
    return "\n".join(
        [f"{plural(left, 'run')} left", *(line for one in planned for line in _missing_here(one) + _missing_key(one))]
    )


def _costs_left(planned: Sequence[Sweep], folder: Path) -> tuple[list[LeftCosts], list[CostEstimate], list[str]]:
    """The costs of what is left, those of all runs by method, and what cannot be played."""
    costs, found, problems = list[LeftCosts](), list[CostEstimate](), list[str]()
    for one in planned:
        try:
            if one.folder.exists():
                check_settings(one.folder, growing_record(one))
            problems += _missing_key(one)
            if missing := _missing_here(one):
                problems += missing
                continue
            arms = [batch[0].arm for batch in one.batches()]
            estimates = {arm.name: _estimate(one, arm) for arm in arms}
        except UserError as error:
            if one.folder == folder:
                raise
            problems.append(f"{one.name}: cannot be played: {error}")
            continue
        batches, refused = unfinished_runs(one)
        counts = {batch[0].arm.name: len(batch) for batch in batches}
        problems += [
            f"{one.name}: {one.arms[name].label}, seed {seed}: cannot be played: {failure.reason}"
            for (_, name, seed), failure in refused.items()
        ]
        found += estimates.values()
        for batch in one.batches():
            arm = batch[0].arm
            left = counts.get(arm.name, 0)
            costs.append(LeftCosts(one, arm, left, estimates[arm.name].times(left / len(batch))))
    return costs, found, problems


def _missing_here(sweep: Sweep) -> list[str]:
    """A line on what a world lacks on this machine: a package, its data, or as many tasks as there are seeds."""
    options = sweep.options
    try:
        world = shared_environment(options.env, options.horizon)
        for seed in (min(sweep.seeds), max(sweep.seeds)) if not isinstance(options, LearningOptions) else ():
            world.task(seed, options.split)
    except UserError as error:
        return [f"{sweep.name}: cannot be played here: {error}"]
    return []


def _missing_key(sweep: Sweep) -> list[str]:
    """A line if the model has neither a key nor a server of its own here."""
    known = (sweep.options.base_url, *map(os.environ.get, ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE")))
    if not sweep.options.model.startswith("openai:") or any(known):
        return []
    return [f"{sweep.name}: cannot be played here: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs no key"]


def _budget_notes(costs: Sequence[LeftCosts]) -> list[str]:
    """A line for a budget that may not last."""
    each, notes = {one.sweep.folder: one.sweep.options for one in costs}.values(), list[str]()
    tokens = sum(one.estimate.input_tokens + one.estimate.output_tokens for one in costs)
    if 0 < (budget := sum(one.token_budget for one in each)) < tokens:
        notes.append(f"--token-budget {budget:,} may not last: {tokens:,} tokens")
    if 0 < (most := sum(one.dollar_budget for one in each)) < (dollars := sum(one.estimate.dollars for one in costs)):
        notes.append(f"--dollar-budget {most:g} may not last: ${dollars:.2f}")
    return notes


def _assumptions(sweep: Sweep, estimates: Sequence[CostEstimate]) -> list[str]:
    """A line on what the estimates of a sweep assume."""
    if isinstance(sweep.options, LearningOptions):
        paid = ledger_usage(sweep.folder, CACHE)
        measured = f"; tokens per call of {', '.join(paid)} as measured in this folder" if paid else ""
        return [
            f"assumed: {SHARE_COMPARED:.0%} of the groups differ in their rewards and are compared; no run stops early; arms share "
            f"nothing (in truth they share what is the same){measured}"
        ]
    known = ", ".join(f"{one.method} ({one.measured} episodes)" for one in estimates if one.measured)
    rehearsed = "as rehearsed by a stand-in, which knows every other step of a solution and writes 120 tokens before it answers"
    return [f"assumed: {f'as measured in this folder for {known}; else ' * bool(known)}{rehearsed}"]


def _estimate(sweep: Sweep, arm: Arm) -> CostEstimate:
    """The costs of one method over all seeds."""
    options = sweep.options
    if isinstance(options, LearningOptions):
        if getattr(arm.settings, "learner", None) is not None:
            usage = agent_usage(sweep, arm)
        else:
            usage = stage_usage(options, arm, len(sweep.seeds), ledger_usage(sweep.folder, CACHE))
        dollars = sum(options.stage_prices(stage).cost(used) for stage, used in usage.items())
        total, stages = sum(usage.values(), Usage()), {stage: used.calls for stage, used in usage.items()}
        return CostEstimate(arm.name, total.calls, total.input_tokens, total.output_tokens, dollars, stages=stages)
    if not loads_model(arm, options):
        return CostEstimate(arm.name)
    paths = [sweep.folder / f"{run_stem(arm.name)}-s{seed}" / "episodes.jsonl" for seed in sweep.seeds]
    rows = [row for path in paths for row in read_rows(path) if row.get("calls")]
    if not rows and not options.model.startswith("openai:"):  # a model in this process costs nothing
        return CostEstimate(arm.name)
    if rows:
        numbers = range(1 + max(row["episode"] for row in rows))
        known = [[row_usage(row) for row in rows if row["episode"] == n] for n in numbers]
        found = extrapolate([mean_usage(one) for one in known if one], options.episodes)
    else:
        found = rehearse([sweep.job(arm.name, seed) for seed in sweep.seeds])
    paid, seeds = sum(found, Usage()), len(sweep.seeds)
    calls, read, written = (seeds * one for one in (paid.calls, paid.input_tokens, paid.output_tokens))
    return CostEstimate(arm.name, calls, read, written, options.prices.cost(Usage(calls, read, written)), len(rows))


# A method that learns before it plays


def stage_usage(options: LearningOptions, arm: Arm, seeds: int, paid: Mapping[str, Usage]) -> dict[str, Usage]:
    """The calls and tokens of every stage of an arm, if the cache were empty.

    Args:
        options: those of the runs.
        arm: the arm.
        seeds: number of its seeds.
        paid: the usage that was paid so far, by stage, from which tokens per call are taken.
    """
    found = {}
    for stage, number in stage_calls(options, arm.settings).items():
        plays, known = stage in ROLLOUT_STAGES, paid.get(stage, Usage())
        read, written = TYPICAL_TOKENS["rollout" if plays else stage]
        if plays and not options.model.startswith("openai:"):
            read, written = SCORED_TOKENS
        elif plays and options.tool_names:
            read, written = TYPICAL_TOKENS_WITH_TOOLS
        if known.calls:
            read, written = known.input_tokens / known.calls, known.output_tokens / known.calls
        if calls := math.ceil(number) * seeds:
            found[stage] = Usage(calls, round(calls * read), round(calls * written))
    return found


def agent_usage(sweep: Sweep, arm: Arm) -> dict[str, Usage]:
    """The calls and tokens of an agent, learning and tested, as rehearsed."""
    split = problem_split(sweep.options, sweep.seeds[0])  # type: ignore[arg-type]
    problems, _ = split.for_settings(arm.settings)
    taught, tested = rehearse_agent(sweep.job(arm.name, sweep.seeds[0]), problems, split.test)
    seeds = len(sweep.seeds)
    return {"rollout": share(taught, seeds * len(problems)), "test": share(tested, seeds * sweep.options.episodes)}


def stage_calls(options: LearningOptions, s: Any) -> dict[str, float]:
    """The calls of every stage of an arm with settings `s`, on one seed."""
    horizon = options.horizon or int(getattr(shared_environment(options.env, None), "horizon", 1))
    turns = CALLS_WITH_TOOLS if options.tool_names else horizon
    test, source = options.episodes * turns, getattr(s, "arm", "")
    if source != "learned":
        return {"test": test, "invent": source == "self-generated"}
    groups, steps = s.epochs * s.problems, s.epochs * math.ceil(s.problems / (s.batch_size or s.problems or 1))
    compared = groups * SHARE_COMPARED * (s.author == "model")
    writes = s.author == "model" and options.critic_model.startswith("openai:")
    at_once = writes and s.wording == "paper"
    return {
        "rollout": groups * s.group_size * turns,
        "summarise": compared * s.group_size * writes,
        "extract": compared * at_once,
        "contrast": compared * (not at_once),
        "propose": compared * (writes and not at_once),
        "consolidate": steps * writes,
        "trial": 2 * steps * s.held_out * s.trial.rollouts * turns * (s.acceptance != "always"),
        "test": test * (1 + (steps - 1) * options.curve),
    }
