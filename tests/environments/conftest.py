"""Where the games of ALFWorld are."""

from __future__ import annotations

import os
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).parents[3] / "shared" / "data" / "alfworld_games.tar.xz"


@pytest.fixture(scope="session")
def alfworld_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with games: the user's, or some of an archive beside the checkout (1 s to read through)."""
    missing = [package for package in ("textworld", "fast_downward", "alfworld") if find_spec(package) is None]
    if missing:
        pytest.skip(f'NOT TESTED: no {", ".join(missing)} (pip install "textworld[pddl]" alfworld)')
    if os.environ.get("ALFWORLD_DATA"):
        return Path(os.environ["ALFWORLD_DATA"])
    if not ARCHIVE.is_file():
        pytest.skip("NOT TESTED: no games (set ALFWORLD_DATA to the folder that alfworld-download fills)")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(ARCHIVE, "r|xz") as archive:
        seen = 0
        for member in archive:
            seen += member.isfile()
            if member.isfile() and ("/valid_seen/" in member.name or seen % 40 == 0):
                archive.extract(member, folder, filter="data")
    return folder
