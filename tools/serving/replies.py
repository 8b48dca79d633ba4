"""Replies while they are made: several at once, cancelled when the client hangs up, as one body or as server-sent events.

This file knows nothing of the web framework; `chat_server.py` carries what it makes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from ...memory.errors import UserError
from ...memory.records import ChatCall, Exchange, Piece
from .backend import ChatBackend
from .metrics import ServerMetrics
from .openai_wire import (
    ApiError,
    ParsedRequest,
    chat_choice,
    reply_calls,
    text_choice,
    text_logprobs,
    unknown_model,
    usage,
    user_error_as_api_error,
)
from .responses_wire import ResponseEvents, response_object
from .tenants import RateLimitExceeded, Tenant, Tenants

__all__ = ["ClientDisconnected", "ConcurrentReplies", "FullResponse", "StartQueues", "StreamedResponse"]

LOG = logging.getLogger("learngraph.chat_server")
REQUEST_ID: ContextVar[str] = ContextVar("request", default="without an id")
"""Id of the request that is being answered."""
AnswerKind = Literal["chat", "text", "response"]
"""`/v1/chat/completions`, `/v1/completions` or `/v1/responses`."""
ID_PREFIXES: dict[AnswerKind, str] = {"chat": "chatcmpl-", "text": "cmpl-", "response": "resp_"}
OBJECTS: dict[AnswerKind, str] = {"chat": "chat.completion", "text": "text_completion", "response": "response"}
MAX_STARTS = 4
"""Replies of one tenant that begin at the same time. Its 256 clients get as many tokens a second as without a limit."""
START_SECONDS = 0.1
"""Longest time that a reply counts as one that begins: a network that reads long prompts has many of them at once."""
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's `receive`, after the body was read: reports that the client hung up."""


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

    def __init__(
        self,
        streams: Sequence[AsyncIterator[Piece | Exchange]],
        receive: Receive,
        turn: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
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


def sse_event(data: Mapping[str, Any] | str, name: str = "") -> bytes:
    """A server-sent event, in ASCII: some clients take U+2028 or U+0085 for the end of a line."""
    body = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"event: {name}\ndata: {body}\n\n".encode() if name else f"data: {body}\n\n".encode()


def as_api_error(error: BaseException) -> ApiError:
    """The error as clients see it. The text of a bug is not shown; the caller logs it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RateLimitExceeded):
        headers = {"retry-after": str(max(1, math.ceil(error.retry_after)))}
        if error.code == "insufficient_quota":
            headers["x-should-retry"] = "false"  # the openai client would wait and ask again
        return ApiError(str(error), 429, code=error.code, headers=headers)
    if isinstance(error, UserError):
        found = user_error_as_api_error(error)
        if found.message != str(error):
            LOG.error("request %s: %s", REQUEST_ID.get(), error)
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
    kind: AnswerKind,
    receive: Receive,
) -> FullResponse | StreamedResponse:
    """Make the replies that a request asks for. Errors before the first token are raised, so that they have an HTTP status.

    Args:
        starts: the server's.
        model: the model as the client named it.
        receive: reports that the client hung up.

    Raises:
        ApiError: there is no such adapter, or the request has more choices than the tenant may ever have at once.
        RateLimitExceeded: the tenant's tokens of the day are used up, or too many replies are being made.
        ClientDisconnected: the client hung up.
        UserError: the backend's.
    """
    if parsed.adapter and all(row["id"] != f"{backend.model}:{parsed.adapter}" for row in await backend.models(tenant.name)):
        raise unknown_model(model)
    if len(parsed.requests) > tenant.limits.streams:
        count, most = len(parsed.requests), tenant.limits.streams
        raise ApiError(f"{count} choices; this key may have {most} replies being made at once", param="n")
    began = time.monotonic()
    answer = _Answer(tenants, metrics, starts, tenant, parsed, kind)
    answer.start(backend, model, receive)
    try:
        items = await answer.replies.next_items()
        metrics.first_token_seconds.observe(time.monotonic() - began)
        if parsed.stream:
            streamed = _StreamedResponseObject(answer) if kind == "response" else _StreamedAnswer(answer)
            return StreamedResponse(streamed.events(items), answer.close, answer.headers)
        logprobs = await answer.collect(items)
    except BaseException:
        await answer.close()
        raise
    await answer.close()
    return answer.full_response(logprobs)


@dataclass
class _Answer:
    """The answer to one request while its replies are made."""

    tenants: Tenants
    metrics: ServerMetrics
    starts: StartQueues
    tenant: Tenant
    parsed: ParsedRequest
    kind: AnswerKind
    replies: ConcurrentReplies = field(init=False)
    _reserved: ExitStack = field(init=False)
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    """Choice -> its exchange, once it is finished."""
    frame: dict[str, Any] = field(default_factory=dict)
    """The fields that the body, or each chunk of the stream, begins with."""
    headers: dict[str, str] = field(default_factory=dict)

    def start(self, backend: ChatBackend, model: str, receive: Receive) -> None:
        """Reserve the tenant's streams and begin to make the replies."""
        id = f"{ID_PREFIXES[self.kind]}{secrets.token_hex(12)}"
        ids = [f"{id}-{i}" if i else id for i in range(len(self.parsed.requests))]
        adapter = self.parsed.adapter or "default"
        with ExitStack() as stack:
            stack.enter_context(self.tenants.reserve_streams(self.tenant, len(ids)))
            # After the quotas, since the service pins a version for each id that it is asked about.
            labels = [backend.version(self.tenant.name, adapter, each, self.parsed.version) for each in ids]
            streams = [
                backend.chat(
                    ChatCall(
                        id=one,
                        tenant=self.tenant.name,
                        request=request,
                        adapter=adapter,
                        store=self.parsed.store,
                        **self.parsed.metadata,
                    )
                )
                for one, request in zip(ids, self.parsed.requests, strict=True)
            ]
            self.replies = ConcurrentReplies(streams, receive, partial(self.starts.turn, self.tenant.name))
            self._reserved = stack.pop_all()
        self.metrics.replies_in_progress.inc(len(ids))
        self.frame = {
            "id": id,
            "object": OBJECTS[self.kind],
            "created_at" if self.kind == "response" else "created": int(time.time()),
            "model": model,
            "system_fingerprint": _fingerprint(labels),
            **self.parsed.echo,
        }
        self.headers = {"x-policy-version": self.frame["system_fingerprint"]}
        if self.parsed.store:
            self.headers["x-experience-id"] = id

    @property
    def count(self) -> int:
        """Number of choices."""
        return len(self.parsed.requests)

    async def close(self) -> None:
        """Cancel replies that are not finished, and charge the tenant for the tokens."""
        try:
            await self.replies.close()
        finally:
            self._reserved.close()
            self.metrics.replies_in_progress.dec(self.count)
            done = [exchange.reply for _, exchange in sorted(self.exchanges.items())]
            tokens = usage(done, self.parsed.num_prompts)["total_tokens"] if len(done) == self.count else 0
            tokens = max(tokens, self.replies.num_tokens)  # a client that hangs up early pays for the pieces that it got
            self.tenants.spend(self.tenant, tokens)
            self.metrics.tokens.labels(self.tenant.name).inc(tokens)

    async def collect(self, items: list[tuple[int, Piece | Exchange]]) -> dict[int, list[Any]]:
        """Wait for the end of all replies. Returns the log-probabilities of each choice's tokens."""
        logprobs: dict[int, list[Any]] = {i: [] for i in range(self.count)}
        while items:
            for index, item in items:
                if isinstance(item, Exchange):
                    self.exchanges[index] = item
                else:
                    logprobs[index].extend(item.logprobs)
            items = await self.replies.next_items()
        return logprobs

    def full_response(self, logprobs: Mapping[int, Sequence[Any]]) -> FullResponse:
        """The body with all choices."""
        replies = [self.exchanges[i].reply for i in range(self.count)]
        # The versions that did answer: another one may have gone live between the question and the answer.
        fingerprint = _fingerprint([reply.version for reply in replies])
        headers = self.headers | {"x-policy-version": fingerprint}
        frame = self.frame | {"system_fingerprint": fingerprint}
        if self.kind == "response":
            shown = logprobs[0] if self.parsed.with_logprobs else ()
            return FullResponse(response_object(frame, replies[0], shown, self.parsed.one_call), headers)
        choices = []
        for i, reply in enumerate(replies):
            tokens = logprobs[i] if self.parsed.with_logprobs else None
            if self.kind == "text":
                choices.append(text_choice(i, reply, tokens))
            else:
                choices.append(chat_choice(i, reply, tokens, self.parsed.one_call))
        return FullResponse(frame | {"choices": choices, "usage": usage(replies, self.parsed.num_prompts)}, headers)


def _fingerprint(labels: Sequence[str]) -> str:
    """The versions that answer, each once; `base` for the base model."""
    return ",".join(dict.fromkeys(label or "base" for label in labels))


@dataclass
class _StreamedAnswer:
    """An answer as server-sent events."""

    answer: _Answer
    sent_text: dict[int, str] = field(default_factory=dict)
    """Choice -> its text so far."""

    async def events(self, items: list[tuple[int, Piece | Exchange]]) -> AsyncIterator[bytes]:
        """OpenAI's events. Several are sent together if they come faster than the client reads; an error is an event, too."""
        answer = self.answer
        try:
            if begin := self.first_chunks():
                yield begin
            while items:
                out = b""
                for index, item in items:
                    if isinstance(item, Exchange):
                        out += self.final_chunks(index, item)
                        answer.exchanges[index] = item
                    elif item.text or item.logprobs:
                        out += self.text_chunk(index, item.text, item.logprobs)
                if out:
                    yield out
                items = await answer.replies.next_items()
            if end := self.last_chunks():
                yield end
        except ClientDisconnected:
            answer.metrics.disconnects.inc()
        except Exception as error:
            if not isinstance(error, UserError | ApiError):
                LOG.exception("the stream %s failed", answer.frame["id"])
            yield self.error_event(as_api_error(error))

    def first_chunks(self) -> bytes:
        """The events before the first text."""
        answer = self.answer
        if answer.parsed.with_usage:
            answer.frame["usage"] = None
        if answer.kind != "chat":
            return b""
        answer.frame["object"] = "chat.completion.chunk"
        return b"".join(self.chunk(i, {"role": "assistant", "content": "", "refusal": None}) for i in range(answer.count))

    def last_chunks(self) -> bytes:
        """The events after all choices have ended."""
        answer, usage_event = self.answer, b""
        if answer.parsed.with_usage:
            numbers = usage([answer.exchanges[i].reply for i in range(answer.count)], answer.parsed.num_prompts)
            usage_event = sse_event(answer.frame | {"choices": [], "usage": numbers})
        return usage_event + sse_event("[DONE]")

    def error_event(self, error: ApiError) -> bytes:
        """The event for an error in the middle."""
        return sse_event(error.body, "error")

    def chunk(self, index: int, delta: Any, logprobs: Any = None, finish: str | None = None) -> bytes:
        """The event for a part of a choice."""
        content = {"delta": delta} if self.answer.kind == "chat" else {"text": delta}
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        return sse_event(self.answer.frame | {"choices": [choice]})

    def text_chunk(self, index: int, more: str, tokens: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """The event for more text of a choice."""
        logprobs: Any = None
        before = self.sent_text.get(index, "")
        if self.answer.parsed.with_logprobs:
            shown = [dict(token) for token in tokens]
            logprobs = {"content": shown, "refusal": None} if self.answer.kind == "chat" else text_logprobs(shown, len(before))
        self.sent_text[index] = before + more
        return self.chunk(index, {"content": more} if self.answer.kind == "chat" else more, logprobs)

    def final_chunks(self, index: int, exchange: Exchange) -> bytes:
        """The events that end a choice: text that was not sent yet, tool calls, and the reason for the end."""
        reply, out = exchange.reply, b""
        shown = self.sent_text.get(index, "")
        if len(reply.text) > len(shown) and reply.text.startswith(shown):
            out = self.text_chunk(index, reply.text[len(shown) :])
        if self.answer.kind == "text":
            return out + self.chunk(index, "", None, reply.finish)
        if reply.thoughts:
            out += self.chunk(index, {"reasoning_content": reply.thoughts})
        for at, call in enumerate(reply_calls(reply, self.answer.parsed.one_call)):
            out += self.chunk(index, {"tool_calls": [{"index": at, **call}]})
        return out + self.chunk(index, {}, None, reply.finish)


class _StreamedResponseObject(_StreamedAnswer):
    """An answer of `/v1/responses` as server-sent events."""

    def __init__(self, answer: _Answer) -> None:
        super().__init__(answer)
        self._events = ResponseEvents(answer.frame, answer.parsed.with_logprobs, answer.parsed.one_call)

    def first_chunks(self) -> bytes:
        return _named_events(self._events.begin())

    def text_chunk(self, index: int, more: str, tokens: Sequence[Mapping[str, Any]] = ()) -> bytes:
        return _named_events(self._events.text(more, tokens))

    def final_chunks(self, index: int, exchange: Exchange) -> bytes:
        return _named_events(self._events.end(exchange.reply, _fingerprint([exchange.reply.version])))

    def last_chunks(self) -> bytes:
        return b""

    def error_event(self, error: ApiError) -> bytes:
        return _named_events([self._events.failure(error)])


def _named_events(events: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(sse_event(event, event["type"]) for event in events)
