"""The shape of the source, one figure a line, and the ceilings that it must stay under: `python tests/shape.py`.

A ceiling is raised in a commit of its own, which says what was bought with it. `test_shape.py` runs this with the quick tests.
"""

import ast
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("graphs", "nodes", "memory", "tools")

LINES: Mapping[str, int] = {"source": 88_043, "tests": 75_458}
"""Most lines of Python in the four folders, and in tests."""
ROOMS: Mapping[str, int] = {
    "graphs": 2_168,
    "graphs/agents": 8_559,
    "graphs/baselines": 1_669,
    "graphs/cli": 2_982,
    "graphs/experiments": 7_620,
    "graphs/presets": 108,
    "graphs/serving": 2_514,
    "graphs/studio": 2_224,
    "graphs/wiring": 5_085,
    "memory": 1_514,
    "memory/attempts": 653,
    "memory/claas": 2_803,
    "memory/conversations": 3_420,
    "memory/lessons": 1_351,
    "memory/returns": 1_058,
    "memory/search": 1_506,
    "memory/storage": 3_016,
    "nodes": 2_913,
    "nodes/act": 1_921,
    "nodes/evaluate": 864,
    "nodes/extract": 2_041,
    "nodes/learn": 1_664,
    "nodes/retrieve": 2_193,
    "nodes/synthesize": 1_329,
    "nodes/update": 2_078,
    "tools/agent_tools": 1_397,
    "tools/environments": 8_923,
    "tools/local": 3_623,
    "tools/models": 931,
    "tools/notebook": 1_890,
    "tools/pocket": 320,
    "tools/serving": 3_356,
    "tools/traces": 740,
    "tools/training": 3_702,
}
"""Most lines of each room; the files at the top of a folder are a room, too."""
ARROWS_UP = 2
"""Most imports that run back up among the rooms of the four folders: those that would have to go for the rooms to lie on floors."""
PUBLIC_NAMES = 1_281
"""Most names that files show to others: those in `__all__`, or without that list, all that do not begin with `_`."""
FILE, GRAPH_FILE, FUNCTION = 700, 400, 60
"""Most lines of a file, of a file in graphs/, and of a function."""
LONG_FILES: Mapping[str, str] = {
    "graphs/agents/learner.py": "the hooks of one middleware: what is consulted, recorded and rated around each model call",
    "graphs/agents/scopes.py": "what an app asks of a learner: feedback, status, export, erasure, a short method each",
    "graphs/wiring/inputs.py": "what a method is built from: each part with its default, and nodes by their names",
    "graphs/serving/administration.py": "what an operator may ask and order, a short method each",
    "tools/local/engine.py": "the scheduler of one thread, whose queues nothing else may touch",
    "graphs/experiments/claas_stream.py": "one study: its arms, its trials, its tables",
    "graphs/experiments/folder.py": "one run folder: its settings, its lock, its jobs",
    "nodes/update/library.py": "the nodes of one step of learning, and the channels that they share",
    "memory/records.py": "the vocabulary: every record is used by three files or more, and serializers know them by this module",
}
"""Longer files, and why each stays in one piece."""
LONG_FUNCTIONS: Mapping[str, str] = {
    "tools/pocket/guard.py:draw_replies": "a loop over the kinds of replies, each a case",
    "tools/pocket/guard.py:play_scenarios": "one scenario from its first message to its verdict",
    "memory/claas/replay.py:lease": "one transaction",
    "nodes/extract/critic.py:propose": "small functions around one prompt: its messages, its reader, its fallback",
    "nodes/update/consolidate.py:_merger": "small functions around one prompt: its messages, its reader, its fallback",
}
"""Longer functions, as `file:name`, and why each stays in one piece."""
README_LINES, RESULTS_LINES = 180, 250


