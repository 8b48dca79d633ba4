"""The README's Python blocks run as they stand, one after another, in an empty directory."""

import re
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, names)
    scores = names["played"]["scores"]
    assert len(scores) == 20
    assert sum(scores[-5:]) > sum(scores[:5]) + 5, "the README's agent learns"
    assert "[" in capsys.readouterr().out


def test_the_flow_shown_is_the_flow_run() -> None:
    from learngraph.graphs.jitrl import FLOW
    from learngraph.graphs.wiring.flow import parse_flow

    shown = re.search(r"^```mermaid\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert parse_flow(shown.group(1)) == parse_flow(FLOW)


def test_every_file_that_is_linked_exists() -> None:
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (root / target).exists(), target
