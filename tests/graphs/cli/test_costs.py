"""Costs of every method: calls, tokens and dollars while it plays and at the end, budgets, and what a run would take."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flat_rows import flat, read_flat
from openai_server import OpenAIServer, Said

from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments import progress
from learngraph.graphs.experiments.recorded import read_rows

ASK = ["--env", "toy", "--model", "openai:me", "--horizon", "2", "--episodes", "2"]
PRICES = ["--price-in", "2", "--price-out", "10"]


def wait(request: dict[str, Any]) -> Said:
    return "Action: wait"


def read(server: OpenAIServer) -> int:
    """Tokens that the server counted in its prompts."""
    return sum(len(str(message.get("content")).split()) for request in server.requests for message in request["messages"])


def paid(*command: str, server: OpenAIServer) -> int:
    return main(["run", *command, *ASK, "--base-url", server.url, "--out", "run"])


def results(here: Path) -> dict[str, dict[str, Any]]:
    return read_flat(here / "run")


@pytest.mark.slow
def test_the_table_and_the_results_say_calls_tokens_and_dollars(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer(wait) as server:
        assert paid("react", "--seeds", "2", *PRICES, "--compare", "random", server=server) == 0
        calls, tokens = len(server.requests), read(server)
    row = results(here)["react"]
    assert calls == 2 * 2 * 2
    assert (row["metrics"]["calls"]["mean"], row["totals"]["input_tokens"], row["totals"]["output_tokens"]) == (
        4,
        tokens,
        4 * 2 * 2,
    )
    assert row["tokens"] == tokens / 2 + 8
    assert row["episode_tokens"] == row["tokens"] / 2
    assert row["step_tokens"] == row["tokens"] / 4
    assert row["dollars"] == pytest.approx((2 * tokens + 10 * calls * 2) / 2e6)
    assert results(here)["random"]["totals"]["calls"] == 0
    shown = capsys.readouterr()
    for column in ("calls/run", "tokens/run", "tokens/episode", "tokens/step", "$/run"):
        assert column in shown.out
    assert f"react cost 8 calls, {tokens:,} tokens read, 16 written, $" in shown.out
    assert "8 calls" in shown.err  # while it played
    assert "random cost" not in shown.out


@pytest.mark.slow
def test_replies_of_a_dialogue_that_ended_the_run_are_not_paid_for_again(here: Path) -> None:
    refused = {"status": 400, "text": "no"}  # twice: a request is refused with and without its stop sequence
    with OpenAIServer(["Action: wait", "nonsense", refused, refused, "Action: wait"]) as server:
        command = ("react", "--seeds", "1", "--concurrency", "1")
        assert paid(*command, server=server) == 2
        assert paid(*command, server=server) == 0
        calls, tokens = len(server.requests), read(server)
    row = results(here)["react"]
    assert calls == 7
    assert row["calls"] == 5  # a refusal is no reply, and costs nothing
    assert row["unused_tokens"] == 0
    assert row["tokens"] < tokens
    assert [len(one["messages"]) for one in server.requests] == [2, 2, 4, 4, 4, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [["--token-budget", "150"], ["--dollar-budget", "0.0004", *PRICES]])
def test_a_budget_ends_the_run_in_words_and_a_larger_one_goes_on(
    budget: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(wait) as server:
        assert paid("react", "--seeds", "2", *budget, server=server) == 2
        said, before = capsys.readouterr(), len(server.requests)
        assert "stopped: the budget of " in said.err + said.out
        assert "the same run with a larger budget goes on from here" in said.err + said.out
        assert 0 < before < 8
        assert paid("react", "--seeds", "2", server=server) == 0
        assert len(server.requests) == 8  # no step was paid for twice
    assert results(here)["react"]["totals"]["calls"] == 8


@pytest.mark.slow
def test_a_budget_holds_for_a_model_in_this_process(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "static", "--env", "toy", "--episodes", "2", "--seeds", "1", "--out", "run", "--json"]
    assert main([*command, "--token-budget", "100"]) == 2
    assert "stopped: the budget of 100 tokens is spent" in capsys.readouterr().err
    assert main(command) == 0
    (row,) = [flat(json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert main([*command[:-3], "--out", "free", "--json"]) == 0
    (free,) = [flat(json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert (row["avg"], row["steps"]) == (free["avg"], free["steps"])
    assert free["tokens"] == free["input_tokens"] + free["output_tokens"] > 0


@pytest.mark.slow
def test_a_wait_before_another_try_is_on_the_progress_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    note = progress.note_wait

    def look(folder: Path, pause: Any) -> None:
        note(folder, pause)
        seen.append(progress.wait_text(folder))

    monkeypatch.setattr(progress, "note_wait", look)
    still = SimpleNamespace(time=lambda: 0.0, monotonic=time.monotonic)
    monkeypatch.setattr(progress, "time", still)  # else a short wait is over before it is read
    with OpenAIServer([{"status": 429, "text": "slow down"}, {"status": 500, "text": "oops"}, "Action: wait"]) as server:
        assert paid("react", "--seeds", "1", "--concurrency", "1", server=server) == 0
    assert seen[0] == "waiting 0 s after try 1: rate-limited"
    assert seen[1].startswith("waiting 0.") or seen[1].startswith("waiting 1")
    assert seen[1].endswith(" s after try 2: error 500")


# What a run would take


def dry(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, dict[str, Any]]:
    assert main(["run", *command, "--dry-run", "--json", "--out", "run"]) == 0
    return {row["method"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}


@pytest.mark.slow
def test_a_dry_run_asks_nothing_and_expects_what_the_run_takes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer(wait) as server:
        command = ["react", *ASK, "--seeds", "2", "--base-url", server.url, *PRICES, "--compare", "random", "adamem"]
        found = dry(capsys, *command, "--max-tokens", "100")
        assert server.requests == []
        assert not (here / "run").exists()
        assert set(found) == {"react", "random", "adamem"}
        assert found["react"]["calls"] == 2 * 2 * 2  # seeds, episodes, steps
        assert found["react"]["dollars"] > 0
        assert found["random"]["calls"] == 0
        assert found["adamem"]["calls"] > found["react"]["calls"]


@pytest.mark.slow
def test_a_dry_run_of_a_folder_expects_what_was_measured_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer(wait) as server:
        assert paid("react", "--seeds", "1", server=server) == 0
        capsys.readouterr()
        found = dry(capsys, "react", *ASK[:-1], "10", "--seeds", "1", "--base-url", server.url)
        row = results(here)["react"]
    assert found["react"]["calls"] == 20
    assert found["react"]["input_tokens"] == 5 * row["input_tokens"]


def test_a_dry_run_says_its_assumptions_and_whether_the_budget_may_not_last(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "icrl", "--env", "toy", "--model", "openai:me", "--base-url", "http://127.0.0.1:1/v1", "--judge", "self"]
    assert main([*command, "--token-budget", "9", "--dry-run", "--out", "run"]) == 0
    shown = capsys.readouterr().out
    assert "no model was asked" in shown
    assert "assumed: " in shown
    assert "--token-budget 9 may not last" in shown
    assert "rehearsed by a stand-in" in shown


@pytest.mark.slow
def test_steps_at_which_memory_held_nothing_are_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "jitrl", "--env", "toy", "--prior", "uniform", "--episodes", "3", "--seeds", "1", "--out", "run"]
    assert main([*command, "--compare", "random"]) == 0
    row = results(here)["jitrl"]
    steps = read_rows(here / "run" / "jitrl-s0" / "steps.jsonl")
    later = [step for step in steps if step["episode"]]
    empty = [step for step in later if not any(one["count"] for one in step["estimates"])]
    assert (row["look_ups"], row["empty_look_ups"]) == (len(later), len(empty))
    line = f"jitrl found nothing alike in its memory at {len(empty):,} of {len(later):,} steps after the first episode"
    assert (line in capsys.readouterr().out) == bool(empty)
    assert results(here)["random"]["look_ups"] == 0


@pytest.mark.slow
def test_the_environments_of_a_file_share_its_budget_and_a_larger_one_goes_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(wait) as server:
        world = f'name = "toy", horizon = 2, base_url = "{server.url}"'
        text = f'environments = [{{ {world}, label = "a" }}, {{ {world}, label = "b" }}]\nmodels = ["openai:me"]\n'
        Path("two.toml").write_text(f'{text}methods = ["react"]\nseeds = 1\nepisodes = 2\n')
        command = ["run", "two.toml", "--workers", "1"]
        assert main([*command, "--dry-run", "--token-budget", "8"]) == 0
        assert "--token-budget 8 may not last" in capsys.readouterr().out
        assert main([*command, "--token-budget", "200"]) == 2
        assert capsys.readouterr().out.count("the budget of 100 tokens is spent") == 2
        assert 0 < len(server.requests) < 8
        assert main(command) == 0
        assert len(server.requests) == 8
