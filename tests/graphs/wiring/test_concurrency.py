"""Runs at the same time in one process, against a server: the same results as one after the other, and resumed as well."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai_server import OpenAIServer

from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments import pool
from learngraph.graphs.experiments.recorded import read_rows

COMMAND = ["run", "icrl", "--env", "game24?order=difficulty", "--model", "openai:test", "--episodes", "3", "--seeds", "4"]


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Threads of this process; starting workers takes seconds."""

    def work(
        batches: Sequence[Any], play: Callable[[Any], Any], count: int, tick: Callable[[], None], concurrency: int, **also: Any
    ) -> list[Any]:
        return pool.play_in_threads(batches, play, concurrency)

    monkeypatch.setattr(pool, "run_workers", work)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return here


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The same to the same prompt, another to another."""
    size = sum(len(message["content"]) for message in request["messages"])
    return {"text": f"Step 1: {size % 9} + 1 = {size % 9 + 1}\nAnswer: 4 * 6 = 24", "delay": 0.02}


def rows(folder: Path) -> dict[str, list[Any]]:
    paths = {path.with_name(path.name.removesuffix(".gz")) for path in folder.glob("*/*.jsonl*")}
    return {str(path.relative_to(folder)): read_rows(path) for path in sorted(paths) if path.stem != "seconds"}


@pytest.mark.slow
def test_concurrent_runs_are_those_one_after_the_other(here: Path) -> None:
    with OpenAIServer(replies=answer) as api:
        command = [*COMMAND, "--base-url", api.url]
        assert main([*command, "--out", "one", "--concurrency", "1"]) == 0
        assert main([*command, "--out", "four", "--concurrency", "4"]) == 0
        calls = len(api.requests)
        assert main([*command, "--out", "four"]) == 0  # finished, whatever the concurrency
        assert len(api.requests) == calls == 2 * 4 * 3
    assert rows(here / "one") == rows(here / "four")
    assert len(rows(here / "one")) == 3 * 4  # steps, episodes and replies of four runs


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", "pocket", "--concurrency", "4"], "--concurrency 4 is for models behind an API"),
        (["--concurrency", "0"], "--concurrency is at least 1, got 0"),
    ],
)
def test_mistakes(here: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--base-url", "http://127.0.0.1:1/v1", *options]) == 2
    assert says in capsys.readouterr().err
