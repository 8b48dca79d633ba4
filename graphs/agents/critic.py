"""The base class of middlewares whose memory a model writes: a critic studies each rated conversation once, and its text is kept.

The critic never stands in a user's way: conversations are studied by a thread of their own, soon after their feedback or, where that
came from another process, after the next model call in their scope (`study="background"`); or by a job alone, which calls `learn`
(`study="job"`). The critic is the agent's own model, known from its first call, or another one. Its text is kept in the store under an
id derived from the conversation's: two processes that study the same conversation keep one text. Feedback that changes has the
conversation studied again; until then the text holds, unless a success has become a failure, or a failure a success.

No conversation stops the others. A reply that cannot be read is asked for again, at most twice (nodes/ask.py); then the conversation is given up, and counted; so is a conversation that cannot be
shown to the critic. One that the critic fails at goes to the end of the queue, and counts as unreadable after `MOST_TRIES` if the critic
has answered about others meanwhile, or fails by an error of its own. One whose service is away leaves conversations waiting, and nothing
else fails.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack

from langchain_core.runnables import Runnable
from langgraph.store.base import BaseStore

from ...memory.conversations.store import Reflection, trajectory_digest
from ...memory.conversations.turns import Rating
from ...memory.errors import UserError, plural
from ...memory.records import Trajectory
from ...memory.telemetry import memory_names, span
from ...nodes.arguments import Count, list_options
from ...nodes.ask import Ask, BadReply
from .agent_identity import agent_card
from .consultation import Advice, Consultation, Place, model_window, not_streamed
from .learner import LearnerOptions, LearningMiddleware
from .scope_memories import ScopeMemory
from .scope_values import ScopeValue
from .status import ASKED_AGAIN, LearnerStatus
from .study_index import StudyIndex
from .study_worker import StudyWorker

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["CriticMiddleware", "CriticOptions"]

LOG = logging.getLogger(__name__)
Content = TypeVar("Content")
Study = Literal["background", "job"]


class CriticOptions(LearnerOptions, total=False):
    """Options that all middlewares with a critic take."""

    study: Study
    window: Count | None


class CriticMiddleware(LearningMiddleware[StudyIndex[Content]], Generic[Content]):
    """A learning middleware whose memory a model writes, from conversations with feedback.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        critic: the chat model that writes; the agent's own if not given.
        study: `background`, the default: conversations are studied by a thread, soon after their feedback. `job`: only by `learn`.
        window: tokens that the critic can read at once; None: as its profile says, else 32,768.
        options: those of `LearningMiddleware`.
    """

    group_size: int | None = None
    """Conversations of one task that are studied together; None: each by itself."""

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        critic: Runnable[Any, Any] | None = None,
        study: Study = "background",
        window: Count | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(store, **options)
        self.critic, self.study, self.window = critic, study, window
        self._worker = StudyWorker(self._study)

    def make_content(self) -> Content:
        """An empty memory."""
        raise NotImplementedError

    def question(
        self, trajectory: Trajectory, content: Content, critic: Runnable[Any, Any], card: str
    ) -> tuple[Ask[Any, Any], dict[str, Any]]:
        """The node that asks the critic about a conversation, and the state that it is given; `card`: the agent in a few words."""
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

    def make_index(self) -> StudyIndex[Content]:
        """An empty memory for a scope, and the conversations that wait for the critic."""
        return StudyIndex(self.method, self.make_content())

    def consult(self, request: ModelRequest[Any], place: Place, memory: StudyIndex[Content]) -> Consultation:
        """Advise from what was written until now, and have conversations that wait studied behind the user's back."""
        scope = self._memory(place.scope)
        scope.agent_model = request.model
        if place.step == 0:
            memory.agent_card = self.screen.redact(agent_card(request))
            if memory.agent_card != scope.conversations.card:
                keep = partial(scope.conversations.note_agent, memory.agent_card)
                fail = partial(LOG.warning, "%s: critics of other processes do not know the agent: %s", self.method)
                self.agent.queue.write_turn((place.scope, ""), keep, fail)
        if memory.waiting and not memory.pause.seconds_left:
            self._study_soon(place.scope)
        advice: Advice = yield from self.advise(request, place, memory.content)
        return advice

    def note_rating(self, labels: tuple[str, ...], thread: str, rating: Rating) -> None:
        """Have the critic study the conversation soon, if one is known in this process."""
        self._study_soon(labels)

    def learn(self, **scope: ScopeValue) -> LearnerStatus:
        """Have the critic study all conversations that wait, also those rated by other processes; returns when it has.

        Raises:
            UserError: some wait, and no critic is known: none is given, and the agent has not run in this process.
        """
        memory = self._memory(labels := self._labels(scope))
        memory.index.pause.resume_at = 0.0
        self._study(labels)
        if (waits := len(memory.index.waiting)) and self.mode != "off" and self.critic is None and memory.agent_model is None:
            waiting = f"{plural(waits, 'conversation')} cannot be studied"
            raise UserError(f"{waiting}: no critic is known in a process in which the agent has not run; give critic=, a model")
        return self.status(**scope)

    def close(self) -> None:
        """End the thread that studies, and close the store; what waits is studied another time."""
        self._worker.close()
        super().close()

    def status(self, **scope: ScopeValue) -> LearnerStatus:
        """The state of this learner in a scope: what was learned, what waits, and what could not be read."""
        index = self._read_all(self._labels(scope)).index
        return replace(super().status(**scope), **self._studies(index))

    def critic_failures(self, **scope: ScopeValue) -> list[str]:
        """As `ScopedLearner.critic_failures`: the critic cannot be asked, or has failed at half of what it studied."""
        with self._lock:
            memory = self._scopes.get(self._labels_of(self.scope.labels(scope)))
        if memory is None:
            return []
        found, studied = LearnerStatus(self.method, 0, **self._studies(memory.index)), memory.index.studied_reflections
        is_failing = found.failure or 2 * sum(bool(one.error) for one in studied) >= len(studied)
        return found.failures_of_critic if is_failing else []

    def _studies(self, index: StudyIndex[Content]) -> dict[str, Any]:
        """The fields of a `LearnerStatus` that tell what a critic has studied, without a look at the store."""
        written, studied = list(index.reflections.values()), index.studied_reflections
        return {
            "studied": len(studied),
            "waiting": len(index.waiting),
            "lessons": sum(bool(one.note) + sum(bool(lesson.text) for lesson in one.lessons) for one in written),
            "unreadable": tuple(one.error for one in studied if one.error),
            "failure": index.failure if index.waiting else "",
            "when": self._when(index),
        }

    def _when(self, index: StudyIndex[Content]) -> str:
        """The words about what waits: who studies it, and when."""
        if index.studying.locked():
            return "the critic is being asked now"
        if self.study == "job":
            return "learn() has them studied"
        if not index.failure:
            return LearnerStatus.when
        pause = f", in {math.ceil(left)} seconds at the earliest," if (left := index.pause.seconds_left) else ""
        return ASKED_AGAIN.format(pause=pause)

    def _study_soon(self, scope: tuple[str, ...]) -> None:
        """Have the conversations of a scope that wait studied soon."""
        critic = self.critic or self._memory(scope).agent_model
        if self.study == "background" and self.mode != "off" and critic is not None:
            self._worker.ask(scope)

    def _look(self, *args: Any, **options: Any) -> ScopeMemory[StudyIndex[Content]] | None:
        """As of all learners, with what critics have written."""
        if (memory := super()._look(*args, **options)) is not None:
            self._take_news(memory)
        return memory

    def _take_news(self, memory: ScopeMemory[StudyIndex[Content]]) -> None:
        for trajectory, reflection in memory.index.take_news(memory.conversations):
            self.add_reflection(memory.index.content, trajectory, reflection)

    def _study(self, scope: tuple[str, ...]) -> None:
        """Have the critic study the conversations of a scope that wait, each at most once."""
        if self.mode == "off":
            return
        memory, tried = self._refreshed(scope), set[str]()
        index, critic = memory.index, self.critic or memory.agent_model
        share = self.max_user_share if self.user.names and self.group_size else 1.0
        with index.studying:
            index.agent_card = index.agent_card or memory.conversations.agent_card()
            self._take_news(memory)
            while critic is not None and not index.pause.seconds_left and not self._worker.is_ending:
                if not (group := index.next_group(self.group_size, tried, share)):
                    return
                tried |= {one.id for one in group}
                for one in group:
                    if memory.conversations.trajectories.get(one.id) is None:
                        index.leave_out(one)  # it was forgotten or quarantined meanwhile
                    else:
                        index.add(one)  # another process may have studied it by now
                self._take_news(memory)
                if all(one.id in index.waiting for one in group):
                    origins = (turn.traceparent for one in group for turn in memory.conversations.rated_turn(one))
                    with span("invoke_agent", {"gen_ai.agent.name": f"{self.method} critic"}, origins) as traced:
                        self.study_group(memory, group, not_streamed(critic))
                        written = [index.reflections[one.id] for one in group if one.id in index.reflections]
                        if failures := [one.error for one in written if one.error] or [*filter(None, [index.failure])]:
                            traced.fail(failures[0])

    def study_group(
        self, memory: ScopeMemory[StudyIndex[Content]], group: Sequence[Trajectory], critic: Runnable[Any, Any]
    ) -> None:
        """Have the critic study conversations, here one, and keep what it writes."""
        (trajectory,) = group
        index, answer, error, logged = memory.index, None, "", ""
        try:
            question, state = self.question(trajectory, index.content, critic, index.agent_card)
        except Exception as failure:  # it cannot be shown, today or ever
            error = f"{type(failure).__name__}: {failure}"
        else:
            try:
                answer = replace(question, on_bad_reply=None).invoke(state)
                index.note_answer()
            except BadReply as bad:
                error, logged = str(bad), bad.reason
                index.note_answer()
            except Exception as failure:
                if not self._is_given_up(memory, group, failure):
                    return
                error = index.failure
        if error:
            where = "/".join(memory.conversations.scope)
            LOG.warning("%s: nothing was learned from %s of %s: %s", self.method, trajectory.id, where, logged or error)
        before = index.reflections.get(trajectory.id) if error else None  # what was learned before still holds
        self.keep_reflections(
            memory, {trajectory.id: replace(before or self._screened(self.reflection(trajectory, answer)), error=error)}, group
        )

    def _screened(self, made: Reflection) -> Reflection:
        """The reflection as it is kept."""
        clean = self.screen.criticism
        lessons = [
            replace(one, text=clean(one.text), title=clean(one.title), description=clean(one.description))
            for one in made.lessons
            if clean(f"{one.title}\n{one.description}\n{one.text}")
        ]
        return replace(made, note=clean(made.note), lessons=tuple(lessons))

    def keep_reflections(
        self, memory: ScopeMemory[StudyIndex[Content]], written: Mapping[str, Reflection], group: Sequence[Trajectory]
    ) -> None:
        """Keep what was written about conversations, by their ids, and put it into the memory."""
        index = memory.index
        for one in group:
            thread, id = one.id.rpartition("/")[0], index.reflection_id(one)
            found = replace(written[one.id], id=id, thread=thread, about=trajectory_digest(one), reward=one.value)
            with span("upsert_memory", memory_names(memory.conversations.scope, thread)) as traced:
                traced.set({"gen_ai.memory.record.id": found.id, "gen_ai.memory.record.count": 1})
                memory.conversations.add_reflection(found, one.id)
            if (now := memory.conversations.trajectories.get(one.id)) is not None:  # its feedback may have changed meanwhile
                index.add(now)
            else:
                index.leave_out(one)
        self._take_news(memory)

    def _is_given_up(self, memory: ScopeMemory[StudyIndex[Content]], group: Sequence[Trajectory], failure: Exception) -> bool:
        given_up, where = memory.index.note_failure(group, failure), "/".join(memory.conversations.scope)
        memory.index.failure = self.screen.redact(memory.index.failure)[:400]  # a provider may repeat its key
        said = "%s: the critic could not be asked about %s of %s: %s"
        LOG.warning(said, self.method, group[0].id, where, memory.index.failure)
        return given_up

    def window_of(self, model: Any) -> int:
        """Tokens that a model can read at once: those given, else those of its profile."""
        return model_window(model) if self.window is None else self.window


list_options(CriticOptions, CriticMiddleware.__mro__)
