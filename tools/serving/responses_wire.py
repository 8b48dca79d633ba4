"""OpenAI's Responses API (`/v1/responses`): its request, as one of `/v1/chat/completions`, and its answer and events.

A conversation is sent whole with each request (`input`); the server keeps none that a later request could go on with. What the model
cannot do is refused by name, as everywhere here. A response's id takes feedback as a chat's does.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from ...memory.records import Reply
from .openai_wire import (
    ApiError,
    Name,
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

__all__ = ["ResponseBody", "ResponseEvents", "parse_response", "response_object"]

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
PARAMS = {"response_format": "text.format", "messages": "input", "max_tokens": "max_output_tokens"}
"""Field of a chat request -> the field here that it comes from, for errors."""
Logprobs = Literal["message.output_text.logprobs"]
Id = Annotated[str, Field(min_length=1, max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(StrictBody):
    """A text in a message's content; only texts are supported."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = None
    """Of an earlier response that is sent back; not read."""


Parts = str | Annotated[list[InputTextPart], Field(min_length=1)]


class InputMessage(StrictBody):
    """A message of the conversation. `developer` means `system`."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Parts
    id: Id | None = None
    status: Status | None = None
    phase: None = None


class InputCall(StrictBody):
    """A function call that the model made."""

    type: Literal["function_call"]
    call_id: Id
    name: Id
    arguments: str
    id: Id | None = None
    status: Status | None = None


class InputCallOutput(StrictBody):
    """The result of a function call."""

    type: Literal["function_call_output"]
    call_id: Id
    output: Parts
    id: Id | None = None
    status: Status | None = None


def _item_type(item: Any) -> str:
    return str(item.get("type") or "message") if isinstance(item, dict) else "message"


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")],
    Discriminator(_item_type),
]


class ResponseTool(StrictBody):
    """A function that the model may call; its parameters are a JSON schema."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseNamedTool(StrictBody):
    type: Literal["function"]
    name: Name


class PlainTextFormat(StrictBody):
    type: Literal["text"]


class JsonFormat(StrictBody):
    type: Literal["json_object"]


class SchemaFormat(StrictBody):
    type: Literal["json_schema"]
    name: Name
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextSettings(StrictBody):
    format: Annotated[PlainTextFormat | JsonFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: None = None


class ResponseBody(StrictBody):
    """`POST /v1/responses`."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    """As in a chat request."""
    input: Annotated[str, Field(min_length=1)] | Annotated[list[Item], Field(min_length=1, max_length=4096)]
    instructions: str | None = None
    """Stands before the input, as a system message."""
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Logprobs | Literal["reasoning.encrypted_content"]] | None = None
    """`message.output_text.logprobs` shows log-probabilities. There is no reasoning to include."""
    tools: Annotated[list[ResponseTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseNamedTool | None = None
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


def parse_response(data: Any, model: str, features: Collection[str], window: int, default_max_tokens: int) -> ParsedRequest:
    """The request in a body of `/v1/responses`; see `parse_chat`.

    Raises:
        ApiError: names the field that is not supported, and the reason.
    """
    body = parse_body(ResponseBody, refuse_fields(data, UNSUPPORTED))
    try:
        parsed = parse_chat(_as_chat(body), model, features, window, default_max_tokens)
    except ApiError as error:
        error.param = PARAMS.get(error.param or "", error.param)
        raise
    return replace(parsed, echo=_echoed_fields(body))


def _as_chat(body: ResponseBody) -> dict[str, Any]:
    """The body of a chat request that asks the same."""
    found: dict[str, Any] = body.model_dump(
        include={"model", "temperature", "top_p", "top_logprobs", "parallel_tool_calls", "metadata", "store", "stream", "user"}
        | {"service_tier", "safety_identifier", "prompt_cache_key"}
    )
    found["messages"] = _as_messages(body)
    found["max_completion_tokens"] = body.max_output_tokens
    found["logprobs"] = body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ())
    if body.tools:
        found["tools"] = [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in body.tools]
    if isinstance(body.tool_choice, ResponseNamedTool):
        found["tool_choice"] = {"type": "function", "function": {"name": body.tool_choice.name}}
    else:
        found["tool_choice"] = body.tool_choice
    shape = body.text.format if body.text is not None else None
    if isinstance(shape, SchemaFormat):
        schema = shape.model_dump(exclude={"type"}, by_alias=True)
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif shape is not None:
        found["response_format"] = {"type": shape.type}
    return found


def _as_messages(body: ResponseBody) -> list[dict[str, Any]]:
    """The messages of a chat. Function calls belong to the assistant's message before them."""
    found: list[dict[str, Any]] = []
    if body.instructions:
        found.append({"role": "system", "content": body.instructions})
    items = [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    for item in items:
        if isinstance(item, InputMessage):
            found.append({"role": item.role, "content": _plain_text(item.content)})
        elif isinstance(item, InputCallOutput):
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": _plain_text(item.output)})
        else:
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments}
            calls = found[-1].setdefault("tool_calls", [])
            calls.append({"id": item.call_id, "type": "function", "function": function})
    return found


def _plain_text(content: str | list[InputTextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _echoed_fields(body: ResponseBody) -> dict[str, Any]:
    """The fields of the request that the response repeats, with their defaults."""
    shape = body.text.format if body.text is not None and body.text.format is not None else PlainTextFormat(type="text")
    choice = body.tool_choice
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "safety_identifier": body.safety_identifier,
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": shape.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": choice.model_dump() if isinstance(choice, ResponseNamedTool) else choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "user": body.user,
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
