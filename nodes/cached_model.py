"""A chat model whose calls are counted and limited, and cached where each request has one reply: then no call is paid for twice.

The key of a call is made of the model's name (a fingerprint of all that its replies depend on), the messages and the options,
including the seed. So two draws from one prompt are two calls, and a run that starts again from any point gets the same replies.
Failed calls are not stored.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from types import TracebackType
from typing import Any, Self, cast

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig

from ..memory.errors import UserError, type_of
from ..memory.records import Usage
from ..memory.storage.cache import Cache, cache_key
from .ask import answer, call_usage

__all__ = [
    "BudgetSpent",
    "CachedChatModel",
    "ConcurrencyLimit",
    "Prices",
    "SpendingLimit",
    "chat_messages",
    "message_fields",
    "model_name",
    "reply_fields",
]

PASSED_THROUGH = ("score", "window", "get_num_tokens", "takes_reply_schema")
"""Attributes of a model that are passed on: they cost nothing and always return the same, so they are not stored."""
REPLY_FIELDS = ("additional_kwargs", "response_metadata", "name", "id", "tool_calls", "invalid_tool_calls", "usage_metadata")
"""Fields of a reply that are stored, beside its content."""
MESSAGE_FIELDS = ("name", "role", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "additional_kwargs")
"""Fields of a message that a key holds, beside its type and content: those that reach the model. Ids and metadata do not."""


# Prices and budgets


@dataclass(frozen=True)
class Prices:
    """Dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0

    def cost(self, usage: Usage) -> float:
        """The cost of a usage in dollars."""
        return (self.input * usage.input_tokens + self.output * usage.output_tokens) / 1e6


class BudgetSpent(UserError):
    """The run has spent its budget. Nothing is lost: with a larger budget it goes on where it stopped."""


@dataclass(frozen=True)
class SpendingLimit:
    """The budget of a run, and what was spent of it in all of its processes, also earlier ones.

    It reads the totals from the cache's file (10 us), so it holds for threads, processes and resumed runs.
    """

    cache: Cache
    prices: Prices = Prices()
    """Prices of calls in stages that `stage_prices` does not name."""
    stage_prices: Mapping[str, Prices] = field(default_factory=dict)
    """Prices by `CachedChatModel.stage`, where models with different prices work together."""
    max_dollars: float | None = None
    """Budget in dollars; None: no limit."""
    max_tokens: int | None = None
    """Budget in tokens, read and written together; None: no limit."""

    def __post_init__(self) -> None:
        for name, limit in (("max_dollars", self.max_dollars), ("max_tokens", self.max_tokens)):
            if limit is not None and not limit > 0:
                raise UserError(
                    f"a budget is a positive number of {name.removeprefix('max_')}, got {limit}; without one, nothing is limited"
                )
        if self.max_dollars is not None and not any(
            p.input > 0 or p.output > 0 for p in (self.prices, *self.stage_prices.values())
        ):
            raise UserError(
                f"a budget of ${self.max_dollars:g} needs prices (dollars per million tokens), and all prices are 0; "
                "give them, or a budget in tokens"
            )

    @property
    def total_usage(self) -> Usage:
        """The usage of all calls that were paid for."""
        return sum(self.cache.usage_by_stage().values(), Usage())

    @property
    def cost(self) -> float:
        """Dollars spent."""
        return self._cost(self.cache.usage_by_stage())

    def _cost(self, spent: Mapping[str, Usage]) -> float:
        return sum(self.stage_prices.get(stage, self.prices).cost(usage) for stage, usage in spent.items())

    def check(self) -> None:
        """Raise if the budget is spent. Called before each call; calls in flight may still exceed the budget.

        Raises:
            BudgetSpent: a limit is reached.
        """
        if self.max_dollars is None and self.max_tokens is None:
            return
        spent = self.cache.usage_by_stage()
        usage, cost = sum(spent.values(), Usage()), self._cost(spent)
        tokens = usage.tokens
        if self.max_dollars is not None and cost >= self.max_dollars:
            limit = f"${self.max_dollars:g}"
        elif self.max_tokens is not None and tokens >= self.max_tokens:
            limit = f"{self.max_tokens:,} tokens"
        else:
            return
        raise BudgetSpent(
            f"the budget of {limit} is spent: {usage.calls:,} calls, {usage.input_tokens:,} tokens read and "
            f"{usage.output_tokens:,} written, ${cost:.4f}; what was played is kept, and the same run with a larger budget goes on "
            "from here"
        )


