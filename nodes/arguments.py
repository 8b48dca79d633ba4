"""A check of what a class is made with, or a function is given: a misspelt name, or a value of another kind or size, is a sentence."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from inspect import cleandoc, signature
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, Unpack, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from ..memory.errors import UserError, did_you_mean, nearest, plural, type_of

__all__ = ["ArgumentCheck", "Range", "check_value"]

Method = TypeVar("Method", bound=Callable[..., Any])
KINDS: dict[Any, Any] = {int: Integral, float: Real}
PACKAGE = __name__.partition(".")[0] + "."
STAND_INS = (object, SimpleNamespace)
"""What stands in a drawing for a part that it lacks."""
MODELS = {"BaseChatModel": "a chat model (init_chat_model makes one of a name)"}
MODELS["Runnable"] = f"{MODELS['BaseChatModel']} or another Runnable"
WORDS: dict[Any, str] = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", NoneType: "None"}
WORDS |= {Callable: "a function", Sequence: "a sequence", Mapping: "a mapping", tuple: "a tuple"}
WORDS |= {Path: "a path", UUID: "a UUID"}


MOST = 1e100
"""More than any number that somebody means."""


@dataclass(frozen=True)
class Range:
    """The numbers that an argument may be, or the numbers of items that it may have: `Annotated[float, Range(0, 1)]`."""

    least: float
    most: float = MOST

    def __str__(self) -> str:
        return f"of at least {self.least:g}" if self.most == MOST else f"from {self.least:g} to {self.most:g}"


Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Amount = Annotated[float, Range(0)]


class ArgumentCheck:
    """Refuses keyword arguments that the class does not know, or whose value is of another type than it says."""

    unchecked: ClassVar[tuple[str, ...]] = ()
    """Names of arguments that the class checks by itself."""
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"use_attribute_docstrings": True}  # forms show what an argument means

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Check, and make the object; raises `UserError`, naming the argument, what came, and what would do."""
        known = arguments_of(cls)  # type: ignore[arg-type]
        for name, value in {**dict(zip(known, args if is_dataclass(cls) else (), strict=False)), **given}.items():
            if name not in known:
                kinds = [(part, one) for part, hint in known.items() for one in (hint, *get_args(hint))]
                parts = [(part, one) for part, one in kinds if isinstance(one, type) and is_dataclass(one)]
                inner = {key: f"{part}={one.__name__}({key}=...)" for part, one in parts for key in arguments_of(one)}
                near = did_you_mean(name, known) or (f"; did you mean {inner[key]}?" if (key := nearest(name, inner)) else "")
                raise UserError(f"{cls.__name__} has no option {name!r}{near}")
            if name not in cls.unchecked and type(value) not in STAND_INS:
                check_value(f"{cls.__name__}: {name}", value, known[name])
        return super().__new__(cls)


