"""A chat model whose calls are counted in a ledger, and are not begun once the budget is spent.

Every reply that came counts, also one that could not be read, or whose episode did not get to its end: it was paid for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ..memory.records import Usage
from ..memory.storage.cache import Cache
from .ask import estimate_tokens, has_no_callbacks, text
from .cached_model import SpendingLimit, chat_messages

__all__ = ["MeteredChatModel"]

PASSED_THROUGH = ("window", "get_num_tokens", "takes_reply_schema")
"""Attributes of a model that cost nothing."""


@dataclass(frozen=True)
class MeteredChatModel(Runnable[Any, Any]):
    """A chat model whose calls are counted under a stage of a ledger, and limited. Nodes and graphs use it in place of the model.

    Raises:
        BudgetSpent: before a call that the limit does not allow.
    """

    seeded: ClassVar[bool] = False
    """False: no seed is made for each call, as for the model itself."""

    model: Any
    """A chat model."""
    ledger: Cache
    """Where usage is added up, by all processes of a run."""
    stage: str
    """The name under which its usage is counted."""
    limit: SpendingLimit | None = None

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages, start = chat_messages(input), self._start()
        return self._count(messages, self.model.invoke(messages, config, **kwargs), start)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        messages, start = chat_messages(input), self._start()
        if has_no_callbacks(config) and hasattr(self.model, "answer"):  # callbacks cost time (`Ask._answer`)
            return self._count(messages, await self.model.answer(messages, **kwargs), start)
        return self._count(messages, await self.model.ainvoke(messages, config, **kwargs), start)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> MeteredChatModel:
        """The same model with tools that it may call."""
        return replace(self, model=self.model.bind_tools(tools, **kwargs))

    def __getattr__(self, name: str) -> Any:
        """The attributes of a model in this process that are passed on, and its scores, which are counted."""
        if name in PASSED_THROUGH:
            return getattr(self.model, name)
        if name == "score" and hasattr(self.model, "score"):
            return self._score
        raise AttributeError(f"a metered chat model has no {name!r}")

    def _score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> Any:
        start = self._start()
        scores = self.model.score(messages, options)
        usage = Usage(1, getattr(scores, "prompt_tokens", 0))
        self.ledger.add_cost(self.stage, usage, time.perf_counter() - start)
        return scores

    def _start(self) -> float:
        if self.limit:
            self.limit.check()
        return time.perf_counter()

    def _count(self, messages: Sequence[BaseMessage], reply: Any, start: float) -> AIMessage:
        usage = Usage.from_reply(reply)
        if not reply.usage_metadata:
            usage = Usage(1, sum(estimate_tokens(text(message)) for message in messages), estimate_tokens(text(reply)))
        self.ledger.add_cost(self.stage, usage, time.perf_counter() - start)
        return cast(AIMessage, reply)
