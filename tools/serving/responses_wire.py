"""OpenAI's Responses API (`/v1/responses`): its request, as one of `/v1/chat/completions`, and its answer and events.

A conversation is sent whole with each request (`input`); the server keeps none that a later request could go on with. What the model
cannot do is refused by name, as everywhere here. A response's id takes feedback as a chat's does.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ...memory.records import Reply
from .answers import reply_calls, sse_event, usage
from .openai_wire import ApiError, ParsedRequest, Positive, StrictBody, TalkBody, parse_body, parse_chat, refuse_fields

__all__ = ["ResponseAnswer", "ResponseBody"]

UNSUPPORTED = {
    "access_programs": "there are none here",
    "context_management": "send the input that fits",
    "conversation": "send the whole conversation as input",
    "image": "replies are text",
    "max_tool_calls": "tools are called by the client; use parallel_tool_calls: false for one call a response",
    "moderation": "nothing is moderated here",
    "previous_response_id": "send the whole conversation as input",
    "prompt": "send instructions and input",
    "prompt_cache_options": "prefixes are cached by themselves",
    "prompt_cache_retention": "prefixes are cached by themselves",
    "reasoning": "the model has no such setting",
}
"""Fields that are refused unless null -> the reason, or a remedy."""
Logprobs = Literal["message.output_text.logprobs"]
TEXT_PARTS = ("input_text", "output_text", "text")
"""Types of the parts of a message that are texts."""


class TextSettings(StrictBody):
    format: dict[str, Any] | None = None
    """`text`, `json_object`, or `json_schema` with `name` and `schema`."""
    verbosity: None = None


class ResponseBody(TalkBody):
    """`POST /v1/responses`. What stands in `input`, `tools` and `text` is checked as that of the chat request which asks the same."""

    input: Annotated[str, Field(min_length=1)] | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=4096)]
    """A text, or messages, function calls and their outputs."""
    instructions: str | None = None
    """Stands before the input, as a system message."""
    max_output_tokens: Positive | None = None
    include: list[Logprobs | Literal["reasoning.encrypted_content"]] | None = None
    """`message.output_text.logprobs` shows log-probabilities. There is no reasoning to include."""
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    """Functions: `type`, `name`, `description`, `parameters`, `strict`."""
    tool_choice: str | dict[str, Any] | None = None
    text: TextSettings | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None


REPEATED: dict[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "safety_identifier", "user", "previous_response_id")),
    **{"background": False, "metadata": {}, "parallel_tool_calls": True, "store": True, "temperature": 1.0, "top_p": 1.0},
    **{"text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "truncation": "disabled"},
}
"""Fields of the request that the response repeats -> their defaults."""


def parse_response(data: Any, model: str, features: Collection[str], window: int, default_max_tokens: int) -> ParsedRequest:
    """The request in a body of `/v1/responses`; see `parse_chat`.

    Raises:
        ApiError: names the field that is not supported, and the reason.
    """
    body = parse_body(ResponseBody, refuse_fields(data, UNSUPPORTED))
    for n, tool in enumerate(body.tools or ()):
        if tool.get("type") != "function":
            raise ApiError(f"tools[{n}].type: only functions are called", param=f"tools[{n}].type", code="invalid_value")
    messages, origins = _as_messages(body)
    shape = body.text.format if body.text is not None else None
    chat: dict[str, Any] = body.model_dump(include=TalkBody.model_fields.keys() - {"stream_options"}) | {
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ()),
        "tools": [_nest(tool, "function") for tool in body.tools or ()] or None,
        "tool_choice": _nest(body.tool_choice, "function") if isinstance(body.tool_choice, dict) else body.tool_choice,
        "response_format": _nest(shape, "json_schema") if shape and shape.get("type") == "json_schema" else shape,
    }
    try:
        parsed = parse_chat(chat, model, features, window, default_max_tokens)
    except ApiError as error:
        here = _field_here(error.param, origins)
        error.message, error.param = error.message.replace(error.param or "\0", here or ""), here
        raise
    echo = {name: data[name] if data.get(name) is not None else default for name, default in REPEATED.items()}
    return replace(parsed, echo=echo)


def _nest(flat: Mapping[str, Any], name: str) -> dict[str, Any]:
    """All but the type moved below a name, where a chat request has it."""
    return {"type": flat.get("type"), name: {key: value for key, value in flat.items() if key != "type"}}


def _field_here(param: str | None, origins: Sequence[str]) -> str | None:
    """The field here that a field of the chat request comes from."""
    if param is None:
        return None
    if found := re.match(r"messages\[(\d+)\]", param):
        return origins[int(found[1])] + param[found.end() :]
    for theirs, here in (("response_format", "text.format"), ("messages", "input"), ("max_tokens", "max_output_tokens")):
        param = param.replace(theirs, here)
    return param.replace(".function.", ".").replace(".json_schema.", ".")


def _as_messages(body: ResponseBody) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages of a chat, and the field that each comes from. Function calls belong to the assistant's message before them.

    Raises:
        ApiError: an item is of another type.
    """
    found: list[dict[str, Any]] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    origins = ["instructions"] if body.instructions else []
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for n, item in enumerate(items):
        kind, place = item.get("type") or "message", "input" if isinstance(body.input, str) else f"input[{n}]"
        if kind == "function_call":
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
                origins.append(place)
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls = found[-1].setdefault("tool_calls", [])
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
            continue
        if kind == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": _chat_content(item.get("output"))})
        elif kind == "message" and item.get("role") in ("system", "developer", "user", "assistant"):
            found.append({"role": item["role"], "content": _chat_content(item.get("content"))})
        else:
            problem = f"{place}: only messages, function calls and their outputs are understood"
            raise ApiError(problem, param=place, code="invalid_value")
        origins.append(place)
    return found, origins


