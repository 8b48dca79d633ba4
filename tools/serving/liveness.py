"""A sign of life from a thread of its own, on a port of its own: no stream and no queue of requests is in front of it.

The server's event loop notes each second that it runs. What asks is told 200 while that note is fresh, and 503 once it is old: a loop
that is busy is alive, one that hangs is not.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = []

HANG_SECONDS = 30.0
"""Time without a sign of the event loop after which it counts as hanging."""
REQUEST_SECONDS = 5.0
"""Longest time for a request's headers."""


@contextmanager
def liveness_thread(listening: socket.socket, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Have a thread answer every request on a bound socket while the event loop that runs now goes on. Closes the socket.

    Args:
        listening: the socket.
        clock: seconds.
    """
    noted = clock()
    thread_loop = asyncio.new_event_loop()

    async def note() -> None:
        nonlocal noted
        while True:
            noted = clock()
            await asyncio.sleep(1.0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                await reader.readuntil(b"\r\n\r\n")
            status = "200 OK" if clock() - noted < HANG_SECONDS else "503 Service Unavailable"
            body = b'{"status":"%s"}' % (b"alive" if status[0] == "2" else b"hangs")
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(answer, sock=listening) as server:
            with suppress(asyncio.CancelledError):
                await server.serve_forever()

    notes = asyncio.create_task(note())
    task = thread_loop.create_task(run())
    thread = threading.Thread(target=thread_loop.run_until_complete, args=(task,), name="livez", daemon=True)
    thread.start()
    try:
        yield
    finally:
        notes.cancel()
        thread_loop.call_soon_threadsafe(task.cancel)
        thread.join()
        thread_loop.close()
