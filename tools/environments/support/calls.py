"""Tool calls as actions: the text of a call is read without being run, and calls with few possible arguments are listed.

An action is written as in Python, `refuel_data(customer_id='C1001', line_id='L1002', gb_amount=2.0)`. Its arguments are literals
(texts, numbers, lists, dicts, True, False, None), read by `ast.literal_eval`: nothing that an agent wrote is ever evaluated.
"""

import ast
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "ToolDescription", "UnreadableCall"]

_LONGEST = 50_000
"""Characters of the longest call that is read."""
_MOST_OF_A_TOOL = 24
"""Most listed calls of one tool."""


class UnreadableCall(ValueError):
    """A text is not the call of a tool. The message says what was expected."""


@dataclass(frozen=True)
class ToolDescription:
    """A tool in the form in which language models are told of it."""

    name: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of its arguments, an object with `properties` and `required`."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its arguments, in order."""
        return tuple(self.schema.get("properties", {}))


@dataclass(frozen=True)
class Call:
    """The call of a tool, with literal arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"


def read_call(text: str, tools: Mapping[str, ToolDescription]) -> Call:
    """Read the text of a call. Arguments without a name are given those of the tool's parameters, in order.

    Raises:
        UnreadableCall: it is no call, its tool does not exist, or an argument is unknown or no literal.
    """
    usage = "write one call such as name(argument='value')"
    if len(text) > _LONGEST:
        raise UnreadableCall(f"a call of {len(text):,} characters is not read; {usage}")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnreadableCall(f"{_shorten(text)} cannot be read; {usage}") from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise UnreadableCall(f"{_shorten(text)} is no call of a tool; {usage}")
    tool = tools.get(node.func.id)
    if tool is None:
        raise UnreadableCall(f"there is no tool {node.func.id!r}; there are {', '.join(sorted(tools))}")
    if len(node.args) > len(tool.parameters):
        raise UnreadableCall(
            f"{tool.name} takes {', '.join(tool.parameters) or 'no arguments'}, got {len(node.args)} arguments"
        )
    given = [*zip(tool.parameters, node.args, strict=False), *((word.arg, word.value) for word in node.keywords)]
    arguments: dict[str, Any] = {}
    for name, value in given:
        if name is None or name not in tool.parameters or name in arguments:
            raise UnreadableCall(f"{tool.name} takes {', '.join(tool.parameters) or 'no arguments'}, each once; got {name!r}")
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise UnreadableCall(f"the argument {name} of {tool.name} must be a literal: a text, a number, a list") from None
    return Call(tool.name, arguments)


def list_calls(tools: Iterable[ToolDescription], values: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """The texts of all calls whose required arguments have known values, sorted; other arguments are left out.

    Args:
        tools: the tools.
        values: name of an argument -> its values. Those of yes-or-no arguments, and of arguments with an `enum`, are known.
    """
    texts: set[str] = set()
    for tool in tools:
        required = tool.schema.get("required", ())
        choices = [_choices(tool.schema["properties"][name], values.get(name, ())) for name in required]
        found = itertools.product(*choices)  # none, if one of them is empty
        texts.update(
            str(Call(tool.name, dict(zip(required, some, strict=True)))) for some in itertools.islice(found, _MOST_OF_A_TOOL)
        )
    return tuple(sorted(texts))


def _choices(schema: Mapping[str, Any], values: Sequence[Any]) -> Sequence[Any]:
    if "enum" in schema:
        return tuple(schema["enum"])
    return (False, True) if schema.get("type") == "boolean" else values


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
