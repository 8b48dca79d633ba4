"""A trace of any tool as a conversation: its messages from the inputs and outputs of its spans, its reward from its scores.

The messages are those of the outermost span that has a list of them; of a trace whose outer spans have none, those of the longest call of
a model; else one text in and one out. Texts and calls are read by LangChain's own converters.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langchain_core import messages as chat
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from ...memory.conversations.recorded import RecordedConversation

__all__ = ["RewardKey", "Score", "Span", "Trace"]

Row = Mapping[str, Any]
_LANGCHAIN = ("human", "ai", "tool", "system", "HumanMessageChunk", "AIMessageChunk", "constructor")
"""Types of messages in LangChain's forms."""
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, NotImplementedError)
"""The errors of records that are not of the form that they should have."""


class Span(NamedTuple):
    """A step of a trace; its time is sorted as text."""

    id: str
    parent: str
    start: str
    inputs: Any
    outputs: Any
    is_model: bool


class Score(NamedTuple):
    """Feedback on a trace: a number, true or false, or a category."""

    key: str
    value: Any
    comment: str = ""


@dataclass(frozen=True)
class RewardKey:
    """The feedback that is the reward: its key, empty for the only one that a trace has, and what its categories are worth."""

    key: str = ""
    values: Mapping[str, float] = field(default_factory=dict)

    def reward(self, scores: Sequence[Score]) -> tuple[float | None, str]:
        """The mean reward of the scores of this key, and their words; raises ValueError where they are none."""
        scores = [one for one in scores if not one.key.startswith("learngraph.")]  # a lift that was written back
        if not self.key and len(keys := sorted({one.key for one in scores})) > 1:
            raise ValueError(f"it has feedback for {', '.join(keys)}: say which is the reward, --feedback-key {keys[0]}")
        found = [one for one in scores if not self.key or one.key == self.key]
        rewards = [self._number(one) for one in found if one.value is not None]
        mean = rewards[0] if len(rewards) == 1 else sum(rewards) / len(rewards) if rewards else None  # a boolean stays one
        return mean, "\n".join(one.comment for one in found if one.comment)

    def _number(self, score: Score) -> float:
        value: Any = self.values.get(str(score.value), score.value)
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            raise ValueError(f"its {score.key} is {score.value!r}: say what that is worth, --feedback-values {score.value}=1")
        return value


@dataclass(frozen=True)
class Trace:
    """A run of an agent, as a tool has traced it: in a thread or in none, at a time in ISO 8601 or in nanoseconds since 1970."""

    id: str
    spans: Sequence[Span]
    thread: Any = ""
    at: Any = ""
    user: Any = ""
    scores: Sequence[Score] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    is_done: bool = True

    def conversation(self, feedback: RewardKey) -> RecordedConversation:
        """The run as a conversation; its `problem` says what cannot be read."""
        messages, reward, words = list[BaseMessage](), None, ""
        problem = "" if self.is_done else "it is not finished"
        try:
            messages = [] if problem else self._messages()
            problem = problem if problem or messages else "it has no talk of a user with an agent"
        except UNREADABLE as error:
            problem = f"its messages cannot be read ({type(error).__name__}: {error})"[:300]
        try:
            reward, words = feedback.reward(self.scores)
        except ValueError as error:
            problem = problem or str(error)
        thread, user = str(self.thread or self.id), str(self.user or "")
        return RecordedConversation(thread, tuple(messages), reward, words, self.id, utc(self.at), user, self.metadata, problem)

    def _messages(self) -> list[BaseMessage]:
        spans = sorted(self.spans, key=lambda one: one.start)
        outer = [one for one in spans if not one.is_model and all(one.parent != other.id for other in spans)]
        for one in outer:
            if len(found := talk(one.inputs, one.outputs)) > 1:
                return found
        if longest := max((talk(one.inputs, one.outputs) for one in spans if one.is_model), key=len, default=[]):
            return longest
        for one in outer:
            if (asked := _only_text(one.inputs)) and (said := _only_text(one.outputs)):
                return [HumanMessage(asked), AIMessage(said)]
        return []


def has_talk(inputs: Any, outputs: Any) -> bool:
    """True if a span has a list of messages, readable or not: then the calls of models within need not be asked for."""
    try:
        return len(talk(inputs, outputs)) > 1
    except UNREADABLE:
        return True


