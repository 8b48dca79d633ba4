"""A node that asks a chat model: two pure functions, `messages(state)` and `read(reply, state)`, around one loop.

The loop is a generator that yields messages and receives replies; `drive` and `adrive` differ only in how they wait. A reply
that cannot be used is asked for again, with the error, and counted (`Usage.unreadable`). After the last try the node records
that the reply is missing, or raises `BadReply`: no action, score or lesson is ever made up.
"""

import logging
import re
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, ClassVar

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.utils import Input, Output

from ..memory.errors import UserError
from ..memory.records import Usage
from .drive import adrive, drive
from .prompt import Prompt
from .read_reply import CutOff, DoubtfulReply, Unreadable, refusal_text, visible_text

__all__ = [
    "Ask",
    "BadReply",
    "State",
    "answer",
    "call_usage",
    "estimate_tokens",
    "is_refused_request",
    "log",
    "note_refused_options",
    "refused_options",
    "text",
]

log = logging.getLogger(__name__)

Messages = list[BaseMessage]
State = Mapping[str, Any]


_TOKENS = re.compile(r"[A-Za-z]{1,4}|[^\x00-\x7f]|[^A-Za-z\s]|\n| (?=[0-9])|[ \t]{2,}")

MAX_TRIES = 3
"""Calls of the model, at most, until a reply can be used."""
MOST_KNOWN_CHARS = 8_192
"""Characters of a text whose estimate is kept: prompts of a turn have most of their texts in common."""


def estimate_tokens(text: str) -> int:
    """An upper estimate of a text's tokens, for models that do not count them.

    Four letters of a word, a digit, the space before a digit, a sign and a line break count one token each, a character beyond
    ASCII two.
    Qwen's tokenizer, which splits numbers into digits, gives 0.25 to 1.0 times this number on our prompts, prose, code
    and other alphabets.
    """
    return _estimate(text) if len(text) <= MOST_KNOWN_CHARS else _estimate.__wrapped__(text)


@lru_cache(maxsize=1_024)
def _estimate(text: str) -> int:
    return len(_TOKENS.findall(text)) + len(text) - len(text.encode("ascii", "ignore"))


class BadReply(UserError, ValueError):
    """An error: no reply could be used in all tries. Names the prompt, the reason, and the last reply if it had any text. For logs,
    `reason` says it without words of a reply.
    """

    def __init__(self, name: str, unreadable: Unreadable, reply: str) -> None:
        error = str(unreadable)
        shown = reply if len(reply) <= 200 else reply[:200] + "…"
        is_new = shown.strip() and repr(shown)[:60] not in error  # many errors quote it
        super().__init__(f"{name}: {error}" + (f"; the last reply was {shown!r}" if is_new else ""))
        self.name, self.error, self.reply = name, error, reply
        self.reason = f"{name}: {unreadable.asked}"


@dataclass(frozen=True)
class Ask(Runnable[Input, Output]):
    """A node that asks a model and reads the reply into channels. It adds calls and tokens to the channel `usage`.

    `Input` and `Output` are the TypedDicts of what it reads and writes (nodes/channels.py).
    """

    role: ClassVar[str] = "model"

    asks: str
    """Name of the prompt, `<method>/<purpose>`, for errors and pictures."""
    model: Runnable[Any, Any]
    """A chat model, or one with options bound to it."""
    messages: Callable[[Input], Messages]
    """State -> messages to send; a pure function."""
    read: Callable[[AIMessage, Input], Output]
    """Reply, state -> the channels that change. Pure; may raise `Unreadable`. Its `usage` is added to the call's."""
    retry_prompt: Prompt
    """Asks again after a reply that cannot be used; needs $error (`ask/again`)."""
    on_bad_reply: Callable[[BadReply, Input], Output] | None = None
    """Error, state -> channels that record a missing reply; None: raise `BadReply`."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply and are no part of it. Sent to LangChain's chat models, beside the model's own ones."""
    reply_schema: Mapping[str, Any] | None = None
    """The JSON schema of the reply (nodes/reply_schemas.py). Sent to models that can be held to one (`takes_reply_schema`)."""
    known: Callable[[Input], Output | None] | None = None
    """State -> the channels, where they are known without a model; None where it has to be asked."""
    view: Any = field(default=None, repr=False)
    """The view of the state that `messages` shows (nodes/act/policies.py), if it shows one: the node reads what that reads."""

    def _dialogue(self, state: Any) -> Generator[tuple[Messages, dict[str, Any]], Any, dict[str, Any]]:
        """Yields messages, with the options of their request, and receives replies."""
        known: Any = self.known(state) if self.known else None
        if known is not None:
            return {**known}
        messages, usage, error, may_stop = self.messages(state), Usage(), Unreadable(), True
        for tries in range(1, MAX_TRIES + 1):
            reply = yield from self._request(state, messages, may_stop)
            usage += call_usage(messages, reply)
            try:
                found: Any = self.read(reply, state)
                return {**found, "usage": usage + found.get("usage", Usage())}
            except Unreadable as unreadable:
                if isinstance(unreadable, DoubtfulReply) and (isinstance(error, DoubtfulReply) or tries == MAX_TRIES):
                    found = unreadable.channels
                    return {**found, "usage": usage + found.get("usage", Usage())}
                error = unreadable
            if not isinstance(error, DoubtfulReply):
                usage += Usage(unreadable=1, **({error.cause: 1} if error.cause else {}))
            log.info("%s: reply %d of at most %d cannot be used: %s", self.asks, tries, MAX_TRIES, error.asked)
            may_stop = may_stop and not isinstance(error, CutOff)  # the text may have stood in the model's thoughts
            messages = [*messages, _as_shown_again(reply), *self.retry_prompt.messages(error=str(error))]
        bad = BadReply(self.asks, error, visible_text(reply))
        if self.on_bad_reply is None:
            raise bad
        log.warning("no usable reply in %d tries: %s", MAX_TRIES, bad.reason)
        found = self.on_bad_reply(bad, state)
        return {**found, "usage": usage + found.get("usage", Usage())}

    def _request(
        self, state: State, messages: Messages, may_stop: bool
    ) -> Generator[tuple[Messages, dict[str, Any]], Any, AIMessage]:
        """Yields a request, and again without what holds the reply to its form if the server refuses that; returns the reply."""
        options, form = self._options(state, messages), self._form_options(may_stop)
        try:
            reply: AIMessage = yield messages, {**options, **form}
        except Exception as error:
            if not form or not is_refused_request(error):
                raise
            reply = yield messages, options
            note_refused_options(self.model, form)
        return reply

    def _options(self, state: State, messages: Messages) -> dict[str, Any]:
        """A seed derived from the state, for models that take one per call: the same state gives the same reply."""
        if not getattr(self.model, "seeded", False):
            return {}
        where = (state.get("run"), state.get("episode"), state.get("step"), self.asks, len(messages))
        return {"seed": Random("/".join(map(str, where))).getrandbits(31)}

    def _form_options(self, may_stop: bool) -> dict[str, Any]:
        """Options that hold the reply to its form, without those that the model's server has refused."""
        found: dict[str, Any] = {}
        model, own_stop = _inner_model(self.model)
        if self.stop and may_stop and isinstance(model, BaseChatModel):
            found["stop"] = [*own_stop, *self.stop]
        if self.reply_schema is not None and getattr(self.model, "takes_reply_schema", False):
            found["reply_schema"] = dict(self.reply_schema)
        return {name: value for name, value in found.items() if name not in refused_options(model)} if found else {}

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return drive(self._dialogue(input), lambda asked, options: self.model.invoke(asked, config, **options))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await adrive(self._dialogue(input), lambda asked, options: answer(self.model, asked, config, options))


