"""Langfuse's observations and scores: rows of its API or of an export, a trace downloaded from its page, and its API."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from .api import TraceApi
from .spans import Row, Score, Span, Trace, by_trace, has_talk, plain

__all__ = ["Langfuse", "read"]


def read(rows: Iterable[Row]) -> Iterator[Trace]:
    """The traces that some rows belong to: observations, scores, and traces that hold both."""
    for found in by_trace([one for row in rows for one in _flat(row)], _trace_id):
        steps = [one for one in found if "value" not in one]
        if not steps:
            continue  # scores of a trace that is not here
        root = min(steps, key=_start)
        metadata = plain(root.get("metadata"))
        held = {name: plain(value) for name, value in metadata.items()} if isinstance(metadata, Mapping) else {}
        yield Trace(
            _trace_id(root),
            [_span(one) for one in steps],
            root.get("sessionId") or held.get("thread_id"),
            _start(root),
            root.get("userId"),
            [_score(one) for one in found if "value" in one],
            held,
            "endTime" not in root or root["endTime"] is not None,
        )


def _flat(row: Row) -> Iterator[Row]:
    """A row with the names of the API, and the rows within a trace."""
    own = {re.sub(r"_(\w)", lambda found: found[1].upper(), name): value for name, value in row.items()}
    yield own
    for one in (one for name in ("observations", "scores") for one in own.get(name) or () if isinstance(one, Mapping)):
        known = {name: value for name, value in one.items() if value is not None or name in ("endTime", "value")}
        yield from _flat({"traceId": own["id"], "parentObservationId": own["id"], **known})


def _trace_id(row: Row) -> str:
    subject = row.get("subject") or {}
    return str(row.get("traceId") or subject.get("traceId") or subject.get("id") or row["id"])


def _start(row: Row) -> str:
    return str(row.get("startTime") or row.get("timestamp") or "")


def _span(row: Row) -> Span:
    parent = "" if row.get("isRootObservation") else str(row.get("parentObservationId") or "")
    return Span(str(row["id"]), parent, _start(row), row.get("input"), row.get("output"), row.get("type") == "GENERATION")


def _score(row: Row) -> Score:
    value = row.get("stringValue") if row.get("dataType") == "CATEGORICAL" else None
    return Score(str(row["name"]), value or row["value"], str(row.get("comment") or ""))


class Langfuse:
    """Langfuse's API: observations v2, scores v3. The keys are in LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY, and say the project."""

    read = staticmethod(read)

    def __init__(self, url: str, project: str, **more: Any) -> None:
        keys = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
        auth = (os.environ.get(keys[0], ""), os.environ.get(keys[1], ""))
        self._service = TraceApi("Langfuse", url, " and ".join(keys), auth=auth, **more)

    def rows(self, since: str, key: str) -> Iterator[Row]:
        """The root observations that began at a time or later, the calls of models where a root has no messages, and scores."""
        path, asked = "/api/public/v2/observations", {"limit": 100, "fields": "core,basic,io,metadata"}
        begin = {"fromStartTime": since} if since else {}
        for row in self._service.pages("GET", path, "data", "cursor", isRootObservation="true", **begin, **asked):
            yield row
            if not has_talk(row.get("input"), row.get("output")):
                trace = str(row["traceId"])
                yield from self._service.pages("GET", path, "data", "cursor", traceId=trace, type="GENERATION", **asked)
        asked = {"limit": 100, "fields": "details,subject"}
        asked |= ({"fromTimestamp": since} if since else {}) | ({"name": key} if key else {})
        yield from self._service.pages("GET", "/api/public/v3/scores", "data", "cursor", **asked)

    def write_score(self, trace: str, name: str, value: float, comment: str) -> None:
        """Keep a score on a trace, in the place of one of that name of ours."""
        given = {"traceId": trace, "name": name, "value": value, "dataType": "NUMERIC", "comment": comment}
        self._service.ask("POST", "/api/public/scores", json=[{"id": str(uuid5(NAMESPACE_URL, f"{trace}/{name}")), **given}])
