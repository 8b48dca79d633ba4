"""Tables of records and states that show themselves in a notebook, and checks of the values that a person writes into channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from langgraph.channels import LastValue
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

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


def check_channels(graph: Any, values: Mapping[str, Any]) -> None:
    """Refuse a channel that the graph does not have, and a value that is not of the channel's type.

    Channels with a reducer take what the reducer takes, and are not checked here; nor are types that cannot be checked.

    Raises:
        StepperError: names the channel, its type and the value.
    """
    known = graph.builder.channels
    if unknown := [name for name in values if name not in known]:
        raise StepperError(f"there is no channel {unknown[0]!r}; there are {', '.join(known)}")
    hints = _types(graph.builder)
    for name, value in values.items():
        if name in hints and isinstance(known[name], LastValue):
            _check(name, hints[name], value)


def _types(builder: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for schema in builder.schemas:
        try:
            found = {**get_type_hints(schema), **found}
        except (NameError, TypeError):  # a name that exists for the type checker alone
            continue
    return found


def _check(name: str, hint: Any, value: Any) -> None:
    try:
        adapter = TypeAdapter(list[hint], config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticUserError, TypeError, NameError):
        return
    try:
        adapter.validate_python([value], strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{part!r}]" for part in first["loc"][1:] if not str(part).startswith(("function-", "lax", "strict")))
        wanted = getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint)
        told = f"{name}{where}" if where else name
        raise StepperError(
            f"the channel {name!r} holds {wanted}, got {shorten({'it': value}, 'it')!s} ({type(value).__name__}); {told}: "
            f"{first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None
