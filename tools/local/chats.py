"""Messages in the form that chat templates take, and the texts of replies as they may be shown.

A call is written as Hermes and Qwen models write it, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. A chat template that
knows this form writes tools, calls and results itself. For any other template they are written into the turns that it knows
(`calls_as_text`).
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from ...memory.errors import UserError

__all__ = ["ReplyFrame"]

OFFER_TEXT = """You may call these tools:
{tools}
A call is written so, with nothing behind it:
<tool_call>{{"name": "NAME", "arguments": {{}}}}</tool_call>
"""
RESULT_TEXT = "Result of {name}: {content}"
ROLES = {HumanMessage: "user", AIMessage: "assistant", SystemMessage: "system", ToolMessage: "tool"}


@dataclass(frozen=True)
class ReplyFrame:
    """The text and tokens that a chat template puts around a reply."""

    opening: str = ""
    """A prompt of one message, up to where the reply begins."""
    opening_ids: tuple[int, ...] = ()
    lead: str = ""
    """Text before the reply's own text that the model generates (mostly empty, sometimes a space)."""
    end_text: str = ""
    """Text that ends the turn; empty if a token in `stop_ids` does."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the turn."""
    num_trailing_tokens: int = 0
    """Number of tokens that the template adds after the one that ends the turn."""


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """The letters by which byte-level tokenizers name bytes: printable bytes as they are, others from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def token_bytes(name: str) -> bytes | None:
    """The bytes of a token from its name in a byte-level (`Ġgo`) or byte-fallback (`<0xE6>`) vocabulary; None: another kind of
    name."""
    if len(name) == 6 and name.startswith("<0x"):
        return bytes.fromhex(name[3:5])
    letters = _alphabet()
    return bytes(letters[letter] for letter in name) if all(letter in letters for letter in name) else None


def langchain_turn(message: BaseMessage) -> dict[str, Any]:
    """A LangChain message as chat templates take it, with its tool calls. Raises `UserError` for content that is not text."""
    role = next((role for kind, role in ROLES.items() if isinstance(message, kind)), None)
    if isinstance(message, ChatMessage):
        role = message.role
    if role is None:
        raise UserError(f"a {type(message).__name__} has no role in a local model's chat; it knows {[*ROLES.values()]}")
    if not isinstance(message.content, str):
        kinds = {"text" if isinstance(block, str) else str(block.get("type")) for block in message.content}
        # Providers repeat the calls of a message in its content.
        unread = kinds - {"text", *(("tool_use", "tool_call", "function_call") if isinstance(message, AIMessage) else ())}
        if unread:
            raise UserError(f"a local model reads text only; a {role} message has {sorted(unread)}")
    turn: dict[str, Any] = {"role": role, "content": str(message.text)}
    if isinstance(message, AIMessage) and message.tool_calls:
        turn["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["args"]}}
            for call in message.tool_calls
        ]
    if isinstance(message, ToolMessage):
        turn["tool_call_id"] = message.tool_call_id
        turn |= {"name": message.name} if message.name else {}
    return turn


def openai_turn(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in OpenAI's shape as chat templates take it; see `LocalChatModel.chat_ids`. Raises `UserError` for other
    shapes."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise UserError(f"a message needs a role, got {dict(message)!r:.80}")
    if isinstance(content, list):
        kinds = {str(part.get("type")) if isinstance(part, dict) else type(part).__name__ for part in content}
        if kinds - {"text"}:
            raise UserError(f"a local model reads text only; a {role} message has {sorted(kinds - {'text'})}")
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str | None):
        raise UserError(f"a {role} message's content is a text, a list of text parts or null, got {content!r:.80}")
    made: dict[str, Any] = {"role": {"developer": "system"}.get(role, role), "content": content or ""}
    made |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key) is not None}
    if message.get("tool_calls"):
        made["tool_calls"] = [_openai_call(call) for call in message["tool_calls"]]
    return made


def _openai_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(f'a tool call is {{"id", "type", "function": {{"name", "arguments"}}}}, got {call!r:.80}')
    arguments = function.get("arguments", "{}")
    with contextlib.suppress(ValueError):  # the model wrote invalid JSON: the template gets it as it is
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def visible_text(text: str, lead: str, stops: tuple[str, ...], *, finished: bool) -> tuple[str, bool]:
    """The part of a decoded text that may be shown, and whether a stop sequence has cut it.

    The template's own text before a reply is dropped. Until the reply is finished, an ending that may become a stop sequence or
    is an unfinished character is held back.
    """
    if text.startswith(lead):
        text = text[len(lead) :]
    elif not finished and lead.startswith(text):
        return "", False
    cuts = [at for stop in stops if (at := text.find(stop)) >= 0]
    if cuts:
        return text[: min(cuts)], True
    if finished:
        return text, False
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held].rstrip("\ufffd"), False


# Calls of tools


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
