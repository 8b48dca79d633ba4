"""`learngraph adamem build | filter | train`: banks of trajectories for AdaMEM, and Step-MFT from its runs.

learngraph adamem build --env toy --tasks 40 --out bank.jsonl
learngraph run adamem --mode high --bank bank.jsonl --env toy --split train --out runs/train
learngraph adamem filter runs/train --out data.jsonl
learngraph adamem train data.jsonl --model pocket --out trained
learngraph run adamem --mode high --bank bank.jsonl --env toy --model local:trained
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from ...memory.errors import CommandError, UserError, plural
from .flags import parse_flags, parse_options_and_settings, run_subcommand

__all__ = ["BuildOptions", "FilterOptions", "TrainOptions", "adamem"]

USAGE = """\
usage: learngraph adamem build --env ENV --out FILE | filter RUN_FOLDER --out FILE | train DATA --out DIR

build    makes a bank of trajectories to start from
filter   takes the strategies that helped out of a run in mode high, as a data set
train    fine-tunes a local model on them (Step-MFT)
Each with --help."""


def adamem(args: Sequence[str]) -> int:
    """Make a bank of trajectories, or fine-tune a model on its strategies. Returns the exit status."""
    return run_subcommand({"build": _build, "filter": _filter, "train": _train}, args, USAGE)


@dataclass(frozen=True)
class BuildOptions:
    """Options of `learngraph adamem build`: the trajectories of the bank."""

    out: Path
    """The output: a file with a trajectory a line, as `learngraph memory export` writes it. `run adamem --bank` reads it."""
    env: str | None = None
    """The environment, as for `learngraph run`: its walkthroughs are the bank."""
    source: Path | None = None
    """A run folder, in place of walkthroughs: all that its agents did, of any method, `random` too."""
    split: Literal["train", "dev", "test"] = "train"
    """The fold of the environment's tasks. Take another one than the fold that is tested on. A run folder names its own."""
    tasks: int = 20
    """Number of tasks, from the first one."""
    horizon: int | None = None
    """Steps after which an episode ends; the environment's own limit if not given."""
    success_threshold: float | None = None
    """The score from which an episode counts as a success; the environment's own if not given. Only for the count that is printed."""

    def __post_init__(self) -> None:
        if self.tasks < 1:
            raise CommandError(f"--tasks is at least 1, got {self.tasks}")
        if (self.env is None) == (self.source is None):
            raise CommandError(
                "learngraph adamem build needs --env, the environment whose walkthroughs are played, such as toy; or --source, a run "
                "folder, which names its own"
            )


def _build(args: Sequence[str]) -> int:
    """Write a bank of trajectories to a file."""
    from ...memory.storage.record_store import write_jsonl
    from ...tools.environments.catalogue import open_environment
    from ..experiments import step_mft
    from ..experiments.folder import read_sweep_settings

    about = "Make a bank of trajectories, for learngraph run adamem --bank FILE."
    options = parse_flags(BuildOptions, args, "learngraph adamem build", about)
    settings: dict[str, Any] = {"env": options.env, "horizon": options.horizon, "split": options.split}
    if options.source is not None:
        settings = read_sweep_settings(options.source)
    split = settings["split"]
    environment: Any = open_environment(settings["env"], horizon=settings["horizon"])
    try:
        if options.source is not None:
            made = list(step_mft.read_trajectories(options.source, environment))
        elif hasattr(environment, "gold"):
            made = step_mft.play_walkthroughs(environment, [environment.task(n, split) for n in range(options.tasks)])
        else:
            raise CommandError(
                f"{options.env} has no walkthroughs; play it first, with any method, and give --source RUN_FOLDER"
            )
        threshold = getattr(environment, "solved", None) if options.success_threshold is None else options.success_threshold
    finally:
        environment.close()
    if not made:
        raise UserError(f"{options.source} has no finished episode; nothing was written")
    write_jsonl(made, options.out)
    outcome = "how many succeeded is unknown: give a score with --success-threshold"
    if threshold is not None:
        won = sum(t.score >= threshold for t in made)
        outcome = f"{won} succeeded and {len(made) - won} failed (a score of {threshold:g} is a success)"
    tasks, steps = len({(t.domain, t.task.id) for t in made}), sum(len(t.transitions) for t in made)
    print(f"{len(made)} trajectories of {plural(tasks, 'task')}, {plural(steps, 'step')}; {outcome}\nwritten to {options.out}")
    if split == "test":
        print(f"note: these are tasks of the split test; a run that starts from {options.out} cannot be tested on them")
    return 0


@dataclass(frozen=True)
class FilterOptions:
    """Options of `learngraph adamem filter`: the strategies that are kept."""

    run_folder: Positional[Path]
    """A folder that `learngraph run` has made, with runs of adamem in mode high."""
    out: Path
    """The output: a data set with a chat a line, {"messages": [...]}, whose last message is the strategy."""
    criterion: Literal["step", "outcome"] = "step"
    """Rule for the strategies that helped. `step`: the episode succeeded and the action changed. `outcome`: as many examples,
    drawn from all in episodes that succeeded."""
    success_threshold: float | None = None
    """The score from which an episode counts as a success; the environment's own if not given."""
    author: Literal["all", "model", "rule"] = "all"
    """Author of the strategies that are kept: the model itself, a rule, or both."""
    rollouts_per_action: int = 0
    """Times that each of the two actions is taken and played on without memory, by the run's model in its world. 0: not at all, as
    in the paper. Kept are then strategies with a positive estimated advantage."""
    seed: int = 0
    """Seed of the random draws: those of `--criterion outcome`, and of rollouts."""

    def __post_init__(self) -> None:
        if self.rollouts_per_action < 0:
            raise CommandError(f"--rollouts-per-action is at least 0, got {self.rollouts_per_action}")


