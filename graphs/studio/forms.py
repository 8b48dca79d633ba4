"""Forms for values: a JSON schema with the value as JSON, and the value that a person has made of it."""

import json
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, get_type_hints

from langchain_core.messages import BaseMessage
from langgraph.channels import LastValue
from langgraph.types import Overwrite
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from ...memory.errors import UserError
from ...memory.graph_input import check_input, check_names, needed_channels
from ...tools.notebook.moments import tools_of
from ...tools.notebook.tables import call_line, channel_types, to_line
from ..arms import check_value

__all__ = []


def channel_form(graph: Any, state: Mapping[str, Any], channel: str, index: int | None = None) -> dict[str, Any]:
    """The form of a channel, or of a message in it: {schema, value}.

    Args:
        graph: the graph whose channel it is.
        state: the channels' values.
        channel: its name.
        index: number of the message.

    Raises:
        UserError: the value is no JSON, so that a page cannot edit it.
    """
    if index is not None:
        return _message_form(graph, state[channel][index])
    try:
        adapter = _adapter(graph, channel)
        schema = adapter.json_schema()
        value = adapter.dump_python([state[channel]], mode="json")[0] if channel in state else None
        return {"schema": {**schema["items"], "$defs": schema.get("$defs", {})}, "value": value}
    except (PydanticUserError, TypeError, ValueError, NameError) as error:
        raise UserError(f"{channel} cannot be edited here ({error}); in Python walk.edit({channel}=...) does it") from error


def read_channel(graph: Any, state: Mapping[str, Any], channel: str, value: Any, index: int | None = None) -> Any:
    """The value for `Walk.edit`, so that a channel holds what its form says: a reducer adds nothing to it."""
    if index is not None:
        found: Any = [*state[channel]]
        found[index] = _read_message(found[index], value)
    else:
        found = _read_json(graph, channel, value)
    return found if isinstance(graph.builder.channels.get(channel), LastValue) else Overwrite(found)


def read_graph_input(graph: Any, value: Any) -> Any:
    """The input of a graph from its form: a record where a channel holds records, and not the form's dict. A name that is unknown, a
    channel that is missing or a value of another type is a `UserError`."""
    if not isinstance(value, Mapping):
        return value
    check_names(graph, value)
    channels = graph.builder.channels
    found = {
        name: _read_json(graph, name, one) if isinstance(channels.get(name), LastValue) else one for name, one in value.items()
    }
    check_input(graph, found)
    return found


def _read_json(graph: Any, channel: str, value: Any) -> Any:
    """The value of a channel from JSON; as it is where the channel's type cannot be read."""
    try:
        return _adapter(graph, channel).validate_json(json.dumps([value]))[0]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:])) or channel
        raise UserError(f"{channel} does not take this: {place}: {first['msg']}") from error


def _adapter(graph: Any, channel: str) -> TypeAdapter[Any]:
    return TypeAdapter(list[channel_types(graph.builder)[channel]], config=ConfigDict(arbitrary_types_allowed=True))  # type: ignore[arg-type, misc]


def _message_form(graph: Any, message: BaseMessage) -> dict[str, Any]:
    """The words of a message, and the arguments of its calls by the schemas of the graph's tools."""
    calls = getattr(message, "tool_calls", [])
    args = [{**_arguments(graph, call["name"]), "title": call["name"]} for call in calls]
    content = {"type": "string"} if isinstance(message.content, str) else {}
    properties = {"content": content} | ({"calls": {"type": "array", "prefixItems": args}} if calls else {})
    value = {"content": message.content} | ({"calls": [call["args"] for call in calls]} if calls else {})
    return {"schema": {"type": "object", "properties": properties}, "value": value}


def _arguments(graph: Any, name: str) -> dict[str, Any]:
    """The schema of a tool's arguments; any object for a tool that the graph does not have."""
    tool = tools_of(graph).get(name)
    return tool.get_input_jsonschema() if tool is not None else {"type": "object"}


def _read_message(message: BaseMessage, value: Mapping[str, Any]) -> BaseMessage:
    changes: dict[str, Any] = {"content": value["content"]}
    if "calls" in value:
        changes["tool_calls"] = [{**call, "args": args} for call, args in zip(message.tool_calls, value["calls"], strict=True)]  # type: ignore[attr-defined]
    return message.model_copy(update=changes)


