"""The chat API over HTTP, in front of a service that lives in memory."""

import asyncio
import io
import json
import logging
import socket
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chat_backend
import httpx
import pytest
from forks import Python
from pydantic import ValidationError
from waiting import wait_until

from learngraph.memory import errors
from learngraph.memory.errors import AdapterError, EngineFailed, Unavailable, UserError, VersionNotLoaded, WindowError
from learngraph.tools.serving.openai_wire import ChatBody
from learngraph.tools.serving.replies import as_api_error
from learngraph.tools.serving.tenants import read_tenants

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")

FakeBackend, serving, two = chat_backend.FakeBackend, chat_backend.serving, chat_backend.two
ASK = {"model": "pocket", "messages": [{"role": "user", "content": "hi there"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@contextmanager
def talking(backend: Any = None, key: str = chat_backend.KEY, who: Any = None, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a server with this service behind it."""
    with (
        serving(backend, who, **settings) as url,
        httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client,
    ):
        yield client


def events(body: str) -> list[Any]:
    """The data of server-sent events."""
    found = [line[6:] for line in body.split("\n") if line.startswith("data: ")]
    return [json.loads(data) if data != "[DONE]" else data for data in found]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with talking() as found:
        yield found


def test_what_was_said_arrives_before_the_rest_is_made() -> None:
    """The service goes on once the client has its first words: a server that kept them would hang."""
    heard = threading.Event()
    with (
        talking(FakeBackend(heard=heard)) as client,
        client.stream("POST", "/v1/chat/completions", json=ASK | {"stream": True}) as answer,
    ):
        for line in answer.iter_lines():
            if '"you"' in line:
                assert not heard.is_set()
                heard.set()
    assert heard.is_set()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_ends_the_generation(stream: bool) -> None:
    backend = FakeBackend(delay=0.05, say=lambda request: "word " * 1000)
    with talking(backend) as client:
        if stream:
            with client.stream("POST", "/v1/chat/completions", json=ASK | {"stream": True, "n": 2}) as answer:
                next(answer.iter_lines())
        else:
            body = json.dumps(ASK | {"n": 2}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {chat_backend.KEY}\r\n"
            with socket.create_connection((client.base_url.host, client.base_url.port)) as line:
                line.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
                wait_until(lambda: backend.engine.running == 2 and backend.engine.pieces >= 4)
        wait_until(lambda: not backend.engine.running)
        assert (backend.engine.running, backend.engine.cancelled, backend.kept) == (0, 2, {})
        usage = client.get("/v1/status").json()["usage"]
        assert usage == {"streams": 0, "streams_at_once": 256}
        shown = client.get("/metrics", headers={"authorization": "Bearer metrics"}).text
    assert "learngraph_disconnects_total 1.0" in shown


def test_choices_are_made_at_once_and_each_takes_feedback() -> None:
    backend = FakeBackend(delay=0.02)
    with talking(backend) as client:
        body = client.post("/v1/chat/completions", json=ASK | {"n": 3, "seed": 7}).json()
        said = [choice["message"]["content"] for choice in body["choices"]]
        assert said == ["you said hi there (7)", "you said hi there (8)", "you said hi there (9)"]
        assert backend.engine.most == 3
        id = body["id"]
        assert {key[1] for key in backend.kept} == {id, f"{id}-1", f"{id}-2"}
        assert body["usage"]["prompt_tokens"] == 3
        assert body["usage"]["completion_tokens"] == 15
        given = client.post("/v1/feedback", json={"response_id": id, "choice": 2, "success": False}).json()
        assert given["response_id"] == f"{id}-2"
        assert backend.kept["acme", f"{id}-2"].feedback.reward == -1
        streamed = events(client.post("/v1/chat/completions", json=ASK | {"n": 2, "seed": 1, "stream": True}).text)
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in streamed[:-1] if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == f"you said hi there ({1 + index})"
        assert mine[-1]["finish_reason"] == "stop"


def test_what_an_engine_is_asked_for() -> None:
    backend = FakeBackend()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask = {
        "model": "pocket",
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": parts, "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "audio": None, "function_call": None},
            {"role": "tool", "content": "a lamp", "tool_call_id": "call_1"},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "temperature": 0,
        "top_p": 0.5,
        "stop": "X",
        "max_tokens": 9,
        "max_completion_tokens": 9,
        "logprobs": True,
        "top_logprobs": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "presence_penalty": 0.5,
        "frequency_penalty": 0,
        "logit_bias": {},
        "user": "u",
        "audio": None,
        "reasoning_effort": None,
    }
    with talking(backend) as client:
        answer = client.post("/v1/chat/completions", json=ask)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 3
        client.post("/v1/chat/completions", json=ASK | {"stop": ["a", "b"], "max_tokens": 99999})
    asked, other = backend.engine.requests
    assert asked.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "a lamp", "tool_call_id": "call_1"},
    )
    assert asked.sampling.stop == ("X",)
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.max_tokens) == (0, 0.5, 9)
    assert asked.tools == (TOOL,)
    assert asked.tool_choice == {"type": "function", "function": {"name": "look"}}
    assert asked.top_logprobs == 3
    assert asked.response_format == {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    assert asked.more == {"presence_penalty": 0.5}
    assert other.sampling.stop == ("a", "b")
    assert other.sampling.max_tokens == 512
    assert other.top_logprobs is None


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"foo": 1}, "foo"),
        ({"functions": []}, "functions"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 17}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [{"type": "web_search", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"metadata": {"turn": "-1"}}, "metadata.turn"),
        ({"metadata": {"family": "x" * 513}}, "metadata"),
        ({"metadata": {"family": ["x"]}}, "metadata.family"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": "x", "refusal": None}]}, "messages[0].refusal"),
        ({"messages": [{"role": "assistant"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client: httpx.Client, more: dict[str, Any], param: str) -> None:
    answer = client.post("/v1/chat/completions", json=ASK | more)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if param == "messages[0].content[0].type":
        assert error["param"].startswith("messages[0].content[0]")
        assert "only text" in error["message"]
    else:
        assert error["param"] == param
    assert param.split(".")[-1].split("[")[0] in error["message"]


def test_a_hint_is_given_for_fields_of_the_body_alone(client: httpx.Client) -> None:
    nested = {"messages": [{"role": "user", "content": "x", "nam": "Ann"}]}
    said = {"unknown field: mesages; did you mean messages?": {"mesages": []}, "unknown field: messages[0].nam": nested}
    for message, more in said.items():
        assert client.post("/v1/chat/completions", json=ASK | more).json()["error"]["message"] == message


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url"}] * 20_000}]},
        {"messages": [3] * 4096},
        {"tools": [3] * 128},
    ],
)
def test_a_megabyte_of_mistakes_is_judged_by_its_first(more: dict[str, Any]) -> None:
    """All of them took .6 s, in which nobody got a token."""
    with pytest.raises(ValidationError) as found:
        ChatBody.model_validate(ASK | more)
    assert found.value.error_count() < 10


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"presence_penalty": 1}, "presence_penalty"),
    ],
)
def test_what_the_engine_does_not_have_is_refused(more: dict[str, Any], param: str) -> None:
    backend = FakeBackend(features=frozenset())
    with talking(backend) as client:
        error = client.post("/v1/chat/completions", json=ASK | more).json()["error"]
        assert (error["param"], error["code"]) == (param, "unsupported_parameter")
        nothing = {"tools": [TOOL], "tool_choice": "none", "response_format": {"type": "text"}, "presence_penalty": 0}
        assert client.post("/v1/chat/completions", json=ASK | nothing).status_code == 200
        assert client.post("/v1/completions", json={"model": "pocket", "prompt": "x"}).status_code == 400
    assert backend.engine.requests[0].tools == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\r\n",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "pocket", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "pocket", "temperature": NaN, "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "pocket", "temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "pocket", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "pocket", "seed": ' + b"9" * 300 + b"}",
        b'{"a":' * 100_000,
        b"[" * 500_000,
        b'{"a":' * 80 + b"1" + b"}" * 80,
        json.dumps({f"k{n}": 1 for n in range(20_000)}).encode(),
    ],
    ids=range(15),
)
def test_bodies_that_are_no_proper_json(client: httpx.Client, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/feedback", "/v1/adapters"):
        answer = client.post(path, content=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_bodies_that_are_too_long_whether_they_say_so_or_not() -> None:
    with talking(max_body_bytes=1000) as client:
        assert client.post("/v1/feedback", content=b"x" * 1001).status_code == 413

        def pieces() -> Iterator[bytes]:
            for _ in range(20):
                yield b"x" * 100

        answer = client.post("/v1/feedback", content=pieces())
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert client.post("/v1/feedback", content=b" " * 990).status_code == 400


def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngraph.tools.serving.endpoints.BODY_SECONDS", 0.2)

    head = f"POST /v1/feedback HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {chat_backend.KEY}\r\ncontent-length: 2\r\n\r\n{{"
    with talking() as client, socket.create_connection((client.base_url.host, client.base_url.port)) as line:
        line.sendall(head.encode())
        assert line.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_keys(client: httpx.Client) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eDp5"}, {"authorization": "Bearer"}):
        answer = httpx.get(f"{client.base_url}/v1/models", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert client.get("/v1/models", headers={"authorization": "Bearer metrics"}).status_code == 403
    # What is wrong with a body is nobody's business without a key.
    assert httpx.post(f"{client.base_url}/v1/chat/completions", content=b"{").status_code == 401


def test_a_key_that_may_only_chat_rates_nothing_and_reads_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("acme: {keys: [all], chat_keys: [chats]}\n")
    with talking(key="chats", who=read_tenants((), file)) as client:
        said = client.post("/v1/chat/completions", json=ASK)
        assert (said.status_code, client.get("/v1/models").status_code) == (200, 200)
        rating = {"response_id": said.json()["id"], "reward": 1}
        refused = client.post("/v1/feedback", json=rating)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "chat_only")
        for method, path in (("GET", "/v1/experiences"), ("DELETE", "/v1/experiences?confirm=all"), ("GET", "/metrics")):
            assert client.request(method, path).status_code == 403
        assert client.post("/v1/feedback", json=rating, headers={"authorization": "Bearer all"}).status_code == 202


@pytest.mark.slow
def test_errors_have_one_shape_everywhere(client: httpx.Client) -> None:
    for method, path, status in [
        ("GET", "/nowhere", 404),
        ("PUT", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/experiences/none", 404),
        ("DELETE", "/v1/experiences/none", 404),
        ("POST", "/v1/experiences/none/release", 404),
        ("GET", "/v1/jobs/none", 404),
        ("GET", "/v1/jobs/none", 404),
        ("GET", "/v1/adapters/none", 404),
        ("GET", "/v1/adapters/NONE", 400),
        ("GET", "/v1/experiences?limit=0", 400),
        ("GET", "/v1/experiences?state=odd", 400),
        ("GET", "/v1/experiences?tenant=rival", 400),
        ("GET", "/v1/experiences?before=a&before=b", 400),
        ("GET", "/healthz?x=1", 400),
        ("DELETE", "/v1/experiences", 400),
        ("DELETE", "/v1/experiences?confirm=yes", 400),
        ("DELETE", "/v1/adapters/none", 404),
        ("GET", "/v1/adapters/default/export", 400),
        ("GET", "/v1/adapters/default/export?version=x", 404),
    ]:
        answer = client.request(method, path)
        assert answer.status_code == status, (method, path, answer.text)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"].startswith("req_")
    assert client.get("/v1/experiences?limit=0").json()["error"]["param"] == "limit"
    assert "'after'; there are adapter, state, limit, before, learned_by, user" in client.get("/v1/experiences?after=x").text
    assert "POST" in client.get("/v1/chat/completions").headers["allow"]


@pytest.mark.slow
def test_what_the_service_refuses_has_its_status() -> None:
    def raising(error: Exception) -> Any:
        def say(request: Any) -> str:
            raise error

        return FakeBackend(say=say)

    for error, status, code in [
        (UserError("no"), 400, None),
        (WindowError("600 tokens, the window has 512"), 400, "context_length_exceeded"),
        (Unavailable("closing"), 503, "unavailable"),
        (EngineFailed("secret: CUDA out of memory"), 500, "model_failed"),
        (AdapterError("corrupt: /srv/secret/states.jsonl"), 500, "adapter_error"),
        (VersionNotLoaded("loaded are rival/secret"), 503, "unavailable"),
        (ValueError("secret"), 500, "internal_error"),
    ]:
        for stream in (False, True):
            with talking(raising(error)) as client:
                answer = client.post("/v1/chat/completions", json=ASK | {"stream": stream})
            assert answer.status_code == status
            assert answer.json()["error"]["code"] == code
            assert "secret" not in answer.text
            assert ("retry-after" in answer.headers) == (status == 503)
    assert answer.headers["x-request-id"]


def test_every_shared_error_has_a_status() -> None:
    named = [getattr(errors, name) for name in errors.__all__ if name not in ("UserError", "CommandError")]
    kinds = [kind for kind in named if isinstance(kind, type)]
    found = {kind.__name__: as_api_error(kind("no")) for kind in kinds}
    assert {name for name, error in found.items() if error.code is None} == set()
    assert found["VersionNotLoaded"].status == found["Unavailable"].status == 503
    assert found["UnknownVersion"].status == 404  # though an AdapterError is a 500
    assert found["Unavailable"].headers == {"retry-after": "2"}


def test_an_error_in_mid_stream_is_an_event_and_what_broke_is_only_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "learngraph.chat_server"), talking(FakeBackend(breaks_after=2)) as client:
        answer = client.post("/v1/chat/completions", json=ASK | {"stream": True})
        whole = client.post("/v1/chat/completions", json=ASK)
    assert "event: error\n" in answer.text
    assert "[DONE]" not in answer.text
    assert events(answer.text)[-1]["error"]["code"] == "internal_error"
    assert whole.status_code == 500
    assert whole.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text + whole.text
    assert "secret" in caplog.text
    assert whole.headers["x-request-id"] in caplog.text
    with talking(FakeBackend(breaks_after=2, error=Unavailable("the engine is closing"))) as client:
        answer = client.post("/v1/chat/completions", json=ASK | {"stream": True})
    assert events(answer.text)[-1]["error"]["message"] == "the engine is closing"


@pytest.mark.slow
def test_models_and_adapters_of_the_tenant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    backend = FakeBackend(names={"acme": ["poems"], "rival": ["secret"]})
    with talking(backend) as client:
        listed = client.get("/v1/models").json()
        assert [model["id"] for model in listed["data"]] == ["pocket", "pocket:poems"]
        assert client.get("/v1/models/pocket:poems").json()["object"] == "model"
        assert client.post("/v1/chat/completions", json=ASK | {"model": "pocket:poems"}).status_code == 200
        for name in ("pocket:secret", "pocket:", "gpt-4", "pocket:poems:x"):
            error = client.post("/v1/chat/completions", json=ASK | {"model": name})
            assert error.status_code == 404
            assert error.json()["error"]["code"] == "model_not_found"
        assert client.post("/v1/adapters", json={"adapter": "prose"}).status_code == 201
        assert client.post("/v1/adapters", json={"adapter": "prose"}).status_code == 409
        assert client.post("/v1/adapters", json={"adapter": "../x"}).status_code == 400
        assert len(client.get("/v1/adapters").json()["data"]) == 3
        first, name = backend.make_version("prose"), backend.make_version("prose", 2).partition("@")[2]
        assert client.post("/v1/adapters/prose/promote", json={"version": first}).json()["live"] == first
        assert client.post("/v1/adapters/prose/promote", json={"version": "odd"}).status_code == 404
        assert client.post("/v1/adapters/prose/rollback").json()["live"] == f"acme/prose@{name}"
        assert client.post("/v1/adapters/prose/rollback", json={"to": "base"}).json()["live"] == ""
        export = client.get("/v1/adapters/prose/export", params={"version": f"acme/prose@{name}"})
        assert export.headers["content-disposition"] == f'attachment; filename="prose-{name}.zip"'
        assert zipfile.ZipFile(io.BytesIO(export.content)).namelist() == ["adapter_config.json"]
        part = client.get("/v1/adapters/prose/export", params={"version": name}, headers={"range": "bytes=999999-"})
        assert (part.status_code, part.content) == (200, export.content)  # a server may send the whole
        (backend.versions("acme", "prose").folder(f"acme/prose@{name}") / "adapter_config.json").write_text("damaged")
        assert client.get("/v1/adapters/prose/export", params={"version": "2"}).status_code == 500
        assert not list(tmp_path.glob("learngraph-*"))
        frozen = [client.post(f"/v1/adapters/prose/{action}").json()["frozen"] for action in ("freeze", "thaw")]
        assert frozen == [True, False]
        assert client.delete("/v1/adapters/prose").status_code == 200
        assert client.get("/v1/adapters/prose").status_code == 404
        assert client.post("/v1/train", json={"steps": 2}).json() == {"job": "train-default-2", "state": "waiting"}
        assert client.post("/v1/train").status_code == 202
        assert client.post("/v1/train", json={"adapter": "none"}).status_code == 404
        assert [row["adapter"] for row in client.get("/v1/experiences").json()["data"]] == ["poems"]


@pytest.mark.slow
def test_adapters_and_replies_under_way_count_against_the_limits_of_a_key() -> None:
    with talking(who=chat_backend.two(adapters=3)) as client:
        made = [client.post("/v1/adapters", json={"adapter": f"a{i}"}) for i in range(3)]
        assert [one.status_code for one in made] == [201, 201, 409]
        assert made[-1].json()["error"]["code"] == "too_many_adapters"
    backend = FakeBackend()
    with talking(backend, who=chat_backend.two(streams=2)) as client:
        asked: list[str] = []
        backend.version = lambda tenant, adapter, id, wanted="": asked.append(id) or ""
        answer = client.post("/v1/chat/completions", json=ASK | {"n": 3})  # waiting would not help
        assert (answer.status_code, answer.json()["error"]["param"], asked) == (400, "n", [])
        assert client.post("/v1/chat/completions", json=ASK | {"n": 2}).status_code == 200
        assert asked


def test_feedback_of_the_tenant_itself_and_nobody_elses() -> None:
    backend = FakeBackend()
    with talking(backend) as client:
        id = client.post("/v1/chat/completions", json=ASK).json()["id"]
        first = client.post("/v1/feedback", json={"response_id": id, "reward": 0.5, "text": "shorter"})
        assert first.status_code == 202
        assert first.json() == {"job": first.json()["job"], "response_id": id, "state": "ready", "repeated": False}
        assert client.get(first.headers["location"]).json()["state"] == "ready"
        again = client.post("/v1/feedback", json={"response_id": id, "reward": 0.5, "text": "shorter"})
        assert again.json() == first.json() | {"repeated": True}
        keyed = [
            client.post("/v1/feedback", json={"response_id": id, "reward": reward}, headers={"idempotency-key": "k" * size})
            for reward, size in ((1, 2), (1, 2), (1, 300))
        ]
        assert [one.status_code for one in keyed] == [202, 202, 400]
        assert [one.json()["repeated"] for one in keyed[:2]] == [False, True]
        rival = {"authorization": f"Bearer {chat_backend.RIVAL}"}
        foreign = client.post("/v1/feedback", json={"response_id": id, "reward": 1}, headers=rival)
        unknown = client.post("/v1/feedback", json={"response_id": "chatcmpl-none", "reward": 1}, headers=rival)
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.json()["error"]["message"].replace(id, "X") == unknown.json()["error"]["message"].replace(
            "chatcmpl-none", "X"
        )
        assert client.get(f"/v1/experiences/{id}", headers=rival).status_code == 404
        assert client.get(first.headers["location"], headers=rival).status_code == 404
        assert client.get("/v1/experiences", headers=rival).json()["data"] == []
        kept = client.post("/v1/chat/completions", json=ASK | {"store": False})
        assert "x-experience-id" not in kept.headers
        assert client.post("/v1/feedback", json={"response_id": kept.json()["id"], "reward": 1}).status_code == 404
        shown = client.get("/metrics", headers={"authorization": "Bearer metrics"}).text
    counts = dict(line.rsplit(" ", 1) for line in shown.splitlines() if line.startswith("learngraph_feedback_seconds"))
    assert counts["learngraph_feedback_seconds_count"] == "4.0", "each receipt, no refusal"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"reward": 1.1},
        {"reward": "1"},
        {"reward": True},
        {"success": 1},
        {"success": True, "reward": 1},
        {"text": " "},
        {"reward": 1, "tenant": "rival"},
        {"reward": 1, "choice": -1},
        {"reward": 1, "text": "x" * 40_000},
        {"reward": 1, "response_id": ""},
    ],
)
def test_feedback_that_says_nothing_or_too_much(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = client.post("/v1/feedback", json={"response_id": "x"} | body)
    assert answer.status_code == 400, answer.text
    nan = client.post("/v1/feedback", content=b'{"response_id": "x", "reward": NaN}')
    assert nan.status_code == 400
    assert "line 1 column" in nan.json()["error"]["message"]


def test_experiences_are_listed_page_by_page_and_deleted() -> None:
    with talking() as client:
        ids = [client.post("/v1/chat/completions", json=ASK).json()["id"] for _ in range(5)][::-1]
        page = client.get("/v1/experiences?limit=2").json()
        assert ([row["id"] for row in page["data"]], page["has_more"]) == (ids[:2], True)
        page = client.get(f"/v1/experiences?limit=3&before={ids[1]}").json()
        assert ([row["id"] for row in page["data"]], page["has_more"]) == (ids[2:], False)
        assert client.get("/v1/experiences?user=mary").json()["data"] == []
        assert client.get(f"/v1/experiences/{ids[0]}").json()["reply"] == "you said hi there (None)"
        assert "learns in weights" in client.post(f"/v1/experiences/{ids[0]}/release").text
        told = client.delete(f"/v1/experiences/{ids[0]}?withdraw=true").json()
        assert (told["deleted"], told["withdrawn"]) == (1, [])
        assert client.delete(f"/v1/experiences/{ids[0]}").status_code == 404
        assert client.delete("/v1/experiences?confirm=all").json()["deleted"] == 4
        assert client.get("/v1/experiences").json()["data"] == []


def test_text_completions() -> None:
    backend = FakeBackend()
    with talking(backend) as client:
        ask = {"model": "pocket", "prompt": ["a b", "a b"], "n": 2, "seed": 5, "logprobs": 1}
        body = client.post("/v1/completions", json=ask).json()
        assert body["object"] == "text_completion"
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
        assert [choice["text"][-2] for choice in body["choices"]] == ["5", "6", "5", "6"]
        assert body["choices"][0]["logprobs"]["text_offset"] == [0, 3, 8, 10, 12]
        assert body["usage"]["prompt_tokens"] == 6
        assert backend.engine.requests[0].raw == "a b"
        assert backend.engine.requests[0].messages == ()
        chunks = events(client.post("/v1/completions", json={"model": "pocket", "prompt": "x", "stream": True}).text)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "you said x (None)"
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        for more, param in [({"echo": True}, "echo"), ({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of")]:
            error = client.post("/v1/completions", json={"model": "pocket", "prompt": "x"} | more)
            assert (error.status_code, error.json()["error"]["param"]) == (400, param)
        for prompt in ("", [], [1, 2], [[1]], ["x"] * 17):
            assert client.post("/v1/completions", json={"model": "pocket", "prompt": prompt}).status_code == 400
        body = client.post("/v1/completions", json={"model": "pocket", "prompt": "x", "max_tokens": 2}).json()
        assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.slow
def test_metrics_are_in_prometheus_format_and_ones_own() -> None:
    with talking() as client:
        for key in (chat_backend.KEY, chat_backend.RIVAL):
            client.post("/v1/chat/completions", json=ASK, headers={"authorization": f"Bearer {key}"})
        mine = client.get("/metrics").text
        everything = client.get("/metrics", headers={"authorization": "Bearer metrics"}).text
        assert httpx.get(f"{client.base_url}/metrics").status_code == 401
    assert 'learngraph_tokens_total{tenant="acme"} 8.0' in mine
    assert "_created" not in everything
    assert "rival" not in mine
    assert 'learngraph_tokens_total{tenant="rival"} 8.0' in everything
    assert not any(line.lower().endswith("nan") for line in everything.splitlines())
    assert all(line[0] == "#" or 'tenant="acme"' in line for line in mine.splitlines())  # totals tell of others
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in everything.splitlines() if line[0] != "#"}
    assert samples['learngraph_http_requests_total{method="POST",route="/v1/chat/completions",status="200"}'] == 2
    asked = "learngraph_http_request_seconds", '{route="/v1/chat/completions"}'
    assert samples["_count".join(asked)] == samples["_bucket".join(asked).replace("{", '{le="+Inf",')] == 2
    assert everything.count("# TYPE learngraph_http_request_seconds histogram") == 1
    with talking(who=chat_backend.tenants.read_tenants(["alone"]), key="alone") as client:
        assert "learngraph_engine_alive 1.0" in client.get("/metrics").text  # nobody else is there
    with talking(open_metrics=True) as client:
        assert "learngraph_engine_alive 1.0" in httpx.get(f"{client.base_url}/metrics").text


def test_health_needs_no_key_and_says_no_more_than_it_must() -> None:
    held_up = [{"kind": "too few", "adapters": 1, "missing": 5, "help": "more feedback"}]
    failed = {"learner": {"state": "failed", "error": "secret"}, "last_turns": {"dropped": 2, "too few": 1}, "held_up": held_up}
    failed["lost"] = {"its states.jsonl is gone": 1}
    with talking(FakeBackend(more={"state": "degraded", **failed})) as client:
        answer = httpx.get(f"{client.base_url}/healthz")
        assert answer.status_code == 200
        assert answer.json()["status"] == "degraded"
        assert answer.json()["learning"] == {"dropped": 2, "too few": 1}
        assert (answer.json()["held_up"], answer.json()["lost"]) == (held_up, failed["lost"])
        assert "secret" not in answer.text
        assert httpx.get(f"{client.base_url}/healthz", headers={"authorization": "Bearer wrong"}).status_code == 200

    class Broken(FakeBackend):  # type: ignore[misc, valid-type]
        async def status(self, tenant: str | None = None) -> dict[str, Any]:
            raise RuntimeError("secret")

        async def ready(self) -> dict[str, float]:
            raise Unavailable("the model has not answered for 5 s")

    signs = ("/livez", "/readyz", "/healthz")
    with talking() as client:
        assert [httpx.get(f"{client.base_url}{path}").status_code for path in signs] == [200] * 3
    with talking(Broken()) as client:
        assert [httpx.get(f"{client.base_url}{path}").status_code for path in signs] == [200, 503, 503]
        answer = client.get("/v1/status")
        assert answer.status_code == 500
        assert "secret" not in answer.text


def test_numbers_that_json_has_not_are_null_in_answers() -> None:
    with talking(FakeBackend(more={"scopes": [{"loss": float("nan"), "ages": (1, float("inf"))}]})) as client:
        assert client.get("/v1/status").json()["scopes"] == [{"loss": None, "ages": [1, None]}]


@pytest.mark.slow
def test_a_hundred_streams_at_once() -> None:
    """None fails, none waits for another's end: no reply goes on before all have begun."""
    heard, asked = threading.Event(), list[Any]()

    def say(request: Any) -> str:
        asked.append(request)
        if len(asked) == 100:
            heard.set()
        said: str = chat_backend.hello(request)
        return said

    backend = FakeBackend(say=say, heard=heard)

    async def all_of_them(url: str) -> list[Any]:
        headers = {"authorization": f"Bearer {chat_backend.KEY}"}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=120) as client:
            bodies = [ASK | {"stream": True, "seed": i} for i in range(100)]
            return await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))

    with serving(backend) as url:
        answers = asyncio.run(all_of_them(url))
    for i, answer in enumerate(answers):
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events(answer.text)[:-1])
        assert text == f"you said hi there ({i})"
    assert backend.engine.most == 100  # more than the four of a tenant that begin at the same time


