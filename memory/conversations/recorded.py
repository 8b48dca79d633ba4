"""Conversations that another tool has recorded, as sources of traces give them and as learners take them in."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from langchain_core.messages import BaseMessage

__all__ = ["ConversationSource", "RecordedConversation"]


@dataclass(frozen=True)
class RecordedConversation:
    """A conversation, or a run of an agent that answered the last message of a user in it."""

    id: str
    """The thread's id."""
    messages: Sequence[BaseMessage] = ()
    reward: float | None = None
    """In the app's units; None: the record names none."""
    note: str = ""
    """The words of its feedback."""
    trace: str = ""
    """Id of the run; empty: it is a whole conversation."""
    at: str = ""
    """Time at which it began, UTC, in ISO 8601; empty: not known."""
    user: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The values that its run was given: a tenant's, say."""
    problem: str = ""
    """The reason for which it, or its feedback, cannot be read; empty: it can."""


class ConversationSource(Protocol):
    """A file or a service with recorded conversations (tools/traces/)."""

    @property
    def name(self) -> str:
        """Name of the service and the project in it; empty: a file, which is always read whole."""

    @property
    def rater(self) -> str:
        """The tool that has recorded them, under which their ratings stand."""

    def read(self, since: str = "") -> Iterator[RecordedConversation]:
        """The conversations that began at a time (UTC, ISO 8601) or later, the oldest first; empty: all."""

    def write_score(self, trace: str, name: str, value: float, comment: str) -> None:
        """Keep a score with a trace, in the place of one of that name; raises UserError where none is taken."""
