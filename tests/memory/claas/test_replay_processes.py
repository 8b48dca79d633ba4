"""A replay buffer in Postgres that several processes share: writers and learners, killed and stopped, and two whole services."""

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import bench_serving
import httpx
import psycopg
import pytest
from forks import Python
from postgres_server import BIN, PostgresServer, temporary_server
from urn_service import idle, serving, turns
from waiting import PATIENCE, let_others_run, wait_at_random, wait_until

from learngraph.graphs.cli.serve import _check_buffer
from learngraph.graphs.cli.serve_options import ServeOptions
from learngraph.graphs.serving import learning_task
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import ReplaySettings
from learngraph.memory.errors import ReplayError, UserError, machine_error
from learngraph.memory.records import ChatRequest, Exchange, ExchangeQuery, Feedback, Reply
from learngraph.memory.storage.branches import new_moment

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BIN is None, reason="NOT TESTED: no Postgres (apt-get install postgresql)")]
LIMITS = ReplaySettings(held_out_share=0.0, max_samplings=1000)
WORKER = """
import sys
from learngraph.memory.claas.replay import Replay
from learngraph.memory.records import Feedback
sys.path[:0] = [sys.argv[1]]
from test_replay_processes import LIMITS, exchange
what, url, name, count = sys.argv[2:]
with Replay(url, LIMITS) as replay:
    for i in range(int(count)):
        if what == "write":  # two processes are told of each reply by the same client, who tries again
            replay.append(exchange(f"{name}-{i}"))
            replay.add_feedback("acme", f"{name}-{i}", Feedback(reward=float(i % 2)), key=f"{name}-{i}")
        elif batch := replay.lease("acme", "default", 4, min_exchanges=4):
            replay.commit(batch.id, f"v{batch.step}", {"loss": 1.0})
        print(i, flush=True)
"""


def exchange(id: str, tenant: str = "acme", base: str = "b") -> Exchange:
    request = ChatRequest(({"role": "user", "content": "Hi"},))
    return Exchange(id, tenant, request, Reply("Hello", (1,), (7, 8), (-0.5, -0.25)), base, created=5.0)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with temporary_server() as running:
        yield running


