"""A run as its folder holds it, to look at: its episodes and their steps as tables, also while it is being written.

run = read_run("runs/mine/jitrl-s0")
run                      shows the episodes in a notebook; run.table() prints them
run.steps_table(3)       the steps of episode 3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...memory.display import Table, make_table
from ...memory.errors import UserError
from .jsonl import read_rows

__all__ = ["RunRows", "read_run", "steps_to"]


@dataclass(frozen=True)
class RunRows:
    """The rows of a run that were complete when it was read."""

    folder: Path
    episodes: tuple[Mapping[str, Any], ...] = field(repr=False)
    """A row for each finished episode."""
    steps: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Id -> row of a step."""

    def table(self) -> Table:
        """A table of the finished episodes, the newest first."""
        head = ("episode", "score", "best", "reward seen", "steps", "calls", "tokens read", "tokens written", "task")
        names = ("episode", "score", "best", "earned", "steps", "calls", "input_tokens", "output_tokens", "task")
        rows = ([row.get(name) for name in names] for row in self.episodes[::-1])
        return make_table(str(self), head, rows, len(self.episodes))

    def steps_table(self, episode: int) -> Table:
        """A table of the steps of a finished episode.

        Raises:
            UserError: there is no such episode, or its steps are incomplete.
        """
        row = next((row for row in self.episodes if row["episode"] == episode), None)
        if row is None:
            there = f"it has 0 to {len(self.episodes) - 1}" if self.episodes else "none is finished yet"
            raise UserError(f"{self.folder} has no finished episode {episode}; {there}")
        path = steps_to(self.steps, str(row["head"]))
        if path is None:
            raise UserError(f"{self.folder}/steps.jsonl lacks steps of episode {episode}: was it cut?")
        rows = ((one["step"], one["state"], one["action"], one["reward"], one.get("observation")) for one in path)
        return make_table(
            f"{self.folder.name}, episode {episode}", ("step", "state", "action", "reward", "read"), rows, len(path)
        )

    def __str__(self) -> str:
        return f"{self.folder.name}: {len(self.episodes)} episodes, {len(self.steps)} steps"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def read_run(folder: Path | str) -> RunRows:
    """Read a run of a folder that `learngraph run` has made; it may be at work.

    Raises:
        UserError: it is no such folder, or a file of it is damaged; names the runs that there are.
    """
    folder = Path(folder)
    if not (folder / "steps.jsonl").is_file():
        runs = sorted(path.parent.name for path in folder.glob("*/steps.jsonl")) if folder.is_dir() else []
        told = f"name one of its runs: {', '.join(runs)}" if runs else "give the folder of one run, such as runs/mine/jitrl-s0"
        raise UserError(f"{folder} holds no steps.jsonl; {told}")
    found = list[list[dict[str, Any]]]()
    for name in ("episodes.jsonl", "steps.jsonl"):
        try:
            rows = read_rows(folder / name) if (folder / name).is_file() else []
            found.append([{**row, "id": str(row["id"])} for row in rows])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / name} is damaged ({error}); the rows before cannot be told from the rest") from error
    episodes = tuple(sorted(found[0], key=lambda row: int(row.get("episode", 0))))
    return RunRows(folder, episodes, {row["id"]: row for row in found[1]})


def steps_to(steps: Mapping[str, Mapping[str, Any]], head: str) -> list[Mapping[str, Any]] | None:
    """The rows of the steps that lead to a head, oldest first; None if one is missing.

    Args:
        steps: id -> row of a step.
        head: the id of the last step, or of the start of an episode, which holds a `/`.
    """
    found: list[Mapping[str, Any]] = []
    while "/" not in head:
        if head not in steps:
            return None
        found.append(steps[head])
        head = str(steps[head]["parent"])
    return found[::-1]
