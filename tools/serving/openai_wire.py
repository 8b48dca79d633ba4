"""OpenAI's request bodies, checked field by field, and its errors.

`parse_chat` and `parse_text` turn a request's JSON into requests to an engine (`ParsedRequest`). A field that is not supported
is refused by name, never ignored. This file opens no connection; `chat_server.py` does.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from ...memory.errors import (
    AdapterConflict,
    AdapterError,
    EngineFailed,
    ExpiredExchange,
    FeedbackConflict,
    ReplayError,
    ReplayFull,
    Unavailable,
    UnknownAdapter,
    UnknownExchange,
    UnknownVersion,
    UserError,
    WindowError,
    did_you_mean,
)
from ...memory.records import ChatRequest, Sampling
from .tenants import RateLimitExceeded

T = TypeVar("T", bound=BaseModel)

__all__ = ["ApiError", "ChatBody", "ParsedRequest", "TextBody"]

DEFAULT_MAX_TOKENS = 1024
"""Longest reply of a chat request that names no limit, in tokens."""
MAX_CHOICES = 16
"""Most choices of one request (OpenAI: 128)."""
MAX_KEYS, MAX_VALUES = 2_000, 50_000
"""Most keys of an object in a body, and most values in all of it: each may be wrong, and while they are judged, no client gets a token."""
ERROR_TYPES = {429: "rate_limit_error", 401: "authentication_error", 403: "permission_error"}

UNSUPPORTED = {
    "audio": "replies are text",
    "best_of": "use n",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "moderation": "nothing is moderated here",
    "prediction": "predicted outputs are not used",
    "prompt_cache_options": "prefixes are cached by themselves",
    "prompt_cache_retention": "prefixes are cached by themselves",
    "reasoning_effort": "the model has no such setting",
    "suffix": "text is only ever continued",
    "verbosity": "the model has no such setting",
    "web_search_options": "nothing is searched here",
}
"""OpenAI's fields that are refused unless null -> the reason, or a remedy."""


class ApiError(Exception):
    """A request that is answered with an error, in OpenAI's envelope.

    Attributes:
        status: HTTP status.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.type = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error envelope."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


# JSON


def parse_json(body: bytes) -> Any:
    """A request body's JSON.

    Raises:
        ApiError: the body is not JSON in UTF-8: also NaN, a number beyond a float's range, half of a surrogate pair, a nesting of
            more than 200 levels, an object of more than `MAX_KEYS` keys, or more than `MAX_VALUES` values.
    """
    try:
        data = from_json(body, allow_inf_nan=False)
        _require_limits(data)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {str(error)[:200]}", code="invalid_json") from error
    return data


def _require_limits(data: Any) -> None:
    """Raise a `ValueError` for an infinite number in the data, as JSON's 1e999 becomes, or for too many keys or values."""
    left, waiting = MAX_VALUES, [data]
    while waiting:
        if isinstance(value := waiting.pop(), dict | list):
            if isinstance(value, dict) and len(value) > MAX_KEYS:
                raise ValueError(f"an object has {len(value)} keys, and may have {MAX_KEYS}")
            if (left := left - len(value)) < 0:
                raise ValueError(f"it has more than {MAX_VALUES} values")
            waiting += value.values() if isinstance(value, dict) else value
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number is too large")


# Requests


class StrictBody(BaseModel):
    """A body that has known fields only, each of its JSON type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(StrictBody):
    """A part of a message's content; only texts are supported."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


class PlainMessageBody(StrictBody):
    """A message of the user, or instructions; `developer` means `system`."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: str | None = None


class CalledFunction(StrictBody):
    """The name of a called function, and its arguments as JSON text."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str


class ToolCall(StrictBody):
    """A tool call that the model made."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessageBody(StrictBody):
    """An earlier message of the model."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class ToolMessageBody(StrictBody):
    """The result of a tool."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)]


Message = Annotated[PlainMessageBody | AssistantMessageBody | ToolMessageBody, Field(discriminator="role")]


class FunctionBody(StrictBody):
    """A function that the model may call; its parameters are a JSON schema."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(StrictBody):
    type: Literal["function"]
    function: FunctionBody


class NamedFunction(StrictBody):
    name: Name


