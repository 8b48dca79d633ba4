"""State keys with named sections (a page and what was done on it, a room and how one came there), each compared on its own."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .similarity import JaccardIndex, RankedRows, Similarity, bag, kth_largest, ngrams, words

__all__ = ["Section", "SectionRows", "SectionSimilarity", "join_sections", "split_sections"]

_INDENT = "  "


def join_sections(sections: Mapping[str, str]) -> str:
    """One text of named sections: each name on a line of its own with a colon, and below it its text, indented.

    Any text may stand in a section: `split_sections` returns just what was joined.

    Raises:
        ValueError: a name is empty, begins with a space, or has a line break.
    """
    for name in sections:
        if not name or name.startswith(" ") or "\n" in name:
            raise ValueError(f"a section's name is one line that begins with no space, got {name!r}")
    return "\n".join(
        line for name, text in sections.items() for line in (f"{name}:", *(_INDENT + part for part in text.split("\n")))
    )


def split_sections(key: str) -> dict[str, str]:
    """The sections of a text that `join_sections` made, by name, in order; empty for any other text."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in key.split("\n"):
        if line.startswith(_INDENT) and lines is not None:
            lines.append(line.removeprefix(_INDENT))
        elif line.endswith(":") and len(line) > 1 and not line.startswith(" ") and line[:-1] not in found and lines != []:
            lines = found[line[:-1]] = []
        else:
            return {}
    return {name: "\n".join(texts) for name, texts in found.items()} if lines else {}


