"""The base class of middlewares whose memory a model writes: a critic studies each rated conversation once, and its text is kept.

A conversation is studied when its feedback arrives (`feedback`, `afeedback`), or before the next model call in its scope where the
feedback came from another process; `learn` studies all that waits. The critic is the agent's own model, known from its first call,
or another one. Its text is kept in the store under an id derived from the conversation's: two processes that study the same
conversation keep one text. Feedback that changes has the conversation studied again.

Replies that cannot be read are logged and counted, and not asked for again. A critic that cannot be asked leaves the conversation
waiting, and nothing else of the agent fails.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from langchain_core.runnables import Runnable

from ...memory.conversations.store import ConversationStore, Rating, Reflection, trajectory_digest
from ...memory.records import Trajectory
from ...nodes.ask import Ask, BadReply
from .agent_card import agent_card
from .learner import Advice, Consultation, LearningMiddleware, PendingCall, Place, ainvoke, invoke, not_streamed
from .scopes import ScopeMemory
from .status import LearnerStatus

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["CriticMiddleware", "StudyIndex"]

LOG = logging.getLogger(__name__)
MOST_AT_ONCE = 4
"""Conversations that are studied before a model call, or at feedback; `learn` studies all."""
RETRY_SECONDS = 60.0
"""Pause after a critic that could not be asked."""
Content = TypeVar("Content")
Study = Generator[PendingCall, Any, None]
"""Yields calls of the critic, and receives their outputs."""


class StudyIndex(Generic[Content]):
    """The rated conversations of a scope with what a critic wrote about them, and those that wait for it. Safe to use from threads.

    Args:
        method: name of the method: the beginning of the reflections' ids.
        content: what consultations are answered from.
    """

    def __init__(self, method: str, content: Content) -> None:
        self.method, self.content = method, content
        self.reflections: dict[str, Reflection] = {}
        """By id of the trajectory: those that hold."""
        self.waiting: dict[str, Trajectory] = {}
        self.failure = ""
        """The last error of a critic that could not be asked."""
        self.resume_at = 0.0
        self._news: dict[str, Trajectory] = {}
        self._busy: set[str] = set()
        self._lock = threading.RLock()

    def add(self, trajectory: Trajectory) -> None:
        """Take in a rated conversation; whether it was studied is looked up when it is next needed (`take_news`)."""
        with self._lock:
            self._news[trajectory.id] = trajectory

    def reflection_id(self, trajectory: Trajectory) -> str:
        """The id of this method's reflection on a conversation."""
        return f"{self.method}/{trajectory.id}"

    def take_news(self, store: ConversationStore) -> list[tuple[Trajectory, Reflection | None]]:
        """The changes since the last look: conversations with a reflection that holds, or with None if they wait for the critic."""
        with self._lock:
            if not self._news:
                return []
            all_written = {one.id: one for one in store.reflections.all()} if len(self._news) > MOST_AT_ONCE else None
            changed = []
            for id, trajectory in self._news.items():
                key = self.reflection_id(trajectory)
                written = all_written.get(key) if all_written is not None else store.reflections.get(key)
                changed.append((trajectory, written if written and written.about == trajectory_digest(trajectory) else None))
                if changed[-1][1] is None:
                    self.waiting[id] = trajectory
                    self.reflections.pop(id, None)
                else:
                    self.waiting.pop(id, None)
                    self.reflections[id] = cast(Reflection, written)
            self._news.clear()
            return changed

    @property
    def has_news(self) -> bool:
        """True if conversations changed since the last `take_news`."""
        return bool(self._news)

    def claim(self, size: int | None = None) -> list[Trajectory]:
        """Conversations that wait and that no other thread is studying, to be released: one, or none.

        Args:
            size: as many conversations of one task with a reward instead; none if no task has so many.
        """
        with self._lock:
            tasks: dict[str, list[Trajectory]] = {}
            for id, one in self.waiting.items():
                if id not in self._busy and (size is None or one.value is not None):
                    tasks.setdefault(one.task.id if size else id, []).append(one)
            group = next((found[: size or 1] for found in tasks.values() if len(found) >= (size or 1)), [])
            self._busy |= {one.id for one in group}
            return group

    def release(self, trajectory: Trajectory) -> None:
        """Give back what `claim` gave."""
        with self._lock:
            self._busy.discard(trajectory.id)


