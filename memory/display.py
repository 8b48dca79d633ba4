"""Tables: of texts that show themselves in a notebook, with a search box; of numbers in Markdown."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from typing import Any

__all__ = ["ShownAsTable", "Table", "format_number", "make_table", "markdown_table", "short", "with_interval"]

MAX_ROWS = 500
"""Rows that a table of a memory shows."""
SEARCHED = 8
"""Rows from which a table has a search box."""
_SEARCH = (
    '<input type="search" placeholder="search {count} rows" aria-label="search the rows" '
    'style="margin:2px 0 4px;padding:2px 6px;min-width:16em" oninput="const w=this.value.toLowerCase();'
    'for(const r of this.nextElementSibling.tBodies[0].rows)r.hidden=!r.textContent.toLowerCase().includes(w)">'
)
_CELL = '<{0} style="text-align:left;vertical-align:top;padding:2px 12px 2px 4px;white-space:pre-wrap">{1}</{0}>'


@dataclass(frozen=True)
class Table:
    """A table of texts. It shows as HTML in a notebook; `str` gives aligned text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()
    """Numbers of the highlighted rows, from 0."""
    title: str = ""
    whole: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """(row, column) -> the whole text of a cell that is cut, which HTML opens with a click."""

    def __str__(self) -> str:
        flat = [tuple(" ".join(cell.split()) for cell in row) for row in self.rows]
        lines = [("", *self.head)] + [("*" if i in self.marked else "", *row) for i, row in enumerate(flat)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head) + 1)]
        shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self.title, *shown] if self.title else shown)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """HTML without anything from elsewhere. Where scripts do not run, the search box does nothing, and all rows are there."""
        head = "".join(_CELL.format("th", escape(name)) for name in self.head)
        body = "".join(
            f'<tr style="{"background:#fff0d1;color:#222" if i in self.marked else ""}">'
            + "".join(_CELL.format("td", self._open_cell(i, j, escape(text))) for j, text in enumerate(row))
            + "</tr>"
            for i, row in enumerate(self.rows)
        )
        title = f"<p>{escape(self.title)}</p>" if self.title else ""
        search = _SEARCH.format(count=len(self.rows)) if len(self.rows) >= SEARCHED else ""
        return f"{title}{search}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _open_cell(self, row: int, column: int, shown: str) -> str:
        whole = self.whole.get((row, column))
        return f"<details><summary>{shown}</summary>{escape(whole)}</details>" if whole else shown


class ShownAsTable(ABC):
    """A memory that a notebook shows as its table."""

    @abstractmethod
    def table(self) -> Table:
        """The memory as a table."""

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def make_table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], count: int) -> Table:
    """A table of at most 500 rows.

    Args:
        title: the title; it also says how many rows are left out.
        head: names of the columns.
        rows: the rows, the most important first.
        count: the number of all rows.
    """
    shown = tuple(tuple(map(cell_text, row)) for row in islice(rows, MAX_ROWS))
    more = f", the first {len(shown)} of {count}" if count > len(shown) else ""
    return Table(tuple(head), shown, title=f"{title}{more}")


def cell_text(value: Any, limit: int = 300) -> str:
    """A value as the text of a cell: numbers with three digits, nothing for None, long texts cut."""
    return short("" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value), limit)


def short(text: str, limit: int) -> str:
    """A text of at most `limit` characters, with a mark where it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def format_number(number: float | None, form: str) -> str:
    """A number in a format of Python's `format`, without rounding errors such as 7e-18 or -0; a dash for None."""
    return "–" if number is None else format(round(number, 12) + 0, form)


def with_interval(number: float, ci: tuple[float, float] | None) -> str:
    """A number with its interval, as `0.5 [0.4, 0.6]`; the number alone without an interval."""
    middle, *ends = (format_number(one, ".3g") for one in (number, *(ci or ())))
    return f"{middle} [{', '.join(ends)}]" if ends else middle


def markdown_table(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """An aligned Markdown table.

    Args:
        lines: the header and the rows, each with one cell per column.
        left: the number of leading columns that are aligned to the left; the others are aligned to the right.
    """
    from tabulate import tabulate  # type: ignore[import-untyped]

    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]  # in a label
    sides = ["left"] * left + ["right"] * (len(lines[0]) - left)
    # The header goes in as a row, because tabulate makes a column at least two characters wider than a header.
    text = tabulate(lines, tablefmt="pipe", colalign=sides, disable_numparse=True)
    rule, header, *rows = text.splitlines()
    return "\n".join([header, rule.replace(":", "-", left), *rows])
