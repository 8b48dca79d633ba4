"""A sign of life from a thread of its own, on a port of its own: no stream and no queue of requests is in front of it.

The server's event loop notes each second that it runs. A request gets 200 while that note is fresh, and 503 once it is old: a loop
that is busy is alive, one that hangs is not.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = []

HANG_SECONDS = 30.0
"""Time without a sign of the event loop after which it counts as hanging."""
REQUEST_SECONDS = 5.0
"""Longest time for a request's headers."""


@contextmanager
def liveness_thread(listening: socket.socket, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Have a thread answer every GET on a bound socket while the event loop that runs now goes on; `clock` counts in seconds.

    The socket is closed at the end.
    """
    noted = clock()

    async def note() -> None:
        nonlocal noted
        while True:
            noted = clock()
            await asyncio.sleep(1.0)

    class _Probe(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            is_alive = clock() - noted < HANG_SECONDS
            body = b'{"status":"alive"}' if is_alive else b'{"status":"hangs"}'
            self.send_response(200 if is_alive else 503)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            """Say nothing: an orchestrator asks every second."""

    server = ThreadingHTTPServer(listening.getsockname()[:2], _Probe, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="livez", daemon=True)
    thread.start()
    notes = asyncio.create_task(note())
    try:
        yield
    finally:
        notes.cancel()
        server.shutdown()
        thread.join()
        server.server_close()
