"""The options of the model: what reaches the server, from every command that asks one, and which errors recommend them."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai_server import OpenAIServer

from learngraph.graphs.cli.main import main
from learngraph.memory.errors import UserError
from learngraph.tools.models.models import open_model

GIVEN = ["--model-temperature", "0.25", "--max-tokens", "77", "--model-seed", "5", "--reasoning-effort", "low"]
GIVEN += ["--extra-body", '{"top_k": 20}']
SENT = {"temperature": 0.25, "max_completion_tokens": 77, "seed": 5, "reasoning_effort": "low", "top_k": 20}
SHORT = ["--env", "toy", "--model", "openai:me", "--horizon", "2", "--episodes", "1", "--seeds", "1", "--concurrency", "1"]


def writes(request: dict[str, Any]) -> str:
    """A move in any form that a method of these tests asks for."""
    asked = str(request["messages"])
    if "JSON" in asked and "confidence" in asked:
        return '{"options": [{"action": "wait", "confidence": 90}, {"action": "look", "confidence": 5}]}'
    return "I wait.\nAction: wait"


def played(method: str, *more: str, judge: str = "environment") -> list[dict[str, Any]]:
    """The requests of a short run."""
    with OpenAIServer(writes) as server:
        main(["run", method, *SHORT, "--base-url", server.url, "--judge", judge, "--out", method.replace(":", "-"), *more])
        return server.requests


@pytest.mark.slow
@pytest.mark.parametrize("method", ["react", "icrl", "jitrl", "static", "best-of-n"])
def test_every_method_asks_with_the_given_options(method: str, here: Path) -> None:
    requests = played(method, *GIVEN)
    assert requests
    for request in requests:
        assert {name: request.get(name) for name in SENT} == SENT


@pytest.mark.slow
def test_without_options_nothing_is_sent(here: Path) -> None:
    for request in played("react"):
        assert not request.keys() & SENT.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "temperature"), [("jitrl:paper", 0.8), ("icrl:paper", 1.0), ("adamem:paper-low", 0.7)])
def test_a_preset_of_a_paper_has_its_temperature_and_the_user_goes_before_it(
    command: str, temperature: float, here: Path
) -> None:
    assert {request.get("temperature") for request in played(command)} == {temperature}
    assert {request.get("temperature") for request in played(command, *GIVEN, "--out", "own")} == {0.25}


@pytest.mark.slow
def test_the_judge_of_a_paper_is_asked_at_0(here: Path) -> None:
    requests = played("jitrl:paper-web?evaluator=environment&state_key=room", judge="self")
    assert {request.get("temperature") for request in requests} == {0.8, 0}


@pytest.mark.slow
def test_a_compared_preset_has_its_own_temperature(here: Path) -> None:
    assert {request.get("temperature") for request in played("static", "--compare", "jitrl:paper")} == {None, 0.8}


@pytest.mark.slow
def test_a_timeout_names_the_flag_that_helps(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer([{"text": "Action: wait", "delay": 2.0}]) as server:
        main(["run", "react", *SHORT, "--base-url", server.url, "--request-timeout", "0.2", "--retries", "0", "--out", "a"])
        assert len(server.requests) == 1
        assert "--request-timeout" in capsys.readouterr().err
        assert main(["run", "react", *SHORT, "--base-url", server.url, "--request-timeout", "9", "--out", "a"]) == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--extra-body", "[1]"], "--extra-body is a JSON object"),
        (["--retries", "-1"], "--retries is at least 0"),
        (["--request-timeout", "0"], "--request-timeout is more than 0 seconds"),
        (["--max-tokens", "0"], "--max-tokens is at least 1"),
    ],
)
def test_mistakes(flags: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "react", *SHORT, "--base-url", "http://127.0.0.1:1/v1", *flags]) == 2
    assert says in capsys.readouterr().err


def test_a_model_in_this_process_takes_no_fields_of_requests() -> None:
    with pytest.raises(UserError, match="'pocket' takes no reasoning effort and no extra body; 'openai:MODEL' does"):
        open_model("pocket", reasoning_effort="low")


@pytest.mark.slow
def test_what_draws_depend_on_is_recorded_and_only_that(here: Path) -> None:
    played("react", *GIVEN, "--retries", "1", "--request-timeout", "30")
    record = json.loads((here / "react" / "settings.json").read_text())
    assert {"model_temperature", "max_tokens", "model_seed", "reasoning_effort", "extra_body"} <= record.keys()
    assert not {"retries", "request_timeout"} & record.keys()
    played("static")
    assert not {"model_temperature", "max_tokens"} & json.loads((here / "static" / "settings.json").read_text()).keys()


def test_a_quota_that_is_used_up_is_asked_once() -> None:
    body = json.dumps({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}})
    with OpenAIServer([{"status": 429, "body": body}]) as server:
        with pytest.raises(UserError, match=r"the quota is used up .You exceeded your current quota.; add credit"):
            open_model("openai:me", base_url=server.url).invoke("hello")
        assert len(server.requests) == 1
