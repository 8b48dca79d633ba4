"""The conversations of a scope that a critic studies: those that wait, with their turn, and what was written about the others."""

import threading
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from ...memory.conversations.store import ConversationStore, Reflection, trajectory_digest
from ...memory.records import Trajectory
from ...nodes.ask import is_refused_request
from ...nodes.retrieve.user_share import within_share
from .study_worker import BackOff

__all__ = ["StudyIndex"]

MANY = 4
"""Changes from which on all reflections are read at once."""
MOST_TRIES = 3
"""Failures of the critic at a conversation after which it counts as unreadable, unless its service is away."""
OWN_FAULTS = TypeError, ValueError, LookupError, AttributeError, NotImplementedError, AssertionError
"""Errors of a critic that fails in the same way when it is asked again, whatever its service does."""
Content = TypeVar("Content")


class StudyIndex(Generic[Content]):
    """The rated conversations of a scope with what a critic wrote about them, and those that wait for it. Safe to use from threads.

    Args:
        method: name of the method: the beginning of the reflections' ids.
        content: what consultations are answered from.
    """

    def __init__(self, method: str, content: Content) -> None:
        self.method, self.content = method, content
        self.reflections: dict[str, Reflection] = {}
        """By id of the trajectory: those that hold, also while it waits to be studied again."""
        self.waiting: dict[str, Trajectory] = {}
        self.agent_card = ""
        """The agent's instructions and tools at that call, as critics read them; before one in this process, those that the store has."""
        self.failure = ""
        """The last error of a critic that could not be asked."""
        self.pause = BackOff()
        """Of a critic that has failed."""
        self.studying = threading.Lock()
        """Held by the thread that studies this scope."""
        self._news: dict[str, Trajectory] = {}
        self._lock = threading.RLock()
        self._answers = 0
        self._failed: dict[str, tuple[int, int]] = {}

    def add(self, trajectory: Trajectory) -> None:
        """Take in a rated conversation; whether it was studied is looked up when it is next needed (`take_news`)."""
        with self._lock:
            self._news[trajectory.id] = trajectory

    def leave_out(self, trajectory: Trajectory) -> None:
        """Have a conversation wait no more: it was forgotten or withdrawn."""
        with self._lock:
            self._news.pop(trajectory.id, None)
            self.waiting.pop(trajectory.id, None)

    def reflection_id(self, trajectory: Trajectory) -> str:
        """The id of this method's reflection on a conversation."""
        return f"{self.method}/{trajectory.id}"

    def take_news(self, store: ConversationStore) -> list[tuple[Trajectory, Reflection | None]]:
        """The changes since the last look: conversations with the reflection that holds, or with None."""
        with self._lock:
            if not self._news:
                return []
            keys = [self.reflection_id(one) for one in self._news.values()]
            found = store.reflections.all() if len(keys) > MANY else store.reflections.get_many(keys)
            all_written = {one.id: one for one in found}
            changed = []
            for id, trajectory in self._news.items():
                written = all_written.get(self.reflection_id(trajectory))
                if written is not None and written.about == trajectory_digest(trajectory):
                    self.waiting.pop(id, None)
                else:
                    self.waiting[id] = trajectory
                if written is None or _is_turned(written.reward, trajectory.value):
                    self.reflections.pop(id, None)
                    written = None
                else:
                    self.reflections[id] = written
                changed.append((trajectory, written))
            self._news.clear()
            return changed

    @property
    def studied_reflections(self) -> list[Reflection]:
        """The reflections on conversations that do not wait."""
        return [one for id, one in list(self.reflections.items()) if id not in self.waiting]

    def next_group(self, size: int | None, without: Collection[str], share: float = 1.0) -> list[Trajectory]:
        """Conversations that wait: one, or `size` of one task with a reward; none if there are not so many.

        Args:
            size: the number; None: one of any kind.
            without: ids of those that are not wanted.
            share: of a group that one user may hold.
        """
        with self._lock:
            tasks: dict[str, list[Trajectory]] = {}
            for id, one in self.waiting.items():
                if id not in without and (size is None or one.value is not None):
                    tasks.setdefault(one.task.id if size else id, []).append(one)
                    if size is None:
                        break
            groups = [
                [found[n] for n in within_share([one.user for one in found], "", share, size or 1)] for found in tasks.values()
            ]
            return next((found for found in groups if len(found) >= (size or 1)), [])

    def note_answer(self) -> None:
        """Note that the critic has answered."""
        self.failure, self._answers = "", self._answers + 1
        self.pause.note_answer()

    def note_failure(self, group: Sequence[Trajectory], failure: Exception) -> bool:
        """Put conversations at the end of the queue, and leave the critic alone if it fails again; True if they are given up."""
        self.failure = f"{type(failure).__name__}: {failure}"
        with self._lock:
            for one in group:
                self.waiting[one.id] = self.waiting.pop(one.id, one)
        tries, answers = self._failed.get(group[0].id, (0, self._answers))
        self._failed[group[0].id] = tries + 1, answers
        self.pause.note_failure()
        lies_in_it = self._answers > answers or isinstance(failure, OWN_FAULTS) or is_refused_request(failure)
        return tries + 1 >= MOST_TRIES and lies_in_it


def _is_turned(before: float | None, now: float | None) -> bool:
    """True if a success has become a failure, or a failure a success."""
    return before is not None and now is not None and (before > 0) != (now > 0)
