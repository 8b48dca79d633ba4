"""The costs of a run folder: calls, tokens and dollars of each run, from its ledger and its rows of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.records import Usage

if TYPE_CHECKING:
    from ...memory.storage.cache import Cache

__all__ = ["LEDGER", "TRAINING_FILE", "ledger_usage", "open_ledger", "run_usage"]

LEDGER = "costs.sqlite"
"""Name of the ledger in a run folder. Its stages are the names of the runs."""
TRAINING_FILE = "training.jsonl"
"""Name of the log of a run that trains weights: its attempts, and its trainings with their costs."""


@contextmanager
def open_ledger(folder: Path) -> Iterator[Cache]:
    """The ledger of a run folder, in which calls of models are counted. It is made if missing."""
    from ...memory.storage.cache import Cache

    ledger = Cache(folder / LEDGER)
    try:
        yield ledger
    finally:
        ledger.close()


def ledger_usage(folder: Path) -> Mapping[str, Usage]:
    """The usage of each run in a folder by the run's name, as far as its calls were counted."""
    if not (folder / LEDGER).exists():
        return {}
    with open_ledger(folder) as ledger:
        return ledger.usage_by_stage()


def run_usage(run_folder: Path, rows: Sequence[Mapping[str, Any]]) -> Usage:
    """The usage of a run: as its calls were counted, or (of a model in this process) as its finished episodes say."""
    played = sum((row_usage(row) for row in rows), Usage())
    counted = ledger_usage(run_folder.parent).get(run_folder.name, Usage())
    # A run that began with an earlier version has counted only a part.
    return counted if counted.calls >= played.calls else played


def row_usage(row: Mapping[str, Any]) -> Usage:
    """The usage of an episode, from its row."""
    return Usage(*(row.get(name, 0) for name in ("calls", "input_tokens", "output_tokens")))
