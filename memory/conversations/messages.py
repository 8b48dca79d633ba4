"""Conversations as trajectories: what an agent read is the state, its tool calls and replies are the actions.

    trajectory(messages, reward)      the messages of an agent -> a trajectory that every memory takes
    told_steps(transitions)           and back, a step at a time
    last_turn, goal_and_last_turn     the state of a chat as text: what memories compare

A tool call is written as `name(argument='value')`, with its arguments in the order of their names and their values as Python
literals; `read_call` reads it without evaluating anything. A reply in words is written as it is, after `reply: `. Parallel calls
of one message are steps of their own, one after the other, in the same state, the further ones after reading `AT_ONCE`; so are a call
that a person did not let happen, and the call in its place (reviews.py), which was made after reading the same.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage

from ..display import short
from ..errors import UserError
from ..records import Task, Trajectory, Transition
from .reviews import REJECTED, result_text, reviewed_call

__all__ = [
    "REPLY",
    "StateKey",
    "call_text",
    "first_new_message",
    "goal_and_last_turn",
    "last_user_message",
    "read_call",
    "steps",
    "text_read",
    "told_steps",
    "trajectory",
]

StateKey = Callable[[Sequence[BaseMessage]], str]
"""The messages that an agent has read -> the text of its state, by which memories compare."""
REPLY = "reply: "
"""The beginning of an action that is a reply in words."""
AT_ONCE = "[nothing new: this call was made at once with the one before]"
"""The text that was read before a further call of one message."""


_NAMED_VALUES = {"...": ..., "True": True, "False": False, "None": None}
_VALUE = r"'[^'\\\n]*'|\.\.\.|True|False|None|-?(?:0|[1-9][0-9]{0,17})"
_ARGUMENT = re.compile(rf"([^\W\d]\w*)=({_VALUE})")
_SIMPLE_CALL = re.compile(rf"([^\W\d]\w*)\(((?:{_ARGUMENT.pattern}(?:, (?=\w)|(?=\))))*)\)")


def _literal(value: str) -> Any:
    """The value of a literal that `_VALUE` matches."""
    return value[1:-1] if value[0] == "'" else _NAMED_VALUES[value] if value in _NAMED_VALUES else int(value)


def call_text(call: Mapping[str, Any]) -> str:
    """A tool call (`name`, `args`) as text: `refund(amount=20, order='A7')`."""
    arguments = ", ".join(f"{name}={call['args'][name]!r}" for name in sorted(call["args"]))
    return f"{call['name']}({arguments})"


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a call that `call_text` wrote. Nothing is evaluated: values are literals.

    Raises:
        UserError: the text is no such call.
    """
    if (simple := _SIMPLE_CALL.fullmatch(text)) is not None:  # nearly all are; a parser takes many times as long
        return simple[1], {name: _literal(value) for name, value in _ARGUMENT.findall(simple[2])}
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
            raise ValueError("it is not name(argument=value, ...)")
        arguments = {}
        for given in tree.keywords:
            if given.arg is None:
                raise ValueError("**arguments have no names")
            arguments[given.arg] = ast.literal_eval(given.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        shown = short(text, 80)
        raise UserError(f"asked for a call such as refund(order='A7'), got {shown!r} ({error})") from error
    return tree.func.id, arguments


def last_turn(read: Sequence[BaseMessage]) -> str:
    """The user's last message, and the last result of each tool called since."""
    start = last_user_message(read)
    results = {m.name or "tool": _text(m) for m in read[start:] if isinstance(m, ToolMessage)}
    asked = [_text(read[start])] if read and isinstance(read[start], HumanMessage) else []
    return "\n".join([*asked, *(f"{name}: {result}" for name, result in results.items())])


def users_messages(read: Sequence[BaseMessage]) -> list[HumanMessage]:
    """The user's messages: not what a model has summarized of them."""
    return [m for m in read if isinstance(m, HumanMessage) and not is_summary(m)]


def is_summary(message: BaseMessage) -> bool:
    """True for what a model has summarized of a conversation (LangChain's SummarizationMiddleware)."""
    return message.additional_kwargs.get("lc_source") == "summarization"


def count_turns_before(messages: Sequence[BaseMessage], recorded: Sequence[str], turn: str) -> int:
    """The number of a thread's turns before the one that goes on.

    A summary takes the place of messages; recorded turns stay. Where somebody has gone back in time, recorded turns behind the last
    message have not happened yet.

    Args:
        messages: what the agent has of the thread.
        recorded: ids of all recorded turns, oldest first, each that of its user's message.
        turn: id of the one that goes on, whose message a summary may have taken the place of.
    """
    humans = [m for m in messages if isinstance(m, HumanMessage)]
    earlier = {m.id for m in humans[:-1]}
    if known := [place for place, id in enumerate(recorded) if id in earlier]:
        return known[-1] + 1
    if len(users_messages(humans)) < len(humans):
        return sum(id != turn for id in recorded)
    return len(earlier)


def goal_and_last_turn(read: Sequence[BaseMessage]) -> str:
    """The user's first message, and `last_turn` if it says something else."""
    goal = next(map(_text, users_messages(read)), "")
    last = last_turn(read)
    return last if last.startswith(goal) else f"{goal}\n{last}"


def without_values(read: Sequence[BaseMessage]) -> str:
    """As `goal_and_last_turn`, with a mark in the place of each word that has a digit: such a value belongs to one conversation."""
    return re.sub(r"[\w-]*\d[\w-]*", "#", goal_and_last_turn(read))


def text_read(read: Sequence[BaseMessage]) -> str:
    """The messages since the agent's last one, as it read them: tool results under the name of the tool."""
    start = next((n for n in range(len(read), 0, -1) if isinstance(read[n - 1], AIMessage)), 0)
    return "\n".join(f"{m.name or 'tool'}: {_text(m)}" if isinstance(m, ToolMessage) else _text(m) for m in read[start:])


def steps(
    messages: Sequence[AnyMessage | BaseMessage], state_key: StateKey = goal_and_last_turn, start: int = 0
) -> tuple[Transition, ...]:
    """The steps of a conversation, each with a reward of 0: what was done after what was read.

    Args:
        messages: of the user, the agent and its tools. System messages are left out: they are not what happened.
        state_key: the text of the state, from all messages before the action.
        start: place of the first message whose steps are wanted; those before are read for the states.
    """
    return tuple(Transition(*step) for step in _steps(messages, state_key, start))


def _steps(messages: Sequence[BaseMessage], state_key: StateKey, start: int) -> Iterator[tuple[str, str, float, str]]:
    talk = list[BaseMessage]()
    results, last = {m.tool_call_id: m for m in messages if isinstance(m, ToolMessage)}, last_user_message(messages)
    for place, message in enumerate(messages):
        if not isinstance(message, HumanMessage | AIMessage | ToolMessage):
            continue
        if isinstance(message, AIMessage) and place >= start:
            state, read = str(state_key(talk)), text_read(talk)
            for call in message.tool_calls:
                if place < last and call["id"] not in results:  # the user went on before it was made
                    continue
                made, reviewed = reviewed_call(call, results.get(call["id"] or ""))
                if reviewed:
                    yield state, REJECTED + call_text(call), 0.0, read
                if made is not None:
                    yield state, call_text(made), 0.0, read
                    read = AT_ONCE
            if not message.tool_calls:
                yield state, REPLY + _text(message), 0.0, read
        talk.append(message)


def trajectory(
    messages: Sequence[AnyMessage | BaseMessage],
    reward: float | None,
    *,
    run: str = "conversation",
    task: Task | None = None,
    domain: str = "",
    state_key: StateKey = goal_and_last_turn,
) -> Trajectory:
    """A conversation as a finished attempt, which every memory takes.

    Args:
        messages: of the user, the agent and its tools.
        reward: of the whole conversation, in any unit; it is that of the last step, and all others have 0. None: not known, which
            is not 0; memories of returns learn nothing from it.
        run: name of what it belongs to, such as the thread's id.
        task: what it was about; the user's first message if not given.
        domain: scope of cross-task memory.
        state_key: the text of a state.

    Raises:
        UserError: the agent did nothing in it, or the reward is not finite.
    """
    if reward is not None and not math.isfinite(reward):
        raise UserError(f"a reward is a finite number or None, got {reward}")
    done = steps(messages, state_key)
    if not done:
        raise UserError(f"asked for a conversation with an answer of the agent, got {len(messages)} messages without one")
    goal = next((_text(m) for m in messages if isinstance(m, HumanMessage)), "")
    last = messages[-1]
    rated = (*done[:-1], replace(done[-1], reward=reward))
    made = Trajectory(f"{run}/0", task or Task(domain or "conversation", goal), rated, run=run, score=reward or 0.0)
    return replace(made, domain=domain, last_observation=_text(last) if isinstance(last, ToolMessage) else "")


def told_steps(done: Sequence[Transition], id: str = "") -> Iterator[tuple[Transition, list[AnyMessage], AIMessage]]:
    """Each step with the messages that were read before it, none where a parallel call had read them, and that of its action.

    Args:
        done: the steps. What follows an action that is no reply was said by a tool.
        id: the beginning of the ids of calls.
    """
    calls: list[str] = []
    for number, step in enumerate(done):
        read: list[AnyMessage] = []
        if not number or not (step.observation == AT_ONCE or _is_replaced(done, number - 1)):
            read, calls = _messages_read(step.observation_text, calls), []
        if step.action.startswith(REPLY):
            yield step, read, AIMessage(step.action.removeprefix(REPLY))
            continue
        key = f"{id}/{number}"
        if not _is_replaced(done, number):
            calls.append(key)
        try:
            name, arguments = read_call(step.action.removeprefix(REJECTED))
        except UserError:
            yield step, read, AIMessage(step.action)
        else:
            yield step, read, AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": key}])


def _is_replaced(done: Sequence[Transition], number: int) -> bool:
    """True if a person had another call made in the place of this one."""
    step, following = done[number], done[number + 1 : number + 2]
    return step.action.startswith(REJECTED) and any(
        one.observation_text == step.observation_text and not one.action.startswith(REPLY) for one in following
    )


def _messages_read(text: str, calls: Sequence[str]) -> list[AnyMessage]:
    """Messages with this text: the results of these calls, a line each where there are as many; else the words of the user."""
    if not calls:
        return [HumanMessage(text)]
    lines = text.split("\n") if len(calls) > 1 and text.count("\n") == len(calls) - 1 else [text] + [""] * (len(calls) - 1)
    found: list[AnyMessage] = []
    for call, line in zip(calls, lines, strict=True):
        name, colon, result = line.partition(": ")
        found.append(ToolMessage(result if colon else line, tool_call_id=call, name=name if colon else None))
    return found


def _text(message: BaseMessage) -> str:
    """A message's text as a plain string, which stores keep as it is."""
    return result_text(message) if isinstance(message, ToolMessage) else str(message.text)


def last_user_message(read: Sequence[BaseMessage]) -> int:
    """The place of the user's last message; 0 if there is none."""
    return next((n for n in range(len(read) - 1, -1, -1) if isinstance(read[n], HumanMessage)), 0)


def first_new_message(read: Sequence[BaseMessage]) -> int:
    """The place of the first message since the agent's last one before the user's last: a user may send several at once."""
    last = last_user_message(read)
    return next((n + 1 for n in range(last - 1, -1, -1) if isinstance(read[n], AIMessage)), 0)
