"""The memory of ICRL and Reflexion in an agent: rated conversations by task, of which each is an attempt at it."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from ...memory.attempts.buffer import Buffer
from ...memory.attempts.trajectories import is_rewarded
from ...memory.records import Trajectory
from ...memory.search.similarity import JaccardIndex, words
from .rated_acts import MOST_ALIKE, RatedActs

__all__ = ["ConversationAttempts"]

MAX_ATTEMPTS = 200
"""Conversations of a task that a prompt is chosen from: the newest."""


class ConversationAttempts:
    """Rated conversations by task, numbered in the order in which they came. One that is rated again keeps its number.

    Args:
        by_request: True: they are also found by the words with which they begin.
    """

    def __init__(self, *, by_request: bool = False) -> None:
        self.by_request, self.acts = by_request, RatedActs()
        self._tasks: dict[str, dict[str, Trajectory]] = {}
        self._requests: dict[str, tuple[JaccardIndex, list[str]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def add(self, trajectory: Trajectory) -> None:
        """Take in a conversation, in place of one with its id."""
        known = self._tasks.setdefault(trajectory.task.id, {})
        before = known.get(trajectory.id)
        number = before.episode if before else 1 + max((one.episode for one in self._newest(known, 1)), default=-1)
        known[trajectory.id] = replace(trajectory, run="", episode=number)
        self.acts.add(trajectory, is_rewarded(trajectory))
        if self.by_request and before is None:
            index, ids = self._requests.setdefault(trajectory.task.id, (JaccardIndex(), []))
            index.add(words(trajectory.task.instruction))
            ids.append(trajectory.id)

    def count(self, task: str) -> int:
        """The number of attempts at a task."""
        return len(self._tasks.get(task, {}))

    def ids(self, task: str) -> list[str]:
        """The ids of the attempts at a task, the oldest first."""
        return list(self._tasks.get(task, {}))

    def remove(self, trajectory: Trajectory) -> None:
        """Take a conversation out; one that is not there is no error."""
        self._tasks.get(trajectory.task.id, {}).pop(trajectory.id, None)
        self.acts.add(trajectory, None)

    def buffer(
        self, task: str, without_thread: str, hidden: Collection[str] = (), only: Collection[str] | None = None
    ) -> tuple[Buffer, int]:
        """Attempts at a task, and the number of the next one.

        Args:
            task: the task's id.
            without_thread: id of a thread whose conversation is left out: its messages stand in the prompt as they are.
            hidden: ids of attempts that are left out.
            only: ids of those that are wanted; None: the newest.
        """
        known = self._tasks.get(task, {})
        newest, found = self._newest(known, MAX_ATTEMPTS), Buffer()
        for one in newest if only is None else sorted((known[id] for id in only), key=lambda one: one.episode):
            if one.id.rpartition("/")[0] != without_thread and one.id not in hidden:
                found.add(one)
        return found, 1 + max((one.episode for one in newest if one.id not in hidden), default=-1)

    def best_alike(self, task: str, request: str, without_thread: str) -> list[str]:
        """Ids of the attempts at a task that begin most like this, the best first; behind them the newest without a word in common.

        Those whose act has been rated otherwise of late are left out.
        As good as alike to a tenth counts as equal: of equals the one with the greater reward comes first, then the newer.
        """
        known, (index, ids) = self._tasks.get(task, {}), self._requests.get(task, (JaccardIndex(), []))
        alike = {ids[row]: similarity for row, similarity in index.search(words(request), MOST_ALIKE)}
        alike = {one.id: 0.0 for one in self._newest(known, MOST_ALIKE)} | alike

        def rank(id: str) -> tuple[float, float, int]:
            value = known[id].value
            return round(alike[id], 1), -inf if value is None else value, known[id].episode

        kept = [id for id in alike if id in known and not self.acts.is_outdated(id)]
        found = [id for id in kept if id.rpartition("/")[0] != without_thread]
        return sorted(found, key=rank, reverse=True)

    @staticmethod
    def _newest(known: dict[str, Trajectory], count: int) -> Sequence[Trajectory]:
        return list(islice(reversed(known.values()), count))[::-1]
