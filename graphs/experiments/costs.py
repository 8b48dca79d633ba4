"""The costs of a run folder: calls, tokens, dollars, seconds and floating-point operations of each run, from its ledger and its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.records import Usage
from .recorded import read_rows

if TYPE_CHECKING:
    from ...memory.storage.cache import Cache

__all__ = []

LEDGER = "costs.sqlite"
"""Name of the ledger in a run folder. Its stages are the names of the runs."""
CACHE = "cache.sqlite"
"""Name of the cache in the folder of runs that learn before they play. It counts calls by stage, of all runs."""
TRAINING_FILE = "training.jsonl"
"""Name of the log of a run that trains weights: its attempts, and its trainings with their costs."""


@contextmanager
def open_ledger(folder: Path, name: str = LEDGER) -> Iterator[Cache]:
    """The ledger of a run folder, in which calls of models are counted. It is made if missing."""
    from ...memory.storage.cache import Cache

    ledger = Cache(folder / name)
    try:
        yield ledger
    finally:
        ledger.close()


def ledger_usage(folder: Path, name: str = LEDGER) -> Mapping[str, Usage]:
    """The usage of each run in a folder by the run's name, or by stage (`CACHE`), as far as calls were counted."""
    if not (folder / name).exists():
        return {}
    with open_ledger(folder, name) as ledger:
        return ledger.usage_by_stage()


def run_usage(run_folder: Path, rows: Sequence[Mapping[str, Any]]) -> Usage:
    """The usage of a run: as its calls were counted, or (of a model in this process) as its finished episodes say."""
    played = sum((row_usage(row) for row in rows), Usage())
    counted = ledger_usage(run_folder.parent).get(run_folder.name, Usage())
    return counted if counted.calls >= played.calls else played


def row_usage(row: Mapping[str, Any]) -> Usage:
    """The usage of an episode, from its row."""
    return Usage(*(row.get(name, 0) for name in ("calls", "input_tokens", "output_tokens")))


@dataclass(frozen=True)
class RunWork:
    """The work of a run's model, which plays and perhaps is trained.

    The passes of a model in this process are counted by tools/training/flops.py. An episode that a crash cut short counts only from
    where it was resumed.
    """

    flops: float | None
    """Floating-point operations, those of trainings as well; None if they were not counted: for a model behind an API."""
    tokens_trained: float | None
    """Tokens of the passes of trainings, without padding; an example counts once for each epoch. None if the run trains no weights."""
    trainings: Sequence[Mapping[str, Any]]
    """The rows of its trainings."""


def run_work(folder: Path, rows: Sequence[Mapping[str, Any]]) -> RunWork:
    """The work of a run."""
    timed = {row["id"]: row for row in read_rows(folder / "seconds.jsonl")}
    of, log = [timed.get(row["id"], {}) for row in rows], folder / TRAINING_FILE
    trainings = [row for row in read_rows(log) if row["kind"] == "training"]
    return RunWork(
        # What was counted of an episode is all of its passes, those of its training as well.
        flops=sum(row["flops"] for row in of) if all("flops" in row for row in of) else None,
        tokens_trained=float(sum(row["tokens"] for row in trainings)) if log.is_file() else None,
        trainings=trainings,
    )