@pytest.fixture
def url(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    return server.make_database(request.node.name[:60].lower().replace("[", "_").replace("]", ""))


def start(what: str, url: str, name: str, count: int) -> Python:
    paths = os.pathsep.join(sys.path)  # of pytest, which knows the folders of helpers
    environment = os.environ | {"PYTHONPATH": paths}
    return Python("-c", WORKER, Path(__file__).parent, what, url, name, count, environment=environment)


def wait_for_lines(process: Python, count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline()


def test_writers_and_learners_are_killed_and_each_feedback_counts_once(server: PostgresServer, url: str) -> None:
    """Two writers with the same ids, one more that is killed and begins again, two learners of one adapter, and a server that is
    killed as well."""
    count = 150
    writers = [start("write", url, "a", count), start("write", url, "a", count)]
    killed = start("write", url, "b", count)
    wait_for_lines(killed, 40)  # there is enough to learn from before a learner asks
    learners = [start("learn", url, "", 60), start("learn", url, "", 60)]
    for process in (*writers, *learners):
        wait_for_lines(process, 1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    server.stop()
    wait_at_random(Random(0), 0.5)
    server.start()
    again = start("write", url, "b", count)
    for process in (*writers, *learners, again):
        process.communicate()
        assert process.returncode == 0
    with Replay(url, LIMITS) as replay:
        rows = replay.rows(ExchangeQuery("acme", limit=10 * count))
        assert sorted(row.exchange.id for row in rows) == sorted(f"{name}-{i}" for name in "ab" for i in range(count))
        assert {row.revision for row in rows} == {1}
        taken = replay.step("acme", "default")
        log = replay.updates("acme", "default", 1000)
        assert [one["step"] for one in log] == list(range(taken, 0, -1))
        assert len({one["batch"] for one in log}) == taken > 0
        leased = replay.counts().get("leased", 0)
        assert leased in (0, 4)
        assert sum(row.sample_count for row in rows) == 4 * taken
        assert Counter(version for row in rows for _, version in replay.uses("acme", row.exchange.id)) == {
            f"v{step}": 4 for step in range(1, taken + 1)
        }


def test_one_process_learns_for_an_adapter_until_it_dies(url: str) -> None:
    code = (
        "import signal, sys\nfrom learngraph.memory.claas.replay import Replay\n"
        "replay = Replay(sys.argv[1])\nprint(replay.claim('acme', 'default'), flush=True)\nsignal.pause()"
    )
    other = Python("-c", code, url)
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    with Replay(url) as replay:
        assert replay.is_shared
        assert not replay.claim("acme", "default")
        assert replay.claim("acme", "second")
        other.kill()
        other.wait()
        wait_until(lambda: replay.claim("acme", "default"))
        assert replay.claim("acme", "default")


def test_a_claim_outlasts_a_restart_of_the_server(server: PostgresServer, url: str) -> None:
    with Replay(url) as replay:
        assert replay.claim("acme", "default")
        server.stop()
        server.start()
        assert replay.claim("acme", "default")
        with Replay(url) as other:
            assert not other.claim("acme", "default")


def test_calls_wait_for_a_server_that_restarts(server: PostgresServer, url: str) -> None:
    with Replay(url, LIMITS) as replay:
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for i in range(200):
                    replay.append(exchange(f"r{i}"))
                    replay.add_feedback("acme", f"r{i}", Feedback(reward=1.0))
                    if batch := replay.lease("acme", "default", 4, min_exchanges=4):
                        replay.commit(batch.id, f"v{batch.step}", {})
            except BaseException as error:
                errors.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        server.kill_twice()
        worker.join(timeout=120)
        assert not worker.is_alive()
        assert errors == []
        rows = replay.rows(ExchangeQuery("acme", limit=1000))
        assert sorted(row.exchange.id for row in rows) == sorted(f"r{i}" for i in range(200))
        assert {row.revision for row in rows} == {1}
        assert sum(row.sample_count for row in rows) == 4 * replay.step("acme", "default")


def test_texts_that_postgres_cannot_hold_come_back(url: str) -> None:
    odd = "nul \x00, half \ud800, our sign \ue0000041"
    full = Exchange(
        "r0", "acme", exchange("r0").request, Reply(odd, (1,), (7,), (-0.5,)), "b", family=odd, user=odd, created=5.0
    )
    with Replay(url, LIMITS) as replay:
        replay.append(full)
        replay.append(full)
        replay.add_feedback("acme", "r0", Feedback(text=odd), key="k\x00")
        assert replay.add_feedback("acme", "r0", Feedback(text="other"), key="k\x00").is_repeat
        row = replay.get("acme", "r0")
        assert row is not None
        assert (row.exchange.reply.text, row.exchange.family, row.exchange.user) == (odd, odd, odd)
        assert row.exchange.feedback == Feedback(text=odd)


def test_what_is_wrong_is_said_without_the_password(server: PostgresServer, url: str) -> None:
    with pytest.raises(ReplayError, match="replay buffer in Postgres: ") as refused:
        Replay(f"postgresql://nobody:sesame@127.0.0.1:{server.port}/postgres")
    assert "sesame" not in str(refused.value)
    assert machine_error(refused.value) is not None  # so no minibatch is blamed for it
    with Replay(url) as replay:
        assert "postgres" in repr(replay)
        assert "tests" not in repr(replay)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE learngraph_replay.format SET version = 7")
    with pytest.raises(ReplayError, match="format 7, this program reads 2; name another schema"):
        Replay(url)
    with pytest.raises(UserError, match=r"--buffer is postgresql://USER@HOST/DATABASE, got 'some\.sqlite'"):
        ServeOptions(buffer="some.sqlite")


def test_schemas_of_one_database_are_buffers_of_their_own(url: str) -> None:
    with Replay(url) as one, Replay(f"{url}?options=-csearch_path%3Dsecond") as two:
        one.append(exchange("r0"))
        assert two.counts() == {}
        two.append(exchange("r0", base="c"))
        assert (one.other_base("b"), one.other_base("c")) == (None, "b")
        options = ServeOptions(buffer=url)
        _check_buffer(options, one, "b")
        with pytest.raises(UserError, match="holds replies of base model b, and guard is base c; give this service a schema"):
            _check_buffer(options, one, "c")
        assert two.claim("acme", "default")
        assert one.claim("acme", "default")


def test_a_branch_of_a_shared_buffer_is_a_file(url: str) -> None:
    with Replay(url, LIMITS) as replay:
        replay.append(exchange("r0"))
        moment = new_moment()
        replay.append(exchange("r1"))
        replay.add_feedback("acme", "r0", Feedback(reward=1.0))
        with replay.as_of(moment) as copy:
            assert copy.counts() == {"pending": 1}
            copy.append(exchange("r2"))
            assert {row.exchange.id for row in copy.rows(ExchangeQuery("acme"))} == {"r0", "r2"}
        assert replay.counts() == {"pending": 1, "ready": 1}


async def test_two_services_share_a_buffer_and_one_of_them_learns(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feedback that comes to the service that does not learn teaches all the same, and what is learned answers in both."""
    monkeypatch.setattr(learning_task, "OTHERS_SECONDS", 0.1)
    async with serving(tmp_path, buffer=url) as one:
        await turns(one, 8)
        await settle(lambda: one.replay.step("acme", "default") > 0 and idle(one))
        taken = one.replay.step("acme", "default")
        async with serving(tmp_path, buffer=url) as two:
            live = one.versions("acme").current
            assert live
            said = await turns(two, 8, start=100)
            assert said[0].reply.version == live
            await settle(lambda: one.replay.step("acme", "default") > taken)
            await settle(lambda: two._live.adapter("acme", "default").live == one.versions("acme").current > live)
            assert two._learning is not None
            assert two._learning.busy is None
            assert not two.replay.claim("acme", "default")
            later = await turns(two, 1, start=200)
            assert later[0].reply.version > live  # names begin with the number of steps
        rows = one.replay.rows(ExchangeQuery("acme", limit=100))
        assert Counter(row.revision for row in rows) == {1: 17}


def test_the_command_keeps_its_buffer_there_and_goes_on_after_a_kill(url: str, tmp_path: Path) -> None:
    secret = url.replace("tests@", "tests:sesame@")  # this server asks for no password, and takes any
    said = {"model": "guard", "messages": [{"role": "user", "content": "say raven ."}], "max_tokens": 4}
    ids = []
    for _ in range(2):
        with bench_serving.server("guard", "off", tmp_path / "out", ["--buffer", secret], Python) as (address, key, process):
            client = httpx.Client(base_url=address, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE)
            ids.append(client.post("/v1/chat/completions", json=said).json()["id"])
            for id in ids:  # also of a reply that was served before the kill
                assert client.post("/v1/feedback", json={"response_id": id, "reward": 1}).status_code == 202
            process.kill()
    with Replay(url) as replay:
        assert {row.exchange.id: row.revision for row in replay.rows(ExchangeQuery("bench"))} == dict.fromkeys(ids, 1)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name == "replay.sqlite" or b"sesame" in path.read_bytes()]


async def settle(is_done: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(is_done):
            await let_others_run()
