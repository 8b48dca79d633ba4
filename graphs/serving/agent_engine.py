"""An agent of LangGraph as an `Engine`: somebody else's model answers, and a learning middleware puts what was learned into its context.

The agent runs within the serving graph, under the id of the response as its thread and with the tenant and the adapter as its scope
(`Service` puts them into the run's config): so feedback on a response finds the conversation, in that tenant's memory only.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, hook_config
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage, convert_to_messages
from langgraph.config import get_config
from langgraph.graph.state import CompiledStateGraph

from ...memory.conversations.screen import Screen
from ...memory.errors import Unavailable, UserError, type_of
from ...memory.records import ChatRequest, Piece, Reply

__all__ = ["AgentEngine"]

LOG = logging.getLogger("learngraph.service")
REQUEST = "chat_request"
"""Key of a run's `configurable`: what the client asked for."""
CHAT_FEATURES = frozenset({"tools", "tool_choice", "response_format", "logit_bias", "presence_penalty", "frequency_penalty"})
DEFAULT_WINDOW = 2**31
"""Window of a model that does not tell: its provider refuses what is too long."""
REFUSALS = (400, 413, 422)
"""A provider's statuses that put the fault into the request."""
CHAT_MODELS = "langchain_core.language_models.chat_models"
"""The module that reads what a provider sends: an error that passes through it is the provider's, and no agent's."""
AWAY_AFTER, RETRY_SECONDS = 3, 10.0
"""Requests in a row without a reply after which the provider is away; seconds after which it is asked for its models, which costs nothing."""
UNREADABLE = "sent no reply that can be read"


class ClientRequest(AgentMiddleware[Any, Any, Any]):
    """Makes a model call the client's: with his system message in the agent's, his tools and his sampling.

    Args:
        has_tools: the agent has tools of its own; else its calls are of the client's tools, who makes them.
    """

    def __init__(self, has_tools: bool) -> None:
        super().__init__()
        self._has_tools = has_tools

    @hook_config(can_jump_to=["end"])
    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the turn at calls of the client's tools: the agent would answer itself that it has none such, again and again."""
        return {"jump_to": "end"} if not self._has_tools and state["messages"][-1].tool_calls else None

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        """Ask the model as the client wants it asked."""
        asked: ChatRequest = get_config()["configurable"][REQUEST]
        own = [request.system_message] if request.system_message else []
        given = [message for message in request.messages if isinstance(message, SystemMessage)]
        rest = [message for message in request.messages if not isinstance(message, SystemMessage)]
        system = "\n\n".join(message.text for message in [*own, *given] if message.text)
        changed: dict[str, Any] = {"messages": rest, "model_settings": {**request.model_settings, **_options(asked)}}
        if system:
            changed["system_message"] = SystemMessage(system)
        if asked.tools:
            changed |= {"tools": [*request.tools, *asked.tools], "tool_choice": asked.tool_choice or request.tool_choice}
        return await handler(request.override(**changed))


def _options(asked: ChatRequest) -> dict[str, Any]:
    """Options of the model that a client asked for, beside messages and tools; a value that changes nothing is left to the provider."""
    sampling = asked.sampling
    options: dict[str, Any] = {"max_tokens": sampling.max_tokens}
    options |= {name: value for name in ("temperature", "top_p") if (value := getattr(sampling, name)) != 1}
    options |= {"seed": sampling.seed} if sampling.seed is not None else {}
    options |= {"stop": list(sampling.stop)} if sampling.stop else {}
    options |= {"response_format": asked.response_format} if asked.response_format is not None else {}
    return options | {name: value for name, value in asked.more.items() if value is not None}


