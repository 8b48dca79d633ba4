"""The input of a graph where it is wrong: in words, before a node runs or in place of an error of a node.

A thread that goes on may be given less than its graph needs to begin with. So all of an input is looked at only where a run is new, or
where it has failed.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from numbers import Number
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from .errors import UserError, did_you_mean, type_of

__all__ = ["InputError", "needed_channels"]


class InputError(UserError, ValueError):
    """The input of a graph lacks something, or has something of another type."""


def check_input(graph: Any, given: Any) -> None:
    """Refuse the input of a new run that is wrong, before any node runs.

    Raises:
        InputError: says what the input is to be.
    """
    check_names(graph, given)
    explain_error(graph, given)


def check_names(graph: Any, given: Any) -> None:
    """Refuse names in an input that LangGraph would leave out: those close to a channel that is not given, and where no name is one.

    Raises:
        InputError: says which name is meant, or that a text or a number names no channel.
    """
    channels = graph.builder.schemas[graph.builder.input_schema].keys()
    if isinstance(given, str | bytes | Number) and "__root__" not in channels:
        form = f"a dict of channels, such as {{{next(iter(channels), 'name')!r}: ...}}"
        raise InputError(f"{_named(graph)}the input is {form}, got {given!r:.60} ({type_of(given)})")
    if not isinstance(given, Mapping):
        return
    others = [name for name in given if name not in channels]
    are_all = len(others) == len(given) and not needed_channels(graph.builder)
    for name in others:
        near = did_you_mean(str(name), channels - given)
        if near or are_all:
            raise InputError(
                f"{_named(graph)}`{name}` is no channel of the input{near or f', which has {list_names(channels)}'}"
            )


def explain_error(graph: Any, given: Any, error: BaseException | None = None) -> None:
    """Raise a sentence if an input is wrong; with an `error` that the graph failed with, only if the input is the reason of it.

    Raises:
        InputError: says what the input lacks, or has of another type, as its TypedDict tells.
    """
    builder = graph.builder
    if not is_typeddict(builder.input_schema) or not isinstance(given, Mapping):
        return
    hints = {name: _bare(hint) for name, hint in type_hints(builder.input_schema, True).items()}
    error = error.__cause__ if isinstance(error, InputError) and error.__cause__ else error  # of a node
    needed = needed_channels(builder)
    lacking = [name for name in needed if name not in given]
    form = ", ".join(f"{name}: {type_name(hints[name])}" for name in needed or hints)
    if lacking and (error is None or (isinstance(error, KeyError) and error.args[:1] in [(name,) for name in lacking])):
        missing = " and ".join(f"`{name}`" for name in lacking)
        raise InputError(
            f"{_named(graph)}the input lacks {missing}; it has {list_names(given)}, and is to be {{{form}}}"
        ) from error
    for name, value in given.items() if not isinstance(error, KeyError) else ():
        if name in hints and not are_alike((type(value),), classes_of(hints[name])):
            came = f"{type_of(value)} ({value!r:.60})"
            wanted = f"`{name}` of the input is to be of type {type_name(hints[name])}"
            raise InputError(f"{_named(graph)}{wanted}, got {came}; the input is {{{form}}}") from error


def _named(graph: Any) -> str:
    """The beginning of a sentence about a graph; nothing for one that was given no name."""
    return "" if graph.name == "LangGraph" else f"{graph.name}: "


def needed_channels(builder: Any) -> list[str]:
    """The channels that an input cannot do without: unknown where the schema of the input is that of the whole state."""
    if builder.input_schema in (builder.state_schema, getattr(builder.state_schema, "extends", None)):  # of a redrawn graph
        return []
    hints = type_hints(builder.input_schema, True)
    return [
        name for name in hints if get_origin(hints[name]) is not NotRequired and name in builder.input_schema.__required_keys__
    ]


def type_hints(value: Any, include_extras: bool = False) -> dict[str, Any]:
    """The type annotations of a function or class, with what `Annotated` adds if asked for; none where they cannot be evaluated."""
    return _type_hints(getattr(value, "__func__", value), include_extras)


@lru_cache(maxsize=1024)
def _type_hints(value: Any, include_extras: bool) -> dict[str, Any]:
    try:
        return get_type_hints(value, include_extras=include_extras)
    except (NameError, TypeError, AttributeError):  # written for a checker alone
        return {}


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) in (NotRequired, Required) else hint


def list_names(names: Iterable[Any]) -> str:
    """Names of channels in a sentence."""
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def type_name(hint: Any) -> str:
    """A type as a sentence names it, without what a reducer says about it; a long one by its class."""
    if get_origin(hint) is Annotated:
        return type_name(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(type_name, get_args(hint))).replace("NoneType", "None")
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    return name if len(name) <= 40 else getattr(get_origin(hint), "__name__", name)


def classes_of(hint: Any) -> tuple[type, ...]:
    """The classes of a type's values; `object` where it does not say them, or where a reducer may take others."""
    if get_origin(hint) is Annotated:
        return (object,)
    if get_origin(hint) in (Union, UnionType):
        return tuple(one for part in get_args(hint) for one in classes_of(part))
    if get_origin(hint) is Literal:
        return tuple(map(type, get_args(hint)))
    hint = dict if is_typeddict(hint) else get_origin(hint) or hint
    is_known = isinstance(hint, type) and hint is not Any and not getattr(hint, "_is_protocol", False)
    return (hint,) if is_known else (object,)


def are_alike(ones: Collection[type], others: Collection[type]) -> bool:
    """True if a value may be of a class of both; all numbers are alike."""
    numbers = [any(issubclass(one, Number) for one in classes) for classes in (ones, others)]
    return all(numbers) or any(issubclass(a, b) or issubclass(b, a) for a in ones for b in others)
