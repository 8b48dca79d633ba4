"""The base of all learning middlewares: an agent of LangChain that records its conversations, takes feedback, and is advised.

    agent = create_agent(model, tools, middleware=[learner := JitRLMiddleware("memory", decide=["resolve"])], checkpointer=saver)
    agent.invoke({"messages": "..."}, {"configurable": {"thread_id": "t1", "tenant": "acme"}})
    learner.feedback("t1", reward=1.0, tenant="acme")                  # late, twice, or never; from another process, too

Every turn is recorded when it ends. Feedback makes a rated trajectory of what happened since the feedback before it
(memory/conversation_store.py), and each method has its memory of these. Before each model call the method consults its memory, and
what it recalled, added and chose stands in the agent's state under `learning`, in the stream of custom events, and in `explain`.

What cannot be consulted does not stop an agent: where memory fails, it answers without advice, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NotRequired, Protocol, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import Runnable
from langgraph.config import get_config
from langgraph.store.base import BaseStore
from langgraph.types import Command

from ...memory.conversation_store import Conversation, ConversationStore, Rating, Turn
from ...memory.conversations import StateKey, goal_and_last_turn, steps
from ...memory.errors import UserError
from ...memory.records import Task, Trajectory

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest
    from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
except ImportError as error:
    raise ImportError("learning agents need langchain, which is missing: pip install 'langchain>=1.4'") from error

__all__ = ["Advice", "LearningMiddleware", "LearningState", "Mode", "PendingCall", "Place"]

LOG = logging.getLogger(__name__)
Mode = Literal["guide", "observe", "off"]
"""`guide`: records and advises. `observe`: records, and gives no advice: the control arm. `off`: neither."""
MAX_SAMPLING_THREADS = 64
"""Model calls that wait side by side in agents that are not awaited."""
MAX_SCOPES = 1_000
"""Scopes whose memories are held open at once; the least recently used is closed."""


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
    """To be answered side by side by the agent's model."""
    runnable: Runnable[Any, Any] | None = None
    input: Any = None


@dataclass
class Advice:
    """The outcome of a consultation."""

    response: ModelResponse[Any]
    entry: dict[str, Any]
    """The record of it as plain data: recalled trajectories, what was added, what was chosen."""


Consultation = Generator[PendingCall, Any, Advice]
"""Yields what it waits for and receives the answers: a list of model responses, or the runnable's output."""


class MemoryIndex(Protocol):
    """A method's memory of one scope."""

    def add(self, trajectory: Trajectory, /) -> None:
        """Take in a rated stretch of a conversation; one with a known id takes the place of the former."""
        ...


Index = TypeVar("Index", bound=MemoryIndex)


