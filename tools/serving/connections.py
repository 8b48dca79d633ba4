"""Limits on connections that uvicorn does not have: the time and the bytes that a request's headers may take, and how many
connections are open.

Without them, a client that opens connections and never finishes a request keeps all others out.
"""

from __future__ import annotations

import asyncio
import json
import resource
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = []

LINGER_SECONDS = 1.0
"""Time that a refused client has to read the answer. A connection that is closed with unread bytes is reset, and the answer lost."""
MAX_HEADER_BYTES, MAX_HEADERS = 65_536, 100
"""Largest head of a request, and most headers in it."""
MAX_LINGERING = 32
"""Most refused connections that stay open for that; further ones are closed at once."""
RESERVED_FILES = 128
"""Open files that are left for all else than connections: the replay buffer, versions, the learner's process."""


def available_connections(wanted: int) -> int:
    """The connections that may be open at once: as many as wanted, or as many as the process may open (`ulimit -n`)."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if most == resource.RLIM_INFINITY else max(1, min(wanted, most - RESERVED_FILES))


@dataclass
class _Limits:
    """The limits of a server, and its connections."""

    max_connections: int
    header_seconds: float
    opened: set[Any] = field(default_factory=set)
    lingering: set[Any] = field(default_factory=set)
    """Refused, and about to be closed."""
    waiting: dict[Any, None] = field(default_factory=dict)
    """Those without a whole request, the one that has waited longest first."""


def limited_protocol(max_connections: int, header_seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP protocol with two limits. A connection whose request has come with its whole body, and is being answered, is never
    closed by them.

    Args:
        max_connections: connections at once. For a further one, that which has waited longest for a whole request is closed; if all
            are busy, the new one gets a 503.
        header_seconds: longest time from a connection, or from the first byte of a later request, to the end of the request's headers.
    """
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": _Limits(max_connections, header_seconds)})


_Base: Any = AutoHTTPProtocol


class _LimitedProtocol(_Base):  # type: ignore[misc]
    """A connection that counts."""

    limits: _Limits
    _header_timer: asyncio.TimerHandle | None = None
    _head_bytes, _head_lines, _head_end = 0, 0, b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.limits.opened) >= self.limits.max_connections:
            if not self.limits.waiting:
                self._refuse(503, "too many connections; try again", "unavailable")
                return
            longest = next(iter(self.limits.waiting))
            longest._forget()  # it counts no more, though its end comes later
            longest.transport.abort()
        self.limits.opened.add(self)
        self.limits.waiting[self] = None
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self in self.limits.lingering:
            return
        if self._is_head_too_large(data):
            self._forget()
            most = f"{MAX_HEADER_BYTES} bytes and {MAX_HEADERS} headers"
            self._refuse(431, f"a request's headers are at most {most}", "headers_too_large")
            return
        super().data_received(data)
        if self not in self.limits.opened:
            return
        if self.cycle is None or self.cycle.response_complete:
            self._start_timer()  # the headers are not complete, or this is the rest of a body that nobody reads
            return
        self._stop_timer()
        if not self.cycle.more_body:
            self.limits.waiting.pop(self, None)

    def _is_head_too_large(self, data: bytes) -> bool:
        """Count what comes of a request's head; the parser, which joins the parts of a header in quadratic time, never has more."""
        if self.cycle is not None and (self.cycle.more_body or not self.cycle.response_complete):
            return False
        end = (self._head_end + data).find(b"\r\n\r\n")
        head = data if end < 0 else data[: end + 4 - len(self._head_end)]
        self._head_bytes, self._head_lines = self._head_bytes + len(head), self._head_lines + head.count(b"\n")
        self._head_end = (self._head_end + data)[-3:]
        found = self._head_bytes > MAX_HEADER_BYTES or self._head_lines > MAX_HEADERS + 2
        if end >= 0:
            self._head_bytes, self._head_lines, self._head_end = 0, 0, b""
        return found

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self in self.limits.opened and self.cycle.response_complete:  # else the next request has come already
            self.limits.waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self.limits.lingering.discard(self)
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.header_seconds, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_timeout(self) -> None:
        self._forget()
        if not self.transport.is_closing():
            self._refuse(408, f"a request's headers took longer than {self.limits.header_seconds:g} s", "request_timeout")

    def _forget(self) -> None:
        self._stop_timer()
        self.limits.opened.discard(self)
        self.limits.waiting.pop(self, None)

    def _refuse(self, status: int, message: str, code: str) -> None:
        error = {"message": message, "type": "server_error", "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}retry-after: 1\r\nconnection: close\r\n\r\n".encode() + body)
        if len(self.limits.lingering) >= MAX_LINGERING or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.limits.lingering.add(self)
        with suppress(OSError):  # the client is gone
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
