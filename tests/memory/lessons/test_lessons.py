"""The library of lessons: what it finds, what it hides, and that adding twice adds once."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from learngraph.memory.lessons.by_task import BadLesson, Lessons, source_of_lesson
from learngraph.memory.records import Lesson
from learngraph.memory.search.similarity import jaccard, shingles
from learngraph.memory.storage.record_store import RecordStore, read_jsonl, write_jsonl


def lesson(run: str, episode: int, n: int = 0, task: str = "boil water", domain: str = "d", text: str = "") -> Lesson:
    id = f"{run}/{episode}/{n}"
    return Lesson(id, text or f"text {id}", task=task, instruction=task, domain=domain, run=run, episode=episode)


def filled(*lessons: Lesson) -> Lessons:
    library = Lessons()
    for one in lessons:
        library.add([one])
    return library


def ids(found: Iterable[Lesson]) -> list[str]:
    return [one.id for one in found]


def test_all_that_was_learned_on_the_most_similar_task() -> None:
    library = Lessons()
    library.add([lesson("a", 0, n, "boil the water in the kitchen") for n in range(2)])
    library.add([lesson("a", 1, 0, "boil the egg")])
    library.add([lesson("a", 2, 0, "find a coin")])
    library.add([lesson("a", 3, 0, "boil the water in the kitchen")])
    asked = "boil the water"
    assert ids(library.search(asked, 1, domain="d")) == ["a/3/0", "a/0/1", "a/0/0"]  # of a task the newest first
    assert ids(library.search(asked, 2, domain="d"))[3:] == ["a/1/0"]
    assert ids(library.search(asked, 9, domain="d"))[4:] == []  # no word in common: not similar
    assert ids(library.search(asked, 2, by="items", domain="d")) == ["a/3/0", "a/0/1"]
    assert ids(library.search(asked, 9, domain="d", min_similarity=0.4)) == ["a/3/0", "a/0/1", "a/0/0"]
    assert library.search(asked, 9, domain="other") == []


def test_among_equally_similar_tasks_the_one_that_taught_last() -> None:
    library = filled(lesson("a", 0, task="x"), lesson("b", 0, task="y"), lesson("a", 1, task="x"))
    for one in [*library]:
        library.add([replace(one, instruction="the same words")])
    assert ids(library.search("the same words", 1, domain="d")) == ["a/1/0", "a/0/0"]
    assert ids(library.search("the same words", 1, domain="d", before=("a", 1))) == ["b/0/0"]


def test_before_hides_exactly_what_that_run_learns_later() -> None:
    library = filled(*(lesson(run, episode) for episode in range(3) for run in "ab"))
    assert set(ids(library.search("boil water", 1, domain="d", before=("a", 1)))) == {"a/0/0", "b/0/0", "b/1/0", "b/2/0"}
    assert len(library.search("boil water", 1, domain="d", before=("c", 0))) == 6


def test_what_a_source_taught_is_replaced_as_a_whole() -> None:
    store = InMemoryStore()
    records = RecordStore(store, ("lessons",), Lesson)
    library = Lessons(records)
    library.add([lesson("a", 0, n) for n in range(3)])
    library.add([lesson("a", 1)])
    library.add([lesson("a", 0, 0, text="better")])
    for kept in (library, Lessons(records)):
        assert sorted((one.id, one.text) for one in kept) == [("a/0/0", "better"), ("a/1/0", "text a/1/0")]
    assert library.is_durable
    assert not Lessons().is_durable


def test_a_source_that_taught_nothing_is_not_read_again() -> None:
    library = filled(replace(lesson("bank", 0), text=""), lesson("bank", 1))
    assert [library.has_source(f"bank/{n}") for n in range(3)] == [True, True, False]
    assert (len(library), ids(library)) == (1, ["bank/1/0"])
    assert ids(library.search("boil water", 5, domain="d")) == ["bank/1/0"]


def test_a_file_carries_lessons_over(tmp_path: Path) -> None:
    made = replace(lesson("a", 0), title="t", description="when", success=True, sources=("a/0",))
    write_jsonl([made], tmp_path / "lessons.jsonl")
    assert read_jsonl(Lesson, tmp_path / "lessons.jsonl") == [(1, made)]


@pytest.mark.parametrize("k", [0, -1])
def test_questions_that_make_no_sense(k: int) -> None:
    with pytest.raises(BadLesson, match="k is at least 1"):
        Lessons().search("x", k)


def test_a_lesson_that_names_no_source_is_refused_and_nothing_is_kept() -> None:
    library = Lessons()
    with pytest.raises(BadLesson, match="<source>/<number>, got 'alone'"):
        library.add([lesson("a", 0), replace(lesson("a", 0), id="alone")])
    assert len(library) == 0
    with pytest.raises(BadLesson, match="has no lesson 'a/0/0': it has 0 others"):
        library.lesson("a/0/0")


TASKS = ["boil water", "boil the water", "find a coin", "find the red coin", "water"]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.sampled_from(TASKS), st.sampled_from("dde"), st.integers(0, 3)),
        max_size=14,
    ),
    st.sampled_from(TASKS),
    st.integers(1, 4),
    st.sampled_from(["tasks", "items"]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.one_of(st.none(), st.tuples(st.sampled_from("ab"), st.integers(0, 4))),
    st.sampled_from([None, 1, 3]),
)
def test_search_is_what_comparing_with_every_lesson_gives(stored, asked, k, by, floor, before, limit) -> None:
    """Brute force: the same from the definition alone, over a list."""
    library, kept = Lessons(), dict[str, Lesson]()
    for run, episode, task, domain, numbers in stored:
        added = [lesson(run, episode, n, task, domain, text=f"{len(kept)}") for n in range(numbers)]
        added = added or [replace(lesson(run, episode, 0, task, domain), text="")]
        library.add(added)
        gone = {id for id in kept if source_of_lesson(id) == f"{run}/{episode}"} - {one.id for one in added}
        kept = {id: one for id, one in kept.items() if id not in gone}
        kept |= {one.id: one for one in added}

    def alike(one: Lesson) -> float:
        return jaccard(frozenset(shingles(asked)), frozenset(shingles(one.instruction)))

    seen = [
        (place, one)
        for place, one in enumerate(kept.values())
        if one.text and one.domain == "d" and not (before and one.run == before[0] and one.episode >= before[1])
    ]
    last = {one.task: place for place, one in seen}
    close = [(place, one) for place, one in seen if alike(one) > 0 and alike(one) >= floor]
    close.sort(key=lambda found: (-alike(found[1]), -last[found[1].task], -found[0]))
    tasks = list(dict.fromkeys(one.task for _, one in close))
    expected = [one for _, one in close if one.task in tasks[:k]] if by == "tasks" else [one for _, one in close][:k]
    found = library.search(asked, k, by=by, min_similarity=floor, domain="d", before=before, limit=limit)
    assert found == expected[:limit]
    nearest = max((alike(one) for one in kept.values() if one.text and one.domain == "d"), default=0.0)
    assert library.nearest_similarity(asked, "d") == pytest.approx(nearest)


def test_origin() -> None:
    assert source_of_lesson("bank/gold/3/0") == "bank/gold/3"
