"""Replies while they are made: several at once, cancelled when the client hangs up, as one body or as server-sent events.

Knows nothing of the web framework: `chat_server.py` carries what this makes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ...memory.errors import UserError
from ...memory.records import ChatRequest, Exchange, Piece
from .metrics import Meter
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
from .tenants import RateLimitExceeded, Tenant, Tenants

__all__ = [
    "ClientDisconnected",
    "ConcurrentReplies",
    "FullResponse",
    "ReplyBackend",
    "ReplyItem",
    "StreamedResponse",
    "as_api_error",
    "respond",
    "sse_event",
]

LOG = logging.getLogger("learngraph.chat_server")
REQUEST_ID: ContextVar[str] = ContextVar("request", default="without an id")
"""Id of the request that is being answered."""
ReplyItem = Piece | Exchange


class ReplyBackend(Protocol):
    """What replies: the part of `chat_server.Backend` that a chat needs."""

    async def models(self, tenant: str) -> list[dict[str, Any]]:
        """`id` (`<model>` is the adapter `default`, `<model>:<adapter>` another), `created` (Unix seconds), `version`."""

    def version(self, tenant: str, adapter: str, id: str) -> str:
        """Label of the version that will answer request `id`; empty: the base model."""

    def chat(
        self,
        tenant: str,
        adapter: str,
        request: ChatRequest,
        *,
        id: str,
        family: str = "",
        scenario: str = "",
        turn: int = 0,
        store: bool = True,
    ) -> AsyncIterator[ReplyItem]:
        """Pieces, whose texts together begin the reply's text, and last the `Exchange`, durable by then. Closing it cancels."""


class ClientDisconnected(Exception):
    """The client has hung up."""


