"""The thread that says that a server is alive."""

from __future__ import annotations

import asyncio
import socket

import httpx

from learngraph.tools.serving.liveness import liveness_thread


async def test_a_busy_loop_is_alive_and_one_that_hangs_is_not() -> None:
    """While the loop is blocked the thread answers all the same: 503 once the loop has noted nothing for 30 s by the clock."""
    now = 0.0
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/livez"
    with liveness_thread(listening, lambda: now):
        busy = httpx.get(url)  # blocks the loop
        now = 31.0
        hanging = httpx.get(url)
        while (await asyncio.to_thread(httpx.get, url)).status_code != 200:  # the loop runs again, and notes it within a second
            pass
    assert [(one.status_code, one.json()["status"]) for one in (busy, hanging)] == [(200, "alive"), (503, "hangs")]
    assert listening.fileno() == -1
