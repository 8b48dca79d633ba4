"""Prints the shape of the source, one figure a line: `python tests/shape.py`.

The limits beside the figures are the project's own; tests/test_names.py and tests/test_architecture.py hold most of them.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("graphs", "nodes", "memory", "tools")


def sources() -> list[Path]:
    """All Python files of the four folders."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def room(parts: tuple[str, ...]) -> str:
    """The room that a file lies in: the first folder below the top one, or the file itself."""
    return parts[1].removesuffix(".py")


def arrows(folder: str) -> set[tuple[str, str]]:
    """(room, room that it imports) for the rooms of one of the four folders."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        package = path.relative_to(ROOT).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                above = package[: len(package) - node.level + 1]
                base = (*above, *(node.module.split(".") if node.module else ()))
                for target in [base] if node.module else [(*base, alias.name) for alias in node.names]:
                    if target[0] == folder and len(target) > 1:
                        found.add((room(path.relative_to(ROOT).parts), room(target)))
    return {(one, other) for one, other in found if one != other}


def arrows_up(edges: set[tuple[str, str]]) -> int:
    """How many arrows must go for the rooms to lie on floors: those that close a circle, found depth first."""
    closing: set[tuple[str, str]] = set()
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        for source, target in sorted(edges):
            if source == name and target in trail:
                closing.add((source, target))
            elif source == name and target not in done:
                visit(target, (*trail, target))
        done.add(name)

    for name in sorted({source for source, _ in edges}):
        if name not in done:
            visit(name, (name,))
    return len(closing)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def main() -> None:
    """Print the figures."""
    files = sources()
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    long_functions = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in files
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno + 1 > 60
    ]
    long_graphs = [
        str(path.relative_to(ROOT)) for path in files if path.relative_to(ROOT).parts[0] == "graphs" and lengths[path] > 400
    ]
    rows: list[tuple[str, object]] = [
        *((f"files at the top of {folder}/", len(list((ROOT / folder).glob("*.py")))) for folder in ("graphs", "nodes")),
        *((f"imports between rooms of {folder}/", len(arrows(folder))) for folder in FOLDERS),
        *((f"  of these back up in {folder}/", arrows_up(arrows(folder))) for folder in FOLDERS),
        ("functions of more than 60 lines", long_functions or 0),
        ("files of graphs/ with more than 400 lines", long_graphs or 0),
        ("lines of README.md", len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())),
        ("source files", len(files)),
        ("lines of source", sum(lengths.values())),
    ]
    sys.stdout.write("".join(f"{name:<45}{value}\n" for name, value in rows))


if __name__ == "__main__":
    main()
