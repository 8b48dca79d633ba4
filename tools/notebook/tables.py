"""Tables of records and states that show themselves in a notebook, and checks of the values that a person writes into channels."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pprint import pformat
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.channels import LastValue
from langgraph.types import Overwrite
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ...memory.display import Table
from ...memory.errors import UserError, did_you_mean, type_of
from ...memory.graph_input import are_alike, classes_of, type_hints, type_name
from .pauses import find_subgraph

__all__ = ["MAX_LINE", "StepperError", "Table", "message_line", "table", "to_line"]

MAX_LINE = 110
"""Characters of a value in one line."""
PLAIN = (str, int, float, bool, type(None))
"""Types of which a short list is shown whole."""


class StepperError(UserError, ValueError):
    """A step that the run cannot take, or a name that it does not have."""


def table(records: Sequence[Any], show: Sequence[str] = ()) -> Table:
    """A table of records.

    Args:
        records: dataclasses of one type, mappings, or messages, which have a column of lines.
        show: names of the columns, in order; empty: all.

    Raises:
        StepperError: there is no column of that name.
    """
    if not records:
        return Table(("nothing",), ())
    first = records[0]
    if isinstance(first, BaseMessage):
        told = channel_rows("", records)
        whole = {(i, 0): text for i, (*_, text) in enumerate(told) if text}
        return Table(("message",), tuple((line,) for _, line, _ in told), whole=whole)
    known = [one.name for one in fields(first)] if is_dataclass(first) else list(first)
    names = tuple(show or known)
    if unknown := [name for name in names if name not in known]:
        raise StepperError(f"there is no column {unknown[0]!r}; there are {', '.join(known)}")
    rows = [[one[name] if isinstance(one, Mapping) else getattr(one, name) for name in names] for one in records]
    lines = tuple(tuple(map(to_line, row)) for row in rows)
    whole = {(i, n): _whole(row[n]) for i, row in enumerate(rows) for n, line in enumerate(lines[i]) if line.endswith("…")}
    return Table(names, lines, whole=whole)


def to_line(value: Any, limit: int = MAX_LINE) -> str:
    """A value in one line of at most `limit` characters; a longer one ends in an ellipsis."""
    match value:
        case None:
            text = "–"
        case str():
            text = " ⏎ ".join(value.strip().splitlines()) if len(value) < 10 * limit else value[: 10 * limit]
        case float():
            text = f"{value:.4g}"
        case [] | ():
            text = "none"
        case BaseMessage():
            text = message_line(value)
        case {"action_requests": [{"name": _, "args": _}, *_] as calls}:  # what LangChain's HumanInTheLoopMiddleware asks
            text = f"about {' and '.join(call_line(call['name'], call['args']) for call in calls)}"
        case [BaseMessage(), *_]:
            text = f"{len(value)} messages, the last: {to_line(value[-1], limit)}"
        case [_, _, *_] if len(value) < limit and all(type(one) in PLAIN for one in value) and len(repr(value)) <= limit:
            text = repr(value)
        case [first, _, *_]:
            text = f"{len(value)} of these: {to_line(first, limit)}"
        case _:
            try:
                text = " ".join(repr(value).split())
            except Exception as error:  # a value of the user's whose repr fails
                text = f"({type(value).__name__}, whose repr raises {type(error).__name__})"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def two_lines(one: Any, other: Any) -> tuple[str, str]:
    """Two values in a line each. Where these would be the same, though the values are not: the first part in which they differ."""
    lines = to_line(one), to_line(other)
    if lines[0] != lines[1] or is_same(one, other):
        return lines
    if isinstance(one, str) and isinstance(other, str):
        start = max(0, next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0) - 20)
        return f"…{to_line(one[start:])}", f"…{to_line(other[start:])}"
    first, second = _parts(one), _parts(other)
    for name in {**first, **second}:
        if not is_same(a := first.get(name), b := second.get(name)):
            return tuple(f"{name}: {line}" for line in two_lines(a, b))  # type: ignore[return-value]
    return lines[0], f"{lines[1]} (not the same)"


def _parts(value: Any) -> dict[str, Any]:
    """The parts of a value by their places."""
    if isinstance(value, BaseMessage):
        return {name: part for name, part in vars(value).items() if name != "id"}
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    return {f"[{n}]": part for n, part in enumerate(value)} if isinstance(value, Sequence) else {}


def is_same(one: Any, other: Any) -> bool:
    """True if two values are equal; arrays and the like, which do not say so in one word, by their texts. A message's id is new in each run,
    and no difference."""
    if isinstance(one, BaseMessage) and isinstance(other, BaseMessage):
        one, other = one.model_copy(update={"id": None}), other.model_copy(update={"id": None})
    try:
        return bool(one == other)
    except Exception:
        return repr(one) == repr(other)


def channel_rows(name: str, value: Any) -> list[tuple[str, str, str]]:
    """The rows of a channel in a table of a state: (name, line, whole text if the line is cut); a row for each message of a conversation."""
    parts = value if isinstance(value, Sequence) and value and isinstance(value[0], BaseMessage) else [value]
    rows = []
    for number, part in enumerate(parts):
        line = to_line(part)
        rows.append((name if not number else "", line, _whole(part) if line.endswith("…") else ""))
    return rows


def _whole(value: Any) -> str:
    """The whole text of a value whose line is cut."""
    said = message_line(value) if isinstance(value, BaseMessage) else value
    return said if isinstance(said, str) else pformat(said, width=110)


def message_line(message: BaseMessage) -> str:
    """A message as a person reads it, in one line: who speaks, what is said and shown, and the tools that are called.

    `human: It arrived broken. [image]`, `ai -> resolve(how='refund')`, `tool resolve: refund: arranged`.
    """
    speaker = f"{message.type} {message.name}" if message.name and isinstance(message, ToolMessage) else message.type
    said = [" ".join(str(message.text).split())]
    said += [
        f"[{kind}]"
        for block in message.content_blocks
        if (kind := block["type"]) not in ("text", "tool_call", "invalid_tool_call")
    ]
    calls = call_lines(message)
    words = " ".join(filter(None, said))
    return " ".join([f"{speaker}: {words}" if words else speaker, *(["->", ", ".join(calls)] if calls else [])])


def call_line(name: str, args: Mapping[str, Any]) -> str:
    """A call of a tool in one line, such as `resolve(how='refund')`."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})"


