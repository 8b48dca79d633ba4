"""What pages, notebooks and errors tell to install is what they need: extras exist, and hold the packages that are used."""

import json
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from learngraph.tools.environments.catalogue import FAMILIES

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
BROUGHT = {"ipython", "openai"}
"""Packages that ipykernel and langchain-openai bring."""
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WORLDS = {"twx:": "worlds", "alfworld": "benchmarks", "math": "worlds", "hotpot": "worlds", "webshop": "worlds"}
"""Beginning of a world's name -> the extra that it needs."""
FILES = [
    path
    for pattern in ("*.md", "*/**/*.md", "*/**/*.py", "notebooks/*.ipynb", "Makefile")
    for path in ROOT.glob(pattern)
    if path.parts[len(ROOT.parts)] in ("README.md", "Makefile", "graphs", "memory", "nodes", "tools", "notebooks")
]


def package(requirement: str) -> str:
    """The normalised name of a requirement."""
    return re.split(r"[\[<>=!~ ]", requirement.strip("'\"`"))[0].lower().replace("_", "-")


owners_of_modules = cache(packages_distributions)
"""Module -> the packages that install it; they are read once for all notebooks."""


def installed(extras: str) -> set[str]:
    """The packages of the project with these extras, joined by commas."""
    asked = [*PROJECT["dependencies"], *(one for extra in extras.split(",") for one in EXTRAS[extra])]
    return {package(one) for one in asked}


def test_every_extra_that_is_named_exists() -> None:
    named = {
        (path.name, extra)
        for path in FILES
        for found in re.findall(r"(?:pip install[^\n`]*\.|learngraph)\[([a-z,]+)\]", path.read_text(encoding="utf-8"))
        for extra in found.split(",")
    }
    assert len(named) > 6
    assert {one for one in named if one[1] not in EXTRAS} == set()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_installs_what_it_imports_and_opens(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code, prose = (
        "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind) for kind in ("code", "markdown")
    )
    (extras,) = re.findall(r"pip install -e '\.\[([a-z,]+)\]'", prose)
    there, owners = installed(extras), owners_of_modules()
    for module in set(re.findall(r"^\s*(?:from|import) (\w+)", code, re.MULTILINE)) - {"learngraph"}:
        needed = {package(name) for name in owners.get(module, [])} - BROUGHT
        assert module in sys.stdlib_module_names or not needed or needed & there, module
    for opened in re.findall(r'open_environment\("([^"]+)"', code):
        extra = next((extra for name, extra in WORLDS.items() if opened.startswith(name)), "")
        assert not extra or extra in extras.split(","), opened


def test_packages_that_worlds_ask_for_are_those_of_the_extras() -> None:
    known = {package(one) for extra in EXTRAS.values() for one in extra} | installed("worlds")
    asked = {
        package(name)
        for family in FAMILIES.values()
        for line in re.findall(r"pip install ((?!--no-deps)[^&;]+)", family.install)
        for name in line.replace("'", "").replace('"', "").split()
    }
    assert len(asked) > 5
    assert asked - known - {"browsergym-webarena", "mpmath"} == set()


def test_there_are_at_most_twelve_extras() -> None:
    assert len(EXTRAS) <= 12
