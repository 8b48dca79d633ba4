"""The base class of all learning middlewares: it records an agent's conversations, takes feedback, and has a method advise the agent.

    agent = create_agent(model, tools, middleware=[learner := JitRLMiddleware("memory", decide=["resolve"])], checkpointer=saver)
    agent.invoke({"messages": "..."}, {"configurable": {"thread_id": "t1", "tenant": "acme"}})
    learner.feedback("t1", reward=1.0, tenant="acme")                  # late, twice, or never; from another process, too

Every turn is recorded when it ends. Feedback makes a rated trajectory of what happened since the feedback before it
(memory/conversations/store.py), and each method has its memory of these. Before each model call the method consults its memory, and
what it recalled, added and chose stands in the agent's state under `learning`, in the stream of custom events, and in `explain`.

What cannot be consulted does not stop an agent: where memory fails, it answers without advice, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.store.base import BaseStore
from langgraph.types import Command

from ...memory.conversations.messages import last_user_message, steps
from ...memory.conversations.reviews import review_rating
from ...memory.conversations.store import Turn
from ...memory.records import Observation, Task
from ...nodes.lesson_prompts import append_section
from .executed_calls import watch_call
from .reward_sources import RewardSource, describe_source, read_reward
from .scopes import Index, ScopedLearner

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest
    from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse, ToolCallRequest
except ImportError as error:
    raise ImportError("learning agents need langchain, which is missing: pip install 'langchain>=1.4'") from error

__all__ = ["Advice", "ChatWorld", "LearningMiddleware", "LearningState", "PendingCall", "Place", "ReadMessages"]

LOG = logging.getLogger(__name__)
NO_STREAM = "nostream"
"""LangGraph's tag for models whose tokens are not streamed to the client."""
MAX_SAMPLING_THREADS = 64
"""Model calls that wait side by side in agents that are not awaited."""


class LearningState(AgentState[Any]):
    """The agent's state with what a learning method did."""

    learning: NotRequired[Annotated[list[dict[str, Any]], add]]
    """One entry per model call: `method`, `turn`, `recalled` (ids of trajectories), and what the method says of itself."""


@dataclass(frozen=True)
class Place:
    """The place of a model call: whose conversation, which turn, which step."""

    thread: str
    scope: tuple[str, ...]
    turn: str
    """Id of the user's message that is being answered."""
    number: int
    """Number of that turn within the thread, from 0."""
    task: Task
    step: int
    """Number of model calls in this turn before this one."""


@dataclass
class PendingCall:
    """Something that a method waits for: model requests, or a runnable with its input."""

    requests: Sequence[ModelRequest[Any]] = ()
    """To be answered side by side by the agent's model. Its errors are the agent's."""
    runnable: Runnable[Any, Any] | None = None
    """A call of the method's own. Its error is raised in the generator, which may catch it."""
    input: Any = None


@dataclass
class Advice:
    """The outcome of a consultation."""

    response: ModelResponse[Any]
    entry: dict[str, Any]
    """The record of it as plain data: recalled trajectories, what was added, what was chosen. `nearest`, if it is there, is the
    greatest similarity in memory where nothing was alike enough."""


Consultation = Generator[PendingCall, Any, Advice]
"""Yields what it waits for and receives the answers: a list of model responses, or the runnable's output. An error of the
runnable is raised where it waits; where it is not caught, the agent answers without advice."""


Model = TypeVar("Model", bound=Runnable[Any, Any])


def not_streamed(model: Model) -> Model:
    """The same model, whose tokens reach no client: what it says here is not what the agent says."""
    if isinstance(model, BaseChatModel):  # it stays a chat model, to which tools can be bound
        return model.model_copy(update={"tags": [*(model.tags or []), NO_STREAM]})
    return model.with_config(tags=[NO_STREAM])  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class ReadMessages(Observation):
    """The messages that an agent has read since it spoke last."""

    key: str = ""
    """The text by which the state is compared with others."""
    refused: bool = False
    """True if a tool has answered with an error."""


