"""A learned library in the agents of LangChain: `create_agent(model, tools, middleware=[ExperienceMiddleware("library.yaml")])`."""

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
    raise ImportError(
        "ExperienceMiddleware is for agents of langchain, which is missing: pip install 'langchain>=1.0'"
    ) from error

__all__ = ["LessonsMiddleware"]


class LessonsMiddleware(AgentMiddleware[Any, Any, Any]):
    """Shows an agent what was learned, at the end of the system message; an empty library shows nothing.

    That is where the rollouts of the tool agent (graphs/baselines/tool_agent.py) have their lessons, in the same words. The
    default rollouts of training-free-grpo, ReAct, have them in the user's message, before the steps of the attempt.

    Args:
        library: lessons; or a file of them (YAML, versions in `.jsonl`, a run folder), or `Versions`, whose head holds. Looked up
            at every call: an agent that is served picks up what a person edits and what a learner accepts. A file that can no
            longer be read is warned of, and the last lessons hold.
        top: how many lessons, those most like the last message of the user; 0: all.
        prompts: a directory whose prompt files take the place of those of the same name (`training_free_grpo/lessons`).
        ids: whether lessons are shown with their ids, as they are in learning.

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
            raise LibraryError(f"top is how many lessons are shown, 0 for all; got {lessons_per_prompt}")
        self.lessons_per_prompt, self.show_ids = lessons_per_prompt, show_ids
        self._prompt = Prompt.load("training_free_grpo/lessons", prompts)
        self._library = library
        self._seen: tuple[int, ...] | None = None
        self._held = self._read(library) if isinstance(library, str | Path) else library

    @property
    def library(self) -> Library:
        """The lessons that hold now."""
        if isinstance(self._library, str | Path):
            try:
                self._held = self._read(self._library)
            except LibraryError as error:
                warnings.warn(f"{error}; the lessons read before hold", stacklevel=2)
        held = self._held
        if isinstance(held, Library):
            return held
        return held.at(held.head) if held.head else Library()

    def _read(self, place: Path | str) -> Library | LibraryVersions:
        """What stands there, if it is not what was read last."""
        path = find_library(place)
        try:
            stat = os.stat(path)
        except OSError as error:
            raise LibraryError(f"cannot read {path}: {error.strerror}") from error
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if seen == self._seen:
            return self._held
        self._seen = seen  # also of a broken file: it is warned of once
        return open_library(path)

    def _with_lessons(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        asked = next((m.text for m in reversed(request.messages) if isinstance(m, HumanMessage)), "")
        told = self.library.text(str(asked), self.lessons_per_prompt, self.show_ids)
        if not told:
            return request
        system = [request.system_message] if request.system_message else []
        return request.override(system_message=cast(SystemMessage, append_lessons(system, told, self._prompt)[0]))

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Ask the model with the lessons in the system message."""
        return handler(self._with_lessons(request))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        """The same, for agents that are awaited."""
        return await handler(self._with_lessons(request))
