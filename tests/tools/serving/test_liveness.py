"""The process that says that a server is alive."""

import asyncio
import socket
import subprocess
from contextlib import suppress
from typing import Any

import httpx
import pytest
from waiting import until

from learngraph.tools.serving.liveness import MAX_WAITING, liveness_process


async def test_a_busy_loop_is_alive_and_one_that_hangs_is_not() -> None:
    """The process answers while the loop is blocked: 503 once it has noted nothing for long, and 200 again when it runs."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/livez"
    with liveness_process(listening, 0.5):
        seen = []
        while not seen or seen[-1].status_code != 503:
            seen.append(httpx.get(url, timeout=60))  # blocks the loop
        while (await asyncio.to_thread(httpx.get, url, timeout=60)).status_code != 200:  # the loop runs again, and notes it
            pass
    assert {(one.status_code, one.json()["status"]) for one in seen} >= {(503, "hangs")}
    assert listening.fileno() == -1
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.slow
async def test_a_process_that_was_killed_is_started_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Process(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Process)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    with liveness_process(listening):
        started[0].kill()
        await until(lambda: len(started) == 2)
        assert (await asyncio.to_thread(httpx.get, url, timeout=60)).status_code == 200
        assert "ended (exit status -9) and is started again" in caplog.text
    assert [one.returncode for one in started] == [-9, -9]


async def test_half_requests_to_it_keep_nobody_out() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=500)
    port = listening.getsockname()[1]
    with liveness_process(listening):
        lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_WAITING + 9)]
        for line in lines:
            line.sendall(b"GET /livez HT")
        assert (await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{port}/livez", timeout=60)).status_code == 200
        with suppress(ConnectionError):
            assert await asyncio.to_thread(lines[0].recv, 9) == b""  # the oldest made room
    for line in lines:
        line.close()
