"""What all tests share: settings of the process, and where the games of ALFWorld are.

One BLAS thread per process: more only take turns on a small machine, and make sums depend on scheduling.
"""

import os
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A busy machine is no reason to fail; the same examples each time, so that a failure can be repeated.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "alfworld_games.tar.xz"


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
            if member.isfile() and ("/valid_seen/" in member.name or seen % 30 == 0):
                archive.extract(member, folder, filter="data")
    return folder
