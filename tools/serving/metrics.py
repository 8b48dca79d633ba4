"""The metrics of the chat server, and the page that Prometheus reads."""

import math
from collections.abc import Iterable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric

__all__ = ["ServerMetrics"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the histograms' buckets, in seconds."""


class ServerMetrics:
    """Counters, gauges and histograms of one chat server, in a registry of their own. Safe for threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=BUCKETS)
        by = ("route", "method", "status")
        self.http_requests = counter("learngraph_http_requests", "Requests by route, method and status.", by)
        about = "Requests being answered, streams included."
        self.http_in_progress = Gauge("learngraph_http_requests_in_progress", about, registry=self.registry)
        self.http_seconds = histogram("learngraph_http_request_seconds", "From a request to the end of its answer.", ("route",))
        self.feedback_seconds = histogram("learngraph_feedback_seconds", "From feedback to its receipt.")
        self.tokens = counter("learngraph_tokens", "Tokens of prompts and replies.", ("tenant",))
        self.disconnects = counter("learngraph_disconnects", "Clients that hung up before their reply was finished.")


class _Page:
    """Metric families as a collector, which is what `generate_latest` reads."""

    def __init__(self, families: Iterable[Metric], tenant: str | None) -> None:
        self._families, self._tenant = families, tenant

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            shown = Metric(family.name, family.documentation, family.type)
            for sample in family.samples:
                own = self._tenant is None or sample.labels.get("tenant") == self._tenant
                # A counter's time of creation would be a gauge of its own in this format; it never was one here.
                if own and not sample.name.endswith("_created") and not math.isnan(sample.value):
                    shown.samples.append(sample)
            if shown.samples:
                yield shown


def render_metrics(families: Iterable[Metric], tenant: str | None = None) -> bytes:
    """The page in Prometheus' text format, version 0.0.4. Samples without a value (NaN) are left out.

    Args:
        tenant: show only samples with this label `tenant`, since totals would tell of the other tenants; None: all.
    """
    return generate_latest(_Page(families, tenant))
