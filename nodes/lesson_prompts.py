"""Lessons in prompts: the choice of lessons for a task, and their place in a prompt; the same in learning and in use."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from ..memory.lessons.library import Library
from ..memory.lessons.versions import LibraryVersions
from ..memory.records import Lesson, Task
from .prompt import Prompt

__all__ = ["SameLessonsShown", "append_lessons", "append_section", "render_lessons", "select_lessons"]


def select_lessons(library: Library, task: Task, first_observation: str, lessons_per_prompt: int = 0) -> tuple[Lesson, ...]:
    """The lessons that a rollout of this task sees, in all of its prompts.

    Args:
        library: the lessons.
        task: the task.
        first_observation: the text of the task's first observation.
        lessons_per_prompt: number of lessons at most, those that fit the task best; 0: all.
    """
    return library.select(f"{task.instruction}\n{first_observation}", lessons_per_prompt)


def render_lessons(lessons: Sequence[Lesson], ids: bool = True) -> str:
    """Lessons as prompts show them, a line each (`memory.lessons.library.Library.text`)."""
    return Library(tuple(lessons)).text(with_ids=ids)


@dataclass(frozen=True)
class SameLessonsShown:
    """Test of whether two versions show the same lessons in all problems of a run. If so, a test of one holds for the other."""

    versions: LibraryVersions = field(repr=False)
    lessons_per_prompt: int = 0
    """Number of lessons in a prompt at most; 0: all."""
    tasks: Sequence[tuple[Task, str]] = field(default=(), repr=False)
    """The problems with their first observations. Not used if all lessons are shown."""

    def __call__(self, one: str, other: str) -> bool:
        a, b = self.versions.at(one), self.versions.at(other)
        if not self.lessons_per_prompt:
            return a.key == b.key
        return all(
            render_lessons(select_lessons(a, task, first, self.lessons_per_prompt))
            == render_lessons(select_lessons(b, task, first, self.lessons_per_prompt))
            for task, first in self.tasks
        )


def append_lessons(messages: Sequence[BaseMessage], library_text: str, prompt: Prompt) -> list[BaseMessage]:
    """The messages with the lessons at the end of the system message, or in a new one; unchanged without lessons.

    A prompt whose part is `user` puts them at the end of the last message instead, as the paper does (Fig. 6).

    Args:
        messages: the messages of a prompt.
        library_text: the lessons as text (`memory.lessons.library.Library.text`).
        prompt: the text around the lessons; needs $lessons (`training_free_grpo/lessons`).
    """
    if not library_text.strip():
        return list(messages)
    section = prompt.text(lessons=library_text.rstrip("\n"))
    if prompt.parts[0][0] == "user":
        return [*messages[:-1], HumanMessage(f"{messages[-1].text}\n\n{section}")]
    return append_section(messages, section)


def append_section(messages: Sequence[BaseMessage], section: str) -> list[BaseMessage]:
    """The messages with a section at the end of the system message, or in a new system message."""
    if not messages or not isinstance(messages[0], SystemMessage):
        return [SystemMessage(section), *messages]
    first, *others = messages
    before = first.content
    content = f"{before}\n\n{section}" if isinstance(before, str) else [*before, {"type": "text", "text": section}]
    return [first.model_copy(update={"content": content}), *others]