# Calls at once


class ConcurrencyLimit:
    """A limit on calls in flight: `with slots` in threads, `async with slots` in any event loop, both at the same time.

    Waiting callers are served in order of arrival, without polling. In a coroutine `with` would block the loop: use `async with`.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise UserError(f"at least 1 call must be allowed in flight, got {limit}")
        self.limit = limit
        self._free = limit
        self._waiting: deque[Future[None]] = deque()
        self._lock = Lock()

    def _take(self) -> Future[None] | None:
        """None if a slot was free; else a place in the queue, a future that ends when a slot is free."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    def _give_back(self) -> None:
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():  # it was not cancelled
                    break
            else:
                self._free += 1
                return
        turn.set_result(None)  # without the lock: it wakes others

    def _leave(self, turn: Future[None]) -> None:
        """Leave the queue. A slot that was granted at the same moment goes to the next caller."""
        if not turn.cancel():
            self._give_back()

    def __enter__(self) -> None:
        if turn := self._take():
            try:
                turn.result()
            except BaseException:
                self._leave(turn)
                raise

    async def __aenter__(self) -> None:
        if turn := self._take():
            try:
                await asyncio.wrap_future(turn)
            except BaseException:
                self._leave(turn)
                raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._give_back()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()


# The model


@dataclass(frozen=True)
class CachedChatModel(Runnable[Any, Any]):
    """A chat model whose calls are cached, counted and limited. Nodes and graphs use it in place of the model.

    A cached call takes no slot, costs nothing, and works after the budget is spent. Two equal calls at the same time may both be
    made, and both count; both return the reply that is stored first, as every later call does. Replies are always returned as
    stored, so a resumed run behaves the same.

    Raises:
        BudgetSpent: before a call that the meter does not allow.
        CacheError: the reply cannot be stored.
    """

    model: Any
    """A chat model, or one with options bound to it (`bind`, `bind_tools`), which count as the call's own."""
    name: str
    """All that replies depend on beside messages and options: the model, and its settings (temperature, longest reply ...)."""
    cache: Cache
    stage: str = "model"
    """The name under which its usage is counted."""
    meter: SpendingLimit | None = None
    slots: ConcurrencyLimit | None = None
    seeded: bool = True
    """Whether each call has a seed, which `Ask` makes from run, episode and step: it is part of a call's key, and is passed to
    models with a setting `seed`. False: equal requests are draws of their own, so that nothing is looked up or stored; every
    call, and every score, is made and counted."""
    draws: defaultdict[str, Iterator[int]] | None = None
    """Key of a call -> the numbers of further equal calls, where each is a draw of its own, such as the samples of an agent's step; None: equal
    calls have one reply."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages = chat_messages(input)
        place = self._cache_key(messages, kwargs)
        if place and (known := self.cache.get(place)) is not None:
            return AIMessage(**known)
        with cast(AbstractContextManager[Any], self.slots or nullcontext()):
            self._check_budget()
            reply = self.model.invoke(messages, config, **self._model_options(kwargs))
        return self._count_reply(place, messages, reply)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages = chat_messages(input)
        place = self._cache_key(messages, kwargs)
        if place and (known := self.cache.get(place)) is not None:
            return AIMessage(**known)
        async with cast(AbstractAsyncContextManager[Any], self.slots or nullcontext()):
            self._check_budget()
            reply = await answer(self.model, messages, config, self._model_options(kwargs))
        return self._count_reply(place, messages, reply)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Self:
        """The same model with tools that it may call."""
        return replace(self, model=self.model.bind_tools(tools, **kwargs))

    def __getattr__(self, name: str) -> Any:
        """The model's attributes that are passed on (`PASSED_THROUGH`)."""
        if name not in PASSED_THROUGH:
            raise AttributeError(f"a cached chat model has no {name!r}")
        found = getattr(self.model, name)
        return self._score if name == "score" and not self.seeded else found

    def _score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> Any:
        """The model's scores; the call counts."""
        self._check_budget()
        scores = self.model.score(messages, options)
        self.cache.add_cost(self.stage, Usage(1, getattr(scores, "prompt_tokens", 0)))
        return scores

    def _check_budget(self) -> None:
        if self.meter:
            self.meter.check()

    def _cache_key(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> str:
        """The key of a call; empty if calls are not stored."""
        if not self.seeded:
            return ""
        try:
            place = cache_key(
                "chat", self.name, [message_fields(message) for message in messages], {**self._model_and_options[1], **options}
            )
        except TypeError as error:
            raise TypeError(f"{self.name}: a call with options that are no JSON cannot be stored ({error})") from error
        number = 0 if self.draws is None else next(self.draws[place])
        return f"{place}/{number}" if number else place

    @property
    def bound_options(self) -> dict[str, Any]:
        """The options that are bound to the model. They are part of a call's key."""
        return self._model_and_options[1]

    @cached_property  # a frozen dataclass may have some: they go past its lock into `__dict__`
    def _model_and_options(self) -> tuple[Any, dict[str, Any]]:
        """The model without its bindings, and the options bound to it."""
        model: Any = self.model
        options: dict[str, Any] = {}
        while isinstance(model, RunnableBinding):
            model, options = model.bound, {**model.kwargs, **options}
        return model, options

    def _model_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that the model is called with: the seed is for models with such a setting."""
        takes_seed = not self.seeded or hasattr(self._model_and_options[0], "seed")
        return options if takes_seed else {name: value for name, value in options.items() if name != "seed"}

    def _count_reply(self, place: str, messages: Sequence[BaseMessage], reply: Any) -> AIMessage:
        """Count a reply, and store it under its key, if it has one."""
        if not isinstance(reply, AIMessage):
            raise TypeError(f"{self.name}: only chat models can be recorded; this one returned {type_of(reply)}")
        usage = call_usage(messages, reply)
        if not place:
            self.cache.add_cost(self.stage, usage)
            return reply
        return AIMessage(**self.cache.put(place, reply_fields(reply), self.stage, usage))


def reply_fields(reply: AIMessage) -> dict[str, Any]:
    """The fields of a reply that are stored."""
    return {"content": reply.content} | {name: value for name in REPLY_FIELDS if (value := getattr(reply, name))}


def chat_messages(input: Any) -> list[BaseMessage]:
    """The input of a chat model as a list of messages; the input may be messages, a text, or a prompt value."""
    if isinstance(input, PromptValue):
        return input.to_messages()
    return convert_to_messages([input] if isinstance(input, str) else input)


def message_fields(message: BaseMessage) -> dict[str, Any]:
    """The fields of a message that reach the model."""
    fields = message.__dict__  # getattr of a missing field takes 5 us
    return {"type": message.type, "content": message.content} | {
        name: fields[name] for name in MESSAGE_FIELDS if fields.get(name)
    }


def model_name(model: Any) -> str:
    """A model's name for people, such as `gpt-5-mini` or `Qwen/Qwen3-0.6B`; of a folder the last two parts. Empty without a name."""
    while not hasattr(model, "_identifying_params"):
        inner = getattr(model, "model", None) or getattr(model, "bound", None)
        if inner is None or isinstance(inner, str):
            break
        model = inner
    found = next((name for at in ("model", "model_name") if isinstance(name := getattr(model, at, None), str)), "")
    return "/".join([part for part in found.replace("\\", "/").split("/") if part][-2:])
