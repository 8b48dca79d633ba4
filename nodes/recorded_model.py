"""A chat model whose replies are on record, and the same model played from that record, which asks nobody.

A reply is found by what was asked: a digest of the messages, the seed, and the options that were scored. A seed is made from the place
of a call (run, episode, step), so a run that was killed finds the replies that it has paid for, and asks for none of them again.
The same question may be asked again: the n-th time gets the reply that it got the n-th time. A row is written only where a reply
differs from the one before.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from threading import Lock
from typing import Any, ClassVar, Self

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ..memory.errors import UserError
from ..memory.storage.rows import Rows
from .ask import answer
from .cached_model import chat_messages, message_fields, reply_fields

__all__ = ["RecordedChatModel", "UnrecordedCall"]

ABOUT = "about"
"""Id of the row about the model itself."""
PROPERTIES = ("window", "takes_reply_schema", "seeded")


class UnrecordedCall(UserError, RuntimeError):
    """A question to a recorded model that it was never asked."""


@dataclass
class _Calls:
    """The calls so far: digest of a question -> how often it was asked, and the last reply on record."""

    counts: Counter[str] = field(default_factory=Counter)
    last: dict[str, Any] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)


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
    asks_late: bool = False
    """True: the model is asked only what the record does not know, as by a walk that leaves a recorded run."""
    _calls: _Calls = field(default_factory=_Calls, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.model is not None and ABOUT not in self.rows:
            known = {name: value for name in PROPERTIES if isinstance(value := getattr(self.model, name, None), int)}
            kinds = [name for name in ("score", "get_num_tokens") if hasattr(self.model, name)]
            self.rows.append({"id": ABOUT, "kinds": kinds, **known, "seeded": True})

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages = chat_messages(input)
        reply = None if self._is_known(messages, kwargs) else self.model.invoke(messages, config, **self._model_options(kwargs))
        return self._reply(messages, kwargs, reply)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages = chat_messages(input)
        is_known = self._is_known(messages, kwargs)
        reply = None if is_known else await answer(self.model, messages, config, self._model_options(kwargs))
        return self._reply(messages, kwargs, reply)

    def _is_known(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> bool:
        """True if the model need not be asked: without one, or for a reply at this very place that an earlier process has paid for."""
        if self.model is None:
            return True
        return ("seed" in options or self.asks_late) and self._is_recorded(_question(messages, options))

    def _is_recorded(self, question: str) -> bool:
        known = f"{question}-{self._calls.counts[question]}" in self.rows
        return known or (self.asks_late and question in self._calls.last)

    def _model_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that the model is called with: a seed only names the place of a call, unless the model draws by seeds."""
        is_seeded = getattr(self.model, "seeded", False)
        return {name: value for name, value in options.items() if name != "seed" or is_seeded}

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Self:
        """The same model with tools that it may call."""
        return self if self.model is None else replace(self, model=self.model.bind_tools(tools, **kwargs))

    def __getattr__(self, name: str) -> Any:
        """The model's properties, and its functions that are on record, where it has them."""
        if name in (*PROPERTIES, *FUNCTIONS):
            about = self.rows.get(ABOUT) or {}
            if name in about:
                return about[name]
            if name in about.get("kinds", ()):
                return getattr(self, FUNCTIONS[name])
        raise AttributeError(f"a recorded chat model has no {name!r}")

    def _reply(self, messages: Sequence[BaseMessage], options: Mapping[str, Any], reply: AIMessage | None) -> AIMessage:
        """The reply as the record has it."""
        found = None
        if reply is not None:
            told = {name: value for name, value in reply_fields(reply).items() if name != "id"}  # ids are new in each run
            found = json.loads(json.dumps(told, default=str))
        return AIMessage(**self._record(_question(messages, options), messages, found))

    def _score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> Any:
        question = _question(messages, {}, options)
        is_known = self.model is None or (self.asks_late and self._is_recorded(question))
        found = None if is_known else self.model.score(messages, options)
        told = None if found is None else {"scores": list(map(float, found)), "tokens": getattr(found, "prompt_tokens", 0)}
        kept = self._record(question, messages, told)
        return found if found is not None else _Scores(kept["scores"], kept["tokens"])

    def _count_tokens(self, text: str) -> int:
        digest = "n" + _digest(text)
        if (row := self.rows.get(digest)) is not None:
            return int(row["tokens"])
        if self.model is None:
            raise UnrecordedCall(f"the record does not know how many tokens this text has: {_shown(text)}")
        tokens: int = self.model.get_num_tokens(text)
        self.rows.append({"id": digest, "tokens": tokens})
        return tokens

    def _record(self, question: str, messages: Sequence[BaseMessage], reply: Any) -> Any:
        """Keep a reply; without one, the reply that the record has."""
        calls = self._calls
        with calls.lock:
            place = f"{question}-{calls.counts[question]}"
            calls.counts[question] += 1
            row, last = self.rows.get(place), calls.last.get(question)
            if reply is None:
                reply = last if row is None else row["reply"]
                if reply is None:
                    raise UnrecordedCall(f"the model is asked what it was not asked then: {_shown(str(messages[-1].text))}")
            elif row is None and last != reply:
                self.rows.append({"id": place, "reply": reply})
            calls.last[question] = reply
            return reply


FUNCTIONS = {"score": "_score", "get_num_tokens": "_count_tokens"}
"""Functions of a model whose answers are on record -> the methods above that give these answers."""


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


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 160 else "…" + flat[-159:])
