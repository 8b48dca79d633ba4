"""Variants of a test, of which some are quick and the others slow."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """The parameters of a test: quick are those that are chosen (all of a tuple, or its first part), or the first; the others are slow.

    For tests whose variants show of one method or setting what the quick ones show of another.
    """
    values = list(values)
    chosen = chosen or tuple(values[:1])
    names = [value[0] if type(value) is tuple else value for value in values]
    return [
        value
        if value in chosen or name in chosen
        else pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.slow)
        for name, value in zip(names, values, strict=True)
    ]
