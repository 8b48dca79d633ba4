"""ChromaStore beyond LangGraph's own tests: durability, ownership, damage, exactness, servers."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from chroma_server import chroma_server
from forks import Python
from langchain_core.embeddings import Embeddings
from langgraph.store.base import GetOp, PutOp, SearchOp
from waiting import PATIENCE, wait_at_random, wait_until

from learngraph.memory.errors import UserError
from learngraph.memory.storage import chroma_collections
from learngraph.memory.storage.chroma_store import ChromaStore

NS = ("runs", "zork")


class Table(Embeddings):
    """Gives each text the vector that its numbers spell, e.g. "1 0 2"."""

    def __init__(self, model: str = "table") -> None:
        self.model = model
        self.asked: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        return [[float(word) for word in text.split()] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def index(model: str = "table", dims: int = 3) -> Any:
    return {"dims": dims, "embed": Table(model), "fields": ["text"]}


def everything(store: ChromaStore) -> dict[str, Any]:
    return {item.key: item.value for item in store.search((), limit=10_000)}


def test_created_is_kept_and_order_is_the_order_of_creation(tmp_path: Path) -> None:
    keys = ["z", "a", "m", "10", "9"]
    with ChromaStore.open(tmp_path) as store:
        store.batch([PutOp(NS, key, {"v": 0}) for key in keys])
        first = store.get(NS, "a")
        store.put(NS, "a", {"v": 1})
        second = store.get(NS, "a")
        assert first is not None
        assert second is not None
        assert second.created_at == first.created_at
        assert second.updated_at > first.updated_at
        assert [item.key for item in store.search(NS)] == keys
    with ChromaStore.open(tmp_path) as store:
        assert [item.key for item in store.search(NS)] == keys
        assert store.get(NS, "a") == second


def test_a_batch_is_one_upsert_and_its_last_write_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upserts: list[int] = []
    with ChromaStore.open(tmp_path) as store:
        collection = store._chroma._items  # type: ignore[union-attr]
        upsert = collection.upsert
        monkeypatch.setattr(collection, "upsert", lambda **given: (upserts.append(len(given["ids"])), upsert(**given)))
        ops = [PutOp(NS, "a", {"v": 1}), GetOp(NS, "a"), PutOp(NS, "b", {"v": 2}), PutOp(NS, "a", {"v": 3})]
        assert store.batch(ops) == [None, None, None, None]  # reads see what was there before
        assert upserts == [2]
        assert everything(store) == {"b": {"v": 2}, "a": {"v": 3}}


def test_what_is_not_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with ChromaStore.open(tmp_path) as store:
        with pytest.raises(UserError, match=r"item 'b' .* cannot be stored as JSON"):
            store.batch([PutOp(NS, "a", {"v": 1}), PutOp(NS, "b", {"v": object()})])
        with pytest.raises(UserError, match="surrogates not allowed"):
            store.put(NS, "\ud800", {})
        assert everything(store) == {}


# Vectors


def test_ranking_equals_brute_force_also_after_reopening(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=(40, 3)).round(3), 5, axis=0)  # the same states seen again and again
    query = rng.normal(size=3).round(3)
    with ChromaStore.open(tmp_path, index=index()) as store:
        store.batch([PutOp(NS, str(i), {"text": " ".join(map(str, row)), "odd": i % 2}) for i, row in enumerate(rows)])
        live = store.search(NS, query=" ".join(map(str, query)), limit=200)
    with ChromaStore.open(tmp_path, index=index()) as store:
        again = store.search(NS, query=" ".join(map(str, query)), limit=200)
        few = store.search(NS, query=" ".join(map(str, query)), limit=7, offset=3)
        odd = store.search(NS, query=" ".join(map(str, query)), filter={"odd": 1}, limit=7, offset=3)
    cosine = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    assert [item.score for item in live] == pytest.approx(sorted(cosine, reverse=True), abs=1e-6)
    assert [(i.key, i.score) for i in again] == [(i.key, i.score) for i in live]
    assert few == again[3:10]
    assert [i.key for i in odd] == [i.key for i in live if i.value["odd"]][3:10]


def test_an_item_has_a_vector_for_each_of_its_texts(tmp_path: Path) -> None:
    with ChromaStore.open(tmp_path, index=index()) as store:
        store.put(NS, "many", {"text": "1 0 0", "more": ["0 1 0", "0 0 1"]}, index=["text", "more[*]"])
        store.put(NS, "one", {"text": "1 0 0"})
        store.put(NS, "none", {"text": "1 0 0"}, index=False)
        store.put(NS, "fewer", {"text": "0 1 0", "more": ["0 0 1"]}, index=["text", "more[*]"])
        store.put(NS, "fewer", {"text": "0 1 0"})
        store.put(NS, "dropped", {"text": "0 0 1"})
        store.put(NS, "dropped", {"text": "0 0 1"}, index=False)
        found = store.search(NS, query="0 0 1", limit=3)
        assert [(i.key, i.score) for i in found] == [("many", 1.0), ("one", 0.0), ("fewer", 0.0)]
        everything_found = store.search(NS, query="0 0 1")
        store.delete(NS, "one")
    with ChromaStore.open(tmp_path, index=index()) as store:
        found = [i for i in everything_found if i.key != "one"]
        assert store.search(NS, query="0 0 1") == found
        assert [(i.key, i.score) for i in found[-2:]] == [("none", None), ("dropped", None)]
        store.batch([PutOp(NS, i.key, None) for i in found])
    with ChromaStore.open(tmp_path, index=index()) as store:
        assert everything(store) == {}


def test_each_text_is_embedded_once_a_batch_and_the_same_in_asyncio() -> None:
    config = index()
    with ChromaStore.memory(index=config) as store:
        store.batch([PutOp(NS, str(i), {"text": "1 0 0"}) for i in range(5)])
        assert config["embed"].asked == [["1 0 0"]]
        found = asyncio.run(store.abatch([SearchOp(NS, query="1 0 0"), SearchOp(NS, query="1 0 0", limit=2)]))
        assert [len(f) for f in found] == [5, 2]  # type: ignore[arg-type]
        assert config["embed"].asked == [["1 0 0"], ["1 0 0"]]


def test_an_index_can_be_added_later_and_left_out(tmp_path: Path) -> None:
    with ChromaStore.open(tmp_path) as store:
        store.put(NS, "old", {"text": "1 0 0"})
    with ChromaStore.open(tmp_path, index=index()) as store:
        store.put(NS, "new", {"text": "1 0 0"})
        assert [(i.key, i.score) for i in store.search(NS, query="1 0 0")] == [("new", 1.0), ("old", None)]
    with ChromaStore.open(tmp_path) as store, pytest.raises(UserError, match=r"a search by query needs an index: .*embed"):
        store.search(NS, query="1 0 0")


@pytest.mark.parametrize("other", [index("other model"), index(dims=4)], ids=["name", "dims"])
def test_another_embedder_is_refused_at_open(tmp_path: Path, other: Any) -> None:
    with ChromaStore.open(tmp_path, index=index()) as store:
        store.put(NS, "a", {"text": "1 0 0"})
    with pytest.raises(UserError, match=r"indexed by table \(3 dimensions\), asked for"):
        ChromaStore.open(tmp_path, index=other)
    with ChromaStore.open(tmp_path, index=index()) as store:
        assert store.search(NS, query="1 0 0")[0].score == 1.0


def test_vectors_of_another_size_than_said_are_refused() -> None:
    with ChromaStore.memory(index=index(dims=4)) as store, pytest.raises(UserError, match=r"dims=4.*\(3,\)"):
        store.put(NS, "a", {"text": "1 0 0"})


# Ownership


def child(code: str, *args: object) -> Python:
    code = "import signal, sys\nfrom learngraph.memory.storage.chroma_store import ChromaStore\n" + code
    return Python("-c", code, *args)


@pytest.mark.slow
def test_a_directory_in_use_is_refused_by_name_and_a_dead_owner_does_not_block(tmp_path: Path) -> None:
    code = "s = ChromaStore.open(sys.argv[1]); s.put(('a',), 'k', {}); print('open', flush=True); signal.pause()"
    owner = child(code, tmp_path)
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=rf"is open in process {owner.pid};.* 'chroma run .*--memory http://"):
            ChromaStore.open(tmp_path)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    with ChromaStore.open(tmp_path) as store:
        assert everything(store) == {"k": {}}
        with pytest.raises(UserError, match="already open in this process"):
            ChromaStore.open(tmp_path)
        store.put(NS, "still", {"works": True})


def test_closing_releases_files_and_a_closed_store_says_so(tmp_path: Path) -> None:
    def files() -> list[str]:
        names = []
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # another thread (or this listing) has closed it since
                names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return [name for name in names if name.startswith(str(tmp_path))]

    for i in range(5):
        store = ChromaStore.open(tmp_path)
        store.put(NS, str(i), {"v": i})
        store.close()
        store.close()
    if sys.platform == "linux":
        wait_until(lambda: not files())  # Chroma's threads let go a moment later
    with pytest.raises(UserError, match="closed"):
        store.get(NS, "0")
    shutil.move(tmp_path, tmp_path.with_name("moved"))
    with ChromaStore.open(tmp_path.with_name("moved")) as store:
        assert len(everything(store)) == 5


def test_any_thread_may_close(tmp_path: Path) -> None:
    store = ChromaStore.open(tmp_path)
    thread = threading.Thread(target=store.close)
    thread.start()
    thread.join()
    ChromaStore.open(tmp_path).close()


def test_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChromaStore.memory() as store:
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(UserError, match="start workers by spawn"):
            store.get(NS, "a")
        monkeypatch.undo()


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_that_it_was_told_is_stored(tmp_path: Path) -> None:
    code = """
