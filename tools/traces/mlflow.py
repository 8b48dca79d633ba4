"""MLflow's traces: what its REST API answers, or `trace.to_json()`, a trace a line, and its API."""

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from ...memory.errors import UserError
from .api import TraceApi
from .otlp import attributes
from .spans import Row, Score, Span, Trace

__all__ = ["MLflow", "read"]

PATH = "/api/3.0/mlflow/traces"
MOST_TRACES = 20
"""Traces that are asked for at once, with their spans."""


def read(rows: Iterable[Row]) -> Iterator[Trace]:
    """The traces."""
    for row in rows:
        info, spans = row.get("trace_info") or row["info"], row.get("spans") or (row.get("data") or {}).get("spans") or []
        held = [(one, attributes(one)) for one in spans]
        outer = next((known for one, known in held if not one.get("parent_span_id")), {}).get("metadata")
        labels = info.get("trace_metadata") or {}
        yield Trace(
            str(info["trace_id"]),
            [_span(one, known) for one, known in held],
            labels.get("mlflow.trace.session"),
            info["request_time"],
            labels.get("mlflow.trace.user"),
            [score for one in info.get("assessments") or () for score in _score(one)],
            {**labels, **(info.get("tags") or {}), **(outer if isinstance(outer, Mapping) else {})},
            info.get("state") != "IN_PROGRESS",
        )


def _span(row: Row, known: Row) -> Span:
    ids, kind = (str(row["span_id"]), str(row.get("parent_span_id") or "")), known.get("mlflow.spanType")
    talk = known.get("mlflow.spanInputs"), known.get("mlflow.spanOutputs")
    return Span(*ids, str(row.get("start_time_unix_nano") or ""), *talk, kind in ("CHAT_MODEL", "LLM"))


def _score(row: Row) -> Iterator[Score]:
    if "feedback" in row and row.get("valid", True):
        yield Score(str(row["assessment_name"]), row["feedback"].get("value"), str(row.get("rationale") or ""))


class MLflow:
    """The API of MLflow's server, 3.0; `project` is the name of an experiment. A key, if it wants one, is in MLFLOW_TRACKING_TOKEN."""

    read = staticmethod(read)

    def __init__(self, url: str, project: str, **more: Any) -> None:
        token = os.environ.get("MLFLOW_TRACKING_TOKEN")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._service = TraceApi("MLflow", url, "MLFLOW_TRACKING_TOKEN", headers=headers, **more)
        self._project = project or "Default"

    def rows(self, since: str, key: str) -> Iterator[Row]:
        """The traces that began at a time or later, with their spans."""
        path = "/api/2.0/mlflow/experiments/get-by-name"
        found = self._service.ask("GET", path, missing=True, params={"experiment_name": self._project})
        if found is None:
            raise UserError(f"{self._service.place} has no experiment {self._project!r}: give its name, --project NAME")
        place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": found["experiment"]["experiment_id"]}}
        asked: dict[str, Any] = {"locations": [place], "max_results": 100, "order_by": ["timestamp_ms ASC"]}
        if since:
            asked["filter"] = f"timestamp_ms >= {int(datetime.fromisoformat(since).timestamp() * 1000)}"
        infos = [*self._service.pages("POST", f"{PATH}/search", "traces", "next_page_token", **asked)]
        for first in range(0, len(infos), MOST_TRACES):
            ids = [("trace_ids", str(one["trace_id"])) for one in infos[first : first + MOST_TRACES]]
            yield from self._service.ask("GET", f"{PATH}/batchGet", params=ids).get("traces") or ()

    def write_score(self, trace: str, name: str, value: float, comment: str) -> None:
        """Keep feedback on a trace, in the place of one of that name."""
        info = self._service.ask("GET", f"{PATH}/{trace}")["trace"]["trace_info"]
        for one in info.get("assessments") or ():
            if one["assessment_name"] == name:
                self._service.ask("DELETE", f"{PATH}/{trace}/assessments/{one['assessment_id']}")
        source = {"source_type": "CODE", "source_id": "learngraph"}
        given = {
            "assessment_name": name,
            "trace_id": trace,
            "source": source,
            "feedback": {"value": value},
            "rationale": comment,
        }
        self._service.ask("POST", f"{PATH}/{trace}/assessments", json={"assessment": given})
