"""`learngraph adamem collect | filter`: the strategies of a run, and a data set of those that helped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from ....memory.errors import CommandError, UserError
from ....memory.records import Task
from ...experiments.options import ModelOptions
from ..flags import parse_flags
from .counterfactual import CounterfactualAgent
from .saved_runs import read_runs

if TYPE_CHECKING:
    from ....nodes.synthesize.mft import Pair

__all__ = ["CollectOptions", "FilterOptions", "collect", "filter_pairs"]


@dataclass(frozen=True)
class CollectOptions:
    """Options of `learngraph adamem collect`: the run to read and the file to write."""

    run_folder: Positional[Path]
    """A folder that `learngraph run` has made."""
    out: Path
    """The output: a file with a pair of draft and action a line."""


def collect(args: Sequence[str]) -> int:
    """Write the strategies of a run to a file, each with the action that followed and the score."""
    from ....memory.storage.record_store import write_jsonl
    from ....nodes.synthesize.mft import collect_pairs

    about = "Write a line for each strategy in a run of adamem --mode high: prompt, reply, draft, action, score."
    options = parse_flags(CollectOptions, args, "learngraph adamem collect", about)
    place = options.run_folder
    found, others = [], Counter[str]()
    for run in read_runs(place):
        method = run.method_settings
        mode = method.get("mode", "")
        if mode != "high":
            others[f"mode {mode}" if mode else "other methods"] += 1
            continue
        threshold, split = method.get("success_threshold"), run.settings["split"]
        found.append(
            collect_pairs(
                run.steps,
                run.episodes,
                solved=run.solved if threshold is None else threshold,
                seed=run.seed,
                split=split,
                domain=re.split("[?:]", run.settings["env"])[0],
            )
        )
        if split != "train" and len(found) == 1:
            print(f"note: {place} played tasks of the split {split}; a model trained on them cannot be tested on them")
    if others:
        left = ", ".join(f"{n} of {kind}" for kind, n in sorted(others.items()))
        print(f"runs left out: {left} (only in mode high a draft is what the agent would have done without the strategy)")
    if not found:
        raise UserError(f"{place} has no run of adamem in mode high, and so no strategies to collect; run adamem --mode high")
    pairs = [pair for one in found for pair in one.pairs]
    episodes, steps, undrafted = (sum(getattr(one, name) for one in found) for name in ("episodes", "steps", "undrafted"))
    print(f"{len(pairs)} strategies in {episodes} finished episodes of {len(found)} runs, {steps} steps{_authors(pairs)}")
    if undrafted:
        print(f"{undrafted} more were written without a draft before, so that it is unknown what they changed: left out")
    if not pairs:
        raise UserError(f"{place} has no strategies to collect; give a run of adamem --mode high")
    write_jsonl(pairs, options.out)
    print(f"written to {options.out}")
    return 0


def _authors(pairs: Sequence[Pair]) -> str:
    counts = Counter(pair.author for pair in pairs)
    return f", by {' and '.join(f'{author} ({n})' for author, n in sorted(counts.items()))}" if counts else ""


@dataclass(frozen=True)
class FilterOptions(ModelOptions):
    """Options of `learngraph adamem filter`: the pairs that are kept."""

    pairs: Positional[Path]
    """A file that `learngraph adamem collect` has written."""
    out: Path
    """The output: a data set with a chat a line, {"messages": [...]}, whose last message is the strategy."""
    criterion: Literal["step", "outcome"] = "step"
    """Rule for the strategies that helped. `step`: the episode succeeded and the action changed. `outcome`: as many examples,
    drawn from all in episodes that succeeded."""
    success_threshold: float | None = None
    """The score from which an episode counts as a success; the environment's own if not given."""
    author: Literal["all", "model", "rule"] = "all"
    """Author of the strategies that are kept: the model itself, a rule, or both."""
    draws_per_pair: int = 0
    """m: how often draft and action are drawn again, with --env and --model. 0: not at all, as in the paper."""
    min_changed_share: float = 0.5
    """The least share of the m x m combinations of a draft and an action in which the two differ."""
    rollouts_per_action: int = 0
    """Times that each of the two actions is taken and played on without memory, with --env and --model. 0: not at all."""
    min_advantage: float = 0.0
    """The estimated advantage must exceed this, in reward units."""
    # Pairs do not hold the options of the run, so for estimates they are given again.
    env: str | None = None
    """The environment, as in the run."""
    horizon: int | None = None
    """Steps after which an episode ends, as in the run; the environment's own limit if not given."""
    model: str | None = None
    """The model, as in the run. It draws again, and plays on."""
    temperature: float = 1.0
    """Temperature of the softmax that actions are drawn from, as in the run; 0 takes the best action."""
    history_steps: int | None = None
    """Earlier steps of the episode that prompts show, as in the run; all of them if not given."""
    window: int | None = None
    """Tokens that the model can read at once, as in the run; its own limit if not given."""
    prompts: Path | None = None
    """A directory with prompt files, as in the run. They replace those of the same name."""
    seed: int = 0
    """Seed of the random draws: those of `--criterion outcome`, and of all estimates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.draws_per_pair < 0
            or self.draws_per_pair == 1
            or self.rollouts_per_action < 0
            or not 0 <= self.min_changed_share <= 1
            or self.temperature < 0
        ):
            raise CommandError(
                "--draws-per-pair is 0, or 2 and more, --rollouts-per-action and --temperature are at least 0, --min-changed-share is "
                f"from 0 to 1, got {self.draws_per_pair}, {self.rollouts_per_action}, {self.temperature}, {self.min_changed_share}"
            )
        if (self.draws_per_pair or self.rollouts_per_action) and (self.env is None or self.model is None):
            raise CommandError("--draws-per-pair and --rollouts-per-action play again, and need --env and --model")


def filter_pairs(args: Sequence[str]) -> int:
    """Write a data set of the strategies that helped."""
    from ....memory.storage.record_store import read_jsonl, write_jsonl
    from ....nodes.synthesize import mft

    about = (
        "Make a data set for fine-tuning, in the usual chat format, from pairs of adamem collect. Estimates (--draws-per-pair, "
        "--rollouts-per-action) ask the agent again: give the options marked 'as in the run' the values of that run, since pairs do "
        "not hold them. The defaults are those of a run without these options."
    )
    options = parse_flags(FilterOptions, args, "learngraph adamem filter", about)
    place = options.pairs
    pairs = [pair for _, pair in read_jsonl(mft.Pair, place) if options.author in ("all", pair.author)]
    outcome = mft.outcome_set(pairs, options.success_threshold)
    kept = mft.step_set(outcome, options.success_threshold)
    print(f"{len(pairs)} strategies{_authors(pairs)}")
    print(f"{len(outcome)} of them in episodes that succeeded")
    print(f"{len(kept)} of these changed the action")
    if options.draws_per_pair or options.rollouts_per_action:
        kept = _filter_by_estimates(kept, options)
    if options.criterion == "outcome":
        kept = mft.sample_pairs(outcome, len(kept), options.seed)
        print(f"{len(kept)} drawn from the {len(outcome)} that succeeded: as many")
    if not kept:
        raise UserError(f"no strategy in {place} passes; {options.out} was not written")
    write_jsonl([mft.chat(pair) for pair in kept], options.out)
    print(f"{len(kept)} examples written to {options.out}")
    return 0


def _filter_by_estimates(pairs: Sequence[Pair], options: FilterOptions) -> list[Pair]:
    """The pairs whose strategy helps by the estimates too. Prints the estimates."""
    from ....nodes.synthesize import mft
    from ....tools.environments.catalogue import open_environment

    assert options.env is not None  # FilterOptions has checked it
    assert options.model is not None
    kept = list(pairs)
    environment: Any = open_environment(options.env, horizon=options.horizon)
    try:
        tasks = {pair.id: _task(environment, pair, options.env) for pair in kept}
        again = CounterfactualAgent.open(
            environment,
            model=options.model,
            asked_with=options,
            prompts=options.prompts,
            window=options.window,
            history_steps=options.history_steps,
            temperature=options.temperature,
        )
        if options.draws_per_pair and kept:
            shares, chances, lasting = [], [], []
            for pair in kept:
                actions, drafts = again.sample_actions(tasks[pair.id], pair, options.draws_per_pair, str(options.seed))
                shares.append(mft.change_rate(actions, drafts, pair.domain))
                chances.append(mft.chance_change_rate(actions, drafts, pair.domain))
                if shares[-1] >= options.min_changed_share:
                    lasting.append(pair)
            print(
                f"{len(lasting)} of these change it in at least {options.min_changed_share:g} of {options.draws_per_pair} x {options.draws_per_pair} draws "
                f"(mean share {_mean(shares)}; two draws from one side differ in {_mean(chances)})"
            )
            kept = lasting
        if options.rollouts_per_action and kept:
            made = [
                (pair, mft.advantage(environment, tasks[pair.id], pair, again, options.rollouts_per_action, str(options.seed)))
                for pair in kept
            ]
            known = [(pair, found) for pair, found in made if found is not None]
            kept = [pair for pair, found in known if found.mean > options.min_advantage]
            worse, same = sum(found.mean < 0 for _, found in known), sum(found.mean == 0 for _, found in known)
            missing = f", {len(made) - len(known)} with missing rewards" if len(made) > len(known) else ""
            print(
                f"{len(kept)} of these have an advantage above {options.min_advantage:g} in {options.rollouts_per_action} paired rollouts "
                f"(mean of all {_mean([found.mean for _, found in known])}; {same} are 0, {worse} below{missing})"
            )
    finally:
        environment.close()
    return kept


def _task(environment: Any, pair: Pair, spec: str) -> Task:
    task: Task = environment.task(pair.seed, pair.split)
    if task.id != pair.task:
        raise UserError(f"pair {pair.id} is of task {pair.task}; task {pair.seed} of {spec}, {pair.split}, is {task.id}")
    return task


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3g}" if values else "–"
