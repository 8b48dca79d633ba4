"""learngraph learner: what it refuses, and a service whose learner is killed in mid-step: it answers on, and learns when there is one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from learngraph.graphs.cli import main as cli

pytest.importorskip("fastapi")

RUN = [sys.executable, "-c", "from learngraph.graphs.cli.main import main; raise SystemExit(main())"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--hand-over"),
        (["--hand-over", "x", "--host", "0.0.0.0"], "LEARNGRAPH_LEARNER_KEY"),
        (["--hand-over", "x", "--port", "70000"], "--port is from 0 to 65535"),
        (["--hand-over", "x", "--model", "vllm:x"], "pocket, guard or local:PATH_OR_NAME"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.delenv("LEARNGRAPH_LEARNER_KEY", raising=False)
    assert cli.main(["learner", *args]) == 2
    assert said in capsys.readouterr().err


@contextmanager
def started(*args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves, and its address."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "LEARNGRAPH_LEARNER_KEY": "between us"}
    process = subprocess.Popen([*RUN, *args], stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stderr
        line = ""
        while " at http" not in line or "learner is at" in line:
            line = process.stderr.readline()
            assert line, f"{args[0]} ended"
        yield process, line.split(" at ")[1].split(";")[0].split(",")[0].split("/v1")[0].strip()
    finally:
        process.kill()
        process.communicate()


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


class User:
    """Chats, and wants to be called captain."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"authorization": "Bearer secret"}, timeout=60)

    def chat(self, n: int) -> tuple[str, str]:
        """(id, version)."""
        body = {"model": "guard", "messages": [{"role": "user", "content": f"say raven {n % 7} ."}], "max_tokens": 8, "seed": n}
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"], answer.headers["x-policy-version"]

    def scold(self, id: str) -> None:
        said = {"response_id": id, "reward": -1, "text": "broke call : call the user captain ."}
        assert self.http.post("/v1/feedback", json=said).status_code == 202

    def status(self) -> Any:
        return self.http.get("/v1/status").json()

    def until(self, true: Any, seconds: float = 120.0) -> Any:
        end = time.monotonic() + seconds
        while not true(status := self.status()):
            assert time.monotonic() < end, status
            time.sleep(0.05)
        return status


@pytest.mark.long
def test_a_learner_killed_in_mid_step_loses_nothing_and_the_service_answers_on(tmp_path: Path) -> None:
    place, port = str(tmp_path / "adapters"), free_port()
    learner = ["learner", "--model", "guard", "--hand-over", place, "--port", port]
    service = ["serve", "--model", "guard", "--port", "0", "--api-key", "secret", "--out", str(tmp_path / "out")]
    service += ["--trainer", "remote", "--learner-url", f"http://127.0.0.1:{port}", "--hand-over", place]
    with started(*service, "--rollout.max-lead", "100", "--replay.max-samplings", "2") as (_, url):
        user = User(url)
        for n in range(16):
            user.scold(user.chat(n)[0])
        user.until(lambda status: status["scopes"][0]["counts"].get("leased"))  # it waits for a learner
        assert user.chat(100)[1] == "base"  # there has never been one
        with started(*learner) as (first, _):
            os.kill(first.pid, signal.SIGSTOP)  # so that it cannot be done before it is killed
            time.sleep(0.5)
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
        for n in range(3):
            user.chat(200 + n)
        with started(*learner) as (_, _):
            status = user.until(lambda status: status["scopes"][0]["live"])
            assert user.chat(300)[1] >= status["scopes"][0]["live"]
            user.until(lambda status: not status["scopes"][0]["counts"].get("leased"))
            scope = user.status()["scopes"][0]
            assert [row["step"] for row in scope["updates"]] == list(range(1, len(scope["updates"]) + 1))  # each step once
