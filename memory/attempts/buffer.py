"""ICRL's buffer B: the attempts of a run at its task, or of all runs at the tasks of a world, in the order in which they were made.

The buffer filters nothing: which attempts a prompt shows is decided when the prompt is composed (nodes/retrieve/attempts.py).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ..display import ShownAsTable, Table, make_table
from ..records import Trajectory
from ..storage.branches import ABSENT, History, branching
from ..storage.trajectory_store import TrajectoryStore, dated_records

__all__ = ["Buffer"]


@branching("add", but=("is_durable",))
class Buffer(ShownAsTable):
    """The attempts of each run at each task, in memory, and in a store if one is given.

    Args:
        store: durable storage; its attempts are read when the buffer is made.
        shared_by: the world (`Trajectory.domain`) whose tasks and runs share their attempts; empty: each task of a run has its own.
        only_other_tasks: with `shared_by`, the attempts at a task itself are not among those that it is shown.
    """

    def __init__(self, store: TrajectoryStore | None = None, *, shared_by: str = "", only_other_tasks: bool = False) -> None:
        self._store, self._shared_by, self._only_other_tasks = store, shared_by, only_other_tasks
        self._attempts: dict[tuple[str, str], dict[int, Trajectory]] = {}
        self._by_id: dict[tuple[str, str, str], Trajectory] = {}  # (run, task, id) -> the attempt that was added last
        dated = dated_records(store) if store is not None else []
        for _, trajectory in dated:
            self._keep(trajectory)
        self._history = History[Trajectory]((moment, _place(trajectory)) for moment, trajectory in dated)

    def as_of(self, moment: str) -> Buffer:
        """A copy of the buffer as it was at a moment (memory/storage/branches.py), without a store."""
        made = Buffer(shared_by=self._shared_by, only_other_tasks=self._only_other_tasks)
        for trajectory in self._history.undo(self._all(), moment).values():
            made._keep(trajectory)
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """Run, task and episode -> attempt, of those added since a moment."""
        known = self._all()
        return {place: known.get(place, ABSENT) for place in self._history.keys_since(moment)}

    def _all(self) -> dict[Hashable, Trajectory]:
        return {_place(one): one for attempts in list(self._attempts.values()) for one in list(attempts.values())}

    @property
    def is_durable(self) -> bool:
        """True if attempts outlive the process, in a store."""
        return self._store is not None

    def _keep(self, trajectory: Trajectory) -> None:
        self._attempts.setdefault((trajectory.run, trajectory.task.id), {})[trajectory.episode] = trajectory
        self._by_id[trajectory.run, trajectory.task.id, trajectory.id] = trajectory

    def add(self, trajectory: Trajectory) -> None:
        """Add an attempt. It replaces an earlier one of the same run, task and episode."""
        if self._store is not None:
            self._store.put([trajectory])
        known = self._attempts.get((trajectory.run, trajectory.task.id), {})
        self._history.note(_place(trajectory), known.get(trajectory.episode, ABSENT))
        self._keep(trajectory)

    def attempts(self, run: str, task: str, before: int) -> list[Trajectory]:
        """The attempts of a run at a task in episodes earlier than `before`, oldest first.

        A replayed or forked run passes its present episode, so it never sees its own later attempts. A buffer that tasks share has the
        attempts of other runs, too, whichever their task.
        """
        if self._shared_by:
            hidden = task if self._only_other_tasks else None
            return [one for one in self._earlier(run, before) if one.task.id != hidden]
        known = self._attempts.get((run, task), {})
        return [known[episode] for episode in sorted(known) if episode < before]

    def _earlier(self, run: str, before: int) -> list[Trajectory]:
        every = [one for attempts in list(self._attempts.values()) for one in list(attempts.values())]
        return [one for one in every if one.domain == self._shared_by and (one.run != run or one.episode < before)]

    def count(self, run: str, before: int) -> int:
        """The number of attempts made before this one: those of the run, or where tasks share their attempts all of the world's."""
        return len(self._earlier(run, before)) if self._shared_by else before

    def attempt(self, run: str, task: str, before: int, id: str) -> Trajectory | None:
        """The attempt with this id among `attempts(run, task, before)`, without a look at the others; None if it is not there."""
        if self._shared_by:
            return next((one for one in self.attempts(run, task, before) if one.id == id), None)
        found = self._by_id.get((run, task, id))
        is_there = found is not None and found.episode < before and self._attempts[run, task].get(found.episode) is found
        return found if is_there else None

    def table(self) -> Table:
        """A table of the attempts, the newest first."""
        found = list(self._all().values())[::-1]
        head = ("attempt", "task", "steps", "score", "actions")
        rows = (
            (
                one.id,
                one.task.instruction or one.task.id,
                len(one.transitions),
                one.score,
                " > ".join(step.action for step in one.transitions),
            )
            for one in found
        )
        return make_table(repr(self), head, rows, len(found))

    def __len__(self) -> int:
        return sum(map(len, self._attempts.values()))

    def __repr__(self) -> str:
        return f"Buffer({len(self)} attempts)"


def _place(trajectory: Trajectory) -> tuple[str, str, int]:
    return trajectory.run, trajectory.task.id, trajectory.episode
