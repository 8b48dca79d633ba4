"""Checks of values that a person writes into a graph's channels, against the types that its state declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from langgraph.channels import LastValue
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from .tables import StepperError, shorten

__all__ = []


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