def _filter(args: Sequence[str]) -> int:
    """Write a data set of the strategies that helped. Says how many pass each filter."""
    from ...memory.storage.record_store import write_jsonl
    from ...nodes.synthesize import mft
    from ..experiments.step_mft import CollectedRuns

    about = "Make a data set for fine-tuning, in the usual chat format, from the strategies of a run of adamem --mode high."
    options = parse_flags(FilterOptions, args, "learngraph adamem filter", about)
    place, found = options.run_folder, CollectedRuns(options.run_folder)
    if found.split != "train":
        print(f"note: {place} played tasks of the split {found.split}; a model trained on them cannot be tested on them")
    if found.left_out:
        left = ", ".join(f"{n} of {kind}" for kind, n in sorted(found.left_out.items()))
        print(f"runs left out: {left} (only in mode high a draft is what the agent would have done without the strategy)")
    pairs, counts = [pair for pair in found.pairs if options.author in ("all", pair.author)], found.counts
    authors = sorted(Counter(pair.author for pair in pairs).items())
    by = f", by {' and '.join(f'{author} ({n})' for author, n in authors)}" if authors else ""
    episodes, runs, steps = (plural(counts[name], noun) for name, noun in
                             (("episodes", "finished episode"), ("runs", "run"), ("steps", "step")))  # fmt: skip
    print(f"{len(pairs)} strategies in {episodes} of {runs}, {steps}{by}")
    if counts["undrafted"]:
        print(
            f"{counts['undrafted']} more were written without a draft before, so that it is unknown what they changed: left out"
        )
    outcome = mft.outcome_set(pairs, options.success_threshold)
    kept = mft.step_set(outcome, options.success_threshold)
    print(f"{len(outcome)} of them in episodes that succeeded\n{len(kept)} of these changed the action")
    if options.rollouts_per_action and kept:
        estimates = found.advantages(kept, options.rollouts_per_action, options.seed)
        gains = [estimate.mean for _, estimate in estimates]
        missing = f", {len(kept) - len(gains)} with missing rewards" if len(kept) > len(gains) else ""
        mean = f"{sum(gains) / len(gains):.3g}" if gains else "–"
        kept = [pair for pair, estimate in estimates if estimate.mean > 0]
        print(
            f"{len(kept)} of these have an advantage above 0 in {options.rollouts_per_action} paired rollouts (mean of all {mean}; "
            f"{gains.count(0)} are 0, {sum(gain < 0 for gain in gains)} below{missing})"
        )
    if options.criterion == "outcome":
        kept = mft.sample_pairs(outcome, len(kept), options.seed)
        print(f"{len(kept)} drawn from the {len(outcome)} that succeeded: as many")
    if not kept:
        raise UserError(f"no strategy in {place} passes; {options.out} was not written")
    write_jsonl([mft.chat(pair) for pair in kept], options.out)
    print(f"{len(kept)} examples written to {options.out}")
    return 0


@dataclass(frozen=True)
class TrainOptions:
    """Options of `learngraph adamem train`: the model and the data set."""

    data: Positional[Path]
    """A file of chats, one a line: what `learngraph adamem filter` has written, or any other."""
    out: Path
    """The output: a new folder for the trained model, which `--model local:DIR` opens. Its folder `adapter` holds the LoRA
    matrices alone, in PEFT's format."""
    model: str = "pocket"
    """The model: `pocket` or `local:PATH_OR_NAME`. Training starts from it."""
    device: str = "cpu"
    """Device of the model: `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = "float32"
    """Number format of the model: bfloat16 takes half the memory. LoRA matrices are always float32."""


def _train(args: Sequence[str]) -> int:
    """Fine-tune a local model on a data set, and write it to a folder."""
    import logging

    from ...tools.models.models import open_model
    from ...tools.training.sft import FineTuningSettings, read_chats, train

    about = "Fine-tune a local model with LoRA on chats, one a line."
    options, settings = parse_options_and_settings(
        TrainOptions, FineTuningSettings(), args, "learngraph adamem train", about, "LoRA: settings of the training"
    )
    if options.model.startswith("openai:"):
        raise CommandError(f"--model {options.model}: weights behind an API cannot be trained; use pocket or local:PATH")
    logging.basicConfig(format="%(message)s")  # to stderr
    logging.getLogger("learngraph").setLevel(logging.INFO)
    chats = read_chats(options.data)
    model: Any = open_model(options.model, device=options.device, dtype=options.dtype)
    done = train(chats, model, settings, options.out, "pocket" if options.model == "pocket" else None)
    left = f"; {done.left_out} longer than the window of {model.window} tokens were left out" if done.left_out else ""
    print(
        f"{done.examples} examples, {len(done.losses)} updates in {done.seconds:.1f} s: loss {done.losses[0]:.4g} in the first, "
        f"{done.losses[-1]:.4g} in the last, in nats per token{left}\n"
        f"written to {options.out}; --model local:{options.out} plays with it"
    )
    return 0
