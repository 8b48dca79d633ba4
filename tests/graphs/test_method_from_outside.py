"""A sixth method from outside of the package (tests/support/rest_method.py), which touches nothing inside. And a template.

A new method's tests show, in this order (copy this file, and put your module in the place of `rest_method`):

1. its own piece of arithmetic or choice, on numbers worked out by hand;
2. that its drawing is its wiring (`learngraph draw`);
3. that it learns on the toy world, and that it does so through what it adds: without that, it stays where it was;
4. that a run which was cut off and resumed has the numbers of one which was not;
5. that the real command line runs it and compares it.
"""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import rest_method
from forks import run_python

from learngraph.graphs import methods
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.flow import read_flow
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.attempts.buffer import Buffer
from learngraph.memory.errors import UserError
from learngraph.memory.records import Candidate, Task, Trajectory, Transition
from learngraph.memory.storage.checkpoints import open_checkpoints
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep()
SUPPORT = Path(__file__).parents[1] / "support"
COMMAND = ["rest_method:METHOD", "--env", "toy", "--prior", "uniform", "--seeds", "1", "--workers", "1"]


def learngraph(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The real command, in a folder of its own; the module of the method lies on PYTHONPATH."""
    found = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(SUPPORT)]))
    return run_python("-m", "learngraph", *args, folder=cwd, environment={**os.environ, "PYTHONPATH": found})


# 1. The choice of its own


@pytest.mark.parametrize(
    ("returns", "shown"),
    [([], []), ([1], []), ([1, 3], ["r/1"]), ([1, None, 3, 2], ["r/2"]), ([2, 2, 2], []), ([5, 1, 4, 2], ["r/0", "r/2"])],
)
def test_attempts_above_the_median_are_shown(returns: list[float | None], shown: list[str]) -> None:
    """Median of (1, 3): 2; of (1, 3, 2): 2; of (5, 1, 4, 2): 3. A missing return counts for nothing."""
    task, buffer = TOY.task(0), Buffer()
    for episode, value in enumerate(returns):
        steps = (Transition("here", "back", value),)
        buffer.add(Trajectory(f"r/{episode}", task, steps, "r", episode, 0.0, TOY.name))
    chosen = rest_method.FilterAttempts(buffer, max_attempts=8)({"run": "r", "task": task, "episode": len(returns)})  # type: ignore[typeddict-item]
    assert [one.id for one in chosen["shown"]] == shown


# 2. The drawing


@pytest.mark.slow
def test_the_drawing_is_the_wiring(tmp_path: Path) -> None:
    done = learngraph("draw", "rest_method:METHOD", "-o", "rest.mmd", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(read_flow((tmp_path / "rest.mmd").read_text()).edges) == set(read_flow(rest_method.FLOW).edges)


# 3. It learns, and by what it adds


class Imitator:
    """A policy that likes the actions that earned something at the present place, as far as its prompt tells."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __call__(self, state: Any) -> dict[str, Any]:
        here, lines = state["observation"], self.view(state)["steps"].splitlines()
        place = here.text.strip().partition("\n")[0]
        rows = zip(lines, lines[1:], lines[2:], strict=False)  # a place, `> action`, `= reward`
        paid = {action[2:] for at, action, reward in rows if at == place and reward.startswith("= ") and float(reward[2:]) > 0}
        return {"candidates": [Candidate(action, 4.0 if action in paid else 0.0) for action in here.actions]}


def play(inputs: MethodInputs, name: str, task: Task, episodes: int = 12) -> list[float]:
    plan = {"task": task, "run": name, "episode": 0, "episodes": episodes}
    scores: list[float] = run.build(merge_steps(rest_method.build(inputs))).invoke(plan)["scores"]
    return scores


@pytest.mark.slow
def test_it_learns_by_the_attempts_that_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that imitates its prompt, 5 tasks, scores of at most 10: with the filter it rises, with empty prompts it does not."""

    def late() -> float:
        ends = [play(MethodInputs(TOY, make_policy=Imitator), f"r{seed}", TOY.task(seed))[-4:] for seed in range(5)]
        return sum(map(sum, ends)) / 20

    learned = late()
    monkeypatch.setattr(rest_method.FilterAttempts, "__call__", lambda self, state: {"shown": [], "mode": ""})
    assert learned > late() + 5


# 4. Resumed


def test_a_run_that_was_cut_off_has_the_same_numbers(tmp_path: Path) -> None:
    plan = {"task": TOY.task(0), "run": "r", "episode": 0, "episodes": 5}
    whole = run.build(rest_method.build(MethodInputs(TOY, make_policy=Imitator))).invoke(plan)["scores"]
    config: Any = {"configurable": {"thread_id": "t"}}
    journal, log = tmp_path / "steps.jsonl", tmp_path / "episodes.jsonl"
    with open_checkpoints(tmp_path / "checkpoints.sqlite") as saver, closing(Rows(log)) as rows:
        episode = rest_method.build(MethodInputs(TOY, Journal(journal), make_policy=Imitator))
        graph = run.build(episode, rows, checkpointer=saver)
        graph.invoke(plan, config, interrupt_after=["tally"])
        assert graph.get_state(config).values["scores"] == whole[:1]
        graph.invoke(None, config, interrupt_after=["tally"])
        assert graph.invoke(None, config)["scores"] == whole


# 5. The command line


@pytest.mark.long
def test_the_command_line_runs_resumes_and_compares_it(tmp_path: Path) -> None:
    """`temperature` is marked as shared, and icrl has it, too; `max_attempts` is not, and stays the method's own."""
    knobs = ["--max-attempts", "3", "--temperature", "0.5"]
    others = ["--compare", "icrl", "rest_method:METHOD:greedy"]
    command = ["run", *COMMAND, "--episodes", "4", *knobs, *others, "--out", "out", "--json"]
    done = learngraph(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["method"] for row in rows] == ["rest_method:METHOD", "icrl", "rest_method:METHOD:greedy"]
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())["methods"]
    assert settings["rest_method:METHOD"] == {"max_attempts": 3, "temperature": 0.5}
    assert settings["icrl"]["temperature"] == 0.5
    assert settings["rest_method:METHOD:greedy"] == {"max_attempts": 8, "temperature": 0.0}
    for left in (tmp_path / "out").rglob("result.json"):
        left.unlink()
    again = learngraph(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout


# Names


def test_a_method_of_ones_own_is_found_by_module_and_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert methods.find_method("rest_method:METHOD") is rest_method.METHOD
    assert methods.find_method("rest_method:METHOD:greedy") is rest_method.METHOD
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "rest.py").write_text("from rest_method import METHOD")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert methods.find_method("my_package.rest:METHOD") is rest_method.METHOD


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jitrl", ("jitrl", "")),
        ("jitrl:paper", ("jitrl", "paper")),
        ("a.b:METHOD", ("a.b:METHOD", "")),
        ("a.b:METHOD:strict", ("a.b:METHOD", "strict")),
        ("nothing", ("nothing", "")),
    ],
)
def test_a_name_is_a_method_and_a_preset(name: str, parts: tuple[str, str]) -> None:
    assert methods.split_name(name) == parts


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jitrrl", "no method is called 'jitrrl'; did you mean jitrl.$"),
        ("jitrrl:paper", "asks for the method paper of the module jitrrl, which cannot be imported .*jitrl"),
        ("rest_method:NONE", "rest_method has nothing of that name; it has rest_method:METHOD"),
        ("rest_method:ReST", "rest_method has the class ReST of that name; it has rest_method:METHOD"),
        ("keyword:iskeyword", r"keyword has a .* of that name; write iskeyword = Method\(summary, settings, build\) there"),
        ("a b:c", "no method is called 'a b:c'"),
        ("./my_app.py", "no method is called './my_app.py'; of a file say also the name in it, such as ./my_app.py:graph$"),
    ],
)
def test_a_wrong_name_is_answered_with_what_would_do(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        methods.find_method(name)