class ConcurrentReplies:
    """The replies of one request, made at once: `(choice, item)` in the order in which they come.

    Each is iterated and closed in a task of its own. When the client hangs up, or `close` is called, they are cancelled.

    Raises (from `next`):
        Gone: the client has hung up.
        Exception: the first error of any choice.
    """

    def __init__(
        self, streams: Sequence[AsyncIterator[ReplyItem]], receive: Callable[[], Awaitable[MutableMapping[str, Any]]]
    ) -> None:
        self._queue: asyncio.Queue[tuple[int, ReplyItem | BaseException | None]] = asyncio.Queue(maxsize=64)
        self._open = len(streams)
        self._tasks = [asyncio.create_task(self._pump(i, stream)) for i, stream in enumerate(streams)]
        self._watch = asyncio.create_task(self._watch_disconnect(receive))
        self.num_pieces = 0
        """Pieces so far: about as many tokens."""

    async def _pump(self, index: int, stream: AsyncIterator[ReplyItem]) -> None:
        try:
            done = False
            async with AsyncExitStack() as stack:
                if (close := getattr(stream, "aclose", None)) is not None:
                    stack.push_async_callback(close)
                async for item in stream:
                    done = isinstance(item, Exchange)
                    await self._queue.put((index, item))
            await self._queue.put((index, None if done else RuntimeError("a reply ended without its exchange")))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._queue.put((index, error))

    async def _watch_disconnect(self, receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for task in self._tasks:
            task.cancel()
        await self._queue.put((-1, ClientDisconnected()))

    async def next_items(self) -> list[tuple[int, ReplyItem]]:
        """What has come since, at least one item; nothing: all are finished."""
        found: list[tuple[int, ReplyItem]] = []
        while self._open and (not found or not self._queue.empty()):
            index, item = await self._queue.get()
            if item is None:
                self._open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                self.num_pieces += isinstance(item, Piece)
                found.append((index, item))
        return found

    async def close(self) -> None:
        """Cancel what is still going on, and wait for its end."""
        for task in (*self._tasks, self._watch):
            task.cancel()
        await asyncio.gather(*self._tasks, self._watch, return_exceptions=True)


def sse_event(data: Mapping[str, Any] | str, name: str = "") -> bytes:
    """A server-sent event. All ASCII: some clients take U+2028 or U+0085 for the end of a line."""
    body = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"event: {name}\ndata: {body}\n\n".encode() if name else f"data: {body}\n\n".encode()


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told of an error; ours are not told, but logged by whoever calls this."""
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
    return ApiError("the server failed; its log says why, under the id in x-request-id", 500, code="internal_error")


@dataclass(frozen=True)
class FullResponse:
    """A finished answer."""

    body: dict[str, Any]
    headers: dict[str, str]


@dataclass(frozen=True)
class StreamedResponse:
    """An answer as it is made. Whoever has it calls `close`, however it ends."""

    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]
    headers: dict[str, str]


async def respond(
    backend: ReplyBackend,
    tenants: Tenants,
    meter: Meter,
    tenant: Tenant,
    parsed: ParsedRequest,
    model: str,
    kind: Literal["chat", "text"],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
) -> FullResponse | StreamedResponse:
    """Make what is asked for. Errors before the first token are raised, so that they have an HTTP status of their own.

    Args:
        model: as the client named it.
        receive: ASGI's, after the body was read: says when the client hangs up.

    Raises:
        Refused: there is no such adapter, or more choices than the tenant may ever have at once.
        TooMany: the tenant's quota is used up, or it has too many replies under way.
        Gone: the client has hung up.
        UserError: the speaker refuses.
    """
    if parsed.adapter and all(row["id"] != model for row in await backend.models(tenant.name)):
        raise unknown_model(model)
    adapter = parsed.adapter or "default"
    began = time.monotonic()
    id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{secrets.token_hex(12)}"
    ids = [f"{id}-{i}" if i else id for i in range(len(parsed.requests))]
    if len(ids) > tenant.limits.streams:
        raise ApiError(f"{len(ids)} choices; this key may have {tenant.limits.streams} replies being made at once", param="n")
    with ExitStack() as stack:
        stack.enter_context(tenants.reserve_streams(tenant, len(ids)))
        # Behind the quotas: the service keeps the versions for those that it was asked about.
        fingerprint = ",".join(dict.fromkeys(backend.version(tenant.name, adapter, each) or "base" for each in ids))
        streams = [
            backend.chat(tenant.name, adapter, request, id=one, store=parsed.store, **parsed.metadata)
            for one, request in zip(ids, parsed.requests, strict=True)
        ]
        replies = ConcurrentReplies(streams, receive)
        held = stack.pop_all()
    exchanges: dict[int, Exchange] = {}
    meter.change("learngraph_replies_in_progress", {}, len(ids))

    async def close() -> None:
        try:
            await replies.close()
        finally:
            held.close()
            meter.change("learngraph_replies_in_progress", {}, -len(ids))
            done = [exchange.reply for _, exchange in sorted(exchanges.items())]
            tokens = usage(done, parsed.num_prompts)["total_tokens"] if len(done) == len(ids) else 0
            tokens = max(tokens, replies.num_pieces)  # hanging up before the end is not free
            tenants.spend(tenant, tokens)
            meter.add("learngraph_tokens_total", {"tenant": tenant.name}, tokens)

    frame = {
        "id": id,
        "object": "chat.completion" if kind == "chat" else "text_completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": fingerprint,
    }
    headers = {"x-policy-version": fingerprint} | ({"x-experience-id": id} if parsed.store else {})
    try:
        items = await replies.next_items()
        meter.observe("learngraph_first_token_seconds", {}, time.monotonic() - began)
        if parsed.stream:
            return StreamedResponse(
                _StreamedAnswer(parsed, frame, kind, replies, exchanges, meter).events(items), close, headers
            )
        logprobs: dict[int, list[Any]] = {i: [] for i in range(len(ids))}
        while items:
            for index, item in items:
                if isinstance(item, Exchange):
                    exchanges[index] = item
                else:
                    logprobs[index].extend(item.logprobs)
            items = await replies.next_items()
    except BaseException:
        await close()
        raise
    await close()
    found = [exchanges[i].reply for i in range(len(ids))]
    choices = []
    for i, reply in enumerate(found):
        shown = logprobs[i] if parsed.with_logprobs else None
        choices.append(text_choice(i, reply, shown) if kind == "text" else chat_choice(i, reply, shown, parsed.one_call))
    # The version that did answer: it may have become another between the question and the answer.
    fingerprint = ",".join(dict.fromkeys(reply.version or "base" for reply in found))
    body = frame | {"system_fingerprint": fingerprint, "choices": choices, "usage": usage(found, parsed.num_prompts)}
    return FullResponse(body, headers | {"x-policy-version": fingerprint})


@dataclass
class _StreamedAnswer:
    """A streamed answer."""

    parsed: ParsedRequest
    frame: dict[str, Any]
    kind: str
    replies: ConcurrentReplies
    exchanges: dict[int, Exchange]
    meter: Meter
    sent_text: dict[int, str] = field(default_factory=dict)
    """Choice -> its text so far."""

    async def events(self, items: list[tuple[int, ReplyItem]]) -> AsyncIterator[bytes]:
        """OpenAI's chunks, several in one piece where they come faster than they are taken; an error is an event, too."""
        count = len(self.parsed.requests)
        if self.kind == "chat":
            self.frame["object"] = "chat.completion.chunk"
        if self.parsed.with_usage:
            self.frame["usage"] = None
        try:
            if self.kind == "chat":
                yield b"".join(self.chunk(i, {"role": "assistant", "content": "", "refusal": None}) for i in range(count))
            while items:
                out = b""
                for index, item in items:
                    if isinstance(item, Exchange):
                        out += self.final_chunks(index, item)
                        self.exchanges[index] = item
                    elif item.text or item.logprobs:
                        out += self.text_chunk(index, item.text, item.logprobs)
                if out:
                    yield out
                items = await self.replies.next_items()
            if self.parsed.with_usage:
                numbers = usage([self.exchanges[i].reply for i in range(count)], self.parsed.num_prompts)
                yield sse_event(self.frame | {"choices": [], "usage": numbers})
            yield sse_event("[DONE]")
        except ClientDisconnected:
            self.meter.add("learngraph_disconnects_total", {})
        except Exception as error:
            if not isinstance(error, UserError | ApiError):
                LOG.exception("the stream %s failed", self.frame["id"])
            yield sse_event(as_api_error(error).body, "error")

    def chunk(self, index: int, delta: Any, logprobs: Any = None, finish: str | None = None) -> bytes:
        content = {"delta": delta} if self.kind == "chat" else {"text": delta}
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        return sse_event(self.frame | {"choices": [choice]})

    def text_chunk(self, index: int, more: str, tokens: Sequence[Mapping[str, Any]] = ()) -> bytes:
        logprobs: Any = None
        before = self.sent_text.get(index, "")
        if self.parsed.with_logprobs:
            shown = [dict(token) for token in tokens]
            logprobs = {"content": shown, "refusal": None} if self.kind == "chat" else text_logprobs(shown, len(before))
        self.sent_text[index] = before + more
        return self.chunk(index, {"content": more} if self.kind == "chat" else more, logprobs)

    def final_chunks(self, index: int, exchange: Exchange) -> bytes:
        reply, out, shown = exchange.reply, b"", self.sent_text.get(index, "")
        if len(reply.text) > len(shown) and reply.text.startswith(shown):
            out = self.text_chunk(index, reply.text[len(shown) :])
        if self.kind == "text":
            return out + self.chunk(index, "", None, reply.finish)
        for at, call in enumerate(reply_calls(reply, self.parsed.one_call)):
            out += self.chunk(index, {"tool_calls": [{"index": at, **call}]})
        return out + self.chunk(index, {}, None, reply.finish)