class NamedTool(StrictBody):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(StrictBody):
    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class PlainFormat(StrictBody):
    type: Literal["text", "json_object"]


class JsonSchemaFormat(StrictBody):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[PlainFormat | JsonSchemaFormat, Field(discriminator="type")]


class StreamOptions(StrictBody):
    include_usage: bool | None = None
    """A last chunk with the usage of the whole request."""
    include_obfuscation: Literal[False] | None = None


Positive = Annotated[int, Field(ge=1, le=10_000_000)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class RequestBody(StrictBody):
    """The fields of chats and texts."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    """`NAME`, or `NAME:ADAPTER`; with `@VERSION` or `@base` behind it, an older version or the base model."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    """The end user. Kept with the exchange, so that none of a key's customers teaches more than a share."""
    max_tokens: Positive | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024)] | None = None


class ChatBody(RequestBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    tools: Annotated[list[ToolBody], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    response_format: ResponseFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    parallel_tool_calls: bool | None = None
    metadata: Annotated[dict[str, str | int], Field(max_length=16)] | None = None
    """`family`, `scenario` and `turn` are kept with the exchange; other keys are ignored."""
    store: bool | None = None
    """False: the exchange is not kept and takes no feedback."""
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    """OpenAI's newer name for `user`."""
    prompt_cache_key: str | None = None


class TextBody(RequestBody):
    """`POST /v1/completions`."""

    prompt: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)]
    )
    echo: Literal[False] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


@dataclass(frozen=True)
class ParsedRequest:
    """A request that was checked."""

    model: str
    """The model as the client named it."""
    adapter: str
    """The part of `model` after the colon; empty: there is none."""
    version: str
    """The part of `model` after the `@`: a version, or `base`; empty: the one that is live."""
    requests: tuple[ChatRequest, ...]
    """One request for each choice, prompt after prompt."""
    num_prompts: int = 1
    stream: bool = False
    with_usage: bool = False
    """True if the last chunk of the stream is the usage."""
    with_logprobs: bool = False
    """True if log-probabilities are shown."""
    one_call: bool = False
    """True if only the first tool call is shown."""
    store: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """`family`, `scenario`, `turn`, `user`."""


def parse_body(kind: type[T], data: Any) -> T:
    """The data as a body of this kind.

    Raises:
        ApiError: names the field that is missing, unknown or invalid.
    """
    if not isinstance(data, dict):
        raise ApiError("the body is a JSON object", code="invalid_json")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False, include_context=False), data, kind.model_fields) from None


def validation_error(errors: Sequence[Mapping[str, Any]], data: Any, known: Iterable[str]) -> ApiError:
    """An `ApiError` from the one of pydantic's errors that is deepest in the data; a union of types gives several errors. `known`: names of
    the body's fields."""
    found = [(*_error_place(error["loc"], data, error["type"] == "missing"), error) for error in errors]
    _, param, error = max(found, key=lambda item: (item[0], item[2]["type"] == "too_long"))
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(param, known) if param in data else ""  # `known` are the fields of the top level
        return ApiError(f"unknown field: {param}{hint}", param=param, code="unknown_parameter")
    if error["type"] == "missing":
        return ApiError(f"missing: {param}", param=param, code="missing_required_parameter")
    said = str(error["msg"])
    if error["loc"][-2:] == ("TextPart", "type") or (param.endswith("].type") and ".content[" in param):
        said = f"only text is understood, got {str(error.get('input'))[:40]!r}"
    return ApiError(f"{param}: {said[:1].lower()}{said[1:]}", param=param, code="invalid_value")


def _error_place(loc: Sequence[Any], data: Any, missing: bool) -> tuple[int, str]:
    """An error's depth in the data and its place, as `messages[0].content`, without the type names that pydantic adds."""
    path, depth = "", 0
    for at, part in enumerate(loc):
        if isinstance(part, int) and isinstance(data, list) and part < len(data):
            path, data, depth = f"{path}[{part}]", data[part], depth + 1
        elif isinstance(data, dict) and (part in data or (missing and at == len(loc) - 1)):
            path, data, depth = f"{path}.{part}" if path else str(part)[:100], data.get(part), depth + 1
    return depth, path


