"""Ask a chat model: two pure functions, `messages(state)` and `read(reply, state)`, around one loop.

The loop is written once, as a generator that yields what to send and is sent what came back; `invoke` and `ainvoke` only
differ in how they wait. A reply that cannot be read is asked for again, with the error; in the end `BadReply` says so.
Nothing here ever makes up an action, a score or a lesson.
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
    """Tokens of a text for a model that does not count them itself: meant to be too many rather than too few.

    Four letters, a digit with the space before it, a sign, a line break: a token each or two; a character beyond ASCII: two.
    Byte-pair encodings that split numbers into digits (Qwen's: 0.25 to 1.0 of this on prompts of ours, prose, code and other
    alphabets) stay below it.
    """
    pieces = _TOKENS.findall(text)
    return sum(-(-len(p) // 4) if p[0].isalpha() and p[0].isascii() else 1 if p[0].isascii() else 2 for p in pieces)


class Unreadable(ValueError):
    """Raised by a `read` function: what was asked for and what came. Leads to another try."""


class BadReply(UserError, ValueError):
    """The model's replies could not be read, after all tries. Names the prompt, the last reply, and why."""

    def __init__(self, name: str, error: str, reply: str) -> None:
        shown = reply if len(reply) <= 200 else reply[:200] + "…"
        super().__init__(f"{name}: {error}; the last reply was {shown!r}")
        self.name, self.error, self.reply = name, error, reply


@dataclass(frozen=True)
class Ask(Runnable[Any, Any]):
    """A node that asks a model and reads the reply into channels; also counts tokens into the channel `usage`."""

    role: ClassVar[str] = "model"

    asks: str
    """What is asked, `<method>/<purpose>`: named in errors, and in pictures."""
    model: Runnable[Any, Any]
    """A chat model, or one with options bound to it."""
    messages: Callable[[State], Messages]
    """State -> messages to send. Pure."""
    read: Callable[[AIMessage, State], Mapping[str, Any]]
    """Reply, state -> the channels that change. Pure; raises `Unreadable`. What it says of `usage` is added to the call's."""
    retry_prompt: Prompt
    """What is said when a reply could not be read; needs $error (`ask/again`)."""
    max_tries: int = 3
    """How often to ask before giving up, at least 1."""
    on_bad_reply: Callable[[BadReply, State], Mapping[str, Any]] | None = None
    """What to record when no reply could be read (a mark that something is missing); None: raise `BadReply`."""

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
        """A seed for models that take one with every call: asked again from the same state, they say the same."""
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
        """The model's reply. Callbacks that nobody listens to cost more than the request: a model may offer `answer` without,
        called with messages and options."""
        # A binding hands out the `answer` of the model within, which knows nothing of the options that are bound to it.
        answer = None if isinstance(self.model, RunnableBinding) else getattr(self.model, "answer", None)
        if answer is not None and has_no_callbacks(config):
            return cast(AIMessage, await answer(messages, **options))
        return cast(AIMessage, await self.model.ainvoke(messages, config, **options))


def has_no_callbacks(config: RunnableConfig | None) -> bool:
    """Whether a graph said that no callback listens."""
    callbacks = (config or {}).get("callbacks")
    return isinstance(callbacks, BaseCallbackManager) and not callbacks.handlers and not callbacks.inheritable_handlers


def _call_usage(messages: Messages, reply: AIMessage) -> Usage:
    """What a call took, as the server says; estimated if it does not say."""
    if getattr(reply, "usage_metadata", None):
        return Usage.from_reply(reply)
    return Usage(1, sum(estimate_tokens(text(message)) for message in messages), estimate_tokens(text(reply)))


def text(reply: BaseMessage) -> str:
    """The plain text of a reply, whether its content is a string or a list of blocks."""
    return str(reply.text)
