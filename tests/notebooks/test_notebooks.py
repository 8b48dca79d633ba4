"""The notebooks run from top to bottom, and hold no logic of their own."""

import ast
from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.cli.tutorial import SOURCE

NOTEBOOKS = [SOURCE, *sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))]
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
SOONER = "tutorial.ipynb"
"""The others take 20 seconds to a minute and a half each: their turn comes with all tests."""


def read(path: Path) -> Any:
    import nbformat  # seconds

    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if path.name == SOONER else pytest.mark.long, id=path.name)
        for path in NOTEBOOKS
    ],
)
def test_it_runs_without_an_error(path: Path) -> None:
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(read(path), timeout=900, kernel_name="python3", allow_errors=False, resources=resources).execute()


@each
def test_it_defines_no_functions_and_shows_its_outputs(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    for cell in cells:
        defined = [
            n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        assert not defined, f"{defined[0].name} belongs in the package, not in a notebook"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from top to bottom, then commit"
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", {})}
    assert kinds >= ({"image/svg+xml"} if path.name == "tutorial.ipynb" else {"image/png", "image/svg+xml"})
    errors = [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert not errors


@each
def test_its_outputs_name_no_place_on_the_machine_that_made_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not any(place in text for place in ("/home/", "/work/", "/root/", "/tmp/", "site-packages"))
    assert '"_esm"' not in text, "a widget's program grows old in a file: clear the widgets' state, and leave the still picture"
