"""ICRL's buffer B: the attempts of a run at its task, in the order in which they were made.

The buffer filters nothing: which attempts a prompt shows is decided when the prompt is composed (nodes/retrieve/attempts.py).
"""

from __future__ import annotations

from .experiences import TrajectoryStore
from .records import Trajectory
from .what_if import skip_in_what_if

__all__ = ["Buffer"]


class Buffer:
    """The attempts of each run at each task, in memory, and on a shelf if one is given.

    Args:
        shelf: durable storage; its attempts are read when the buffer is made.
    """

    def __init__(self, shelf: TrajectoryStore | None = None) -> None:
        self._shelf = shelf
        self._attempts: dict[tuple[str, str], dict[int, Trajectory]] = {}
        for trajectory in shelf.all() if shelf is not None else ():
            self._keep(trajectory)

    @property
    def is_durable(self) -> bool:
        """True if attempts outlive the process, on a shelf."""
        return self._shelf is not None

    def _keep(self, trajectory: Trajectory) -> None:
        self._attempts.setdefault((trajectory.run, trajectory.task.id), {})[trajectory.episode] = trajectory

    @skip_in_what_if
    def add(self, trajectory: Trajectory) -> None:
        """Add an attempt. It replaces an earlier one of the same run, task and episode."""
        if self._shelf is not None:
            self._shelf.put([trajectory])
        self._keep(trajectory)

    def attempts(self, run: str, task: str, before: int) -> list[Trajectory]:
        """The attempts of a run at a task in episodes earlier than `before`, oldest first.

        A replayed or forked run passes its present episode, so it never sees its own later attempts.
        """
        known = self._attempts.get((run, task), {})
        return [known[episode] for episode in sorted(known) if episode < before]

    def __len__(self) -> int:
        return sum(map(len, self._attempts.values()))

    def __repr__(self) -> str:
        return f"Buffer({len(self)} attempts)"
