"""BM25 search over a few thousand texts: the ranking behind the environments that have a search box.

The scores are those of the package `bm25s` (Lucene's variant, k1 = 1.5, b = 0.75). A text's words are its runs of letters and
digits, lower case; nothing is stemmed and no word is left out. Scores that agree to nine digits are ties, and of tied texts
the earlier one comes first, so that equal questions have equal answers on every machine.
"""

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ....memory.errors import UserError

__all__ = ["Ranking", "words"]

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The words of a text, lower case, in order."""
    return _WORD.findall(text.lower())


class Ranking:
    """An index of texts for BM25 search; safe to share between threads."""

    def __init__(self, texts: Sequence[str], owner: str) -> None:
        try:
            bm25s = import_module("bm25s")  # a third of a second, and optional
        except ImportError as cause:
            raise UserError(f"{owner}: its search needs the package bm25s: pip install bm25s") from cause
        parted = [words(text) for text in texts]
        self._known = {word: n for n, word in enumerate(sorted({word for text in parted for word in text}))}
        self._index: Any = bm25s.BM25(method="lucene", k1=1.5, b=0.75, dtype="float64", backend="numpy")
        if self._known:
            numbers = [[self._known[word] for word in text] for text in parted]
            self._index.index((numbers, dict(self._known)), show_progress=False)

    def top_places(self, query: str, count: int) -> list[int]:
        """The numbers of the texts that share a word with the query, best first."""
        asked = [word for word in dict.fromkeys(words(query)) if word in self._known]
        if not asked:
            return []
        scores = self._index.get_scores(asked).round(9)
        return [int(place) for place in (-scores).argsort(kind="stable")[:count] if scores[place] > 0]
