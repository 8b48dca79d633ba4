"""Spans and durations by OpenTelemetry's conventions for generative AI, in an app that has set OpenTelemetry up; else nothing happens.

    with span("search_memory", {"gen_ai.agent.name": "support"}) as traced:
        traced.set({"gen_ai.memory.record.count": 3})

Nothing is imported here: an app that traces has imported OpenTelemetry itself, and set a tracer provider. The names are those of
https://github.com/open-telemetry/semantic-conventions-genai (v0.1.0, docs/gen-ai/gen-ai-spans.md#memory, gen-ai-metrics.md and
gen-ai-events.md). Texts of users stand in no attribute, unless the conventions' environment variable asks for them (`TEXTS`).

A W3C trace context, `traceparent`, goes along as plain text: to other processes and threads, into the store and to a Ray cluster, also
through processes that trace nothing themselves.
"""

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from hashlib import blake2b
from typing import Any

__all__ = ["Traced", "memory_names", "span", "take_over_trace", "traceparent"]

TEXTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Environment variable: `true`, `span_only` or `span_and_event` puts texts into attributes."""
METRICS = {"invoke_agent": "gen_ai.invoke_agent.duration"}
"""Operation -> its metric; of all others it is `gen_ai.client.operation.duration`."""
SECONDS = tuple(0.01 * 2**n for n in range(14))
"""Bounds of the histograms' buckets, as the conventions have them."""
IN_METRICS = ("gen_ai.operation.name", "error.type", "learngraph.outcome")
"""The attributes that metrics have, too: those with few values; an invoked agent's has its name."""
CONTEXT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TAKEN_OVER: ContextVar[str] = ContextVar("traceparent", default="")


class Traced:
    """An operation that is traced; without OpenTelemetry it takes note of nothing."""

    def __init__(self, recording: Any = None, context: str = "") -> None:
        self._recording, self.attributes = recording, dict[str, Any]()
        self.traceparent = context
        """The trace context that what follows from this operation belongs to: its parent's, or without one its own."""

    @property
    def is_on(self) -> bool:
        """True if somebody takes note."""
        return self._recording is not None and bool(self._recording.is_recording())

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes, but for empty ones."""
        if self._recording is not None:
            self.attributes |= _filled(attributes)
            self._recording.set_attributes(_filled(attributes))

    def set_texts(self, name: str, value: Any) -> None:
        """Set an attribute that has texts of users in it, where they are asked for; what is no text, as JSON."""
        if self.is_on and value and _takes_texts():
            self.set({name: value if isinstance(value, str) else json.dumps(value)})

    def fail(self, error: object) -> None:
        """Note that the operation failed: an exception, or a sentence, of which only the kind is told."""
        if self._recording is not None:
            self._recording.set_status(sys.modules["opentelemetry.trace"].StatusCode.ERROR)
            self.set({"error.type": type(error).__name__ if isinstance(error, BaseException) else "_OTHER"})

    def add_evaluation(self, source: str, reward: float | None, text: str = "") -> None:
        """Add the conventions' event for what somebody thought of a reply; its words only where texts are asked for."""
        if self._recording is not None:
            told = {"gen_ai.evaluation.explanation": text} if _takes_texts() else {}
            about = {"gen_ai.evaluation.name": source, "gen_ai.evaluation.score.value": reward, **told}
            self._recording.add_event("gen_ai.evaluation.result", _filled(about))


@contextmanager
def span(operation: str, attributes: Mapping[str, Any] | None = None, origins: Iterable[str] = ()) -> Iterator[Traced]:
    """Trace an operation, in a span and in a metric of its duration. An error that leaves the block is noted.

    Args:
        operation: the conventions' `gen_ai.operation.name`; with `gen_ai.agent.name`, an invoked agent's span is named after both.
        attributes: those known now.
        origins: trace contexts of what it follows from, looked at only where there is a tracer. The span's parent is the span around
            it, else the caller's context (`take_over_trace`), else the first of these; the rest are links.
    """
    if (api := _api()) is None:
        yield Traced(context=_TAKEN_OVER.get())
        return
    given = [one for one in dict.fromkeys(origins) if one]
    around = api.get_current_span()
    parents = [] if around.get_span_context().is_valid else [one for one in (_TAKEN_OVER.get(), *given) if one][:1]
    context = _context(parents[0]) if parents else None
    links = [api.Link(api.get_current_span(_context(one)).get_span_context()) for one in given if one not in parents]
    before = traceparent() or next(iter(parents), "")
    agent = str((attributes or {}).get("gen_ai.agent.name", "")) if operation in METRICS else ""
    began = time.perf_counter()
    with api.get_tracer("learngraph").start_as_current_span(
        f"{operation} {agent}".strip(), context, links=links, record_exception=False, set_status_on_exception=False
    ) as recording:
        traced = Traced(recording, before or traceparent())
        traced.set({"gen_ai.operation.name": operation, **(attributes or {})})
        try:
            yield traced
        except Exception as error:
            traced.fail(error)
            raise
        finally:
            if "opentelemetry.metrics" in sys.modules:
                told = {name: traced.attributes[name] for name in IN_METRICS if name in traced.attributes}
                told |= {"gen_ai.agent.name": agent} if agent else {}
                _histogram(METRICS.get(operation, "gen_ai.client.operation.duration")).record(time.perf_counter() - began, told)


def traceparent() -> str:
    """The W3C trace context of what goes on here; empty without one."""
    carrier: dict[str, str] = {}
    if _api() is not None:
        _propagator().inject(carrier)
    return carrier.get("traceparent", "") or _TAKEN_OVER.get()


def take_over_trace(context: str) -> None:
    """Have what this task does from now on belong to its caller's trace, by a W3C trace context; what is none ends that."""
    _TAKEN_OVER.set(context if CONTEXT.fullmatch(context) else "")


def memory_names(labels: Sequence[str], thread: str) -> dict[str, str]:
    """The attributes that name an agent, a thread and its memory: of the scope's labels a digest, for they may name users."""
    store = f"{labels[1]}/{blake2b('/'.join(labels).encode(), digest_size=6).hexdigest()}"
    return {"gen_ai.agent.name": labels[1], "gen_ai.conversation.id": thread, "gen_ai.memory.store.id": store}


def _api() -> Any:
    """OpenTelemetry's API, where the app has imported it and has set a tracer provider; else None."""
    api = sys.modules.get("opentelemetry.trace")
    is_set = hasattr(api, "__all__") and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)  # type: ignore[union-attr]
    return api if is_set else None


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _context(given: str) -> Any:
    return _propagator().extract({"traceparent": given})


@cache
def _histogram(name: str) -> Any:
    from opentelemetry import metrics

    meter = metrics.get_meter("learngraph")
    return meter.create_histogram(name, "s", "Duration of an operation.", explicit_bucket_boundaries_advisory=SECONDS)


def _takes_texts() -> bool:
    return os.environ.get(TEXTS, "").lower() in ("true", "1", "span_only", "span_and_event")


def _filled(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value not in (None, "")}
