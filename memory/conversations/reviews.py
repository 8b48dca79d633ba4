"""Calls that a person changed: an edited call was not made, another one was; a rejected call was not made at all.

LangChain's HumanInTheLoopMiddleware leaves the model's own call in its message, and says in the call's result what a person did
instead. Here the executed call is the action, the proposed one a rejected decision (`REJECTED`), and the result is read without the
words that the middleware has put before it.

What a tool says of itself is not believed: the process that runs a tool marks the result (`mark_executed`), so that only a result that
no tool has written may tell of a rejection.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from ..records import Trajectory

__all__ = [
    "ANSWERED",
    "NOT_MADE",
    "REJECTED",
    "is_answered",
    "is_rejection",
    "mark_answered",
    "mark_executed",
    "result_text",
    "review_rating",
    "reviewed_call",
    "without_rejected",
]

REJECTED = "rejected by a person: "
"""The beginning of an action that the agent proposed, and that a person did not let happen."""
ANSWERED = "answered by a person: "
"""The beginning of an action that the agent proposed, and whose result a person wrote in the tool's place."""
NOT_MADE = "This call was not made: the run that went on with it was refused."
"""The result of a call that a run of another tenant has decided on: what it decided is nobody's review."""
MARK = "executed_call"
"""Key of a result's `additional_kwargs`: True if the call was made as proposed, else the call (`name`, `args`) that was."""
_NOTICE = re.compile(r"\A.*? Executed instead: [^\n]*\.(?:\n\nTool response:\n?|\Z)", re.DOTALL)
_REJECTION = re.compile(r"User rejected the tool call for `[^`]*` with (?:reason: (?P<reason>.*)|id .*)", re.DOTALL)


def mark_executed(result: ToolMessage, proposed: Mapping[str, Any], executed: Mapping[str, Any]) -> ToolMessage:
    """The result of a call with a mark that says which call (`name`, `args`) was made."""
    made = {"name": executed["name"], "args": executed["args"]}
    as_proposed = made == {"name": proposed["name"], "args": proposed["args"]}
    return result.model_copy(update={"additional_kwargs": {**result.additional_kwargs, MARK: True if as_proposed else made}})


def mark_answered(messages: Sequence[BaseMessage], tools: Collection[str]) -> list[BaseMessage]:
    """The messages with a mark at each result that no tool has written.

    Args:
        messages: of a conversation whose executed calls are marked.
        tools: names of those in whose place a person may answer.
    """
    calls = {call["id"]: call for m in messages if isinstance(m, AIMessage) for call in m.tool_calls}

    def mark(one: BaseMessage) -> BaseMessage:
        if not isinstance(one, ToolMessage) or MARK in one.additional_kwargs or one.name not in tools or one.status == "error":
            return one
        call = calls.get(one.tool_call_id)
        return one if call is None else mark_executed(one, call, {**call, "name": f"{ANSWERED}{call['name']}"})

    return [mark(one) for one in messages]


def reviewed_call(call: Mapping[str, Any], result: ToolMessage | None) -> tuple[Mapping[str, Any] | None, bool]:
    """The call that was made in the place of a proposed one, None if none was; and whether a person saw to that.

    Args:
        call: the proposed call (`name`, `args`).
        result: its result; None: it has none yet.
    """
    mark = result.additional_kwargs.get(MARK) if result is not None else None
    if isinstance(mark, Mapping):
        # Any middleware may change a call; only HumanInTheLoopMiddleware says so, of a person's edit. A call that was not made is none.
        return mark, result is not None and not is_answered(mark) and _NOTICE.match(str(result.text)) is not None
    return (None, True) if result is not None and is_rejection(result) else (call, False)


def is_answered(call: Mapping[str, Any] | None) -> bool:
    """True if a call was not made, and somebody's words stand in the place of its result."""
    return str((call or {}).get("name", "")).startswith(ANSWERED)


def is_rejection(result: BaseMessage) -> bool:
    """True if a message is the result of a call that a person has rejected."""
    return isinstance(result, ToolMessage) and _rejection(result) is not None


def result_text(result: ToolMessage) -> str:
    """The result of a call without the words that a middleware has put before it; of a rejected call the person's reason."""
    text = str(result.text)
    if isinstance(result.additional_kwargs.get(MARK), Mapping):
        return _NOTICE.sub("", text, count=1)
    if (found := _rejection(result)) is not None:
        return "a person rejected this call" + (f": {found['reason']}" if found["reason"] else "")
    return text


def _rejection(result: ToolMessage) -> re.Match[str] | None:
    if result.status != "error" or MARK in result.additional_kwargs:
        return None
    return _REJECTION.fullmatch(str(result.text))


def review_rating(
    messages: Sequence[BaseMessage], least: float, most: float, let_pass: Collection[str] = ()
) -> tuple[float | None, str] | None:
    """The feedback that lies in a person's edits and rejections; None if there were none.

    An edited call is the right one (`most`). A rejected one is wrong (`least`) unless another call was made beside or after it, of
    which nobody has said anything (None). The calls of one message have no order: a right one among them counts.

    Args:
        messages: those of one turn.
        least: the least reward of the app.
        most: the greatest.
        let_pass: names of the tools of which a person sees every call: one that was made as it was proposed is right, too.
    """
    results = {m.tool_call_id: m for m in messages if isinstance(m, ToolMessage)}
    reward, words = None, list[str]()
    for message in (m for m in messages if isinstance(m, AIMessage)):
        said, is_unsaid = set[float](), False
        for call in message.tool_calls:
            made, reviewed = reviewed_call(call, result := results.get(call["id"] or ""))
            if reviewed and result is not None:
                said.add(least if made is None else most)
                replaced = made and f"a person replaced {call['name']} {call['args']} by {made['name']} {made['args']}"
                words.append(replaced or f"{result_text(result)} ({call['name']})")
            elif result is not None and call["name"] in let_pass and not is_answered(made):
                said.add(most)
                words.append(f"a person let a call of {call['name']} pass")
            else:  # an answer in a tool's place is neither right nor wrong: some calls ask a person
                is_unsaid |= result is not None and not is_answered(made)
        if is_unsaid and most not in said:
            reward = None if least in (*said, reward) else reward
        elif said:
            reward = max(said)
    return (reward, "; ".join(words)) if words else None


def without_rejected(trajectory: Trajectory) -> Trajectory | None:
    """The conversation without the calls that a person rejected; None if nothing else was done in it."""
    done = tuple(step for step in trajectory.transitions if not step.action.startswith(REJECTED))
    if len(done) == len(trajectory.transitions):
        return trajectory
    return (
        replace(trajectory, transitions=(*done[:-1], replace(done[-1], reward=trajectory.transitions[-1].reward)))
        if done
        else None
    )
