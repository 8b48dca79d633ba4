"""The methods by name keep one convention: how they are built, and what the harness may ask of their settings."""

import re
import subprocess
import sys
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path

import pytest
from scripted_chat import ScriptedChat

from learngraph.graphs import methods
from learngraph.graphs.arms import blueprint
from learngraph.graphs.methods import METHODS, MethodSettings
from learngraph.graphs.wiring.inputs import MethodInputs, WritingStyle
from learngraph.tools.environments.keyword_keep import KeywordKeep

ROOT = Path(__file__).parents[2]
OPTIONAL = set(MethodSettings.__annotations__)
"""Names of what settings may offer."""


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_built_from_inputs_and_settings(name: str) -> None:
    """`build(inputs, settings=None, *, ..., **compile)`."""
    inputs, settings, *others = signature(METHODS[name].build).parameters.values()
    assert (inputs.name, settings.name, settings.default) == ("inputs", "settings", None)
    assert others[-1].kind == Parameter.VAR_KEYWORD
    assert all(one.kind == Parameter.KEYWORD_ONLY and one.default is not Parameter.empty for one in others[:-1])


@pytest.mark.parametrize(
    "name", ["jitrl", "icrl", "best-of-n", "react", "static", "random", "tabular", "prompt-update", "memory"]
)
def test_an_environment_is_enough(name: str) -> None:
    """Every other input has a default that works."""
    world = KeywordKeep()
    out = METHODS[name].build(MethodInputs(environment=world)).invoke({"task": world.task(0), "run": "r", "episode": 0})
    assert out["step"] > 0


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if hasattr(method.settings, "cross_task")])
def test_a_method_whose_tasks_share_a_memory_is_drawn_without_a_world(name: str) -> None:
    assert blueprint(f"{name}?cross_task=true").get_graph().nodes


@pytest.mark.parametrize("name", METHODS)
def test_settings_keep_to_what_is_written_down(name: str) -> None:
    """All fields have defaults, and what settings may offer has its type."""
    settings = METHODS[name].settings()
    assert isinstance(getattr(settings, "remark", ""), str)
    assert isinstance(getattr(settings, "bank", ""), str)
    assert isinstance(getattr(settings, "cross_task", False), bool)
    assert set(methods.shared_fields(type(settings))) <= {one.name for one in fields(settings)}


def test_the_harness_asks_of_settings_what_is_written_down_and_nothing_else() -> None:
    asked = set()
    for name in ("arms.py", "cli/**/*.py", "experiments/**/*.py"):
        for path in (ROOT / "graphs").glob(name):
            asked |= set(re.findall(r'getattr\((?:\w+\.)*settings, "(\w+)"', path.read_text(encoding="utf-8")))
    assert {"bank", "remark"} <= asked
    assert asked <= OPTIONAL


def test_the_fields_that_comparisons_share() -> None:
    marked = {name: set(methods.shared_fields(method.settings)) for name, method in METHODS.items()}
    memory = {"bank", "k", "success_threshold", "online", "cross_task", "temperature"}
    assert marked["synapse"] == marked["reasoning-bank"] == memory
    assert marked["adamem"] == memory | {"history_steps"}
    assert marked["jitrl"] == marked["prompt-update"] == {"k", "cross_task", "only_other_tasks", "temperature"}
    assert marked["react"] == {"history_steps", "temperature"}
    assert marked["cot"] == marked["tabular"] == set()


def test_a_style_says_how_a_model_that_writes_is_asked() -> None:
    """One action a step here; the prompt is the style's, and so is the line with the vote."""
    model = ScriptedChat(replies=["I am sure.\nMemory: yes\nAction: back"])
    inputs = MethodInputs.with_chat_model(KeywordKeep(), MethodInputs(KeywordKeep()).journal, model)
    assert inputs.make_writing_policy is not None
    view = lambda state: {"brief": "", "instruction": "go", "steps": "", "observation": "here"}  # noqa: E731
    policy = inputs.acting_policy(view, WritingStyle("adamem/consider", vote_mark="Memory"))
    world = KeywordKeep()
    state = {
        "task": world.task(0),
        "run": "r",
        "episode": 0,
        "step": 0,
        "head": "",
        "observation": world.observe(world.task(0), ()),
    }
    proposed = policy.invoke(state)  # type: ignore[union-attr]
    assert policy.asks == "adamem/consider"  # type: ignore[union-attr]
    assert proposed["vote"] is True
    assert [candidate.action for candidate in proposed["candidates"]] == ["back"]


@pytest.mark.slow
def test_static_imports_little_of_the_project() -> None:
    """What one method alone needs is imported by that method, so that the smallest baseline stands on few files."""
    code = (
        "import sys, learngraph.graphs.baselines.static\n"
        "print(*sorted(n for n, m in sys.modules.items() if n.startswith('learngraph.') and m.__file__ and '__init__' not in m.__file__))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    imported = ran.stdout.split()
    assert len(imported) <= 41, f"a file more? import it where it is needed: {imported}"
    assert not {
        name
        for name in imported
        if name.startswith(("learngraph.tools", "learngraph.graphs.agents", "learngraph.graphs.studio"))
    }
