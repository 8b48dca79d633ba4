"""Recorded conversations of other tools: OpenAI's chat messages, and runs of LangSmith.

| form | a record is | its reward |
|---|---|---|
| `openai` | a list of messages, or an object with `messages` (perhaps `id`, `reward`, `score`) | `reward` or `score` |
| `langsmith` | a run with `inputs` and `outputs` that hold `messages` (an export of root runs) | the mean of a feedback key in `feedback_stats` |

A file holds one JSON record a line, or one JSON document (a record, or a list of records). A conversation without a reward is kept
without one: that is not a reward of 0.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from langchain_core._api import LangChainBetaWarning
from langchain_core.load import load
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, convert_to_messages

from ..errors import UserError, plural
from ..records import Task, Trajectory
from .messages import StateKey, goal_and_last_turn, trajectory

__all__ = ["RecordedConversation", "holds_trajectories", "read_traces", "to_trajectories"]

TraceForm = Literal["openai", "langsmith"]


@dataclass(frozen=True)
class RecordedConversation:
    """A conversation from another tool."""

    id: str
    messages: tuple[AnyMessage, ...]
    reward: float | None
    """None: the record names none."""
    note: str = ""
    """The words of its feedback."""

    @property
    def is_idle(self) -> bool:
        """True if the agent did nothing in it."""
        return not any(isinstance(m, AIMessage) for m in self.messages)


def read_traces(path: Path | str, form: TraceForm | None = None, feedback_key: str | None = None) -> list[RecordedConversation]:
    """The conversations of a file.

    Args:
        path: the file.
        form: of its records; found out record by record if not given.
        feedback_key: the key of LangSmith's feedback that is the reward; if not given, the only one that a run has.

    Raises:
        UserError: the file cannot be read, or a record is none of these forms; says where.
    """
    found = list[RecordedConversation]()
    for place, record in _records(Path(path)):
        try:
            kind = form or _find_form(record)
            number = f"{Path(path).stem}-{len(found)}"
            match kind:
                case "openai":
                    found.append(_read_openai(record, number))
                case "langsmith":
                    found.append(_read_langsmith(record, number, feedback_key))
        except (KeyError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
            raise UserError(
                f"{place}: asked for a conversation ({form or 'openai or langsmith'}), and could not read it ({type(error).__name__}: {error})"
            ) from error
    return found


def holds_trajectories(path: Path) -> bool:
    """True if a file's first record is a trajectory of ours.

    Raises:
        UserError: the file cannot be read, or is no JSON.
    """
    record = next((record for _, record in _records(path)), None)
    return isinstance(record, Mapping) and "transitions" in record


def to_trajectories(
    conversations: Iterable[RecordedConversation],
    *,
    domain: str = "agent",
    task: str = "agent",
    state_key: StateKey = goal_and_last_turn,
) -> list[Trajectory]:
    """Trajectories of these conversations, as the learning middlewares keep them. Those in which the agent did nothing are left out.

    Args:
        conversations: from `read_traces`.
        domain: name of the agent that is to learn from them (`name=` of its middleware).
        task: the kind of task (`task=` of its middleware).
        state_key: the text of a state, as in the middleware.
    """
    found = []
    for one in conversations:
        if one.is_idle:
            continue
        goal = next((str(m.text) for m in one.messages if isinstance(m, HumanMessage)), "")
        made = trajectory(one.messages, one.reward, run=one.id, task=Task(task, goal), domain=domain, state_key=state_key)
        found.append(replace(made, note=one.note))
    return found


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """(place in the file, record), from JSON lines, or from one document."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        whole = json.loads(text)
    except ValueError:
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    yield f"{path}, line {number}", json.loads(line)
                except ValueError as error:
                    raise UserError(f"{path}, line {number}: not JSON ({error})") from error
        return
    if isinstance(whole, list) and whole and not _is_message(whole[0]):
        for number, record in enumerate(whole, 1):
            yield f"{path}, record {number}", record
    else:
        yield str(path), whole


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or value.get("type") in ("human", "ai", "tool", "system"))


def _find_form(record: Any) -> TraceForm:
    if isinstance(record, list):
        return "openai"
    if "run_type" in record or ("inputs" in record and "outputs" in record):
        return "langsmith"
    if "messages" in record:
        return "openai"
    raise ValueError(f"it has {', '.join(map(repr, list(record)[:6]))}, and neither messages, nor inputs and outputs")


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        raise ValueError(f"its reward is {value!r}, and a finite number was asked for")
    return float(value)


def _read_messages(rows: Sequence[Any]) -> tuple[AnyMessage, ...]:
    """Messages in OpenAI's form, in LangChain's, or serialised by LangChain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)  # `load` is the only way back from LangChain's own form
        plain = [load(row, allowed_objects="messages") if _is_serialised(row) else row for row in rows]
    return tuple(convert_to_messages(plain))  # type: ignore[arg-type]


def _is_serialised(row: Any) -> bool:
    return isinstance(row, Mapping) and row.get("type") == "constructor"


def _read_openai(record: Any, number: str) -> RecordedConversation:
    if isinstance(record, list):
        return RecordedConversation(number, _read_messages(record), None)
    reward = record.get("reward", record.get("score"))
    return RecordedConversation(
        str(record.get("id", number)), _read_messages(record["messages"]), _number(reward), str(record.get("feedback") or "")
    )


def _read_langsmith(record: Mapping[str, Any], number: str, feedback_key: str | None) -> RecordedConversation:
    outputs = (record.get("outputs") or {}).get("messages") or (record.get("outputs") or {}).get("output", {})
    inputs = (record.get("inputs") or {}).get("messages") or []
    rows = outputs if isinstance(outputs, list) else [outputs] if outputs else []
    if inputs and isinstance(inputs[0], list):  # runs of chat models hold a list of lists
        inputs = inputs[0]
    said, asked = _read_messages(rows), _read_messages(inputs)
    whole = said if any(isinstance(m, HumanMessage) for m in said) else (*asked, *said)  # a graph's output holds its input, too
    stats = record.get("feedback_stats") or {}
    if feedback_key is not None:
        stats = {key: value for key, value in stats.items() if key == feedback_key}
    if len(stats) > 1:
        raise ValueError(
            f"it has feedback for {plural(len(stats), 'key')}: {', '.join(stats)}; say which is the reward (feedback_key)"
        )
    reward = next((_number(value.get("avg")) for value in stats.values()), None)
    return RecordedConversation(str(record.get("id", number)), whole, reward)
