"""Memories and checkpoints in Postgres: the store's promises, restarts of the server, and runs of the command line."""

import json
import threading
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from forks import Python
from in_process import play_in_process
from langgraph.graph import START, StateGraph
from learning_agents import FORGOTTEN, forget_one
from postgres_server import BIN, PostgresServer, temporary_server
from store_tests import StoreTests
from typing_extensions import TypedDict
from waiting import wait_at_random, wait_until

from learngraph.graphs.cli.main import main
from learngraph.memory.errors import UserError
from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.storage.checkpoints import open_checkpoints, open_checkpoints_async
from learngraph.memory.storage.open_store import all_items, open_store
from learngraph.memory.storage.postgres_store import PostgresMemory
from learngraph.memory.storage.record_store import RecordStore

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BIN is None, reason="NOT TESTED: no Postgres (apt-get install postgresql)")]
NS = ("runs", "zork")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with temporary_server() as running:
        yield running


@pytest.fixture
def database(server: PostgresServer, tmp_path: Path) -> str:
    """URL of an empty database."""
    return server.make_database("d" + blake2b(str(tmp_path).encode(), digest_size=8).hexdigest())


class TestPostgresMemory(StoreTests):
    lacks = frozenset({"vectors"})  # Debian 12 has no pgvector

    @pytest.fixture(autouse=True)
    def _of_this_server(self, server: PostgresServer) -> None:
        self.url = server.url

    @pytest.mark.xfail(strict=True, reason="LangGraph's store compares numbers in filters as texts")
    def test_numbers_are_compared_as_numbers(self, store: Any) -> None:
        super().test_numbers_are_compared_as_numbers(store)

    @pytest.mark.xfail(strict=True, reason="LangGraph's store sorts by time alone: pages lose items written at one time")
    def test_two_thousand_items_in_one_batch_are_found_page_by_page(self, store: Any) -> None:
        super().test_two_thousand_items_in_one_batch_are_found_page_by_page(store)

    def open_store(self, place: Path, index: Any) -> PostgresMemory:
        schema = "s" + blake2b(str(place).encode(), digest_size=8).hexdigest()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'.encode())
        return PostgresMemory(f"{self.url}?options=-csearch_path%3D{schema}", index=index)


@pytest.mark.parametrize("text", ["nul \x00", "half \ud800 and \udc00", "our sign \ue000 and \ue0000000", "\ue000\x00"])
def test_texts_that_json_in_postgres_cannot_hold_come_back(database: str, text: str) -> None:
    with open_store(database) as store:
        value = {"text": text, text: [{"deep": (text,)}]}
        store.put(NS, "k", value)
        assert store.get(NS, "k").value == {"text": text, text: [{"deep": [text]}]}  # type: ignore[union-attr]
        assert [item.value for item in store.search(NS)] == [store.get(NS, "k").value]  # type: ignore[union-attr]


def attempt(n: int) -> Trajectory:
    return Trajectory(id=f"run/{n}", task=Task("t", "find the coin"), transitions=(Transition("kitchen", "take", 1.0),))


def test_a_store_of_many_records_written_at_one_time_is_read_whole(database: str) -> None:
    with open_store(database) as store:
        records = RecordStore(store, NS, Trajectory)
        records.put([attempt(n) for n in range(3000)])
        assert sorted(one.id for one in records.all()) == sorted(attempt(n).id for n in range(3000))


def test_a_killed_server_that_comes_back_loses_and_doubles_nothing(server: PostgresServer, database: str) -> None:
    with open_store(database) as store:
        records = RecordStore(store, NS, Trajectory)

        def write() -> None:
            for n in range(300):
                records.put([attempt(n)])

        writer = threading.Thread(target=write)
        writer.start()
        server.kill_twice()
        writer.join(timeout=120)
        assert not writer.is_alive()
        assert sorted(one.id for one in records.all()) == sorted(attempt(n).id for n in range(300))
        assert len(all_items(store, ())) == 300


def test_no_server_and_no_login_are_said_without_the_password(server: PostgresServer) -> None:
    with pytest.raises(UserError, match="memory in Postgres: ") as refused:
        open_store(f"postgresql://nobody:sesame@127.0.0.1:{server.port}/postgres")
    assert "sesame" not in str(refused.value)
    with pytest.raises(UserError, match="memory in Postgres: "):
        open_store("postgresql://me:sesame@127.0.0.1:1/x")


