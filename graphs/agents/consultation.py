"""A consultation: a method's generator that asks for model calls, and returns a response with its record.

The base class of the middlewares (learner.py) runs it, in agents that are awaited and in others.
"""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable

from ...memory.conversations.turns import Turn
from ...memory.records import Task
from ...nodes.ask import estimate_tokens
from ...nodes.lesson_prompts import append_section
from ..wiring.inputs import DEFAULT_WINDOW
from .lift import ThreadTrial

try:
    from langchain.agents.middleware import ModelRequest
    from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
except ImportError as error:
    raise ImportError("learning agents need langchain, which is missing: pip install 'langchain>=1.4'") from error

__all__ = ["Advice", "AdviceRoom", "Consultation", "PendingCall", "Place"]

NO_STREAM = "nostream"
"""LangGraph's tag for models whose tokens are not streamed to the client."""
BRANCH_OF = "learngraph_branch_of"
"""Key of a message's metadata, which no provider is sent: the turn beside which a branch of `Send` answers it."""
Item = TypeVar("Item")


@dataclass
class AdviceRoom:
    """The room for advice in the prompts of a conversation, in which what was given stays."""

    most: int | None = None
    """Tokens of all advice of the conversation; None: any number."""
    given: Sequence[str] = ()
    """The sections that were given before, the newest last."""
    left_out: int = 0
    """Number of recalled things that there was no room for at this call."""

    def has_room(self, section: str, beside: int | None = None) -> bool:
        """True if a section can be given beside so many of the earlier ones (None: all of them)."""
        return self.most is None or sum(map(estimate_tokens, (*self.given[:beside], section))) <= self.most

    def fit(self, items: Sequence[Item], text: Callable[[Sequence[Item]], str]) -> list[Item]:
        """As many of the items, which come best first, as there is room for as `text` writes them."""
        if self.most is None or not items:
            return list(items)
        for beside in (len(self.given) - 1, len(self.given)) if self.given else (0,):
            fits, beyond = 0, len(items) + 1  # the more items, the longer the text
            while beyond - fits > 1:
                middle = (fits + beyond) // 2
                fits, beyond = (middle, beyond) if self.has_room(text(items[:middle]), beside) else (fits, middle)
            if beside < len(self.given) and text(items[:fits]) == self.given[-1]:
                break  # it stands there already
        self.left_out = len(items) - fits
        return list(items[:fits])


@dataclass(frozen=True)
class Place:
    """The place of a model call: whose conversation, which turn, which step."""

    thread: str
    scope: tuple[str, ...]
    turn: str
    """Id of the user's message that is being answered."""
    number: int
    """Number of that turn within the thread, from 0."""
    task: Task
    step: int
    """Number of model calls in this turn before this one."""
    user: str = ""
    """The user of the run, where a share of each is named; else empty."""
    trial: ThreadTrial = field(default_factory=ThreadTrial)
    """Whether there is advice, and which of the recalled items are not shown."""
    traceparent: str = ""
    """The trace context of the run (memory/telemetry.py)."""
    room: AdviceRoom = field(default_factory=AdviceRoom)

    def choose(
        self, items: Sequence[Item], text: Callable[[Sequence[Item]], str], id_of: Callable[[Item], str] = str
    ) -> list[Item]:
        """The recalled items that are shown: those that there is room for, the best first, but for the ones that a trial leaves out."""
        tried = self.room.fit(items, text) if self.trial.begins else items
        out = self.trial.left_out(map(id_of, tried))
        return self.room.fit([one for one in items if id_of(one) not in out], text)


@dataclass
class PendingCall:
    """Something that a method waits for: model requests, or a runnable with its input."""

    requests: Sequence[ModelRequest[Any]] = ()
    """To be answered side by side by the agent's model. Its errors are the agent's, unless the call may fail."""
    may_fail: bool = False
    """True: an error of the agent's model is raised in the generator, which may catch it."""
    runnable: Runnable[Any, Any] | None = None
    """A call of the method's own. Its error is raised in the generator, which may catch it. What pauses a graph is no error."""
    input: Any = None
    section: str = ""
    """The advice that the requests are sent with; the mode `observe` leaves it out."""
    sources: Sequence[str] = ()
    """Ids of what it was drawn from: it is shown no more once one of these is gone."""