@dataclass(frozen=True)
class Section:
    """A comparison of one section of a state key: by the Jaccard index of its sets of tokens, in [0, 1]; 1 if both are empty."""

    weight: float = 1.0
    """The section's share in the similarity of two keys, relative to the other sections; 0: it only filters."""
    ngram: int = 1
    """The number of neighbouring tokens that are compared as one."""
    minimum: float = 0.0
    """The least similarity of this section: keys that reach less are no neighbours. 1: the texts must be equal."""
    multiset: bool = False
    """True: a token counts as often as it occurs."""
    tokens: Callable[[str], Sequence[str]] = words
    """Text -> its tokens."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf") or not 0 <= self.minimum <= 1 or self.ngram < 1:
            raise ValueError(
                f"a section has a weight of at least 0, a minimum from 0 to 1 and an n-gram of at least 1, got {self}"
            )

    @property
    def is_exact(self) -> bool:
        """True if only keys with the same text here are neighbours."""
        return self.minimum == 1

    def read(self, text: str) -> frozenset[Hashable]:
        """The tokens of a text that are compared; of an empty one, the one token that only empty texts have."""
        runs = ngrams(self.tokens(text), self.ngram)
        return frozenset[Hashable](bag(runs) if self.multiset else runs) or _NOTHING


_NOTHING = frozenset[Hashable]([None])


Reading = tuple[tuple[str, ...], tuple[frozenset[Hashable], ...]]
"""A key as it is compared: the texts of its exact sections, and the tokens of the others."""


@dataclass(frozen=True)
class SectionSimilarity(Similarity):
    """The exact comparison of keys section by section.

        similarity = sum of w_s J_s / sum of w_s over the sections s,    w: weight, J: similarity of the section

    It is 0 where a section is less similar than its minimum. A section that a key lacks is empty. A key that was not made by
    `join_sections` has its whole text in every section. Keys whose exact sections differ are never compared: each text of those
    has an index of its own.
    """

    sections: Mapping[str, Section] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not sum(section.weight for section in self.sections.values()) > 0:
            raise ValueError(f"no section has a weight: {dict(self.sections)}")

    def read(self, texts: Sequence[str], /) -> list[Reading]:
        """The exact texts and the tokens of each key."""
        return [self._read(text) for text in texts]

    def _read(self, text: str) -> Reading:
        parts = split_sections(text)
        texts = [(section, parts.get(name, "") if parts else text) for name, section in self.sections.items()]
        return (
            tuple(text for section, text in texts if section.is_exact),
            tuple(section.read(text) for section, text in texts if not section.is_exact),
        )

    def rows(self) -> SectionRows:
        return SectionRows(list(self.sections.values()))

    def by_single_tokens(self) -> SectionSimilarity:
        """The same comparison without pairs or longer runs of tokens."""
        return SectionSimilarity({name: replace(section, ngram=1) for name, section in self.sections.items()})


class SectionRows:
    """Rows of keys, grouped by the texts of their exact sections."""

    def __init__(self, sections: Sequence[Section]) -> None:
        self._compared = [section for section in sections if not section.is_exact]
        self._exact_weights = [section.weight for section in sections if section.is_exact]
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._places: list[tuple[_Group, int]] = []  # row -> its group and its place there

    def add(self, reading: Reading, /) -> None:
        """Append a row."""
        exact, tokens = reading
        group = self._groups.get(exact)
        if group is None:
            group = self._groups[exact] = _Group(self._compared, self._exact_weights)
        self._places.append((group, len(group.rows)))
        group.add(len(self._places) - 1, tokens)

    def find(self, reading: Reading) -> int | None:
        """The row that reads just the same, if there is one."""
        exact, tokens = reading
        group = self._groups.get(exact)
        return None if group is None else group.find(tokens)

    def nearest(self, reading: Reading, k: int, min_similarity: float, among: NDArray[np.bool_] | None, /) -> RankedRows:
        """At most k rows of at least this similarity, best first, ties newest first. A row of similarity 0 is never among them."""
        if among is not None and len(among) != len(self._places):
            raise ValueError(f"`among` has a value for each of {len(self._places)} rows, got {len(among)}")
        exact, tokens = reading
        group = self._groups.get(exact)
        if group is None or not k:
            return np.zeros(0, np.intp), np.zeros(0)
        rows, similarities = np.array(group.rows, np.intp), group.similarities(tokens)
        chosen = (similarities >= min_similarity) & (similarities > 0)
        if among is not None:
            chosen &= among[rows]
        rows, similarities = rows[chosen], similarities[chosen]
        if len(rows) > k:
            best = similarities >= kth_largest(similarities, k)
            rows, similarities = rows[best], similarities[best]
        order = np.lexsort((-rows, -similarities))[:k]
        return rows[order], similarities[order]


class _Group:
    """The rows whose exact sections are equal. Rows often share a section's text, so each section indexes distinct ones."""

    def __init__(self, sections: Sequence[Section], exact_weights: Sequence[float]) -> None:
        self._sections = sections
        self._exact_weights = exact_weights
        self.rows = array("q")  # place in the group -> row
        self._indexes = [JaccardIndex() for _ in sections]
        self._numbers: list[dict[frozenset[Hashable], int]] = [{} for _ in sections]  # tokens -> row of the section's index
        self._texts = [array("q") for _ in sections]  # by section: place in the group -> row of its index
        self._newest: dict[tuple[int, ...], int] = {}  # the rows of all indexes -> the newest row of the whole

    def add(self, row: int, tokens: Sequence[frozenset[Hashable]]) -> None:
        """Append a row."""
        for index, numbers, one in zip(self._indexes, self._numbers, tokens, strict=True):
            if one not in numbers:
                numbers[one] = index.add(one)
        key = tuple(numbers[one] for numbers, one in zip(self._numbers, tokens, strict=True))
        for texts, number in zip(self._texts, key, strict=True):
            texts.append(number)
        self.rows.append(row)
        self._newest[key] = row

    def find(self, tokens: Sequence[frozenset[Hashable]]) -> int | None:
        """The newest row with just these tokens."""
        return self._newest.get(tuple(numbers.get(one, -1) for numbers, one in zip(self._numbers, tokens, strict=True)))

    def similarities(self, tokens: Sequence[frozenset[Hashable]]) -> NDArray[np.float64]:
        """The similarity of a key with these tokens to each row of the group."""
        pairs = zip(self._indexes, self._texts, tokens, strict=True)
        return self._mean([index.similarities(one)[np.array(texts, np.intp)] for index, texts, one in pairs], len(self.rows))

    def _mean(self, of_sections: Sequence[NDArray[np.float64]], rows: int) -> NDArray[np.float64]:
        """The weighted mean of the sections' similarities; 0 where one of them is below its minimum."""
        whole = float(sum(self._exact_weights))
        total, passed = np.full(rows, whole), np.ones(rows, np.bool_)
        for section, similarities in zip(self._sections, of_sections, strict=True):
            total += section.weight * similarities
            whole += section.weight  # in the order of `total`, so that the mean of ones is 1 to the last bit
            passed &= similarities >= section.minimum
        found: NDArray[np.float64] = np.where(passed, total / whole, 0.0)
        return found