def parse_chat(data: Any, model: str, features: Collection[str], window: int) -> ParsedRequest:
    """The request in a body of `/v1/chat/completions`.

    Args:
        model: the server's model.
        features: the options that its engine supports.
        window: longest prompt with its reply, in tokens.

    Raises:
        ApiError: names the field that is not supported, and the reason.
    """
    body = parse_body(ChatBody, _refuse_fields(data))
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise ApiError("max_tokens and max_completion_tokens mean the same and differ; give one", param="max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    tools = tuple(tool.model_dump(exclude_none=True) for tool in body.tools or ())
    choice = _tool_choice(body, features)
    if choice == "none" and "tool_choice" not in features:
        tools, choice = (), None
    messages = tuple(map(_message, body.messages))
    if "tools" not in features:
        if tools:
            raise ApiError("this model takes no tools", param="tools", code="unsupported_parameter")
        if any(message["role"] == "tool" or "tool_calls" in message for message in messages):
            raise ApiError("this model takes no tool calls or tool messages", param="messages", code="unsupported_parameter")
    shape = body.response_format
    if shape is not None and shape.type != "text" and "response_format" not in features:
        raise ApiError("this model's replies are free text", param="response_format", code="unsupported_parameter")
    request = ChatRequest(
        messages=messages,
        sampling=_sampling(body, body.max_completion_tokens or body.max_tokens or DEFAULT_MAX_TOKENS, window),
        tools=tools,
        tool_choice=choice,
        response_format=None if shape is None or shape.type == "text" else shape.model_dump(exclude_none=True, by_alias=True),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        more=_extra_options(body, features),
    )
    return _parsed(
        body,
        model,
        [request],
        with_logprobs=bool(body.logprobs),
        one_call=body.parallel_tool_calls is False,
        store=body.store is not False,
        metadata=_parse_metadata(body.metadata or {}) | {"user": body.safety_identifier or body.user or ""},
    )


def parse_text(data: Any, model: str, features: Collection[str], window: int) -> ParsedRequest:
    """The request in a body of `/v1/completions`; see `parse_chat`."""
    body = parse_body(TextBody, _refuse_fields(data))
    if "raw" not in features:
        raise ApiError("this model only chats; use /v1/chat/completions", param="prompt", code="unsupported_parameter")
    sampling, more = _sampling(body, body.max_tokens or 16, window), _extra_options(body, features)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) * (body.n or 1) > MAX_CHOICES:
        raise ApiError(f"{len(prompts)} prompts, n {body.n}: more than {MAX_CHOICES} choices", param="n")
    requests = [ChatRequest(sampling=sampling, raw=prompt, top_logprobs=body.logprobs, more=more) for prompt in prompts]
    return _parsed(body, model, requests, with_logprobs=body.logprobs is not None, metadata={"user": body.user or ""})


def _parsed(body: RequestBody, model: str, requests: Sequence[ChatRequest], **more: Any) -> ParsedRequest:
    """The request with what both kinds of body have. `requests`: one for each prompt."""
    if body.stream_options is not None and not body.stream:
        raise ApiError("stream_options needs stream: true", param="stream_options")
    adapter, version = _split_model_name(body.model, model)
    return ParsedRequest(
        model=body.model,
        adapter=adapter,
        version=version,
        requests=_repeat_requests(requests, body.n or 1),
        num_prompts=len(requests),
        stream=bool(body.stream),
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
        **more,
    )


def _refuse_fields(data: Any) -> Any:
    """The body without unsupported fields. Raises an `ApiError` with the field's reason if one of them is not null."""
    if not isinstance(data, dict):
        return data
    for name in UNSUPPORTED.keys() & data.keys():
        if data[name] is not None:
            raise ApiError(f"{name} is not supported: {UNSUPPORTED[name]}", param=name, code="unsupported_parameter")
    return {name: value for name, value in data.items() if name not in UNSUPPORTED}


def _split_model_name(name: str, model: str) -> tuple[str, str]:
    """The adapter and the version that a model's name contains (`MODEL:ADAPTER@VERSION`); empty: none."""
    rest, at, version = name.removeprefix(model).partition("@")
    if not name.startswith(model) or rest == ":" or rest[:1] not in ("", ":") or bool(at) != bool(version):
        raise unknown_model(name)
    return rest[1:], version


