"""Java machines and the game servers in them, with machines that are no real ones."""

from types import SimpleNamespace
from typing import Any

from learngraph.tools.environments.support.java import Java, JavaMachines


class FakeProcess:
    """A process of a machine: runs until it is killed."""

    stdin = None

    def __init__(self) -> None:
        self.is_killed = False

    def poll(self) -> int | None:
        return -9 if self.is_killed else None

    def kill(self) -> None:
        self.is_killed = True

    def wait(self) -> None:
        pass


def fake_interface() -> Any:
    return SimpleNamespace()


def machines(is_shared: bool) -> tuple[JavaMachines, list[Any]]:
    launched: list[Any] = []

    def launch() -> Java:
        java = Java(SimpleNamespace(close=lambda: None), FakeProcess())  # type: ignore[arg-type]
        launched.append(java)
        return java

    return JavaMachines(launch, lambda java: fake_interface(), is_shared=is_shared), launched


def test_a_released_server_is_used_again() -> None:
    pool, launched = machines(is_shared=False)
    first = pool.server()
    first.release()
    first.release()  # twice is once
    second = pool.server()
    assert second.interface is first.interface
    assert len(launched) == 1
    assert pool.server().interface is not second.interface
    assert len(launched) == 2


def test_servers_share_a_machine_if_they_may() -> None:
    pool, launched = machines(is_shared=True)
    servers = [pool.server() for _ in range(3)]
    assert len({id(server.interface) for server in servers}) == 3
    assert len(launched) == 1


def test_a_dead_machine_is_replaced_and_its_servers_are_forgotten() -> None:
    pool, launched = machines(is_shared=True)
    pool.server().release()
    launched[0].process.kill()
    assert pool.server().java is launched[1]
    pool.end()
    assert launched[1].process.is_killed
    assert pool.server().java is launched[2]