@dataclass
class AgentEngine:
    """An agent as an `Engine` (nodes/learn/chat_turn.py). It holds no versions: what was learned is the learner's.

    Args:
        model: the chat model.
        learner: the learning middleware, of the scope `("tenant", "adapter")`.
        base: a name for what the exchanges belong to.
        make_agent: (model, middleware) -> the agent, a compiled graph; None: the model alone, with the client's tools.

    Raises:
        UserError: `make_agent` returns something else.
    """

    model: BaseChatModel
    learner: AgentMiddleware[Any, Any, Any]
    base: str
    make_agent: Callable[[BaseChatModel, Sequence[AgentMiddleware[Any, Any, Any]]], Any] | None = field(
        default=None, repr=False
    )
    features: frozenset[str] = field(init=False)
    window: int = field(init=False)
    running: int = field(init=False, default=0)
    _failures: int = field(init=False, default=0)
    _asked: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        middleware = [ClientRequest(self.make_agent is not None), self.learner]
        if self.make_agent is None:
            self._agent: Any = create_agent(self.model, middleware=middleware)
        else:
            self._agent = self.make_agent(self.model, middleware)
        if not isinstance(self._agent, CompiledStateGraph):
            raise UserError(
                f"serve: --graph names a function of (model, middleware) that returns a compiled graph, such as that of "
                f"create_agent(model, tools, middleware=middleware); it returned {type_of(self._agent)}"
            )
        # An agent calls its own tools within its own graph; a client's calls would have nobody to answer them there.
        self.features = CHAT_FEATURES if self.make_agent is None else CHAT_FEATURES - {"tools", "tool_choice"}
        self.window = int((getattr(self.model, "profile", None) or {}).get("max_input_tokens") or DEFAULT_WINDOW)

    async def stream(self, request: ChatRequest, version: str = "", tenant: str = "") -> AsyncIterator[Piece | Reply]:
        """Pieces of the reply as the provider sends them, and then the whole reply.

        Raises:
            UserError: the provider refuses the request, or it asks for log-probabilities.
            Unavailable: the provider, or the graph, fails.
        """
        if request.top_logprobs is not None:
            raise UserError("logprobs: the model behind this service is another's, whose log-probabilities are not passed on")
        given = _with_names(convert_to_messages(list(request.messages)))
        said, messages = "", list[Any]()
        with self._count_failures():
            try:
                asked = {"configurable": {REQUEST: request}}
                async for kind, part in self._agent.astream({"messages": given}, asked, stream_mode=["messages", "values"]):
                    if kind == "values":
                        messages = part["messages"]
                    elif isinstance(part[0], AIMessage) and part[0].text:
                        said += part[0].text
                        yield Piece(part[0].text)
            except Exception as error:
                raise _failure(error) from error
            reply = _reply([message for message in messages[len(given) :] if isinstance(message, AIMessage)], said)
        yield reply

    @contextmanager
    def _count_failures(self) -> Iterator[None]:
        """Count a request under way, and those in a row that got no reply; a refusal is one."""
        self.running += 1
        try:
            yield
            self._failures = 0
        except Unavailable:
            self._failures, self._asked = self._failures + 1, time.monotonic()
            raise
        except UserError:
            self._failures = 0
            raise
        finally:
            self.running -= 1

    async def load(self, version: str, folder: Path) -> None:
        """Refuse a version: there are none."""
        raise UserError("this service learns in the context of its model's prompts: it has no versions to load")

    async def unload(self, version: str) -> None:
        """Do nothing: there are no versions."""

    def loaded_versions(self) -> tuple[str, ...]:
        """No labels."""
        return ()

    async def vitals(self) -> dict[str, float]:
        """The number of replies under way; the provider is not asked for one, which would cost money.

        Raises:
            Unavailable: it gave none to the last requests (`AWAY_AFTER`), and a while after the last does not list its models either.
        """
        if self._failures >= AWAY_AFTER:
            is_early = time.monotonic() < self._asked + RETRY_SECONDS
            if is_early or not await asyncio.to_thread(self._lists_models):
                raise Unavailable(f"the model behind this service gave no reply to the last {self._failures} requests")
            self._failures = AWAY_AFTER - 1  # requests may try again
        return {"running": float(self.running)}

    def _lists_models(self) -> bool:
        """True if the provider lists its models, or has no such list."""
        self._asked = time.monotonic()
        client = getattr(self.model, "root_client", None)
        try:
            return client is None or bool(client.with_options(timeout=3.0, max_retries=0).models.list())
        except Exception as error:
            return getattr(error, "status_code", 0) == 404

    async def close(self) -> None:
        """Close the learner and its store."""
        self.learner.close()  # type: ignore[attr-defined]


