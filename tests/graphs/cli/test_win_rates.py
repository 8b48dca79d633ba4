"""`learngraph win-rates`: answers of two methods on writing, compared by a scripted judge and by the world's rule."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from in_process import play_in_process
from openai_server import OpenAIServer

from learngraph.graphs.cli.main import main

SENTENCES = re.compile(r"^\d\. (.+)$", re.MULTILINE)


class Model:
    """Writes for two methods, longer for ICRL; as a judge it prefers what `taste` says."""

    def __init__(self, taste: str) -> None:
        self.taste, self.judged = taste, 0

    def __call__(self, request: dict[str, Any]) -> str:
        system, asked = request["messages"][0]["content"], request["messages"][-1]["content"]
        if "You compare two answers" not in system:
            words = "many words " * 9 if "many times" in str(request["messages"]) else "few words of mine "
            return "Passage:\n" + "\n\n".join(f"There are {words}here. {line}" for line in SENTENCES.findall(asked)[:4])
        self.judged += 1
        if self.taste == "mute":
            return "I would rather not say."
        first, second = asked.split("The first answer:\n")[1].split("\n\nThe second answer:\n")
        is_better = {"long": len(first) > len(second), "first": True}[self.taste]
        return f'The second is weaker. {{"score": {8 if is_better else 2}}}'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    return play_in_process(monkeypatch, tmp_path)


def write(server: OpenAIServer) -> list[str]:
    """A run of two methods on four prompts. Returns the options that name the server."""
    model = ["--model", "openai:scribe", "--base-url", server.url]
    command = [
        "run",
        "icrl",
        "--env",
        "writing?source=own",
        *model,
        "--seeds",
        "4",
        "--episodes",
        "2",
        "--compare",
        "best-of-n",
    ]
    assert main([*command, "--workers", "1", "--out", "run", "--json"]) == 0
    return ["--judge", "openai:scribe", "--base-url", server.url]


@pytest.mark.slow
@pytest.mark.parametrize("taste", [pytest.param("first", marks=pytest.mark.long), "long", "mute"])
def test_a_judge_is_asked_in_both_orders_and_once(taste: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Model(taste)
    with OpenAIServer(model) as server:
        judge = write(server)
        capsys.readouterr()
        status = main(["win-rates", "run", *judge, "--json"])
        asked, out = model.judged, capsys.readouterr()
        if taste == "mute":
            assert status == 2
            assert "icrl and best-of-n: no prompt has a verdict; 4 have answers of both" in out.err
            assert asked == 4 * 2 * 3  # three tries each
            return
        assert (status, asked) == (0, 8)
        row = json.loads(out.out)
        assert (row["method"], row["over"], sum(row["verdicts"].values())) == ("icrl", "best-of-n", 4)
        if taste == "long":
            assert (row["rate"], row["verdicts"], row["longer"]) == (1.0, {"win": 4}, 1.0)
            assert "icrl and best-of-n: one is longer on nearly all prompts" in out.err
        else:  # it goes by position alone
            assert (row["rate"], row["verdicts"]) == (0.5, {"changed with order": 4})
        assert json.loads((here / "run" / "win-rates.json").read_text())["rates"] == [row]
        assert main(["win-rates", "run", *judge, "--first", "best-of-n"]) == 0
        assert model.judged == 8  # the same questions: their answers are kept
        assert "| best-of-n wins against |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_worlds_rule_judges_too_and_mistakes_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer(Model("long")) as server:
        write(server)
    capsys.readouterr()
    assert main(["win-rates", "run", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["rate"], row["verdicts"]) == (0.5, {"tie": 4})  # both keep all four endings
    assert main(["win-rates", "run", "--first", "cot"]) == 2
    assert "run has runs of icrl, best-of-n" in capsys.readouterr().err
    assert main(["win-rates", "nowhere"]) == 2
    assert (
        main(
            ["run", "random", "--env", "toy", "--seeds", "1", "--episodes", "1", "--out", "t", "--compare", "tabular", "--json"]
        )
        == 0
    )
    assert main(["win-rates", "t"]) == 2
    assert "toy has no written answers" in capsys.readouterr().err
