"""A Postgres server of the tests' own, on a free port of this machine: Debian's (`apt-get install postgresql`)."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from ports import free_port
from waiting import wait_at_random, wait_until

BIN = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None, key=lambda path: int(path.parent.name))
"""Folder of the newest server's programs; None if none is installed."""
USER = "postgres" if os.getuid() == 0 else None
"""The user that the server runs as. Postgres refuses to run as root."""


class PostgresServer:
    """A running server. `url` is its first database's; it has no password and listens on 127.0.0.1 only."""

    def __init__(self, folder: Path) -> None:
        assert BIN is not None, "no Postgres: apt-get install postgresql"
        self.port = free_port()
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://tests@127.0.0.1:{self.port}/postgres"
        folder.mkdir(parents=True, exist_ok=True)
        if USER:
            shutil.chown(folder, USER)
        self._run("initdb", "-D", f"{folder}/data", "-U", "tests", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")

    def _run(self, program: str, *arguments: str) -> None:
        command = [f"{BIN}/{program}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120, user=USER)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        options = ["-D", f"{self.folder}/data", "-h", "127.0.0.1", "-p", str(self.port), "-k", "", "-F"]
        with (self.folder / "log").open("a") as log:
            command = [f"{BIN}/postgres", *options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", start_new_session=True, user=USER)
        process = self.process

        def listens() -> bool:
            assert process.poll() is None, (self.folder / "log").read_text()
            ready = [f"{BIN}/pg_isready", "-h", "127.0.0.1", "-p", str(self.port), "-U", "tests"]
            return subprocess.run(ready, capture_output=True).returncode == 0

        wait_until(listens)

    def stop(self) -> None:
        """End it as kill -9 does, with all its processes."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def shut_down(self) -> None:
        """End it as a restart by its administrator does: connections are told, and closed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        self.process = None

    def kill_twice(self) -> None:
        """Kill it and start it again, two times, while somebody else works with it."""
        for _ in range(2):
            wait_at_random(Random(0), 0.3)
            self.stop()
            wait_at_random(Random(1), 0.5)
            self.start()

    def make_database(self, name: str) -> str:
        """Make an empty database and return its URL."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "tests", name)
        return self.url.replace("/postgres", f"/{name}")


@contextmanager
def temporary_server() -> Iterator[PostgresServer]:
    """A server in a folder of its own, which goes with it. Pytest's folders are closed to the server's user."""
    folder = Path(tempfile.mkdtemp(prefix="learngraph-pg-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        with postgres_server(folder / "server") as running:
            yield running
    finally:
        shutil.rmtree(folder)


@contextmanager
def postgres_server(folder: Path) -> Iterator[PostgresServer]:
    """A server of an empty database, as long as the context lasts; `folder` holds its data and its log."""
    server = PostgresServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
