"""The nodes of a served chat: answer it, record it, wait for feedback, keep that (CLaaS, arXiv:2606.05559).

graphs/claas.py wires them; they work in any LangGraph app. They answer through an `Engine`, a model that holds several versions of an
adapter: tools/local/engine.py and tools/serving/vllm_engine.py have one each.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, Protocol, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config, get_stream_writer
from langgraph.types import interrupt
from typing_extensions import TypedDict

from ...memory.errors import ReplayError, UserError, type_of
from ...memory.records import ChatRequest, Exchange, Feedback, Piece, Reply
from ..state import AdapterScope, AnswerChannels, ChatInput, ExchangeStateChannel, FeedbackChannels, ReceiptChannels

if TYPE_CHECKING:
    from ...memory.claas.replay import Replay

__all__ = [
    "DEFAULT_SCOPE",
    "STREAM_CALLBACK",
    "AwaitFeedback",
    "Engine",
    "KeepFeedback",
    "RecordExchange",
    "Respond",
    "Route",
    "route_to_base",
    "scope",
]

LOG = logging.getLogger("learngraph.service")
DEFAULT_SCOPE = "default"
"""Name of the tenant and of the adapter where none is given."""
STREAM_CALLBACK = "tell"
"""`{"configurable": {STREAM_CALLBACK: function}}` receives the pieces and the exchange in place of the custom stream. The node's
thread calls it at once: the event loop's for pieces."""
FEEDBACK_KEYS = frozenset({"reward", "success", "text", "source", "key"})
"""Keys of an answer to `AwaitFeedback`."""


class Engine(Protocol):
    """A model that answers chats token by token, with any version of an adapter that it holds."""

    @property
    def base(self) -> str:
        """Fingerprint of the base model, its tokenizer and chat template."""

    @property
    def window(self) -> int:
        """Largest number of tokens of prompt and reply together."""

    @property
    def features(self) -> frozenset[str]:
        """Optional request features that it supports: of `tools`, `tool_choice`, `response_format`, `logit_bias`, `presence_penalty`,
        `frequency_penalty`, `raw`."""

    def stream(self, request: ChatRequest, version: str = "", tenant: str = "") -> AsyncIterator[Piece | Reply]:
        """Pieces of the reply as they are generated, and then the whole reply. Closing the iterator cancels the generation.

        Args:
            request: what is asked.
            version: label of the version that answers; empty: the base model.
            tenant: whose request it is. Tenants share neither cached prompts nor a queue.

        Raises:
            UserError: no such version is loaded; the prompt is longer than the window; an unsupported option.
        """

    async def load(self, version: str, folder: Path) -> None:
        """Load a version beside the others, under its label; running requests go on. A second call has no effect.

        Raises:
            UserError: it is an adapter of another base model, or corrupt.
        """

    async def unload(self, version: str) -> None:
        """Unload a version when the requests on it have ended."""

    def loaded_versions(self) -> tuple[str, ...]:
        """Labels of the loaded versions, without the base model's."""

    async def vitals(self) -> dict[str, float]:
        """A sign of life from the model itself: `waiting` and `running` replies, and what else it counts.

        Raises:
            UserError: it does not answer.
        """

    async def close(self) -> None:
        """Cancel running requests and free the model."""


class Route(Protocol):
    """Chooses the version that answers: its label, loaded in the engine (empty: the base model), and its number of steps P(i)."""

    async def __call__(self, tenant: str, adapter: str, id: str) -> tuple[str, int]: ...


async def route_to_base(tenant: str, adapter: str, id: str) -> tuple[str, int]:
    """A route to the base model."""
    return "", 0


def scope(state: Mapping[str, Any]) -> tuple[str, str]:
    """(tenant, adapter) of a state; `default` where a name is missing."""
    return state.get("tenant") or DEFAULT_SCOPE, state.get("adapter") or DEFAULT_SCOPE


class AnsweredChat(ChatInput, AnswerChannels):
    """A chat turn with its reply."""


class RepliedId(TypedDict):
    """A reply, by the id that feedback names."""

    id: str
    reply: Reply


class GivenFeedback(AdapterScope):
    """Feedback on the reply of this id."""

    id: str
    feedback: Feedback
    key: NotRequired[str]


@dataclass(frozen=True)
class Respond(Runnable[ChatInput, AnswerChannels]):
    """y ~ pi_k(. | x): the version that the route names answers. Pieces of the reply go to the graph's custom stream."""

    role: ClassVar[str] = "model"

    engine: Engine = field(repr=False)
    route: Route = field(default=route_to_base, repr=False)

    async def ainvoke(self, input: ChatInput, config: RunnableConfig | None = None, **kwargs: Any) -> AnswerChannels:
        tenant, adapter = scope(input)
        version, step = await self.route(tenant, adapter, input["id"])
        tell = _writer()
        stream = self.engine.stream(input["request"], version, tenant)
        async with aclosing(cast(Any, stream)):  # a client that disconnects cancels the generation
            async for piece in stream:
                if isinstance(piece, Reply):
                    return {"reply": piece, "step": step}
                tell(piece)
        raise RuntimeError(f"the engine's stream for {input['id']} ended without a reply")

    def invoke(self, input: ChatInput, config: RunnableConfig | None = None, **kwargs: Any) -> AnswerChannels:
        """`ainvoke` for graphs that are not async; in a thread, since this one may run an event loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, asyncio.run, self.ainvoke(input, config)).result()


def _writer() -> Callable[[Any], None]:
    """The callback or the graph's stream; outside a graph a function that does nothing."""
    try:
        tell = get_config().get("configurable", {}).get(STREAM_CALLBACK)
        return tell if tell is not None else get_stream_writer()
    except RuntimeError:
        return lambda piece: None


