"""A run that fails ends alone, is named with its reason, and is tried again by the same command; folders may grow."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai_server import OpenAIServer, Said
from waiting import wait_until

from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.recorded import read_rows
from learngraph.tools.environments.keyword_keep import KeywordKeep

WORLD = KeywordKeep(horizon=2)
ASK = ["--env", "toy", "--model", "openai:me", "--horizon", "2", "--episodes", "2"]
TOY = ["--env", "toy", "--prior", "uniform"]


def start(seed: int) -> str:
    """Words that only prompts of this seed's task begin with."""
    return WORLD.observe(WORLD.task(seed), ()).text


def waits(request: dict[str, Any]) -> Said:
    return "Action: wait"


def refuses(seed: int, **refusal: Any) -> Any:
    """A server that refuses every prompt about this seed's task."""
    words = json.dumps(start(seed))[1:-1]
    return lambda request: refusal if words in json.dumps(request["messages"]) else "Action: wait"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("wrong", [("--env", "toi"), ("--env", "toy", "--model", "gpt"), (*TOY, "--judge", "rubric")])
def test_a_name_that_there_is_not_leaves_no_folder(
    wrong: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "jitrl", *wrong, "--out", "runs/mine"]) == 2
    assert "finished episodes" not in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ({"status": 400, "text": "content filter"}, "request refused (content filter)"),
        ({"status": 500, "text": "oops"}, "error 500, tried 1 times"),
    ],
)
def test_one_failed_seed_ends_alone_and_is_tried_again(
    refusal: dict[str, Any], reason: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(refuses(1, **refusal)) as server:
        command = ["run", "react", *ASK, "--seeds", "3", "--retries", "0", "--base-url", server.url, "--compare", "random"]
        assert main([*command, "--out", "run"]) == 2
        shown = capsys.readouterr().out
        assert "react, seed 1: failed: " in shown
        assert reason in shown
        assert "the same command goes on from there" in shown
        assert "| random" in shown
        results = json.loads((here / "run" / "results.json").read_text())
        assert {row["method"]: row["seeds"] for row in results} == {"react": [0, 2], "random": [0, 1, 2]}
        (failure,) = json.loads((here / "run" / "failures.json").read_text())
        assert (failure["method"], failure["seed"]) == ("react", 1)
        server._replies, before = waits, len(server.requests)
        assert main([*command, "--out", "run"]) == 0
        assert len(server.requests) - before == 4  # two episodes of two steps: of the failed seed alone
        assert "failed" not in capsys.readouterr().out
        assert not (here / "run" / "failures.json").exists()


@pytest.mark.slow
def test_calls_in_flight_are_kept_when_another_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads of one process: the slow seed goes on although the other has failed long before."""
    from learngraph.graphs.experiments import pool

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        pool,
        "run_workers",
        lambda batches, play, count, tick, concurrency, lost, engine: pool.play_in_threads(batches, play, concurrency),
    )
    words = json.dumps(start(1))[1:-1]

    def slow_or_refused(request: dict[str, Any]) -> Said:
        refused = words in json.dumps(request["messages"])
        return {"status": 400, "text": "no"} if refused else {"text": "Action: wait", "delay": 0.3}

    with OpenAIServer(slow_or_refused) as server:
        assert main(["run", "react", *ASK, "--seeds", "2", "--base-url", server.url, "--out", "run"]) == 2
        assert sum(words not in json.dumps(request["messages"]) for request in server.requests) == 4
    assert len(rows(tmp_path / "run" / "react-s0" / "episodes.jsonl")) == 2


def test_what_must_fail_again_does_not_say_that_the_same_command_goes_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(["a letter, without any log-probability"]) as server:
        command = ["run", "jitrl", *ASK, "--policy", "logprobs", "--seeds", "2", "--base-url", server.url, "--out", "run"]
        assert main(command) == 2
    said = capsys.readouterr().err
    assert "jitrl, seeds 0, 1: failed: asked for the log-probabilities" in said
    assert "goes on" not in said


@pytest.mark.slow
def test_a_server_that_is_down_leaves_no_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "react", *ASK, "--base-url", "http://127.0.0.1:9/v1", "--retries", "0", "--out", "runs/mine"]) == 2
    assert "model 'me' at http://127.0.0.1:9/v1: cannot be reached" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_seeds_that_share_a_memory_wait_for_the_one_that_failed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer(refuses(1, status=400, text="no")) as server:
        command = ["run", "jitrl", *ASK, "--cross-task", "--seeds", "3", "--base-url", server.url, "--out", "run"]
        server._replies = lambda request: (
            {"status": 400, "text": "no"}
            if json.dumps(start(1))[1:-1] in json.dumps(request["messages"])
            else '{"options": [{"action": "wait", "confidence": 90}]}'
        )
        assert main(command) == 2
    assert "jitrl, seed 2: failed: waits for jitrl, seed 1, whose memory it shares" in capsys.readouterr().out


# Folders that grow


@pytest.mark.slow
def test_a_grown_folder_finds_its_runs_in_a_shared_place(here: Path) -> None:
    command = ["run", "jitrl", *TOY, "--seeds", "1", "--out", "run", "--checkpoints", "kept", "--memory", "mind"]
    assert main([*command, "--episodes", "2"]) == 0
    steps = read_rows(here / "run/jitrl-s0/steps.jsonl")
    assert main([*command, "--episodes", "4"]) == 0
    assert main([*command, "--episodes", "5"]) == 0
    assert read_rows(here / "run/jitrl-s0/steps.jsonl")[: len(steps)] == steps
    assert len(rows(here / "run" / "jitrl-s0" / "episodes.jsonl")) == 5


@pytest.mark.slow
def test_a_server_may_move(here: Path) -> None:
    command = ["run", "react", *ASK, "--seeds", "1", "--out", "run"]
    with OpenAIServer([{"status": 401, "text": "no"}]) as old:
        assert main([*command, "--base-url", old.url]) == 2
    with OpenAIServer(waits) as new:
        assert main([*command, "--base-url", new.url]) == 0
        assert json.loads((here / "run" / "settings.json").read_text())["base_url"] == new.url


@pytest.mark.slow
def test_sigterm_ends_without_a_word_of_leaked_semaphores(tmp_path: Path) -> None:
    with OpenAIServer([{"text": "Action: wait", "delay": 60.0}]) as server:
        command = [sys.executable, "-m", "learngraph", "run", "react", *ASK, "--seeds", "1", "--workers", "1"]
        command += ["--base-url", server.url, "--out", "run"]
        running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ)
        wait_until(lambda: len(server.requests) >= 1)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 143
    assert "leaked" not in said
    assert "Traceback" not in said
