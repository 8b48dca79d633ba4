"""OpenAI's Responses API (`/v1/responses`): its request, as one of `/v1/chat/completions`, and its answer and events.

A conversation is sent whole with each request (`input`); the server keeps none that a later request could go on with. What the model
cannot do is refused by name, as everywhere here. A response's id takes feedback as a chat's does.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ...memory.records import Reply
from .openai_wire import (
    ApiError,
    ParsedRequest,
    Positive,
    StreamOptions,
    StrictBody,
    parse_body,
    parse_chat,
    refuse_fields,
    reply_calls,
    usage,
)

__all__ = ["ResponseBody", "ResponseEvents"]

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


class ResponseBody(StrictBody):
    """`POST /v1/responses`. What stands in `input`, `tools` and `text` is checked as that of the chat request which asks the same."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    """As in a chat request."""
    input: Annotated[str, Field(min_length=1)] | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=4096)]
    """A text, or messages, function calls and their outputs."""
    instructions: str | None = None
    """Stands before the input, as a system message."""
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Logprobs | Literal["reasoning.encrypted_content"]] | None = None
    """`message.output_text.logprobs` shows log-probabilities. There is no reasoning to include."""
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    """Functions: `type`, `name`, `description`, `parameters`, `strict`."""
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    """`family`, `scenario` and `turn` are kept with the exchange; the response repeats all."""
    store: bool | None = None
    """False: the exchange is not kept and takes no feedback."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: str | None = None


SAME_FIELDS = {"model", "temperature", "top_p", "top_logprobs", "parallel_tool_calls", "metadata", "store", "stream", "user"}
SAME_FIELDS |= {"service_tier", "safety_identifier", "prompt_cache_key"}
"""Fields that a chat request has, too."""


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
    chat: dict[str, Any] = body.model_dump(include=SAME_FIELDS) | {
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
    return replace(parsed, echo=_echoed_fields(body))


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


def _echoed_fields(body: ResponseBody) -> dict[str, Any]:
    """The fields of the request that the response repeats, with their defaults."""
    shape = body.text.format if body.text is not None and body.text.format is not None else {"type": "text"}
    names = ("instructions", "max_output_tokens", "safety_identifier", "user")
    return {
        **{name: getattr(body, name) for name in names},
        "background": False,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": shape},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
    }


# Answers


def _item_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _text_part(text: str, logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [dict(token) for token in logprobs]}


def _message_item(id: str, status: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": list(parts)}


def _call_item(id: str, call: Mapping[str, Any], status: str) -> dict[str, Any]:
    arguments = call["function"]["arguments"] if status == "completed" else ""
    about = {"call_id": call["id"], "name": call["function"]["name"], "arguments": arguments}
    return {"type": "function_call", "id": id, "status": status, **about}


def _open_response(frame: Mapping[str, Any]) -> dict[str, Any]:
    """A response that is being made. `frame`: id, time, model, version, and the request's fields."""
    return {**frame, "status": "in_progress", "output": [], "usage": None, "error": None, "incomplete_details": None}


def _finished_response(frame: Mapping[str, Any], reply: Reply, output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A response with all of its items."""
    numbers, is_cut = usage([reply], 1), reply.finish == "length"
    return {
        **frame,
        "status": "incomplete" if is_cut else "completed",
        "output": list(output),
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "usage": {
            "input_tokens": numbers["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": numbers["prompt_tokens_details"]["cached_tokens"],
                "cache_write_tokens": 0,
            },
            "output_tokens": numbers["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": numbers["total_tokens"],
        },
    }


def response_object(
    frame: Mapping[str, Any], reply: Reply, logprobs: Sequence[Mapping[str, Any]], one_call: bool
) -> dict[str, Any]:
    """The response with a reply: a message, if there is text or nothing else, and the function calls."""
    calls = reply_calls(reply, one_call)
    status = "incomplete" if reply.finish == "length" else "completed"
    output = []
    if reply.text or not calls:
        output.append(_message_item(_item_id("msg"), status, [_text_part(reply.text, logprobs)]))
    output += [_call_item(_item_id("fc"), call, "completed") for call in calls]
    return _finished_response(frame, reply, output)


@dataclass
class ResponseEvents:
    """The events of a response that is streamed, in order and with their numbers.

    Args:
        frame: fields that the response begins with: id, time, model, version, and the request's.
        with_logprobs: log-probabilities are shown.
        one_call: only the first function call is shown.
    """

    frame: Mapping[str, Any]
    with_logprobs: bool = False
    one_call: bool = False
    _number: int = 0
    _message: str = ""
    """Id of the message; empty before its first text."""
    _text: str = ""
    _logprobs: list[dict[str, Any]] = field(default_factory=list)

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        found = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return found

    def begin(self) -> list[dict[str, Any]]:
        """The events before the first text."""
        opened = _open_response(self.frame)
        return [self._event("response.created", response=opened), self._event("response.in_progress", response=opened)]

    def text(self, more: str, tokens: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """The events for more text."""
        found = []
        if not self._message:
            self._message = _item_id("msg")
            item = _message_item(self._message, "in_progress", [])
            found.append(self._event("response.output_item.added", output_index=0, item=item))
            found.append(self._part_event("response.content_part.added", part=_text_part("", ())))
        shown = [dict(token) for token in tokens] if self.with_logprobs else []
        self._text += more
        self._logprobs += shown
        found.append(self._part_event("response.output_text.delta", delta=more, logprobs=shown))
        return found

    def _part_event(self, kind: str, **values: Any) -> dict[str, Any]:
        return self._event(kind, item_id=self._message, output_index=0, content_index=0, **values)

    def end(self, reply: Reply, version: str) -> list[dict[str, Any]]:
        """The events that end the response: text that was not sent yet, function calls, and the response as a whole."""
        found: list[dict[str, Any]] = []
        calls, output = reply_calls(reply, self.one_call), []
        rest = reply.text[len(self._text) :] if reply.text.startswith(self._text) else ""
        if rest or not (self._message or calls):
            found += self.text(rest)
        if self._message:
            part = _text_part(self._text, self._logprobs)
            found.append(self._part_event("response.output_text.done", text=self._text, logprobs=self._logprobs))
            found.append(self._part_event("response.content_part.done", part=part))
            status = "incomplete" if reply.finish == "length" else "completed"
            output.append(_message_item(self._message, status, [part]))
            found.append(self._event("response.output_item.done", output_index=0, item=output[0]))
        for call in calls:
            found += self._call_events(call, len(output))
            output.append(found[-1]["item"])
        whole = _finished_response({**self.frame, "system_fingerprint": version}, reply, output)
        kind = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
        return [*found, self._event(kind, response=whole)]

    def _call_events(self, call: Mapping[str, Any], at: int) -> list[dict[str, Any]]:
        id, arguments = _item_id("fc"), call["function"]["arguments"]
        where = {"item_id": id, "output_index": at}
        opened, done = _call_item(id, call, "in_progress"), _call_item(id, call, "completed")
        return [
            self._event("response.output_item.added", output_index=at, item=opened),
            self._event("response.function_call_arguments.delta", **where, delta=arguments),
            self._event("response.function_call_arguments.done", **where, name=call["function"]["name"], arguments=arguments),
            self._event("response.output_item.done", output_index=at, item=done),
        ]

    def failure(self, error: ApiError) -> dict[str, Any]:
        """The event for an error in the middle. It has OpenAI's envelope too, by which its clients raise."""
        about = {"code": error.code, "message": error.message, "param": error.param}
        return self._event("error", **about, **error.body)
