"""Environments by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from learngraph.memory.records import UserError
from learngraph.tools.environments.catalogue import ENVIRONMENTS, open_environment
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.text_world_express import TextWorldExpress


@pytest.mark.parametrize("spec", [spec for spec in ENVIRONMENTS if not spec.endswith((":GAME", ":TASK", ":TYPE"))])
def test_every_listed_environment_opens_under_its_name(spec: str) -> None:
    if spec in ("hotpot", "webshop"):
        pytest.importorskip("bm25s", reason="NOT TESTED: pip install bm25s")
    assert open_environment(spec).name.partition("?")[0] == spec


@pytest.mark.parametrize(
    ("spec", "name", "horizon"),
    [
        ("alfworld:pick_two_obj_and_place?data=nowhere", "alfworld", 20),
        ("alfworld?split=valid_unseen", "alfworld", 20),
        ("hotpot?source=own,results=5", "hotpot?source=own,results=5", 20),
        ("webshop?products=48,seed=3", "webshop?products=48,seed=3", 20),
    ],
)
def test_settings_of_the_newer_environments_reach_them(spec: str, name: str, horizon: int) -> None:
    if not spec.startswith("alfworld"):
        pytest.importorskip("bm25s", reason="NOT TESTED: pip install bm25s")
    env = open_environment(spec, horizon)
    assert (env.name, env.horizon) == (name, horizon)


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
        ("atari", r"no environment 'atari'; there are toy, twx:coin, .*jericho:GAME"),
        ("twx:chess", r"no environment 'twx:chess'; there are toy"),
        ("twx:coin?doors", r"cannot read the setting 'doors'; expected name=value"),
        ("toy?rooms=3", r"no setting 'rooms'; it has none"),
        ("jericho:detective?roms=x", r"no setting 'roms'; it has games, cache"),
        ("alfworld?games=x", r"no setting 'games'; it has data, split"),
        ("alfworld:", r"no environment 'alfworld:'; there are toy"),
        ("alfworld:chess", r"no task type 'chess'; there are look_at_obj_in_light, .*pick_two_obj_and_place"),
        ("hotpot?path=x", r"no setting 'path'; it has source, file, split, results, sentences, listed"),
        ("webshop?goods=3", r"no setting 'goods'; it has products, seed"),
    ],
)
def test_a_wrong_spec_is_said_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        open_environment(spec)
    assert "\n" not in str(raised.value)


def test_naming_the_environments_imports_none_of_their_packages(tmp_path: Path) -> None:
    code = (
        "import sys, learngraph.tools.environments.catalogue as c; c.open_environment('twx:coin'); "
        "c.open_environment('alfworld'); "
        "print([m for m in ('textworld_express', 'py4j', 'jericho', 'numpy', 'torch', 'textworld', 'alfworld', 'bm25s') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
