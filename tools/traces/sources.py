"""Sources of recorded conversations: a file of JSON lines or one JSON document, or a service at a URL (graphs/agents/reference.md)."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...memory.conversations.recorded import RecordedConversation
from ...memory.errors import UserError
from . import langfuse, langsmith, mlflow, otlp
from .spans import UNREADABLE, RewardKey, Score, Span, Trace

__all__ = ["TraceSource", "open_traces"]

_SERVICES: Mapping[str, Callable[..., Any]] = {
    "langsmith": langsmith.LangSmith,
    "langfuse": langfuse.Langfuse,
    "mlflow": mlflow.MLflow,
}


@dataclass(frozen=True)
class TraceSource:
    """A file with recorded conversations, or a service that keeps them."""

    place: str
    rater: str
    """The tool that has recorded them."""
    feedback: RewardKey
    project: str = ""
    service: Any = None
    """The client of the service; None: it is a file."""

    @property
    def name(self) -> str:
        """Name of the service and the project in it; empty for a file."""
        return "" if self.service is None else f"{self.rater} {self.place} {self.project}".strip()

    def read(self, since: str = "") -> Iterator[RecordedConversation]:
        """The conversations since a time (UTC, ISO 8601), the oldest first.

        Raises:
            UserError: the file cannot be read or is none of this form, or the service cannot be asked; says what would help.
        """
        try:
            rows = _records(self.place) if self.service is None else self.service.rows(since, self.feedback.key)
            found = [one.conversation(self.feedback) for one in _READERS[self.rater](rows)]
        except UNREADABLE as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"{self.place}: no traces of {self.rater} ({reason}); say what they are, --from") from error
        yield from sorted((one for one in found if not since or not one.at or one.at >= since), key=lambda one: one.at)

    def write_score(self, trace: str, name: str, value: float, comment: str) -> None:
        """Keep a score with a trace, in the place of one of that name; raises UserError where the source is a file."""
        if self.service is None:
            raise UserError(f"a score is written back to a service, and {self.place} is a file: give the service's URL")
        self.service.write_score(trace, name, value, comment)


def open_traces(place: str, form: str, *, project: str = "", feedback: RewardKey | None = None, **more: Any) -> TraceSource:
    """A source of recorded conversations.

    Args:
        place: a file, or the URL of a service.
        form: the tool that has recorded them: `openai`, `langsmith`, `langfuse`, `mlflow` or `otlp`.
        project: in the service: LangSmith's project, MLflow's experiment.
        feedback: the feedback that is the reward; not given: the only one that a trace has.
        more: of the client of a service (`TraceApi`).

    Raises:
        UserError: the form is none, or has no service.
    """
    is_file, place = "://" not in place, place.rstrip("/")
    if form not in (known := [*_READERS] if is_file else [*_SERVICES]):
        raise UserError(f"{'files' if is_file else 'services'} with traces are of {', '.join(known)}; got {form} for {place}")
    service = None if is_file else _SERVICES[form](place, project, **more)
    return TraceSource(place, form, feedback or RewardKey(), project, service)


def _read_openai(rows: Iterable[Any]) -> Iterator[Trace]:
    """Whole conversations: a list of messages, or an object with `messages`, perhaps `id`, `reward` or `score`, and `feedback`."""
    for row in rows:
        held = row if isinstance(row, Mapping) else {"messages": row}
        id = held.get("id") or blake2b(json.dumps(held["messages"]).encode(), digest_size=8).hexdigest()
        score = Score("reward", held.get("reward", held.get("score")), str(held.get("feedback") or ""))
        yield Trace("", [Span("", "-", "", held["messages"], None, False)], id, scores=[score])


def _records(place: str) -> Iterator[Any]:
    """The records of a file: of JSON lines, or of one document."""
    try:
        text = Path(place).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {place}: {getattr(error, 'strerror', None) or error}") from error
    try:
        whole = json.loads(text)
        is_list = isinstance(whole, list) and not (whole and isinstance(whole[0], Mapping) and "role" in whole[0])
    except ValueError:
        whole, is_list = [], True
        for number, line in enumerate(text.splitlines(), 1):
            try:
                whole += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise UserError(f"{place}, line {number}: not JSON ({error})") from error
    yield from whole if is_list else [whole]  # a list of messages is one conversation


_READERS: Mapping[str, Callable[[Iterable[Any]], Iterator[Trace]]] = {
    "openai": _read_openai,
    "langsmith": langsmith.read,
    "langfuse": langfuse.read,
    "mlflow": mlflow.read,
    "otlp": otlp.read,
}
