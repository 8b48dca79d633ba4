"""Tool calls of a local model: which calls there are, and how they stand in a chat.

A call is written as Hermes and Qwen models write it, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. A chat template that knows this form
writes tools, calls and results itself. For any other template they are written into the turns that it knows (`calls_as_text`).

`list_calls` lists every call that the tools allow, so that a model can choose among them by `LocalChatModel.score`, without
writing a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from langchain_core.utils.json_schema import dereference_refs

from ...memory.errors import UserError

__all__ = ["ToolOffer", "UnlistableCall", "argument_values"]

MAX_LISTED_CALLS = 500
"""Most calls that a model chooses among. Each is some twenty tokens, and all are read in a few passes."""
MAX_LISTED_NUMBERS = 100
"""Most values of a whole number with a least and a greatest value."""
ANSWER = "answer_in_words"
"""Name of the call that stands for a reply in words among listed calls."""

OFFER_TEXT = """You may call these tools:
{tools}
A call is written so, with nothing behind it:
<tool_call>{{"name": "NAME", "arguments": {{}}}}</tool_call>
"""
RESULT_TEXT = "Result of {name}: {content}"


class UnlistableCall(UserError, ValueError):
    """The calls of a tool cannot be listed: an argument has too many values."""


@dataclass(frozen=True)
class ToolOffer:
    """The tools that a reply may call, and how its calls are made."""

    tools: tuple[dict[str, Any], ...] = ()
    """In OpenAI's shape."""
    choice: Any = "none"
    """`none`, `auto`, `required`, or a function by name, in OpenAI's shape."""
    single: bool = False
    """A reply has at most one call."""
    listed: tuple[dict[str, Any], ...] = ()
    """Calls of which the reply is chosen by their scores, each with `name` and `arguments`; empty: the reply is generated."""
    held: bool = False
    """A grammar holds generated calls to the tools' schemas."""

    @property
    def tools_in_prompt(self) -> tuple[dict[str, Any], ...]:
        """The tools as the prompt describes them: with one for a reply in words, where that is one of the listed calls."""
        if any(call["name"] == ANSWER for call in self.listed):
            words = {"name": ANSWER, "description": "Call no tool: answer in words.", "parameters": {"type": "object"}}
            return (*self.tools, {"type": "function", "function": words})
        return self.tools


def read_choice(choice: Any, names: Sequence[str]) -> Any:
    """A `tool_choice` as LangChain takes it, in OpenAI's shape: `none`, `auto`, `required` or a function by name.

    Raises:
        UserError: there is no such tool.
    """
    if choice in (None, False, "auto"):
        return "auto"
    if choice in (True, "any", "required"):
        return "required"
    if choice == "none":
        return choice
    name = choice
    if isinstance(choice, Mapping):
        name = (choice.get("function") or choice).get("name")
    if name not in names:
        raise UserError(
            f"tool_choice is 'auto', 'any', 'none' or the name of a tool; got {choice!r:.80}, and the tools are {[*names]}"
        )
    return {"type": "function", "function": {"name": name}}


def call_text(call: Mapping[str, Any]) -> str:
    """A call as the text of a reply, on one line: in some chat templates a line's end is the turn's. The arguments keep their
    order."""
    written = json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
    return f"<tool_call>{written}</tool_call>"


# Listing


def list_calls(tools: Sequence[Mapping[str, Any]], most: int = MAX_LISTED_CALLS) -> list[dict[str, Any]]:
    """Every call that the tools allow, each with `name` and `arguments`, in the order of the tools.

    Values can be listed if they are an enum, a constant, true or false, null, a whole number with a least and a greatest value,
    or an object of such values. An argument that is not required is also left out.

    Args:
        tools: functions in OpenAI's shape, as `langchain_core.utils.function_calling.convert_to_openai_tool` makes them.
        most: greatest number of calls.

    Raises:
        UnlistableCall: naming the argument whose values cannot be listed, or the tool with which there are too many calls.
    """
    calls: list[dict[str, Any]] = []
    for tool in tools:
        function = tool["function"]
        parameters = dereference_refs(dict(function.get("parameters") or {}))
        for arguments in islice(_objects(parameters, str(function["name"])), most - len(calls) + 1):
            calls.append({"name": function["name"], "arguments": arguments})
        if len(calls) > most:
            raise UnlistableCall(f"with the tool {function['name']!r} there are more than {most} different calls")
    return calls


def _objects(schema: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    properties = schema.get("properties") or {}
    if not properties and schema.get("additionalProperties"):
        raise UnlistableCall(f"{where} takes any arguments")
    required = schema.get("required") or ()
    lists: list[list[dict[str, Any]]] = []
    for name, value in properties.items():
        found = [{name: one} for one in argument_values(value, f"{name!r} of {where}")]
        lists.append(found if name in required else [{}, *found])
    for parts in product(*lists):
        yield {name: value for part in parts for name, value in part.items()}


def argument_values(schema: Mapping[str, Any], where: str) -> list[Any]:
    """The values that an argument may have, by its JSON schema; see `list_calls`.

    Raises:
        UnlistableCall: they cannot be listed; names the argument as `where` does.
    """
    kind = schema.get("type")
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return [value for part in schema[union] for value in argument_values(part, where)]
    if isinstance(kind, list):
        return [value for one in kind for value in argument_values({**schema, "type": one}, where)]
    if kind == "boolean":
        return [True, False]
    if kind == "null":
        return [None]
    if kind == "object" and schema.get("properties"):
        return list(islice(_objects(schema, where), MAX_LISTED_CALLS + 1))
    if kind == "integer" and {"minimum", "maximum"} <= schema.keys():
        numbers = range(int(schema["minimum"]), int(schema["maximum"]) + 1)
        if len(numbers) <= MAX_LISTED_NUMBERS:
            return list(numbers)
    raise UnlistableCall(f"the argument {where} takes any {kind or 'value'}")


# Chats


def calls_as_text(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Turns for a chat template that knows no tools: the tools stand before the first user's text, calls are the assistant's
    text, and results the user's. Turns of one role that follow each other are joined, as many templates want them to take turns.
    """
    made: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for turn in turns:
        role, content = turn["role"], turn["content"]
        if role == "assistant":
            calls = [call["function"] for call in turn.get("tool_calls") or ()]
            names |= {call["id"]: call["function"]["name"] for call in turn.get("tool_calls") or () if call.get("id")}
            content = "\n".join([*([content] if content or not calls else []), *map(call_text, calls)])
        elif role == "tool":
            name = turn.get("name") or names.get(turn.get("tool_call_id") or "", "the tool")
            role, content = "user", RESULT_TEXT.format(name=name, content=content)
        if made and made[-1]["role"] == role:
            made[-1] = {"role": role, "content": f"{made[-1]['content']}\n{content}"}
        else:
            made.append({"role": role, "content": content})
    if tools:
        lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
        offer = OFFER_TEXT.format(tools="\n".join(lines))
        first = next((turn for turn in made if turn["role"] == "user"), None)
        if first is None:
            first = {"role": "user", "content": ""}
            made.append(first)
        first["content"] = f"{offer}\n{first['content']}".rstrip()
    return made
