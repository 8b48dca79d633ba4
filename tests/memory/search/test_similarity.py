"""The exact index equals comparing with every row, always; the tokens and the similarity are what they say."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from variants import quick

from learngraph.memory.search import similarity
from learngraph.memory.search.similarity import (
    JaccardIndex,
    JaccardSimilarity,
    bag,
    jaccard,
    ngrams,
    reference_words,
    shingles,
    words,
)

tokens = st.lists(st.integers(0, 12), max_size=8)
# None adds nothing: (tokens, None) appends a row, (tokens, (k, threshold)) asks.
operations = st.lists(
    st.tuples(tokens, st.none() | st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.2, 1 / 3, 0.5, 0.95, 1.0]))),
    max_size=60,
)


def brute_force(rows: list[set[Hashable]], query: Iterable[Hashable], k: int, threshold: float) -> list[tuple[int, float]]:
    wanted = set(query)
    scored = [(row, jaccard(wanted, have)) for row, have in enumerate(rows)]
    matches = [(row, similarity) for row, similarity in scored if similarity > 0 and similarity >= threshold]
    return sorted(matches, key=lambda match: (-match[1], -match[0]))[:k]


@given(operations)
def test_index_equals_brute_force_over_any_mixture_of_appends_and_queries(steps):
    index, rows = JaccardIndex(), []
    for step, question in steps:
        if question is None:
            assert index.add(step) == len(rows)
            rows.append(set(step))
        else:
            assert index.search(step, *question) == brute_force(rows, step, *question)
    assert len(index) == len(rows)


def zipf_rows(count: int, vocabulary: int, length: int, seed: int) -> list[list[int]]:
    """Texts with Zipf word frequencies, each a variation of one of a few rooms, so that there are near neighbours."""
    draw = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocabulary + 1)
    rooms = draw.choice(vocabulary, size=(max(count // 40, 1), length), p=weights / weights.sum())
    rows = rooms[draw.integers(0, len(rooms), count)]
    changed = draw.random(rows.shape) < 0.25
    rows[changed] = draw.choice(vocabulary, size=int(changed.sum()), p=weights / weights.sum())
    return rows.tolist()


@pytest.mark.parametrize(("vocabulary", "length"), quick([(2_000, 40), (40, 20), (300, 300)], 300))
def test_index_equals_brute_force_where_it_leaves_frequent_tokens_out(vocabulary, length):
    """Enough rows for every shortcut to be taken; texts of 300 tokens overlap by more than a byte can count."""
    rows = zipf_rows(20_000 if length < 100 else 3_000, vocabulary, length, seed=vocabulary)
    rows += [list(range(length))] * 3  # equals, to be broken newest first, and more than 255 tokens in common
    index = JaccardIndex()
    for row in rows:
        index.add(row)
    sets: list[set[Hashable]] = [set(row) for row in rows]
    draw = np.random.default_rng(1)
    queries = [rows[int(draw.integers(len(rows)))] for _ in range(3)]
    queries += [[*row[: length * 3 // 4], -1, -2] for row in queries]
    queries += [draw.integers(0, vocabulary, length).tolist(), list(range(length)), [0], [-1], []]
    for query in queries:
        everything = brute_force(sets, query, len(sets), 0.0)
        for k, threshold in [(10, 0.0), (1, 0.0), (10, 0.6), (3_000, 0.05), (0, 0.0)]:
            assert index.search(query, k, threshold) == [match for match in everything if match[1] >= threshold][:k]


def test_a_negative_k_is_refused():
    with pytest.raises(ValueError, match="k must be >= 0"):
        JaccardIndex().search(["a"], -1)


def test_a_failed_append_leaves_the_index_as_it_was():
    index = JaccardIndex()
    index.add(["a"])
    with pytest.raises(TypeError):
        index.add(["a", ["not hashable"]])  # type: ignore[list-item]
    assert index.add(["a"]) == 1
    assert index.search(["a"], 5) == [(1, 1.0), (0, 1.0)]


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_jaccard_of_bags_is_the_sum_of_minima_over_the_sum_of_maxima(a, b):
    left, right = Counter(a), Counter(b)
    smaller = sum(min(left[token], right[token]) for token in "abc")
    larger = sum(max(left[token], right[token]) for token in "abc")
    assert jaccard({*bag(a)}, {*bag(b)}) == (smaller / larger if smaller else 0.0)


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_jaccard_eq_24(a, b):
    assert jaccard(a, b) == (len(a & b) / len(a | b) if a and b else 0.0)


def test_words():
    assert words("A brass lantern, 2.50 coins; DON'T (well-lit)!") == [
        "a", "brass", "lantern", "2.50", "coins", "don't", "well", "lit",
    ]  # fmt: skip
    assert words("Ärmel 7. red_key 5.Next") == ["ärmel", "7", "red_key", "5", "next"]
    assert words("## .@") == ["##", ".@"]  # a map in symbols has no words, and is still a state
    assert words("  ") == []


def test_reference_words_lose_what_touches_punctuation():
    assert reference_words("A brass lamp, here (Lit) 3") == ["a", "brass", "here", "3"]


def test_ngrams():
    assert ngrams(["a", "b", "c"], 2) == ["a b", "b c"]
    assert ngrams(["a", "b", "c"], 3) == ["a b c"]
    assert ngrams(["a", "b"], 4) == ["a", "b"]  # fewer tokens than n: the tokens themselves
    with pytest.raises(ValueError, match="n >= 1"):
        ngrams(["a"], 0)


@pytest.mark.parametrize(("a", "b", "similarity"), [("lamp", "lamp", 1.0), ("", "", 0.0)])
def test_reference_jaccard_rows(a, b, similarity):
    """The authors' 4-gram multiset Jaccard of one token each (unigrams instead), and of two empty texts."""
    left, right = ({*bag(ngrams(reference_words(text), 4))} for text in (a, b))
    assert jaccard(left, right) == similarity


