"""The edges of the chat server: connections without requests, slow headers, long bodies, foreign hosts, guessed keys, restarts."""

import json
import resource
import socket
import threading
from contextlib import suppress
from typing import Any

import httpx
import pytest
import uvicorn
from chat_backend import KEY, FakeBackend, serving
from waiting import PATIENCE, longer_than, wait_until

from learngraph.tools.serving import tenants
from learngraph.tools.serving.tenants import FAILED_LOGINS, RateLimitExceeded, Tenant, Tenants

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")

from learngraph.tools.serving import chat_server, connections

ASK = {"model": "pocket", "messages": [{"role": "user", "content": "hi there"}]}
BEARER = {"authorization": f"Bearer {KEY}"}


HALF_HEADERS = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
HALF_BODY = (
    f"POST /v1/feedback HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: 100\r\n\r\n".encode() + b'"x"}'
)


def half_request(url: str, half: bytes = HALF_HEADERS) -> socket.socket:
    line = socket.create_connection(url.removeprefix("http://").split(":"), timeout=PATIENCE)  # type: ignore[arg-type]
    line.sendall(half)
    return line


def read_all(line: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionError):
        while more := line.recv(65536):
            found += more
    return found


def status_of_answer(line: socket.socket) -> int:
    """The status of the next answer, which is read to its end."""
    found = b""
    while b"\r\n\r\n" not in found:
        more = line.recv(65536)
        assert more, found
        found += more
    head, _, body = found.partition(b"\r\n\r\n")
    length = next(int(part.split(b":")[1]) for part in head.split(b"\r\n") if part.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += line.recv(65536)
    return int(head.split()[1])


@pytest.mark.parametrize("half", [HALF_HEADERS, HALF_BODY], ids=["headers", "body"])
def test_half_requests_keep_nobody_out(half: bytes) -> None:
    with serving(max_connections=10, header_seconds=600) as url:
        lines = [half_request(url, half) for _ in range(40)]
        answers = [httpx.get(f"{url}/healthz", timeout=PATIENCE).status_code for _ in range(5)]
        assert answers == [200] * 5
        assert read_all(lines[0]) == b""  # the oldest was closed
        # One that is late is served, as long as there is room.
        lines[-1].sendall(b"\r\n" if half == HALF_HEADERS else b"x" * 96)
        assert status_of_answer(lines[-1]) == (200 if half == HALF_HEADERS else 400)
        for line in lines:
            line.close()


def test_a_half_request_behind_a_whole_one_keeps_nobody_out() -> None:
    behind = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" + HALF_BODY
    with serving(max_connections=1, header_seconds=600) as url, half_request(url, behind) as line:
        assert status_of_answer(line) == 200
        assert httpx.get(f"{url}/livez", timeout=PATIENCE).status_code == 200


def test_headers_that_take_too_long_are_given_up() -> None:
    with serving(header_seconds=0.3) as url:
        slow, silent = half_request(url), half_request(url, b"")
        assert read_all(slow).startswith(b"HTTP/1.1 408 ")
        assert read_all(silent).startswith(b"HTTP/1.1 408 ")
        with half_request(url, b"") as line:  # the second request of a connection, too
            line.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert status_of_answer(line) == 200
            line.sendall(b"GET /heal")
            assert b"HTTP/1.1 408 " in read_all(line)


def test_a_reply_that_takes_longer_than_headers_may_is_not_cut() -> None:
    heard = threading.Event()
    with serving(FakeBackend(heard=heard), max_connections=1, header_seconds=0.3) as url:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=ASK | {"stream": True}, headers=BEARER) as answer:
            lines = answer.iter_lines()
            next(lines)
            refused = httpx.get(f"{url}/healthz")  # there is one place, and it is busy
            longer_than(0.3)
            heard.set()
            rest = list(lines)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "unavailable"
        assert "data: [DONE]" in rest


