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


def test_every_listed_environment_opens_under_its_name() -> None:
    for spec in ENVIRONMENTS:
        if not spec.endswith((":GAME", ":TASK")):
            assert open_environment(spec).name.partition("?")[0] == spec


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
    ],
)
def test_a_wrong_spec_is_said_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        open_environment(spec)
    assert "\n" not in str(raised.value)


def test_naming_the_environments_imports_none_of_their_packages(tmp_path: Path) -> None:
    code = (
        "import sys, learngraph.tools.environments.catalogue as c; c.open_environment('twx:coin'); "
        "print([m for m in ('textworld_express', 'py4j', 'jericho', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
