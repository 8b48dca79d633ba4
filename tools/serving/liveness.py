"""A sign of life from a process of its own, on a port of its own: no stream, no queue of requests and no thread is in front of it.

The server's event loop notes each second that it runs, by a byte to that process. A request gets 200 while that note is fresh, and 503
once it is old: a loop that is busy is alive, one that hangs is not. The process runs this file, loads nothing else of ours, and ends with
the server, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = []


@contextmanager
def liveness_process(listening: socket.socket, hang_seconds: float = 30.0) -> Iterator[None]:
    """Have a process answer every GET on a listening socket, which is closed at the end, while the event loop that runs now goes on."""
    command = [sys.executable, "-I", "-S", __file__, str(listening.fileno()), str(hang_seconds)]
    # A session of its own: Ctrl-C is for the server.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[listening.fileno()], start_new_session=True
    )
    pipe = process.stdin.fileno()  # type: ignore[union-attr]

    async def note() -> None:
        with suppress(BrokenPipeError):  # it was killed: nobody answers, and an orchestrator starts the server again
            while True:
                os.write(pipe, b".")
                await asyncio.sleep(1.0)

    notes = asyncio.create_task(note())
    try:
        yield
    finally:
        notes.cancel()
        process.kill()
        process.communicate()
        listening.close()


def answer_probes(listening: socket.socket, hang_seconds: float) -> None:
    """Answer until the standard input, which has the notes, ends."""
    noted = time.monotonic()

    def read_notes() -> None:
        nonlocal noted
        while os.read(0, 1024):
            noted = time.monotonic()
        os._exit(0)

    class _Probe(BaseHTTPRequestHandler):
        timeout = 5.0  # longest time for a request's headers, in seconds

        def do_GET(self) -> None:
            status, word = (200, "alive") if time.monotonic() - noted < hang_seconds else (503, "hangs")
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"status":"%s"}' % word.encode())

    threading.Thread(target=read_notes, daemon=True).start()
    server = ThreadingHTTPServer(("", 0), _Probe, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.serve_forever()


if __name__ == "__main__":
    answer_probes(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2]))
