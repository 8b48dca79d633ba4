"""`learngraph adamem build | collect | filter | train`: banks of trajectories for AdaMEM, and Step-MFT from its runs.

learngraph adamem build --env toy --source gold --tasks 40 --out bank.jsonl
learngraph run adamem --mode high --bank bank.jsonl --env toy --split train --out runs/train
learngraph adamem collect runs/train --out pairs.jsonl
learngraph adamem filter pairs.jsonl --out data.jsonl
learngraph adamem train data.jsonl --model pocket --out trained
learngraph run adamem --mode high --bank bank.jsonl --env toy --model local:trained
"""

from __future__ import annotations

from collections.abc import Sequence

from ..flags import run_subcommand
from .bank import build
from .pairs import collect, filter_pairs
from .train import train

__all__ = ["USAGE", "adamem"]

USAGE = """\
usage: learngraph adamem build --env ENV --out FILE | collect RUN_FOLDER --out FILE | filter PAIRS --out FILE | train DATA --out DIR

build    makes a bank of trajectories to start from
collect  takes the strategies out of a run in mode high, with what followed from each
filter   keeps those that helped, as a data set
train    fine-tunes a local model on them (Step-MFT)
Each with --help."""


def adamem(args: Sequence[str]) -> int:
    """Make a bank of trajectories, or fine-tune a model on its strategies. Returns the exit status."""
    return run_subcommand({"build": build, "collect": collect, "filter": filter_pairs, "train": train}, args, USAGE)
