"""Attempts that are not made: none after the full score, unless asked for. Independent ones are made at the same time."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from flat_rows import read_flat
from in_process import play_in_process
from openai_server import OpenAIServer, Said

from learngraph.graphs.cli.main import main
from learngraph.tools.environments.arithmetic import Game24

PUZZLE = ["--env", "game24?puzzle=1 1 4 6", "--model", "openai:me", "--episodes", "4", "--seeds", "1"]
WRONG, RIGHT = "Answer: 1 + 1 + 4 + 6 = 24", "Answer: 1 * 1 * 4 * 6 = 24"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return play_in_process(monkeypatch, tmp_path)


def played(*command: str, server: OpenAIServer) -> int:
    return main(["run", *command, *PUZZLE, "--base-url", server.url, "--out", "run"])


def scores(here: Path, run: str) -> list[float]:
    return [json.loads(line)["score"] for line in (here / "run" / run / "episodes.jsonl").read_text().splitlines()]


def results(here: Path) -> dict[str, dict[str, Any]]:
    return read_flat(here / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "calls"), [("icrl", 2), ("best-of-n", 2), ("reflexion", 3)])
def test_a_run_ends_at_the_full_score_and_says_so(
    method: str, calls: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reflexion's third call is its plan after the first attempt; after the full score it makes none."""
    replies = [WRONG, "Plan: multiply.", RIGHT] if method == "reflexion" else [WRONG, RIGHT]
    with OpenAIServer(replies) as server:
        assert played(method, server=server) == 0
        assert len(server.requests) == calls
        said = capsys.readouterr().out
        assert f"{method} ended at the full score on 1 of 1 seed: 2 of 4 episodes were played, and means are over those" in said
        assert played(method, server=server) == 0
        assert "finished already" in capsys.readouterr().err
        assert len(server.requests) == calls
    assert scores(here, f"{method}-s0") == [0, 1]
    row = results(here)[method]
    assert (row["avg"], row["answer"], row["stopped"], row["played"]) == (0.5, 1.0, 1, 2)


@pytest.mark.slow
def test_what_solves_the_task_ends_a_run_and_the_end_of_a_walkthrough_does_not(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ScienceWorld within a horizon that is too short for the way that is known."""
    for name, value in {"knows_optimum": lambda world, task: False, "optimum": lambda world, task: 0.0, "solved": 1.0}.items():
        monkeypatch.setattr(Game24, name, value, raising=False)
    with OpenAIServer([WRONG, RIGHT]) as server:
        assert played("icrl", server=server) == 0
    assert scores(here, "icrl-s0") == [0, 1]


@pytest.mark.slow
def test_the_other_episodes_are_played_if_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer([WRONG, RIGHT]) as server:
        assert played("icrl", server=server) == 0
        assert played("icrl", "--no-stop-at-full-score", server=server) == 0
        assert len(server.requests) == 4
        capsys.readouterr()
        assert played("icrl", server=server) == 0  # what was played counts
        assert len(server.requests) == 4
    assert scores(here, "icrl-s0") == [0, 1, 1, 1]
    assert "full score" not in capsys.readouterr().out
    assert "stop_at_full_score" not in (here / "run" / "settings.json").read_text()


@pytest.mark.slow
def test_all_methods_of_a_comparison_play_the_same_number_of_episodes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer([RIGHT]) as server:
        assert played("icrl", server=server) == 0
        assert scores(here, "icrl-s0") == [1]
        capsys.readouterr()
        assert played("icrl", "--compare", "best-of-n", server=server) == 0  # the folder grows, and the first run goes on
    assert scores(here, "icrl-s0") == scores(here, "best-of-n-s0") == [1, 1, 1, 1]
    assert "full score" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_method_that_answers_with_its_last_attempt_plays_on(here: Path) -> None:
    with OpenAIServer([RIGHT]) as server:
        assert played("cot", server=server) == 0
    assert scores(here, "cot-s0") == [1, 1, 1, 1]


@pytest.mark.slow
def test_the_rewards_of_a_model_have_no_full_score(here: Path) -> None:
    """A judge's 10 for a step is above the highest score, and says nothing about it."""

    def reply(request: dict[str, Any]) -> Said:
        judges = "You judge a finished attempt" in str(request["messages"])
        return '{"rewards": [{"step": 1, "reason": "right", "reward": 10}]}' if judges else RIGHT

    with OpenAIServer(reply) as server:
        assert played("best-of-n", "--judge", "self", server=server) == 0
    rows = [json.loads(line) for line in (here / "run" / "best-of-n-s0" / "episodes.jsonl").read_text().splitlines()]
    assert [row["earned"] for row in rows] == [10, 10, 10, 10]


@pytest.mark.slow
def test_independent_attempts_are_made_at_the_same_time_and_are_those_made_in_turn(here: Path) -> None:
    with OpenAIServer([{"text": WRONG, "together": 4}]) as server:  # which answers the first once the fourth has been asked
        assert played("best-of-n", "--no-stop-at-full-score", server=server) == 0
        assert len(server.requests) == 4
    together = results(here)["best-of-n"]
    (here / "run").rename(here / "together")
    with OpenAIServer([WRONG]) as server:
        assert played("best-of-n", "--no-stop-at-full-score", "--concurrency", "1", server=server) == 0
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
        assert played("best-of-n", "--no-stop-at-full-score", server=server) == 2
        before = len(scores(here, "best-of-n-s0"))
        assert before < 4
        assert played("best-of-n", "--no-stop-at-full-score", server=server) == 0
    assert scores(here, "best-of-n-s0") == [0, 0, 0, 0]
