"""Two processes of one agent on a Chroma server, one of them killed again and again: no conversation is lost or counted twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chroma_server import chroma_server
from waiting import wait_until

from learngraph.memory.conversations.store import ConversationStore
from learngraph.memory.storage.chroma_store import ChromaStore

WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
import help_desk as desk
from langchain.agents import create_agent
from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.memory.storage.chroma_store import ChromaStore

_, _, server, name, count, done = sys.argv
learner = JitRLMiddleware(ChromaStore.open(server), decide=["resolve"], state_key=desk.issue)
agent = create_agent(desk.GuessingClerk(), [desk.lookup_order, desk.resolve], middleware=[learner])
finished = set(open(done).read().split()) if __import__("os").path.exists(done) else set()
for n in range(int(count)):
    thread = f"{name}-{n}"
    if thread in finished:
        continue
    message = {"role": "user", "content": desk.ticket(n)[0], "id": thread}  # ids of the app: a message sent again is the same
    out = agent.invoke({"messages": [message]}, {"configurable": {"thread_id": thread, "tenant": "acme"}})
    learner.feedback(thread, reward=float(n % 2), tenant="acme")
    learner.feedback(thread, reward=float(n % 2), tenant="acme")
    with open(done, "a") as file:
        file.write(thread + "\\n")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chroma_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.mark.slow
def test_two_processes_and_kills_lose_and_double_nothing(server: str, tmp_path: Path) -> None:
    count = 8

    def start(name: str) -> subprocess.Popen[bytes]:
        arguments = [str(Path(__file__).parents[2] / "notebooks"), server, name, str(count), str(tmp_path / f"{name}.txt")]
        return subprocess.Popen([sys.executable, "-c", WORKER, *arguments], env=os.environ)

    def finished(name: str) -> int:
        file = tmp_path / f"{name}.txt"
        return len(file.read_text().split()) if file.exists() else 0

    steady, kills = start("steady"), 0
    killed = start("killed")
    while killed.poll() is None or killed.returncode != 0:
        before = finished("killed")
        if kills < 2:
            wait_until(lambda before=before: killed.poll() is not None or finished("killed") >= before + 2)
            killed.kill()
            kills += 1
        killed.wait(120)
        if killed.returncode != 0:
            assert killed.returncode == -signal.SIGKILL
            killed = start("killed")
    assert steady.wait(120) == 0
    with ChromaStore.open(server) as store:
        conversations = ConversationStore(store, ("agents", "agent", "tenant=acme"))
        found = {one.id: one for one in conversations.trajectories.all()}
        assert len(found) == 2 * count
        assert set(found) == {f"{name}-{n}/0" for name in ("steady", "killed") for n in range(count)}
        assert all(one.score == float(int(one.run.rpartition("-")[2]) % 2) for one in found.values())
        assert all(len(one.turns) == 1 for one in conversations.turns.all()), json.dumps(
            [one.id for one in conversations.turns.all()]
        )
