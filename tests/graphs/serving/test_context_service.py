"""`learngraph serve --learn`: somebody else's model behind the chat API, which learns in its context, tenant by tenant."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai_server import OpenAIServer
from waiting import wait_until

from learngraph.graphs.cli import main as cli

pytest.importorskip("fastapi")
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "what is two plus two ?"}]
AGENT = """
from langchain.agents import create_agent

def clock() -> str:
    "The time."
    return "noon"

def make_agent(model, middleware):
    return create_agent(model, [clock], system_prompt="You are Otto.", middleware=middleware)

def no_agent(model, middleware):
    return model
"""


def provider(request: dict[str, Any]) -> Any:
    """A model that does what its system message says, and a critic that repeats what was said."""
    system = " ".join(message["content"] for message in request["messages"] if message["role"] == "system")
    last = str(request["messages"][-1]["content"])
    if "library of lessons" in system:
        judged = re.search(r"Judged: (.*)", last)
        items = [{"title": "Wish", "description": "Always.", "content": judged[1]}] if judged else []
        return json.dumps({"items": items})
    if last in ("500", "400", "401"):
        return {"status": int(last), "text": "secret words of the provider"}
    if last == "look" and request.get("tools"):
        return {"call": "look"}
    word = re.search(
        r"begin with (\w+)", f"{system} {last}"
    )  # what was learned stands with the message that it was recalled for
    return f"{word[1] if word else 'well'} , four"


@contextmanager
def service(folder: Path, url: str, *flags: str, method: str = "reasoning-bank") -> Iterator[tuple[Any, Any]]:
    """A client for each of two tenants; the process ends as kill -9 ends it."""
    keys, log = folder / "keys.yaml", folder / "log"
    keys.write_text("acme: {keys: [ka]}\nrival: {keys: [kb]}\n")
    command = [sys.executable, "-m", "learngraph", "serve", "--model", "openai:gpt", "--base-url", url, "--learn", method]
    command += ["--keys", str(keys), "--out", str(folder / "out"), "--port", "0", *flags]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stderr=errors, cwd=folder)
    try:
        wait_until(lambda: " at http" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        base = log.read_text().split(" at ")[1].split("/v1,")[0]
        headers = [{"authorization": f"Bearer {key}"} for key in ("ka", "kb")]
        clients = [httpx.Client(base_url=base, headers=one, timeout=120) for one in headers]
        yield clients[0], clients[1]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def ask(client: httpx.Client, text: str = "", **more: Any) -> httpx.Response:
    messages = [*MESSAGES[:-1], {"role": "user", "content": text}] if text else MESSAGES
    return client.post("/v1/chat/completions", json={"model": "gpt", "messages": messages, **more})


def said(client: httpx.Client) -> str:
    return str(ask(client).raise_for_status().json()["choices"][0]["message"]["content"])


@pytest.mark.slow
def test_a_tenant_is_learned_from_alone_and_a_kill_loses_no_feedback(tmp_path: Path) -> None:
    with OpenAIServer(provider) as server:
        with service(tmp_path, server.url) as (acme, rival):
            first = ask(acme).json()
            assert first["choices"][0]["message"]["content"] == "well , four"
            assert first["usage"]["completion_tokens"] == 3
            body = {"response_id": first["id"], "reward": -1, "text": "begin with raven"}
            receipt = acme.post("/v1/feedback", json=body).raise_for_status().json()
            assert acme.post("/v1/feedback", json=body).json() == {**receipt, "repeated": True}
            assert rival.post("/v1/feedback", json=body).status_code == 404
        with service(tmp_path, server.url) as (acme, rival):
            wait_until(lambda: said(acme) == "raven , four")  # the critic studies once the agent is at work
            assert said(rival) == "well , four"
            stream = ask(acme, stream=True).text
            chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
            pieces = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
            assert "".join(filter(None, pieces)) == "raven , four"
            assert len(pieces) > 3
            row = acme.get(f"/v1/experiences/{chunks[0]['id']}").json()
            assert any("begin with raven" in line for line in row["explain"])
            assert rival.get(f"/v1/experiences/{chunks[0]['id']}").status_code == 404
            assert "1 lesson" in str(acme.get("/v1/status").json()["scopes"][0]["learned"])
            assert acme.delete("/v1/experiences?confirm=all").json()["deleted"] > 1
            assert said(acme) == "well , four"


@pytest.mark.slow
def test_a_provider_that_fails_is_told_in_a_sentence_without_its_address(tmp_path: Path) -> None:
    with OpenAIServer(provider) as server, service(tmp_path, server.url, method="icrl") as (acme, _):
        found = {text: ask(acme, text) for text in ("500", "401", "400")}
        assert {text: answer.status_code for text, answer in found.items()} == {"500": 503, "401": 503, "400": 400}
        told = {text: answer.json()["error"]["message"] for text, answer in found.items()}
        assert told["500"] == "the model's provider does not answer; try again later"
        assert told["401"] == "the model's provider refuses this service's key; try again later"
        assert "secret words" in told["400"]  # the client's own request is at fault
        assert not any(server.url in message for message in told.values())
        assert ask(acme, logprobs=True).status_code == 400
        assert acme.post("/v1/train", json={}).status_code == 400
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
        asked = len(server.requests)
        reply = ask(acme, "look", tools=[tool], temperature=0.5).raise_for_status().json()["choices"][0]
        (sent,) = server.requests[asked:]  # the client makes the call, and the agent asks no more
        assert (sent["tools"][0]["function"]["name"], sent["temperature"]) == ("look", 0.5)
        assert (reply["finish_reason"], reply["message"]["tool_calls"][0]["function"]["name"]) == ("tool_calls", "look")


@pytest.mark.slow
def test_a_graph_of_ones_own_answers_with_its_own_tools_and_what_was_learned(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(AGENT)
    with (
        OpenAIServer(provider) as server,
        service(tmp_path, server.url, "--graph", "my_app:make_agent", method="icrl") as (acme, _),
    ):
        body = {"response_id": ask(acme).json()["id"], "reward": 1, "text": "begin with raven"}
        acme.post("/v1/feedback", json=body).raise_for_status()
        assert said(acme) == "raven , four"
        sent = server.requests[-1]
        (system,) = [message["content"] for message in sent["messages"] if message["role"] == "system"]
        assert system.startswith("You are Otto.\n\nBe brief.")
        assert sent["tools"][0]["function"]["name"] == "clock"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--model", "openai:gpt"], "--learn reasoning-bank"),
        (["--model", "openai:gpt", "--learn", "reasoningbank"], "did you mean reasoning-bank?"),
        (["--model", "guard", "--learn", "icrl", "--loss.kind", "ppo"], "no effect with --learn"),
        (["--model", "guard", "--learn", "icrl", "--answer-unrecorded"], "--answer-unrecorded is for weights that learn"),
        (["--model", "vllm:gpt", "--learn", "icrl"], "openai:gpt"),
        (["--model", "guard", "--graph", "my_app:make_agent"], "give --learn"),
        (["--model", "guard", "--learn", "icrl", "--graph", "./my_app.py:no_agent"], "returned a LocalChatModel"),
    ],
)
def test_what_does_not_go_together_is_said(
    flags: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_app.py").write_text(AGENT)
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "k")
    assert cli.main(["serve", *flags, "--api-key", "k", "--out", "out", "--port", "0"]) == 2
    assert told in capsys.readouterr().err


def test_a_misspelt_method_does_not_claim_the_folder(tmp_path: Path) -> None:
    assert (
        cli.main(["serve", "--model", "guard", "--learn", "icl", "--api-key", "k", "--out", str(tmp_path), "--port", "0"]) == 2
    )
    assert not (tmp_path / "service.json").exists()
