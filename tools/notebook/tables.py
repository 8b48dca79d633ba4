"""Tables of records, states and runs that show themselves in a notebook and print as aligned text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ...memory.display import Table
from ...memory.errors import UserError

__all__ = ["StepperError", "Table", "table"]


class StepperError(UserError, ValueError):
    """A step that the run cannot take, or a name that it does not have."""


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
