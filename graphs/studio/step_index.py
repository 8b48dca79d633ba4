"""An index of a run's `steps.jsonl`: where each step stands in the file, and a line about it.

The file may be hundreds of megabytes, and another process may be writing to it. `refresh` reads only what is new; a step's whole row is
read when it is looked at. A line that cannot be read is counted and left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .shown_values import to_line

__all__ = ["IndexedStep", "StepIndex"]


class IndexedStep(NamedTuple):
    """A step, and where its row stands."""

    id: str
    parent: str
    episode: int
    step: int
    action: str
    reward: str
    over: bool
    offset: int


class StepIndex:
    """The steps of a run. Not safe for threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        """Lines that could not be read."""
        self._steps: dict[str, IndexedStep] = {}
        self._last: dict[int, str] = {}  # episode -> id of its newest row
        self._paths: dict[tuple[int, str], list[IndexedStep]] = {}
        self._read = 0

    def refresh(self) -> None:
        """Read what was written since. A file that has become shorter is read from its beginning.

        Raises:
            OSError: the file cannot be read.
        """
        if self.path.stat().st_size < self._read:
            self.__init__(self.path)  # type: ignore[misc]
        with self.path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # cut short by a crash, or being written
                    break
                offset, self._read = self._read, self._read + len(line)
                try:
                    self._add(json.loads(line), offset)
                except (ValueError, KeyError, TypeError, AttributeError):
                    self.damaged += bool(line.strip())

    def _add(self, row: Mapping[str, Any], offset: int) -> None:
        step = IndexedStep(
            id=str(row["id"]),
            parent=str(row["parent"]),
            episode=int(row["episode"]) if "episode" in row else 0,
            step=int(row["step"]),
            action=to_line(str(row["action"]), 60),
            reward=to_line(row.get("reward"), 12),
            over=bool(row.get("over")),
            offset=offset,
        )
        self._steps[step.id] = step
        # The last row of an episode ends the way that was kept: one that went back in a power cut wrote its steps again.
        self._last[step.episode] = step.id

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def episodes(self) -> list[int]:
        """The numbers of the episodes, in order."""
        return sorted(self._last)

    def episode(self, number: int) -> list[IndexedStep]:
        """The steps of an episode, in order; empty if there is none of this number."""
        if number not in self._last:
            return []
        last = self._last[number]
        if (number, last) not in self._paths:
            found, id = list[IndexedStep](), last
            while id in self._steps and len(found) <= len(self._steps):
                found.append(self._steps[id])
                id = self._steps[id].parent
            if len(self._paths) > 64:
                self._paths.clear()
            self._paths[number, last] = found[::-1]
        return self._paths[number, last]

    def row(self, step: IndexedStep) -> dict[str, Any]:
        """The whole row of a step.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file was changed since.
        """
        with self.path.open("rb") as file:
            file.seek(step.offset)
            row: dict[str, Any] = json.loads(file.readline())
        return row
