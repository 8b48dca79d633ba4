"""The service behind the chat API, as the web server sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...memory.records import ChatCall, Exchange, ExchangeQuery, Feedback, FeedbackReceipt, Piece

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["ChatBackend"]


class ChatBackend(Protocol):
    """A service that chats and learns, for many tenants. To a tenant, everything of another tenant is unknown.

    Errors: `openai_wire.STATUSES` says which `UserError` has which HTTP status; others are bad requests (400). An exception
    that is no `UserError` is a 500.
    """

    model: str
    """The model's public name."""
    window: int
    """Longest prompt with its reply, in tokens."""
    features: frozenset[str]
    """Options that the engine supports: `tools`, `tool_choice`, `response_format`, `logit_bias`, `presence_penalty`,
    `frequency_penalty`, `raw`."""

    async def models(self, tenant: str) -> list[dict[str, Any]]:
        """`id` (`<model>` is the adapter `default`, `<model>:<adapter>` another one), `created` (Unix seconds), `version`."""

    def version(self, tenant: str, adapter: str, id: str, wanted: str = "") -> str:
        """The label of the version that will answer request `id`; empty: the base model. `wanted`: a version's name, label or number of
        steps, or `base`; empty: the one that is live."""

    def chat(self, call: ChatCall) -> AsyncIterator[Piece | Exchange]:
        """Pieces, whose texts together begin the reply's text, and last the `Exchange`, on disk by then. Closing it cancels."""

    async def feedback(self, tenant: str, response_id: str, feedback: Feedback, key: str = "") -> FeedbackReceipt:
        """Store feedback on a reply. The same feedback sent again is the same job."""

    def advice(self, feedback: Feedback, state: str = "ready") -> str:
        """A sentence on what becomes of feedback in this state, or a hint at what would teach more; mostly empty."""

    async def experiences(self, query: ExchangeQuery) -> list[dict[str, Any]]:
        """Exchanges, newest first, each with `id`, `adapter`, `version`, `state`, `reason`, `created`, `messages`, `reply`,
        `feedback`, `age`."""

    async def experience(self, tenant: str, id: str) -> dict[str, Any] | None:
        """One exchange; None: the tenant has none of this id."""

    async def forget(self, tenant: str, ids: Sequence[str] | None, withdraw: bool = False) -> dict[str, Any]:
        """Delete exchanges, or all: `deleted` (how many), `tainted` (labels of versions that learned from them) and `withdrawn`."""

    async def release(self, tenant: str, id: str) -> dict[str, Any]:
        """Learn from an exchange after all that waits for a person: `released`, its id."""

    async def find_ids(self, tenant: str, user: str | None, older_than_days: float) -> list[str]:
        """Ids of exchanges: of an end user (None: of all), at least so many days old."""

    async def freeze(self, tenant: str, adapter: str, is_frozen: bool) -> dict[str, Any]:
        """Let an adapter learn no more, or again; a row as in `adapters`."""

    async def job(self, tenant: str, id: str) -> dict[str, Any] | None:
        """The state of a job; None: the tenant has none of this id."""

    async def train(self, tenant: str, adapter: str, steps: int = 1) -> dict[str, Any]:
        """Ask for gradient steps: `job`, `state`."""

    async def adapters(self, tenant: str) -> list[dict[str, Any]]:
        """`adapter`, `live`, `canary`, and `versions`, newest first, with `label`, `step`, `state`, `created`, `gate`, `why`,
        …"""

    async def create(self, tenant: str, adapter: str) -> dict[str, Any]:
        """Make an adapter; a row as in `adapters`."""

    async def promote(self, tenant: str, adapter: str, version: str) -> dict[str, Any]:
        """Make a version live; a row as in `adapters`."""

    async def roll_back(self, tenant: str, adapter: str, to: str | None = None) -> dict[str, Any]:
        """Go back to a version, to the base model (empty), or to the version that was live before (None)."""

    async def remove(self, tenant: str, adapter: str, version: str | None = None) -> dict[str, Any]:
        """Delete a version; without one, the adapter."""

    async def export(self, tenant: str, adapter: str, version: str) -> Path:
        """A zip, named after the version and alone in a temporary folder. The caller deletes both."""

    async def status(self, tenant: str | None = None) -> dict[str, Any]:
        """`state` (`ok`, `degraded`), `why`, `model`, `base`, `learner`, and with a tenant `scopes`, each with `held_up`: what holds its
        learning up, and what would help. Without a tenant cheap and without names: `last_turns`, adapters by the outcome of their last turn, and
        `held_up`, one row a kind."""

    async def ready(self) -> dict[str, float]:
        """A sign of life from the model itself; raises `Unavailable` if it does not answer."""

    async def metrics(self) -> list[Metric]:
        """Metric families, in addition to the web server's own."""
