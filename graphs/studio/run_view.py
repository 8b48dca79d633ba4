"""A run folder on the page: its runs, their episodes, and every step with what it was decided by. It also follows a run that is being played.

Nothing here needs more than `steps.jsonl`: a file that is missing or damaged becomes a sentence on the page, and the rest is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from threading import Lock, RLock
from typing import Any

from ...memory.errors import UserError
from ...tools.notebook.tables import to_line
from ...tools.notebook.walk import Walk
from ..arms import blueprint
from ..experiments.explain import explain_step
from ..experiments.recorded import RecordedFolder, RecordedRun, RecordedStep, read_rows
from ..experiments.replay import step_from
from ..methods import find_method
from ..wiring.flow import to_mermaid
from ..wiring.picture import Picture, picture
from .shown_values import decision_bars, show_graph, show_state

__all__ = ["FolderView", "RunView"]

ROW_KEYS = {"id", "parent", "episode", "task", "step", "over", "candidates", "estimates", "prior"}
"""Parts of a step's row that are shown elsewhere than in the table of the state."""


class FolderView:
    """A run folder as JSON values for the page.

    Raises:
        UserError: there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RecordedFolder(path)
        self.problems: list[str] = []
        """What could not be read, in sentences."""
        self._runs: dict[str, RunView] = {}
        self._lock = Lock()  # two views of one run would each read its new rows, and take them for twice as many
        self._asked: Mapping[str, Any] = {"methods": {}}
        try:
            self._asked = self.folder.settings
        except UserError as error:
            self.problems.append(f"{error}. The steps are shown without the graph.")

    def run(self, name: str) -> RunView:
        """A run of the folder, or a `UserError` that says which there are."""
        with self._lock:
            if name not in self._runs:
                self._runs[name] = RunView(self.folder.run(name), self._asked)
            return self._runs[name]

    def list_runs(self) -> dict[str, Any]:
        """The runs with their lengths, and what could not be read."""
        found = (self.run(name).overview() for name in self.folder.names())
        rows = [{key: one[key] for key in one.keys() - {"graphs", "branches"}} for one in found]
        path = self.folder.path
        waiting = [] if rows else [f"{path} has no steps yet. They appear here when the run has begun."]
        return {"folder": str(path), "runs": rows, "problems": [*self.problems, *waiting]}


class RunView:
    """One method's run on one seed as JSON values for the page. Safe for threads."""

    def __init__(self, run: RecordedRun, asked: Mapping[str, Any]) -> None:
        self._run, self.name = run, run.path.name
        self.title = f"{run.method}, seed {run.seed}" if run.seed is not None else self.name
        self._lock, self._model = RLock(), "–"
        self._problems: list[str] = []
        self.picture: Picture | None = None
        """The still picture of its graph; None if it cannot be drawn here."""
        self._graph = self._draw(asked)

    def _draw(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        method = self._run.method
        settings, prior = asked["methods"].get(method, {}), asked.get("prior", "model")
        try:
            used = find_method(method)
            if used.needs_model:  # a table of values asks none, whatever the others in its folder ask
                self._model = str(asked.get("model", "–") if prior == "model" or used.needs_writer else prior)
            usual = used.settings()
            names = {one.name for one in fields(usual)}
            graph = blueprint(method, replace(usual, **{key: value for key, value in settings.items() if key in names}))
            self.picture = picture(graph)
            return show_graph(to_mermaid(graph), graph)
        except (UserError, TypeError, ValueError) as error:
            self._problems.append(f"The graph of {method} cannot be drawn here: {error}.")
            return None

    def overview(self) -> dict[str, Any]:
        """All that the page shows of the run but its steps."""
        run = self._run
        with self._lock:
            problems = [*self._problems, *self._refresh()]
            rows = run.read_episodes()
            scores = {number: to_line(row.get("score"), 12) for number, row in rows.items()}
            branches = [
                {
                    "id": str(number),
                    "name": f"episode {number}",
                    "graph": "",
                    "count": len(run.steps(number)),
                    "note": f"score {scores[number]}" if number in scores else "not over",
                }
                for number in run.episodes
            ]
        return {
            "name": self.name,
            "title": self.title,
            "kind": "recorded",
            "model": self._model,
            "steps": len(run),
            **_figures(run, [float(row["score"]) for row in rows.values() if isinstance(row.get("score"), int | float)]),
            "episodes": len(branches),
            "state": "finished" if run.is_finished else "not finished",
            "problems": problems,
            "graphs": {"": self._graph} if self._graph else {},
            "branches": branches,
            "current": branches[-1]["id"] if branches else "",
            "version": f"{len(run)} {len(scores)} {run.is_finished}",
        }

    def _refresh(self) -> list[str]:
        """Read what was written since; returns what could not be read."""
        try:
            self._run.refresh()
        except OSError as error:
            return [f"{self.name}/steps.jsonl cannot be read: {error.strerror or error}."]
        damaged = self._run.damaged.items()
        return [f"{count} lines of {self.name}/{file} are damaged and left out." for file, count in damaged if count]

    def moments(self, branch: str, start: int, count: int) -> dict[str, Any]:
        """Lines about the steps of an episode."""
        with self._lock:
            steps = self._episode(branch)
        shown = steps[start : start + count]
        rows = [{"title": to_line(one.action, 60), "text": f"reward {to_line(one.reward, 12)}"} for one in shown]
        return {"start": start, "count": len(steps), "rows": rows}

    def _episode(self, branch: str) -> Sequence[RecordedStep]:
        if not len(self._run):
            self._refresh()
        if not branch.isdecimal() or not (steps := self._run.steps(int(branch))):
            raise UserError(f"{self.name} has no episode {branch!r}; it has {len(self._run.episodes)}")
        return steps

    def moment(self, branch: str, number: int) -> dict[str, Any]:
        """A step: its state, its decision, and what memory was read."""
        with self._lock:
            steps = self._episode(branch)
            if not 0 <= number < len(steps):
                raise UserError(f"episode {branch} has no step {number}; it has {len(steps)}")
            problems: list[str] = []
            row = self._row(steps[number], problems)
            before = self._row(steps[number - 1], []) if number else None
        shown = {name: value for name, value in row.items() if name not in ROW_KEYS}
        last = number == len(steps) - 1 and steps[number].over
        written = [f"The episode is over: its {len(steps)} steps go to memory."] if last else []
        return {
            "title": f"step {number}: {to_line(row.get('action'), 60)}",
            "lit": ["act"],
            "state": show_state(shown, before),
            "decision": decision_bars(row),
            "memory": {"read": _memory_reads(row), "written": written},
            "problems": problems,
            "can_explain": self._run.seed is not None,  # its settings are known
        }

    def _row(self, step: RecordedStep, problems: list[str]) -> dict[str, Any]:
        try:
            return self._run.row(step)
        except (OSError, ValueError) as error:
            problems.append(f"The row of this step cannot be read any more: {error}.")
            return {"action": step.action, "reward": step.reward}

    def walk_from(self, branch: str, number: int) -> Walk:
        """A live walk that stands where this step was decided; see `learngraph.step_from`."""
        run = self._run
        return step_from(run.path.parent, number, seed=run.seed, episode=int(branch), method=run.method)

    def explain(self, branch: str, number: int) -> dict[str, Any]:
        """Why the method took the action of this step, from the run's memory and journal; see `learngraph explain`."""
        run = self._run
        found = explain_step(run.path.parent, number, seed=run.seed, episode=int(branch), method=run.method)
        tables = [{"title": title, "head": rows[0], "rows": rows[1:]} for title, rows in found.tables()]
        return {"sentences": list(found.sentences), "tables": tables}


def _figures(run: RecordedRun, scores: Sequence[float]) -> dict[str, Any]:
    """The mean score of a run, the share of its episodes that solved the task, its seconds, and its curve; None for what is not known."""
    try:
        solved, times = run.result().get("solved"), read_rows(run.path / "seconds.jsonl")
    except (UserError, OSError, ValueError):
        solved, times = None, []
    won = [score >= solved for score in scores] if solved is not None else []
    return {
        "score": fmean(scores) if scores else None,
        "success": fmean(won) if won else None,
        "seconds": sum(row.get("seconds") or 0.0 for row in times) if times else None,
        "scores": scores,
    }


def _memory_reads(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of memory that a step read."""
    names = {"estimates": "what memory says of the actions", "shown": "", "precedents": "", "neighbours": "", "strategy": ""}
    return [{**show_state({name: row[name]})[0], "name": title or name} for name, title in names.items() if row.get(name)]
