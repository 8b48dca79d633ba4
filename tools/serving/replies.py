"""Replies while they are made: several at once, cancelled when the client hangs up, as one body or as server-sent events.

This file knows nothing of the web framework; `chat_server.py` carries what it makes.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...memory.errors import UserError
from ...memory.records import ChatCall, Exchange, Piece, Reply
from .answers import AnswerFormat, usage
from .backend import ChatBackend
from .metrics import ServerMetrics
from .openai_wire import ApiError, ParsedRequest, unknown_model, user_error_as_api_error
from .tenants import RateLimitExceeded, Tenant, Tenants

__all__ = ["ClientDisconnected", "ConcurrentReplies", "FullResponse", "StartQueues", "StreamedResponse"]

LOG = logging.getLogger("learngraph.chat_server")
REQUEST_ID: ContextVar[str] = ContextVar("request", default="without an id")
"""Id of the request that is being answered."""
MAX_STARTS = 4
"""Replies of one tenant that begin at the same time. Its 256 clients get as many tokens a second as without a limit."""
START_SECONDS = 0.1
"""Longest time that a reply counts as one that begins: a network that reads long prompts has many of them at once."""
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's `receive`, after the body was read: reports that the client hung up."""
Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Makes the context manager in which a reply begins."""


class ClientDisconnected(Exception):
    """The client hung up."""


class StartQueues:
    """Queues of the replies that begin, one a tenant. Belongs to one event loop.

    To begin a reply takes much of the event loop and twenty of its rounds, before its network is asked at all. Of each tenant only
    `MAX_STARTS` replies are in this stage, so that rounds stay short, and a tenant's only request does not wait for the hundreds that
    another one sends at once.
    """

    def __init__(self) -> None:
        self._queues: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait until this reply may begin. The block ends when it has begun; after `START_SECONDS` the next one may begin anyway."""
        semaphore, users = self._queues.get(tenant) or (asyncio.Semaphore(MAX_STARTS), 0)
        self._queues[tenant] = semaphore, users + 1
        try:
            await semaphore.acquire()
            with ExitStack() as place:
                place.callback(semaphore.release)
                timer = asyncio.get_running_loop().call_later(START_SECONDS, place.close)
                place.callback(timer.cancel)
                yield
        finally:
            users = self._queues[tenant][1] - 1
            self._queues[tenant] = semaphore, users
            if not users:
                del self._queues[tenant]


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
        await self._queue.put((-1, ClientDisconnected()))

    async def next_items(self) -> list[tuple[int, Piece | Exchange]]:
        """The (choice, item) pairs that came since the last call, in their order; waits for the first. Empty: all are finished.

        Raises:
            ClientDisconnected: the client hung up.
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
    """The error as clients see it. The text of a bug is not shown; the caller logs it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RateLimitExceeded):
        headers = {"retry-after": str(max(1, math.ceil(error.retry_after)))}
        return ApiError(str(error), 429, code="rate_limit_exceeded", headers=headers)
    if isinstance(error, UserError):
        found = user_error_as_api_error(error)
        if found.message != str(error):
            # logged as an error only where the operator can put it right
            level = logging.ERROR if found.status >= 500 else logging.INFO
            LOG.log(level, "request %s: %s", REQUEST_ID.get(), error)
        return found
    return ApiError("the server failed; its log has the reason, under the id in x-request-id", 500, code="internal_error")


@dataclass(frozen=True)
class FullResponse:
    """A finished answer: its JSON and its headers."""

    body: dict[str, Any]
    headers: dict[str, str]


@dataclass(frozen=True)
class StreamedResponse:
    """An answer while it is made. The caller calls `close` at the end, also after an error."""

    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]
    headers: dict[str, str]


async def respond(
    backend: ChatBackend,
    tenants: Tenants,
    metrics: ServerMetrics,
    starts: StartQueues,
    *,
    tenant: Tenant,
    parsed: ParsedRequest,
    model: str,
    form: type[AnswerFormat],
    receive: Receive,
) -> FullResponse | StreamedResponse:
    """Make the replies that a request asks for. Errors before the first token are raised, so that they have an HTTP status.

    Args:
        starts: the server's.
        model: the model as the client named it.
        form: of the answer.
        receive: reports that the client hung up.

    Raises:
        ApiError: there is no such adapter, or the request has more choices than the tenant may ever have at once.
        RateLimitExceeded: too many replies are being made.
        ClientDisconnected: the client hung up.
        UserError: the backend's.
    """
    if parsed.adapter and all(row["id"] != f"{backend.model}:{parsed.adapter}" for row in await backend.models(tenant.name)):
        raise unknown_model(model)
    if len(parsed.requests) > tenant.limits.streams:
        count, most = len(parsed.requests), tenant.limits.streams
        raise ApiError(f"{count} choices; this key may have {most} replies being made at once", param="n")
    began = time.monotonic()
    answer = _PendingAnswer(tenants, metrics, tenant, parsed)
    answer.start(backend, model, form, receive, partial(starts.turn, tenant.name))
    try:
        items = await answer.replies.next_items()
        metrics.first_token_seconds.observe(time.monotonic() - began)
        if parsed.stream:
            return StreamedResponse(answer.events(items), answer.close, answer.headers)
        body = await answer.whole(items)
    except BaseException:
        await answer.close()
        raise
    await answer.close()
    return FullResponse(body, answer.headers)


