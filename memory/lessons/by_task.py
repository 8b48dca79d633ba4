"""Lessons learned from earlier attempts, found by the text of the task that they were learned on.

Lessons are added and never merged, changed or weighted (arXiv:2509.25140, ReasoningBank). The lessons of one source (an episode, a
trajectory of a bank) are kept as a whole: adding a source again replaces its lessons, so an episode that is played twice teaches
once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..display import ShownAsTable, Table, make_table
from ..errors import UserError
from ..records import Lesson
from ..search.similarity import Similarity, TokenSimilarity
from ..storage.branches import ABSENT, History, branching

__all__ = ["BadLesson", "LessonStore", "Lessons"]


class BadLesson(UserError, ValueError):
    """A lesson that cannot be kept or found, or a search with an impossible argument."""


class LessonStore(Protocol):
    """A durable store of lessons, such as `memory.storage.record_store` over any LangGraph store."""

    def put(self, records: Iterable[Lesson], /) -> None: ...

    def all(self) -> Iterable[Lesson]: ...

    def delete(self, ids: Iterable[str], /) -> None: ...


def source_of_lesson(lesson: str) -> str:
    """The source that a lesson's id names: `<source>/<n>`."""
    return lesson.rpartition("/")[0]


class _TaskLessons:
    """The lessons of one domain by the task that they were learned on, with an exact index of the tasks' texts."""

    def __init__(self, similarity: Similarity) -> None:
        self.index = similarity.rows()
        self.rows: dict[tuple[str, str], int] = {}  # task and its text -> its row in the index
        self.lessons: list[dict[str, int]] = []  # row -> ids of its lessons with the number of each, in the order of learning
        self.newest = np.full(64, -1, np.int64)  # row -> number of the lesson learned last, -1 without one; longer than needed

    def add(self, lesson: Lesson, number: int, reading: Any) -> None:
        key = lesson.task, lesson.instruction
        if (row := self.rows.get(key)) is None:
            row = self.rows[key] = len(self.lessons)
            self.index.add(reading)
            self.lessons.append({})
            if row == len(self.newest):
                self.newest = np.concatenate([self.newest, np.full(row, -1, np.int64)])
        known = self.lessons[row]
        known[lesson.id] = number
        if number < self.newest[row]:  # one that was changed keeps its place
            self.lessons[row] = dict(sorted(known.items(), key=lambda item: item[1]))
        self.newest[row] = max(self.newest[row], number)

    def remove(self, lesson: Lesson) -> None:
        row = self.rows[lesson.task, lesson.instruction]
        del self.lessons[row][lesson.id]
        self.newest[row] = next(reversed(self.lessons[row].values()), -1)

    def visible(self, hidden: Iterable[Lesson]) -> NDArray[np.int64]:
        """As `newest`, without these lessons."""
        newest = self.newest[: len(self.lessons)]
        by_row: dict[int, set[str]] = {}
        for lesson in hidden:
            by_row.setdefault(self.rows[lesson.task, lesson.instruction], set()).add(lesson.id)
        if by_row:
            newest = newest.copy()
        for row, ids in by_row.items():
            newest[row] = next((number for id, number in reversed(self.lessons[row].items()) if id not in ids), -1)
        return newest

    def nearest(self, asked: Any, k: int, min_similarity: float, hidden: Iterable[Lesson]) -> list[int]:
        """The rows of the k tasks most like a text that was read, best first; among equals the one that taught something last."""
        newest, fetch = self.visible(hidden), 32 * k
        while True:
            rows, similarities = self.index.nearest(asked, fetch, min_similarity, newest >= 0)
            if len(rows) < fetch or similarities[-1] < similarities[k - 1]:  # all equals of the last one are there
                found: list[int] = rows[np.lexsort((-newest[rows], -similarities))][:k].tolist()
                return found
            fetch *= 8


