"""Run folders of `learngraph run`, read back: their runs, and the trajectories of their agents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ....memory.errors import UserError
from ....memory.records import Trajectory, Transition
from ...experiments.folder_settings import read_settings, run_stem

__all__ = ["SavedRun", "read_runs", "read_trajectories"]


@dataclass(frozen=True)
class SavedRun:
    """One run of one method on one task, as read from its folder."""

    folder: Path
    method: str
    """Its name in the folder: `adamem-high` for `adamem?mode=high`."""
    seed: int
    settings: Mapping[str, Any]
    """The settings of the whole run folder."""
    steps: Sequence[Mapping[str, Any]]
    episodes: Sequence[Mapping[str, Any]]
    """The rows of the episodes that have ended."""
    solved: float | None
    """The score from which the task counts as solved; None while the run goes on, or if there is no such thing."""

    @property
    def method_settings(self) -> Mapping[str, Any]:
        """The settings of the method."""
        methods: Mapping[str, Mapping[str, Any]] = self.settings["methods"]
        return next((held for name, held in methods.items() if run_stem(name) == self.method), {})


def read_runs(folder: Path) -> list[SavedRun]:
    """The runs in a folder that `learngraph run` has made.

    Raises:
        UserError: it is none, or damaged.
    """
    from ...experiments.jsonl import read_rows

    if not (folder / "settings.json").is_file():
        raise UserError(f"{folder} is no run folder: it has no settings.json; give one that 'learngraph run' has made")
    found = []
    try:
        settings = read_settings(folder / "settings.json")
        for log in sorted(folder.glob("*/episodes.jsonl")):
            named = re.fullmatch(r"(.+)-s(\d+)", log.parent.name)
            if named is None or not (log.parent / "steps.jsonl").exists():
                continue
            result = log.parent / "result.json"
            solved = json.loads(result.read_text(encoding="utf-8")).get("solved") if result.exists() else None
            episodes = sorted(read_rows(log), key=lambda row: int(row["episode"]))
            found.append(
                SavedRun(
                    folder=log.parent,
                    method=named[1],
                    seed=int(named[2]),
                    settings=settings,
                    steps=read_rows(log.parent / "steps.jsonl"),
                    episodes=episodes,
                    solved=solved,
                )
            )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} cannot be read: {type(error).__name__}: {error}") from error
    return found


def read_trajectories(folder: Path) -> tuple[list[Trajectory], float | None, str]:
    """The trajectories in a run folder, the score from which a task counts as solved, and the split of the tasks.

    Rewards are those that the agents' memory holds, or else the environment's. Runs and ids begin with the folder's name, since the
    next run of the same method uses the same names for its own.

    Raises:
        UserError: it is no run folder, no run in it has begun, or the environment's tasks have changed.
    """
    from ....memory.storage.journal import Journal
    from ....tools.environments.catalogue import open_environment

    runs = read_runs(folder)
    if not runs:
        raise UserError(f"{folder} has no run that has begun")
    remembered = _memory_trajectories(folder)
    settings = runs[0].settings
    environment = open_environment(settings["env"], horizon=settings["horizon"])
    made = []
    try:
        for run in runs:
            task, journal = environment.task(run.seed, settings["split"]), Journal()
            ends = {row["id"]: row.get("last_observation", "") for row in run.steps}
            for row in run.steps:
                step = Transition(row["state"], row["action"], row["reward"], row.get("observation", ""))
                journal.append(row["parent"], step)
            for row in run.episodes:
                if row["task"] != task.id:
                    raise UserError(
                        f"{run.folder} played {row['task']}, and task {run.seed} of {settings['env']} is {task.id} now"
                    )
                steps = tuple(step for step in journal.history(row["head"]) if not step.is_lost)
                about = {"domain": environment.name, "last_observation": ends.get(row["head"], "")}
                made.append(
                    remembered.get(row["id"])
                    or Trajectory(row["id"], task, steps, row["run"], row["episode"], row["score"], **about)
                )
        own, name = {trajectory.id for trajectory in made}, folder.resolve().name
        renamed = [
            replace(
                trajectory,
                id=f"{name}:{trajectory.id}",
                run=f"{name}:{trajectory.run}",
                used=tuple(f"{name}:{id}" if id in own else id for id in trajectory.used),
            )
            for trajectory in made
        ]
        return renamed, getattr(environment, "solved", None), settings["split"]
    finally:
        environment.close()


def _memory_trajectories(folder: Path) -> dict[str, Trajectory]:
    """The trajectories in the memories of a run folder, by id."""
    places = sorted(path.parent for path in folder.rglob("chroma.sqlite3"))
    if not places:
        return {}
    from ....memory.storage.chroma_store import ChromaStore
    from ....memory.storage.record_store import RecordStore

    found: dict[str, Trajectory] = {}
    for place in places:
        with ChromaStore.open(str(place)) as store:
            for namespace in store.list_namespaces(prefix=("trajectories",), limit=100_000):
                found |= {t.id: t for t in RecordStore(store, namespace, Trajectory).all()}
    return found
