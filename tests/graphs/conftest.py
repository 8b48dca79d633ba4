"""What tests of the command line share: runs that are played here."""

from pathlib import Path

import pytest
from in_process import play_in_process


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Runs are played in this process, in this directory of the test's own."""
    return play_in_process(monkeypatch, tmp_path)
