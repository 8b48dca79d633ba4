"""A Chroma server of the tests' own, on a free port of this machine."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ports import free_port
from waiting import wait_until

CHROMA = "import sys; from chromadb_rust_bindings import cli; cli(sys.argv)"
"""The program `chroma`, which takes seconds to import what only its clients need."""


class ChromaServer:
    """A server at `url`; `folder` holds its data and its log."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder, self.url = folder, f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        command = [sys.executable, "-c", CHROMA, "run", "--path", str(self.folder / "data")]
        log = self.folder / "chroma.log"
        with log.open("a") as file:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)], stdout=file, stderr=file
            )
        process = self.process

        def listens() -> bool:
            assert process.poll() is None, log.read_text()
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return True
            return False

        wait_until(listens)

    def kill(self) -> None:
        """End it as kill -9 does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextmanager
def chroma_server(folder: Path) -> Iterator[str]:
    """The server's address, as long as the context lasts; `folder` holds its data and its log."""
    server = ChromaServer(folder)
    server.start()
    try:
        yield server.url
    finally:
        server.kill()
