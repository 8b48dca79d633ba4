"""The similarity of texts by their common tokens (Jaccard), and an exact index that finds the most similar ones.

The index is exact because learning depends on it: an approximate index may miss the one remembered state that matters. This
inverted index searches a million texts of 60 tokens in milliseconds on one core, grows by one row at a time, and needs no
rebuild.
"""

import re
import threading
from abc import ABC, abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count
from math import ceil
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "InvertedIndex",
    "JaccardIndex",
    "JaccardSimilarity",
    "KeyRows",
    "Similarity",
    "TokenSimilarity",
    "bag",
    "jaccard",
    "kth_largest",
    "ngrams",
    "reference_words",
    "shingles",
    "words",
]

RankedRows = tuple[NDArray[np.intp], NDArray[np.float64]]
"""Rows and their similarities, best first, ties newest first."""

_WORD = re.compile(r"\w+(?:(?:['’]|(?<=\d)\.(?=\d))\w+)*")


def words(text: str) -> list[str]:
    """The lower-cased words and numbers of a text, in order, without the punctuation around them.

    `2.50` and `don't` stay whole, `well-lit` is two words. A text without any word (a map drawn in symbols) is split
    on whitespace instead, so that its symbols can be compared.
    """
    return _WORD.findall(text.lower()) or text.split()


def reference_words(text: str) -> list[str]:
    """The tokens of JitRL's published code: the text is split on whitespace, and only alphanumeric pieces stay.

    A word that touches punctuation is lost with it, so `a lamp.` and `a sword.` are equal. Use this only to reproduce the
    published code, `words` otherwise.
    """
    return [token for token in text.lower().split() if token.isalnum()]


