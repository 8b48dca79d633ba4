"""A Chroma server that several processes write to: it is killed, they are killed, it stops answering; no record is lost or doubled."""

import signal
import threading
from collections.abc import Iterator
from random import Random

import pytest
from chroma_server import ChromaServer
from forks import start
from waiting import wait_at_random, wait_until

from learngraph.memory.errors import UserError
from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage import chroma_collections
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.record_store import RecordStore

pytestmark = pytest.mark.slow

COUNT = 40


def write(where: str, name: str) -> None:
    """Write episodes, one after the other."""
    with ChromaStore.open(where) as store:
        memory = Experiences(RecordStore(store, ("shared",), Trajectory))
        for n in range(COUNT):
            step = Transition(f"room {n} of {name}", "go", float(n))
            memory.add(Trajectory(f"{name}/{n}", Task("t", "find it"), (step,), name, n))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromaServer]:
    running = ChromaServer(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.kill()


def ids(server: ChromaServer) -> list[str]:
    with ChromaStore.open(server.url) as store:
        return sorted(one.id for one in RecordStore(store, ("shared",), Trajectory).all())


def records_by_writer(server: ChromaServer) -> dict[str, int]:
    """Records of each writer."""
    found = ids(server)
    return {name: sum(id.startswith(name) for id in found) for name in ("one", "two")}


def test_kills_of_writers_and_of_the_server_lose_and_double_nothing(server: ChromaServer) -> None:
    writers = {name: start(write, server.url, name) for name in ("one", "two")}
    for round in range(2):
        before = records_by_writer(server)

        def each_wrote() -> bool:
            assert all(process.exitcode in (None, 0) for process in writers.values())
            return all(count > before[name] or count == COUNT for name, count in records_by_writer(server).items())

        wait_until(each_wrote)
        if round == 0:
            server.kill()
            wait_at_random(Random(0), 0.5)
            server.start()
        else:
            writers["one"].kill()
            writers["one"].join()
            writers["one"] = start(write, server.url, "one")
    for process in writers.values():
        process.join()
        assert process.exitcode == 0
    assert ids(server) == sorted(f"{name}/{n}" for name in writers for n in range(COUNT))


def test_a_reader_sees_another_writers_experience_once_it_reads_again(server: ChromaServer) -> None:
    step = Transition("kitchen", "take coin", 1.0)
    with ChromaStore.open(server.url) as one, ChromaStore.open(server.url) as two:
        writer = Experiences(RecordStore(one, ("read",), Trajectory))
        reader = Experiences(RecordStore(two, ("read",), Trajectory))
        assert reader.neighbours("kitchen", 1, task="t") == ()
        writer.add(Trajectory("r/0", Task("t", "find it"), (step,), "r", 0))
        reader.reload()
        assert [found.action for found in reader.neighbours("kitchen", 1, task="t")] == ["take coin"]


def test_a_server_that_stops_answering_is_waited_for_and_then_said(
    server: ChromaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process is what a network partition looks like from here: connections open, and nothing comes back."""
    assert server.process is not None
    monkeypatch.setattr(chroma_collections, "ANSWER_SECONDS", 1.0)
    with ChromaStore.open(server.url) as store:
        server.process.send_signal(signal.SIGSTOP)
        threading.Timer(3, lambda: server.process and server.process.send_signal(signal.SIGCONT)).start()
        store.put(("slow",), "k", {"n": 1})
        item = store.get(("slow",), "k")
        assert item is not None
        assert item.value == {"n": 1}
        with ChromaStore.open(server.url, patience=2.0) as hasty:
            server.process.send_signal(signal.SIGSTOP)
            with pytest.raises(UserError, match="no Chroma server answers"):
                hasty.put(("slow",), "k", {"n": 2})
            server.process.send_signal(signal.SIGCONT)
        store.put(("slow",), "k", {"n": 3})
        assert [item.value for item in store.search(("slow",))] == [{"n": 3}]