def test_a_connection_sends_small_answers_at_once() -> None:
    with chat_backend.chat_server._listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_in_use_is_an_error_in_words() -> None:
    with serving(FakeBackend()) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(UserError, match="another --host or --port"):
            asyncio.run(chat_backend.chat_server.serve(chat_backend.chat_server.make_app(FakeBackend(), two()), port=port))


@pytest.mark.slow
def test_a_signal_ends_it_in_order(tmp_path: Path) -> None:
    """SIGTERM: the stream under way is finished, then `serve` returns."""
    import signal

    program = tmp_path / "server.py"
    program.write_text(
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(Path(chat_backend.__file__).parent)!r})\n"
        "import chat_backend as c\n"
        "application = c.chat_server.make_app(c.FakeBackend(delay=0.1), c.two())\n"
        "asyncio.run(c.chat_server.serve(application, port=0, on_ready=lambda url: print(url, flush=True)))\n"
        "print('in order', flush=True)\n"
    )
    process = Python(program)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        headers = {"authorization": f"Bearer {chat_backend.KEY}"}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=ASK | {"stream": True}, headers=headers) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert list(lines)[-2] == "data: [DONE]"
        assert process.stdout.read() == "in order\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_feedback_may_be_a_corrected_reply_or_a_choice(client: httpx.Client) -> None:
    first, second, third, other = (
        client.post("/v1/chat/completions", json=ASK | {"messages": [{"role": "user", "content": words}]}).json()["id"]
        for words in ("hi", "hi", "hi", "what ?")
    )
    corrected = client.post("/v1/feedback", json={"response_id": other, "correction": "hello"})
    assert corrected.status_code == 202
    assert client.post("/v1/feedback", json={"response_id": first, "better_than": second}).status_code == 202
    said = {id: client.get(f"/v1/experiences/{id}").json() for id in (first, second)}
    assert said[first]["feedback"]["reward"] == 1
    assert (said[second]["feedback"]["reward"], said[second]["feedback"]["correction"]) == (-1, said[first]["reply"])
    assert (
        "unknown field: corection; did you mean correction?"
        in client.post("/v1/feedback", json={"response_id": first, "corection": ""}).text
    )
    kept = client.post("/v1/feedback", json={"response_id": third, "better_than": first})
    assert (kept.status_code, "keeps the feedback that it has" in kept.json()["note"]) == (202, True)
    assert client.get(f"/v1/experiences/{third}").json()["feedback"]["reward"] == 1
    assert client.get(f"/v1/experiences/{first}").json()["feedback"] == said[first]["feedback"]
    for body in ({"better_than": other}, {"better_than": first}, {"better_than": second, "reward": 1}):
        assert client.post("/v1/feedback", json={"response_id": first, **body}).status_code == 400
    assert client.post("/v1/feedback", json={"response_id": first, "better_than": "nobody's"}).status_code == 404


def test_exchanges_are_erased_by_user_or_age() -> None:
    with talking() as client:
        for user in ("mary", "john", "mary", "m" * 512):
            assert client.post("/v1/chat/completions", json=ASK | {"user": user}).status_code == 200
        erase = "/v1/experiences"
        assert client.delete(erase, params={"user": "m" * 512}).json()["deleted"] == 1
        assert client.delete(erase, params={"user": "mary", "older_than_days": 1}).json()["deleted"] == 0
        assert client.delete(erase, params={"user": "mary", "withdraw": "true"}).json() == {
            "deleted": 2,
            "tainted": [],
            "withdrawn": [],
        }
        bad = {}, {"confirm": "all", "user": "john"}, {"older_than_days": 0}, {"older_than_days": 1e-9}
        assert {client.delete(erase, params=one).status_code for one in (*bad, {"confirm": "all", "older_than_days": 1})} == {
            400
        }
        assert client.delete(erase, params={"confirm": "all", "older_than_days": 0.5}).json()["deleted"] == 0
        assert client.delete(erase, params={"confirm": "all"}).json()["deleted"] == 1
