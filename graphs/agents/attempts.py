"""The memory of ICRL and Reflexion in an agent: rated conversations by task, of which each is an attempt at it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ...memory.attempts.buffer import Buffer
from ...memory.records import Trajectory

__all__ = ["ConversationAttempts"]

MAX_ATTEMPTS = 200
"""Conversations of a task that a prompt is chosen from: the newest."""


class ConversationAttempts:
    """Rated conversations by task, numbered in the order in which they came. One that is rated again keeps its number."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, Trajectory]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def add(self, trajectory: Trajectory) -> None:
        """Take in a conversation, in place of one with its id."""
        known = self._tasks.setdefault(trajectory.task.id, {})
        before = known.get(trajectory.id)
        number = before.episode if before else 1 + max((one.episode for one in self._newest(known, 1)), default=-1)
        known[trajectory.id] = replace(trajectory, run="", episode=number)

    def remove(self, trajectory: Trajectory) -> None:
        """Take a conversation out; one that is not there is no error."""
        self._tasks.get(trajectory.task.id, {}).pop(trajectory.id, None)

    def buffer(self, task: str, without_thread: str, hidden: Collection[str] = ()) -> tuple[Buffer, int]:
        """The newest attempts at a task, and the number of the next one.

        Args:
            task: the task's id.
            without_thread: id of a thread whose conversation is left out: its messages stand in the prompt as they are.
            hidden: ids of attempts that are left out.
        """
        newest = self._newest(self._tasks.get(task, {}), MAX_ATTEMPTS)
        found = Buffer()
        for one in newest:
            if one.id.rpartition("/")[0] != without_thread and one.id not in hidden:
                found.add(one)
        return found, 1 + max((one.episode for one in newest), default=-1)

    @staticmethod
    def _newest(known: dict[str, Trajectory], count: int) -> Sequence[Trajectory]:
        found = []
        for _, one in zip(range(count), reversed(known.values()), strict=False):
            found.append(one)
        return found[::-1]
