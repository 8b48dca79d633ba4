"""Tables of records, states and runs that show themselves in a notebook and print as aligned text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import Any

from ...memory.errors import UserError

__all__ = ["StepperError", "Table", "shorten", "table"]


class StepperError(UserError, ValueError):
    """A step that the run cannot take, or a name that it does not have."""


@dataclass(frozen=True)
class Table:
    """A table of texts. It shows as HTML in a notebook; `str` gives aligned text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()
    """Numbers of the highlighted rows, from 0."""
    title: str = ""

    def __str__(self) -> str:
        lines = [("", *self.head)] + [("*" if i in self.marked else "", *row) for i, row in enumerate(self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head) + 1)]
        shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self.title, *shown] if self.title else shown)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = '<{0} style="text-align:left;vertical-align:top;padding:2px 12px 2px 4px;white-space:pre-wrap">{1}</{0}>'
        head = "".join(cell.format("th", escape(name)) for name in self.head)
        body = "".join(
            f'<tr style="{"background:#fff0d1;color:#222" if i in self.marked else ""}">'
            + "".join(cell.format("td", escape(text)) for text in row)
            + "</tr>"
            for i, row in enumerate(self.rows)
        )
        title = f"<p>{escape(self.title)}</p>" if self.title else ""
        return f"{title}<table><tr>{head}</tr>{body}</table>"


def table(records: Sequence[Any], show: Sequence[str] = ()) -> Table:
    """A table of records.

    Args:
        records: dataclasses of one type, or mappings.
        show: names of the columns, in order; empty: all.

    Raises:
        StepperError: there is no column of that name.
    """
    if not records:
        return Table(("nothing",), ())
    first = records[0]
    known = [one.name for one in fields(first)] if is_dataclass(first) else list(first)
    names = tuple(show or known)
    if unknown := [name for name in names if name not in known]:
        raise StepperError(f"there is no column {unknown[0]!r}; there are {', '.join(known)}")
    return Table(names, tuple(tuple(shorten(one, name) for name in names) for one in records))


def shorten(holder: Any, name: str, limit: int = 110) -> str:
    """The value of a field as a short text in one cell."""
    value = holder[name] if isinstance(holder, Mapping) else getattr(holder, name)
    match value:
        case str():
            text = value
        case float():
            text = f"{value:.3g}"
        case [first, _, *_]:
            text = f"{len(value)} of these: {first!r}"
        case _:
            text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