@branching("add", but=("reload", "is_durable"))
class Lessons(ShownAsTable):
    """Lessons in this process, and in a durable store if one is given.

    A lesson without text records that its source was read and taught nothing: the source is not read again, and the lesson is
    never found. Safe to use from several threads; a second process sees new lessons after `reload`.

    Args:
        records: the durable store; None: they last as long as the process.
        similarity: how the texts of tasks are compared, such as by embeddings (`memory.search.vectors.CosineSimilarity`); None: by
            their words and the runs of these.
    """

    def __init__(self, records: LessonStore | None = None, similarity: Similarity | None = None) -> None:
        self._records, self._similarity = records, similarity or TokenSimilarity()
        self._lock = threading.Lock()
        self._lessons: dict[str, Lesson] = {}  # in the order of learning
        self._sources: dict[str, list[str]] = {}  # source -> ids
        self._numbers: dict[str, int] = {}  # id -> its place in the order of learning
        self._domains: dict[str, _TaskLessons] = {}
        self._runs: dict[str, dict[str, Lesson]] = {}  # run -> its lessons that can be found
        self._count = 0
        self._history = History[Lesson]()
        self.reload()

    def __repr__(self) -> str:
        return f"Lessons({len(self)} from {len(self._sources)} sources)"

    def table(self) -> Table:
        """A table of the lessons, the newest first."""
        found = list(self)
        head = ("lesson", "title", "text", "learned on", "from")
        told = {True: "a success", False: "a failure", None: ""}
        rows = ((one.id, one.title, one.text, one.instruction or one.task, told[one.success]) for one in reversed(found))
        return make_table(repr(self), head, rows, len(found))

    def recall_table(self, instruction: str, k: int = 10, **filters: Any) -> Table:
        """A table of what a search would find for a task, and why: similarity of the tasks, and age in lessons.

        Args:
            instruction, k, filters: as for `search`.
        """
        ages = {one.id: number for number, one in enumerate(reversed(list(self)))}
        found, index = self.search(instruction, k, **filters), self._similarity.rows()
        for reading in self._similarity.read([one.instruction for one in found]):
            index.add(reading)
        places, alike = index.nearest(self._similarity.read_query(instruction), len(found), self._similarity.minimum, None)
        similarity = dict(zip(places.tolist(), alike.tolist(), strict=True))
        rows = [(similarity.get(n, 0.0), one.text, ages.get(one.id), one.instruction) for n, one in enumerate(found)]
        head = ("similarity", "text", "age in lessons", "learned on")
        return make_table(f"{len(rows)} recalled of {self!r}", head, rows, len(rows))

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
        return self._records is not None

    def reload(self) -> None:
        """Read the store again."""
        if self._records is None:
            return
        dated = getattr(self._records, "with_moments", None)
        stored = list(dated()) if dated is not None else [("", lesson) for lesson in self._records.all()]
        readings = self._read([lesson for _, lesson in stored])
        with self._lock:
            self._lessons.clear()
            self._sources.clear()
            for known in (self._numbers, self._domains, self._runs):
                known.clear()
            self._history = History((moment, lesson.id) for moment, lesson in stored)
            for _, lesson in stored:
                self._keep(lesson, readings)

    def as_of(self, moment: str) -> Lessons:
        """A copy of the lessons as they were at a moment (memory/storage/branches.py), without a store."""
        made = Lessons(similarity=self._similarity)
        with self._lock:
            known = [*self._history.undo(self._lessons, moment).values()]
        readings = self._read(known)
        for lesson in known:
            made._keep(lesson, readings)
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """id -> lesson, of those added since a moment; `ABSENT` for those replaced."""
        with self._lock:
            return {id: self._lessons.get(str(id), ABSENT) for id in self._history.keys_since(moment)}

    def _read(self, lessons: Iterable[Lesson]) -> dict[str, Any]:
        """Text of a task -> its form that is compared, for what can be found. An encoder is slow: not to be called under the lock."""
        texts = [*dict.fromkeys(lesson.instruction for lesson in lessons if lesson.text)]
        return dict(zip(texts, self._similarity.read(texts), strict=True))

    def _keep(self, lesson: Lesson, readings: Mapping[str, Any]) -> None:
        if lesson.id not in self._lessons:
            self._sources.setdefault(source_of_lesson(lesson.id), []).append(lesson.id)
            self._numbers[lesson.id] = self._count
            self._count += 1
        else:
            self._hide(self._lessons[lesson.id])
        self._lessons[lesson.id] = lesson
        if lesson.text:
            if lesson.domain not in self._domains:
                self._domains[lesson.domain] = _TaskLessons(self._similarity)
            self._domains[lesson.domain].add(lesson, self._numbers[lesson.id], readings[lesson.instruction])
            self._runs.setdefault(lesson.run, {})[lesson.id] = lesson

    def _hide(self, lesson: Lesson) -> None:
        """Take a lesson out of what is searched."""
        if lesson.text:
            self._domains[lesson.domain].remove(lesson)
            del self._runs[lesson.run][lesson.id]

    def add(self, lessons: Sequence[Lesson]) -> None:
        """Keep these lessons, in place of all earlier lessons of their sources.

        Raises:
            BadLesson: an id does not name its source; nothing is kept then.
        """
        for lesson in lessons:
            if not source_of_lesson(lesson.id):
                raise BadLesson(f"the id of a lesson is <source>/<number>, got {lesson.id!r}")
        ids = {lesson.id for lesson in lessons}
        readings = self._read(lessons)
        with self._lock:
            old = [id for name in {source_of_lesson(id) for id in ids} for id in self._sources.get(name, ()) if id not in ids]
            if self._records is not None:
                self._records.put(lessons)
                if old:
                    self._records.delete(old)
            self._history.note_deletion([(id, self._lessons[id]) for id in old], self._lessons)
            for id in old:
                self._hide(self._lessons.pop(id))
                del self._numbers[id]
                self._sources[source_of_lesson(id)].remove(id)
            for lesson in lessons:
                self._history.note(lesson.id, self._lessons.get(lesson.id, ABSENT))
                self._keep(lesson, readings)

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
        limit: int | None = None,
    ) -> list[Lesson]:
        """All lessons learned on the k tasks whose text is most like this one, or the k lessons learned on such tasks.

        Every task's text is compared. Most similar task first, among equals the one that taught something last; of a task the newest
        lesson first. By words, texts without one in common are never similar.

        Args:
            instruction: the text of the task at hand.
            k: how many tasks, or lessons; at least 1.
            by: what k counts.
            min_similarity: the least similarity, in [0, 1].
            domain: only lessons of this domain.
            before: (run, episode): what that run learned in this episode or later is treated as if it had never been kept.
            limit: the greatest number of lessons, the most fitting ones; None: all.
        """
        if k < 1:
            raise BadLesson(f"asked for the lessons of {k} {by}: k is at least 1")
        asked = self._similarity.read_query(instruction)
        with self._lock:
            if (known := self._domains.get(domain)) is None:
                return []
            run, episode = before or ("", 0)
            later = self._runs.get(run, {}).values() if before is not None else ()
            hidden = {lesson.id: lesson for lesson in later if lesson.domain == domain and lesson.episode >= episode}
            rows = known.nearest(asked, k, min_similarity, hidden.values())
            ids = (id for row in rows for id in reversed(known.lessons[row]) if id not in hidden)
            most = limit if by == "tasks" else min(k, k if limit is None else limit)
            return [self._lessons[id] for id in islice(ids, most)]

    def nearest_similarity(self, instruction: str, domain: str = "") -> float:
        """The similarity of the task in this domain whose text is most like this one; 0 without any."""
        asked = self._similarity.read_query(instruction)
        with self._lock:
            if (known := self._domains.get(domain)) is None:
                return 0.0
            among = known.visible(()) >= 0
            return float(next(iter(known.index.nearest(asked, 1, 0.0, among)[1]), 0.0))
