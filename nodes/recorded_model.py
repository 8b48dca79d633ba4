"""A chat model whose replies are on record, and the same model played from that record, which asks nobody.

A reply is found by what was asked: a digest of the messages, and of the options that were scored. The same question may be asked
again: the n-th time gets the reply that it got the n-th time. A row is written only where a reply differs from the one before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from threading import Lock
from typing import Any, ClassVar

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ..memory.errors import UserError
from ..memory.storage.rows import Rows
from .ask import has_no_callbacks
from .cached_model import REPLY_FIELDS, chat_messages, message_fields

__all__ = ["RecordedChatModel", "UnrecordedCall"]

ABOUT = "about"
"""Id of the row about the model itself."""
PROPERTIES = ("window", "takes_reply_schema", "seeded")


class UnrecordedCall(UserError, RuntimeError):
    """A question to a recorded model that it was never asked."""


@dataclass
class _Calls:
    """The calls so far: digest of a question -> how often it was asked, and the last reply on record."""

    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def count(self, digest: str) -> int:
        number = self.counts.get(digest, 0)
        self.counts[digest] = number + 1
        return number


@dataclass(frozen=True)
class RecordedChatModel(Runnable[Any, Any]):
    """A chat model that records its replies, scores and token counts; without a model, it gives them again.

    Raises:
        UnrecordedCall: the record has no reply to this question.
    """

    role: ClassVar[str] = "model"

    rows: Rows
    """The record."""
    model: Any = None
    """The model; None: replies come from the record alone."""
    _calls: _Calls = field(default_factory=_Calls, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.model is not None and ABOUT not in self.rows:
            known = {name: value for name in PROPERTIES if isinstance(value := getattr(self.model, name, None), int)}
            kinds = [name for name in ("score", "get_num_tokens") if hasattr(self.model, name)]
            self.rows.append({"id": ABOUT, "kinds": kinds, **known})

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages = chat_messages(input)
        ask = None if self.model is None else self.model.invoke(messages, config, **kwargs)
        return AIMessage(**self._record(_question(messages, kwargs), messages, _reply_fields(ask)))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages, reply = chat_messages(input), None
        if self.model is not None:
            answer = getattr(self.model, "answer", None) if has_no_callbacks(config) else None  # callbacks cost time
            reply = await (answer(messages, **kwargs) if answer else self.model.ainvoke(messages, config, **kwargs))
        return AIMessage(**self._record(_question(messages, kwargs), messages, _reply_fields(reply)))

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> RecordedChatModel:
        """The same model with tools that it may call."""
        return self if self.model is None else replace(self, model=self.model.bind_tools(tools, **kwargs))

    def __getattr__(self, name: str) -> Any:
        """The model's properties, and its functions that are on record, where it has them."""
        if name.startswith("_") or name in ("rows", "model"):
            raise AttributeError(name)
        about = self.rows.get(ABOUT) or {}
        if name in PROPERTIES and name in about:
            return about[name]
        if name == "score" and "score" in about.get("kinds", ()):
            return self._score
        if name == "get_num_tokens" and "get_num_tokens" in about.get("kinds", ()):
            return self._count_tokens
        raise AttributeError(f"a recorded chat model has no {name!r}")

    def _score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> Any:
        found = None if self.model is None else self.model.score(messages, options)
        told = None if found is None else {"scores": list(map(float, found)), "tokens": getattr(found, "prompt_tokens", 0)}
        kept = self._record(_question(messages, {}, options), messages, told)
        return found if found is not None else _Scores(kept["scores"], kept["tokens"])

    def _count_tokens(self, text: str) -> int:
        digest = "n" + _digest(text)
        known = self._calls.sizes.get(digest)
        if known is None:
            row = self.rows.get(digest)
            if row is None and self.model is None:
                raise UnrecordedCall(f"the record does not know how many tokens this text has: {_shown(text)}")
            known = row["tokens"] if row is not None else self.model.get_num_tokens(text)
            if row is None:
                self.rows.append({"id": digest, "tokens": known})
            self._calls.sizes[digest] = known
        return known

    def _record(self, question: str, messages: Sequence[BaseMessage], reply: Any) -> Any:
        """Keep a reply; without one, the reply that the record has."""
        with self._calls.lock:
            number = self._calls.count(question)
            row = self.rows.get(f"{question}-{number}")
            if reply is None:
                found = row["reply"] if row is not None else self._calls.last.get(question)
                if found is None:
                    raise UnrecordedCall(f"the model is asked what it was not asked then: {_shown(str(messages[-1].text))}")
            else:
                found = reply
                if row is None and self._calls.last.get(question) != reply:
                    self.rows.append({"id": f"{question}-{number}", "reply": reply})
            self._calls.last[question] = found
            return found


class _Scores(list[float]):
    """Scores of options, with the number of tokens that were read."""

    def __init__(self, scores: Sequence[float], prompt_tokens: int) -> None:
        super().__init__(scores)
        self.prompt_tokens = prompt_tokens


def _question(messages: Sequence[BaseMessage], options: Mapping[str, Any], scored: Sequence[str] = ()) -> str:
    """A digest of what is asked. Of the options only the seed counts: the others follow from the model."""
    asked = [[message_fields(message) for message in messages], options.get("seed"), list(scored)]
    return "r" + _digest(json.dumps(asked, sort_keys=True, default=str))


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _reply_fields(reply: AIMessage | None) -> dict[str, Any] | None:
    if reply is None:
        return None
    names = [name for name in REPLY_FIELDS if name != "id"]  # ids are new in each run, and of no use in a replay
    kept = {"content": reply.content} | {name: value for name in names if (value := getattr(reply, name))}
    plain: dict[str, Any] = json.loads(json.dumps(kept, default=str))
    return plain


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 160 else "…" + flat[-159:])
