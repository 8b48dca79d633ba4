"""The HTTP side of the studio: only its own page on this machine, with the key, gets answers."""

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from waiting import PATIENCE

from learngraph.memory.errors import UserError
from learngraph.tools.serving.page_files import PAGES
from learngraph.tools.serving.studio_server import MAX_BYTES, StudioServer, studio_app

KEY = {"x-studio-key": "k"}


class Echo:
    """Answers with what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        self.asked.append(name)
        if name == "wrong":
            error = UserError("it cannot be done")
            error.details = {"version": "2"}  # type: ignore[attr-defined]
            raise error
        if name == "unknown":
            raise LookupError("there are echo")
        if name == "broken":
            raise ZeroDivisionError("a bug")
        return {name: dict(arguments)}


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def client(echo: Echo) -> TestClient:
    return TestClient(studio_app(echo, "k", 8000), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


def test_its_own_page_with_the_key_is_answered(client: TestClient) -> None:
    answer = client.post("/ask/echo", json={"a": "ü"}, headers={**KEY, "origin": "http://127.0.0.1:8000"})
    assert (answer.status_code, answer.json()) == (200, {"echo": {"a": "ü"}})
    assert client.post("/ask/echo", headers={**KEY, "host": "localhost:8000"}).json() == {"echo": {}}


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({}, 401, "open the link"),
        ({"x-studio-key": "other"}, 401, "open the link"),
        ({"x-studio-key": "ü".encode()}, 401, "open the link"),
        (
            {**KEY, "host": "evil.example:8000"},
            403,
            "answers to 127.0.0.1:8000 and localhost:8000 only, not to 'evil.example:8000'",
        ),
        ({**KEY, "host": "127.0.0.1:9000"}, 403, "not to '127.0.0.1:9000'"),
        ({**KEY, "origin": "http://evil.example"}, 403, "from its own page only, not from 'http://evil.example'"),
        ({**KEY, "origin": "null"}, 403, "not from 'null'"),
        ({**KEY, "origin": "http://localhost:8000"}, 403, "not from"),
    ],
)
def test_nobody_else_is(client: TestClient, echo: Echo, headers: dict[str, str], status: int, said: str) -> None:
    answer = client.post("/ask/echo", json={}, headers=headers)
    assert (answer.status_code, said in answer.json()["error"], echo.asked) == (status, True, [])


def test_a_foreign_site_gets_no_permission_in_advance(client: TestClient) -> None:
    """A browser asks before it sends our header from another site; without a yes it sends nothing."""
    wish = {
        "origin": "http://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-studio-key",
    }
    answer = client.options("/ask/echo", headers=wish)
    assert answer.status_code in (403, 405)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_mistakes_are_sentences(client: TestClient) -> None:
    def ask(name: str, **more: Any) -> tuple[int, Any]:
        answer = client.post(f"/ask/{name}", headers=KEY, **more)
        return answer.status_code, answer.json()

    assert ask("wrong") == (200, {"error": "it cannot be done", "version": "2"})
    assert ask("unknown") == (404, {"error": "the studio has no answer to 'unknown': there are echo"})
    assert ask("broken")[0] == 500
    assert ask("broken")[1]["error"].startswith("ZeroDivisionError: a bug; the terminal")
    assert ask("echo", content=b"{")[1]["error"].startswith("a question is a JSON object (")
    assert ask("echo", json=[1]) == (400, {"error": "a question is a JSON object"})
    assert "longer than 2,000,000 bytes" in ask("echo", content=b" " * (MAX_BYTES + 1))[1]["error"]


def test_the_page_allows_nothing_from_elsewhere_and_every_file_is_served(client: TestClient) -> None:
    for path in (
        "",
        *(str(file.relative_to(PAGES)) for file in PAGES.rglob("*") if file.suffix in (".html", ".js", ".css", ".svg")),
    ):
        answer = client.get(f"/{path}")
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert "key" not in answer.headers.get("set-cookie", "")
    assert client.get("/library/package.json").status_code == 404
    assert client.get("/nothing.js").json() == {"error": "there is no page 'nothing.js'"}


@pytest.mark.parametrize("path", ["/../studio_server.py", "/%2e%2e/studio_server.py", "/..%2fchat_server.py", "/%2fetc/passwd"])
def test_no_file_outside_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_licences_of_the_libraries_are_with_them() -> None:
    said = (PAGES / "library" / "LICENSES.txt").read_text(encoding="utf-8")
    for name in ("preact 11", "htm 3", "@dagrejs/dagre 3", "@codemirror/view 6", "style-mod", "w3c-keyname"):
        assert name in said
    assert "MISSING" not in said
    assert sum(file.stat().st_size for file in Path(PAGES).rglob("*")) < 1_000_000


def test_it_listens_on_this_machine_only_and_says_when_a_port_is_taken(echo: Echo) -> None:
    server = StudioServer(echo, "k")
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.url == f"http://127.0.0.1:{server.port}/#key=k"
        assert server._socket.getsockname()[0] == "127.0.0.1"
        assert server._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # for its connections, too
        with pytest.raises(UserError, match=rf"port {server.port} of 127.0.0.1 is not free .*--port 0"):
            StudioServer(echo, "k", server.port)
    finally:
        server.stop()
        thread.join(timeout=PATIENCE)
    assert not thread.is_alive()
