"""The library: every edit is ruled on, an id stays with its lesson, the limits hold, any version comes back byte by byte.

Names such as D11 are those of known defects of published code, each of which has a test here.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library, LibraryError, LibraryLimits, diff, lesson_similarity, one_line
from learngraph.memory.lessons.versions import LibraryVersions, find_library, open_library
from learngraph.memory.records import Edit, Lesson, Ruling

TEXTS = (
    "Look at the map before you leave the house",
    "Check the answer with a second method",
    "Read every clue aloud and write it down",
    "Open the fridge only when you are hungry",
    "Count small cases before you look for a rule",
)
LOOSE = LibraryLimits(max_words=100, max_lessons=100, max_library_tokens=100_000)


def size(text: str) -> int:
    return len(text.split())


def library(*texts: str) -> Library:
    return Library(tuple(Lesson(f"L{n}", text) for n, text in enumerate(texts or TEXTS[:3])))


def apply(held: Library, *edits: Edit, limits: LibraryLimits = LOOSE) -> tuple[Library, tuple[Ruling, ...]]:
    return held.apply(edits, limits, size)


def texts(held: Library) -> dict[str, str]:
    return {lesson.id: lesson.text for lesson in held.lessons}


# Edits


def test_each_operation_does_what_it_says() -> None:
    held, rulings = apply(
        library(),
        Edit("keep", ("L0",)),
        Edit("modify", ("L1",), "Check twice", problems=("p",), rewards=(1, 0), step=4),
        Edit("delete", ("L2",)),
        Edit("add", text=TEXTS[4], problems=("q",), rewards=(0, 1), step=4),
    )
    assert texts(held) == {"L0": TEXTS[0], "L1": "Check twice", "L3": TEXTS[4]}
    assert [(ruling.accepted, ruling.lesson) for ruling in rulings] == [(True, "L0"), (True, "L1"), (True, "L2"), (True, "L3")]
    assert held.lesson("L0").helpful == 1
    assert (held.lesson("L1").problems, held.lesson("L1").rewards, held.lesson("L1").step) == (("p",), (1.0, 0.0), 4)
    assert (held.lesson("L3").problems, held.lesson("L3").rewards, held.lesson("L3").step) == (("q",), (0.0, 1.0), 4)


def test_the_rules_are_the_same_in_whatever_order_the_operations_come() -> None:
    """Delete beats merge and modify, merge beats modify, and votes follow a lesson to where it went."""
    edits = (
        Edit("modify", ("L1",), "Another method"),
        Edit("merge", ("L1", "L0"), "Look first and check last"),
        Edit("delete", ("L2",)),
        Edit("modify", ("L2",), "Read it"),
        Edit("keep", ("L1",)),
    )
    results = {apply(library(), *order)[0] for order in permutations(edits)}
    assert len(results) == 1
    held, rulings = apply(library(), *edits)
    assert texts(held) == {"L0": "Look first and check last"}
    assert held.lesson("L0").helpful == 1
    assert [ruling.accepted for ruling in rulings] == [False, True, True, False, True]
    assert [ruling.reason for ruling in rulings] == [
        "L1 is merged by another edit",
        "L1 went into L0",
        "",
        "L2 is deleted by another edit",
        "L1 went into L0",
    ]


def test_d8_an_edit_of_an_unknown_lesson_is_rejected_with_a_reason_and_adds_nothing() -> None:
    edits = [Edit(op, ("L9",), "A text") for op in ("modify", "delete", "keep")]
    held, rulings = apply(library(), *edits, Edit("merge", ("L0", "L9"), "A text"), Edit("zap", ("L0",)), Edit("modify"))
    assert held == library()
    assert not any(ruling.accepted for ruling in rulings)
    assert all("L9" in ruling.reason for ruling in rulings[:4])
    assert "there are L0, L1, L2" in rulings[0].reason
    assert rulings[4].reason == "there is no operation 'zap'; there are add, modify, merge, delete, keep"


@pytest.mark.parametrize(
    "spelt", ["[L1]", "l1", "L1:", " 1 ", 1, 1.0, "lesson 1", "`L1`", f"[L1] {TEXTS[1]}", "L1: " + TEXTS[1]]
)
def test_d8_ids_are_known_however_they_are_spelt(spelt: str | float) -> None:
    assert library().resolve(spelt) == "L1"
    held, _ = apply(library(), Edit("delete", (spelt,)))  # type: ignore[arg-type]
    assert "L1" not in texts(held)


@pytest.mark.parametrize(
    "id", ["", "L", "G1", "L1 and L2", "L7", "L" + "1" * 5000, None, True, -1, 1.5, float("nan"), ["L1"], "²"]
)
def test_what_is_no_id_is_no_lesson(id: object) -> None:
    assert library().resolve(id) is None
    with pytest.raises(LibraryError, match="there are L0, L1, L2"):
        library().lesson(id)


def test_a_merge_keeps_the_oldest_id_and_place_and_the_votes_and_provenance_of_all() -> None:
    first = Lesson("L4", TEXTS[0], problems=("p",), rewards=(1, 0), helpful=2, harmful=1, shown=5)
    second = Lesson("L2", TEXTS[1], problems=("q", "p"), rewards=(0, 1), helpful=1, shown=9)
    held = Library((Lesson("L5", TEXTS[2]), first, second))
    merged, (ruling,) = apply(held, Edit("merge", ("L4", "L2", "L9"), "Both", problems=("r",), rewards=(1, 1), step=3))
    assert [lesson.id for lesson in merged.lessons] == ["L5", "L2"]
    kept = merged.lesson("L2")
    assert (kept.text, kept.helpful, kept.harmful, kept.shown, kept.step) == ("Both", 3, 1, 9, 3)
    assert (kept.problems, kept.rewards) == (("q", "p", "r"), (0, 1, 1, 0, 1, 1))
    assert ruling.reason == "L4 went into L2; L9 is unknown"


@pytest.mark.parametrize("ids", [(), ("L0",), ("L0", "L0"), ("L0", "[L0]"), ("L0", "L9"), ("L0", "L2")])
def test_a_merge_of_fewer_than_two_is_none(ids: Sequence[str]) -> None:
    held, rulings = apply(library(), Edit("delete", ("L2",)), Edit("merge", ids, "Both of them"))  # type: ignore[arg-type]
    assert texts(held) == {"L0": TEXTS[0], "L1": TEXTS[1]}
    assert not rulings[1].accepted
    assert "two lessons or more" in rulings[1].reason


def test_a_lesson_takes_part_in_one_merge_and_is_modified_once() -> None:
    held, rulings = apply(
        library(*TEXTS),
        Edit("merge", ("L0", "L1"), "Look and check"),
        Edit("merge", ("L1", "L2"), "Check and read"),
        Edit("merge", ("L0", "L1"), "Look and check", problems=("p",)),
        Edit("modify", ("L3",), "Leave the fridge alone"),
        Edit("modify", ("L3",), "Cook something"),
        Edit("modify", ("L3",), "Leave the fridge alone", problems=("q",)),
    )
    assert texts(held) == {"L0": "Look and check", "L2": TEXTS[2], "L3": "Leave the fridge alone", "L4": TEXTS[4]}
    assert [ruling.accepted for ruling in rulings] == [True, False, True, True, False, True]
    assert rulings[2].reason == "says what L0 says (1.00)"
    assert (held.lesson("L0").helpful, held.lesson("L0").problems) == (1, ("p",))
    assert (held.lesson("L3").helpful, held.lesson("L3").problems) == (1, ("q",))


# Near-duplicates


def test_d11_an_addition_that_says_what_a_lesson_says_is_a_vote_for_it() -> None:
    held = Library((Lesson("L0", TEXTS[4], problems=("p",), rewards=(1, 0)),))
    near = "Count small cases before you look for a rule!"
    edits = [Edit("add", text=near, problems=("q",), rewards=(0, 1)), Edit("add", text=TEXTS[0]), Edit("add", text=TEXTS[0])]
    grown, rulings = apply(held, *edits)
    assert texts(grown) == {"L0": TEXTS[4], "L1": TEXTS[0]}
    assert [ruling.reason for ruling in rulings] == ["says what L0 says (1.00)", "", "says what L1 says (1.00)"]
    assert [ruling.lesson for ruling in rulings] == ["L0", "L1", "L1"]
    assert (grown.lesson("L0").helpful, grown.lesson("L0").problems, grown.lesson("L0").rewards) == (
        1,
        ("p", "q"),
        (1, 0, 0, 1),
    )
    assert len(apply(held, *edits, limits=replace(LOOSE, duplicate_similarity=2))[0].lessons) == 4


def test_a_group_is_not_counted_twice() -> None:
    edit = Edit("add", text=TEXTS[0], problems=("p",), rewards=(1, 0, 1))
    held, _ = apply(Library(), edit, edit)
    assert (held.lesson("L0").problems, held.lesson("L0").rewards) == (("p",), (1, 0, 1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("When the door is shut and the key is near you then do take the key and open the door at once", "not take"),
        ("When the door is shut and the key is near you then do take 3 of the keys and open the door at once", "take 4"),
    ],
)
def test_lessons_that_differ_in_a_number_or_a_negation_are_never_the_same(one: str, other: str) -> None:
    changed = one.replace("do take" if "not" in other else "take 3", other)
    assert changed != one
    assert lesson_similarity(one, one) == 1.0
    assert lesson_similarity(one, changed) == 0.0


# Limits


def test_a_text_over_the_limits_is_rejected_with_a_reason() -> None:
    limits = LibraryLimits(max_words=5, max_lessons=10, max_library_tokens=6)
    held, rulings = apply(Library(), Edit("add", text="one two three four five six"), limits=limits)
    assert held.lessons == ()
    assert rulings[0].reason == "6 words are more than 5"
    held, rulings = Library().apply([Edit("add", text="one two")], limits, len)
    assert held.lessons == ()
    assert rulings[0].reason == "15 tokens are more than the 6 of all lessons together"
    for op, ids in (("add", ()), ("modify", ("L0",)), ("merge", ("L0", "L1"))):
        held, rulings = apply(library(), Edit(op, ids, " \n\t "))
        assert (held, rulings[0].reason) == (library(), f"{op} needs a text")


def test_over_the_limits_the_least_valued_lessons_go_and_the_ledger_says_so() -> None:
    held = Library(
        (
            Lesson("L0", TEXTS[0], helpful=1),
            Lesson("L1", TEXTS[1], harmful=1),
            Lesson("L2", TEXTS[2], shown=9),
            Lesson("L3", TEXTS[3], shown=2),
        )
    )
    add = Edit("add", text=TEXTS[4], step=7)
    for most, left in ((4, "L0 L2 L3 L4"), (3, "L0 L3 L4"), (2, "L0 L4"), (1, "L0")):
        shrunk, rulings = apply(held, add, limits=replace(LOOSE, max_lessons=most))
        assert [lesson.id for lesson in shrunk.lessons] == left.split()
        assert len(rulings) == 1 + 5 - most
        assert all(r.edit.op == "delete" and r.accepted and r.reason.startswith("evicted: ") for r in rulings[1:])
        assert rulings[1].reason == f"evicted: 5 lessons are more than {most}; it was the least valued: +0 -1, shown 0 times"
        assert rulings[1].edit.step == 7
    shrunk, rulings = apply(held, add, limits=replace(LOOSE, max_library_tokens=30))
    assert size(shrunk.text()) <= 30
    assert "tokens are more than 30" in rulings[1].reason


def test_a_library_from_elsewhere_is_brought_within_the_limits() -> None:
    held = replace(library("one two three", "word " * 9, "four five", "six seven"), next=9).with_votes([("L0", -1), ("L3", -2)])
    limits = LibraryLimits(max_words=5, max_lessons=2, max_library_tokens=12)
    made, rulings = held.trim_to_limits(limits, size)
    assert texts(made) == {"L0": "one two three", "L2": "four five"}
    assert made.next == 9
    assert [(r.lesson, r.accepted, r.reason.split(";")[0]) for r in rulings] == [
        ("L1", True, "evicted: 9 words are more than 5"),
        ("L3", True, "evicted: 3 lessons are more than 2"),
    ]
    assert made.trim_to_limits(limits, size) == (made, ())
    assert library().trim_to_limits(LOOSE, size) == (library(), ())


@pytest.mark.parametrize(
    "bad",
    [
        {"max_words": 0},
        {"max_lessons": 0},
        {"max_library_tokens": -1},
        {"duplicate_similarity": 0},
        {"duplicate_similarity": float("nan")},
    ],
)
def test_limits_that_nothing_can_meet_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(LibraryError):
        LibraryLimits(**bad)  # type: ignore[arg-type]


def test_a_lesson_is_one_line_whatever_was_written() -> None:
    assert one_line(" a\n\n## system\tb\x00\x08c\ud800\u2028 d ") == "a ## system b c d"
    held, _ = apply(Library(), Edit("add", text="Look.\n## user\nIgnore\x07 it \ud83d"))
    assert held.text() == "- [L0] Look. ## user Ignore it\n"
    assert Library((Lesson("L0", " a\nb "),)).lessons[0].text == "a b"


@pytest.mark.parametrize(
    "lessons", [(Lesson("x", "a"),), (Lesson("L01", "a"),), (Lesson("L1", "a"), Lesson("L1", "b")), (Lesson("L1", " \n"),)]
)
def test_a_library_that_is_none_is_refused(lessons: tuple[Lesson, ...]) -> None:
    with pytest.raises(LibraryError):
        Library(lessons)


# Properties of any sequence of edits

IDS = st.sampled_from(["L0", "[L1]", "l2", "3", "L4", "L99", "", "nonsense", "L5", "L6"])
WORDS = st.lists(st.sampled_from("look check door 3 not never map key red open the with a".split()), max_size=8).map(" ".join)  # noqa: SIM905
EDITS = st.builds(
    Edit,
    op=st.sampled_from(["add", "add", "add", "modify", "merge", "delete", "keep", "zap"]),
    lessons=st.lists(IDS, max_size=3).map(tuple),
    text=WORDS | st.text(max_size=30),
    problems=st.lists(st.sampled_from("pqr"), max_size=2).map(tuple),
    rewards=st.lists(st.sampled_from([0.0, 1.0]), max_size=3).map(tuple),
    step=st.integers(0, 3),
)
TIGHT = LibraryLimits(max_words=6, max_lessons=4, max_library_tokens=30)


@settings(max_examples=60)
@given(st.lists(st.lists(EDITS, max_size=6), max_size=5))
def test_any_sequence_of_edits_keeps_ids_and_limits_and_rules_on_every_edit(steps: list[list[Edit]]) -> None:
    held = Library()
    lineage: dict[str, int] = {}  # id -> the step in which it came up
    for number, edits in enumerate(steps):
        before = held
        held, rulings = before.apply(edits, TIGHT, size)
        assert before.apply(edits, TIGHT, size) == (held, rulings)
        for lesson in held.lessons:
            if before.resolve(lesson.id) is None:
                assert lesson.id not in lineage, "an id came back as another lesson"
                lineage[lesson.id] = number
            assert re.fullmatch(r"L\d+", lesson.id)
            assert int(lesson.id[1:]) < held.next
            assert len(lesson.text.split()) <= TIGHT.max_words
            assert lesson.text == one_line(lesson.text) != ""
        assert held.next >= before.next
        assert len(held.lessons) <= TIGHT.max_lessons
        assert size(held.text()) <= TIGHT.max_library_tokens
        evicted = [ruling for ruling in rulings if ruling.reason.startswith("evicted")]
        ruled = [ruling.edit for ruling in rulings if ruling not in evicted]
        assert list(dict.fromkeys(map(repr, ruled))) == list(dict.fromkeys(map(repr, edits)))  # in order, none is missing
        assert len(ruled) >= len(edits)
        assert all(ruling.accepted or ruling.reason for ruling in rulings)
        gone = {lesson.id for lesson in before.lessons} - {lesson.id for lesson in held.lessons}
        told = {
            id for ruling in rulings if ruling.accepted for id in (ruling.lesson, *map(before.resolve, ruling.edit.lessons))
        }
        assert gone <= told, "a lesson went without a ruling"
        assert Library.from_yaml(held.to_yaml()) == held


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(EDITS, max_size=4), st.integers(0, 9), st.booleans()), max_size=8))
def test_d11_no_history_of_versions_uses_an_id_twice_and_each_comes_back_byte_by_byte(
    steps: list[tuple[list[Edit], int, bool]],
) -> None:
    """Versions are made from any earlier one, accepted or not, with rollbacks in between."""
    versions = LibraryVersions()
    versions.put("0", library())
    born: dict[str, str] = {}
    files = {"0": versions.at("0").to_yaml()}
    for number, (edits, back, accepted) in enumerate(steps, 1):
        name, parent = str(number), versions.names()[back % len(versions.names())]
        versions.rollback(parent)
        old = versions.at(versions.head, before=name)
        new, rulings = old.apply(edits, TIGHT, size)
        versions.put(name, new, parent=parent, rulings=rulings)
        files[name] = new.to_yaml()
        again, same = versions.at(parent, before=name).apply(edits, TIGHT, size)  # a run that was killed here makes it again
        assert (versions.put(name, again, parent=parent), same) == (name, rulings)
        if accepted:
            versions.move(name)
        for lesson in new.lessons:
            if old.resolve(lesson.id) is None:
                assert lesson.id not in born, f"{lesson.id} was made in version {born[lesson.id]} and again in {name}"
                born[lesson.id] = name
    for name, file in files.items():
        versions.rollback(name)
        assert versions.at(versions.head).to_yaml() == file


# What prompts show


def test_the_key_is_of_what_prompts_show() -> None:
    held = library()
    assert held.key == held.with_votes([("L0", 1)]).with_shown_counts(["L1"]).key
    assert len({held.key, library(*TEXTS[:2]).key, library(TEXTS[1], TEXTS[0], TEXTS[2]).key, Library().key}) == 4
    assert held.text() == f"- [L0] {TEXTS[0]}\n- [L1] {TEXTS[1]}\n- [L2] {TEXTS[2]}\n"
    assert held.text(with_ids=False) == f"- {TEXTS[0]}\n- {TEXTS[1]}\n- {TEXTS[2]}\n"
    assert Library().text() == ""


def test_votes_and_uses_are_counted() -> None:
    held = (
        library()
        .with_votes([("[L0]", 1), ("L0", 1), ("L0", -1), ("L9", 1), ("L2", -2)])
        .with_shown_counts(["L0", "L0", "L1", "L9"])
    )
    assert [(x.helpful, x.harmful, x.shown) for x in held.lessons] == [(2, 1, 2), (0, 0, 1), (0, 2, 0)]


def test_d12_only_the_lessons_about_the_task_are_shown() -> None:
    held = library(
        "Put the apple in the fridge", "Put the sock in the basket", "Add the digits first", "Put the pan in the fridge"
    )
    shown = "Your task: put all things where they belong. You see: an apple, a sock and a fridge, in a kitchen."
    assert [lesson.id for lesson in held.select(shown, 1)] == ["L0"]
    assert [lesson.id for lesson in held.select(shown, 3)] == ["L0", "L1", "L3"]
    assert [lesson.id for lesson in held.select(shown, 9)] == ["L0", "L1", "L3"], "L2 has no word in common, and finds no place"
    assert held.select(shown, 0) == held.lessons
    assert held.text("Nothing of the kind", 2) == ""
    assert held.text(shown, 1) == "- [L0] Put the apple in the fridge\n"


def test_d12_ties_go_to_the_better_voted_then_to_the_newer_lesson() -> None:
    held = library("Open the chest", "Paint the chest", "Close the chest")
    assert [lesson.id for lesson in held.select("chest", 2)] == ["L1", "L2"]
    assert [lesson.id for lesson in held.with_votes([("L0", 1)]).select("chest", 2)] == ["L0", "L2"]


def test_d12_a_lesson_is_found_by_the_problems_it_was_learned_on() -> None:
    told = {"p": "How many triangles\nare there?", "q": "Find the largest prime"}
    edits = [Edit("add", text="Check small numbers", problems=("p",)), Edit("add", text="Check large numbers", problems=("q",))]
    held, _ = Library().apply(edits, LOOSE, size, instructions=told)
    assert held.lesson("L0").instruction == "How many triangles are there?"
    assert [lesson.id for lesson in held.select("Find the largest prime of these numbers", 1)] == ["L1"]
    assert [lesson.id for lesson in held.select("How many triangles have such numbers", 1)] == ["L0"]


# YAML

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LESSONS = st.builds(
    Lesson,
    id=st.just("L0"),
    text=st.text(min_size=1, max_size=12).filter(lambda text: one_line(text) != ""),
    title=ANY,
    instruction=ANY,
    success=st.sampled_from([None, True, False]),
    problems=st.lists(ANY, max_size=2).map(tuple),
    rewards=st.lists(st.floats(allow_nan=False), max_size=2).map(tuple),
    sources=st.lists(st.text("a1:/-#' ", max_size=8), max_size=2).map(tuple),
    step=st.integers(0, 10**6),
    helpful=st.integers(0, 10**6),
)


@settings(max_examples=60)
@given(st.lists(LESSONS, max_size=2), st.integers(0, 9))
def test_what_is_written_as_yaml_is_read_back_the_same(lessons: list[Lesson], more: int) -> None:
    held = Library(tuple(replace(lesson, id=f"L{3 * n + 1}") for n, lesson in enumerate(lessons)), more)
    file = held.to_yaml()
    assert Library.from_yaml(file) == held
    assert Library.from_yaml(file).to_yaml() == file
    versions = LibraryVersions()
    versions.put("v", held)
    assert versions.at("v").to_yaml() == file


def test_a_person_edits_the_file() -> None:
    """A text is changed, one deleted, one moved, two added, in the ways that people write."""
    held = Library((Lesson("L3", TEXTS[0], problems=("p",), helpful=2), Lesson("L1", TEXTS[1]), Lesson("L4", TEXTS[2])), 9)
    file = held.to_yaml()
    assert file.startswith("# A library of lessons")
    assert (
        f"- id: L3\n  text: {TEXTS[0]}\n  helpful: 2\n  harmful: 0\n  shown: 0\n  step: 0\n  problems: [p]\n  rewards: []\n"
        in file
    )
    lines = file.replace(TEXTS[0], "Look again").splitlines()
    at = lines.index("- id: L1")
    edited = "\n".join(
        [*lines[:at], *lines[at + 8 :], "- Bare words: none", "- text: |", "    two", "    lines", "  shown:", ""]
    )
    with pytest.raises(LibraryError, match="lesson 3"):
        Library.from_yaml(edited, "x.yaml")  # `Bare words: none` is a field
    read = Library.from_yaml(edited.replace("- Bare words: none", "- 'Bare words: none'"))
    assert texts(read) == {"L3": "Look again", "L4": TEXTS[2], "L9": "Bare words: none", "L10": "two lines"}
    assert (read.lesson("L3").helpful, read.next) == (2, 11)


@pytest.mark.parametrize("file", ["", "# nothing\n", "lessons:\n", "lessons: []\n", "next: 0\nlessons: []\n"])
def test_an_empty_file_is_an_empty_library(file: str) -> None:
    assert Library.from_yaml(file) == Library()


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("lessons:\n- text: a: b\n", r"x.yaml: this is not YAML.*line 2.*quotes"),
        ("lessons:\n- text: ok\n- text: use #1 first\n", r"x.yaml: .*use #1 first' as a comment.*quotes"),
        ("- text: a\n- id: L1\n  texts: b\n", "lesson 2 has a field 'texts'; there are id, text"),
        ("- text: a\n- id: L1\n", "lesson 2 has no text"),
        ("- text: ''\n", "lesson 1 has no text"),
        ("- {id: L1, text: a}\n- {id: 1, text: b}\n", "two lessons have the id L1"),
        ("- {id: foo, text: a}\n", "lesson 1 has the id 'foo'"),
        ("- {text: a, helpful: many}\n", "lesson 1: helpful is a whole number"),
        ("- {text: a, shown: -1}\n", "lesson 1: shown is a whole number"),
        ("- {text: a, rewards: [x]}\n", "lesson 1: rewards is a list of numbers"),
        ("- {text: yes}\n", "lesson 1: text is a text, in quotes, got True"),
        ("- {text: a, success: maybe}\n", "lesson 1: success is true or false"),
        ("- [a, b]\n", "lesson 1: text is a text"),
        ("lessons: hello\n", "asked for a list of lessons, got 'hello'"),
        ("lesson: []\n", "there is no 'lesson' in a library"),
        ("next: x\nlessons: []\n", "next is the number"),
        ("lessons: [\n", "this is not YAML.*line 2"),
        ("[" * 1200, "this is not YAML"),
        ("- !!python/object/apply:os.system [true]\n", "this is not YAML"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(file: str, said: str) -> None:
    with pytest.raises(LibraryError, match=said) as caught:
        Library.from_yaml(file, "x.yaml")
    assert isinstance(caught.value, UserError)


def test_the_difference_is_told_in_lines() -> None:
    old = library(*TEXTS[:3])
    new = Library((replace(old.lessons[1], helpful=2), replace(old.lessons[0], text="Look"), Lesson("L7", TEXTS[4])))
    assert diff(old, new) == (
        f"~ [L0] Look\n  was: {TEXTS[0]}\n~ [L1] (helpful 0 -> 2)\n- [L2] {TEXTS[2]}\n+ [L7] {TEXTS[4]}\n~ the order: L1, L0, L7\n"
    )
    assert diff(old, old) == ""


# Versions


def test_versions_stay_and_the_head_moves(tmp_path: Path) -> None:
    path = tmp_path / "run" / "library.jsonl"
    versions = LibraryVersions(path)
    assert (versions.head, versions.names()) == ("", [])
    versions.put("r/0", Library())
    new, rulings = versions.at("r/0").apply([Edit("add", text=TEXTS[0], rewards=(1, 0)), Edit("delete", ("L5",))], LOOSE, size)
    versions.put("r/1", new, parent="r/0", why="step 0", rulings=rulings)
    assert versions.head == "r/0", "a candidate holds only once it is moved to"
    versions.move("r/1", "accepted")
    versions.close()

    versions = LibraryVersions(path)
    assert (versions.head, versions.names()) == ("r/1", ["r/0", "r/1"])
    assert versions.at("r/1") == new
    assert versions.rulings("r/1") == rulings
    assert (versions.parent("r/1"), versions.why("r/1"), versions.parent("r/0")) == ("r/0", "step 0", "")
    before = path.read_bytes()
    versions.rollback("r/0")
    assert path.read_bytes().startswith(before), "nothing is overwritten"
    versions.close()
    assert LibraryVersions(path).head == "r/0"
    assert LibraryVersions.read(path).moves() == [("r/1", "accepted"), ("r/0", "rollback")]


def test_a_name_stands_for_one_library() -> None:
    versions = LibraryVersions()
    versions.put("a", library())
    assert versions.put("a", library()) == "a"
    with pytest.raises(LibraryError, match="'a' is another library already"):
        versions.put("a", library(TEXTS[4]))
    with pytest.raises(LibraryError, match="there is no version 'b'; there are a"):
        versions.at("b")
    with pytest.raises(LibraryError, match="there is no version 'b'"):
        versions.move("b")
    with pytest.raises(LibraryError, match="there is no version 'b'"):
        versions.put("c", library(), parent="b")
    with pytest.raises(LibraryError, match="needs a name"):
        versions.put("", library())
    assert versions.names() == ["a"]


def test_ids_of_a_rejected_version_are_not_used_again() -> None:
    versions = LibraryVersions()
    versions.put("a", library())
    rejected, _ = versions.at("a").apply([Edit("add", text=TEXTS[3])], LOOSE, size)
    versions.put("b", rejected, parent="a")
    other, _ = versions.at("a").apply([Edit("add", text=TEXTS[4])], LOOSE, size)
    assert [lesson.id for lesson in other.lessons] == ["L0", "L1", "L2", "L4"]
    versions.put("c", other, parent="a")
    with pytest.raises(LibraryError, match="L3 names another lesson in version 'b'; a new lesson needs a new id: use L5"):
        versions.put("d", Library((*library().lessons, Lesson("L3", TEXTS[4]))), parent="a")


def test_a_torn_last_line_costs_that_line(tmp_path: Path) -> None:
    path = tmp_path / "library.jsonl"
    versions = LibraryVersions(path)
    versions.put("a", library())
    versions.put("b", library(*TEXTS), parent="a")
    versions.move("b")
    versions.close()
    whole = path.read_bytes()
    for cut in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert LibraryVersions.read(path).head == "a"
        assert path.read_bytes() == whole[:cut], "to read changes nothing: another process may be writing"
        versions = LibraryVersions(path)
        assert (versions.head, versions.names()) == ("a", ["a", "b"])
        versions.move("b")
        versions.close()
        assert path.read_bytes() == whole


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "version a", "name": "a"}\nnonsense\n')
    with pytest.raises(LibraryError, match="line 2: expected a version"):
        LibraryVersions.read(path)
    with pytest.raises(UserError, match="line 2"):
        LibraryVersions(path)


def test_broken_characters_in_reasons_do_not_break_the_file(tmp_path: Path) -> None:
    versions = LibraryVersions(tmp_path / "library.jsonl")
    ruling = Ruling(Edit("add", text="\ud800 half", problems=("p\udfff",)), False, "\ud800")
    versions.put("a", Library(), rulings=[ruling], why="\ud83d")
    versions.close()
    assert LibraryVersions(tmp_path / "library.jsonl").rulings("a")[0].reason == "\ufffd"


def test_a_library_is_found_where_it_lies(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="there is no library at"):
        find_library(tmp_path / "none")
    with pytest.raises(LibraryError, match=r"holds no library\.jsonl"):
        find_library(tmp_path)
    (tmp_path / "a.yaml").write_text(library().to_yaml())
    assert open_library(tmp_path / "a.yaml") == library()
    (tmp_path / "b.yaml").write_bytes(b"- \xff\xfe")
    with pytest.raises(LibraryError, match="is not UTF-8"):
        open_library(tmp_path / "b.yaml")
    for seed in ("s0", "s1"):
        versions = LibraryVersions(tmp_path / seed / "library.jsonl")
        versions.put(seed, library())
        versions.close()
        found = open_library(tmp_path / seed)
        assert isinstance(found, LibraryVersions)
        assert found.head == seed
    with pytest.raises(LibraryError, match=r"s0.*s1.*name one of them"):
        find_library(tmp_path)


def test_the_models_of_a_library_are_kept_and_an_edit_ends_the_test() -> None:
    held = Library((Lesson("L0", "Look first"),), written_by="org/a", tested_with="org/b")
    again = Library.from_yaml(held.to_yaml())
    assert (again, again.written_by, again.tested_with) == (held, "org/a", "org/b")
    edited = Library.from_yaml(held.to_yaml().replace("Look first", "Look last"))
    assert (edited.written_by, edited.tested_with) == ("org/a", "")
    voted, _ = held.apply([Edit("keep", ("L0",))], LOOSE, size)
    assert voted.with_votes([("L0", 1)]).written_by == "org/a"
    assert held.with_shown_counts(["L0"]).tested_with == "org/b"
    longer, _ = held.apply([Edit("add", (), "Count twice")], LOOSE, size)
    assert longer.tested_with == ""
    for library in (Library(), Library((Lesson("L0", "Look first"),))):
        assert library.other_model("org/c") == ""
    assert held.other_model("org/b") == held.other_model("") == ""
    assert held.other_model("org/c").startswith("these lessons were written by org/a and passed their accept test with org/b")
    assert "passed no accept test; org/c" in edited.other_model("org/c")


def test_versions_keep_their_models(tmp_path: Path) -> None:
    path = tmp_path / "library.jsonl"
    versions = LibraryVersions(path)
    versions.put("r/0", Library())
    versions.put("r/1", Library((Lesson("L0", "Look first"),), written_by="org/a"), parent="r/0")
    assert versions.at("r/1").tested_with == ""
    versions.move("r/1", "accepted", "org/b")
    versions.close()
    found = LibraryVersions.read(path).at("r/1")
    assert (found.written_by, found.tested_with) == ("org/a", "org/b")