@dataclass
class ScopeMemory(Generic[Index]):
    """The conversations of a scope, and the method's memory of them."""

    conversations: ConversationStore
    index: Index
    seen: dict[str, int] | None = None
    """The changes that the memory holds."""
    looked: float = -1e9
    """Time of the last look for changes."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class LearningMiddleware(AgentMiddleware[LearningState, Any, Any], Generic[Index]):
    """Records an agent's conversations and their feedback, and consults a method's memory before each model call.

    Args:
        store: any LangGraph store, or the folder of a `ChromaStore`.
        name: of the agent: the beginning of its namespace. Agents of one name share what they learn.
        mode: `guide`, `observe` or `off`.
        scope: names of values in the config's `configurable` that keep conversations apart, such as `("tenant", "user_id")`. What
            was learned in one scope is never seen in another. A value that is not given counts as one of its own.
        task: the messages -> an id of the kind of task. Methods that compare attempts at one task compare those of one id. Not
            given: all conversations are attempts at the same.
        state_key: the messages that were read -> the text by which states are compared.
        refresh_seconds: how old the knowledge of what other processes have learned may be.

    Raises:
        UserError: an argument is not what it may be.
    """

    method: ClassVar[str] = ""
    """Name of the method in records."""
    state_schema = LearningState

    def __init__(
        self,
        store: BaseStore | str | Path,
        *,
        name: str = "agent",
        mode: Mode = "guide",
        scope: Sequence[str] = ("tenant",),
        task: Callable[[Sequence[AnyMessage]], str] | None = None,
        state_key: StateKey = goal_and_last_turn,
        refresh_seconds: float = 1.0,
    ) -> None:
        super().__init__()
        if mode not in ("guide", "observe", "off"):
            raise UserError(f"mode is guide, observe or off, got {mode!r}")
        if isinstance(store, str | Path):
            from ...memory.storage.chroma_store import ChromaStore

            store = ChromaStore(store)
        self.store, self.agent_name, self.mode = store, name, mode
        self.scope_names, self.state_key, self.refresh_seconds = tuple(scope), state_key, refresh_seconds
        self._task = task
        self._scopes: OrderedDict[tuple[str, ...], ScopeMemory[Index]] = OrderedDict()
        self._lock = threading.Lock()

    # -- what a method defines --------------------------------------------------------------------------------------------

    def make_index(self) -> Index:
        """An empty memory for a scope."""
        raise NotImplementedError

    def consult(self, request: ModelRequest[Any], place: Place, memory: Index) -> Consultation:
        """Advise a model call: a generator that yields what it asks for, and returns the response with its entry."""
        raise NotImplementedError

    def read_tools(self, tools: Sequence[Any]) -> bool:
        """Take note of the tools that the agent has at this call; returns True if `adapt` works differently from now on."""
        return False

    def adapt(self, trajectory: Trajectory) -> Trajectory | None:
        """The form in which this method remembers a rated stretch; None: not at all."""
        return trajectory

    # -- feedback ---------------------------------------------------------------------------------------------------------

    def feedback(
        self,
        thread_id: str,
        *,
        reward: float | None = None,
        text: str = "",
        run_id: str | None = None,
        source: str = "user",
        **scope: str,
    ) -> Rating:
        """Rate what the agent did in a thread since the feedback before this. The same turn rated again: the last one holds.

        It may come late, from another process, or never: a missing reward is not 0.

        Args:
            thread_id: the thread's id, as in the agent's config.
            reward: a finite number in the app's units.
            text: the same in words; methods that read words use them.
            run_id: id of the run that ended the turn; the thread's last turn if not given.
            source: who decided.
            scope: the values of the scope, as in the agent's config: `tenant="acme"`.

        Raises:
            UserError: the thread or the run is unknown, the reward is not finite, or neither reward nor text is given.
        """
        import math

        if reward is None and not text:
            raise UserError("feedback: give a reward, a text, or both")
        if reward is not None and not math.isfinite(reward):
            raise UserError(f"feedback: a reward is a finite number, got {reward}")
        labels = self._labels(scope, strict=True)
        return self._memory(labels).conversations.rate(thread_id, reward, text, run_id=run_id, source=source)

    def conversation(self, thread_id: str, **scope: str) -> Conversation:
        """The recorded turns of a thread, with what the method did in each."""
        return self._memory(self._labels(scope, strict=True)).conversations.conversation(thread_id)

    def explain(self, thread_id: str, **scope: str) -> str:
        """An account of a thread in words: what was recalled, added and chosen in each turn."""
        lines = []
        for number, turn in enumerate(self.conversation(thread_id, **scope).turns):
            lines.append(f"turn {number + 1}:")
            lines += [f"  {line}" for entry in turn.advice for line in self.describe(entry)] or ["  no advice was recorded"]
        return "\n".join(lines)

    def describe(self, entry: Mapping[str, Any]) -> list[str]:
        """An entry in words, a line each."""
        recalled = entry.get("recalled", ())
        return [f"{entry['method']}: recalled {', '.join(recalled) if recalled else 'nothing'}", *entry.get("said", ())]

    def forget(self, threads: Sequence[str] | None = None, **scope: str) -> int:
        """Delete what is kept of these threads, or of all of the scope; returns the number of trajectories deleted."""
        return self._memory(self._labels(scope, strict=True)).conversations.forget(threads)

    def export(self, **scope: str) -> Iterator[dict[str, Any]]:
        """All that is kept of a scope, one plain object per conversation."""
        return self._memory(self._labels(scope, strict=True)).conversations.export()

    # -- hooks of the agent -----------------------------------------------------------------------------------------------

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """PendingCall the model with the method's advice."""
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
                answer = asked.runnable.invoke(asked.input)
            else:
                answer = _answer_all(asked.requests, handler)
                first = first or answer[:1]

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        """PendingCall the model with the method's advice, in an agent that is awaited."""
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
                answer = await asked.runnable.ainvoke(asked.input)
            else:
                answer = [_response(one) for one in await asyncio.gather(*(handler(one) for one in asked.requests))]
                first = first or answer[:1]

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Record the turn that has ended."""
        if self.mode == "off":
            return
        try:
            place = self._place(state, runtime)
            self._record(place, state, _run_id(runtime))
        except Exception as error:  # a store that is down must not take the answer from the user
            LOG.warning("%s: a turn was not recorded, and nothing is learned from it: %s", self.method, error)

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """Record the turn that has ended, in an agent that is awaited."""
        await asyncio.to_thread(self.after_agent, state, runtime)

    # -- within -----------------------------------------------------------------------------------------------------------

    def _begin(self, request: ModelRequest[Any]) -> Consultation | None:
        """The consultation of a model call; None where there is none."""
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
        """The next thing that a consultation asks for, or its outcome; None if it failed."""
        try:
            return gen.send(answer)
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
        request.runtime.stream_writer({"learning": entry})
        return ExtendedModelResponse(advice.response, Command(update={"learning": [entry]}))

    def _record(self, place: Place, state: Mapping[str, Any], run_id: str) -> None:
        messages = state["messages"]
        start = next((n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], HumanMessage)), 0)
        done = steps(messages, self.state_key)[len(steps(messages[:start], self.state_key)) :]
        entries = tuple(
            {key: value for key, value in entry.items() if key != "turn"}
            for entry in state.get("learning", ())
            if entry.get("turn") == place.turn and entry.get("method") == self.method
        )
        if done:
            turn = Turn(place.turn, done, run_id, entries)
            self._memory(place.scope).conversations.record(place.thread, turn, place.task, self.agent_name)

    def _place(self, state: Any, runtime: Any) -> Place:
        messages = state["messages"]
        configurable = get_config().get("configurable", {})
        humans = [m for m in messages if isinstance(m, HumanMessage)]
        thread = configurable.get("thread_id") or (humans[0].id if humans else None) or "no thread"
        task = self._task(messages) if self._task is not None else self.agent_name
        goal = str(humans[0].text) if humans else ""
        last = next((n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], HumanMessage)), 0)
        calls = sum(isinstance(m, AIMessage) for m in messages[last:])
        scope = self._labels(configurable)
        return Place(str(thread), scope, _turn_id(messages), len(humans) - 1, Task(task, goal), calls)

    def _labels(self, values: Mapping[str, Any], *, strict: bool = False) -> tuple[str, ...]:
        """The namespace of a scope."""
        if strict and (unknown := values.keys() - set(self.scope_names)):
            raise UserError(
                f"the scope of this agent has {', '.join(self.scope_names) or 'no names'}; got {', '.join(sorted(unknown))}"
            )
        labels = (
            f"{name}={_escape(str(values[name]))}" if values.get(name) is not None else f"{name}" for name in self.scope_names
        )
        return ("agents", _escape(self.agent_name), *labels)

    def _memory(self, scope: tuple[str, ...]) -> ScopeMemory[Index]:
        with self._lock:
            if scope not in self._scopes:
                self._scopes[scope] = ScopeMemory(ConversationStore(self.store, scope), self.make_index())
                while len(self._scopes) > MAX_SCOPES:
                    self._scopes.popitem(last=False)
            self._scopes.move_to_end(scope)
            return self._scopes[scope]

    def _rebuild_indexes(self) -> None:
        """Make all memories anew when they are used next."""
        with self._lock:
            for memory in self._scopes.values():
                memory.seen = None

    def _refreshed(self, scope: tuple[str, ...]) -> ScopeMemory[Index]:
        """The memory of a scope, with what was learned since the last look."""
        memory = self._memory(scope)
        with memory.lock:
            now = time.monotonic()
            if now - memory.looked < self.refresh_seconds and memory.seen is not None and not memory.conversations.has_news:
                return memory
            memory.conversations.has_news = False
            changed, memory.seen = memory.conversations.changes(memory.seen)
            if changed is None:
                memory.index, changed = self.make_index(), memory.conversations.trajectories.all()
            for one in changed:
                if (form := self.adapt(one)) is not None:
                    memory.index.add(form)
            memory.looked = now
        return memory


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
    last = next((m for m in reversed(messages) if isinstance(m, HumanMessage)), None)
    return str(last.id) if last is not None and last.id else "turn"


def _run_id(runtime: Any) -> str:
    info = getattr(runtime, "execution_info", None)
    return str(getattr(info, "run_id", None) or "")


def _escape(label: str) -> str:
    """A label of a namespace: LangGraph forbids dots and empty ones."""
    from urllib.parse import quote

    return quote(label, safe=" @+:,=").replace(".", "%2E") or "%00"