@dataclass
class Advice:
    """The outcome of a consultation."""

    response: ModelResponse[Any]
    entry: dict[str, Any]
    """The record of it as plain data: recalled trajectories, what was added, what was chosen. `nearest`, if it is there, is the
    greatest similarity in memory where nothing was alike enough."""


Consultation = Generator[PendingCall, Any, Advice]
"""Yields what it waits for and receives the answers: a list of model responses, or the runnable's output. An error of the
runnable is raised where it waits; where it is not caught, the agent answers without advice."""


Model = TypeVar("Model", bound=Runnable[Any, Any])


def not_streamed(model: Model) -> Model:
    """The same model, whose tokens reach no client: what it says here is not, or not yet, what the agent says."""
    if isinstance(model, BaseChatModel):  # it stays a chat model, to which tools can be bound
        return model.model_copy(update={"tags": [*(model.tags or []), NO_STREAM]})
    return model.with_config(tags=[NO_STREAM])  # type: ignore[return-value]


HandedTurns = dict[str, tuple[Turn, Task, str]]
"""Method -> a turn as its learner has it, with what the conversation is about, and its user."""
_RECORDERS = ContextVar[Mapping[Hashable, HandedTurns]]("recorders")


@contextmanager
def record_for_all(conversation: Hashable, handed: HandedTurns) -> Iterator[None]:
    """A context of a model call, around which a learner of an agent stands that records what the learners within it hand over."""
    before = _RECORDERS.set({conversation: handed, **_RECORDERS.get({})})  # the outermost one stays
    try:
        yield
    finally:
        _RECORDERS.reset(before)


def recorder_of(conversation: Hashable) -> HandedTurns | None:
    """The turns of a conversation that the outermost learner around this model call takes over; None: there is no such learner."""
    return _RECORDERS.get({}).get(conversation)


def add_to_system_message(request: ModelRequest[Any], section: str) -> ModelRequest[Any]:
    """The request with a section at the end of its system message, or in a new one; unchanged for an empty section."""
    if not section.strip():
        return request
    system = append_section([request.system_message] if request.system_message else [], section)[0]
    assert isinstance(system, SystemMessage)
    return request.override(system_message=system)


def model_response(answer: Any) -> ModelResponse[Any]:
    """The response in what a handler has returned."""
    if isinstance(answer, ExtendedModelResponse):
        return answer.model_response
    return ModelResponse([answer]) if isinstance(answer, AIMessage) else answer


def model_window(model: Any) -> int:
    """Tokens that a model can read at once, as its profile says; `DEFAULT_WINDOW` where it says nothing."""
    profile = getattr(model, "profile", None) or {}
    return int(profile.get("max_input_tokens") or DEFAULT_WINDOW)


def sent_beside(turn: Sequence[Any]) -> str:
    """Id of the turn beside which one with these messages runs as a branch of `Send`; empty: it is none."""
    return str(turn[0].response_metadata.get(BRANCH_OF, "")) if turn and isinstance(turn[0], HumanMessage) else ""


def turn_id(messages: Sequence[Any], call: str = "") -> str:
    """Id of the user's message that is being answered, or its number where it has none, as in Deep Agents, behind the id of the call that a
    sub-agent answers; without such a message the id of the first."""
    humans = [one for one in messages if isinstance(one, HumanMessage)]
    if not humans:
        return str((messages and messages[0].id) or "turn")
    return str(humans[-1].id or f"{call} turn {len(humans)}".strip())


def nearest_words(similarity: float) -> str:
    """The account of a look-up that found nothing alike enough, by the greatest similarity in memory, in [0, 1]."""
    far = f"nothing was alike enough; the nearest had similarity {similarity:.2f}"
    return far if similarity else "nothing in memory is alike"
