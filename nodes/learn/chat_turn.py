"""The nodes of a served chat: answer it, record it, wait for what somebody says of it, keep that (CLaaS, arXiv:2606.05559).

They stand in graphs/claas.py and in any LangGraph app. `Engine` is what they need of a model that answers with versions of an
adapter; tools/local/engine.py and tools/serving/vllm_engine.py are two.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config, get_stream_writer
from langgraph.types import interrupt

from ...memory.errors import UserError
from ...memory.records import ChatRequest, Exchange, Feedback, Piece, Reply, Sampling
from ..state import ChatState

if TYPE_CHECKING:
    from ...memory.claas.replay import Replay

DEFAULT_SCOPE = "default"
"""The tenant and the adapter of whoever names none."""
STREAM_CALLBACK = "tell"
"""`{"configurable": {TELL: function}}` takes the pieces and the exchange in the place of the custom stream. It is called at once, by
whichever thread the node runs in: the event loop's for pieces."""
FEEDBACK_KEYS = frozenset({"reward", "success", "text", "source", "key"})
"""What an answer to `AwaitFeedback` may say."""


class Engine(Protocol):
    """A model that answers chats with any version of an adapter that it holds, token by token."""

    @property
    def base(self) -> str:
        """Fingerprint of the base model, its tokenizer and chat template."""
        ...

    @property
    def window(self) -> int:
        """Tokens of prompt and reply together."""
        ...

    @property
    def features(self) -> frozenset[str]:
        """What it can honour besides the core: of `tools`, `tool_choice`, `response_format`, `logit_bias`, `presence_penalty`,
        `frequency_penalty`, `raw`."""
        ...

    def stream(self, request: ChatRequest, version: str = "") -> AsyncIterator[Piece | Reply]:
        """The reply as it grows, and in the end the whole of it. Closing the iterator cancels the generation.

        Raises:
            UserError: no such version is loaded; the prompt is longer than the window; an option that it cannot honour.
        """
        ...

    async def load(self, version: str, folder: Path) -> None:
        """Hold a version beside the others, under its own label; running requests go on. Twice is once.

        Raises:
            UserError: it is an adapter of another base, or corrupt.
        """
        ...

    async def unload(self, version: str) -> None:
        """Let go of a version when the requests on it have ended."""
        ...

    def loaded_versions(self) -> tuple[str, ...]:
        """Labels of the versions it holds, without the base model's."""
        ...

    async def close(self) -> None:
        """End what runs and let go of the model."""
        ...


class Route(Protocol):
    """Which version answers: a label that the engine holds (empty: the base model), and P(i), the gradient steps behind it."""

    async def __call__(self, tenant: str, adapter: str, id: str) -> tuple[str, int]: ...


async def route_to_base(tenant: str, adapter: str, id: str) -> tuple[str, int]:
    """The route of whoever has no versions yet: the base model answers."""
    return "", 0


def scope(state: Mapping[str, Any]) -> tuple[str, str]:
    """(tenant, adapter) of a state."""
    return state.get("tenant") or DEFAULT_SCOPE, state.get("adapter") or DEFAULT_SCOPE


def chat_request(messages: Sequence[BaseMessage], sampling: Sampling | None = None, **options: Any) -> ChatRequest:
    """LangChain's messages as a request: what a LangGraph app that keeps `messages` gives the serving graph."""
    openai = convert_to_openai_messages(list(messages))
    return ChatRequest(tuple(openai), sampling or Sampling(), **options)


