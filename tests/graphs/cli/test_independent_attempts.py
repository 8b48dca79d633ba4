"""Independent attempts are made at the same time."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from flat_rows import read_flat
from openai_server import OpenAIServer, Said

from learngraph.graphs.cli.main import main

PUZZLE = ["--env", "game24?puzzle=1 1 4 6", "--model", "openai:me", "--episodes", "4", "--seeds", "1"]
WRONG = "Answer: 1 + 1 + 4 + 6 = 24"


def played(*command: str, server: OpenAIServer) -> int:
    return main(["run", *command, *PUZZLE, "--base-url", server.url, "--out", "run"])


def scores(here: Path, run: str) -> list[float]:
    return [json.loads(line)["score"] for line in (here / "run" / run / "episodes.jsonl").read_text().splitlines()]


def results(here: Path) -> dict[str, dict[str, Any]]:
    return read_flat(here / "run")


@pytest.mark.slow
def test_independent_attempts_are_made_at_the_same_time_and_are_those_made_in_turn(here: Path) -> None:
    with OpenAIServer([{"text": WRONG, "together": 4}]) as server:  # which answers the first once the fourth has been asked
        assert played("best-of-n", server=server) == 0
        assert len(server.requests) == 4
    together = results(here)["best-of-n"]
    (here / "run").rename(here / "together")
    with OpenAIServer([WRONG]) as server:
        assert played("best-of-n", "--concurrency", "1", server=server) == 0
    in_turn = results(here)["best-of-n"]
    for row in (together, in_turn):
        for name in ("step_seconds", "metrics"):
            del row[name]
    assert together == in_turn


@pytest.mark.slow
def test_an_attempt_that_fails_leaves_those_before_it(here: Path) -> None:
    """The third of four fails: the first two count, and the same command makes the other two."""
    lock, number = threading.Lock(), iter(range(100))

    def reply(request: dict[str, Any]) -> Said:
        with lock:
            return {"status": 400, "text": "no such model"} if next(number) == 2 else WRONG

    with OpenAIServer(reply) as server:
        assert played("best-of-n", server=server) == 2
        before = len(scores(here, "best-of-n-s0"))
        assert before < 4
        assert played("best-of-n", server=server) == 0
    assert scores(here, "best-of-n-s0") == [0, 0, 0, 0]
