"""`learngraph tutorial`: the first walk (draw, run, pause, look, edit, go back, learn), in Jupyter or in the terminal.

The text and the code are one notebook, `tutorial.ipynb` beside this file. Where Jupyter is installed and there is a browser, it opens a
copy of it in the present folder. Elsewhere the terminal shows the cells one by one, and runs each in this process when you press Enter.
"""

import ast
import json
import os
import shutil
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax
from tyro.conf import Positional

from ...memory.errors import UserError
from .flags import parse_flags

__all__ = []

SOURCE = Path(__file__).with_name("tutorial.ipynb")


@dataclass(frozen=True)
class TutorialOptions:
    """Options of `learngraph tutorial`: where it is played."""

    folder: Positional[Path] = Path()
    """The folder, made if it is new, that the notebook is copied to, or in which the terminal plays it; your own copy there is never overwritten."""
    terminal: bool = False
    """Use the terminal even where Jupyter is installed."""


def tutorial(args: Sequence[str]) -> int:
    """Open the tutorial, and return the exit status."""
    about = "your first walk: draw an agent, run it, pause, look, edit, go back, and let it learn"
    options = parse_flags(TutorialOptions, args, "learngraph tutorial", about)
    jupyter = None if options.terminal else find_jupyter()
    make_folder(options.folder)
    copy = copy_notebook(options.folder) if jupyter else None
    if jupyter and not find_browser():
        said = (
            f"there is no browser here, so the terminal plays the tutorial; jupyter lab {copy} serves it to a browser elsewhere"
        )
        Console().print(said, markup=False, highlight=False, soft_wrap=True)
        jupyter = None
    if jupyter is None:
        with chdir(options.folder):  # what the cells write lies there
            return play(Console(), interactive=sys.stdin.isatty())
    Console().print(f"opening {copy}; `learngraph tutorial --terminal` plays it here")
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0  # whom Jupyter otherwise refuses
    os.execv(jupyter, [jupyter, "lab", *(["--allow-root"] if is_root else []), str(copy)])


def find_jupyter() -> str | None:
    """The path of `jupyter` with JupyterLab, beside this Python or on the PATH; None if there is none."""
    beside = Path(sys.executable).parent
    places = os.pathsep.join([str(beside), os.environ.get("PATH", "")])
    return shutil.which("jupyter", path=places) if shutil.which("jupyter-lab", path=places) else None


def find_browser() -> bool:
    """True if Python, and so Jupyter, knows a browser here."""
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"learngraph tutorial: the folder {folder} cannot be made ({error.strerror}); name another") from error


def copy_notebook(folder: Path) -> Path:
    """The user's copy of the tutorial in a folder, made if there is none."""
    copy = folder / "learngraph-tutorial.ipynb"
    if not copy.exists():
        shutil.copyfile(SOURCE, copy)
    return copy


@dataclass(frozen=True)
class TutorialCell:
    """A cell of the notebook."""

    text: str
    is_code: bool


def read_cells(path: Path = SOURCE) -> Iterator[TutorialCell]:
    """The cells of a notebook, in order."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        yield TutorialCell("".join(cell["source"]), cell["cell_type"] == "code")


def play(console: Console, interactive: bool) -> int:
    """Show the cells one by one and run their code in this process.

    Args:
        console: the terminal.
        interactive: whether it waits for Enter before each piece of code; `q` ends the tutorial.

    Returns:
        The exit status: 0, or 130 if the user ended it.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in read_cells():
        if not cell.is_code:
            console.print(Markdown(cell.text), "")
            continue
        console.print(Syntax(cell.text, "python", background_color="default", word_wrap=True))
        if interactive and console.input("[dim]Enter runs it, q leaves: [/dim]").strip().lower() == "q":
            return 130
        shown = run_cell(cell.text, names)
        if shown is not None:
            console.print(str(shown), markup=False, highlight=False, soft_wrap=True)
        console.print()
    return 0


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell's code, and return the value of its last line if that is an expression, as notebooks do."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<tutorial>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<tutorial>", "eval"), names) if isinstance(last, ast.Expr) else None
