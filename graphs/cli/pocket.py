"""`learngraph pocket train | gate`: train the pocket model from scratch, or measure what it can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...memory.errors import CommandError
from ..experiments.progress import say
from .flags import parse_flags, run_subcommand

__all__ = ["pocket"]

USAGE = """\
usage: learngraph pocket train --out DIR | gate

train  trains the pocket model from scratch
gate   measures what it can do
Each with --help."""


def pocket(args: Sequence[str]) -> int:
    """Train or measure the pocket model. Returns the exit status."""
    return run_subcommand({"train": train_pocket, "gate": measure_pocket}, args, USAGE)


def train_pocket(args: Sequence[str]) -> int:
    """Train the pocket model, and write it to a folder."""
    import logging

    from ...tools.pocket.train import PocketTraining, train

    settings = parse_flags(PocketTraining, args, "learngraph pocket train", "Train the pocket model from scratch.")
    logging.basicConfig(format="%(message)s")  # to stderr: a line a minute or so
    logging.getLogger("learngraph").setLevel(logging.INFO)
    say(f"written to {train(settings)}")
    return 0


@dataclass(frozen=True)
class PocketGateOptions:
    """Options of `learngraph pocket gate`: the weights to measure, and the size of the tests."""

    model: str = "pocket"
    """The model: `pocket`, or `local:PATH` with a folder that `learngraph pocket train` has written."""
    toy_domains: int = 20
    """Held-out domains of the toy world."""
    tasks: int = 20
    """Number of tasks: test tasks of each TextWorldExpress game; 0 leaves them out."""
    seed: int = 0
    """Seed of the random draws."""

    def __post_init__(self) -> None:
        if self.model != "pocket" and not self.model.startswith("local:"):
            raise CommandError(f"--model is pocket or local:PATH, got {self.model!r}")


def measure_pocket(args: Sequence[str]) -> int:
    """Print a table of what the pocket model can do."""
    from ...tools.pocket import evaluate

    options = parse_flags(PocketGateOptions, args, "learngraph pocket gate", "Measure what the pocket model can do.")
    folder = evaluate.WEIGHTS if options.model == "pocket" else Path(options.model.removeprefix("local:"))
    found = evaluate.measure_model(folder, keeps=options.toy_domains, tasks=options.tasks, seed=options.seed)
    print(evaluate.markdown_table(found))
    return 0
