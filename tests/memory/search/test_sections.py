"""The index over keys with sections equals comparing with every row, always; joining and splitting are exact inverses."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.search.sections import Section, SectionSimilarity, join_sections, split_sections
from learngraph.memory.search.similarity import bag, jaccard, ngrams, words

section_names = st.text(st.characters(exclude_characters="\n"), min_size=1, max_size=4).filter(lambda name: name[0] != " ")
texts = st.text(st.sampled_from("ab :\n\r\u2028"), max_size=12) | st.text(max_size=12)


@given(st.dictionaries(section_names, texts, min_size=1, max_size=4))
def test_any_texts_come_back_from_a_key_as_they_went_in(sections):
    assert split_sections(join_sections(sections)) == sections


@given(texts)
def test_a_text_that_is_no_key_has_no_sections_or_is_what_joining_makes(text):
    found = split_sections(text)
    assert not found or join_sections(found) == text


@pytest.mark.parametrize("name", ["", " a", "a\nb"])
def test_a_name_that_could_not_be_read_again_is_refused(name):
    with pytest.raises(ValueError, match="a section's name"):
        join_sections({name: "text"})


def test_a_key_can_be_read_by_people():
    assert join_sections({"history": "", "state": "a hall\na lamp"}) == "history:\n  \nstate:\n  a hall\n  a lamp"


RULES = [
    {"page": Section(0.0, minimum=1.0), "done": Section(0.7), "task": Section(0.3, minimum=0.27)},
    {"page": Section(1.0, minimum=1.0), "done": Section(0.7, ngram=2, multiset=True)},
    {"done": Section(0.7), "task": Section(0.3)},
    {"page": Section(1.0, minimum=1.0)},
]
sentences = st.lists(st.sampled_from("abcd"), max_size=4).map(" ".join)
keys = st.fixed_dictionaries({"page": st.sampled_from(["p", "q"]), "done": sentences, "task": sentences}).map(join_sections)
any_keys = keys | sentences


def brute_similarity(rules: dict[str, Section], a: str, b: str) -> float:
    total = 0.0
    for name, rule in rules.items():
        one, other = (split_sections(key).get(name, "") if split_sections(key) else key for key in (a, b))
        if rule.minimum == 1:
            near = float(one == other)
        else:
            sides = [ngrams(words(text), rule.ngram) for text in (one, other)]
            left, right = (set(bag(side)) if rule.multiset else set(side) for side in sides)
            near = jaccard(left, right) if left or right else 1.0
        if near < rule.minimum:
            return 0.0
        total += rule.weight * near
    return total / sum(rule.weight for rule in rules.values())


def ranked(found: Sequence[float], k: int, floor: float, among: Sequence[bool] | None) -> list[int]:
    rows = [row for row, near in enumerate(found) if near > 0 and near >= floor and (among is None or among[row])]
    return sorted(rows, key=lambda row: (-found[row], -row))[:k]


@settings(max_examples=100)
@given(
    st.sampled_from(RULES),
    st.lists(any_keys, max_size=12),
    any_keys,
    st.integers(0, 13),
    st.sampled_from([0.0, 0.3, 0.65, 1.0]),
    st.none() | st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_the_index_equals_brute_force(rules, stored, query, k, floor, shown):
    similarity = SectionSimilarity(rules)
    rows = similarity.rows()
    for reading in similarity.read(stored):
        rows.add(reading)
    among = None if shown is None else np.array(shown[: len(stored)], np.bool_)
    found, near = rows.nearest(similarity.read_query(query), k, floor, among)
    wanted = [brute_similarity(rules, query, key) for key in stored]
    # Sums of weights in another order may differ in the last bit, which decides ties and floors.
    exact = dict(zip(found.tolist(), near.tolist(), strict=True))
    assert all(abs(wanted[row] - value) < 1e-12 for row, value in exact.items())
    rounded = [round(value, 9) for value in wanted]
    assert found.tolist() == ranked(rounded, k, round(floor, 9), None if among is None else among.tolist())
    for key in stored:
        assert rows.find(similarity.read_query(key)) is not None


@given(st.sampled_from(RULES), any_keys)
def test_equal_keys_have_similarity_one_to_the_last_bit(rules, key):
    similarity = SectionSimilarity(rules)
    rows = similarity.rows()
    rows.add(similarity.read_query(key))
    found, near = rows.nearest(similarity.read_query(key), 1, 1.0, None)
    assert (found.tolist(), near.tolist()) == ([0], [1.0])


def test_bad_settings_are_refused():
    for wrong in ({"weight": -1.0}, {"minimum": 1.1}, {"ngram": 0}, {"weight": float("inf")}):
        with pytest.raises(ValueError, match="a section has a weight"):
            Section(**wrong)
    with pytest.raises(ValueError, match="no section has a weight"):
        SectionSimilarity({"page": Section(0.0)})


def test_a_memory_recalls_by_sections_what_words_alone_would_confuse():
    similarity = SectionSimilarity({"page": Section(0.0, minimum=1.0), "done": Section()})
    memory = Experiences(similarity=similarity)
    steps = [
        Transition(join_sections({"page": page, "done": "typed a name"}), f"click {page}", 1.0) for page in ("shop", "mail")
    ]
    memory.add(Trajectory("r/0", Task("t", "goal"), tuple(steps), run="r"))
    found = memory.neighbours(join_sections({"page": "mail", "done": "typed a name"}), 5, task="t")
    assert [one.action for one in found] == ["click mail"]
