"""Futures of a run that are played to look at them (what-ifs), and that memory does not keep.

While a what-if is played, a journal or log reads and writes its rows apart from the run's own, and memories take nothing in. So
what is remembered of the real run stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["WhatIf", "current_what_if", "skip_in_what_if"]

Memory = TypeVar("Memory")
Arguments = ParamSpec("Arguments")


class WhatIf:
    """A future that memory does not keep, with the rows that were written in it."""

    def __init__(self) -> None:
        self._rows: WeakKeyDictionary[Any, dict[str, Mapping[str, Any]]] = WeakKeyDictionary()

    def rows(self, log: Any) -> dict[str, Mapping[str, Any]]:
        """The rows by id that were written into this log within the what-if."""
        return self._rows.setdefault(log, {})

    def copy(self) -> WhatIf:
        """A what-if that goes on from this one; the two are independent."""
        made = WhatIf()
        for log, rows in self._rows.items():
            made._rows[log] = dict(rows)
        return made

    @contextmanager
    def play(self) -> Iterator[None]:
        """A context: all that runs in it, also in the threads of LangGraph, is part of this what-if."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)


_current: ContextVar[WhatIf | None] = ContextVar("what_if", default=None)


def current_what_if() -> WhatIf | None:
    """The what-if that is being played; None in a real run."""
    return _current.get()


def skip_in_what_if(
    add: Callable[Concatenate[Memory, Arguments], None],
) -> Callable[Concatenate[Memory, Arguments], None]:
    """Decorator: a method that adds to a memory does nothing while a what-if is played."""

    @wraps(add)
    def add_unless_what_if(self: Memory, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        if _current.get() is None:
            add(self, *args, **kwargs)

    return add_unless_what_if
