"""The tool call that was made in the end, whatever middlewares made of the one that the model proposed.

A person may edit a call behind or before a learning middleware (HumanInTheLoopMiddleware, in both of its modes). So the tool itself is
listened to; only a call that was turned over to another tool is read from that middleware's state. The result carries a mark
(memory/conversations/reviews.py), which the checkpoint keeps for a run that goes on in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager, Callbacks
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.types import Command

from ...memory.conversations.messages import is_summary
from ...memory.conversations.reviews import ANSWERED, NOT_MADE, mark_executed

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ToolCallRequest

__all__ = ["watch_call"]

Result = ToolMessage | Command[Any]


@dataclass(frozen=True)
class Caller:
    """The agent within whose tool another one runs."""

    message: str = ""
    """Id of its message with the call; empty: no agent that learns calls."""
    call: str = ""
    """Id of the call."""
    read: frozenset[str] = frozenset()
    """Ids of all messages that it has; none, where a summary has taken the place of some."""
    scope: Mapping[str, str | None] = field(default_factory=dict)
    """Name in a scope -> its value, None where it is without, as the thread of it has it, or its own caller."""


_CALLER = ContextVar[Caller | None]("learngraph_caller", default=None)


def find_caller() -> Caller:
    """The agent within whose tool this one runs."""
    return _CALLER.get() or Caller()


@contextmanager
def name_caller(request: ToolCallRequest) -> Iterator[None]:
    """Have the agents that a tool runs know who calls, and for whom."""
    state = request.state if isinstance(request.state, Mapping) else {}
    messages = state.get("messages") or ()
    said = next((str(one.id) for one in reversed(messages) if isinstance(one, AIMessage) and one.id), "")
    read = frozenset() if any(map(is_summary, messages)) else frozenset(str(one.id) for one in messages)
    outer = find_caller()
    scope = {**outer.scope, **(state.get("scope_values") or {})}
    token = _CALLER.set(Caller(said, str(request.tool_call["id"]), read | outer.read, scope))
    try:
        yield
    finally:
        _CALLER.reset(token)


class _Listener(BaseCallbackHandler):
    """Notes the call that a tool receives."""

    run_inline = True

    def __init__(self) -> None:
        self.call: dict[str, Any] | None = None

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, **more: Any) -> None:
        """Note the name and the arguments, without those that are injected."""
        self.call = {"name": serialized["name"], "args": more.get("inputs") or {}}


def watch_call(request: ToolCallRequest) -> tuple[ToolCallRequest, Callable[[Result], Result]]:
    """The request with a tool that is listened to, and a function that marks its result with the call that was made."""
    listener = _Listener()
    watched = request
    if request.tool is None:  # nobody can listen to it: the call is taken as made, whatever its result says of itself
        listener.call = dict(request.tool_call)
    else:
        watched = request.override(tool=request.tool.model_copy(update={"callbacks": _with(request.tool.callbacks, listener)}))
    id = request.tool_call["id"]
    state = request.state if isinstance(request.state, Mapping) else {}

    def mark(result: Result) -> Result:
        made = listener.call or (state.get("hitl_edited_tool_calls") or {}).get(id)
        if made is None:
            return result
        proposed = _proposed_call(state, id) or request.tool_call
        if isinstance(result, ToolMessage):
            return mark_executed(result, proposed, made)
        if not isinstance(result.update, dict) or not isinstance(result.update.get("messages"), list):
            return result
        marked = [
            mark_executed(one, proposed, made) if isinstance(one, ToolMessage) and one.tool_call_id == id else one
            for one in result.update["messages"]
        ]
        return replace(result, update={**result.update, "messages": marked})

    return watched, mark


def refused_result(request: ToolCallRequest) -> ToolMessage:
    """The result of a call that is not made, since the run that would make it is refused: the model may propose it again."""
    call = request.tool_call
    said = ToolMessage(NOT_MADE, tool_call_id=call["id"], name=call["name"], status="error")
    proposed = _proposed_call(request.state, call["id"]) or call  # not what the refused run has made of it
    return mark_executed(said, proposed, {**proposed, "name": f"{ANSWERED}{proposed['name']}"})


def _with(callbacks: Callbacks, listener: _Listener) -> Callbacks:
    """The callbacks of a tool, a list or a manager, with a listener beside them."""
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(listener, inherit=False)
        return manager
    return [*(callbacks or []), listener]


def _proposed_call(state: Mapping[str, Any], id: str | None) -> Mapping[str, Any] | None:
    """The model's own call of this id."""
    last = next((m for m in reversed(state.get("messages") or ()) if isinstance(m, AIMessage)), None)
    return next((call for call in last.tool_calls if call["id"] == id), None) if last is not None else None