@cache
def sources() -> tuple[Path, ...]:
    """All Python files of the four folders."""
    return tuple(sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")))


class Definition(NamedTuple):
    """A class or function, or a file."""

    place: str
    """File and line."""
    name: str
    """Dotted; empty for a file."""
    is_class: bool
    docstring: str
    lines: int = 0
    """Lines of a function or method; 0 for the others."""

    @property
    def is_public(self) -> bool:
        return not any(part.startswith("_") for part in self.name.split("."))


class Outline(NamedTuple):
    """What the figures and the rules for names need of a file; its syntax tree is not kept, for those of all files take 200 MB."""

    imports: list[ast.Import | ast.ImportFrom]
    definitions: list[Definition]
    """Every class and function, the inner ones too, after the file itself."""
    strings: list[tuple[str, str]]
    """Place and text of every docstring, of fields too."""
    names: list[str]
    """Its public names."""


@cache
def outline(path: Path) -> Outline:
    """The outline of a file, which is parsed once."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = Outline([], [], [], _names(tree))

    def note(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module, trail: tuple[str, ...]) -> None:
        first, is_class = getattr(node, "lineno", 1), isinstance(node, ast.ClassDef)
        lines = (node.end_lineno or 0) - first + 1 if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else 0
        docstring = ast.get_docstring(node) or ""
        found.definitions.append(Definition(f"{short(path)}:{first}", ".".join(trail), is_class, docstring, lines))
        visit(node, trail)

    def visit(node: ast.AST, trail: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                note(child, (*trail, child.name))
            elif isinstance(child, ast.Import | ast.ImportFrom):
                found.imports.append(child)
            elif isinstance(child, ast.Expr):
                if isinstance(child.value, ast.Constant) and isinstance(child.value.value, str):
                    found.strings.append((f"{short(path)}:{child.lineno}", child.value.value))
            elif not isinstance(child, ast.expr):
                visit(child, trail)

    note(tree, ())
    return found


def count_lines(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def short(path: Path) -> str:
    """A file's path below the root."""
    return path.relative_to(ROOT).as_posix()


def room(parts: tuple[str, ...]) -> str:
    """The room that a file lies in: the first folder below the top one, or the file itself."""
    return parts[1].removesuffix(".py")


def arrows(folder: str) -> set[tuple[str, str]]:
    """(room, room that it imports) for the rooms of one of the four folders."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        package = path.relative_to(ROOT).parts[:-1]
        for node in outline(path).imports:
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


def room_lines() -> Counter[str]:
    """Lines of each room, such as `memory/search`; `graphs` alone has the files at the top of graphs/."""
    found: Counter[str] = Counter()
    for path in sources():
        parts = path.relative_to(ROOT).parts
        found["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += count_lines(path)
    return found


def public_names(path: Path) -> list[str]:
    """The names that a file shows to others: its `__all__`, or without that list, all at its top that do not begin with `_`."""
    return outline(path).names


def _names(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
            if names[-1:] == ["__all__"]:
                return list(ast.literal_eval(node.value)) if node.value else []
    return [name for name in names if not name.startswith("_")]


def long_files() -> dict[str, int]:
    """Files that are longer than their ceiling."""
    ceilings = {path: GRAPH_FILE if short(path).startswith("graphs/") else FILE for path in sources()}
    return {short(path): count_lines(path) for path, most in ceilings.items() if count_lines(path) > most}


def long_functions() -> dict[str, int]:
    """Functions that are longer than their ceiling, as `file:name`."""
    found = ((path, one) for path in sources() for one in outline(path).definitions)
    return {f"{short(path)}:{one.name.rpartition('.')[2]}": one.lines for path, one in found if one.lines > FUNCTION}


def figures() -> dict[str, tuple[int, int | None]]:
    """Name of a figure -> its value, and its ceiling if it has one."""
    rooms = room_lines()
    lines = {"source": sum(rooms.values()), "tests": sum(map(count_lines, (ROOT / "tests").rglob("*.py")))}
    edges = {folder: arrows(folder) for folder in FOLDERS}
    return {
        **{f"lines of {name}": (count, LINES[name]) for name, count in lines.items()},
        **{f"lines of {name}/": (count, ROOMS.get(name)) for name, count in sorted(rooms.items())},
        **{f"arrows between rooms of {folder}/": (len(found), None) for folder, found in edges.items()},
        "arrows back up": (sum(map(arrows_up, edges.values())), ARROWS_UP),
        "public names": (sum(len(public_names(path)) for path in sources()), PUBLIC_NAMES),
        "source files": (len(sources()), None),
        "lines of README.md": (count_lines(ROOT / "README.md"), README_LINES),
        "lines of RESULTS.md": (count_lines(ROOT / "graphs/experiments/RESULTS.md"), RESULTS_LINES),
    }


def faults() -> list[str]:
    """What is above its ceiling, a sentence each; empty if nothing is."""
    found = [f"{name}: {value:,}, at most {most:,}" for name, (value, most) in figures().items() if most and value > most]
    for what, lines, reasons in (("file", long_files(), LONG_FILES), ("function", long_functions(), LONG_FUNCTIONS)):
        found += [
            f"{name}: a {what} of {count} lines without a reason in this file"
            for name, count in lines.items()
            if name not in reasons
        ]
        found += [
            f"{name}: is a long {what} no more; take its reason out of this file" for name in reasons if name not in lines
        ]
    return found


def main() -> int:
    """Print the figures, and what is above its ceiling. Returns the exit status: 1 if anything is."""
    rows = [f"{name:<45}{value:>8,}{f' of {most:,}' if most else ''}" for name, (value, most) in figures().items()]
    rows += [f"{name:<70}{count:>5} lines" for lines in (long_files(), long_functions()) for name, count in lines.items()]
    sys.stdout.write("\n".join([*rows, *(f"ABOVE ITS CEILING: {fault}" for fault in faults())]) + "\n")
    return bool(faults())


if __name__ == "__main__":
    sys.exit(main())
