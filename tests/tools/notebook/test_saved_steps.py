"""A step of a walk that is saved as a test, and passes when it is run."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.jitrl import build
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.storage.checkpoints import serializer
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.notebook.saved_steps import play_step
from learngraph.tools.notebook.walk import StepperError, start

from langgraph.checkpoint.memory import InMemorySaver  # isort: skip

WORLD = KeywordKeep()


def make() -> Any:
    return build(MethodInputs(environment=WORLD), checkpointer=InMemorySaver(serde=serializer()))


GRAPH = make()


def begun(graph: Any = GRAPH, run: str = "r") -> Any:
    return start(graph, {"task": WORLD.task(0), "run": run, "episode": 0}, run)


def pytest_run(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-c", os.devnull, *args]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_saved_step_passes_until_what_it_does_changes(tmp_path: Path) -> None:
    walk = begun(make(), "saved").until("act").step()
    path = walk.save_test(tmp_path / "test_act.py", graph="test_saved_steps:make")
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""Step 8, act, saved from a walk.')
    done = pytest_run(str(path), folder=tmp_path)
    assert "1 passed" in done.stdout, done.stdout
    path.write_text(text.replace("'step': '1'", "'step': '2'"), encoding="utf-8")
    assert "1 failed" in pytest_run(str(path), folder=tmp_path).stdout


def test_a_step_is_played_on_its_state_alone(tmp_path: Path) -> None:
    walk = begun(run="alone").until("choose").step()
    text = walk.save_test(tmp_path / "t.py", graph=f"{__name__}:make").read_text(encoding="utf-8")
    space: dict[str, Any] = {}
    exec(compile(text, "t.py", "exec"), space)
    assert set(space["CHANGED"]) == {"action", "next"}
    space["test_choose"]()
    assert walk.save_test(tmp_path / "found.py").read_text(encoding="utf-8").count(f"{__name__}:GRAPH") == 2


def test_what_cannot_be_saved_or_played_is_told() -> None:
    with pytest.raises(StepperError, match="no step to save"):
        begun(run="none").save_test("t.py")
    with pytest.raises(StepperError, match="no step to save"):
        begun(run="edit").step().edit(action="wait").save_test("t.py")
    with pytest.raises(StepperError, match=r"no module holds this one: name it with graph='my_module:name'"):
        begun(make(), "own").step().save_test("t.py")
    with pytest.raises(StepperError, match="No module named 'nowhere'"):
        play_step("nowhere:graph", "")
    with pytest.raises(StepperError, match="not a compiled graph"):
        play_step("os:getcwd", "")
    with pytest.raises(StepperError, match="cannot be read"):
        play_step(f"{__name__}:make", "AAAA")
