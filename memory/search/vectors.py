"""Dense keys: an exact comparison of texts by the cosine of their embeddings. Each text is embedded once.

A query reads every vector: 6 ms for 100,000 vectors of 384 numbers, where the encoder takes 24 ms or more for the query's
text. An approximate index would save little, and misses neighbours where the same states recur many times (Chroma's index
found 54 of 100).
"""

import base64
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from ..errors import UserError
from ..storage.cache import Cache, cache_key
from ..storage.chroma_store import embedder_name
from .encoders import Prompts
from .similarity import KeyRows, RankedRows, Similarity, split_key, with_goal_places

__all__ = ["BadVectors", "CosineSimilarity"]

EmbeddedText = tuple[str, NDArray[np.float32]]
"""A text in the form that is compared: its hash, and its vector (dims,) of unit length (or zero)."""


class EmbeddedKey(NamedTuple):
    """A key text in the form that is compared."""

    state: EmbeddedText
    goal: EmbeddedText
    """The hash is empty and the vector zero for a key without a goal."""


UNRELATED = tuple(
    f"goal: {goal}\nstate: {state}"
    for goal, state in (
        ("put a clean mug on the shelf", "You are in the kitchen. On the counter you see a plate, a knife and a tomato."),
        ("book the cheapest flight to Oslo", "Departures on Friday: 07:15, 11:40 and 18:05. Fares begin at 89 euros."),
        ("win this game of chess", "White's bishop pins the knight. Black has castled and is a pawn up."),
        ("open the vault below the castle", "A damp cellar. Stone steps lead up, and an iron gate bars the way north."),
        ("refund a customer", "Ticket 4182: the parcel came damaged, and she asks for her money back."),
        ("prove that the sum of two odd numbers is even", "Let m = 2a + 1 and n = 2b + 1 with integers a and b."),
        ("repair the failing test", "AssertionError in line 57 of parser.py: expected a list, got None."),
        ("find out who composed this opera", "Search results: a review of the premiere in Milan, and a biography."),
    )
)
"""Keys of situations that have nothing to do with each other."""


_NO_PROMPTS = Prompts()


class BadVectors(UserError, ValueError):
    """An error: the encoder's vectors cannot be compared with each other."""


