"""Tool calls of a local model: which calls there are, and how they stand in a chat.

A call is written as Hermes and Qwen models write it, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. A chat template that knows this form
writes tools, calls and results itself. For any other template they are written into the turns that it knows (`calls_as_text`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...memory.errors import UserError

__all__ = []

OFFER_TEXT = """You may call these tools:
{tools}
A call is written so, with nothing behind it:
<tool_call>{{"name": "NAME", "arguments": {{}}}}</tool_call>
"""
RESULT_TEXT = "Result of {name}: {content}"


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
