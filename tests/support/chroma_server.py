"""A Chroma server of the tests' own, on a free port of this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def chroma_server(folder: Path) -> Iterator[str]:
    """The server's address, as long as the context lasts; `folder` holds its data and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("chroma")), "run", "--path", str(folder / "data")]
    log = folder / "chroma.log"
    with log.open("w") as file:
        process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], stdout=file, stderr=file)
        try:
            for _ in range(300):
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()
