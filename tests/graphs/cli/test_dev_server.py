"""`langgraph dev` serves the graph that `langgraph.json` names, with our store and our checkpoints; a client drives it."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from ports import free_port
from waiting import wait_until

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.dev,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("langgraph_api") is None, reason="needs langgraph-cli[inmem]"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dev")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Any]:
    from langgraph_sdk import get_sync_client

    port = free_port()
    command = [sys.executable, "-m", "langgraph_cli", "dev", "--config", str(ROOT / "langgraph.json")]
    command += ["--host", "127.0.0.1", "--port", str(port), "--no-browser", "--no-reload"]
    quiet = {**os.environ, "LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    log = (folder / "server.log").open("w+b")
    server = subprocess.Popen(command, cwd=folder, env=quiet, stdout=log, stderr=log, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            with suppress(URLError, OSError), urlopen(f"{url}/ok", timeout=2):
                return True
            log.seek(0)
            assert server.poll() is None, f"the server did not start: {log.read()[-3000:].decode()}"
            return False

        wait_until(answers)
        yield get_sync_client(url=url)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
        log.close()


@pytest.fixture(scope="module")
def toy(client: Any) -> str:
    """An assistant that plays the toy world with a uniform prior."""
    made = client.assistants.create("jitrl", config={"configurable": {"env": "toy", "model": "uniform"}})
    return str(made["assistant_id"])


def test_a_client_runs_episodes_reads_the_state_and_asks_for_more(client: Any, toy: str, folder: Path) -> None:
    thread = client.threads.create()["thread_id"]
    out = client.runs.wait(thread, toy, input={"seed": 0, "episodes": 3})
    assert len(out["scores"]) == len(out["lengths"]) == 3

    state = client.threads.get_state(thread)
    assert state["next"] == []
    assert state["values"]["scores"] == out["scores"]
    assert state["values"]["task"] == {"id": "keep-test-0", "instruction": "reach the exit", "seed": 0}

    again = client.runs.wait(thread, toy, input={"seed": 0, "episodes": 2})
    assert again["scores"][:3] == out["scores"]
    assert len(again["scores"]) == 5

    rows = [json.loads(line) for line in (folder / "runs/dev/toy-uniform/episodes.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"{thread}/{n}" for n in range(5)]


def test_its_memory_is_in_our_store_and_its_checkpoints_in_sqlite(client: Any, toy: str, folder: Path) -> None:
    thread = client.threads.create()["thread_id"]
    client.runs.wait(thread, toy, input={"seed": 1, "episodes": 2})
    found = client.store.search_items(("trajectories", "toy", "uniform"), limit=100)["items"]
    assert {f"{thread}/0", f"{thread}/1"} <= {item["key"] for item in found}
    database = sqlite3.connect(folder / "runs/dev/checkpoints.sqlite")
    assert database.execute("select count(*) from checkpoints where thread_id = ?", [thread]).fetchone()[0] > 2
    database.close()


def test_it_streams_and_pauses(client: Any, toy: str) -> None:
    thread = client.threads.create()["thread_id"]
    parts = list(
        client.runs.stream(thread, toy, input={"seed": 2, "episodes": 1}, stream_mode="updates", stream_subgraphs=True)
    )
    assert not [part.data for part in parts if part.event == "error"]
    nodes = [name for part in parts if part.event.startswith("updates") for name in part.data]
    assert nodes[:9] == ["plan", "begin", "recall", "propose", "augment", "advise", "modulate", "choose", "act"]
    assert nodes[-1] == "tally"

    thread = client.threads.create()["thread_id"]
    client.runs.wait(thread, toy, input={"seed": 2, "episodes": 1}, interrupt_before=["tally"])
    assert client.threads.get_state(thread)["next"] == ["tally"]
    assert len(client.runs.wait(thread, toy, input=None)["scores"]) == 1


@pytest.mark.parametrize("request_", [{"seed": "3", "episodes": 1}, {"seed": 0, "episodes": 0}, {"seed": 0}])
def test_a_request_that_cannot_be_read_is_answered_in_words(client: Any, toy: str, request_: dict[str, Any]) -> None:
    thread = client.threads.create()["thread_id"]
    with pytest.raises(Exception, match="the input is"):
        client.runs.wait(thread, toy, input=request_)


def test_each_graph_is_a_tool_of_the_servers_mcp(client: Any) -> None:
    """Any client of the Model Context Protocol sees each graph with its description, and can play it."""
    import httpx

    def ask(method: str, **params: Any) -> Any:
        url, body = (
            f"{client.http.client.base_url}".rstrip("/"),
            {"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
        )
        accepted = {"Accept": "application/json, text/event-stream"}
        return httpx.post(f"{url}/mcp/", json=body, headers=accepted, timeout=120, follow_redirects=True).json()["result"]

    graphs = json.loads((ROOT / "langgraph.json").read_text())["graphs"]
    offered = {one["name"]: one["description"] for one in ask("tools/list")["tools"]}
    assert offered.keys() >= graphs.keys()
    assert all(graphs[name]["description"] in offered[name] for name in graphs)
    answer = ask("tools/call", name="random", arguments={"seed": 1, "episodes": 2})
    assert not answer.get("isError"), answer
    assert "scores" in answer["content"][0]["text"], answer
