"""A chat model whose every call is stored, counted and limited: what was asked once is never paid for again.

A call is known by the model's name (which says all that its replies depend on), the messages and the options, the seed among
them: so two draws from one prompt are two calls, and a run that starts again from any point is told the same. What fails is
not stored.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from types import TracebackType
from typing import Any, ClassVar, cast

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig

from ..memory.errors import UserError
from ..memory.records import Usage
from ..memory.storage.cache import Cache, cache_key
from .ask import estimate_tokens, has_no_callbacks, text

__all__ = ["BudgetSpent", "CachedChatModel", "ConcurrencyLimit", "Prices", "SpendingLimit"]

PASSED_THROUGH = ("score", "window", "get_num_tokens")
"""What a model in this process does beside writing. It costs nothing and says the same each time, so it is not stored."""
REPLY_FIELDS = ("additional_kwargs", "response_metadata", "name", "id", "tool_calls", "invalid_tool_calls", "usage_metadata")
"""Of a reply, beside its content."""
MESSAGE_FIELDS = ("name", "role", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "additional_kwargs")
"""Of a message, beside who says it and its content: what a model may be told of it. Its id and metadata it never is."""


# What it costs


@dataclass(frozen=True)
class Prices:
    """Dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0

    def cost(self, usage: Usage) -> float:
        """Dollars."""
        return (self.input * usage.input_tokens + self.output * usage.output_tokens) / 1e6


class BudgetSpent(UserError):
    """The run has spent what it may. Nothing is lost: with a larger budget it goes on where it stopped."""


@dataclass(frozen=True)
class SpendingLimit:
    """What a run has spent, in all its processes and in those before, and what it may.

    It reads what the cache's file says (10 us), so it holds for threads, processes and runs that go on later.
    """

    cache: Cache
    prices: Prices = Prices()
    """Of calls in stages that `stages` does not name."""
    stage_prices: Mapping[str, Prices] = field(default_factory=dict)
    """By `Recorded.stage`, where models with different prices work together."""
    max_dollars: float | None = None
    """How many it may spend; None: any number."""
    max_tokens: int | None = None
    """How many it may spend, read and written together; None: any number."""

    def __post_init__(self) -> None:
        for name, limit in (("max_dollars", self.max_dollars), ("max_tokens", self.max_tokens)):
            if limit is not None and not limit > 0:
                raise UserError(f"a budget is a positive number of {name}, got {limit}; without one, nothing is limited")
        if self.max_dollars is not None and not any(
            p.input > 0 or p.output > 0 for p in (self.prices, *self.stage_prices.values())
        ):
            raise UserError(
                f"a budget of ${self.max_dollars:g} needs prices (dollars per million tokens), and all prices are 0; "
                "give them, or a budget in tokens"
            )

    @property
    def total_usage(self) -> Usage:
        """All calls that were paid for."""
        return sum(self.cache.usage_by_stage().values(), Usage())

    @property
    def cost(self) -> float:
        """Dollars spent."""
        return self._cost(self.cache.usage_by_stage())

    def _cost(self, spent: Mapping[str, Usage]) -> float:
        return sum(self.stage_prices.get(stage, self.prices).cost(usage) for stage, usage in spent.items())

    def check(self) -> None:
        """Asked before each call; calls in flight may still add to what is spent.

        Raises:
            BudgetSpent: a limit is reached.
        """
        if self.max_dollars is None and self.max_tokens is None:
            return
        spent = self.cache.usage_by_stage()
        usage, cost = sum(spent.values(), Usage()), self._cost(spent)
        tokens = usage.input_tokens + usage.output_tokens
        if self.max_dollars is not None and cost >= self.max_dollars:
            limit = f"${self.max_dollars:g}"
        elif self.max_tokens is not None and tokens >= self.max_tokens:
            limit = f"{self.max_tokens:,} tokens"
        else:
            return
        raise BudgetSpent(
            f"the budget of {limit} is spent: {usage.calls:,} calls, {usage.input_tokens:,} tokens read and "
            f"{usage.output_tokens:,} written, ${cost:.4f}; all replies are kept, and the same run with a larger budget goes on "
            "from here"
        )


# How many at once