def call_lines(message: BaseMessage) -> list[str]:
    """The tools that a message calls, a line each."""
    broken = [f"{one['name']}({one['args']}), which cannot be read" for one in getattr(message, "invalid_tool_calls", ())]
    return [*(call_line(call["name"], call["args"]) for call in getattr(message, "tool_calls", ())), *broken]


def check_channels(graph: Any, values: Mapping[str, Any]) -> None:
    """Refuse a channel that the graph does not have, and a value that is not of the channel's type, with a `StepperError`.

    What is given to a reducer is for it to check; an `Overwrite` goes past it. Types that cannot be checked are not.
    """
    check_names(graph, values)
    known, hints = graph.builder.channels, channel_types(graph.builder)
    for name, value in values.items():
        if isinstance(value, Overwrite) and not are_alike((type(value.value),), classes_of(hints.get(name, Any))):
            raise StepperError(
                f"the channel {name!r} holds {type_name(hints[name])}, got {to_line(value.value)} ({type_of(value.value)})"
            )
        if name in hints and isinstance(known[name], LastValue):
            _check(name, hints[name], value)


def check_edit(graph: Any, asked: Mapping[str, Any], state: Mapping[str, Any], save: Callable[[Any], Any]) -> None:
    """Refuse an edit that the state behind it does not show, with a `StepperError`. `save` is the form in which a value is kept: read back,
    it need not be equal. A channel with a reducer may show what it will."""
    for name, value in asked.items():
        channel, shown = graph.builder.channels[name], state.get(name)
        differs = isinstance(channel, LastValue) and not is_same(shown, value) and save(shown) != save(value)
        if differs or name not in state:
            kept = f"LangGraph's {type(channel).__name__} does not keep it"
            raise StepperError(f"{to_line(value)} was written into `{name}`, which is not in the state behind the edit: {kept}")


def check_names(graph: Any, names: Iterable[str]) -> None:
    """Refuse a channel that the graph does not have, with a `StepperError` that names the others."""
    known = graph.builder.channels
    if unknown := [name for name in names if name not in known]:
        graphs = {name: find_subgraph(graph, name) for name in graph.nodes}
        owner = next((name for name, one in graphs.items() if one is not None and unknown[0] in one.builder.channels), "")
        hint = f"; {owner!r} has it inside: into({owner!r})" if owner else did_you_mean(unknown[0], known, "there are")
        raise StepperError(f"there is no channel {unknown[0]!r}{hint}")


def channel_types(builder: Any) -> dict[str, Any]:
    """The types of a graph's channels, as far as they can be read."""
    return {name: hint for schema in reversed([*builder.schemas]) for name, hint in type_hints(schema).items()}


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
            f"the channel {name!r} holds {wanted}, got {to_line(value)} ({type(value).__name__}); {told}: "
            f"{first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None