def unknown_model(name: str) -> ApiError:
    """The error for a model that does not exist, or not for this tenant."""
    message = f"there is no model {name[:100]!r} here; GET /v1/models lists them"
    return ApiError(message, 404, param="model", code="model_not_found")


def _sampling(body: RequestBody, max_tokens: int, window: int) -> Sampling:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Sampling(
        temperature=1.0 if body.temperature is None else float(body.temperature),
        top_p=1.0 if body.top_p is None else float(body.top_p),
        max_tokens=min(max_tokens, window),
        seed=body.seed,
        stop=stop,
    )


def _extra_options(body: RequestBody, features: Collection[str]) -> dict[str, Any]:
    """Options that are set. Raises an `ApiError` for one that the engine does not support."""
    found = {}
    for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
        if value := getattr(body, name):
            if name not in features:
                raise ApiError(f"this engine has no {name}", param=name, code="unsupported_parameter")
            found[name] = value
    return found


def _repeat_requests(requests: Sequence[ChatRequest], n: int) -> tuple[ChatRequest, ...]:
    """Each request n times. With a seed the i-th has seed + i, since the same seed would give the same reply."""

    def nth(request: ChatRequest, i: int) -> ChatRequest:
        seed = request.sampling.seed
        if seed is None or not i:
            return request
        return replace(request, sampling=replace(request.sampling, seed=(seed + i + 2**63) % 2**64 - 2**63))

    return tuple(nth(request, i) for request in requests for i in range(n))


def _parse_metadata(metadata: Mapping[str, str | int]) -> dict[str, Any]:
    for name, value in metadata.items():
        if len(name) > 64 or len(str(value)[:600]) > 512:
            raise ApiError("metadata: keys have up to 64 characters and values up to 512", param="metadata")
    turn = metadata.get("turn", 0)
    if not str(turn).isascii() or not str(turn).isdigit() or len(str(turn)) > 9:
        raise ApiError(f"metadata.turn: a whole number from 0, got {str(turn)[:40]!r}", param="metadata.turn")
    return {"family": str(metadata.get("family", "")), "scenario": str(metadata.get("scenario", "")), "turn": int(turn)}


def _tool_choice(body: ChatBody, features: Collection[str]) -> Any:
    choice = body.tool_choice
    if choice is None or choice == "auto" or (choice == "none" and not body.tools):
        return None
    names = [tool.function.name for tool in body.tools or ()]
    if not names:
        raise ApiError("tool_choice needs tools", param="tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise ApiError(f"tool_choice: no tool is named {choice.function.name!r}", param="tool_choice")
    if choice != "none" and "tools" in features and "tool_choice" not in features:
        raise ApiError("this model decides by itself whether to call a tool", param="tool_choice", code="unsupported_parameter")
    return choice if isinstance(choice, str) else choice.model_dump()


def _message(message: PlainMessageBody | AssistantMessageBody | ToolMessageBody) -> dict[str, Any]:
    """A message for the engine: `developer` becomes `system`, and the parts of the content one text."""
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": content}
    if isinstance(message, ToolMessageBody):
        return found | {"tool_call_id": message.tool_call_id}
    if message.name is not None:
        found["name"] = message.name
    if isinstance(message, AssistantMessageBody):
        if message.tool_calls:
            found["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        elif content is None:
            raise ApiError("messages: an assistant message has content, or tool_calls", param="messages")
    return found


# Errors


STATUSES: dict[type[UserError], tuple[int, str]] = {
    WindowError: (400, "context_length_exceeded"),
    UnknownAdapter: (404, "adapter_not_found"),
    UnknownVersion: (404, "version_not_found"),
    UnknownExchange: (404, "response_not_found"),
    ExpiredExchange: (410, "response_expired"),
    FeedbackConflict: (409, "feedback_conflict"),
    AdapterConflict: (409, "adapter_conflict"),
    AdapterError: (500, "adapter_error"),
    EngineFailed: (500, "model_failed"),
    RateLimitExceeded: (429, "rate_limit_exceeded"),
    ReplayError: (503, "storage_failed"),
    ReplayFull: (503, "replay_full"),
    Unavailable: (503, "unavailable"),
}
"""Class of a `UserError` -> HTTP status and the envelope's `code`. A subclass has its parent's, unless it has its own."""