class CriticMiddleware(LearningMiddleware[StudyIndex[Content]], Generic[Content]):
    """A learning middleware whose memory a model writes, from conversations with feedback.

    Args:
        store: any LangGraph store, or the folder of a `ChromaStore`.
        critic: the chat model that writes; the agent's own if not given.
        options: those of `LearningMiddleware`.
    """

    def __init__(self, store: Any, *, critic: Runnable[Any, Any] | None = None, **options: Any) -> None:
        super().__init__(store, **options)
        self.critic = critic
        self._agent_model: Runnable[Any, Any] | None = None
        self.agent_card = ""
        """The agent's instructions and tools as critics read them, known from its first call."""

    # -- what a method defines --------------------------------------------------------------------------------------------

    def make_content(self) -> Content:
        """An empty memory."""
        raise NotImplementedError

    def question(
        self, trajectory: Trajectory, content: Content, critic: Runnable[Any, Any]
    ) -> tuple[Ask[Any, Any], dict[str, Any]]:
        """The node that asks the critic about a conversation, and the state that it is given."""
        raise NotImplementedError

    def reflection(self, trajectory: Trajectory, answer: dict[str, Any] | None) -> Reflection:
        """The reflection from the node's answer; None: no reply could be read. Its id and digest are filled in."""
        raise NotImplementedError

    def add_reflection(self, content: Content, trajectory: Trajectory, reflection: Reflection | None) -> None:
        """Put a reflection into the memory, in place of the one before; None: there is none that holds."""
        raise NotImplementedError

    def advise(self, request: ModelRequest[Any], place: Place, content: Content) -> Consultation:
        """As `consult`, from the memory."""
        raise NotImplementedError

    # -- within -----------------------------------------------------------------------------------------------------------

    def make_index(self) -> StudyIndex[Content]:
        """An empty memory for a scope, and the conversations that wait for the critic."""
        return StudyIndex(self.method, self.make_content())

    def consult(self, request: ModelRequest[Any], place: Place, memory: StudyIndex[Content]) -> Consultation:
        """Have waiting conversations studied, then advise."""
        self._agent_model, self.agent_card = request.model, agent_card(request)
        yield from self._study(self._memory(place.scope), MOST_AT_ONCE)
        advice: Advice = yield from self.advise(request, place, memory.content)
        return advice

    def feedback(self, thread_id: str, **given: Any) -> Rating:
        """As `LearningMiddleware.feedback`; then the critic studies the conversation, if it is known in this process."""
        rating = super().feedback(thread_id, **given)
        self._learn_now(self._scope_of(given), MOST_AT_ONCE)
        return rating

    async def afeedback(self, thread_id: str, **given: Any) -> Rating:
        """As `feedback`, in a program that is awaited."""
        rating = await asyncio.to_thread(super().feedback, thread_id, **given)
        await self._alearn_now(self._scope_of(given), MOST_AT_ONCE)
        return rating

    def learn(self, **scope: str) -> LearnerStatus:
        """Have the critic study all conversations that wait, also those rated by other processes."""
        self._learn_now(scope, None)
        return self.status(**scope)

    async def alearn(self, **scope: str) -> LearnerStatus:
        """As `learn`, in a program that is awaited."""
        await self._alearn_now(scope, None)
        return await asyncio.to_thread(lambda: self.status(**scope))

    def status(self, **scope: str) -> LearnerStatus:
        """The state of this learner in a scope: what was learned, what waits, and what could not be read."""
        memory = self._refreshed(self._labels(scope, strict=True))
        index = memory.index
        self._take_news(memory)
        written = list(index.reflections.values())
        return replace(
            super().status(**scope),
            studied=len(written),
            waiting=len(index.waiting),
            lessons=sum(bool(one.note) + sum(bool(lesson.text) for lesson in one.lessons) for one in written),
            unreadable=tuple(one.error for one in written if one.error),
            failure=index.failure,
        )

    def _learn_now(self, scope: dict[str, Any], most: int | None) -> None:
        gen, answer = self._begin_study(scope, most), None
        while isinstance(asked := self._advance(cast(Consultation, gen), answer), PendingCall):
            answer = invoke(asked)

    async def _alearn_now(self, scope: dict[str, Any], most: int | None) -> None:
        gen, answer = self._begin_study(scope, most), None
        while isinstance(asked := await asyncio.to_thread(self._advance, cast(Consultation, gen), answer), PendingCall):
            answer = await ainvoke(asked)

    def _begin_study(self, scope: dict[str, Any], most: int | None) -> Study:
        if self.mode == "off":
            return
        try:
            yield from self._study(self._refreshed(self._labels(scope, strict=True)), most)
        except Exception as error:  # the feedback itself is kept already
            LOG.warning("%s: feedback is kept, and nothing was learned from it yet: %s", self.method, error)

    def _take_news(self, memory: ScopeMemory[StudyIndex[Content]]) -> None:
        for trajectory, reflection in memory.index.take_news(memory.conversations):
            self.add_reflection(memory.index.content, trajectory, reflection)

    def _study(self, memory: ScopeMemory[StudyIndex[Content]], most: int | None) -> Study:
        """Have the critic study conversations that wait, `most` at most."""
        index, critic = memory.index, self.critic or self._agent_model
        self._take_news(memory)
        count = 0
        while critic is not None and (most is None or count < most) and time.monotonic() >= index.resume_at:
            if not (claimed := index.claim()):
                return
            (trajectory,) = claimed
            try:
                index.add(trajectory)  # another process may have studied it by now
                self._take_news(memory)
                if trajectory.id in index.waiting:
                    yield from self._study_one(memory, trajectory, critic)
            finally:
                index.release(trajectory)
            count += 1

    def _study_one(self, memory: ScopeMemory[StudyIndex[Content]], trajectory: Trajectory, critic: Runnable[Any, Any]) -> Study:
        index = memory.index
        critic = not_streamed(critic)
        question, state = self.question(trajectory, index.content, critic)
        error = ""
        try:
            answer = yield PendingCall(runnable=replace(question, on_bad_reply=None), input=state)
        except BadReply as bad:
            answer, error = None, str(bad)
            LOG.warning("%s: nothing was learned from %s: %s", self.method, trajectory.id, bad)
        except Exception as failure:
            self._note_failure(index, trajectory, failure)
            return
        found = replace(
            self.reflection(trajectory, answer),
            id=index.reflection_id(trajectory),
            thread=trajectory.id.rpartition("/")[0],
            about=trajectory_digest(trajectory),
            error=error,
        )
        index.failure = ""
        memory.conversations.add_reflection(found, trajectory.id)
        index.add(memory.conversations.trajectories.get(trajectory.id) or trajectory)  # its feedback may have changed meanwhile
        self._take_news(memory)

    def _note_failure(self, index: StudyIndex[Content], trajectory: Trajectory, failure: Exception) -> None:
        """Leave conversations waiting, and the critic alone for a while."""
        index.failure, index.resume_at = f"{type(failure).__name__}: {failure}", time.monotonic() + RETRY_SECONDS
        LOG.warning("%s: the critic could not be asked about %s: %s", self.method, trajectory.id, index.failure)
