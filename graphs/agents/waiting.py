"""The waits of an agent's hooks, in agents that are awaited and in others, so that each hook is written once.

async def work(self, request, waits): ...                          a hook's work: `await waits.answer(request)`
def hook(self, request, handler):                                  of an agent that is not awaited
    return finish(self.work(request, Waits(handler)))
async def ahook(self, request, handler):
    return await self.work(request, AwaitedWaits(handler))
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from langchain_core.runnables import Runnable

__all__ = ["Waits"]

MAX_SAMPLING_THREADS = 64
"""Model calls that wait side by side in agents that are not awaited."""
_THREADS = ThreadPoolExecutor(MAX_SAMPLING_THREADS, thread_name_prefix="learngraph-samples")
Outcome = TypeVar("Outcome")


class Waits:
    """Waits of an agent that is not awaited: the thread stands still meanwhile.

    Args:
        handler: answers a request for a model or a tool.
    """

    def __init__(self, handler: Callable[[Any], Any] | None = None) -> None:
        self._handler: Any = handler

    async def call(self, function: Callable[..., Outcome], *given: Any) -> Outcome:
        """The outcome of a function that reads or writes the store."""
        return function(*given)

    async def answer(self, request: Any) -> Any:
        """The answer to a request."""
        return self._handler(request)

    async def answers(self, requests: Sequence[Any]) -> list[Any]:
        """The answers to requests that are asked side by side, the first in this thread."""
        rest = [_THREADS.submit(copy_context().run, self._handler, one) for one in requests[1:]]
        return [self._handler(requests[0]), *(one.result() for one in rest)]

    async def output(self, runnable: Runnable[Any, Any], given: Any) -> Any:
        """The output of a runnable."""
        return runnable.invoke(given)

    async def outcome(self, found: Awaitable[Any]) -> Any:
        """The outcome of what is awaited: in a thread of its own, for this one may be busy with a loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, AwaitedWaits().outcome(found)).result()


class AwaitedWaits(Waits):
    """Waits of an agent that is awaited: other tasks go on meanwhile."""

    async def call(self, function: Callable[..., Outcome], *given: Any) -> Outcome:
        return await asyncio.to_thread(function, *given)

    async def answer(self, request: Any) -> Any:
        return await self._handler(request)

    async def answers(self, requests: Sequence[Any]) -> list[Any]:
        return await asyncio.gather(*map(self._handler, requests))

    async def output(self, runnable: Runnable[Any, Any], given: Any) -> Any:
        return await runnable.ainvoke(given)

    async def outcome(self, found: Awaitable[Any]) -> Any:
        return await found


def finish(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """The outcome of a hook's work in an agent that is not awaited, where nothing of it is ever suspended."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("work of an agent that is not awaited was suspended")
