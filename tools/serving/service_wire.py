"""The request bodies of endpoints beyond OpenAI's (feedback, training, adapters), and the error envelope for the OpenAPI document."""

from typing import Annotated

from pydantic import BaseModel, Field

from .openai_wire import StrictBody

__all__ = []

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
"""Pattern of the names of tenants and adapters."""


class FeedbackBody(StrictBody):
    """Feedback on a reply: a reward or a success flag, a text, a corrected reply, or another reply that it is better than."""

    response_id: Annotated[str, Field(min_length=1, max_length=256)]
    choice: Annotated[int, Field(ge=0, le=1000)] | None = None
    reward: Annotated[float, Field(ge=-1, le=1)] | None = None
    success: bool | None = None
    text: Annotated[str, Field(max_length=32_768)] | None = None
    correction: Annotated[str, Field(max_length=32_768)] | None = None
    """The reply as it should have been, whole."""
    better_than: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Id of another reply to the same messages: this one gets the reward 1, the other one -1 and this one as its correction."""
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