def _with_names(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages with the names of the tools that results are of: OpenAI's protocol gives the ids of their calls alone."""
    names = {call["id"]: call["name"] for one in messages if isinstance(one, AIMessage) for call in one.tool_calls}
    return [
        one.model_copy(update={"name": names.get(one.tool_call_id)}) if isinstance(one, ToolMessage) and not one.name else one
        for one in messages
    ]


def _reply(made: Sequence[AIMessage], streamed: str) -> Reply:
    """The reply of an agent's messages; all text that it said, as it was streamed, or else the last message's."""
    if not made:
        raise Unavailable("the graph ended without a message of its model", "the agent has made no reply; try again")
    last = made[-1]
    about = last.response_metadata
    is_empty = not (streamed or last.text or last.tool_calls)
    if (is_empty or about.get("model_provider") == "openai") and not {"finish_reason", "status"} & about.keys():
        raise Unavailable("the provider's stream has no end", "the model's provider broke off its reply; try again later")
    usages = [message.usage_metadata for message in made if message.usage_metadata]
    billed = sum(one["input_tokens"] for one in usages), sum(one["output_tokens"] for one in usages)
    finish = "tool_calls" if last.tool_calls else str(last.response_metadata.get("finish_reason") or "stop")
    calls = tuple(
        {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": json.dumps(one["args"])}}
        for one in last.tool_calls
    )
    return Reply(streamed or last.text, (), (), (), finish=finish, tool_calls=calls, billed=billed)


def _failure(error: Exception) -> UserError:
    """The error that a client gets for a provider's or a graph's error: whose fault it is, and no address or key."""
    if isinstance(error, Unavailable):
        return error
    cause: Any = error.__cause__ if isinstance(error, UserError) and error.__cause__ is not None else error
    status = getattr(cause, "status_code", getattr(cause, "status", None))
    if status in REFUSALS:
        refused = UserError(_cut(str(error)))
        reason = str(getattr(cause, "reason", "") or getattr(cause, "message", "") or cause)
        refused.public_message = f"the model's provider refuses this request: {_cut(reason)}"
        return refused
    is_own = isinstance(error, UserError) or isinstance(status, int)
    frames = [*walk_tb(error.__traceback__)]
    if not is_own and CHAT_MODELS not in {frame.f_globals.get("__name__") for frame, _ in frames}:
        files = [(frame.f_code.co_filename, line) for frame, line in frames]
        file, line = next((one for one in reversed(files) if "site-packages" not in one[0]), files[-1])
        failed = f"the graph failed: {type(error).__name__} at {file}:{line}"  # its words may be a user's, and this is logged
        return Unavailable(failed, "the agent behind this service failed; try again later")
    why = {401: "refuses this service's key", 403: "refuses this service's key", 404: "does not know the model", 429: "is busy"}
    silent = "does not answer" if is_own and not isinstance(cause, ValueError) else UNREADABLE
    told = f"the model's provider {why.get(status or 0, silent)}"
    then = "its operator must mend that" if status in (401, 403, 404) else "try again later"
    return Unavailable(f"{told}: {type(error).__name__}: {_cut(str(error))}", f"{told}; {then}")


def _cut(text: str) -> str:
    """The first 300 characters of a provider's error, on one line, with keys blackened; it may repeat the key and the prompt."""
    return " ".join(Screen().redact(text).split())[:300]