def input_form(graph: Any, usual: Any = None) -> dict[str, Any]:
    """The form of a graph's input. Messages are given as one text, of the user."""
    try:
        schema = graph.get_input_jsonschema()
    except PydanticUserError:  # before Python 3.12 it takes no TypedDict of `typing`
        parts = {name: _adapter(graph, name).json_schema() for name in graph.builder.schemas[graph.builder.input_schema]}
        known = {name: part for one in parts.values() for name, part in one.get("$defs", {}).items()}
        schema = {"type": "object", "properties": {name: one["items"] for name, one in parts.items()}, "$defs": known}
    if is_typeddict(graph.builder.input_schema):  # not all channels of a state are given at the beginning
        schema["required"] = needed_channels(graph.builder)
    if "messages" in schema.get("properties", {}):
        schema["properties"]["messages"] = {"type": "string", "description": "what the user says"}
    return {"schema": schema, "value": usual if usual is not None else {}}


def settings_form(name: str, usual: Any, settings: Any) -> dict[str, Any]:
    """The form of a method's settings, whose defaults are the usual ones: those that the method's name stands for."""
    adapter = TypeAdapter[Any](type(usual))
    schema, defaults = adapter.json_schema(), adapter.dump_python(usual, mode="json")
    owners = [TypeAdapter[Any](one).json_schema().get("properties", {}) for one in type(usual).__mro__ if is_dataclass(one)]
    for key, part in schema["properties"].items():
        told = (one[key]["description"] for one in owners if "description" in one.get(key, {}))
        part |= {"default": defaults[key], "description": next(told, "")}
    value = adapter.dump_python(settings, mode="json")
    return {"schema": schema, "value": value, "title": f"Settings of {name}; changed ones begin with a new memory"}


def read_settings(usual: Any, value: Mapping[str, Any]) -> Any:
    """Settings with the values of their form; a `UserError` where a value is of another type or size."""
    hints = get_type_hints(type(usual))
    return replace(usual, **{key: check_value(given, hints.get(key, Any), key) for key, given in value.items()})


def answer_form(question: Any, graph: Any = None) -> dict[str, Any] | None:
    """The form of an answer to LangChain's HumanInTheLoopMiddleware: a decision a call, with the arguments of the graph's tools by
    their schemas; None for other questions. A part is shown while its decision's `type` is one that it is `only_for`."""
    if not isinstance(question, Mapping) or not {"action_requests", "review_configs"} <= set(question):
        return None
    decisions, value = [], []
    for asked, config in zip(question["action_requests"], question["review_configs"], strict=False):
        properties = {
            "type": {"enum": list(config["allowed_decisions"])},
            "message": {"type": "string", "description": "what the model is told instead", "only_for": ["reject", "respond"]},
            "edited_action": {"type": "object", "properties": {"args": _arguments(graph, asked["name"])}, "only_for": ["edit"]},
        }
        call = to_line(call_line(asked["name"], asked["args"]))
        decisions.append({"type": "object", "title": call, "properties": properties, "required": ["type"]})
        edited = {"name": asked["name"], "args": asked["args"]}
        allowed = config["allowed_decisions"]  # of several none is chosen yet: nobody approves a payment by Enter
        value.append({"message": "", "edited_action": edited} | ({"type": allowed[0]} if len(allowed) == 1 else {}))
    schema = {"type": "object", "properties": {"decisions": {"type": "array", "prefixItems": decisions}}}
    return {"schema": schema, "value": {"decisions": value}}


def question_text(question: Any) -> str:
    """A question in one line: of a record its `question`, of calls that wait for approval their descriptions."""
    if answer_form(question) is None:
        return to_line(question, 2_000) if not isinstance(question, Mapping) else str(question.get("question", ""))
    told = [one.get("description") or one["name"] for one in question["action_requests"]]
    return to_line("; ".join(" ".join(one.split()) for one in told), 2_000)


def question_parts(question: Any) -> dict[str, Any]:
    """The values of a record beside its question, which the page shows under it."""
    is_record = isinstance(question, Mapping) and answer_form(question) is None
    return {key: value for key, value in question.items() if key != "question"} if is_record else {}


def read_answer(text: Any) -> Any:
    """An answer to a node's question: JSON if it is, else the words as they are."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text.strip()