@dataclass
class _PendingAnswer:
    """The answer to one request while its replies are made."""

    tenants: Tenants
    metrics: ServerMetrics
    tenant: Tenant
    parsed: ParsedRequest
    replies: ConcurrentReplies = field(init=False)
    form: AnswerFormat = field(init=False)
    id: str = ""
    _reserved: ExitStack = field(init=False)
    done: dict[int, Reply] = field(default_factory=dict)
    """Choice -> its reply, once it is finished."""
    headers: dict[str, str] = field(default_factory=dict)

    def start(self, backend: ChatBackend, model: str, form: type[AnswerFormat], receive: Receive, turn: Turn) -> None:
        """Reserve the tenant's streams and begin to make the replies."""
        self.id = f"{form.prefix}{secrets.token_hex(12)}"
        ids = [f"{self.id}-{i}" if i else self.id for i in range(len(self.parsed.requests))]
        tenant, adapter, about = self.tenant.name, self.parsed.adapter or "default", self.parsed.metadata
        with ExitStack() as stack:
            stack.enter_context(self.tenants.reserve_streams(self.tenant, len(ids)))
            # After the quotas, since the service pins a version for each id that it is asked about.
            version = _fingerprint([backend.version(tenant, adapter, each, self.parsed.version) for each in ids])
            streams = [
                backend.chat(
                    ChatCall(id=one, tenant=tenant, request=request, adapter=adapter, store=self.parsed.store, **about)
                )
                for one, request in zip(ids, self.parsed.requests, strict=True)
            ]
            self.replies = ConcurrentReplies(streams, receive, turn)
            self._reserved = stack.pop_all()
        self.metrics.replies_in_progress.inc(len(ids))
        self.form = form(self.id, model, version, self.parsed)
        self.headers = {"x-policy-version": version} | ({"x-experience-id": self.id} if self.parsed.store else {})

    async def close(self) -> None:
        """Cancel replies that are not finished, and count the tenant's tokens."""
        count = len(self.parsed.requests)
        try:
            await self.replies.close()
        finally:
            self._reserved.close()
            self.metrics.replies_in_progress.dec(count)
            tokens = usage(self.finished(), self.parsed.num_prompts)["total_tokens"] if len(self.done) == count else 0
            tokens = max(tokens, self.replies.num_tokens)  # of a client that hung up early, the pieces that it got
            self.metrics.tokens.labels(self.tenant.name).inc(tokens)

    def finished(self) -> list[Reply]:
        """The finished replies in the order of the choices."""
        return [reply for _, reply in sorted(self.done.items())]

    async def whole(self, items: list[tuple[int, Piece | Exchange]]) -> dict[str, Any]:
        """The body with all choices, when all are finished."""
        logprobs: list[list[Any]] = [[] for _ in self.parsed.requests]
        while items:
            for index, item in items:
                if isinstance(item, Exchange):
                    self.done[index] = item.reply
                else:
                    logprobs[index].extend(item.logprobs)
            items = await self.replies.next_items()
        # The versions that did answer: another one may have gone live between the question and the answer.
        version = self.headers["x-policy-version"] = _fingerprint([reply.version for reply in self.finished()])
        return self.form.whole(self.finished(), logprobs, version)

    async def events(self, items: list[tuple[int, Piece | Exchange]]) -> AsyncIterator[bytes]:
        """OpenAI's events. Several are sent together if they come faster than the client reads; an error is an event, too."""
        try:
            out = self.form.begin()
            while items:
                for index, item in items:
                    if isinstance(item, Exchange):
                        out += self.form.end(index, item.reply)
                        self.done[index] = item.reply
                    elif item.text or item.logprobs:
                        out += self.form.text(index, item.text, item.logprobs)
                if out:
                    yield out
                items, out = await self.replies.next_items(), b""
            if end := self.form.finish(self.finished()):
                yield end
        except ClientDisconnected:
            self.metrics.disconnects.inc()
        except Exception as error:
            if not isinstance(error, UserError | ApiError):
                LOG.exception("the stream %s failed", self.id)
            yield self.form.failure(as_api_error(error))


def _fingerprint(labels: Sequence[str]) -> str:
    """The versions that answer, each once; `base` for the base model."""
    return ",".join(dict.fromkeys(label or "base" for label in labels))
