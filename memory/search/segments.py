"""Segments of an index of token sets: immutable numpy arrays, which can lie in files and be mapped into memory.

A search of segments is exact: how similar a row is does not depend on other rows, so the best of all segments are the best of the
best of each. Lucene stores its indexes in the same way. In a segment, a token is known by 64 bits of its hash (XXH3): that any two
of 10^8 tokens have the same one, which would make the rows with them a little too similar, has a probability of 3e-4.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest as _digest

from .similarity import InvertedIndex, JaccardIndex, RankedRows

__all__ = ["MERGE_ROWS", "IndexSegment", "TokenSegments"]

Hashes = NDArray[np.uint64]
MERGE_ROWS = 1 << 20
"""Rows up to which segments are merged: each takes a search a millisecond. To merge a million rows of 160 tokens takes 16 s, and
some 4 GB of memory for as long."""
TABLE_TOKENS = 1 << 21
"""Tokens of a segment up to which a comparison makes a table of them all, a byte each: a larger one fits no cache."""


def hash_tokens(tokens: Collection[Hashable]) -> Hashes:
    """The hashes of some distinct tokens, in their order."""
    texts = cast("Collection[str]", tokens)
    try:
        found = array("Q", map(_digest, map(str.encode, texts)))
    except UnicodeEncodeError:  # half a surrogate pair
        found = array("Q", [_digest(text.encode("utf-8", "surrogatepass")) for text in texts])
    except TypeError as error:
        raise TypeError(f"the tokens of a segment are texts: {error}") from error
    return np.array(found, np.uint64)


class IndexSegment(InvertedIndex):
    """An immutable index of rows of tokens.

    Args:
        arrays: its parts, by the names in `NAMES`, as `make` returns them.
    """

    NAMES = ("tokens", "starts", "vocabulary", "ends", "postings", "digests", "digest_rows")
    """tokens: the numbers of the tokens of all rows, one row after the other; starts: where each row begins, and the end.
    vocabulary: the hashes of all tokens, ascending, numbered from 0; ends: where the rows of each begin in postings, and the end.
    digests: the sums of the rows' hashes, ascending; digest_rows: their rows."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = {name: arrays[name] for name in self.NAMES}
        plain = (np.asarray(array) for array in self.arrays.values())  # slices of np.memmap itself are slow to make
        self._tokens, self._starts, self._vocabulary, self._ends, self._postings, self._digests, self._digest_rows = plain

    @classmethod
    def make(cls, hashes: Hashes, sizes: NDArray[np.int64]) -> IndexSegment:
        """The index of these rows: the hashes of their tokens, one row after the other, and the number of tokens of each row."""
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
        digests = totals[starts[1:]] - totals[starts[:-1]]
        del totals
        order = np.argsort(hashes)
        ordered = hashes[order]
        first = np.ones(len(ordered), np.bool_)  # of the places of a token
        first[1:] = ordered[1:] != ordered[:-1]
        ends = np.append(np.flatnonzero(first), len(ordered)).astype(np.int32)
        vocabulary = ordered[first]
        del ordered
        tokens = np.empty(len(hashes), np.int32)
        tokens[order] = np.cumsum(first, dtype=np.int32) - 1
        postings = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[order]
        by_digest = np.argsort(digests, kind="stable")
        arrays = (tokens, starts, vocabulary, ends, postings, digests[by_digest], by_digest.astype(np.int32))
        return cls(dict(zip(cls.NAMES, arrays, strict=True)))

    @classmethod
    def of(cls, rows: JaccardIndex) -> IndexSegment:
        """The segment of these rows.

        Raises:
            TypeError: a token is no text.
        """
        known, numbers, sizes = rows.columns()
        return cls.make(hash_tokens(known)[numbers], sizes.astype(np.int64))

    @classmethod
    def merge(cls, segments: Sequence[IndexSegment]) -> IndexSegment:
        """The rows of several segments, in their order, in one."""
        hashes = np.concatenate([one._vocabulary[one._tokens] for one in segments])
        return cls.make(hashes, np.concatenate([np.diff(one._starts) for one in segments]))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __repr__(self) -> str:
        return f"IndexSegment({len(self)} rows, {len(self._vocabulary)} tokens)"

    def _numbers(self, hashes: Hashes) -> NDArray[np.intp]:
        """The numbers of those tokens that the segment has."""
        places = np.searchsorted(self._vocabulary, hashes)
        inside = places < len(self._vocabulary)
        places = places[inside]
        numbers: NDArray[np.intp] = places[self._vocabulary[places] == hashes[inside]]
        return numbers

    def find(self, hashes: Hashes) -> int | None:
        """The newest row with exactly these tokens, if there is one."""
        digest = np.sum(hashes, dtype=np.uint64)
        low, high = np.searchsorted(self._digests, digest, "left"), np.searchsorted(self._digests, digest, "right")
        if low == high:
            return None
        numbers = np.sort(self._numbers(hashes))
        for row in self._digest_rows[low:high][::-1].tolist():
            own = self._tokens[self._starts[row] : self._starts[row + 1]]
            if len(numbers) == len(hashes) and np.array_equal(np.sort(own), numbers):
                return int(row)
        return None

    def nearest(self, hashes: Hashes, k: int, threshold: float) -> RankedRows:
        """At most k rows of at least this similarity to a set of tokens, best first, ties newest first."""
        known = self._numbers(hashes)
        if not len(known) or not k:
            return np.zeros(0, np.intp), np.zeros(0)
        frequencies = self._ends[known + 1] - self._ends[known]
        order = np.argsort(frequencies, kind="stable")
        return self._search(known[order].tolist(), frequencies[order].tolist(), len(hashes), k, threshold, None)

    def _rows_with(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        numbers = np.array(tokens, np.intp)
        spans = zip(self._ends[numbers].tolist(), self._ends[numbers + 1].tolist(), strict=True)
        rows: NDArray[np.int32] = np.concatenate([self._postings[:0], *(self._postings[start:end] for start, end in spans)])
        return rows

    def _compare(self, rows: NDArray[np.intp], known: list[int]) -> NDArray[np.int64]:
        if not len(rows):
            return np.zeros(0, np.int64)
        sizes = self._sizes_of(rows)
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1]) + np.repeat(self._starts[rows] - ends + sizes, sizes)
        tokens, count = self._tokens[places], len(self._vocabulary)
        if count <= TABLE_TOKENS:
            table = np.zeros(count, np.bool_)
            table[known] = True
            hits = table[tokens]
        else:
            wanted = np.sort(np.array(known, np.int32))
            low = np.zeros(1 << 16, np.bool_)  # of the last 16 bits of a token's number
            low[wanted & 0xFFFF] = True
            likely = np.flatnonzero(low[tokens & 0xFFFF])
            hits = np.zeros(len(tokens), np.bool_)
            hits[likely] = wanted[np.minimum(np.searchsorted(wanted, tokens[likely]), len(wanted) - 1)] == tokens[likely]
        overlaps: NDArray[np.int64] = np.add.reduceat(hits, ends - sizes, dtype=np.int64)
        return overlaps  # every row has a count, hence a token: reduceat meets no empty segment

    def _sizes_of(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = self._starts[rows + 1] - self._starts[rows]
        return sizes


class TokenSegments:
    """Rows of sets of texts: some in segments, the newest in an index that grows (`JaccardIndex`)."""

    def __init__(self, segments: Iterable[IndexSegment] = ()) -> None:
        self._parts: list[IndexSegment | JaccardIndex] = [*segments, JaccardIndex()]
        self._latest: tuple[frozenset[Hashable], Hashes] = (frozenset(), np.zeros(0, np.uint64))  # a reading and its hashes
        self._place()

    def _hashes_of(self, reading: frozenset[Hashable]) -> Hashes:
        if self._latest[0] is not reading:
            self._latest = reading, np.sort(hash_tokens(reading))  # ascending ones are looked up faster
        return self._latest[1]

    def _place(self) -> None:
        """Note where each part begins."""
        self._starts = np.cumsum([0, *map(len, self._parts)])[:-1].tolist()

    def __len__(self) -> int:
        return int(self._starts[-1]) + len(self._parts[-1])

    @property
    def newest(self) -> int:
        """The number of rows in the part that grows."""
        return len(self._parts[-1])

    @property
    def parts(self) -> list[IndexSegment | JaccardIndex]:
        """The segments, the parts that are no segments yet, and the part that grows."""
        return list(self._parts)

    def begin_part(self) -> None:
        """Let a new part grow: those before do not change any more."""
        if self.newest:
            self._parts.append(JaccardIndex())
            self._place()

    def end_segment(self) -> None:
        """Make a segment of the part that grows."""
        if self.newest:
            self._parts[-1] = IndexSegment.of(cast(JaccardIndex, self._parts[-1]))
            self.begin_part()

    def put_segments(self, segments: Sequence[IndexSegment]) -> None:
        """Put segments in the place of the first parts, which together have the same rows."""
        rows, parts = sum(map(len, segments)), list(self._parts)
        while rows > 0:
            rows -= len(parts.pop(0))
        if rows < 0:
            raise ValueError(f"{segments} end within a part of the index")
        self._parts = [*segments, *parts] if parts else [*segments, JaccardIndex()]
        self._place()

    def add(self, reading: frozenset[Hashable], /) -> None:
        """Append a row."""
        cast(JaccardIndex, self._parts[-1]).add(reading)

    def find(self, reading: frozenset[Hashable]) -> int | None:
        """The row with exactly these tokens, if there is one."""
        for start, part in zip(reversed(self._starts), reversed(self._parts), strict=True):
            row = part.find(reading) if isinstance(part, JaccardIndex) else part.find(self._hashes_of(reading))
            if row is not None:
                return int(start) + row
        return None

    def nearest(self, reading: frozenset[Hashable], k: int, min_similarity: float, among: None = None, /) -> RankedRows:
        """At most k rows of at least this similarity, best first, ties newest first."""
        rows, similarities = np.zeros(0, np.intp), np.zeros(0)
        floor = min_similarity
        for start, part in zip(reversed(self._starts), reversed(self._parts), strict=True):
            if not len(part):
                continue
            if isinstance(part, JaccardIndex):
                more, found = part.nearest(reading, k, floor, None)
            else:
                more, found = part.nearest(self._hashes_of(reading), k, floor)
            if not len(rows):  # mostly there is one segment, and nothing to merge
                rows, similarities = more + start, found
            elif len(more):
                rows, similarities = np.concatenate([rows, more + start]), np.concatenate([similarities, found])
                order = np.lexsort((-rows, -similarities))[:k]
                rows, similarities = rows[order], similarities[order]
            if 0 < len(rows) == k:
                floor = max(floor, float(similarities[-1]))
        return rows, similarities
