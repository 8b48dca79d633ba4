"""Environments by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.environments.catalogue import ENVIRONMENTS, open_environment
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.text_world_express import TextWorldExpress


@pytest.mark.parametrize(
    "spec", [spec for spec in ENVIRONMENTS if not spec.endswith((":GAME", ":TASK", ":TASK_ID", ":TYPE", ":NAME"))]
)
def test_every_listed_environment_opens_under_its_name(spec: str) -> None:
    if spec in ("hotpot", "webshop", "browser:shop"):
        pytest.importorskip("bm25s", reason="NOT TESTED: pip install bm25s")
    if spec == "math":
        pytest.importorskip("math_verify", reason="NOT TESTED: pip install math-verify")
    assert open_environment(spec).name.partition("?")[0] == spec


@pytest.mark.parametrize(
    ("spec", "name", "horizon"),
    [
        ("alfworld:pick_two_obj_and_place?data=nowhere", "alfworld", 20),
        ("alfworld?split=valid_unseen", "alfworld", 20),
        ("hotpot?source=own,split=dev", "hotpot?source=own,split=dev", 20),
        ("webshop?products=48,seed=3", "webshop?products=48,seed=3", 20),
        ("tau2:telecom?policy=manual", "tau2:telecom?policy=manual", 20),
        ("bfcl:miss_func", "bfcl:miss_func", 20),
    ],
)
def test_settings_of_the_newer_environments_reach_them(spec: str, name: str, horizon: int) -> None:
    if spec.startswith(("hotpot", "webshop")):
        pytest.importorskip("bm25s", reason="NOT TESTED: pip install bm25s")
    env = open_environment(spec, horizon)
    assert (env.name, env.horizon) == (name, horizon)


def test_settings_reach_the_math_problems(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="NOT TESTED: pip install math-verify")
    file = tmp_path / "two.jsonl"
    file.write_text('{"problem": "1+1?", "answer": 2}\n{"problem": "1+2?", "answer": 3}\n', encoding="utf-8")
    env = open_environment(f"math?file={file},split=dev,limit=1", 2)
    assert env.horizon == 2
    assert env.name.startswith("math?file=two-")
    assert env.name.endswith(",split=dev,limit=1")
    assert env.task(0, "dev").instruction.startswith("1+1?")


@pytest.mark.slow
def test_settings_reach_a_generator() -> None:
    pytest.importorskip("reasoning_gym", reason="NOT TESTED: pip install reasoning-gym")
    drawn = open_environment("reasoning:chain_sum?min_terms=4,max_terms=4")
    assert drawn.name == "reasoning:chain_sum?max_terms=4,min_terms=4"
    assert drawn.task(0).instruction.count(" + ") + drawn.task(0).instruction.count(" - ") == 3
    drawn.close()


def test_settings_and_horizon_reach_the_environment() -> None:
    env = open_environment("twx:coin?numLocations=11,includeDoors=0", horizon=20)
    assert isinstance(env, TextWorldExpress)
    assert (env.params["numLocations"], env.params["includeDoors"], env.horizon) == ("11", "0", 20)
    toy = open_environment("toy", horizon=12)
    assert isinstance(toy, KeywordKeep)
    assert toy.horizon == 12


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("twx:cookingwrld", r"no environment 'twx:cookingwrld'; did you mean twx:cookingworld\?; there are toy"),
        ("webshp", r"no environment 'webshp'; did you mean webshop\?"),
        ("atari", r"no environment 'atari'; there are toy, twx:coin, .*jericho:GAME"),
        ("twx:chess", r"no environment 'twx:chess'.*; there are toy"),
        ("twx:coin?doors", r"cannot read the setting 'doors'; expected name=value"),
        ("toy?rooms=3", r"no setting 'rooms'; it has none"),
        ("jericho:detective?roms=x", r"no setting 'roms'; it has games, cache"),
        ("alfworld?games=x", r"no setting 'games'; it has data, split"),
        ("alfworld:", r"no environment 'alfworld:'; did you mean alfworld\?; there are toy"),
        ("alfworld:chess", r"no task type 'chess'; there are look_at_obj_in_light, .*pick_two_obj_and_place"),
        ("hotpot?path=x", r"no setting 'path'; it has source, file, split, listed"),
        ("math?path=x", r"no setting 'path'; it has file, split, limit"),
        ("math?file=nowhere.jsonl", r"math: cannot read nowhere.jsonl"),
        ("reasoning:", r"no environment 'reasoning:'; there are toy"),
        ("reasoning:codeio", r"codeio cannot be used: it does not draw the same problem from the same seed"),
        ("webshop?goods=3", r"no setting 'goods'; it has products, seed"),
    ],
)
def test_a_wrong_spec_is_said_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        open_environment(spec)
    assert "\n" not in str(raised.value)


def test_naming_the_environments_imports_none_of_their_packages(tmp_path: Path) -> None:
    packages = (
        "textworld_express py4j jericho numpy torch textworld alfworld bm25s math_verify sympy reasoning_gym datasets yaml playwright "
        "tau2 bfcl_eval loguru pandas langchain"
    )
    code = (
        "import sys, importlib.util, learngraph.tools.environments.catalogue as c; c.open_environment('twx:coin'); "
        "c.open_environment('tau2:telecom'); c.open_environment('bfcl:base'); "
        "importlib.util.find_spec('miniwob') and c.open_environment('miniwob:click-test-2'); "
        "c.open_environment('alfworld'); importlib.util.find_spec('math_verify') and c.open_environment('math'); "
        f"print([m for m in '{packages}'.split() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