async def answer(model: Any, messages: Messages, config: RunnableConfig | None, options: Mapping[str, Any]) -> Any:
    """The reply of a chat model, or of one with options bound to it.

    Where no callback listens, a model's own `answer(messages, **options)` is used if it has one: LangChain's callbacks cost more
    than the request.
    """
    inner: Any = model
    bound = dict(options)
    # A binding passes through the `answer` of the model within, which ignores the options bound to it.
    while isinstance(inner, RunnableBinding) and not inner.config and not inner.config_factories:
        inner, bound = inner.bound, {**inner.kwargs, **bound}
    if has_no_callbacks(config) and hasattr(inner, "answer") and not isinstance(inner, RunnableBinding):
        return await inner.answer(messages, **bound)
    return await model.ainvoke(messages, config, **options)


def has_no_callbacks(config: RunnableConfig | None) -> bool:
    """True if the graph's config has a callback manager without handlers."""
    callbacks = (config or {}).get("callbacks")
    return isinstance(callbacks, BaseCallbackManager) and not callbacks.handlers and not callbacks.inheritable_handlers


def _as_shown_again(reply: AIMessage) -> AIMessage:
    """The reply as the next request shows it: without thoughts, and never empty, which some servers refuse."""
    shown = visible_text(reply)
    return reply if shown.strip() and shown == text(reply) else AIMessage(shown.strip() or refusal_text(reply) or "…")


# Options that a server may refuse. A request without them is tried once; if that works, they are left out from then on.

_REFUSED: dict[int, set[str]] = {}
"""Id of a model in this process -> names of the options that its server has refused."""


def refused_options(model: Any) -> set[str]:
    """Names of the options that the server of a model has refused, or takes no notice of."""
    if id(model) not in _REFUSED:
        _REFUSED[id(model)] = set()
        weakref.finalize(model, _REFUSED.pop, id(model), None)
    return _REFUSED[id(model)]


def note_refused_options(model: Runnable[Any, Any], options: Iterable[str]) -> None:
    """Leave out these options from now on, and say so."""
    inner, _ = _inner_model(model)
    refused_options(inner).update(options)
    log.info("%s: requests go without %s, which the server refuses", type(inner).__name__, ", ".join(options))


def is_refused_request(error: Exception) -> bool:
    """True if a server refused the request itself (HTTP 400 or 422), whichever client raised the error."""
    states = (getattr(one, name, None) for one in (error, error.__cause__) for name in ("status", "status_code"))
    return any(status in (400, 422) for status in states)


def _inner_model(model: Any) -> tuple[Any, list[str]]:
    """The model within bindings and caches, and the stop sequences that are bound to it or are its own."""
    stop: list[str] = []
    while True:
        if isinstance(model, RunnableBinding):
            stop = stop or _as_list(model.kwargs.get("stop"))
            model = model.bound
        elif isinstance(within := getattr(model, "model", None), Runnable):
            model = within
        else:
            return model, stop or _as_list(getattr(model, "stop", None))


def _as_list(stop: Any) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())


def call_usage(messages: Sequence[BaseMessage], reply: AIMessage) -> Usage:
    """The usage of a call: the server's numbers, or an estimate if it sends none."""
    if getattr(reply, "usage_metadata", None):
        return Usage.from_reply(reply)
    return Usage(1, sum(estimate_tokens(text(message)) for message in messages), estimate_tokens(text(reply)))


def text(reply: BaseMessage) -> str:
    """The plain text of a message, from a string or a list of blocks."""
    return str(reply.text)
