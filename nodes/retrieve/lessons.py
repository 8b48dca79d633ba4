"""Lessons in prompts: which ones a task is shown, and where they stand; the same in learning and in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage, SystemMessage

from ...memory.library import Library, Versions
from ...memory.records import Lesson, Task
from ..prompt import Prompt

__all__ = ["Alike", "lectured_system", "shown", "told"]


def shown(library: Library, task: Task, first: str, top: int = 0) -> tuple[Lesson, ...]:
    """The lessons that a rollout of this task sees, in all of its prompts.

    Args:
        first: the text of the task's first observation.
        top: how many at most, those that fit the task best; 0: all.
    """
    return library.select(f"{task.instruction}\n{first}", top)


def told(lessons: Sequence[Lesson], ids: bool = True) -> str:
    """Lessons as prompts show them: see `memory.library.Library.text`."""
    return Library(tuple(lessons)).text(ids=ids)


@dataclass(frozen=True)
class Alike:
    """Whether two versions show the same lessons in all problems of a run: then one of them says what the other is worth."""

    versions: Versions = field(repr=False)
    top: int = 0
    """See `shown`."""
    tasks: Sequence[tuple[Task, str]] = field(default=(), repr=False)
    """The problems with their first observations; where all lessons are shown, they do not matter."""

    def __call__(self, one: str, other: str) -> bool:
        a, b = self.versions.at(one), self.versions.at(other)
        if not self.top:
            return a.key == b.key
        return all(told(shown(a, task, first, self.top)) == told(shown(b, task, first, self.top)) for task, first in self.tasks)


def lectured_system(messages: Sequence[BaseMessage], library_text: str, prompt: Prompt) -> list[BaseMessage]:
    """The messages with the lessons at the end of the system message, or in a new one; the same ones without lessons.

    Args:
        library_text: as `memory.library.Library.text` gives it.
        prompt: what stands around them; needs $lessons (`training_free_grpo/lessons`).
    """
    if not library_text.strip():
        return list(messages)
    told = prompt.text(lessons=library_text.rstrip("\n"))
    if not messages or not isinstance(messages[0], SystemMessage):
        return [SystemMessage(told), *messages]
    first, *others = messages
    said = first.content
    content = f"{said}\n\n{told}" if isinstance(said, str) else [*said, {"type": "text", "text": told}]
    return [first.model_copy(update={"content": content}), *others]
