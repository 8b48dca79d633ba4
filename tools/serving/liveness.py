"""A sign of life from a process of its own, on a port of its own: no stream, no queue of requests and no thread is in front of it.

The server's event loop notes each second that it runs, by a byte to that process. A request gets 200 while that note is fresh, and 503
once it is old: a loop that is busy is alive, one that hangs is not. The process runs this file, loads nothing else of ours, and ends with
the server, however that ends.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = []

LOG = logging.getLogger("learngraph.chat_server")
REQUEST_SECONDS = 5.0
"""Longest time for a request's headers."""
MAX_WAITING = 256
"""Most connections without a whole request; for a further one, that which has waited longest is closed."""


@contextmanager
def liveness_process(listening: socket.socket, hang_seconds: float = 30.0) -> Iterator[None]:
    """Have a process answer every GET on a listening socket, which is closed at the end, while the event loop that runs now goes on. A
    process that ends is started again within a second."""
    command = [sys.executable, "-I", "-S", __file__, str(listening.fileno()), str(hang_seconds)]

    def start() -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C is for the server.
        more: dict[str, Any] = {"pass_fds": [listening.fileno()], "start_new_session": True}
        return subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, **more)

    process = start()

    async def note() -> None:
        nonlocal process
        while True:
            try:
                os.write(process.stdin.fileno(), b".")  # type: ignore[union-attr]
            except BrokenPipeError:
                process.communicate()
                LOG.warning("the process at --livez-port ended (exit status %s) and is started again", process.returncode)
                process = start()
            await asyncio.sleep(1.0)

    notes = asyncio.create_task(note())
    try:
        yield
    finally:
        notes.cancel()
        process.kill()
        process.communicate()
        listening.close()


async def answer_probes(listening: socket.socket, hang_seconds: float) -> None:
    """Answer until the standard input, which has the notes, ends. Who sends his request too slowly makes room for others."""
    loop, noted, waiting = asyncio.get_running_loop(), time.monotonic(), dict[asyncio.StreamWriter, None]()

    def read_notes() -> None:
        nonlocal noted
        noted = time.monotonic()
        if not os.read(0, 1024):
            os._exit(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(waiting) >= MAX_WAITING:
            waiting.pop(longest := next(iter(waiting)))
            longest.transport.abort()
        waiting[writer] = None
        with suppress(TimeoutError, EOFError, OSError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                await reader.readuntil(b"\r\n\r\n")
            status, word = (
                ("200 OK", "alive") if time.monotonic() - noted < hang_seconds else ("503 Service Unavailable", "hangs")
            )
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
            writer.write(f'{head}{{"status":"{word}"}}'.encode())
        waiting.pop(writer, None)
        writer.close()

    loop.add_reader(0, read_notes)
    await (await asyncio.start_server(answer, sock=listening)).serve_forever()


if __name__ == "__main__":
    asyncio.run(answer_probes(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2])))
