"""Lessons in the prompts of agents that have a system message: at the same place in learning and in use."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage, SystemMessage

from .prompt import Prompt

__all__ = ["lectured_system"]


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
