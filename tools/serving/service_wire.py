"""The bodies and answers of endpoints beyond OpenAI's (feedback, training, adapters, health), and answers for the OpenAPI
document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from .openai_wire import StrictBody

__all__ = []

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
"""Pattern of the names of tenants and adapters."""


class FeedbackBody(StrictBody):
    """Feedback on a reply: a reward or a success flag, a text, or both."""

    response_id: Annotated[str, Field(min_length=1, max_length=256)]
    choice: Annotated[int, Field(ge=0, le=1000)] | None = None
    reward: Annotated[float, Field(ge=-1, le=1)] | None = None
    success: bool | None = None
    text: Annotated[str, Field(max_length=32_768)] | None = None
    source: Annotated[str, Field(min_length=1, max_length=64)] = "user"


class TrainBody(StrictBody):
    """A request for gradient steps now, without waiting for more feedback."""

    adapter: Annotated[str, Field(pattern=NAME_PATTERN)] = "default"
    steps: Annotated[int, Field(ge=1, le=1000)] = 1


class AdapterBody(StrictBody):
    """A new adapter, which starts as the base model."""

    adapter: Annotated[str, Field(pattern=NAME_PATTERN)]


class VersionBody(StrictBody):
    """A version, by its label or its name."""

    version: Annotated[str, Field(min_length=1, max_length=256)]


class RollBackBody(StrictBody):
    """The target of a rollback: a version, `base`, or (null) the version that was live before."""

    to: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error envelope."""

    error: ErrorDetail


class Completion(BaseModel):
    """OpenAI's chat or text completion; with `stream`, server-sent events of its chunks."""

    id: str
    object: Literal["chat.completion", "text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class ListResponse(BaseModel):
    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool


class AcceptedJob(BaseModel):
    """A job that is done later; GET /v1/jobs/{job} shows its state."""

    job: str
    state: str
    note: str | None = None
    """Advice on feedback that would teach more."""


class HeldUp(BaseModel):
    """A reason why adapters do not learn on at present, or are not tested."""

    kind: str
    """`failure`, `too few`, `ahead`, `nothing to learn`, `gate`, `resting`, `bound` or `held out`."""
    adapters: int
    """Number of adapters."""
    missing: int
    """Feedbacks that they lack for their next steps, together."""
    help: str
    """What would help."""


class Health(BaseModel):
    status: Literal["ok", "degraded"]
    why: str
    learning: dict[str, int]
    """Number of adapters by the outcome of their last turn at the learner: `too few` exchanges with feedback, `skipped` (nothing to learn
    from), `dropped` (the gate), `stepped`, `live`, `canary`, `failed`."""
    held_up: list[HeldUp]
    """What holds learning up, over all adapters. GET /v1/status has the details of a tenant's own."""


JsonObject = dict[str, Any]