def test_one_changed_word_of_26_leaves_the_reference_4_grams_at_0_77():
    text = [f"w{i}" for i in range(26)]
    other = [*text[:2], "changed", *text[3:]]
    assert jaccard({*bag(ngrams(text, 4))}, {*bag(ngrams(other, 4))}) == pytest.approx(0.77, abs=0.001)


def margin(tokens: Callable[[str], Iterable[Hashable]]) -> float:
    """Least similarity to the same room less greatest to another, averaged over the states that have both."""
    lines = (Path(__file__).parent / "rooms.txt").read_text().splitlines()
    states = [(room, set(tokens(text))) for room, text in (line.split(" | ") for line in lines)]
    margins = []
    for state in states:
        same = [jaccard(state[1], other[1]) for other in states if other is not state and other[0] == state[0]]
        others = [jaccard(state[1], other[1]) for other in states if other[0] != state[0]]
        if same:
            margins.append(min(same) - max(others))
    return float(np.mean(margins))


def test_shingles_know_a_room_again_when_its_items_change():
    assert shingles("a red lamp") == ["a", "red", "lamp", "a red", "red lamp", "a red lamp"]
    assert margin(shingles) > margin(words) > margin(reference_words)
    assert jaccard(set(shingles("Shed. A rope.")), set(shingles("Shed. A lamp."))) > 0  # short ones keep something


def test_a_goal_is_compared_with_each_other_goal_once(monkeypatch):
    """Whatever is asked in between and added afterwards: an episode asks with one goal at every step."""
    draw = np.random.default_rng(0)
    compared: list[Any] = []
    monkeypatch.setattr(similarity, "jaccard", lambda a, b: compared.append((a, b)) or jaccard(a, b))

    def some(count: int) -> str:
        return " ".join(draw.choice(list("abcdefghijkl"), count))

    def brute(reading: Any) -> list[tuple[float, int]]:
        pairs = [(jaccard(reading[1], s) * (1 + (1.0 if g == reading[0] else jaccard(g, reading[0]))) / 2) for g, s in stored]
        return sorted(((value, row) for row, value in enumerate(pairs) if value > 0), reverse=True)

    measure, others = JaccardSimilarity(lambda goal, text: text.split()), [some(5) for _ in range(40)]
    rows, stored = measure.rows(), list[Any]()
    for number in range(300):
        (reading,) = measure.read([f"goal: {others[number % 40]}\nstate: {some(3)}"])
        stored.append(reading)
        rows.add(reading)
    goals = [f"goal: {some(4)}\nstate: " for _ in range(3)]
    for goal in goals * 2:
        for _ in range(3):
            (reading,) = measure.read([goal + some(3)])
            found, similarities = rows.nearest(reading, 300, 0.0, None)
            assert list(zip(similarities.tolist(), found.tolist(), strict=True)) == brute(reading)
    assert len(compared) == len(set(compared)) == 3 * len({goal for goal, _ in stored})
    (reading,) = measure.read([f"goal: new\nstate: {some(3)}"])
    stored.append(reading)
    rows.add(reading)
    (reading,) = measure.read([goals[0] + some(3)])
    assert rows.nearest(reading, 5, 0.0, None)[0].tolist() == [row for _, row in brute(reading)[:5]]
