"""Lessons stand in the prompt of an agent of LangChain; if there is a critic, rated conversations teach new ones.

    create_agent(model, tools, middleware=[TrainingFreeGRPOMiddleware("library.yaml")])                          # reads
    create_agent(model, tools, middleware=[learner := TrainingFreeGRPOMiddleware(store="memory", critic=model)]) # reads and learns

Learning is Training-Free GRPO's (graphs/training_free_grpo.py) without playing anything again: as soon as five conversations of one
task have a reward, the critic compares them, as it would compare five rollouts, and its edits make the next version of the scope's
library. No version is tested before it is used; where tasks can be played again, `learn_lessons` tests each one first.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Unpack

from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from ...memory.conversations.store import RatingOptions, Reflection
from ...memory.conversations.turns import Rating
from ...memory.errors import UserError
from ...memory.lessons.library import Library, LibraryError
from ...memory.lessons.versions import LibraryVersions, find_library, open_library
from ...memory.records import Comparison, Lesson, Trajectory
from ...memory.storage.stored_rows import StoredRows
from ...nodes.arguments import Range
from ...nodes.cached_model import model_name
from ...nodes.extract.groups import is_lost_comparison
from ...nodes.fence import escape_tags
from ...nodes.prompt import Prompt
from ...nodes.text import trim_middle
from ..training_free_grpo import TrainingFreeGRPO
from .consultation import AdviceRoom, Consultation, Place, add_to_system_message
from .critic import CriticMiddleware, CriticOptions
from .lift import MOST_ITEM_CHARS
from .scope_memories import ScopeMemory
from .scope_values import ScopeValue
from .status import LearnerStatus
from .study_index import StudyIndex
from .waiting import Waits

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["TrainingFreeGRPOMiddleware"]

LOG = logging.getLogger(__name__)


class TrainingFreeGRPOMiddleware(CriticMiddleware[None]):
    """Middleware that writes lessons into an agent's prompt: without a critic at the end of its system message. An empty library adds nothing.

    The rollouts of the tool agent (graphs/baselines/tool_agent.py) have their lessons at the same place, in the same words. The
    default rollouts of training-free-grpo, ReAct, have them in the user's message, before the steps of the attempt.

    Args:
        library: the lessons: a `Library`, a file (YAML, versions in `.jsonl`, or a run folder), or `LibraryVersions`, of which the
            head is shown. It is looked up at every call, so that an agent in service picks up what a person edits and what a
            learner accepts. If a file can no longer be read, a warning says so, and the lessons read last are shown. With a critic
            it is what each scope's own library begins with.
        lessons_per_prompt: lessons shown at most, those most like the last message of the user; 0: all.
        prompts: a directory whose prompt files take the place of those of the same name (`training_free_grpo/lessons`).
        critic: the chat model that compares conversations; None: lessons are only read.
        store: where a middleware that learns keeps conversations and libraries: any LangGraph store, a folder or a URL.
        group_size: conversations of one task that are compared at a time, at least 2.
        settings: Training-Free GRPO's, of which the limits of the library and of the critic have an effect.
        options: those of `CriticMiddleware`.

    Raises:
        LibraryError: there is no library there.
        UserError: an argument is not what it may be.
    """

    method: ClassVar[str] = "lessons"

    def __init__(
        self,
        library: Library | LibraryVersions | Path | str | None = None,
        lessons_per_prompt: int = 0,
        prompts: Path | None = None,
        *,
        critic: Runnable[Any, Any] | None = None,
        store: BaseStore | Path | str | None = None,
        group_size: Annotated[int, Range(2)] = 5,
        settings: TrainingFreeGRPO | None = None,
        **options: Unpack[CriticOptions],
    ) -> None:
        if (critic is None) != (store is None):
            raise UserError(
                "TrainingFreeGRPOMiddleware learns with critic= and store=, and only reads without both; one is missing"
            )
        if library is None and critic is None:
            raise UserError("TrainingFreeGRPOMiddleware: give a library to read, or critic= and store= to learn one")
        options.setdefault("place", "turn" if lessons_per_prompt else "thread")
        options |= {"mode": "off"} if critic is None else {}
        super().__init__(InMemoryStore() if store is None else store, critic=critic, **options)
        if lessons_per_prompt < 0:
            raise LibraryError(f"lessons_per_prompt is the number of lessons shown, 0 for all; got {lessons_per_prompt}")
        self.lessons_per_prompt = lessons_per_prompt
        self.group_size, self.settings = group_size, settings
        self._prompt = Prompt.load("training_free_grpo/lessons", prompts)
        self._library = Library() if library is None else library
        self._stamp: tuple[int, ...] | None = None
        self._notes = set[str]()
        self._library_read: Library | LibraryVersions
        self._library_read = self._read(self._library) if isinstance(self._library, str | Path) else self._library
        self._versions: dict[tuple[str, ...], tuple[StudyIndex[None], LibraryVersions]] = {}
        self._editing = threading.Lock()

    @property
    def library(self) -> Library:
        """The lessons that are shown now; with a critic, those that each scope begins with."""
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

    def _section(
        self, request: ModelRequest[Any], library: Library, place: Place | None = None
    ) -> tuple[str, tuple[Lesson, ...]]:
        """The lessons for a request as text, empty without any, and these lessons in the library's order."""
        asked = str(next((m.text for m in reversed(request.messages) if isinstance(m, HumanMessage)), ""))
        shown = library.select(asked, self.lessons_per_prompt)
        if (note := library.other_model(model_name(request.model))) and note not in self._notes:
            self._notes.add(note)
            LOG.warning("%s", note)

        def text(lessons: Sequence[Lesson]) -> str:
            ids = {one.id for one in lessons}
            lines = replace(library, lessons=tuple(one for one in shown if one.id in ids)).text()
            return self._prompt.text(lessons=escape_tags(lines.rstrip("\n"))) if ids else ""

        best_first = sorted(shown, key=lambda one: (one.harmful - one.helpful, -int(one.id[1:])))
        if place is None:
            chosen = AdviceRoom(self.max_added_tokens).fit(best_first, text)
        else:  # a lesson with another text is another item
            chosen = place.choose(best_first, text, lambda one: f"{one.id}: {trim_middle(one.text, MOST_ITEM_CHARS)}")
        return text(chosen), tuple(one for one in shown if one in chosen)

    async def call_model(self, request: ModelRequest[Any], waits: Waits) -> Any:
        """Ask the model with the lessons in the system message."""
        if self.critic is None:
            return await waits.answer(add_to_system_message(request, self._section(request, self.library)[0]))
        return await super().call_model(request, waits)

    def add_rating(
        self, labels: tuple[str, ...], thread: str, reward: float | None, text: str | None, **more: Unpack[RatingOptions]
    ) -> Rating:
        """As `ScopedLearner.add_rating`.

        Raises:
            UserError: this middleware only reads.
        """
        if self.critic is None:
            raise UserError(
                "this TrainingFreeGRPOMiddleware only reads, and takes no feedback; give critic= and store= to have it learn"
            )
        return super().add_rating(labels, thread, reward, text, **more)

    def versions(self, **scope: ScopeValue) -> LibraryVersions:
        """The versions of a scope's library. A person may `rollback`, and no version is lost."""
        labels = self._labels(scope)
        self._refreshed(labels)
        return self._scope_versions(labels)

    def _scope_versions(self, scope: tuple[str, ...]) -> LibraryVersions:
        index = self._memory(scope).index
        with self._lock:
            if (known := self._versions.get(scope)) is None:
                known = index, LibraryVersions(rows=StoredRows(self.agent.store, (*scope, "library")))
            versions = known[1]
            if known[0] is not index:  # it was made anew, since something was forgotten, perhaps by another process
                versions.refresh()
            if not versions.head:
                versions.put("start", self.library, why="the start")
            self._versions[scope] = index, versions
            return versions

    def make_content(self) -> None:
        """Nothing: the library is in the store."""

    def add_reflection(self, content: None, trajectory: Trajectory, reflection: Reflection | None) -> None:
        """Nothing: the library is in the store."""

    def advise(self, request: ModelRequest[Any], place: Place, content: None) -> Consultation:
        """Call the model with the lessons of the scope's library."""
        versions = self._scope_versions(place.scope)
        library = versions.at(versions.head)
        section, shown = self._section(request, library, place)
        said = [f"[{one.id}] {one.text}" for one in shown]
        entry = {"recalled": [one.id for one in shown], "version": versions.head, "said": said}
        return (yield from self.ask_with(request, section, entry))

    def mark_sources(self, memory: ScopeMemory[StudyIndex[None]], ids: Sequence[str]) -> list[str]:
        """The ids of the lessons."""
        return list(ids)

    def are_known(self, memory: ScopeMemory[StudyIndex[None]], sources: Sequence[str]) -> bool:
        """True if these lessons are still in the scope's library."""
        versions = self._scope_versions(memory.conversations.scope)
        return {one.id for one in versions.at(versions.head).lessons}.issuperset(sources)

    def study_group(
        self, memory: ScopeMemory[StudyIndex[None]], group: Sequence[Trajectory], critic: Runnable[Any, Any]
    ) -> None:
        """Have a group compared, and its edits made the next version."""
        from .lesson_groups import GroupComparison, group_name

        versions = self._scope_versions(memory.conversations.scope)
        settings, scale = self.settings or TrainingFreeGRPO(), (self.rewards.least, self.rewards.most)
        method = GroupComparison(versions, critic, settings, self.window_of(critic), scale, memory.index.agent_card)
        try:
            graph, state = method.comparison(group)
            comparison: Comparison = graph.invoke(state)["comparisons"][0]
            with self._editing:  # of two groups that are compared at once, each is to edit what the other made
                versions.refresh()
                if not all(memory.conversations.trajectories.get(one.id) for one in group):
                    return  # one was forgotten or quarantined meanwhile
                edits = [replace(one, text=self.screen.criticism(one.text)) for one in comparison.edits]
                kept = tuple(one for one in edits if one.text or one.op in ("delete", "keep"))
                method.edit(group, replace(comparison, edits=kept))
        except Exception as failure:
            if self._is_given_up(memory, group, failure):
                lost = Reflection("", "", "", note=f"lost {group_name(group)}", error=memory.index.failure)
                self.keep_reflections(memory, {one.id: lost for one in group}, group)
            return
        memory.index.note_answer()
        error = comparison.failures[-1] if is_lost_comparison(comparison) and comparison.failures else ""
        if error:
            where = "/".join(memory.conversations.scope)
            LOG.warning("%s: a comparison of %d conversations of %s was lost: %s", self.method, len(group), where, error)
        found = Reflection("", "", "", note=f"{comparison.kind} {group_name(group)}", error=error)
        self.keep_reflections(memory, {one.id: found for one in group}, group)

    def status(self, **scope: ScopeValue) -> LearnerStatus:
        """The state of this learner in a scope: what was compared, what waits, and what was lost."""
        found, versions = super().status(**scope), self.versions(**scope)
        return replace(found, lessons=len(versions.at(versions.head).lessons))

    def _studies(self, index: StudyIndex[None]) -> dict[str, Any]:
        groups = {one.note.partition(" ")[2]: one for one in index.studied_reflections}.values()
        alike, lost = sum(one.note.startswith("alike ") for one in groups), tuple(one.error for one in groups if one.error)
        return super()._studies(index) | {"alike": alike, "unreadable": lost}

    def forget_in(self, labels: tuple[str, ...], threads: Sequence[str] | None) -> int:
        """As `ScopedLearner.forget_in`."""
        count = super().forget_in(labels, threads)
        if threads is None:  # the library has gone as a whole
            self._versions.pop(labels, None)
        return count

    def erase_lessons(self, labels: tuple[str, ...], groups: Collection[str]) -> None:
        """As `ScopedLearner.erase_lessons`, also for those who hold the versions."""
        if groups and self.critic is not None:
            self._scope_versions(labels).erase([f"{group}/1" for group in groups])
