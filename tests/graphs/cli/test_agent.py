"""`learngraph run METHOD --agent`: an agent from outside, its tasks from a file, its rewards by a function."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import help_desk as desk
import pytest

from learngraph.graphs.cli.main import main

APP = """
import help_desk as desk
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver


def make_agent(middleware, seed):
    tools = [desk.lookup_order, desk.resolve]
    return create_agent(desk.GuessingClerk(seed=seed), tools, middleware=middleware, checkpointer=InMemorySaver())


def reward(task, messages):
    return desk.reward(messages, task.reference)


key, number = desk.issue, 3
"""
FLAGS = "run jitrl --agent support_app:make_agent --tasks tasks.jsonl --reward support_app:reward"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "support_app.py").write_text(APP)
    rows = [{"id": f"t{n}", "messages": desk.ticket(n)[0], "reference": desk.ticket(n)[1]} for n in range(24)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield tmp_path
    sys.modules.pop("support_app", None)


@pytest.mark.slow
def test_it_prints_how_far_the_method_is_ahead(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                *FLAGS.split(),
                "--decide",
                "resolve",
                "--state-key",
                "support_app:key",
                "--seeds",
                "2",
                "--control",
                "--out",
                "out.jsonl",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert printed.startswith("support_app:make_agent, 24 tasks, 2 seeds; first and last 25% of the tasks")
    shown = {line.split("|")[1].strip(): line for line in printed.splitlines() if line.startswith("| ")}
    assert {"none", "jitrl", "shuffled"} < shown.keys()
    rows = [json.loads(line) for line in (app / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * 2 * 24
    last: dict[str, list[float]] = {
        arm: [row["reward"] for row in rows if row["arm"] == arm and row["position"] >= 18] for arm in ("none", "jitrl")
    }
    assert sum(last["jitrl"]) > sum(last["none"]) + 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (f"{FLAGS}", "name the tools that are decisions with --decide"),
        (f"{FLAGS} --decide resolve --seeds 0", "--seeds is at least 1, got 0"),
        (f"{FLAGS} --decide resolve --part 0", "--part is a share above 0"),
        (FLAGS.replace("tasks.jsonl", "other.jsonl") + " --decide resolve", "other.jsonl: cannot be read"),
        (FLAGS.replace("tasks.jsonl", "bad.jsonl") + " --decide resolve", "bad.jsonl, line 1: asked for"),
        (FLAGS.replace(":make_agent", ":maker") + " --decide resolve", "support_app has nothing called 'maker'"),
        (FLAGS.replace(":make_agent", ":number") + " --decide resolve", "support_app:number is a int"),
        (FLAGS.replace("run jitrl", "run tabular"), "--agent is for methods with a middleware"),
    ],
)
def test_mistakes_are_one_line(flags: str, says: str, app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (app / "bad.jsonl").write_text('{"id": 1}\n')
    assert main(flags.split()) == 2
    assert says in capsys.readouterr().err