def ngrams(tokens: Sequence[str], n: int) -> list[str]:
    """The runs of n neighbouring tokens, each joined by spaces; the single tokens if there are fewer than n."""
    if n < 1:
        raise ValueError(f"n-grams need n >= 1, got n={n}")
    if len(tokens) < n:
        return list(tokens)
    return [" ".join(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def shingles(text: str) -> list[str]:
    """The words of a text and its runs of two and three neighbouring words.

    This choice was compared with others on the 16 states of 8 rooms in tests/memory/search/rooms.txt: long descriptions
    in the style of TextWorld and Zork, and short ones; the same room with other items, doors and inventory, or another room of
    the same phrasing. Margin: the least similarity to the same room less the greatest to another, averaged over the states.

        tokens                      same room, min / mean    another, max / mean    margin
        reference_words             0.38 / 0.66              1.00 / 0.19            +0.02
        bag of their 4-grams        0.00 / 0.31              0.45 / 0.02            +0.17
        words                       0.33 / 0.65              0.60 / 0.16            +0.15
        words, pairs                0.28 / 0.57              0.53 / 0.10            +0.15
        words, pairs, triples       0.23 / 0.52              0.45 / 0.07            +0.18
        4-grams of words            0.00 / 0.34              0.25 / 0.01            +0.23

    Long runs separate best, but short texts then have similarity 0 to their own room. Single words avoid that, but confuse
    rooms that share their phrasing. The three together avoid both.
    """
    return _runs(words(text))


def _runs(tokens: Sequence[str]) -> list[str]:
    """The tokens, and the runs of two and of three neighbouring ones."""
    return [" ".join(tokens[i : i + n]) for n in (1, 2, 3) for i in range(len(tokens) - n + 1)]


def split_key(key: str) -> tuple[str, str]:
    """(goal, state) of a key of the form `goal: ...` and, from the next line on, `state: ...`; ("", key) of any other."""
    goal, label, state = key.partition("\nstate: ")
    return (goal.removeprefix("goal: "), state) if label and goal.startswith("goal: ") else ("", key)


def state_shingles(goal: str, state: str) -> list[str]:
    """The shingles of a state, with words that the goal names replaced by their place in the goal, and numbers apart.

    What a state means depends on the goal: for `put a mug in the safe`, holding a mug is like holding a plate for `put a plate in
    the fridge`, and unlike holding a mug for the latter. So both hold "word 2 of the goal". States under one goal keep all their
    differences. Numbers count as single words outside the runs, so that `shelf 1, shelf 2` shares its runs with `shelf 3, shelf 4`. Without a goal: `shingles`.
    """
    if not goal:
        return shingles(state)
    places, tokens = _places(goal), words(state)
    text = [f"\0{places[token]}" if token in places else token for token in tokens if not token.isdigit()]  # no word begins so
    return [*_runs(text), *(token for token in tokens if token.isdigit())]


def with_goal_places(goal: str, state: str) -> str:
    """A state with the words that the goal names replaced by their places in it: `goal1 on goal4`; see `state_shingles`."""
    places = _places(goal)
    return _WORD.sub(lambda found: f"goal{places[word]}" if (word := found[0].lower()) in places else found[0], state)


def _places(goal: str) -> dict[str, int]:
    """word of a goal -> its first place in it."""
    places: dict[str, int] = {}
    for place, word in enumerate(words(goal)):
        places.setdefault(word, place)
    return places


def bag(tokens: Iterable[Hashable]) -> list[tuple[Hashable, int]]:
    """The tokens with their occurrences numbered, so that a multiset becomes a set: a a b -> (a, 0) (a, 1) (b, 0).

    The set Jaccard of two bags equals the multiset Jaccard (sum of minima over sum of maxima) of their tokens, so one
    index serves both.
    """
    seen: Counter[Hashable] = Counter()
    tagged = []
    for token in tokens:
        tagged.append((token, seen[token]))
        seen[token] += 1
    return tagged


def jaccard(a: AbstractSet[Hashable], b: AbstractSet[Hashable]) -> float:
    """JitRL, Eq. 24: J(A, B) = |A and B| / |A or B|, in [0, 1]; 0 if one or both of them are empty."""
    common = len(a & b)
    return common / (len(a) + len(b) - common) if common else 0.0


def kth_largest(values: NDArray[np.float64], k: int) -> float:
    """The k-th largest value: of the negatives, since numpy takes ten times as long at the far end of many equal values."""
    return -float(np.partition(-values, k - 1)[k - 1])


class InvertedIndex(ABC):
    """The search of an inverted index: the k rows that are most similar to a set of tokens, which have numbers here.

    Each token has a list of the rows that contain it; a query adds up those lists, rarest token first. Frequent tokens cause
    nearly all of the work and matter least: they are left out as soon as no row that shares only them can be among the
    k best, and the few rows that still can are compared in full.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def _rows_with(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """The rows that contain these tokens, one list after the other."""

    @abstractmethod
    def _compare(self, rows: NDArray[np.intp], known: list[int]) -> NDArray[np.int64]:
        """The overlap of each of these rows with all of the known tokens, from the rows' own tokens."""

    @abstractmethod
    def _sizes_of(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """The number of distinct tokens of each of these rows."""

    def _search(
        self, known: list[int], frequencies: list[int], size: int, k: int, threshold: float, among: NDArray[np.bool_] | None
    ) -> RankedRows:
        """The best rows.

        Args:
            known: the query's tokens that some row has, rarest first.
            frequencies: the number of rows that contain each of them.
            size: |query|, with unknown tokens.
            k, threshold, among: as for `JaccardIndex.nearest`.
        """
        n = len(self)
        floor = threshold  # a lower bound of the k-th best similarity; it rises as rows are compared
        counts = np.zeros(n, np.min_scalar_type(len(known)))  # row -> its overlap with the tokens done so far
        done, batch = 0, max(n // 4, 1 << 16)  # postings to add up before the next check: tripled every time
        while True:
            upto, work = done, 0
            while upto < len(known) and (upto == done or work + frequencies[upto] <= batch):
                work += frequencies[upto]
                upto += 1
            counts += self._overlaps(known[done:upto], counts.dtype)
            if among is not None:
                counts *= among
            done, left, batch = upto, len(known) - upto, 3 * batch
            rows = self._leaders(counts, max(64, 4 * k))
            if len(rows) >= k:
                overlaps = self._compare(rows, known) if left else counts[rows].astype(np.int64)
                similarities = overlaps / (size + self._sizes_of(rows) - overlaps)
                floor = max(floor, kth_largest(similarities, k))
            needed = ceil(floor * size - 1e-9) - left  # a union is never smaller than the query
            if needed > 0 or not left:
                rows = np.flatnonzero(counts >= max(needed, 1))
            else:  # a row that shares only the tokens left out might still be among the best, if it is short
                rows = np.arange(n) if among is None else np.flatnonzero(among)
            sizes = self._sizes_of(rows)
            most = np.minimum(counts[rows].astype(np.int64) + left, sizes)
            rows = rows[most / (size + sizes - most) >= floor]
            if left and len(rows) * _COMPARE > frequencies[done]:
                continue
            overlaps = self._compare(rows, known) if left else counts[rows].astype(np.int64)
            rows, overlaps = rows[overlaps > 0], overlaps[overlaps > 0]
            return self._best(rows, overlaps, size, k, threshold)

    def _overlaps(self, tokens: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """row -> number of these tokens that it has, as `dtype`."""
        n, rows = len(self), self._rows_with(tokens)
        if len(rows) < 1 << 16:
            return np.bincount(rows, minlength=n).astype(dtype)
        # The sparse matrix-vector product is the one public loop that counts in bytes rather than in 64-bit integers:
        # a million counters then fit the cache, and counting is 4 times as fast as np.bincount.
        from scipy.sparse import csc_array  # type: ignore[import-untyped, unused-ignore]

        ends = np.array([0, len(rows)], np.int32)
        column = csc_array((np.ones(len(rows), dtype), rows, ends), shape=(n, 1))
        counts: NDArray[Any] = column @ np.ones(1, dtype)
        return counts

    @staticmethod
    def _leaders(counts: NDArray[Any], wanted: int) -> NDArray[np.intp]:
        """Some rows with the highest counts: `wanted` of them, or fewer if fewer have any."""
        low, high = 1, int(counts.max()) + 1
        while high - low > 1:  # the highest level that at least `wanted` rows reach
            middle = (low + high) // 2
            low, high = (middle, high) if np.count_nonzero(counts >= middle) >= wanted else (low, middle)
        rows = np.flatnonzero(counts >= low)
        return rows[np.argsort(counts[rows], kind="stable")[-wanted:]]

    def _best(self, rows: NDArray[np.intp], overlaps: NDArray[np.int64], size: int, k: int, threshold: float) -> RankedRows:
        similarities = overlaps / (size + self._sizes_of(rows) - overlaps)
        if len(rows) > k:
            threshold = max(threshold, kth_largest(similarities, k))
        chosen = similarities >= threshold
        rows, similarities = rows[chosen], similarities[chosen]
        order = np.lexsort((-rows, -similarities))[:k]
        return rows[order], similarities[order]


class JaccardIndex(InvertedIndex):
    """An exact index that finds the k rows most similar to a query, and grows row by row.

    See `InvertedIndex` for the search. Memory: 8 bytes per token of a row, and 200 for each new one.
    The index is safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: defaultdict[Hashable, int] = defaultdict(count().__next__)  # token -> its number
        self._first = array("i")  # token number -> the first row that contains it; most have no other
        # Token number -> the rows that contain it, ascending, where there are several.
        self._postings: list[array[int] | None] = []
        self._tokens = array("i")  # the token numbers of all rows, one row after the other
        self._starts = array("q")  # row -> start of its token numbers
        self._sizes = array("i")  # row -> number of its distinct tokens
        self._newest: dict[int, int] = {}  # hash of a set of tokens -> the newest row with that hash
        # numpy reads these arrays in place, and an array cannot grow while it is being read: below, no such view is
        # ever bound to a name, so that none outlives its expression, not even in the traceback of an interrupted search.

    def __len__(self) -> int:
        return len(self._sizes)

    def __repr__(self) -> str:
        return f"JaccardIndex({len(self)} rows, {len(self._ids)} tokens)"

    def add(self, tokens: Iterable[Hashable]) -> int:
        """Append a row and return its id: 0, 1, 2, ... Repeated tokens count once (see `bag` for multisets)."""
        distinct = dict.fromkeys(tokens)
        with self._lock:
            row = len(self._sizes)
            first, postings = self._first, self._postings
            numbers = seen = list(map(self._ids.__getitem__, distinct))  # new tokens get the next numbers
            if new := len(self._ids) - len(postings):
                seen = [number for number in numbers if number < len(postings)]
                first.extend([row] * new)
                postings.extend([None] * new)
            for number in seen:
                posting = postings[number]
                if posting is None:
                    postings[number] = array("i", (first[number], row))
                else:
                    posting.append(row)
            self._starts.append(len(self._tokens))
            self._tokens.extend(numbers)
            self._sizes.append(len(numbers))
            self._newest[hash(frozenset(distinct))] = row
            return row

    def columns(self) -> tuple[list[Hashable], NDArray[np.int32], NDArray[np.int32]]:
        """The tokens by number, the token numbers of all rows, one row after the other, and the number of tokens of each row."""
        with self._lock:
            return list(self._ids), np.array(self._tokens, np.int32), np.array(self._sizes, np.int32)

    def find(self, tokens: AbstractSet[Hashable]) -> int | None:
        """The newest row with exactly these tokens, if there is one."""
        with self._lock:
            row = self._newest.get(hash(frozenset(tokens)))
            if row is None:
                return None
            start, size = self._starts[row], self._sizes[row]
            numbers = self._tokens[start : start + size]
            return row if size == len(tokens) and {self._ids.get(token) for token in tokens} == set(numbers) else None

    def search(self, tokens: Iterable[Hashable], k: int, threshold: float = 0.0) -> list[tuple[int, float]]:
        """At most k rows with Jaccard similarity >= threshold as (row, similarity), best first, ties newest first.

        A row that shares no token with the query is never returned, not even at threshold 0.

        Args:
            tokens: of the query.
            k: the greatest number of rows, at least 0.
            threshold: the least similarity, in [0, 1].

        Raises:
            ValueError: k is negative.
        """
        if k < 0:
            raise ValueError(f"cannot return {k} rows: k must be >= 0")
        rows, similarities = self.nearest(tokens, k, threshold, None)
        return list(zip(rows.tolist(), similarities.tolist(), strict=True))

    def nearest(self, tokens: Iterable[Hashable], k: int, threshold: float, among: NDArray[np.bool_] | None) -> RankedRows:
        """The result of `search` as two arrays, which is faster for many rows.

        `among`: (rows,), False for each row to leave out, as if it had never been added; None leaves none out.
        """
        query = set(tokens)
        with self._lock:
            if among is not None and len(among) != len(self._sizes):
                raise ValueError(f"`among` has a value for each of {len(self._sizes)} rows, got {len(among)}")
            known = [number for token in query if (number := self._ids.get(token)) is not None]
            if not known or not k:
                return np.zeros(0, np.intp), np.zeros(0)
            known.sort(key=self._frequency)
            return self._search(known, list(map(self._frequency, known)), len(query), k, threshold, among)

    def similarities(self, tokens: Iterable[Hashable]) -> NDArray[np.float64]:
        """The Jaccard similarity of the query to each row, (rows,)."""
        query = set(tokens)
        with self._lock:
            known = [number for token in query if (number := self._ids.get(token)) is not None]
            overlaps = self._overlaps(known, np.dtype(np.int64))
            unions = len(query) + np.array(self._sizes, np.int64) - overlaps
            similarities: NDArray[np.float64] = overlaps / np.maximum(unions, 1)
            return similarities

    def _frequency(self, token: int) -> int:
        """The number of rows that contain a token."""
        return len(self._postings[token] or "1")

    def _rows_with(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        return np.frombuffer(b"".join([self._postings[token] or self._first[token : token + 1] for token in tokens]), np.int32)

    def _compare(self, rows: NDArray[np.intp], known: list[int]) -> NDArray[np.int64]:
        if not len(rows):
            return np.zeros(0, np.int64)
        wanted = np.zeros(len(self._first), np.bool_)
        wanted[known] = True
        sizes = self._sizes_of(rows)
        starts = np.frombuffer(self._starts, np.int64)[rows]
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1]) + np.repeat(starts - ends + sizes, sizes)
        hits = wanted[np.frombuffer(self._tokens, np.int32)[places]]
        overlaps: NDArray[np.int64] = np.add.reduceat(hits, ends - sizes, dtype=np.int64)
        return overlaps  # every row has a count, hence a token: reduceat meets no empty segment

    def _sizes_of(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        return np.frombuffer(self._sizes, np.int32)[rows].astype(np.int64)


_COMPARE = 200
"""Postings that can be added up in the time of one full comparison with a row; only speed depends on it."""


class KeyRows(Protocol):
    """The stored key texts, one row each, in the order of adding; not safe to use from several threads at once."""

    def add(self, reading: Any, /) -> int | None:
        """Append a row, as `Similarity.read` returned it."""

    def nearest(self, reading: Any, k: int, min_similarity: float, among: NDArray[np.bool_] | None, /) -> RankedRows:
        """At most k rows of at least this similarity, best first, ties newest first.

        `among`: (rows,), False for each row to leave out; None leaves none out.
        """


class Similarity(Protocol):
    """A comparison of key texts: by tokens (`JaccardSimilarity`) or embeddings (`memory.search.vectors.CosineSimilarity`)."""

    @property
    def minimum(self) -> float:
        """The smallest possible similarity; the greatest is 1, of equal texts."""
        return 0.0

    @property
    def default_floor(self) -> float:
        """The similarity below which texts usually have nothing to do with each other.

        0.21 by tokens: more than two states of two words that share one (0.2). Of the steps of ALFWorld's valid_train 1 % find
        nothing above it, and 30 % nothing above 0.3 by plain words.
        """
        return 0.21

    def read(self, texts: Sequence[str], /) -> Sequence[Any]:
        """Each stored text in the form that is compared. All slow work happens here; safe to call from several threads."""

    def read_query(self, text: str, /) -> Any:
        """A text that is searched for, in that form."""
        return self.read([text])[0]

    def rows(self) -> KeyRows:
        """An empty table of rows."""


@dataclass(frozen=True)
class JaccardSimilarity(Similarity):
    """The exact comparison of key texts by their common tokens; it needs no embeddings.

    A key of the form `goal: ...` and, from the next line on, `state: ...` (`memory.attempts.trajectories.structured_key`) is
    compared in two separate parts:

        similarity = J(states) * (1 + J(goals)) / 2,    J: the Jaccard index of the tokens as sets (1 for equal goals)

    where the state's words are read with the goal in mind (`state_shingles`): a thing that the goal names is compared by its
    place in the goal. So the state decides, and the goal at most halves. A goal of twenty words, the same in every step, does
    not make `door black` resemble `door red` (0.2, as without a goal), and states with nothing in common have similarity 0
    whatever the goal. One set of tokens for both parts would give those two doors 0.5 even with the goal `reach the exit`, and
    0.9 with a longer one. A key of any other form is compared as a whole, by J.
    """

    tokens: Callable[[str, str], Iterable[Hashable]] = state_shingles
    """(goal, text) -> the tokens of the text that are compared; the goal is empty for a text without one."""

    def read(self, texts: Sequence[str], /) -> list[tuple[frozenset[Hashable], frozenset[Hashable]]]:
        """(tokens of the goal, tokens of the state) of each text; no goal: all of it is the state."""
        parts = [split_key(text) for text in texts]
        return [(frozenset(self.tokens("", goal)), frozenset(self.tokens(goal, state))) for goal, state in parts]

    def rows(self) -> KeyRows:
        return _JaccardRows()


@dataclass(frozen=True)
class TokenSimilarity(Similarity):
    """The exact comparison of whole texts by their common tokens: J, the Jaccard index of their sets (JitRL, Eq. 24)."""

    tokens: Callable[[str], Iterable[Hashable]] = shingles
    """Text -> its tokens."""

    def read(self, texts: Sequence[str], /) -> list[frozenset[Hashable]]:
        """The tokens of each text."""
        return [frozenset(self.tokens(text)) for text in texts]

    def rows(self) -> JaccardIndex:
        return JaccardIndex()


_GOALS = 16
"""Number of goals whose factors (1 + J(goals)) / 2 are cached; only speed depends on it."""


class _JaccardRows:
    def __init__(self) -> None:
        self._states = JaccardIndex()
        self._numbers: dict[frozenset[Hashable], int] = {}  # goal -> its number
        self._texts: list[frozenset[Hashable]] = []  # number -> goal
        self._goals = array("i")  # row -> number of its goal
        # The latest goals, with the factors of all goals beside them: an episode has one goal, and searches at every step.
        self._goal_factors: dict[frozenset[Hashable], NDArray[np.float64]] = {}

    def add(self, reading: tuple[frozenset[Hashable], frozenset[Hashable]], /) -> None:
        goal, state = reading
        self._states.add(state)
        number = self._numbers.setdefault(goal, len(self._numbers))
        if number == len(self._texts):
            self._texts.append(goal)
        self._goals.append(number)

    def nearest(
        self,
        reading: tuple[frozenset[Hashable], frozenset[Hashable]],
        k: int,
        min_similarity: float,
        among: NDArray[np.bool_] | None,
        /,
    ) -> RankedRows:
        """States first, then goals. No row is more similar than its state, which tells when enough states were fetched."""
        goal, state = reading
        fetch = k
        while True:
            near, of_states = self._states.nearest(state, fetch, min_similarity, among)
            similarities = of_states * self._factors_of(goal, near)
            order = np.lexsort((-near, -similarities))[:k]
            order = order[similarities[order] >= min_similarity]
            rows, found = near[order], similarities[order]
            if len(near) < fetch or (len(rows) == k and (found[-1], rows[-1]) >= (of_states[-1], near[-1])):
                return rows, found
            fetch *= 4

    def _factors_of(self, goal: frozenset[Hashable], rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(1 + J(goals)) / 2 of each of these rows."""
        factors = self._goal_factors.pop(goal, np.zeros(0))
        if len(factors) < len(self._texts):
            factors = np.full(len(self._texts), np.nan)  # computed on demand
        numbers = np.frombuffer(self._goals, np.int32)[rows]
        missing = np.unique(numbers[np.isnan(factors[numbers])]).tolist()
        others = [self._texts[number] for number in missing]
        factors[missing] = [(1 + (1.0 if goal == other else jaccard(goal, other))) / 2 for other in others]
        self._goal_factors[goal] = factors  # the latest goal stands last
        if len(self._goal_factors) > _GOALS:
            del self._goal_factors[next(iter(self._goal_factors))]
        of_rows: NDArray[np.float64] = factors[numbers]
        return of_rows
