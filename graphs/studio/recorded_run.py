"""A run folder on the page: its runs, their episodes, and every step with what it was decided by. It also follows a run that is being played.

Nothing here needs more than `steps.jsonl`: a file that is missing or damaged becomes a sentence on the page, and the rest is shown.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import RLock
from typing import Any

from ...memory.errors import UserError
from ..arms import blueprint
from ..cli.explain import explain_step
from ..experiments.folder_settings import read_sweep_settings, run_stem
from ..wiring.flow import to_mermaid
from ..wiring.picture import Picture, picture
from .recorded_passes import RecordedPasses
from .shown_graph import show_graph
from .shown_values import decision_bars, show_state, to_line
from .step_index import IndexedStep, StepIndex

__all__ = ["RecordedRun", "RunFolder"]

ROW_KEYS = {"id", "parent", "episode", "task", "step", "over", "candidates", "estimates", "prior"}
"""Parts of a step's row that are shown elsewhere than in the table of the state."""


@dataclass
class RunFolder:
    """A folder that `learngraph run` has made, or one of the runs in it."""

    path: Path
    problems: list[str] = field(default_factory=list)
    """What could not be read, in sentences."""

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise UserError(f"{self.path} is no folder; give one that `learngraph run` has made, such as runs/NAME")
        self._only = ""
        if (self.path / "steps.jsonl").exists() and not (self.path / "settings.json").exists():
            self._only, self.path = self.path.name, self.path.parent
        self._runs: dict[str, RecordedRun] = {}
        self._settings: Mapping[str, Any] = {}
        try:
            self._settings = read_sweep_settings(self.path)
        except UserError as error:
            self.problems.append(f"{error}. The steps are shown without the graph.")

    def names(self) -> list[str]:
        """The names of the runs that have steps; a run that has just begun appears later."""
        found = sorted(one.parent.name for one in self.path.glob("*/steps.jsonl"))
        return [name for name in found if not self._only or name == self._only]

    def run(self, name: str) -> RecordedRun:
        """A run of the folder.

        Raises:
            UserError: there is none of this name.
        """
        if name not in self._runs:
            if name not in self.names():
                raise UserError(f"{self.path} has no run {name!r}; it has {', '.join(self.names()) or 'none with steps yet'}")
            method, seed = self._method_of(name)
            self._runs[name] = RecordedRun(self.path / name, method, seed, self._settings.get("methods", {}).get(method, {}))
        return self._runs[name]

    def _method_of(self, name: str) -> tuple[str, int | None]:
        """Method and seed of a run's folder."""
        for method in self._settings.get("methods", {}):
            for seed in self._settings.get("seeds", ()):
                if f"{run_stem(method)}-s{seed}" == name:
                    return method, seed
        return name.rpartition("-s")[0], None

    def list_runs(self) -> dict[str, Any]:
        """The runs with their lengths, and what could not be read."""
        rows = []
        for name in self.names():
            overview = self.run(name).overview()
            rows.append({key: overview[key] for key in ("name", "title", "steps", "episodes", "state", "problems")})
        waiting = [] if rows else [f"{self.path} has no steps yet. They appear here when the run has begun."]
        return {"folder": str(self.path), "runs": rows, "problems": [*self.problems, *waiting]}


