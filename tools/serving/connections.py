"""Limits on connections that uvicorn does not have: the time that a request's headers may take, the time in which nothing of an answer is
read, and how many connections are open. Without them, a client that never finishes a request, or reads no answer, keeps all others out.

The parser is h11, which bounds the bytes of a head, of trailers and between chunks, and reads no request behind one that is being
answered. In one process with its client a request took 2.6 ms of CPU, by httptools 2.5.
"""

import asyncio
import json
import logging
import math
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = []

LOG = logging.getLogger("learngraph.chat_server")
LINGER_SECONDS = 1.0
"""Time that a refused client has to read the answer. A connection that is closed with unread bytes is reset, and the answer lost."""
MAX_HEADER_BYTES, MAX_HEADERS = 65_536, 100
"""Largest head of a request, and most headers in it."""
TOO_LARGE = f"a request's headers are at most {MAX_HEADER_BYTES} bytes and {MAX_HEADERS} headers"
STALL_SECONDS = 60.0
"""Longest time in which a client may read nothing of an answer."""
MAX_LINGERING = 32
"""Most refused connections that stay open for that; further ones are closed at once."""
RESERVED_FILES = 128
"""Open files that are left for all else than connections: the replay buffer, versions, the learner's process."""


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, and whose connections send each answer at once. (asyncio asks for that only where it makes the
    socket itself. Without it, all answers of a connection but the first wait 40 ms.) Raises OSError and OverflowError."""
    found = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


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
    """Those without a whole request, or whose client does not read, the one that has waited longest first."""


def limited_protocol(max_connections: int, header_seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP protocol with limits. A connection whose request has come with its whole body, and whose client reads the answer, is
    never closed by them.

    Args:
        max_connections: connections at once. For a further one, that which has waited longest for its client, for a whole request or for
            room to send, is closed; if all are busy, the new one gets a 503.
        header_seconds: longest time from a connection, or from the first byte of a later request, to the end of the request's headers.
    """
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": _Limits(max_connections, header_seconds)})


_Base: Any = H11Protocol


class _LimitedProtocol(_Base):  # type: ignore[misc]
    """A connection that counts."""

    limits: _Limits
    _header_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

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
        super().data_received(data)
        if self not in self.limits.opened:
            return
        if self.cycle is None or self.cycle.response_complete:
            self._start_timer()  # the headers are not complete, or this is the rest of a body that nobody reads
            return
        self._stop_timer()
        if not self.cycle.more_body:
            self.limits.waiting.pop(self, None)

    def send_400_response(self, msg: str) -> None:
        if getattr(sys.exception(), "error_status_hint", 400) == 431:
            self._refuse(431, TOO_LARGE, "headers_too_large")
            return
        is_body = self.cycle is not None and self.cycle.more_body
        what = "the body cannot be read as chunks" if is_body else "this cannot be read as a request"
        self._refuse(400, f"{what} of HTTP/1.1", "invalid_request")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self in self.limits.opened and (self.cycle.response_complete or self.cycle.more_body):
            self.limits.waiting[self] = None  # else the next request has come already, and is whole

    def pause_writing(self) -> None:
        super().pause_writing()
        if self in self.limits.opened:
            self.limits.waiting[self] = None
            self._watch_stall(math.inf)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self.limits.waiting.pop(self, None)

    def _watch_stall(self, before: float) -> None:
        """Close the connection if no byte was sent of so many that were waiting; else look again later."""
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self._watch_stall, left)
            return
        LOG.warning("a client read nothing of its answer for %g s; its connection is closed", STALL_SECONDS)
        self.transport.abort()

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
        if not self.transport.is_closing():
            self._refuse(408, f"a request's headers took longer than {self.limits.header_seconds:g} s", "request_timeout")

    def _forget(self) -> None:
        self._stop_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self.limits.opened.discard(self)
        self.limits.waiting.pop(self, None)

    def _refuse(self, status: int, message: str, code: str) -> None:
        self._forget()
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or not self.cycle.more_body:
                self.transport.abort()  # in the middle of an answer there is no place for another
                return
            self.cycle.disconnected = True  # this is the answer to the request, whose endpoint may wait for its body
            self.cycle.message_event.set()
        kind = "server_error" if status >= 500 else "invalid_request_error"
        body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}retry-after: 1\r\nconnection: close\r\n\r\n".encode() + body)
        if len(self.limits.lingering) >= MAX_LINGERING or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.limits.lingering.add(self)
        with suppress(OSError):  # the client is gone
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
