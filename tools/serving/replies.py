"""Replies while they are made: several at once, cancelled when the client hangs up, as one body or as server-sent events."""

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from ...memory.errors import UserError
from ...memory.records import ChatCall, Exchange, Piece, Reply
from .answers import ChatAnswer, usage
from .backend import ChatBackend
from .metrics import ServerMetrics
from .openai_wire import STATUSES, ApiError, ParsedRequest
from .tenants import Tenant, Tenants

__all__ = ["ConcurrentReplies", "PendingAnswer", "TenantQueues"]

LOG = logging.getLogger("learngraph.chat_server")
REQUEST_ID: ContextVar[str] = ContextVar("request", default="without an id")
"""Id of the request that is being answered."""
MAX_STARTS = 4
"""Replies of one tenant that begin at the same time. Its 256 clients get as many tokens a second as without a limit."""
START_SECONDS = 0.1
"""Longest time that a reply counts as one that begins."""
Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Makes the context manager in which a reply begins."""


class TenantQueues:
    """Queues of work that holds the event loop up, one a tenant. Belongs to one event loop.

    A request takes twenty of the loop's rounds, before its network is asked at all. Of each tenant only a few are in such a stage, so
    that rounds stay short, and a tenant's only request does not wait for the hundreds that another one sends at once.

    Args:
        most: requests of one tenant at the same time.
        seconds: longest time that one counts: a network that reads long prompts has many of them at once.
        rest: time in which the tenant's next one waits behind it, in multiples of the time that it took.
    """

    def __init__(self, most: int = MAX_STARTS, seconds: float = 60.0, rest: float = 0.0) -> None:
        self._most, self._seconds, self._rest = most, seconds, rest
        self._queues = WeakValueDictionary[str, asyncio.Semaphore]()  # of tenants that have requests

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for this request's turn, which is the `with` block; after `seconds` the next one has its turn anyway."""
        semaphore = self._queues.setdefault(tenant, asyncio.Semaphore(self._most))
        await semaphore.acquire()
        loop = asyncio.get_running_loop()
        with ExitStack() as place:
            place.callback(semaphore.release)
            place.callback(loop.call_later(self._seconds, place.close).cancel)
            began = loop.time()
            try:
                yield
            finally:
                if self._rest:
                    loop.call_later(self._rest * (loop.time() - began), place.pop_all().close)


class ConcurrentReplies:
    """The replies of one request, made at the same time.

    Each is iterated and closed in a task of its own. When the client hangs up, or `close` is called, they are cancelled.

    Args:
        streams: the replies.
        receive: reports that the client hung up.
        turn: makes the context manager in which a reply begins.
    """

    def __init__(self, streams: Sequence[AsyncIterator[Piece | Exchange]], receive: Receive, turn: Turn) -> None:
        self._turn = turn
        self._queue: asyncio.Queue[tuple[int, Piece | Exchange | BaseException | None]] = asyncio.Queue(maxsize=64)
        self._open = len(streams)
        self._tasks = [asyncio.create_task(self._pump(i, stream)) for i, stream in enumerate(streams)]
        self._watch = asyncio.create_task(self._watch_disconnect(receive))
        self.num_tokens = 0
        """Tokens of the pieces so far."""

    async def _pump(self, index: int, stream: AsyncIterator[Piece | Exchange]) -> None:
        try:
            done = False
            async with AsyncExitStack() as stack:
                if (close := getattr(stream, "aclose", None)) is not None:
                    stack.push_async_callback(close)
                async with self._turn():
                    first = await anext(stream, None)
                if first is not None:
                    done = isinstance(first, Exchange)
                    await self._queue.put((index, first))
                    async for item in stream:
                        done = isinstance(item, Exchange)
                        await self._queue.put((index, item))
            await self._queue.put((index, None if done else RuntimeError("a reply ended without its exchange")))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._queue.put((index, error))

    async def _watch_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for task in self._tasks:
            task.cancel()
        await self._queue.put((-1, ClientDisconnect()))

    async def next_items(self) -> list[tuple[int, Piece | Exchange]]:
        """The (choice, item) pairs that came since the last call, in their order; waits for the first. Empty: all are finished.

        Raises:
            ClientDisconnect: the client hung up.
            Exception: the first error of any choice.
        """
        found: list[tuple[int, Piece | Exchange]] = []
        while self._open and (not found or not self._queue.empty()):
            index, item = await self._queue.get()
            if item is None:
                self._open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                self.num_tokens += item.num_tokens if isinstance(item, Piece) else 0
                found.append((index, item))
        return found

    async def close(self) -> None:
        """Cancel replies that are not finished, and wait for their end."""
        for task in (*self._tasks, self._watch):
            task.cancel()
        await asyncio.gather(*self._tasks, self._watch, return_exceptions=True)