with ChromaStore.open(sys.argv[1]) as s:
    for i in range(10_000):
        s.batch([__import__("langgraph.store.base", fromlist=["PutOp"]).PutOp(("a",), f"{i}/{j}", {"i": i}) for j in range(5)])
        print(i, flush=True)
"""
    for seed in (0, 1):
        writer = child(code, tmp_path)
        assert writer.stdout is not None
        writer.stdout.readline()
        wait_at_random(Random(seed), 0.4)
        writer.send_signal(signal.SIGKILL)
        last = int(("0\n" + writer.stdout.read()).split()[-1])
        writer.wait()
        writer.stdout.close()
        with ChromaStore.open(tmp_path) as store:
            found = everything(store)
            assert {f"{i}/{j}" for i in range(last + 1) for j in range(5)} <= found.keys()
            assert len(found) % 5 == 0  # a batch is there whole or not at all


# Damage


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with ChromaStore.open(tmp_path / "memory") as store:
        store.batch([PutOp(NS, str(i), {"text": "x" * 5000}) for i in range(50)])
    return tmp_path / "memory"


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def scribble(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(b"\xa5" * (size // 3))


@pytest.mark.parametrize("damage", [halve, empty, scribble, Path.unlink, lambda path: path.write_bytes(b"junk" * 999)])
def test_a_damaged_directory_is_named_and_left_alone(kept: Path, damage: Any) -> None:
    damage(kept / "chroma.sqlite3")
    before = {p.name: p.read_bytes() for p in kept.iterdir() if p.is_file() and not p.name.startswith("owner")}
    with pytest.raises(UserError, match=rf"memory at {kept} .*restore"):
        ChromaStore.open(kept)
    after = {p.name: p.read_bytes() for p in kept.iterdir() if p.is_file() and not p.name.startswith("owner")}
    assert after == before
    with pytest.raises(UserError, match="restore"):  # the lock was released
        ChromaStore.open(kept)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(UserError, match=r"no memory: .*thesis\.tex"):
        ChromaStore.open(tmp_path)
    with pytest.raises(UserError, match="cannot be opened: "):
        ChromaStore.open(tmp_path / "thesis.tex")


@pytest.mark.parametrize("known", [1, 3])
def test_another_layout_is_refused(kept: Path, known: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chroma_collections, "SCHEMA", known)
        with pytest.raises(UserError, match=f"layout 2, this learngraph knows layout {known}"):
            ChromaStore.open(kept)
    with ChromaStore.open(kept) as store:
        assert len(everything(store)) == 50


@pytest.mark.parametrize("killed", [False, True])
def test_no_byte_of_a_deleted_item_is_left_in_the_database_after_close(tmp_path: Path, killed: bool) -> None:
    with ChromaStore.open(tmp_path) as store:
        for start in range(0, 100, 25):
            store.batch([PutOp(NS, str(i), {"text": f"secret-{i:03d} " * 100}) for i in range(start, start + 25)])
    with ChromaStore.open(tmp_path) as store:
        for i in range(0, 100, 2):
            store.delete(NS, str(i))
        if killed:  # what a process that is killed now leaves
            tmp_path = shutil.copytree(tmp_path, tmp_path.with_name("left"))
    with ChromaStore.open(tmp_path) as store:
        assert sorted(map(int, everything(store))) == list(range(1, 100, 2))
    left = b"".join(path.read_bytes() for path in tmp_path.glob("chroma.sqlite3*"))
    assert [i for i in range(100) if f"secret-{i:03d}".encode() in left] == list(range(1, 100, 2))


def test_a_closed_memory_holds_no_log_and_takes_writes_again(tmp_path: Path) -> None:
    for turn in range(3):
        with ChromaStore.open(tmp_path) as store:
            store.batch([PutOp(NS, str(i), {"turn": turn, "text": "x" * 5_000}) for i in range(100)])
            store.put(NS, "last", {"turn": turn})
            store.delete(NS, "last")
    # Chroma's table of metadata and its index of them
    assert (tmp_path / "chroma.sqlite3").stat().st_size < 2.8 * 100 * 5_000
    with ChromaStore.open(tmp_path) as store:
        assert [value["turn"] for value in everything(store).values()] == [2] * 100


def test_a_full_disk_is_said_and_what_was_there_stays_readable(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise chroma_store_errors().InternalError("error returned from database: (code: 13) database or disk is full")

    with ChromaStore.open(kept) as store:
        with monkeypatch.context() as patch:
            patch.setattr(type(store._chroma._items), "upsert", full)  # type: ignore[union-attr]
            with pytest.raises(UserError, match=rf"memory at {kept}: the disk is full"):
                store.put(NS, "new", {})
        assert store.get(NS, "new") is None
        assert store.get(NS, "7") is not None
        store.put(NS, "new", {})
        assert store.get(NS, "new") is not None


def chroma_store_errors() -> Any:
    import chromadb.errors

    return chromadb.errors


# Servers


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chroma_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def server(running_server: str) -> str:
    """The server without what other tests left there."""
    import chromadb

    client = chromadb.HttpClient(port=urlsplit(running_server).port or 0)
    for one in client.list_collections():
        client.delete_collection(one.name)
    return running_server


def test_stores_on_one_server_see_each_others_writes(server: str) -> None:
    with (
        ChromaStore.open(server) as early,
        ChromaStore.open(server, index=index()) as one,
        ChromaStore.open(server + "/", index=index()) as two,
    ):
        one.put(NS, "a", {"text": "1 0 0", "n": 1})
        one.put(NS, "b", {"text": "0 1 0", "more": "0 0 1", "n": 2}, index=["text", "more"])
        one.put(("runs", "other"), "c", {"n": 3}, index=False)
        one.put(("else",), "d", {"text": "0 0 1"})
        created = two.get(NS, "a").created_at  # type: ignore[union-attr]
        two.put(NS, "a", {"text": "0 0 1", "n": 4})
        item = one.get(NS, "a")
        assert item is not None
        assert item.value == {"text": "0 0 1", "n": 4}
        assert item.created_at == created
        assert [(i.key, i.score) for i in two.search(("runs",), query="0 0 1")] == [("a", 1.0), ("b", 1.0), ("c", None)]
        assert [i.key for i in two.search(("runs",), filter={"n": {"$gt": 2}})] == ["a", "c"]
        assert [i.key for i in one.search(())] == ["a", "b", "c", "d"]
        assert [i.key for i in early.search(())] == ["a", "b", "c", "d"]
        assert two.list_namespaces(prefix=["runs"]) == [("runs", "other"), NS]
        one.delete(NS, "b")
        assert two.get(NS, "b") is None
        assert [i.key for i in two.search(NS, query="0 1 0")] == ["a"]
    with pytest.raises(UserError, match="indexed by table"):
        ChromaStore.open(server, index=index("other"))


def test_a_server_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no Chroma server answers at http://127.0.0.1:9.*chroma run"):
        ChromaStore.open("http://127.0.0.1:9")
    with pytest.raises(UserError, match="http://host:port"):
        ChromaStore.open("ftp://127.0.0.1")
    monkeypatch.setattr(chroma_collections, "ANSWER_SECONDS", 0.2)
    # It takes connections, and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UserError, match="no Chroma server answers"):
        ChromaStore.open(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_memory_that_was_deleted_on_its_server_is_said(server: str) -> None:
    import chromadb

    with ChromaStore.open(server) as store:
        store.put(NS, "a", {})
        chromadb.HttpClient(port=urlsplit(server).port or 0).delete_collection("learngraph-items")
        for _ in range(2):
            with pytest.raises(UserError, match="the server has it no longer; it was deleted there"):
                store.put(NS, "b", {})
            with pytest.raises(UserError, match="the server has it no longer"):
                store.search(NS)
            with ChromaStore.open(server) as empty:  # another memory, though it has the same name
                empty.put(NS, "c", {})
                assert [item.key for item in empty.search(NS)] == ["c"]


class FaultyServer:
    """A server before another one, which answers in its place: with a status, or with half of each answer."""

    def __init__(self, behind: str) -> None:
        self.fault = 0
        """The status to answer with; 0 hands all on, 200 the first half of the answer."""
        outer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if outer.fault in (0, 200):
                    there = httpx.request(self.command, behind + self.path, content=body, timeout=PATIENCE)
                    status, said = there.status_code, there.content[: len(there.content) // 2 if outer.fault else None]
                else:
                    status, said = outer.fault, b"<html>Sorry</html>"
                self.send_response(status)
                self.end_headers()
                self.wfile.write(said)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.mark.slow
def test_a_server_whose_answers_are_broken_is_waited_for_and_then_said(server: str) -> None:
    faulty = FaultyServer(server)
    with ChromaStore.open(faulty.url, patience=0.3) as store, ChromaStore.open(faulty.url, patience=PATIENCE) as patient:
        for fault in (503, 200):
            faulty.fault = fault
            with pytest.raises(UserError, match="no Chroma server answers"):
                store.put(NS, "lost", {})
            threading.Timer(0.1, lambda: setattr(faulty, "fault", 0)).start()
            patient.put(NS, str(fault), {})
        faulty.fault = 500
        with pytest.raises(UserError, match="cannot be read: the server says <html>Sorry"):
            store.put(NS, "lost", {})
        faulty.fault = 0
        assert {"503", "200"} <= {item.key for item in store.search(NS)}
    faulty.http.shutdown()
    faulty.http.server_close()


@pytest.mark.slow
def test_values_are_plain_json_that_other_tools_can_read(tmp_path: Path) -> None:
    import sqlite3

    with ChromaStore.open(tmp_path) as store:
        store.put(NS, "a", {"text": "hello"})
    with sqlite3.connect(tmp_path / "chroma.sqlite3") as connection:
        rows = connection.execute("SELECT string_value FROM embedding_metadata WHERE key = 'value'").fetchall()
    assert [json.loads(row[0]) for row in rows] == [{"text": "hello"}]
