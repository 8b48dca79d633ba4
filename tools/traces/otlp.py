"""OpenTelemetry's spans in OTLP's JSON, as a collector's file exporter writes them: the GenAI conventions, and OpenInference's.

Feedback is the conventions' event `gen_ai.evaluation.result`, on a span or in the logs of the trace.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .spans import Row, Score, Span, Trace, by_trace, plain

__all__ = ["attributes", "read"]

EVALUATION, LABELS = "gen_ai.evaluation.", "traceloop.association.properties."


def read(rows: Iterable[Row]) -> Iterator[Trace]:
    """The traces of some requests for export."""
    for found in by_trace([one for row in rows for one in _flat(row)], lambda one: str(one["traceId"])):
        spans = sorted((one for one in found if "startTimeUnixNano" in one), key=lambda one: str(one["startTimeUnixNano"]))
        if not spans:
            continue  # logs of a trace that is not here
        held = [attributes(one) for one in spans]
        metadata: dict[str, Any] = {}
        for known in reversed(held):
            own = {name.removeprefix(LABELS): value for name, value in known.items()}
            metadata |= {**own, **(own["metadata"] if isinstance(own.get("metadata"), Mapping) else {})}
        yield Trace(
            str(spans[0]["traceId"]),
            [_span(one, known) for one, known in zip(spans, held, strict=True)],
            metadata.get("gen_ai.conversation.id") or metadata.get("session.id"),
            spans[0]["startTimeUnixNano"],
            metadata.get("user.id") or metadata.get("enduser.id"),
            [score for one in found for event in (one, *one.get("events", ())) for score in _score(event)],
            metadata,
        )


def _flat(row: Row) -> Iterator[Row]:
    for resource in row.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            yield from scope.get("spans", ())
    for resource in row.get("resourceLogs", ()):
        for scope in resource.get("scopeLogs", ()):
            yield from (one for one in scope.get("logRecords", ()) if one.get("traceId"))


def _span(row: Row, known: Row) -> Span:
    inputs = known.get("gen_ai.input.messages", known.get("input.value"))
    outputs = known.get("gen_ai.output.messages", known.get("output.value"))
    is_model = known.get("gen_ai.operation.name") == "chat" or known.get("openinference.span.kind") == "LLM"
    return Span(str(row["spanId"]), str(row.get("parentSpanId")), str(row["startTimeUnixNano"]), inputs, outputs, is_model)


def _score(event: Row) -> Iterator[Score]:
    known = attributes(event)
    if (name := known.get(f"{EVALUATION}name")) is not None:
        value = known.get(f"{EVALUATION}score.value", known.get(f"{EVALUATION}score.label"))
        yield Score(str(name), value, str(known.get(f"{EVALUATION}explanation") or ""))


def attributes(row: Row) -> dict[str, Any]:
    """The attributes of a span or an event, as plain data."""
    found = row.get("attributes") or {}
    if isinstance(found, Mapping):
        return {name: plain(value) for name, value in found.items()}
    return {one["key"]: plain(_any_value(one.get("value"))) for one in found}


def _any_value(value: Any) -> Any:
    """The plain data in a value of OTLP, with the names of its JSON or of its fields."""
    for kind, held in (value or {}).items():
        match kind.replace("_", "").lower():
            case "arrayvalue":
                return [_any_value(one) for one in held.get("values", ())]
            case "kvlistvalue":
                return {one["key"]: _any_value(one.get("value")) for one in held.get("values", ())}
            case "intvalue":
                return int(held)
        return held
    return None