def test_idle_connections_stay_open_longer_than_clients_and_proxies_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients keep them for 5 s, proxies for 60 s."""
    assert chat_server.KEEP_ALIVE_SECONDS > 60
    kept = list[Any]()
    known = uvicorn.Config.__init__
    monkeypatch.setattr(uvicorn.Config, "__init__", lambda self, *a, **more: kept.append(more) or known(self, *a, **more))
    with serving():
        assert kept[0]["timeout_keep_alive"] == chat_server.KEEP_ALIVE_SECONDS


def test_connections_are_no_more_than_the_process_may_open() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert connections.available_connections(1000) == 512 - connections.RESERVED_FILES
        assert connections.available_connections(100) == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_body_that_is_too_long_is_answered_and_not_reset() -> None:
    body = b"x" * 3_000_000
    with serving(max_body_bytes=1000) as url:
        for _ in range(20):
            with half_request(url, b"") as line:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: {BEARER['authorization']}\r\n"
                line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode())
                for start in range(0, len(body), 100_000):  # all of it, as clients do that read the answer afterwards
                    line.sendall(body[start : start + 100_000])
                assert status_of_answer(line) == 413
                line.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                assert status_of_answer(line) == 200  # the connection is good for more


def test_a_server_without_keys_answers_to_its_own_names_only() -> None:
    from learngraph.graphs.cli.serve import LOCAL_NAMES

    with serving(allowed_hosts=LOCAL_NAMES) as url:
        hosts = {"127.0.0.1": 200, "localhost:8000": 200, "[::1]:8000": 200, "evil.example": 400, "": 400}
        for host, status in hosts.items():
            assert httpx.get(f"{url}/healthz", headers={"host": host}).status_code == status, host
    with serving() as url:
        assert httpx.get(f"{url}/healthz", headers={"host": "chat.example"}).status_code == 200


# Keys


@pytest.mark.slow
def test_guessing_keys_is_slow_and_stops_nobody_who_has_one() -> None:
    with serving() as url, httpx.Client(base_url=url) as client:
        assert client.get("/v1/models", headers=BEARER).status_code == 200
        codes = [
            client.get("/v1/models", headers={"authorization": f"Bearer guess-{i}"}).status_code
            for i in range(FAILED_LOGINS + 10)
        ]
        assert codes[:FAILED_LOGINS] == [401] * FAILED_LOGINS
        assert 429 in codes[FAILED_LOGINS:]
        refused = client.get("/v1/models", headers={"authorization": "Bearer guess"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/v1/models", headers=BEARER).status_code == 200  # it was right before
        assert client.get("/v1/models").status_code == 401  # no key is no guess


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_failed_log_ins_count_by_address_and_are_forgotten_in_a_minute() -> None:
    clock = Clock()
    who = Tenants({"good": Tenant("acme")}, clock)
    for i in range(FAILED_LOGINS):
        assert who.log_in(f"bad {i}", "10.0.0.1") is None
    with pytest.raises(RateLimitExceeded, match="too many unknown keys"):
        who.log_in("bad", "10.0.0.1")
    assert who.log_in("bad", "10.0.0.2") is None
    assert who.log_in("good", "10.0.0.1") == Tenant("acme")  # others share the address: a right key is never refused
    clock.now += 60
    assert who.log_in("bad", "10.0.0.1") is None
    for i in range(tenants.MAX_ADDRESSES + 10):
        who.log_in("bad", str(i))
    assert len(who._failed) == tenants.MAX_ADDRESSES


def test_an_app_with_a_stale_key_counts_once() -> None:
    who = Tenants({"good": Tenant("acme")}, Clock())
    for _ in range(2 * FAILED_LOGINS):
        assert who.log_in("stale", "10.0.0.1") is None
    assert who.log_in("another", "10.0.0.1") is None
    for i in range(FAILED_LOGINS - 2):
        assert who.log_in(f"guess {i}", "10.0.0.1") is None
    with pytest.raises(RateLimitExceeded, match="too many unknown keys"):
        who.log_in("one more", "10.0.0.1")


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.1", "10.0.0.1"), ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"), ("testclient", "testclient"), (None, "")],
)
def test_an_ipv6_customer_has_a_network(host: str | None, address: str) -> None:
    from starlette.requests import HTTPConnection

    scope = {"type": "http", "client": None if host is None else (host, 1), "headers": []}
    assert tenants.client_address(HTTPConnection(scope)) == address


@pytest.mark.parametrize(
    "parts",
    [
        *([b"x-%d: y\r\n" % n for n in range(200)], [b"x: " + b"y" * 70_000], [b"x: "] + [b"y" * 999] * 70),
        [b"x: y\r\n" * 20_000],  # too many and too long, in one part
    ],
)
def test_large_headers_are_refused_before_they_are_read(parts: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    with serving() as url:
        line = half_request(url)
        with suppress(ConnectionError):
            for part in [*parts, b"\r\n"]:
                line.sendall(part)
        assert read_all(line).startswith(b"HTTP/1.1 431 ")
        whole = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 90 + b"\r\n"
        with half_request(url, b"") as later:
            later.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(3):  # counted anew for each request of a connection, whose end comes in two parts
                later.sendall(whole[:-1])
                later.sendall(whole[-1:])
                assert status_of_answer(later) == 200
    assert "Fatal error" not in caplog.text


def test_a_key_that_is_given_twice_is_refused() -> None:
    """A proxy in front may look at the other one."""
    with serving() as url:
        keys = f"authorization: Bearer {KEY}\r\nauthorization: Bearer other\r\n".encode()
        line = half_request(url, b"GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + keys + b"\r\n")
        said = read_all(line)
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"the header Authorization is given more than once; give it once" in said
        said = read_all(half_request(url, b"\x16\x03\x01 no HTTP\r\n\r\n"))
        assert b"content-type: application/json" in said
        assert b'"invalid_request_error"' in said


BUSY = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s"


def test_what_comes_behind_a_request_that_is_being_answered_waits_and_is_not_read() -> None:
    body = json.dumps(ASK | {"stream": True}).encode()
    heard, ask = threading.Event(), b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    with serving(FakeBackend(heard=heard)) as url:
        lines = [half_request(url, BUSY % (KEY.encode(), len(body), body)) for _ in range(2)]
        for line in lines:
            assert line.recv(15) == b"HTTP/1.1 200 OK"  # the stream goes on for as long as nothing is heard
        lines[0].settimeout(0.1)
        with pytest.raises(TimeoutError):  # else it would fill the memory
            lines[0].sendall(ask * 2_000_000)
        lines[0].close()
        lines[1].sendall(ask * 20 + ask.replace(b": x", b": x\r\nconnection: close"))
        heard.set()
        found = read_all(lines[1])
    assert (found.count(b"[DONE]"), found.count(b'"alive"')) == (1, 21)


@pytest.mark.parametrize("rest", [b"0\r\nx: " + b"y" * 70_000, b"5;" + b"y" * 70_000])
def test_what_stands_between_and_behind_the_chunks_of_a_body_is_limited(rest: bytes) -> None:
    with serving() as url:
        line = half_request(url, b"POST /v1/feedback HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        assert status_of_answer(line) == 401
        with suppress(ConnectionError):
            line.sendall(rest)
        assert b" 431 " in read_all(line)


def test_a_body_that_is_not_in_chunks_is_refused_with_a_sentence() -> None:
    head = f"POST /v1/feedback HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ntransfer-encoding: chunked\r\n\r\n"
    with serving() as url:
        for start in ("", "2\r\n{}\r\n"):
            found = read_all(half_request(url, f"{head}{start}odd\r\n".encode()))
            assert found.count(b"HTTP/1.1 ") == found.count(b"HTTP/1.1 400 ") == found.count(b"cannot be read as chunks") == 1
        assert httpx.get(f"{url}/livez").status_code == 200


@pytest.mark.slow
def test_answers_that_nobody_reads_keep_nobody_out_and_are_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large = FakeBackend(more={"exchanges": [{"text": "x" * 20_000_000}]})
    ask = f"GET /v1/experiences HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()
    with serving(large, max_connections=2) as url:
        lines = [half_request(url, ask) for _ in range(2)]
        for line in lines:
            assert line.recv(15) == b"HTTP/1.1 200 OK"
        assert httpx.get(f"{url}/healthz", timeout=PATIENCE).status_code == 200
        assert len(read_all(lines[0])) < 20_000_000  # the older one made room
        monkeypatch.setattr(connections, "STALL_SECONDS", 0.01)
        line = half_request(url, ask)
        wait_until(lambda: "read nothing of its answer" in caplog.text)
        assert len(read_all(line)) < 20_000_000