class ConcurrencyLimit:
    """A number of calls that may be in flight: `with slots` in threads, `async with slots` in any event loop, both together.

    Who waits is called in the order of coming, and nobody polls. In a coroutine `with` would stop its loop: use `async with`.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise UserError(f"at least 1 call must be allowed in flight, got {limit}")
        self.limit = limit
        self._free = limit
        self._waiting: deque[Future[None]] = deque()
        self._lock = Lock()

    def _take(self) -> Future[None] | None:
        """A slot (None), or a place in the queue: its future ends when the slot is there."""
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
                if turn.set_running_or_notify_cancel():  # not given up
                    break
            else:
                self._free += 1
                return
        turn.set_result(None)  # without the lock: it wakes others

    def _leave(self, turn: Future[None]) -> None:
        """Give up waiting; a slot that came at the same moment goes on to the next."""
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
    """A chat model whose every call is stored, counted and limited; in place of the model itself, for nodes and graphs.

    A call that is stored takes no slot, costs nothing, and works when the budget is spent. Of two equal calls at once both may
    be made, and both count; the reply that is stored first is what both return, and every later one. Messages that come back
    are the stored ones always, so a resumed run cannot tell the difference.

    Raises:
        BudgetSpent: before a call that the meter does not allow.
        CacheError: the reply cannot be stored.
    """

    seeded: ClassVar[bool] = True
    """`Ask` names the draw: the seed it makes from run, episode and step is part of what a call is known by."""

    model: Runnable[Any, Any]
    """A chat model, or one with options bound to it (`bind`, `bind_tools`), which count as the call's own."""
    name: str
    """What the replies depend on beside messages and options: which model, and its settings (temperature, most tokens …)."""
    cache: Cache
    stage: str = "model"
    """What it is asked for: costs are added up by it."""
    meter: SpendingLimit | None = None
    slots: ConcurrencyLimit | None = None
    seeds: bool | None = None
    """Whether the seed is handed on to the model; None: to models that have one among their own settings, as `OpenAIChatModel`
    and `LocalChatModel` do, unless it is told them with every call. Some servers refuse requests with a seed: False then."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages = _messages(input)
        place = self._cache_key(messages, kwargs)
        if (known := self.cache.get(place)) is not None:
            return AIMessage(**known)
        with cast(AbstractContextManager[Any], self.slots or nullcontext()):
            start = self._start()
            reply = self.model.invoke(messages, config, **self._model_options(kwargs))
        return self._store_reply(place, messages, reply, start)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages = _messages(input)
        place = self._cache_key(messages, kwargs)
        if (known := self.cache.get(place)) is not None:
            return AIMessage(**known)
        async with cast(AbstractAsyncContextManager[Any], self.slots or nullcontext()):
            start = self._start()
            reply = await self._answer(messages, config, self._model_options(kwargs))
        return self._store_reply(place, messages, reply, start)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> CachedChatModel:
        """The same with tools that the model may call."""
        return replace(self, model=cast(Any, self.model).bind_tools(tools, **kwargs))

    def __getattr__(self, name: str) -> Any:
        """What only some models have (`OFFERED`): there if the model has it."""
        if name in PASSED_THROUGH:
            return getattr(self.model, name)
        raise AttributeError(f"a recorded model has no {name!r}")

    def _start(self) -> float:
        if self.meter:
            self.meter.check()
        return time.perf_counter()

    def _cache_key(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> str:
        """The key of a call."""
        try:
            return cache_key(
                "chat", self.name, [_message_fields(message) for message in messages], {**self._model_and_options[1], **options}
            )
        except TypeError as error:
            raise TypeError(f"{self.name}: a call with options that are no JSON cannot be stored ({error})") from error

    @property
    def bound_options(self) -> dict[str, Any]:
        """The options that are bound to the model: part of what its calls are known by."""
        return self._model_and_options[1]

    # A frozen dataclass may cache properties: they go past its lock into `__dict__`.

    @cached_property
    def _model_and_options(self) -> tuple[Runnable[Any, Any], dict[str, Any]]:
        """The model itself, and the options bound to it."""
        model: Any = self.model
        options: dict[str, Any] = {}
        while isinstance(model, RunnableBinding):
            model, options = model.bound, {**model.kwargs, **options}
        return model, options

    @cached_property
    def _has_options_only(self) -> bool:
        """Whether nothing is bound to the model but options: no callbacks, tags or listeners."""
        model: Any = self.model
        while isinstance(model, RunnableBinding):
            if model.config or model.config_factories:
                return False
            model = model.bound
        return True

    @cached_property
    def _takes_seed(self) -> bool:
        """Whether the model is told the seed."""
        return hasattr(self._model_and_options[0], "seed") if self.seeds is None else self.seeds

    def _model_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that the model itself is called with."""
        return options if self._takes_seed else {name: value for name, value in options.items() if name != "seed"}

    async def _answer(self, messages: list[BaseMessage], config: RunnableConfig | None, options: dict[str, Any]) -> Any:
        """The model's reply, without the cost of callbacks where nobody listens and the model can do without (`Ask._answer`)."""
        model, bound = self._model_and_options
        if self._has_options_only and has_no_callbacks(config) and hasattr(model, "answer"):
            return await cast(Any, model).answer(messages, **{**bound, **options})
        return await self.model.ainvoke(messages, config, **options)

    def _store_reply(self, place: str, messages: Sequence[BaseMessage], reply: Any, start: float) -> AIMessage:
        if not isinstance(reply, AIMessage):
            raise TypeError(f"{self.name}: only chat models can be recorded; this one returned a {type(reply).__name__}")
        usage = Usage.from_reply(reply)
        if not reply.usage_metadata:
            usage = Usage(1, sum(estimate_tokens(text(message)) for message in messages), estimate_tokens(text(reply)))
        kept = {"content": reply.content} | {name: value for name in REPLY_FIELDS if (value := getattr(reply, name))}
        return AIMessage(**self.cache.put(place, kept, self.stage, usage, time.perf_counter() - start))


def _messages(input: Any) -> list[BaseMessage]:
    """What a chat model takes, as messages: a list of them, a text, or a prompt's value."""
    if isinstance(input, PromptValue):
        return input.to_messages()
    return convert_to_messages([input] if isinstance(input, str) else input)


def _message_fields(message: BaseMessage) -> dict[str, Any]:
    """A message as the model is told it."""
    fields = message.__dict__  # to ask a message for what it has not takes 5 us
    return {"type": message.type, "content": message.content} | {
        name: fields[name] for name in MESSAGE_FIELDS if fields.get(name)
    }
