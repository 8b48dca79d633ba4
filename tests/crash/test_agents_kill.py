"""Two processes of one agent on a Chroma server, one of them killed again and again: no conversation is lost or counted twice."""

import json
import signal
import sys
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from chroma_server import chroma_server
from forks import start
from waiting import wait_until

from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.memory.conversations.store import ConversationStore
from learngraph.memory.storage.chroma_store import ChromaStore

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def work(server: str, name: str, count: int, done: Path) -> None:
    """Serve tickets, each with feedback that comes twice, and note in a file which are done."""
    sys.path.insert(0, str(NOTEBOOKS))
    import help_desk as desk
    from langchain.agents import create_agent

    learner = JitRLMiddleware(ChromaStore.open(server), decide=["resolve"], state_key=desk.issue)
    agent = create_agent(desk.GuessingClerk(), [desk.lookup_order, desk.resolve], middleware=[learner])
    finished = set(done.read_text().split()) if done.exists() else set()
    for n in range(count):
        thread = f"{name}-{n}"
        if thread in finished:
            continue
        message = {
            "role": "user",
            "content": desk.ticket(n)[0],
            "id": thread,
        }  # ids of the app: a message sent again is the same
        agent.invoke({"messages": [message]}, {"configurable": {"thread_id": thread, "tenant": "acme"}})
        learner.feedback(thread, reward=float(n % 2), tenant="acme")
        learner.feedback(thread, reward=float(n % 2), tenant="acme")
        with done.open("a") as file:
            file.write(thread + "\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chroma_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.mark.slow
def test_two_processes_and_kills_lose_and_double_nothing(server: str, tmp_path: Path) -> None:
    count = 4

    def begin(name: str) -> ForkServerProcess:
        return start(work, server, name, count, tmp_path / f"{name}.txt")

    def finished(name: str) -> int:
        file = tmp_path / f"{name}.txt"
        return len(file.read_text().split()) if file.exists() else 0

    steady, kills = begin("steady"), 0
    killed = begin("killed")
    while killed.is_alive() or killed.exitcode != 0:
        before = finished("killed")
        if kills < 1:
            wait_until(lambda before=before: not killed.is_alive() or finished("killed") >= before + 2)
            killed.kill()
            kills += 1
        killed.join()
        if killed.exitcode != 0:
            assert killed.exitcode == -signal.SIGKILL
            killed = begin("killed")
    steady.join()
    assert steady.exitcode == 0
    with ChromaStore.open(server) as store:
        conversations = ConversationStore(store, ("agents", "agent", "tenant=acme"))
        found = {one.id: one for one in conversations.trajectories.all()}
        assert len(found) == 2 * count
        assert set(found) == {f"{name}-{n}/0" for name in ("steady", "killed") for n in range(count)}
        assert all(one.score == float(int(one.run.rpartition("-")[2]) % 2) for one in found.values())
        assert all(len(one.turns) == 1 for one in conversations.turns.all()), json.dumps(
            [one.id for one in conversations.turns.all()]
        )