def talk(inputs: Any, outputs: Any) -> list[BaseMessage]:
    """The messages that a span has read and said; empty where it has no list of messages."""
    asked, said = read_messages(inputs), read_messages(outputs)
    if any(isinstance(one, HumanMessage) for one in said):
        return said  # a graph's output holds its input, too
    if not asked and isinstance(rows := plain(inputs), Mapping) and isinstance(text := rows.get("messages"), str):
        asked = [HumanMessage(text)]
    return [*asked, *said] if asked else []


def read_messages(value: Any) -> list[BaseMessage]:
    """The messages in the inputs or outputs of a span: OpenAI's, Anthropic's, LangChain's, or of OpenTelemetry's conventions."""
    rows = plain(value)
    for name in ("messages", "choices", "generations", "message"):  # a graph's, a completion's, a LangChain model's
        if isinstance(rows, Mapping) and isinstance(found := rows.get(name), list | Mapping):
            rows = found
    while isinstance(rows, list) and rows and isinstance(rows[0], list):
        rows = rows[0]
    rows = rows if isinstance(rows, list) else [rows]
    for name in ("message", "data"):  # of a generation; of messages_to_dict
        rows = [one[name] if isinstance(one, Mapping) and isinstance(one.get(name), Mapping) else one for one in rows]
    if not all(isinstance(one, Mapping) and ("role" in one or one.get("type") in _LANGCHAIN) for one in rows):
        return []
    found, names = [message for row in rows for message in _convert(row)], dict[str | None, str]()
    for one in found:  # some tools leave out the name of the tool at its result
        if isinstance(one, AIMessage):
            names |= {call["id"]: call["name"] for call in one.tool_calls}
        if isinstance(one, ToolMessage) and not one.name:
            one.name = names.get(one.tool_call_id)
    return found


def _convert(row: Row) -> list[BaseMessage]:
    content = row.get("parts", row.get("content"))
    blocks = [_block(one) for one in content if isinstance(one, Mapping)] if isinstance(content, list) else []
    kinds = {one.get("type") for one in blocks}
    if "parts" not in row and not kinds & {"tool_use", "tool_result"}:
        return chat.convert_to_messages([{"content": "", **row} if "role" in row else dict(row)])
    form = {"role": "user" if "tool_result" in kinds else row["role"], "content": blocks}
    return chat.convert_to_messages(chat.convert_to_openai_messages([form]))  # Anthropic's blocks become calls and results


def _block(part: Row) -> dict[str, Any]:
    """A part of OpenTelemetry's messages as a block of Anthropic's; a block as it is."""
    match part.get("type"):
        case "text":
            return {"type": "text", "text": str(part.get("text", part.get("content", "")))}
        case "tool_call":
            return {"type": "tool_use", "id": part.get("id"), "name": part["name"], "input": plain(part.get("arguments")) or {}}
        case "tool_call_response":
            said = part.get("response", part.get("result", ""))
            text = said if isinstance(said, str) else json.dumps(said)
            return {"type": "tool_result", "tool_use_id": part.get("id"), "content": text}
    return dict(part)


def by_trace(rows: Iterable[Row], id: Callable[[Row], str]) -> list[list[Row]]:
    """The rows of each trace together, in the order of the first ones."""
    found = dict[str, list[Row]]()
    for row in rows:
        found.setdefault(id(row), []).append(row)
    return list(found.values())


def utc(value: Any) -> str:
    """A time in ISO 8601, or in nanoseconds since 1970, as one in UTC, in ISO 8601; empty: none."""
    if not value:
        return ""
    if str(value).isdigit():
        return datetime.fromtimestamp(int(value) / 1e9, UTC).isoformat()
    at = datetime.fromisoformat(value)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def plain(value: Any) -> Any:
    """The value that a text of JSON holds; another one as it is."""
    try:
        return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[", '"') else value
    except ValueError:
        return value


def _only_text(value: Any) -> str:
    """A text, or the only one in an object."""
    value = plain(value)
    texts = [one for one in value.values() if isinstance(one, str)] if isinstance(value, Mapping) else [value]
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else ""
