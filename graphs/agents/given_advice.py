"""Advice in an agent's prompts: a section stands with the message that was read when it was given, and stays there.

    read: "My order arrived broken."  + section  ->  call  ->  read: "order A7: shipped"  ->  call  ->  ...

Every later prompt of the thread begins as the one before did, so that a provider's prompt cache keeps it; at the end of the system
message, a section that changes would have the whole conversation read anew. The sections stand in the agent's state beside its messages,
which stay as they are. A section is left out once its message, or a conversation that it was drawn from, is no longer there, or once other
feedback has turned a success among these into a failure, or a failure into a success.
"""

import operator
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

from langchain.agents.middleware import AgentState, ModelRequest
from langchain.agents.middleware.types import OmitFromInput, PrivateStateAttr
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, ToolMessage

from ...nodes.ask import estimate_tokens
from ...nodes.fence import MOST_SIGNS, escape_memory_tags
from .consultation import Advice, AdviceRoom, Consultation, PendingCall, Place
from .lift import ThreadTrial

__all__ = ["AdvicePlace", "AdvisedPrompts", "LearningState", "PromptMeter"]

AdvicePlace = Literal["turn", "thread"]
"""`turn`: a section is given whenever it changes. `thread`: the first one of a thread holds for all of it."""
PLAIN = "learngraph_plain"
"""Key of a message's metadata, which no provider is sent: a tuple of its content as it was said. No client's JSON has a tuple."""
MOST_BEGINNINGS = 1_000_000
"""Beginnings of prompts that a process remembers before it forgets them all."""


