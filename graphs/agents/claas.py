"""CLaaS for an agent of LangChain whose model is served by `learngraph serve`: feedback trains its weights.

    model = ChatOpenAI(model="guard", base_url="http://127.0.0.1:8000/v1", api_key="secret")
    learner = FeedbackMiddleware("memory", base_url="http://127.0.0.1:8000/v1", api_key="secret")
    agent = create_agent(model, tools, middleware=[learner], checkpointer=saver)
    learner.feedback("t1", reward=1.0)

The call is the same as with the middlewares that remember, so one line switches from memory to weights. Nothing is added to a prompt:
the ids of the model's responses are noted with the turn, and feedback on a conversation goes to the service for each response since the
feedback before it. The service learns as graphs/claas.py says.
"""

import logging
from pathlib import Path
from typing import Annotated, Any, ClassVar, Unpack

import httpx
from langchain.agents.middleware import ModelRequest
from langgraph.store.base import BaseStore

from ...memory.conversations.store import ConversationStore
from ...memory.conversations.turns import Conversation, Rating, turns_until
from ...memory.errors import UserError
from ...memory.records import Trajectory
from ...memory.telemetry import traceparent
from ...nodes.arguments import Range
from .consultation import Advice, Consultation, PendingCall, Place
from .learner import LearnerOptions, LearningMiddleware
from .scope_values import ScopeValue, ThreadId

__all__ = ["FeedbackMiddleware"]

LOG = logging.getLogger(__name__)


class NoMemory:
    """A memory that keeps nothing: what is learned is in the service's weights."""

    def add(self, trajectory: Trajectory) -> None:
        """Do nothing."""


class FeedbackMiddleware(LearningMiddleware[NoMemory]):
    """Sends feedback on an agent's conversations to the service behind its model.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph: it keeps which responses belong to which turn.
        base_url: the service's address, as the model has it.
        api_key: a key of the service; its owner is the tenant.
        timeout: seconds that the service may take to answer.
        options: those of `LearningMiddleware`.
    """

    method: ClassVar[str] = "claas"

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        base_url: str,
        api_key: str = "",
        timeout: Annotated[float, Range(0.1)] = 30.0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(store, **options)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=base_url.rstrip("/"), headers=headers, timeout=timeout)

    def make_index(self) -> NoMemory:
        """A memory that keeps nothing."""
        return NoMemory()

    def consult(self, request: ModelRequest[Any], place: Place, memory: NoMemory) -> Consultation:
        """Call the model, and note the id and the version of its response."""
        (response,) = yield PendingCall([request])
        about = getattr(response.result[0], "response_metadata", {})
        id = str(about.get("id") or "")
        said = f"response {id}" if id else "the response has no id, so feedback on it cannot be sent"
        return Advice(response, {"response_id": id, "consulted": False, "said": [said]})

    def note_rating(self, labels: tuple[str, ...], thread: str, rating: Rating) -> None:
        """Send a rating to the service, which takes one once: of a conversation in quarantine, or with words that are not learned, nothing
        is sent before its `release`.

        Raises:
            UserError: the service cannot be reached, or refuses all of it. What was said is kept, and the same feedback sends it
                again: the service counts it once.
        """
        kept = self._memory(labels).conversations
        if not rating.unlearned and kept.is_learned(thread, rating):
            self._send_rating(kept, thread, rating)

    def retract(self, thread_id: ThreadId | None = None, **scope: Any) -> Rating:
        """Not possible here: raises UserError, since the service may have trained on the rating."""
        raise UserError("retract: the service was sent the rating, and may have trained on it; give another reward instead")

    def release(self, thread_id: ThreadId, **scope: ScopeValue) -> None:
        """As `ScopedLearner.release`, and send what was said of the thread."""
        super().release(thread_id, **scope)
        kept, thread = self._find_thread(thread_id, scope, self.release)
        for rating in kept.ratings(thread):
            self._send_rating(kept, thread, rating)

    def _send_rating(self, kept: ConversationStore, thread: str, rating: Rating) -> None:
        """Send a rating of all responses that it is about; raises UserError where none is taken."""
        responses = _responses(kept.conversation(thread), kept.ratings(thread), rating)
        failures = [failure for id in responses if (failure := self._send(id, rating))]
        if not responses:
            raise UserError(
                f"feedback: no response of thread {thread!r} has an id of the service; is its model the one at {self._client.base_url}?"
            )
        for failure in failures:
            LOG.warning("claas: feedback was not taken: %s", failure)
        if len(failures) == len(responses):
            raise UserError(f"feedback: the service at {self._client.base_url} took none of {len(responses)}: {failures[0]}")

    def _send(self, id: str, rating: Rating) -> str:
        """Send a rating of one response; returns why it was not taken, empty if it was."""
        body = {"response_id": id, "text": rating.words} | ({} if rating.reward is None else {"reward": rating.reward})
        try:
            trace = {"traceparent": context} if (context := traceparent()) else {}
            answer = self._client.post("/feedback", json=body, headers=trace)
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        return "" if answer.is_success else f"{id}: status {answer.status_code}: {answer.text[:200]}"

    def close(self) -> None:
        """Close the store, once what waits is written and sent, and the connection."""
        super().close()
        self._client.close()


def _responses(conversation: Conversation, ratings: tuple[Rating, ...], rating: Rating) -> list[str]:
    """The ids of the responses that a rating is about: those since the rating before it, or those of its turn alone."""
    rated = {one.turn for one in ratings}
    if rating.is_single:
        rated = {turn.id for turn in conversation.turns}
    found: list[str] = []
    for turn in turns_until(conversation, rating.turn):
        found += [entry["response_id"] for entry in turn.advice if entry.get("response_id")]
        if turn.id != rating.turn and turn.id in rated:
            found = []
    return found