def _chat_content(content: Any) -> Any:
    """A message's content as in a chat: its text parts have one type; annotations and log-probabilities of earlier responses are dropped."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get("text")} if isinstance(part, dict) and part.get("type") in TEXT_PARTS else part
        for part in content
    ]


# Answers


def _text_part(text: str, logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


class ResponseAnswer:
    """Answers of `/v1/responses`. Events have numbers; a response has the items `output`: a message, if there is text or nothing
    else, and the function calls."""

    prefix = "resp_"

    def __init__(self, id: str, model: str, version: str, parsed: ParsedRequest) -> None:
        about = {"object": "response", "created_at": int(time.time()), "model": model, "system_fingerprint": version}
        self._response: dict[str, Any] = {"id": id, **about, **parsed.echo}
        self._response |= {"status": "in_progress", "output": [], "usage": None, "error": None, "incomplete_details": None}
        self._parsed = parsed
        self._number = 0
        self._message = ""  # id of the message; empty before its first text
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []

    def whole(self, replies: Sequence[Reply], logprobs: Sequence[Sequence[Any]], version: str) -> dict[str, Any]:
        if replies[0].text:
            self.text(0, replies[0].text, logprobs[0])
        self.end(0, replies[0])
        return self._response | {"system_fingerprint": version}

    def _event(self, kind: str, **values: Any) -> bytes:
        self._number += 1
        return sse_event({"type": kind, "sequence_number": self._number - 1, **values}, kind)

    def begin(self) -> bytes:
        return b"".join(self._event(kind, response=self._response) for kind in ("response.created", "response.in_progress"))

    def text(self, index: int, more: str, tokens: Sequence[Mapping[str, Any]] = ()) -> bytes:
        out = b""
        if not self._message:
            self._message = f"msg_{secrets.token_hex(12)}"
            out = self._event("response.output_item.added", output_index=0, item=self._message_item("in_progress", []))
            out += self._part_event("response.content_part.added", part=_text_part("", ()))
        shown = [dict(token) for token in tokens] if self._parsed.with_logprobs else []
        self._text += more
        self._logprobs += shown
        return out + self._part_event("response.output_text.delta", delta=more, logprobs=shown)

    def _message_item(self, status: str, parts: list[Any]) -> dict[str, Any]:
        return {"type": "message", "id": self._message, "role": "assistant", "status": status, "content": parts}

    def _part_event(self, kind: str, **values: Any) -> bytes:
        return self._event(kind, item_id=self._message, output_index=0, content_index=0, **values)

    def end(self, index: int, reply: Reply) -> bytes:
        calls, output, is_cut = reply_calls(reply, self._parsed.one_call), self._response["output"], reply.finish == "length"
        rest = reply.text[len(self._text) :] if reply.text.startswith(self._text) else ""
        out = self.text(0, rest) if rest or not (self._message or calls) else b""
        status = "incomplete" if is_cut else "completed"
        if self._message:
            part = _text_part(self._text, self._logprobs)
            out += self._part_event("response.output_text.done", text=self._text, logprobs=self._logprobs)
            out += self._part_event("response.content_part.done", part=part)
            output.append(self._message_item(status, [part]))
            out += self._event("response.output_item.done", output_index=0, item=output[0])
        for call in calls:
            out += self._call_events(call, output)
        numbers = usage([reply], 1)
        cached = {"cached_tokens": numbers["prompt_tokens_details"]["cached_tokens"], "cache_write_tokens": 0}
        tokens = {"input_tokens": numbers["prompt_tokens"], "output_tokens": numbers["completion_tokens"]}
        tokens |= {"input_tokens_details": cached, "output_tokens_details": {"reasoning_tokens": 0}}
        self._response |= {
            "system_fingerprint": reply.version or "base",
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": tokens | {"total_tokens": numbers["total_tokens"]},
        }
        return out + self._event(f"response.{status}", response=self._response)

    def _call_events(self, call: Mapping[str, Any], output: list[Any]) -> bytes:
        """The events of a function call, which is added to the output."""
        id, at, arguments = f"fc_{secrets.token_hex(12)}", len(output), call["function"]["arguments"]
        about = {"type": "function_call", "id": id, "call_id": call["id"], "name": call["function"]["name"]}
        output.append({**about, "status": "completed", "arguments": arguments})
        where, opened = {"item_id": id, "output_index": at}, {**about, "status": "in_progress", "arguments": ""}
        return (
            self._event("response.output_item.added", output_index=at, item=opened)
            + self._event("response.function_call_arguments.delta", **where, delta=arguments)
            + self._event("response.function_call_arguments.done", **where, name=about["name"], arguments=arguments)
            + self._event("response.output_item.done", output_index=at, item=output[-1])
        )

    def finish(self, replies: Sequence[Reply]) -> bytes:
        return b""

    def failure(self, error: ApiError) -> bytes:
        """It has OpenAI's envelope too, by which its clients raise."""
        return self._event("error", code=error.code, message=error.message, param=error.param, **error.body)