@dataclass(frozen=True)
class RecordExchange:
    """Append the exchange to the replay buffer, then send it to the custom stream, after the last piece.

    A client that has seen the exchange can give feedback on it.
    """

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)
    base: str
    """Fingerprint of the engine's base model."""
    clock: Callable[[], float] = field(default=time.time, repr=False)
    must_store: bool = True
    """False: a chat whose exchange the buffer cannot store (a full disk) is answered all the same, and takes no feedback."""

    def __call__(self, state: AnsweredChat) -> ExchangeStateChannel:
        exchange = replace(make_exchange(state, self.base), created=self.clock())
        is_stored = state.get("store", True)
        if is_stored:
            try:
                self.replay.append(exchange)
            except ReplayError as error:
                if self.must_store:
                    raise
                LOG.error("%s was answered without a record: %s", exchange.id, error)
                is_stored = False
        _writer()(exchange)
        return {"state": "pending" if is_stored else "not kept"}


def make_exchange(state: Mapping[str, Any], base: str) -> Exchange:
    """The exchange of a state: request, reply, version and labels."""
    tenant, adapter = scope(state)
    labels = {name: state[name] for name in ("family", "scenario", "turn", "user") if name in state}
    return Exchange(state["id"], tenant, state["request"], state["reply"], base, adapter, state["step"], **labels)


@dataclass(frozen=True)
class AwaitFeedback(Runnable[RepliedId, FeedbackChannels]):
    """Interrupt the graph until feedback comes: `Command(resume={"reward": 1, "text": "..."})`, minutes or days later.

    An invalid answer interrupts again, with the reason under `error`.
    """

    role: ClassVar[str] = "compute"

    async def ainvoke(self, input: RepliedId, config: RunnableConfig | None = None, **kwargs: Any) -> FeedbackChannels:
        return self.invoke(input, config)  # it does not block, and a thread would be half the cost of a chat

    def invoke(self, input: RepliedId, config: RunnableConfig | None = None, **kwargs: Any) -> FeedbackChannels:
        reply = input["reply"]
        question: dict[str, Any] = {"id": input["id"], "text": reply.text, "version": reply.version}
        while True:
            answer = interrupt(question)
            try:
                key = str(answer.get("key", "")) if isinstance(answer, Mapping) else ""
                return {"feedback": read_feedback(answer), "key": key}
            except UserError as error:
                question = {**question, "error": str(error)}


def read_feedback(answer: Any) -> Feedback:
    """Feedback from a number (reward), a text, a bool (success), or a mapping of `reward`, `success`, `text`, `source`.

    Success is a reward of 1, failure one of -1.

    Raises:
        UserError: it is none of these; it has both a reward and a success; the reward is not from -1 to 1.
    """
    if isinstance(answer, Feedback):
        return answer
    if isinstance(answer, bool):
        answer = {"success": answer}
    elif isinstance(answer, str):
        answer = {"text": answer}
    elif isinstance(answer, int | float):
        answer = {"reward": answer}
    if not isinstance(answer, Mapping) or (set(answer) - FEEDBACK_KEYS):
        came = type_of(answer) if not isinstance(answer, Mapping) else ", ".join(map(str, answer))
        raise UserError(f"feedback: {came} cannot be read; give a mapping of {', '.join(sorted(FEEDBACK_KEYS))}")
    reward, success, text = answer.get("reward"), answer.get("success"), answer.get("text") or ""
    if success is not None and (reward is not None or not isinstance(success, bool)):
        raise UserError("feedback: success is true or false, and replaces a reward; give one of the two")
    if not isinstance(text, str) or isinstance(reward, bool) or not isinstance(reward, int | float | None):
        raise UserError(f"feedback: a reward is a number and a text a text, got {reward!r} and {text!r}")
    if success is not None:
        reward = 1.0 if success else -1.0
    return Feedback(None if reward is None else float(reward), text, str(answer.get("source") or "user"))


@dataclass(frozen=True)
class KeepFeedback:
    """Store the feedback: the exchange is ready to be learned from, or held out for the gate. A repeated feedback is stored once.

    Raises:
        UserError: there is no such exchange (perhaps it was deleted), or it was learned from already.
    """

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)

    def __call__(self, state: GivenFeedback) -> ReceiptChannels:
        receipt = self.replay.add_feedback(scope(state)[0], state["id"], state["feedback"], state.get("key", ""))
        return {"job": receipt.job, "state": receipt.state, "repeated": receipt.is_repeat}
