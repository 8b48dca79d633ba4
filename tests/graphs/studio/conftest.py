"""What tests of the studio share."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def app_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's app: the working directory, whose modules may be imported until the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path