class CosineSimilarity(Similarity):
    """The comparison of key texts by the cosine of their embeddings, with a persistent cache of the vectors.

    A key of the form `goal: ...` and, from the next line on, `state: ...` is compared in two parts, as by `JaccardSimilarity`:

        similarity = cos(states) * (1 + cos(goals)) / 2,    1 for the cosine of equal goals

    where the words of a state that its goal names are replaced by their places in the goal (`with_goal_places`). One vector for
    both parts is mostly about the goal, the same at every step. With all-MiniLM-L6-v2 at ALFWorld's valid_train, four precedents
    then hold the expert's next action at .72 of the steps, and in two parts at .87. A key of any other form is compared as a whole.

    A step costs at most one call of the encoder: the vector of its search is stored with it, and a known text needs no call.
    Key and query are texts of one form, so both are embedded alike, and equal texts have similarity 1. With an instruction
    before queries only, which some encoders want, neither holds: every text is embedded twice.

    The vectors belong to texts, not to trajectories. The file is only a cache: without it the texts are embedded again.

    Args:
        embeddings: the encoder, any LangChain `Embeddings` (`SentenceEncoder` for a local model).
        path: the SQLite file of the vectors, made if missing, which several encoders may share; None: they last as long as the process.
        prompts: the texts that the encoder wants before queries and before stored texts.

    Raises:
        CacheError: the file is another program's, damaged, or cannot be written.

    It is safe to use from several threads and processes.
    """

    def __init__(
        self, embeddings: Embeddings, path: str | os.PathLike[str] | None = None, *, prompts: Prompts = _NO_PROMPTS
    ) -> None:
        self.name = embedder_name(embeddings)
        self.prompts = prompts
        self._embeddings = embeddings
        self._dims = 0  # 0: no vector was seen yet
        self._floor: float | None = None
        self._cache = Cache(None if path is None else Path(path))

    def __repr__(self) -> str:
        return f"CosineSimilarity({self.name}, {self._cache.path or 'in this process'})"

    def close(self) -> None:
        """Close the file. Vectors that were read stay usable."""
        self._cache.close()

    @property
    def minimum(self) -> float:
        return -1.0

    @property
    def default_floor(self) -> float:
        """The greatest similarity among situations that have nothing to do with each other (`UNRELATED`), at least 0.

        Each encoder has a scale of its own: the cosine of two such texts is near 0 for some, and above 0.7 for others.
        """
        if self._floor is None:
            rows, everything = self.rows(), np.ones(len(UNRELATED), np.bool_)
            for reading in self.read(UNRELATED):
                rows.add(reading)
            queries = self._read(UNRELATED, self.prompts.query)
            nearest = [
                rows.nearest(query, 1, -1.0, everything & ~row)[1]
                for query, row in zip(queries, np.eye(len(queries), dtype=np.bool_), strict=True)
            ]
            self._floor = max(0.0, *(float(found[0]) for found in nearest))
        return self._floor

    def rows(self) -> KeyRows:
        """An empty table of rows."""
        return _CosineRows()

    def read(self, texts: Sequence[str], /) -> list[EmbeddedKey]:
        """The vectors of these stored texts; one call of the encoder embeds all unknown ones."""
        return self._read(texts, self.prompts.document)

    def read_query(self, text: str, /) -> EmbeddedKey:
        """The vectors of a text that is searched for."""
        return self._read([text], self.prompts.query)[0]

    def _read(self, texts: Sequence[str], prompt: str) -> list[EmbeddedKey]:
        parts = [split_key(text) for text in texts]
        states = [prompt + with_goal_places(goal, state) for goal, state in parts]
        goals = [prompt + goal for goal, _ in parts if goal]
        embedded = self._embed([*states, *goals])
        of_goals = iter(embedded[len(states) :])
        return [
            EmbeddedKey(state, next(of_goals) if goal else ("", np.zeros_like(state[1])))
            for state, (goal, _) in zip(embedded, parts, strict=False)
        ]

    def _embed(self, texts: Sequence[str]) -> list[EmbeddedText]:
        """The vectors of these texts as they are."""
        keys = [cache_key(self.name, text) for text in texts]
        known = {key: value for key in dict.fromkeys(keys) if (value := self._cache.get(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            made = self._unit(self._embeddings.embed_documents(list(missing.values())), len(missing))
            for key, vector in zip(missing, made, strict=True):  # if two threads embedded one text: the first one's vector
                known[key] = self._cache.put(key, base64.b64encode(vector.tobytes()).decode(), "vectors")
        vectors = {key: np.frombuffer(base64.b64decode(value), np.float32) for key, value in known.items()}
        for vector in vectors.values():
            self._dims = self._dims or len(vector)
            if len(vector) != self._dims:
                raise BadVectors(
                    f"the vectors of {self.name} have {self._dims} dimensions, and one has {len(vector)}: use one encoder of this "
                    "name, or name another file"
                )
        return [(key, vectors[key]) for key in keys]

    def _unit(self, vectors: Sequence[Sequence[float]], wanted: int) -> NDArray[np.float32]:
        """Vectors (wanted, dims) scaled to unit length; a zero vector stays zero and is similar to nothing."""
        matrix = np.asarray(vectors, np.float32)
        if matrix.ndim != 2 or len(matrix) != wanted or not matrix.shape[1]:
            raise BadVectors(f"the encoder {self.name} was given {wanted} texts and returned vectors of shape {matrix.shape}")
        if not np.isfinite(matrix).all():
            raise BadVectors(f"the encoder {self.name} returned a vector with a number that is not finite")
        length = np.linalg.norm(matrix, axis=1, keepdims=True)
        return cast(NDArray[np.float32], matrix / np.where(length == 0, 1, length))


_BLOCK = 4096
"""Vectors allocated at once, so that none is moved later; only speed depends on it."""
_MASKED = np.float32(-2)
"""Less than any cosine."""


class _CosineRows:
    """The rows of one memory: each refers to the vectors of a state and of a goal, and equal texts share one."""

    def __init__(self) -> None:
        self._states, self._goals = _Vectors(), _Vectors()
        self._state_of = array("i")  # row -> number of its state's vector; read in place, see `JaccardIndex`
        self._goal_of = array("i")  # row -> number of its goal's vector

    def add(self, reading: EmbeddedKey, /) -> None:
        self._state_of.append(self._states.add(reading.state))
        self._goal_of.append(self._goals.add(reading.goal))

    def nearest(self, reading: EmbeddedKey, k: int, min_similarity: float, among: NDArray[np.bool_] | None, /) -> RankedRows:
        similarities = self._states.cosines(reading.state)[np.frombuffer(self._state_of, np.int32)]
        similarities *= self._factors(reading.goal)[np.frombuffer(self._goal_of, np.int32)]
        if among is not None:
            similarities[~among] = _MASKED
        parts = max(512, 4 * k)
        if parts < len(similarities):  # no k-th best of 2 k or more parts' best is above the k-th best of all
            best = np.maximum.reduceat(similarities, np.arange(0, len(similarities), -(-len(similarities) // parts)))
            min_similarity = max(min_similarity, float(np.sort(best)[-k]))
        rows = np.flatnonzero(similarities >= np.float32(min_similarity))
        found = similarities[rows].astype(np.float64)
        order = np.lexsort((-rows, -found))[:k]
        order = order[found[order] >= min_similarity]  # the floor itself may have been rounded down
        return rows[order], found[order]

    def _factors(self, goal: EmbeddedText) -> NDArray[np.float32]:
        """number of a goal -> (1 + its cosine with this goal) / 2; 1 for an equal goal, also one of a zero vector."""
        factors = (1 + self._goals.cosines(goal)) / 2
        if (same := self._goals.number(goal)) is not None:
            factors[same] = 1
        return cast(NDArray[np.float32], factors)


class _Vectors:
    """Distinct texts and their vectors, by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # hash of a text -> number of its vector
        self._hashes: list[str] = []
        self._blocks: list[NDArray[np.float32]] = []  # (_BLOCK, dims) each
        self._last: tuple[str, NDArray[np.float32]] = ("", np.zeros(0, np.float32))
        """The text of the last `cosines`, and its result."""

    def add(self, text: EmbeddedText) -> int:
        """The number of this text."""
        key, vector = text
        number = self._numbers.setdefault(key, len(self._numbers))
        if number == len(self._hashes):
            self._hashes.append(key)
            block, place = divmod(number, _BLOCK)
            if block == len(self._blocks):
                self._blocks.append(np.empty((_BLOCK, len(vector)), np.float32))
            self._blocks[block][place] = vector
        return number

    def number(self, text: EmbeddedText) -> int | None:
        """The number of this text, if it was added."""
        return self._numbers.get(text[0])

    def text(self, number: int) -> EmbeddedText:
        """The text of this number."""
        return self._hashes[number], self._blocks[number // _BLOCK][number % _BLOCK]

    def cosines(self, text: EmbeddedText) -> NDArray[np.float32]:
        """number of a vector -> its cosine with this one. Cached for the next search with the same text."""
        key, vector = text
        if self._last[0] != key or len(self._last[1]) != len(self._numbers):
            cosines = np.clip(self._all(vector), -1, 1)
            if (same := self._numbers.get(key)) is not None and vector.any():
                cosines[same] = 1  # rather than 1 less the rounding
            self._last = key, cosines
        return self._last[1]

    def _all(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """number of a vector -> its dot product with this one.

        One product per row (`vecdot`) reads memory twice as fast as BLAS' matrix times vector. With BLAS the last digit of a
        cosine would also depend on the other stored vectors.
        """
        products = np.empty(len(self._numbers), np.float32)
        for start, block in zip(range(0, len(products), _BLOCK), self._blocks, strict=True):
            part = products[start : start + _BLOCK]
            np.vecdot(block[: len(part)], vector, out=part)
        return products