def as_api_error(error: BaseException) -> ApiError:
    """The error as clients see it: a `UserError` that is not in `STATUSES` is a bad request (400).

    Where the error has a public message, clients get that one; the error's own words are for the log, and so is the text of a bug.
    """
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, UserError):
        return ApiError("the server failed; its log has the reason, under the id in x-request-id", 500, code="internal_error")
    status, code = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), (400, None))
    if (message := error.public_message or str(error)) != str(error):
        # logged as an error only where the operator can put it right
        LOG.log(logging.ERROR if status >= 500 else logging.INFO, "request %s: %s", REQUEST_ID.get(), error)
    headers = {"retry-after": str(max(1, math.ceil(error.retry_after)))} if status in (429, 503) else {}
    return ApiError(message, status, code=code, headers=headers)


class PendingAnswer:
    """The answer to one request while its replies are made, which begins at once.

    Args:
        backend: answers.
        tenants: who may ask, and how much.
        metrics: of the server.
        tenant: whose request it is.
        parsed: the request.
        form: of the answer.
        receive: reports that the client hung up, after the body was read.
        turn: makes the context manager in which a reply begins.

    Raises:
        RateLimitExceeded: too many replies are being made.
        UserError: the backend's.
    """

    def __init__(
        self,
        backend: ChatBackend,
        tenants: Tenants,
        metrics: ServerMetrics,
        tenant: Tenant,
        parsed: ParsedRequest,
        form: type[ChatAnswer],
        receive: Receive,
        turn: Turn,
    ) -> None:
        self._metrics, self._tenant, self._parsed = metrics, tenant, parsed
        self._done: dict[int, Reply] = {}  # choice -> its reply, once it is finished
        id = f"{form.prefix}{secrets.token_hex(12)}"
        ids = [f"{id}-{i}" if i else id for i in range(len(parsed.requests))]
        adapter = parsed.adapter or "default"
        with ExitStack() as stack:
            stack.enter_context(tenants.reserve_streams(tenant, len(ids)))
            # After the quotas, since the service pins a version for each id that it is asked about.
            version = _fingerprint([backend.version(tenant.name, adapter, each, parsed.version) for each in ids])
            streams = [
                backend.chat(ChatCall(one, tenant.name, request, adapter=adapter, store=parsed.store, **parsed.metadata))
                for one, request in zip(ids, parsed.requests, strict=True)
            ]
            self.replies = ConcurrentReplies(streams, receive, turn)
            self._reserved = stack.pop_all()
        self._form = form(id, version, parsed)
        self.headers = {"x-policy-version": version} | ({"x-experience-id": id} if parsed.store else {})

    async def close(self) -> None:
        """Cancel replies that are not finished, and count the tenant's tokens."""
        count = len(self._parsed.requests)
        try:
            await self.replies.close()
        finally:
            self._reserved.close()
            tokens = usage(self._finished(), self._parsed.num_prompts)["total_tokens"] if len(self._done) == count else 0
            tokens = max(tokens, self.replies.num_tokens)  # of a client that hung up early, the pieces that it got
            self._metrics.tokens.labels(self._tenant.name).inc(tokens)

    def _finished(self) -> list[Reply]:
        """The finished replies in the order of the choices."""
        return [reply for _, reply in sorted(self._done.items())]

    async def whole(self, items: list[tuple[int, Piece | Exchange]]) -> dict[str, Any]:
        """The body with all choices, when all are finished."""
        logprobs: list[list[Any]] = [[] for _ in self._parsed.requests]
        while items:
            for index, item in items:
                if isinstance(item, Exchange):
                    self._done[index] = item.reply
                else:
                    logprobs[index].extend(item.logprobs)
            items = await self.replies.next_items()
        # The versions that did answer: another one may have gone live between the question and the answer.
        version = self.headers["x-policy-version"] = _fingerprint([reply.version for reply in self._finished()])
        return self._form.whole(self._finished(), logprobs, version)

    async def events(self, items: list[tuple[int, Piece | Exchange]]) -> AsyncIterator[bytes]:
        """OpenAI's events. Several are sent together if they come faster than the client reads; an error is an event, too."""
        try:
            out = self._form.begin()
            while items:
                for index, item in items:
                    if isinstance(item, Exchange):
                        out += self._form.end(index, item.reply)
                        self._done[index] = item.reply
                    elif item.text or item.logprobs:
                        out += self._form.text(index, item.text, item.logprobs)
                if out:
                    yield out
                items, out = await self.replies.next_items(), b""
            if end := self._form.finish(self._finished()):
                yield end
        except ClientDisconnect:
            self._metrics.disconnects.inc()
        except Exception as error:
            if not isinstance(error, UserError | ApiError):
                LOG.exception("the stream of request %s failed", REQUEST_ID.get())
            yield self._form.failure(as_api_error(error))


def _fingerprint(labels: Sequence[str]) -> str:
    """The versions that answer, each once; `base` for the base model."""
    return ",".join(dict.fromkeys(label or "base" for label in labels))
