"""A node that asks a chat model: two pure functions, `messages(state)` and `read(reply, state)`, around one loop.

The loop is a generator that yields messages and receives replies; `invoke` and `ainvoke` differ only in how they wait. A reply
that cannot be read is asked for again, with the error. After the last try `BadReply` is raised: no action, score or lesson is
ever made up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, cast

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig

from ..memory.errors import UserError
from ..memory.records import Usage
from .prompt import Prompt

Messages = list[BaseMessage]
State = Mapping[str, Any]


_TOKENS = re.compile(r"[A-Za-z]+|[^\x00-\x7f]|[^A-Za-z\s]|\n| (?=[0-9])|[ \t]{2,}")


def estimate_tokens(text: str) -> int:
    """An upper estimate of a text's tokens, for models that do not count them.

    Four letters of a word, a digit, the space before a digit, a sign and a line break count one token each, a character beyond
    ASCII two.
    Qwen's tokenizer, which splits numbers into digits, gives 0.25 to 1.0 times this number on our prompts, prose, code
    and other alphabets.
    """
    pieces = _TOKENS.findall(text)
    return sum(-(-len(p) // 4) if p[0].isalpha() and p[0].isascii() else 1 if p[0].isascii() else 2 for p in pieces)


class Unreadable(ValueError):
    """An error of a `read` function: the reply is not what was asked for. The model is asked again."""


class BadReply(UserError, ValueError):
    """An error: no reply could be read in all tries. Names the prompt, the last reply, and the reason."""

    def __init__(self, name: str, error: str, reply: str) -> None:
        shown = reply if len(reply) <= 200 else reply[:200] + "…"
        super().__init__(f"{name}: {error}; the last reply was {shown!r}")
        self.name, self.error, self.reply = name, error, reply


@dataclass(frozen=True)
class Ask(Runnable[Any, Any]):
    """A node that asks a model and reads the reply into channels. It adds calls and tokens to the channel `usage`."""

    role: ClassVar[str] = "model"

    asks: str
    """Name of the prompt, `<method>/<purpose>`, for errors and pictures."""
    model: Runnable[Any, Any]
    """A chat model, or one with options bound to it."""
    messages: Callable[[State], Messages]
    """State -> messages to send; a pure function."""
    read: Callable[[AIMessage, State], Mapping[str, Any]]
    """Reply, state -> the channels that change. Pure; may raise `Unreadable`. Its `usage` is added to the call's."""
    retry_prompt: Prompt
    """Asks again after an unreadable reply; needs $error (`ask/again`)."""
    max_tries: int = 3
    """Greatest number of calls, at least 1."""
    on_bad_reply: Callable[[BadReply, State], Mapping[str, Any]] | None = None
    """Error, state -> channels that record a missing reply; None: raise `BadReply`."""

    def _dialogue(self, state: State) -> Generator[Messages, Any, dict[str, Any]]:
        messages, usage, error = self.messages(state), Usage(), ""
        for _ in range(self.max_tries):
            reply = yield messages
            usage += _call_usage(messages, reply)
            try:
                found = self.read(reply, state)
                return {**found, "usage": usage + found.get("usage", Usage())}
            except Unreadable as unreadable:
                error = str(unreadable)
                messages = [*messages, reply, *self.retry_prompt.messages(error=error)]
        bad = BadReply(self.asks, error, text(reply))
        if self.on_bad_reply is None:
            raise bad
        found = self.on_bad_reply(bad, state)
        return {**found, "usage": usage + found.get("usage", Usage())}

    def _options(self, state: State, messages: Messages) -> dict[str, Any]:
        """A seed derived from the state, for models that take one per call: the same state gives the same reply."""
        if not getattr(self.model, "seeded", False):
            return {}
        where = (state.get("run"), state.get("episode"), state.get("step"), self.asks, len(messages))
        return {"seed": Random("/".join(map(str, where))).getrandbits(31)}

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        dialogue = self._dialogue(input)
        reply: Any = None
        while True:
            try:
                messages = dialogue.send(reply)
            except StopIteration as done:
                return done.value
            reply = self.model.invoke(messages, config, **self._options(input, messages))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        dialogue = self._dialogue(input)
        reply: Any = None
        while True:
            try:
                messages = dialogue.send(reply)
            except StopIteration as done:
                return done.value
            reply = await self._answer(messages, config, self._options(input, messages))

    async def _answer(self, messages: Messages, config: RunnableConfig | None, options: dict[str, Any]) -> AIMessage:
        """The model's reply. Where no callback listens, a model's own `answer(messages, **options)` is used if it has one:
        LangChain's callbacks cost more than the request."""
        # A binding passes through the `answer` of the model within, which ignores the options bound to it.
        answer = None if isinstance(self.model, RunnableBinding) else getattr(self.model, "answer", None)
        if answer is not None and has_no_callbacks(config):
            return cast(AIMessage, await answer(messages, **options))
        return cast(AIMessage, await self.model.ainvoke(messages, config, **options))


def has_no_callbacks(config: RunnableConfig | None) -> bool:
    """True if the graph's config has a callback manager without handlers."""
    callbacks = (config or {}).get("callbacks")
    return isinstance(callbacks, BaseCallbackManager) and not callbacks.handlers and not callbacks.inheritable_handlers


def _call_usage(messages: Messages, reply: AIMessage) -> Usage:
    """The usage of a call: the server's numbers, or an estimate if it sends none."""
    if getattr(reply, "usage_metadata", None):
        return Usage.from_reply(reply)
    return Usage(1, sum(estimate_tokens(text(message)) for message in messages), estimate_tokens(text(reply)))


def text(reply: BaseMessage) -> str:
    """The plain text of a message, from a string or a list of blocks."""
    return str(reply.text)
