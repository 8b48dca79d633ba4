"""Lessons learned from earlier attempts, found by the text of the task that they were learned on.

Lessons are added and never merged, changed or weighted (arXiv:2509.25140, ReasoningBank). The lessons of one source (an episode, a
trajectory of a bank) are kept as a whole: adding a source again replaces its lessons, so an episode that is played twice teaches
once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

from .branches import ABSENT, History, branching
from .errors import UserError
from .records import Lesson
from .search.similarity import jaccard, shingles

__all__ = ["BadLesson", "LessonStore", "Lessons", "source_of_lesson"]


class BadLesson(UserError, ValueError):
    """A lesson that cannot be kept or found, or a search with an impossible argument."""


class LessonStore(Protocol):
    """A durable store of lessons, such as `memory.storage.shelf` over any LangGraph store."""

    def put(self, records: Iterable[Lesson], /) -> None: ...

    def all(self) -> Iterable[Lesson]: ...

    def delete(self, ids: Iterable[str], /) -> None: ...


def source_of_lesson(lesson: str) -> str:
    """The source that a lesson's id names: `<source>/<n>`."""
    return lesson.rpartition("/")[0]


@branching("add", but=("reload", "is_durable"))
class Lessons:
    """Lessons in this process, and in a durable store if one is given.

    A lesson without text records that its source was read and taught nothing: the source is not read again, and the lesson is
    never found. Safe to use from several threads; a second process sees new lessons after `reload`.
    """

    def __init__(self, shelf: LessonStore | None = None) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()
        self._lessons: dict[str, Lesson] = {}  # in the order of learning
        self._sources: dict[str, list[str]] = {}  # source -> ids
        self._tokens: dict[str, frozenset[str]] = {}  # a task's text -> what is compared of it
        self._history = History[Lesson]()
        self.reload()

    def __repr__(self) -> str:
        return f"Lessons({len(self)} from {len(self._sources)} sources)"

    def __len__(self) -> int:
        """The number of lessons that can be found."""
        with self._lock:
            return sum(bool(lesson.text) for lesson in self._lessons.values())

    def __iter__(self) -> Iterator[Lesson]:
        """Every lesson that can be found, in the order of learning."""
        with self._lock:
            return iter([lesson for lesson in self._lessons.values() if lesson.text])

    @property
    def is_durable(self) -> bool:
        """True if lessons are kept in a durable store."""
        return self._shelf is not None

    def reload(self) -> None:
        """Read the store again."""
        if self._shelf is None:
            return
        dated = getattr(self._shelf, "with_moments", None)
        stored = list(dated()) if dated is not None else [("", lesson) for lesson in self._shelf.all()]
        with self._lock:
            self._lessons.clear()
            self._sources.clear()
            self._history = History((moment, lesson.id) for moment, lesson in stored)
            for _, lesson in stored:
                self._keep(lesson)

    def as_of(self, moment: str) -> Lessons:
        """A copy of the lessons as they were at a moment (memory/branches.py), without a store."""
        made = Lessons()
        with self._lock:
            for lesson in self._history.undo(self._lessons, moment).values():
                made._keep(lesson)
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """id -> lesson, of those added since a moment; `ABSENT` for those replaced."""
        with self._lock:
            return {id: self._lessons.get(str(id), ABSENT) for id in self._history.keys_since(moment)}

    def _keep(self, lesson: Lesson) -> None:
        if lesson.id not in self._lessons:
            self._sources.setdefault(source_of_lesson(lesson.id), []).append(lesson.id)
        self._lessons[lesson.id] = lesson
        if lesson.instruction not in self._tokens:
            self._tokens[lesson.instruction] = frozenset(shingles(lesson.instruction))

    def add(self, lessons: Sequence[Lesson]) -> None:
        """Keep these lessons, in place of all earlier lessons of their sources.

        Raises:
            BadLesson: an id does not name its source; nothing is kept then.
        """
        for lesson in lessons:
            if not source_of_lesson(lesson.id):
                raise BadLesson(f"the id of a lesson is <source>/<number>, got {lesson.id!r}")
        ids = {lesson.id for lesson in lessons}
        with self._lock:
            old = [id for name in {source_of_lesson(id) for id in ids} for id in self._sources.get(name, ()) if id not in ids]
            if self._shelf is not None:
                self._shelf.put(lessons)
                if old:
                    self._shelf.delete(old)
            for id in old:
                self._history.note(id, self._lessons[id], self._lessons)
                del self._lessons[id]
                self._sources[source_of_lesson(id)].remove(id)
            for lesson in lessons:
                self._history.note(lesson.id, self._lessons.get(lesson.id, ABSENT))
                self._keep(lesson)

    def has_source(self, source: str) -> bool:
        """True if this source was read, even if it taught nothing."""
        with self._lock:
            return bool(self._sources.get(source))

    def lesson(self, id: str) -> Lesson:
        """The lesson with this id.

        Raises:
            BadLesson: there is no such lesson.
        """
        with self._lock:
            found = self._lessons.get(id)
        if found is None:
            raise BadLesson(f"this library has no lesson {id!r}: it has {len(self)} others")
        return found

    def search(
        self,
        instruction: str,
        k: int,
        *,
        by: Literal["tasks", "items"] = "tasks",
        min_similarity: float = 0.0,
        domain: str = "",
        before: tuple[str, int] | None = None,
    ) -> list[Lesson]:
        """All lessons learned on the k tasks whose text is most like this one, or the k lessons learned on such tasks.

        The similarity is the Jaccard index of the texts' words and their runs (`shingles`), compared with every task's text.
        Most similar task first, among equals the one that taught something last; of a task the newest lesson first. Texts
        without a word in common are never similar.

        Args:
            instruction: the text of the task at hand.
            k: how many tasks, or lessons; at least 1.
            by: what k counts.
            min_similarity: the least similarity, in [0, 1].
            domain: only lessons of this domain.
            before: (run, episode): what that run learned in this episode or later is treated as if it had never been kept.
        """
        if k < 1:
            raise BadLesson(f"asked for the lessons of {k} {by}: k is at least 1")
        asked = frozenset(shingles(instruction))
        with self._lock:
            tasks: dict[tuple[str, str], list[Lesson]] = {}  # the one that taught something last stands last
            for lesson in self._lessons.values():
                hidden = before is not None and lesson.run == before[0] and lesson.episode >= before[1]
                if lesson.text and lesson.domain == domain and not hidden:
                    task = lesson.task, lesson.instruction
                    taught = tasks.pop(task, [])
                    taught.append(lesson)
                    tasks[task] = taught
            alike = {task: jaccard(asked, self._tokens[task[1]]) for task in tasks}
        newest = [task for task in reversed(tasks) if alike[task] > 0 and alike[task] >= min_similarity]
        ranked = sorted(newest, key=lambda task: -alike[task])
        if by == "tasks":
            return [lesson for task in ranked[:k] for lesson in reversed(tasks[task])]
        return [lesson for task in ranked for lesson in reversed(tasks[task])][:k]

    def nearest_similarity(self, instruction: str, domain: str = "") -> float:
        """The similarity of the task in this domain whose text is most like this one; 0 without any."""
        asked = frozenset(shingles(instruction))
        with self._lock:
            texts = {lesson.instruction for lesson in self._lessons.values() if lesson.text and lesson.domain == domain}
            return max((jaccard(asked, self._tokens[text]) for text in texts), default=0.0)
