"""The tutorial: one notebook, which Jupyter opens as a copy, and which the terminal plays cell by cell."""

import io
import json
import webbrowser
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from forks import run_python
from rich.console import Console

from learngraph.graphs.cli import tutorial as module
from learngraph.graphs.cli.tutorial import SOURCE, copy_notebook, find_jupyter, play, read_cells, tutorial
from learngraph.memory.errors import UserError


@pytest.mark.slow
def test_the_terminal_plays_it_from_top_to_bottom() -> None:
    ran = run_python("-m", "learngraph", "tutorial", "--terminal")
    assert ran.returncode == 0, ran.stderr
    assert "Your first walk" in ran.stdout
    assert "object at 0x" not in ran.stdout  # pictures are shown as their drawings
    for shown in (
        "no arrow leaves 'learn'; draw 'learn --> END'",
        "first run | second run",
        "act -->|over| learn --> END",
        "last ten episodes",
    ):
        assert shown in ran.stdout, shown


def test_enter_runs_a_cell_and_q_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = tmp_path / "short.ipynb"
    cells = [("markdown", "# Hello"), ("code", "x = 6\nx * 7"), ("code", "raise SystemError('never run')")]
    short.write_text(json.dumps({"cells": [{"cell_type": kind, "source": [text]} for kind, text in cells]}))
    monkeypatch.setattr(module, "read_cells", lambda: read_cells(short))
    answers = iter(["", "q"])
    console = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(console, "input", lambda prompt: next(answers))
    assert play(console, interactive=True) == 130
    assert "42" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_terminal_plays_in_the_folder_that_was_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, seen = Path.cwd(), list[Path]()
    monkeypatch.setattr(module, "play", lambda console, interactive: seen.append(Path.cwd()) or 0)
    new = tmp_path / "new" / "folder"
    assert tutorial([str(new), "--terminal"]) == 0
    assert tutorial(["--terminal"]) == 0
    assert [path.resolve() for path in seen] == [new.resolve(), before.resolve()]
    assert Path.cwd() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"the folder .*file cannot be made \(File exists\); name another"):
        tutorial([str(tmp_path / "file"), "--terminal"])


def test_the_users_copy_is_never_overwritten(tmp_path: Path) -> None:
    copy = copy_notebook(tmp_path)
    assert copy.read_bytes() == SOURCE.read_bytes()
    copy.write_text("mine")
    assert copy_notebook(tmp_path).read_text() == "mine"


@pytest.mark.parametrize(("user", "more"), [(1000, []), (0, ["--allow-root"])])
def test_jupyter_is_opened_where_it_is_installed(
    user: int, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: user)
    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_jupyter() is None
    for name in ("jupyter", "jupyter-lab"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(module, "find_browser", lambda: True)
    started = list[list[str]]()

    def execute(path: str, args: list[str]) -> None:
        started.append([path, *args])
        raise SystemExit(0)

    monkeypatch.setattr(module.os, "execv", execute)
    with pytest.raises(SystemExit):
        tutorial([str(tmp_path)])
    jupyter = str(tmp_path / "jupyter")
    assert started == [[jupyter, jupyter, "lab", *more, str(tmp_path / "learngraph-tutorial.ipynb")]]


def test_without_a_browser_the_terminal_plays_it_and_says_how_jupyter_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "find_jupyter", lambda: "/bin/jupyter")
    monkeypatch.setattr(module, "play", lambda console, interactive: 7)
    monkeypatch.setattr(webbrowser, "_tryorder", list[str]())
    monkeypatch.setattr(webbrowser, "_browsers", dict[str, object]())
    assert tutorial([str(tmp_path)]) == 7
    copy = tmp_path / "learngraph-tutorial.ipynb"
    said = " ".join(capsys.readouterr().out.split())
    assert (
        said
        == f"there is no browser here, so the terminal plays the tutorial; jupyter lab {copy} serves it to a browser elsewhere"
    )
    assert copy.exists()


def test_what_the_tutorial_forgets_is_an_arrow() -> None:
    names: dict[str, object] = {}
    text = ""
    for cell in read_cells():
        if cell.is_code:
            if "mistake" in cell.text:
                shown = io.StringIO()
                with redirect_stdout(shown):
                    exec(cell.text, names)
                assert "forget an arrow" in text
                assert shown.getvalue() == "no arrow leaves 'learn'; draw 'learn --> END' if the graph ends there\n"
                return
            exec(cell.text, names)
        text = cell.text
    raise AssertionError("no cell shows a mistake")