@pytest.mark.parametrize(
    "method", ["jitrl", "lessons", *(pytest.param(one, marks=pytest.mark.long) for one in ("icrl", "reasoning-bank"))]
)
def test_no_row_has_a_byte_of_what_an_agent_has_forgotten_and_no_file_once_the_server_has_cleaned_up(
    method: str, server: PostgresServer, database: str
) -> None:
    """The write-ahead log has it until the server writes over it: no client can order that."""
    forget_one(method, database).close()
    with psycopg.connect(database, autocommit=True) as connection:
        counts = {
            word: connection.execute("SELECT count(*) FROM store WHERE store::text LIKE %s", [f"%{word}%"]).fetchall()
            for word in ("Ann", FORGOTTEN)
        }
        assert counts["Ann"] != counts[FORGOTTEN] == [(0,)]
        connection.execute("VACUUM FULL")
        connection.execute("CHECKPOINT")
    files = [path for path in (server.folder / "data").rglob("*") if path.is_file() and "pg_wal" not in path.parts]
    assert not [path for path in files if FORGOTTEN.encode() in path.read_bytes()]


class State(TypedDict, total=False):
    n: int
    task: Task


async def test_records_in_a_state_survive_in_postgres(database: str) -> None:
    graph = StateGraph(State).add_node("add", lambda state: {"n": state.get("n", 0) + 1, "task": Task("t", "goal")})
    graph.add_edge(START, "add")
    thread: Any = {"configurable": {"thread_id": "t"}}
    with open_checkpoints(database) as saver:
        graph.compile(saver).invoke({}, thread)
    with open_checkpoints(database) as saver:
        assert graph.compile(saver).get_state(thread).values == {"n": 1, "task": Task("t", "goal")}
    async with open_checkpoints_async(database) as saver:
        await graph.compile(saver).ainvoke({}, thread)
        assert (await graph.compile(saver).aget_state(thread)).values["n"] == 2
    with pytest.raises(UserError, match="checkpoints in Postgres: connection"), open_checkpoints("postgresql://127.0.0.1:1/x"):
        pass


def scores(out: Path) -> list[float]:
    rows = [
        json.loads(line) for seed in (0, 1) for line in (out / f"jitrl-s{seed}" / "episodes.jsonl").read_text().splitlines()
    ]
    return [row["score"] for row in rows]


def test_a_run_whose_server_is_killed_ends_as_an_unbroken_one(
    server: PostgresServer, database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play_in_process(monkeypatch, tmp_path)
    secret = database.replace("tests@", "tests:sesame@")  # this server asks for no password, and takes any
    out, unbroken = tmp_path / "run", tmp_path / "unbroken"
    command = ["run", "jitrl", "--env", "toy", "--prior", "uniform", "--seeds", "2", "--episodes", "6", "--out", str(out)]
    # Both ways of writing a password.
    command += ["--memory", secret, "--checkpoints", database.replace("tests@", "") + "?user=tests&password=sesame"]
    assert main(command) == 0
    capfd.readouterr()
    assert main(["memory", "show", secret]) == 0
    assert capfd.readouterr().out.count("jitrl-s") == 2
    assert main(["memory", "prune", f"{secret}/jitrl-s1", "--keep-last", "1"]) == 0
    assert "5 episodes deleted" in capfd.readouterr().err
    assert not [path for path in out.rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]

    out.rename(unbroken)  # names and random draws come from the folder's name and the settings: the same ones again
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    broken = Python("-m", "learngraph", *command)
    wait_until(lambda: broken.poll() is not None or list(out.glob("*/episodes.jsonl")))
    assert broken.poll() is None
    server.stop()
    wait_at_random(Random(0), 0.5)
    server.start()
    said = broken.communicate()[0]
    assert "Traceback" not in said
    assert "sesame" not in said
    assert main(command) == 0
    assert scores(out) == scores(unbroken)
    assert len(scores(out)) == 12


def test_a_server_that_is_shut_down_ends_a_run_in_a_sentence(server: PostgresServer, database: str) -> None:
    """What an administrator's restart looks like: the server says farewell, by an error of its own."""
    graph = StateGraph(State).add_node("add", lambda state: {"n": state.get("n", 0) + 1}).add_edge(START, "add")
    thread: Any = {"configurable": {"thread_id": "t"}}

    def play() -> None:
        with open_checkpoints(database) as saver:
            compiled = graph.compile(saver)
            compiled.invoke({}, thread)
            server.shut_down()
            server.start()
            compiled.invoke({}, thread)

    with pytest.raises(UserError, match="checkpoints in Postgres: "):
        play()
    with pytest.raises(UserError, match=r"checkpoints in Postgres: .*nonsense"), open_checkpoints(f"{database}?nonsense=1"):
        pass


def test_processes_that_begin_at_once_make_the_tables_once(database: str) -> None:
    """A saver that waited for its turn inside the server would stop the one whose turn it is: both end in a deadlock."""
    code = f"from learngraph.memory.storage.checkpoints import open_checkpoints\nwith open_checkpoints({database!r}): print('open')"
    begun = [Python("-c", code) for _ in range(4)]
    assert [(one.communicate()[0], one.returncode) for one in begun] == [("open\n", 0)] * 4