class RecordedRun:
    """One method's run on one seed, as its files tell it. Safe for threads."""

    def __init__(self, path: Path, method: str, seed: int | None, settings: Mapping[str, Any]) -> None:
        self.path, self.method, self.seed = path, method, seed
        self._steps = StepIndex(path / "steps.jsonl")
        self._passes = RecordedPasses(path / "checkpoints.sqlite")
        self._lock = RLock()
        self._problems: list[str] = []
        self.picture: Picture | None = None
        """The still picture of its graph; None if it cannot be drawn here."""
        self._graph = self._draw(settings)

    def _draw(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        from ..methods import find_method

        try:
            usual = find_method(self.method).settings()
            names = {one.name for one in fields(usual)}
            graph = blueprint(self.method, replace(usual, **{key: value for key, value in settings.items() if key in names}))
            self.picture = picture(graph)
            return show_graph(to_mermaid(graph), graph)
        except (UserError, TypeError, ValueError) as error:
            self._problems.append(f"The graph of {self.method} cannot be drawn here: {error}.")
            return None

    def overview(self) -> dict[str, Any]:
        """All that the page shows of the run but its steps."""
        with self._lock:
            problems = [*self._problems, *self._refresh()]
            scores, damaged = self._scores()
            problems += damaged
            episodes = self._steps.episodes
            finished = (self.path / "result.json").is_file()
        return {
            "name": self.path.name,
            "title": f"{self.method}, seed {self.seed}" if self.seed is not None else self.path.name,
            "kind": "recorded",
            "steps": len(self._steps),
            "episodes": len(episodes),
            "state": "finished" if finished else "not finished",
            "problems": problems,
            "graphs": {"": self._graph} if self._graph else {},
            "branches": [
                {
                    "id": str(number),
                    "name": f"episode {number}",
                    "graph": "",
                    "count": len(self._steps.episode(number)),
                    "note": f"score {scores[number]}" if number in scores else "not over",
                }
                for number in episodes
            ],
            "current": str(episodes[-1]) if episodes else "",
            "version": f"{len(self._steps)} {len(scores)} {finished}",
        }

    def _refresh(self) -> list[str]:
        """Read what was written since; returns what could not be read."""
        try:
            self._steps.refresh()
        except OSError as error:
            return [f"{self.path.name}/steps.jsonl cannot be read: {error.strerror or error}."]
        if self._steps.damaged:
            return [f"{self._steps.damaged} lines of {self.path.name}/steps.jsonl are damaged and left out."]
        return []

    def _scores(self) -> tuple[dict[int, str], list[str]]:
        """Score by episode, as text."""
        path = self.path / "episodes.jsonl"
        found: dict[int, str] = {}
        damaged = 0
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                row = json.loads(line)
                found[int(row["episode"])] = to_line(row["score"], 12)
            except (ValueError, KeyError, TypeError):
                damaged += 1
        return found, [f"{damaged} lines of {path.parent.name}/episodes.jsonl are damaged and left out."] if damaged else []

    def moments(self, branch: str, start: int, count: int) -> dict[str, Any]:
        """Lines about the steps of an episode."""
        with self._lock:
            steps = self._episode(branch)
        rows = [{"title": one.action, "text": f"reward {one.reward}"} for one in steps[start : start + count]]
        return {"start": start, "count": len(steps), "rows": rows}

    def _episode(self, branch: str) -> Sequence[IndexedStep]:
        if not len(self._steps):
            self._refresh()
        if not branch.isdecimal() or not (steps := self._steps.episode(int(branch))):
            raise UserError(f"{self.path.name} has no episode {branch!r}; it has {len(self._steps.episodes)}")
        return steps

    def moment(self, branch: str, number: int) -> dict[str, Any]:
        """A step: its state, its decision, and the way through the graph up to it."""
        with self._lock:
            steps = self._episode(branch)
            if not 0 <= number < len(steps):
                raise UserError(f"episode {branch} has no step {number}; it has {len(steps)}")
            problems: list[str] = []
            row = self._row(steps[number], problems)
            before = self._row(steps[number - 1], []) if number else None
            passes, channels = self._way(int(branch), number + 1, problems)
        shown = {name: value for name, value in row.items() if name not in ROW_KEYS}
        return {
            "title": f"step {number}: {to_line(row.get('action'), 60)}",
            "lit": ["act"],
            "passes": passes,
            "state": show_state(shown, before) + show_state({k: v for k, v in channels.items() if k not in shown}),
            "decision": decision_bars(row),
            "memory": self._memory(row, steps, number),
            "problems": problems,
            "can_explain": self.seed is not None,  # its settings are known
        }

    def _row(self, step: IndexedStep, problems: list[str]) -> dict[str, Any]:
        try:
            return self._steps.row(step)
        except (OSError, ValueError) as error:
            problems.append(f"The row of this step cannot be read any more: {error}.")
            return {"action": step.action, "reward": step.reward}

    def _way(
        self, episode: int, steps: int, problems: list[str]
    ) -> tuple[list[tuple[str, str, int]] | None, Mapping[str, Any]]:
        try:
            return self._passes.passes(episode, steps), self._passes.state(episode, steps)
        except (sqlite3.Error, ValueError) as error:
            problems.append(
                f"{self.path.name}/checkpoints.sqlite cannot be read ({error}): the way through the graph is not shown."
            )
            return None, {}

    def _memory(self, row: Mapping[str, Any], steps: Sequence[IndexedStep], number: int) -> dict[str, Any]:
        """The parts of memory that this step read, and that its episode wrote."""
        read = []
        if estimates := row.get("estimates"):
            read.append({"name": "what memory says of the actions", **show_state({"": estimates})[0]})
        for name in ("shown", "precedents", "neighbours", "strategy"):
            if row.get(name):
                read.append({**show_state({name: row[name]})[0]})
        last = number == len(steps) - 1 and steps[number].over
        return {"read": read, "written": [f"The episode is over: its {len(steps)} steps go to memory."] if last else []}

    def explain(self, branch: str, number: int) -> dict[str, Any]:
        """Why the method took the action of this step, from the run's memory and journal; see `learngraph explain`."""
        found = explain_step(self.path.parent, number, seed=self.seed, episode=int(branch), method=self.method)
        tables = [("remembered steps", found.remembered), ("candidates", found.actions)]
        return {
            "sentences": list(found.sentences),
            "tables": [{"title": title, "head": rows[0], "rows": rows[1:]} for title, rows in tables if len(rows) > 1],
        }
