"""Names and words: no public name means two things, functions are named by verbs or nouns, docstrings begin with their subject."""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import shape

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
PRONOUNS = {"that", "those", "these", "one", "ones", "other", "it", "them", "which"}
"""Words that stand for a noun: where four of them meet in a clause, a reader must guess at nouns."""
CLAUSES = re.compile(r"[.;:!?()|–—]|,\s|\n\s*\n")
"""The ends of clauses, and of cells in tables."""
UNSHIPPED = re.compile(r"[Dd]efects? \d|\brows? \d\d\b|(?<!graphs/)\bpapers/(?!README.md|\w+\.toml)")
"""References to notes that are not in the repository."""


def public_definitions() -> Iterator[shape.Definition]:
    """All public classes and functions of the four folders."""
    for path in shape.sources():
        yield from (one for one in shape.outline(path).definitions[1:] if one.is_public)


def is_bare_participle(name: str) -> bool:
    """True for `told`, `served`, `apart`; not for `is_served` or `served_turns`."""
    return name in IRREGULAR or (name.endswith("ed") and name not in NOUNS and "_" not in name)


def test_no_public_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for one in public_definitions():
        if one.is_class:
            places[one.name.rpartition(".")[2]].append(one.place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_public_function_is_named_by_a_bare_participle_or_adverb() -> None:
    functions = (one for one in public_definitions() if not one.is_class)
    assert [f"{one.place} {one.name}" for one in functions if is_bare_participle(one.name.rpartition(".")[2])] == []


@pytest.mark.parametrize(
    ("name", "bare"),
    [("told", True), ("served", True), ("apart", True), ("seed", False), ("is_served", False), ("tell", False)],
)
def test_what_a_bare_participle_is(name: str, bare: bool) -> None:
    assert is_bare_participle(name) is bare


def test_no_docstring_begins_with_a_question_word() -> None:
    """A docstring begins with its subject: "Tokens of a text", not "What a text takes"; "True if", not "Whether"."""
    definitions = (one for path in shape.sources() for one in shape.outline(path).definitions)
    assert [f"{one.place} {one.docstring.splitlines()[0]}" for one in definitions if QUESTION.match(one.docstring)] == []


def test_no_docstring_cites_notes_that_do_not_ship() -> None:
    strings = (string for path in shape.sources() for string in shape.outline(path).strings)
    assert [f"{place} {cited.group()}" for place, text in strings for cited in UNSHIPPED.finditer(text)] == []


def clauses_of_pronouns(text: str) -> list[str]:
    """Clauses of a docstring with four or more words that stand for a noun; code in backticks is a noun."""
    clauses = (" ".join(clause.split()) for clause in CLAUSES.split(re.sub(r"`[^`]*`", "code", text)))
    return [clause for clause in clauses if sum(word in PRONOUNS for word in re.findall(r"[a-z]+", clause.lower())) > 3]


def test_a_docstring_says_its_nouns_again() -> None:
    strings = (string for path in shape.sources() for string in shape.outline(path).strings)
    assert [f"{place} {clause}" for place, text in strings for clause in clauses_of_pronouns(text)] == []


@pytest.mark.parametrize(
    ("text", "guessed"),
    [
        ("Votes by which those against it outnumber those for it.", 1),
        ("Votes against a lesson less votes for the lesson, which says that it goes.", 0),
        ("The numbers of those of these tokens, in the order of those that the segment has.", 0),
    ],
)
def test_what_a_clause_of_pronouns_is(text: str, guessed: int) -> None:
    assert len(clauses_of_pronouns(text)) == guessed


def test_definitions_and_docstrings_are_read_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = '"""A."""\ntry:\n  class B:\n    """C."""\n    d: int = 1\n    """E."""\nexcept OSError:\n  def f():\n    match 1:\n      case 1:\n        def _g(): "H"\n'
    path = tmp_path / "a.py"
    path.write_text(code)
    monkeypatch.setattr(shape, "ROOT", tmp_path)
    _, definitions, strings, _ = shape.outline(path)
    assert [(one.place, one.name, one.is_class, one.docstring) for one in definitions] == [
        ("a.py:1", "", False, "A."),
        ("a.py:3", "B", True, "C."),
        ("a.py:8", "f", False, ""),
        ("a.py:11", "f._g", False, "H"),
    ]
    assert [text for _, text in strings] == ["A.", "C.", "E.", "H"]