class ChatWorld:
    """A stand-in for an environment, with what nodes ask of it: its name, the text of a state, and whether an action was refused."""

    def __init__(self, name: str) -> None:
        self.name = name

    def abstract(self, observation: Observation) -> str:
        """The text by which the state is compared."""
        return observation.key if isinstance(observation, ReadMessages) else observation.text

    def is_refused(self, observation: Observation) -> bool:
        """True if a tool has answered with an error."""
        return isinstance(observation, ReadMessages) and observation.refused


class LearningMiddleware(AgentMiddleware[LearningState, Any, Any], ScopedLearner[Index]):
    """Records an agent's conversations and their feedback, and consults a method's memory before each model call.

    Args:
        store: any LangGraph store, or the folder of a `ChromaStore`.
        reward: a source of rewards for turns that have ended (graphs/agents/reward_sources.py); feedback that comes later holds.
        next_turn: a source that sees the user's next message as well, and rates the turn before it. It decides by a signal that the
            user did not mean as feedback: `explain` shows what it decided.
        reviews: whether a person's edit or rejection of a tool call (HumanInTheLoopMiddleware) is feedback on the turn by itself,
            until somebody rates it.
        options: those of `ScopedLearner`.
    """

    state_schema = LearningState

    def __init__(
        self,
        store: BaseStore | str | Path,
        *,
        reward: RewardSource | None = None,
        next_turn: RewardSource | None = None,
        reviews: bool = True,
        **options: Any,
    ) -> None:
        AgentMiddleware.__init__(self)
        ScopedLearner.__init__(self, store, **options)
        self._reward, self._next_turn, self._reviews = reward, next_turn, reviews

    # -- what a method defines --------------------------------------------------------------------------------------------

    def consult(self, request: ModelRequest[Any], place: Place, memory: Index) -> Consultation:
        """Advise a model call: a generator that yields what it asks for, and returns the response with its entry."""
        raise NotImplementedError

    def ask_with(self, request: ModelRequest[Any], section: str, entry: dict[str, Any]) -> Consultation:
        """Ask the model with a section at the end of its system message, which the mode `observe` leaves out."""
        guided = request if self.mode == "observe" else add_to_system_message(request, section)
        (response,) = yield PendingCall([guided])
        return Advice(response, entry)

    def read_tools(self, tools: Sequence[Any]) -> bool:
        """Take note of the tools that the agent has at this call; returns True if `adapt` works differently from now on."""
        return False

    # -- hooks of the agent -----------------------------------------------------------------------------------------------

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Ask the model with the method's advice."""
        gen = self._begin(request)
        if gen is None:
            return handler(request)
        first: list[Any] = []
        answer: Any = None
        while True:
            asked = self._advance(gen, answer)
            if not isinstance(asked, PendingCall):
                return self._finish(asked, request, first) or handler(request)
            if asked.runnable is not None:
                answer = invoke(asked)
            else:
                answer = _answer_all(asked.requests, handler)
                first = first or answer[:1]

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        """Ask the model with the method's advice, in an agent that is awaited."""
        gen = await asyncio.to_thread(self._begin, request)
        if gen is None:
            return await handler(request)
        first: list[Any] = []
        answer: Any = None
        while True:
            asked = await asyncio.to_thread(self._advance, gen, answer)
            if not isinstance(asked, PendingCall):
                return self._finish(asked, request, first) or await handler(request)
            if asked.runnable is not None:
                answer = await ainvoke(asked)
            else:
                answer = [_response(one) for one in await asyncio.gather(*(handler(one) for one in asked.requests))]
                first = first or answer[:1]

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Have the call made, and note which one it was: a person may have changed it."""
        if self.mode == "off":
            return handler(request)
        watched, mark = watch_call(request)
        return mark(handler(watched))

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """As `wrap_tool_call`, in an agent that is awaited."""
        if self.mode == "off":
            return await handler(request)
        watched, mark = watch_call(request)
        return mark(await handler(watched))

    def before_agent(self, state: Any, runtime: Any) -> None:
        """Rate the turn before, where the user's next message says how it was."""
        if self.mode == "off" or self._next_turn is None:
            return
        try:
            place = self._place(state, runtime)
            known = self._memory(place.scope).conversations.turns.get(place.thread)
            if known is not None and known.turns and known.turns[-1].id != place.turn:
                self._rate(place, self._next_turn, state["messages"])
        except Exception as error:
            LOG.warning("%s: the turn before was not rated by %s: %s", self.method, describe_source(self._next_turn), error)

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        """Rate the turn before, in an agent that is awaited."""
        await asyncio.to_thread(self.before_agent, state, runtime)

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Record the turn that has ended, and rate it if there is a source of rewards."""
        if self.mode == "off":
            return
        try:
            place = self._place(state, runtime)
            self._record(place, state, _run_id(runtime))
            self._rate_by_reviews(place, state["messages"])
        except Exception as error:  # a store that is down must not take the answer from the user
            LOG.warning("%s: a turn was not recorded, and nothing is learned from it: %s", self.method, error)
            return
        if self._reward is not None:
            try:
                self._rate(place, self._reward, state["messages"])
            except Exception as error:
                LOG.warning("%s: a turn was not rated by %s: %s", self.method, describe_source(self._reward), error)

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """Record the turn that has ended, in an agent that is awaited."""
        await asyncio.to_thread(self.after_agent, state, runtime)

    # -- within -----------------------------------------------------------------------------------------------------------

    def _begin(self, request: ModelRequest[Any]) -> Consultation | None:
        if self.mode == "off":
            return None
        try:
            place = self._place(request.state, request.runtime)
            if self.read_tools(request.tools):
                self._rebuild_indexes()
            memory = self._refreshed(place.scope)
            return self.consult(request, place, memory.index)
        except Exception as error:
            LOG.warning("%s: memory cannot be consulted, and the agent answers without advice: %s", self.method, error)
            return None

    def _advance(self, gen: Consultation, answer: Any) -> PendingCall | Advice | None:
        """The next thing that a consultation asks for, or its outcome; None if it failed. An error as answer is raised in it."""
        try:
            return gen.throw(answer) if isinstance(answer, Exception) else gen.send(answer)
        except StopIteration as end:
            found: Advice = end.value
            return found
        except Exception as error:
            LOG.warning(
                "%s: the consultation failed, and the agent answers without advice: %s", self.method, error, exc_info=error
            )
            return None

    def _finish(self, advice: Advice | None, request: ModelRequest[Any], first: Sequence[Any]) -> Any:
        """The response with its entry for the state; what the model said first if the consultation failed; None: ask it."""
        if advice is None:
            return first[0] if first else None
        entry = {"method": self.method, "mode": self.mode, "recalled": [], **advice.entry}
        entry["turn"] = _turn_id(request.messages)
        self._memory(self._labels(get_config().get("configurable", {}))).tally(entry)
        request.runtime.stream_writer({"learning": entry})
        return ExtendedModelResponse(advice.response, Command(update={"learning": [entry]}))

    def _rate(self, place: Place, source: RewardSource, messages: Sequence[AnyMessage]) -> None:
        """Rate the last recorded turn by what a source says; one that says nothing leaves it without a reward."""
        if (found := read_reward(source, messages)) is not None:
            reward = self.rewards.read(found[0])
            self._memory(place.scope).conversations.rate(place.thread, reward, found[1], source=describe_source(source))

    def _rate_by_reviews(self, place: Place, messages: Sequence[AnyMessage]) -> None:
        """Rate the turn that has ended by what a person changed of its calls, where nobody has rated it."""
        turn = messages[last_user_message(messages) :]
        found = review_rating(turn, self.rewards.least, self.rewards.most) if self._reviews else None
        conversations = self._memory(place.scope).conversations
        if found and all(one.turn != place.turn or one.source == "reviewer" for one in conversations.ratings(place.thread)):
            conversations.rate(place.thread, *found, turn=place.turn, source="reviewer")

    def _record(self, place: Place, state: Mapping[str, Any], run_id: str) -> None:
        if (found := self.screen.suspicion_in(state["messages"][last_user_message(state["messages"]) :])) is not None:
            self.keep_out(place.scope, place.thread, *found)
        messages, task = self.screen.learnable(state["messages"]), place.task
        task = replace(task, instruction=self.screen.redact(task.instruction))
        done = steps(messages, self.state_key, start=last_user_message(messages))
        entries = tuple(
            {key: value for key, value in entry.items() if key != "turn"}
            for entry in state.get("learning", ())
            if entry.get("turn") == place.turn and entry.get("method") == self.method
        )
        if done:
            turn = Turn(place.turn, done, run_id, entries)
            self._memory(place.scope).conversations.record(place.thread, turn, task, self.agent_name)

    def _place(self, state: Any, runtime: Any) -> Place:
        messages = state["messages"]
        configurable = get_config().get("configurable", {})
        humans = [m for m in messages if isinstance(m, HumanMessage)]
        thread = configurable.get("thread_id") or (humans[0].id if humans else None) or "no thread"
        task = self._task(messages) if self._task is not None else self.agent_name
        goal = str(humans[0].text) if humans else ""
        calls = sum(isinstance(m, AIMessage) for m in messages[last_user_message(messages) :])
        scope = self._labels(configurable)
        return Place(str(thread), scope, _turn_id(messages), len(humans) - 1, Task(task, goal), calls)


def invoke(pending: PendingCall) -> Any:
    """The output of a pending runnable, or its error. What pauses a graph is no error."""
    assert pending.runnable is not None
    try:
        return pending.runnable.invoke(pending.input)
    except GraphBubbleUp:
        raise
    except Exception as error:
        return error


async def ainvoke(pending: PendingCall) -> Any:
    """As `invoke`, in an agent that is awaited."""
    assert pending.runnable is not None
    try:
        return await pending.runnable.ainvoke(pending.input)
    except GraphBubbleUp:
        raise
    except Exception as error:
        return error


def add_to_system_message(request: ModelRequest[Any], section: str) -> ModelRequest[Any]:
    """The request with a section at the end of its system message, or in a new one; unchanged for an empty section."""
    if not section.strip():
        return request
    system = append_section([request.system_message] if request.system_message else [], section)[0]
    assert isinstance(system, SystemMessage)
    return request.override(system_message=system)


_THREADS = ThreadPoolExecutor(MAX_SAMPLING_THREADS, thread_name_prefix="learngraph-samples")


def _answer_all(requests: Sequence[ModelRequest[Any]], handler: Callable[[ModelRequest[Any]], Any]) -> list[ModelResponse[Any]]:
    """Answers of the agent's model, asked side by side in threads; the first request is asked in this one."""
    rest = [_THREADS.submit(copy_context().run, handler, one) for one in requests[1:]]
    return [_response(handler(requests[0])), *(_response(one.result()) for one in rest)]


def _response(answer: Any) -> ModelResponse[Any]:
    if isinstance(answer, ExtendedModelResponse):
        return answer.model_response
    return ModelResponse([answer]) if isinstance(answer, AIMessage) else answer


def _turn_id(messages: Sequence[Any]) -> str:
    """Id of the user's message that is being answered."""
    last = messages[last_user_message(messages)] if messages else None
    return str(last.id) if isinstance(last, HumanMessage) and last.id else "turn"


def _run_id(runtime: Any) -> str:
    info = getattr(runtime, "execution_info", None)
    return str(getattr(info, "run_id", None) or "")
