"""Names and words: no public name means two things, functions are named by verbs or nouns, docstrings begin with their subject."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("graphs", "nodes", "memory", "tools") for path in (ROOT / folder).rglob("*.py"))
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

IRREGULAR = set(
    """apart again alone alike together aside once besides beside beyond elsewhere begun bound bought brought built came caught
    chosen come done drawn driven eaten fallen felt forgotten fought found frozen given gone grown heard held hidden kept known
    laid learnt lent lost made meant met paid said seen sent shown slept sold sought spent spoken stolen stood sunk sworn taken
    taught thought told torn understood woken won worn written""".split()  # noqa: SIM905
)
"""Past participles and adverbs without the ending -ed."""
NOUNS = {"bed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"}
"""Nouns and verbs that end in -ed."""
QUESTION = re.compile(r"(What|Whether|Who|Whose|Whom)\b")
UNSHIPPED = re.compile(r"[Dd]efects? \d|\brows? \d\d\b|\bpapers/")
"""References to notes that are not in the repository."""


def definitions(node: ast.AST, trail: tuple[str, ...] = ()) -> Iterator[tuple[str, Definition]]:
    """Dotted name and definition of every class and function within `node`, the inner ones too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = (*trail, child.name)
            yield ".".join(names), child
            yield from definitions(child, names)
        else:
            yield from definitions(child, trail)


def all_definitions() -> Iterator[tuple[str, str, Definition]]:
    """File, dotted name and definition of everything public in the four folders."""
    for path in FILES:
        for name, definition in definitions(ast.parse(path.read_text(encoding="utf-8"))):
            if not any(part.startswith("_") for part in name.split(".")):
                yield f"{path.relative_to(ROOT)}:{definition.lineno}", name, definition


def is_bare_participle(name: str) -> bool:
    """True for `told`, `served`, `apart`; not for `is_served` or `served_turns`."""
    return name in IRREGULAR or (name.endswith("ed") and name not in NOUNS and "_" not in name)


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, of fields too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_no_public_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for place, name, definition in all_definitions():
        if isinstance(definition, ast.ClassDef):
            places[name.rpartition(".")[2]].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_public_function_is_named_by_a_bare_participle_or_adverb() -> None:
    functions = ((place, name) for place, name, definition in all_definitions() if isinstance(definition, FUNCTION))
    assert [f"{place} {name}" for place, name in functions if is_bare_participle(name.rpartition(".")[2])] == []


@pytest.mark.parametrize(
    ("name", "bare"),
    [("told", True), ("served", True), ("apart", True), ("seed", False), ("is_served", False), ("tell", False)],
)
def test_what_a_bare_participle_is(name: str, bare: bool) -> None:
    assert is_bare_participle(name) is bare


def test_no_docstring_begins_with_a_question_word() -> None:
    """A docstring begins with its subject: "Tokens of a text", not "What a text takes"; "True if", not "Whether"."""
    found = []
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for definition in (tree, *(found for _, found in definitions(tree))):
            text = ast.get_docstring(definition) or ""
            if QUESTION.match(text):
                found.append(f"{path.relative_to(ROOT)}:{getattr(definition, 'lineno', 1)} {text.splitlines()[0]}")
    assert found == []


def test_no_docstring_cites_notes_that_do_not_ship() -> None:
    found = []
    for path in FILES:
        for line, text in strings(ast.parse(path.read_text(encoding="utf-8"))):
            found += [f"{path.relative_to(ROOT)}:{line} {cited.group()}" for cited in UNSHIPPED.finditer(text)]
    assert found == []
