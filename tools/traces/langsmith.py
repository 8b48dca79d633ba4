"""LangSmith's runs: rows of `client.runs.query` or of an export (root runs are enough), and its API."""

import os
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from ...memory.errors import UserError
from .api import TraceApi
from .spans import Row, Score, Span, Trace, by_trace, has_talk

__all__ = ["LangSmith", "read"]

FIELDS = [
    "ID",
    "TRACE_ID",
    "PARENT_RUN_IDS",
    "RUN_TYPE",
    "STATUS",
    "START_TIME",
    "END_TIME",
    "INPUTS",
    "OUTPUTS",
    "EXTRA",
    "FEEDBACK_STATS",
    "THREAD_ID",
]
EPOCH = "1970-01-01T00:00:00+00:00"
"""A time before all runs: without one, the API begins a day ago."""


def read(rows: Iterable[Row]) -> Iterator[Trace]:
    """The traces that some runs belong to."""
    for runs in by_trace(rows, lambda row: str(row.get("trace_id") or row["id"])):
        root = min(runs, key=lambda one: str(one.get("start_time") or ""))
        held = (root.get("extra") or {}).get("metadata") or {}
        known = (root.get("thread_id"), *(held.get(name) for name in ("thread_id", "session_id", "conversation_id")))
        yield Trace(
            str(root.get("trace_id") or root["id"]),
            [_span(one) for one in runs],
            next((one for one in known if one), ""),
            root.get("start_time"),
            held.get("user_id"),
            [score for one in runs for score in _scores(one)],
            held,
            str(root.get("status")).lower() != "pending",
        )


def _span(row: Row) -> Span:
    parent = row.get("parent_run_id") or next(reversed(row.get("parent_run_ids") or ()), "")
    is_model = str(row.get("run_type")).lower() == "llm"
    return Span(str(row["id"]), str(parent), str(row.get("start_time")), row.get("inputs"), row.get("outputs"), is_model)


def _scores(row: Row) -> Iterator[Score]:
    for key, stats in (row.get("feedback_stats") or {}).items():
        words = "\n".join(str(one) for one in stats.get("comments") or ())
        categories = [name for name, count in (stats.get("values") or {}).items() for _ in range(int(count))]
        values = categories if stats.get("avg") is None and categories else [stats.get("avg")]
        yield from (Score(key, value, "" if place else words) for place, value in enumerate(values))


class LangSmith:
    """LangSmith's API, v2 (of one's own server, from version 0.16 on); `project` is the name of one. The key is in LANGSMITH_API_KEY."""

    read = staticmethod(read)

    def __init__(self, url: str, project: str, **more: Any) -> None:
        headers = {"x-api-key": os.environ.get("LANGSMITH_API_KEY", "")}
        place = url.removesuffix("/api/v1")
        self._service, self._project = TraceApi("LangSmith", place, "LANGSMITH_API_KEY", headers=headers, **more), project

    def rows(self, since: str, key: str) -> Iterator[Row]:
        """The root runs that began at a time or later, with all of a trace whose root has no messages."""
        found = self._service.ask("GET", "/api/v1/sessions", params={"name": self._project})
        if not found:
            raise UserError(f"{self._service.place} has no project {self._project!r}: give its name, --project NAME")
        asked = {"project_ids": [str(found[0]["id"])], "min_start_time": since or EPOCH, "selects": FIELDS, "page_size": 100}
        path = "/api/v2/runs/query"
        for row in self._service.pages("POST", path, "items", "next_cursor", is_root=True, **asked):
            yield row
            if not has_talk(row.get("inputs"), row.get("outputs")):
                within = self._service.pages("POST", path, "items", "next_cursor", trace_id=str(row["trace_id"]), **asked)
                yield from (one for one in within if one["id"] != row["id"])

    def write_score(self, trace: str, name: str, value: float, comment: str) -> None:
        """Keep feedback on a run, in the place of one of that key of ours."""
        id, given = str(uuid5(NAMESPACE_URL, f"{trace}/{name}")), {"key": name, "score": value, "comment": comment}
        if self._service.ask("PATCH", f"/api/v1/feedback/{id}", missing=True, json=given) is None:
            self._service.ask("POST", "/api/v1/feedback", json={"id": id, "run_id": trace, "trace_id": trace, **given})