@dataclass(frozen=True)
class Respond(Runnable[Any, Any]):
    """y ~ pi_k(. | x): the version that the route names answers. Pieces of the reply go to the graph's custom stream."""

    role: ClassVar[str] = "model"

    engine: Engine = field(repr=False)
    route: Route = field(default=route_to_base, repr=False)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        version, step = await self.route(*scope(input), input["id"])
        tell = _writer()
        stream = self.engine.stream(input["request"], version)
        async with aclosing(cast(Any, stream)):  # whoever goes away takes the generation along
            async for piece in stream:
                if isinstance(piece, Reply):
                    return {"reply": piece, "step": step}
                tell(piece)
        raise RuntimeError(f"the engine's stream for {input['id']} ended without a reply")

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """The same for graphs that are not async; in a thread, as this one may have an event loop already."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, asyncio.run, self.ainvoke(input, config)).result()


def _writer() -> Callable[[Any], None]:
    """Where the graph streams to; nowhere, outside a graph."""
    try:
        tell = get_config().get("configurable", {}).get(STREAM_CALLBACK)
        return tell if tell is not None else get_stream_writer()
    except RuntimeError:
        return lambda piece: None


@dataclass(frozen=True)
class RecordExchange:
    """The exchange joins the replay buffer before anybody hears that it is done: feedback by its id finds it from now on.

    It goes to the custom stream too, after the last piece.
    """

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)
    base: str
    """The engine's."""
    clock: Callable[[], float] = field(default=time.time, repr=False)

    def __call__(self, state: ChatState) -> dict[str, Any]:
        exchange = replace(make_exchange(state, self.base), created=self.clock())
        kept = state.get("store", True)
        if kept:
            self.replay.append(exchange)
        _writer()(exchange)
        return {"state": "pending" if kept else "not kept"}


def make_exchange(state: Mapping[str, Any], base: str) -> Exchange:
    """What was asked, what was said by which version."""
    tenant, adapter = scope(state)
    return Exchange(
        state["id"],
        tenant,
        state["request"],
        state["reply"],
        base,
        adapter,
        state["step"],
        family=state.get("family", ""),
        scenario=state.get("scenario", ""),
        turn=state.get("turn", 0),
    )


@dataclass(frozen=True)
class AwaitFeedback(Runnable[Any, Any]):
    """Stop until somebody says what the reply was worth: `Command(resume={"reward": 1, "text": "..."})`, minutes or days later.

    An answer that cannot be read is asked for again, with the reason under `error`.
    """

    role: ClassVar[str] = "compute"

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        return self.invoke(input, config)  # it waits for nothing: a thread of its own would be half the cost of a chat

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        reply = input["reply"]
        question: dict[str, Any] = {"id": input["id"], "text": reply.text, "version": reply.version}
        while True:
            answer = interrupt(question)
            try:
                return {"feedback": read_feedback(answer), "key": _key(answer)}
            except UserError as error:
                question = {**question, "error": str(error)}


def _key(answer: Any) -> str:
    return str(answer.get("key", "")) if isinstance(answer, Mapping) else ""


def read_feedback(answer: Any) -> Feedback:
    """A number, words, true or false, or a mapping of `reward`, `success`, `text`, `source`, as feedback.

    Success is a reward of 1, failure one of -1.

    Raises:
        UserError: it is none of these; both a reward and a success; a reward that is no number from -1 to 1.
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
        came = f"a {type(answer).__name__}" if not isinstance(answer, Mapping) else ", ".join(map(str, answer))
        raise UserError(f"feedback: {came} cannot be read; a mapping of {', '.join(sorted(FEEDBACK_KEYS))} would do")
    reward, success, text = answer.get("reward"), answer.get("success"), answer.get("text") or ""
    if success is not None and (reward is not None or not isinstance(success, bool)):
        raise UserError("feedback: success is true or false, and stands in the place of a reward, not beside it")
    if not isinstance(text, str) or isinstance(reward, bool) or not isinstance(reward, int | float | None):
        raise UserError(f"feedback: a reward is a number and a text a text, got {reward!r} and {text!r}")
    if success is not None:
        reward = 1.0 if success else -1.0
    return Feedback(None if reward is None else float(reward), text, str(answer.get("source") or "user"))


@dataclass(frozen=True)
class KeepFeedback:
    """(x, y, r) is ready to be learned from, or held out for the gate. The same feedback twice is kept once.

    Raises:
        UserError: no such exchange (perhaps forgotten), or it was learned from already.
    """

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)

    def __call__(self, state: ChatState) -> dict[str, Any]:
        receipt = self.replay.add_feedback(scope(state)[0], state["id"], state["feedback"], state.get("key", ""))
        return {"job": receipt.job, "state": receipt.state, "repeated": receipt.is_repeat}