def keep_last_turn(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of the turn that the new ones belong to: checkpoints do not grow with a conversation."""
    return [one for one in known if one.get("turn") == new[-1].get("turn")] + new if new else known


def keep_given(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sections of a thread, in which an agent's new ones take the place of its method's former ones."""
    whose = {(one["method"], one.get("agent")) for one in new}
    return [one for one in known if (one["method"], one.get("agent")) not in whose] + [one for one in new if one["text"]]


def keep_ids(known: list[str], new: list[str]) -> list[str]:
    """All ids, each once: two learners of an agent find the same."""
    return [*dict.fromkeys([*known, *new])]


class LearningState(AgentState[Any]):
    """The agent's state with what a learning method did."""

    learning: NotRequired[Annotated[list[dict[str, Any]], OmitFromInput, keep_last_turn]]
    """One entry per model call of the last turn: `method`, `turn`, `recalled` (ids of trajectories), and what the method says of itself;
    of a node (`LearningMiddleware.node`) also the `agent`'s name."""
    trials: NotRequired[Annotated[dict[str, Any], PrivateStateAttr, operator.or_]]
    """Method, and `/agent` for a node's -> what was drawn for the thread (graphs/agents/lift.py)."""
    given_messages: NotRequired[Annotated[list[str], PrivateStateAttr, keep_ids]]
    """Ids of messages of no user that runs began with, and that the agent has not said: events, and tasks of a supervisor."""
    scope_values: NotRequired[Annotated[dict[str, str | None], PrivateStateAttr, operator.or_]]
    """Name in a scope -> its value, as a run of the thread gave it: one that goes on from a checkpoint's config gives none."""
    given_advice: NotRequired[Annotated[list[dict[str, Any]], PrivateStateAttr, keep_given]]
    """The sections in the thread's prompts: `method`, `message` (the id of the one that it stands with, or its place), `text`, `sources`."""


class AdvisedPrompts:
    """The prompts of a model call, with the sections of advice that its thread was given.

    Args:
        request: the agent's.
        method: whose sections these are.
        place: when a new one is given.
        trial: the thread's, which may get no advice.
        is_known: sources -> whether all that a section was drawn from is still there, and as it was.
        mark: ids of what a section is drawn from -> its sources.
        most: tokens that all sections of the thread may have; None: any number.
    """

    def __init__(
        self,
        request: ModelRequest[Any],
        method: str,
        place: AdvicePlace,
        trial: ThreadTrial,
        is_known: Callable[[Sequence[str]], bool],
        most: int | None = None,
        mark: Callable[[Sequence[str]], list[str]] = list,
    ) -> None:
        self.method, self.place, self._messages, self._mark = method, place, request.messages, mark
        known: Sequence[dict[str, Any]] = request.state.get("given_advice") or ()  # type: ignore[assignment]
        here = message_keys(request.messages)
        mine = [one for one in known if one["method"] == method]
        self._before = [one for one in mine if one["message"] in here and is_known(one["sources"])]
        self.given, self.last = self._before, request
        """The sections, and the request that was sent last."""
        self.has_changed, self.trial = len(self.given) < len(mine), trial
        read = [key for key, one in here.items() if isinstance(one, HumanMessage | ToolMessage)]
        self._read = read[-1] if read else None
        is_open = not self._before or place == "turn"
        self.room = AdviceRoom(most if is_open else None, [one["text"] for one in self._before])

    @property
    def update(self) -> dict[str, Any]:
        """The update of the agent's state, where the sections have changed, or a trial has begun."""
        gone = {"method": self.method, "message": "", "text": "", "sources": []}  # none is left: this takes their place
        given = {"given_advice": self.given or [gone]} if self.has_changed else {}
        return given | ({"trials": {self.method: self.trial.record}} if self.trial.record else {})

    def entry(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a call's entry about its trial, and about the tokens that advice has added."""
        found: dict[str, Any] = {"added_tokens": sum(estimate_tokens(one["text"]) for one in self.given)}
        if self.trial.record:
            found["trial"] = self.trial.record
        more = list(self.trial.said)
        if self.room.left_out:
            found["left_out"] = self.room.left_out
            words = f"{self.room.left_out} more, worth less, left out: all advice in a prompt of a thread may take {self.room.most} tokens"
            more.append(f"{words} (max_added_tokens)")
        if more:
            found["said"] = list(dict.fromkeys([*said.get("said", ()), *more]))
        return found

    def advise(self, asked: PendingCall) -> PendingCall:
        """The call with the sections of the thread in its requests, and with its own beside the message that was read last."""
        section, last = asked.section if self.trial.is_advised else "", self._read
        is_given = self._before and (self.place == "thread" or self._before[-1]["text"] == section)
        self.given = self._before
        if section and not is_given and not self.room.has_room(section):
            self.room.left_out, section = max(1, self.room.left_out), ""
        if last is not None and section.strip() and not is_given:
            new = {"method": self.method, "message": last, "text": section, "sources": self._mark(asked.sources)}
            self.given = [*(one for one in self._before if one["message"] != last), new]
            self.has_changed = True
        shown: list[AnyMessage] = [_with_sections(one, key, self.given) for key, one in message_keys(self._messages).items()]
        sent = [one.override(messages=shown) for one in asked.requests]
        self.last = sent[0]
        return replace(asked, requests=sent)


@dataclass
class OpenConsultation:
    """A consultation that goes on, with the prompts of its model call."""

    steps: Consultation
    prompts: AdvisedPrompts
    place: Place
    asks: PendingCall | Advice | None = None
    """What it waits for, or its outcome; None if it failed."""
    first: Any = None
    """The agent's model's answer to the first requests: what holds where the consultation fails."""
    error: Exception | None = None
    """The reason for which it failed."""

    @property
    def answer(self) -> Any:
        """The response as it is now; None: the model has not been asked."""
        return self.asks.response if isinstance(self.asks, Advice) else self.first

    def go_on(self, answer: Any = None) -> None:
        """Go on with an answer to what it waits for. An error as answer is raised in it."""
        if self.first is None and isinstance(answer, list) and isinstance(self.asks, PendingCall) and self.asks.requests:
            self.first = answer[0]
        try:
            self.asks = self.steps.throw(answer) if isinstance(answer, Exception) else self.steps.send(answer)
        except StopIteration as end:
            self.asks = end.value
        except Exception as error:
            self.asks, self.error = None, error


def message_keys(messages: Sequence[AnyMessage]) -> dict[str, AnyMessage]:
    """The messages by their ids; by its place, one that has none, as where a channel has no reducer of LangGraph."""
    return {one.id or f"message {number}": one for number, one in enumerate(messages)}


def _with_sections(message: Any, key: str, given: Sequence[dict[str, Any]]) -> Any:
    for one in given:
        if one["message"] == key:
            before, text = message.content, one["text"]
            message = _with_content(
                message, f"{before}\n\n{text}" if isinstance(before, str) else [*before, {"type": "text", "text": text}]
            )
    return message


def _with_content(message: Any, content: str | list[Any]) -> Any:
    """The message with another content, beside the one that was said."""
    kept = {**message.response_metadata, PLAIN: (_said(message),)}
    return message.model_copy(update={"content": content, "response_metadata": kept})


def _is_changed(message: Any) -> bool:
    return isinstance(message.response_metadata.get(PLAIN), tuple)


def _said(message: Any) -> Any:
    """The content of a message as it was said."""
    return message.response_metadata[PLAIN][0] if _is_changed(message) else message.content


def without_forged_advice(messages: Sequence[Any]) -> list[Any]:
    """The messages, in which no words of users, tools and the agent look like the block of advice that learning middlewares add; a message
    that another learner has read before stays."""

    def read(message: Any) -> Any:
        said, after = message.content, ""
        parts = [said] if isinstance(said, str) else [*said]
        for n, part in reversed([*enumerate(parts)]):
            text = part if isinstance(part, str) else part.get("text")
            if isinstance(text, str):
                safe = escape_memory_tags(text, after)
                parts[n] = safe if isinstance(part, str) else {**part, "text": safe}
                after = (text + after)[:MOST_SIGNS]  # a model may join them
        content = parts[0] if isinstance(said, str) else parts
        return message if content == said or _is_changed(message) else _with_content(message, content)

    return [read(one) for one in messages]


def plain_messages(messages: Sequence[Any]) -> list[Any]:
    """The messages without the sections of other learning middlewares, as methods compare them."""
    return [one.model_copy(update={"content": _said(one)}) if _is_changed(one) else one for one in messages]


class SentPrompts:
    """The prompts that were sent, for the share of a new one that a prompt cache knows. Safe to use from threads."""

    def __init__(self) -> None:
        self._beginnings = set[int]()
        self._lock = threading.Lock()

    def add(self, parts: Sequence[str], whose: Hashable = None) -> tuple[int, int]:
        """Take note of a prompt; returns the characters of its longest beginning that was sent before, and all of its characters.

        Args:
            parts: the texts of its messages: a beginning ends with one of them.
            whose: only prompts of the same are compared, such as of one thread.
        """
        digest, size, cached = hash(whose), 0, 0
        with self._lock:
            if len(self._beginnings) > MOST_BEGINNINGS:
                self._beginnings.clear()
            for part in parts:
                digest, size = hash((digest, part)), size + len(part)
                cached = size if digest in self._beginnings else cached
                self._beginnings.add(digest)
        return cached, size

    def cached_share(self, request: ModelRequest[Any], whose: Hashable) -> float:
        """The share of a request's characters that is the beginning of one sent before."""
        named = [str(getattr(one, "name", one)) for one in request.tools]
        system = [request.system_message] if request.system_message else []
        cached, size = self.add([*named, *prompt_parts([*system, *request.messages])], whose)
        return cached / size if size else 0.0


class PromptMeter(BaseCallbackHandler):
    """A callback that counts the characters of the chat models' prompts, and how many of them were sent before."""

    def __init__(self) -> None:
        self.cached = self.sent = 0
        self._prompts = SentPrompts()

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Count the prompts of a call."""
        for prompt in messages:
            cached, size = self._prompts.add(prompt_parts(prompt))
            self.cached, self.sent = self.cached + cached, self.sent + size


def prompt_parts(messages: Sequence[BaseMessage]) -> list[str]:
    """The texts of a prompt's messages, as far as a model reads them: who speaks, the words and the calls without their ids."""
    calls = [[(call["name"], call["args"]) for call in getattr(one, "tool_calls", ())] for one in messages]
    return [str((one.type, one.name, one.content, made)) for one, made in zip(messages, calls, strict=True)]
