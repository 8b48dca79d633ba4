"""A learned library in the agents of LangChain: `create_agent(model, tools, middleware=[LessonsMiddleware("library.yaml")])`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from langchain_core.messages import HumanMessage, SystemMessage

from ...memory.library import Library, LibraryError, LibraryVersions, find_library, open_library
from ...nodes.prompt import Prompt
from ...nodes.retrieve.lessons import append_lessons

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest
except ImportError as error:
    raise ImportError("LessonsMiddleware is for agents of langchain, which is missing: pip install 'langchain>=1.0'") from error

__all__ = ["LessonsMiddleware"]


class LessonsMiddleware(AgentMiddleware[Any, Any, Any]):
    """Middleware that writes learned lessons at the end of an agent's system message. An empty library adds nothing.

    The rollouts of the tool agent (graphs/baselines/tool_agent.py) have their lessons at the same place, in the same words. The
    default rollouts of training-free-grpo, ReAct, have them in the user's message, before the steps of the attempt.

    Args:
        library: the lessons: a `Library`, a file (YAML, versions in `.jsonl`, or a run folder), or `LibraryVersions`, of which the
            head is shown. It is looked up at every call, so that an agent in service picks up what a person edits and what a
            learner accepts. If a file can no longer be read, a warning says so, and the lessons read last are shown.
        lessons_per_prompt: lessons shown at most, those most like the last message of the user; 0: all.
        prompts: a directory whose prompt files take the place of those of the same name (`training_free_grpo/lessons`).
        show_ids: whether lessons are shown with their ids, as they are in learning.

    Raises:
        LibraryError: there is no library there.
    """

    def __init__(
        self,
        library: Library | LibraryVersions | Path | str,
        lessons_per_prompt: int = 0,
        prompts: Path | None = None,
        *,
        show_ids: bool = True,
    ) -> None:
        super().__init__()
        if lessons_per_prompt < 0:
            raise LibraryError(f"lessons_per_prompt is the number of lessons shown, 0 for all; got {lessons_per_prompt}")
        self.lessons_per_prompt = lessons_per_prompt
        self.show_ids = show_ids
        self._prompt = Prompt.load("training_free_grpo/lessons", prompts)
        self._library = library
        self._stamp: tuple[int, ...] | None = None
        self._library_read = self._read(library) if isinstance(library, str | Path) else library

    @property
    def library(self) -> Library:
        """The lessons that are shown now."""
        if isinstance(self._library, str | Path):
            try:
                self._library_read = self._read(self._library)
            except LibraryError as error:
                warnings.warn(f"{error}; the lessons read before are shown", stacklevel=2)
        found = self._library_read
        if isinstance(found, Library):
            return found
        return found.at(found.head) if found.head else Library()

    def _read(self, place: Path | str) -> Library | LibraryVersions:
        """The library in a file or folder; read again only if the file has changed."""
        path = find_library(place)
        try:
            stat = os.stat(path)
        except OSError as error:
            raise LibraryError(f"cannot read {path}: {error.strerror}") from error
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp == self._stamp:
            return self._library_read
        self._stamp = stamp  # also of a broken file, so that it is warned of once
        return open_library(path)

    def _with_lessons(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        asked = next((m.text for m in reversed(request.messages) if isinstance(m, HumanMessage)), "")
        lessons = self.library.text(str(asked), self.lessons_per_prompt, self.show_ids)
        if not lessons:
            return request
        system = [request.system_message] if request.system_message else []
        return request.override(system_message=cast(SystemMessage, append_lessons(system, lessons, self._prompt)[0]))

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Ask the model with the lessons in the system message."""
        return handler(self._with_lessons(request))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        """Ask the model with the lessons in the system message, in an agent that is awaited."""
        return await handler(self._with_lessons(request))