def checks_arguments(method: Method) -> Method:
    """The method with a check of its arguments but those for `**`: one too many, one that lacks, or of another type is a `UserError`."""

    @wraps(method)
    def check(*given: Any, **named: Any) -> Any:
        hints = arguments_of(method)
        try:
            values = signature(method).bind(*given, **named).arguments
        except TypeError as error:
            raise UserError(f"{method.__name__}: {error}; it takes {', '.join(f'{name}=' for name in hints)}") from None
        for name in (one for one in hints if one in values):
            check_value(f"{method.__name__}: {name}", values[name], hints[name])
        return method(*given, **named)

    return cast(Method, check)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise `UserError` if the value that is given under a name is not of this type."""
    fits, words = match_type(value, hint)
    if not fits:
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        near = did_you_mean(str(value), [one for part in parts for one in get_args(part) if isinstance(one, str)])
        came = type_of(value) if repr(value)[0] == "<" else f"{value!r:.60}"
        raise UserError(f"{name} is {words}; got {came}{near}")


def check_argument(owner: str, name: str, value: Any, hint: Any) -> None:
    """Raise `UserError` if an argument of a node is of another type, or a number out of its range; a drawing lacks parts and limits."""
    if type(value) in STAND_INS or (hint is int and isinstance(value, float) and not isfinite(value)):
        return
    if value is None and (get_origin(hint) or hint) not in WORDS and not is_setting(hint):
        return
    check_value(f"{owner}: {name}", value, hint)
    if isinstance(value, int) and value < 0 and name != "window":  # what is left of a window may be less than nothing
        raise UserError(f"{owner}: {name} is a whole number of at least 0; got {value}")


@cache
def arguments_of(cls: Any) -> dict[str, Any]:
    """The arguments of a class, with those of its bases, or of a method without those for `**`, and their types."""
    if isinstance(cls, FunctionType):
        hints, known = get_type_hints(cls, include_extras=True), signature(cls).parameters
        return {name: hints[name] for name, one in known.items() if name in hints and one.kind is not one.VAR_KEYWORD}
    if is_dataclass(cls):
        hints = get_type_hints(cls, include_extras=True)
        return {one.name: hints[one.name] for one in fields(cls) if one.init}
    found = dict[str, Any]()
    for make in (vars(kind).get("__init__") for kind in reversed(cls.__mro__)):
        hints = get_type_hints(make, include_extras=True) if isinstance(make, FunctionType) else {}
        for name in signature(make).parameters if isinstance(make, FunctionType) else ():
            hint = hints.get(name, Any)
            found |= get_type_hints(get_args(hint)[0], include_extras=True) if get_origin(hint) is Unpack else {name: hint}
    return found


def list_options(cls: Any, owners: Sequence[type]) -> None:
    """Append to a class's docstring, for `help`, the `Args:` entries of its owners' docstrings that it lacks.

    Args:
        cls: a class, or a TypedDict of options, which gets the entries of its own keys only.
        owners: classes whose docstrings explain the options, the nearest first; classes outside this package are skipped.
    """
    found = dict[str, str]()
    for one in (one for one in owners if one.__doc__ and one.__module__.startswith(PACKAGE)):
        section = re.split(r"\n(?=\S)", cleandoc(one.__doc__ or "").partition("\nArgs:\n")[2])[0].rstrip()
        for entry in re.split(r"\n(?=    \w)", section):
            found.setdefault(entry.partition(":")[0].strip(), entry)
    doc, wanted = cleandoc(cls.__doc__ or ""), getattr(cls, "__optional_keys__", found)
    more = [entry for name, entry in found.items() if name in wanted and name != "options" and entry not in doc]
    if doc and more:
        cls.__doc__ = "\n".join([doc, "", "Options:", *more])


def match_type(value: Any, hint: Any) -> tuple[bool, str]:
    """True if a value is of a type, as far as that can be told, with its texts and numbers; and the type in words."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        found = [match_type(value, part) for part in get_args(hint)]
        return any(fits for fits, _ in found), " or ".join(words for _, words in found)
    if kind is Annotated:
        fits, words = match_type(value, hint.__origin__)
        for limit in (one for one in hint.__metadata__ if isinstance(one, Range)):
            size = value if (is_number := hint.__origin__ in KINDS) or not fits else len(value)
            fits = fits and limit.least <= size <= limit.most
            words += f" {limit}" if is_number else f" of at least {plural(int(limit.least), 'item')}"
            words += ", and finite" * (limit.most == MOST and isinstance(size, float) and not isfinite(size))
        return fits, words
    if kind is Literal:
        choices = get_args(hint)
        return value in choices, f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else repr(choices[0])
    if kind is Any or not isinstance(kind, type):
        return True, ""
    if (is_protocol := getattr(kind, "_is_protocol", False)) or kind.__module__.startswith(PACKAGE):
        is_value, methods = isinstance(value, str | Real | None), [name for name, one in vars(kind).items() if callable(one)]
        lacking = [name for name in methods if name[0] != "_" and not hasattr(value, name)]
        is_alike = not is_value and not lacking and (is_protocol or any(name[0] != "_" for name in methods))
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        words = " with ".join([f"{article} {kind.__name__}", *lacking[: not is_value]])
        return is_alike or (not is_protocol and isinstance(value, kind)), words if is_protocol else f"{kind.__name__}(...)"
    is_text = kind is Sequence and isinstance(value, str)
    words = MODELS.get(kind.__name__) or WORDS.get(kind, f"{kind.__name__}(...)")
    fits = hasattr(value, "invoke") if kind.__name__ in MODELS else isinstance(value, KINDS.get(kind, kind)) and not is_text
    is_alike = kind in (Sequence, Mapping) or (kind is tuple and len({*get_args(hint)} - {Ellipsis}) == 1)
    inner = get_args(hint)[kind is Mapping :][:1] if fits and is_alike else ()
    if inner and (get_origin(inner[0]) or inner[0]) in (*WORDS, Literal, Union, UnionType):
        each = [match_type(one, inner[0]) for one in (value.values() if isinstance(value, Mapping) else value)]
        if wrong := next((said for is_one, said in each if not is_one), None):
            return False, f"{words}, each of it {wrong}"
    return fits, f"{words}, such as [{value!r}]" if is_text else words


def is_setting(hint: Any) -> bool:
    """True for numbers, words, switches and choices, and tuples of them."""
    hint = hint.__origin__ if get_origin(hint) is Annotated else hint
    if hint in (int, float, bool, str, NoneType, Ellipsis) or get_origin(hint) is Literal:
        return True
    return get_origin(hint) in (tuple, Union, UnionType) and all(map(is_setting, get_args(hint)))
