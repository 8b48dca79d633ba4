"""A comparison of keys in two stages: a fast one finds candidates, a second one chooses among them (JitRL, arXiv:2601.18510, appendix)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .similarity import KeyRows, RankedRows, Similarity

__all__ = ["TwoStageSimilarity"]


@dataclass(frozen=True)
class TwoStageSimilarity(Similarity):
    """The similarity of `second` among the rows that are nearest by `first`; any other row is no neighbour."""

    first: Similarity
    second: Similarity
    recalled: int = 100
    """Rows that the first stage passes on. The authors' code: ten times k, at least 100."""

    def read(self, texts: Sequence[str], /) -> list[tuple[Any, Any]]:
        """Each text as the two stages read it."""
        return list(zip(self.first.read(texts), self.second.read(texts), strict=True))

    def read_query(self, text: str, /) -> tuple[Any, Any]:
        """A text that is searched for, as the two stages read it."""
        return self.first.read_query(text), self.second.read_query(text)

    def rows(self) -> KeyRows:
        return _TwoStageRows(self.first.rows(), self.second.rows(), self.recalled, self.first.minimum)


class _TwoStageRows:
    def __init__(self, first: KeyRows, second: KeyRows, recalled: int, minimum: float) -> None:
        self._first, self._second, self._recalled, self._minimum = first, second, recalled, minimum
        self._count = 0

    def add(self, reading: tuple[Any, Any], /) -> None:
        self._first.add(reading[0])
        self._second.add(reading[1])
        self._count += 1

    def nearest(
        self, reading: tuple[Any, Any], k: int, min_similarity: float, among: NDArray[np.bool_] | None, /
    ) -> RankedRows:
        found, _ = self._first.nearest(reading[0], self._recalled, self._minimum, among)
        chosen = np.zeros(self._count, np.bool_)
        chosen[found] = True
        return self._second.nearest(reading[1], k, min_similarity, chosen)
