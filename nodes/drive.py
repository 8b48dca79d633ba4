"""Generators that say what is to be done and are sent the results, driven by functions that wait and by functions that are awaited."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

__all__ = ["adrive", "drive"]

Returned = TypeVar("Returned")


def drive(steps: Generator[tuple[Any, Any], Any, Returned], do: Callable[[Any, Any], Any]) -> Returned:
    """The value that a generator returns. It yields pairs of arguments, and is sent what `do` makes of them; an error is raised in it."""
    try:
        asked = next(steps)
        while True:
            try:
                found = do(*asked)
            except Exception as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(found)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def adrive(steps: Generator[tuple[Any, Any], Any, Returned], do: Callable[[Any, Any], Awaitable[Any]]) -> Returned:
    """The same, where what `do` makes is awaited."""
    try:
        asked = next(steps)
        while True:
            try:
                found = await do(*asked)
            except Exception as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(found)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
