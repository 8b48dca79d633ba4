"""Numbers about a server in Prometheus' text format: what it counts itself (`Meter`), and what others hand it.

meter = Meter()
meter.add("learngraph_http_requests_total", {"status": "200"})
meter.observe("learngraph_first_token_seconds", {}, 0.12)
exposition([meter.numbers(), others])
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["BUCKETS", "Meter", "exposition"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of a histogram's buckets, in seconds."""

Labels = tuple[tuple[str, str], ...]


class Meter:
    """Counters, gauges and histograms by name and labels; safe to use from any thread."""

    def __init__(self, help: Mapping[str, str] | None = None) -> None:
        self._help = dict(help or {})
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._gauges: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[Labels, list[float]]] = defaultdict(dict)

    def add(self, name: str, labels: Mapping[str, str], amount: float = 1.0) -> None:
        """Count."""
        with self._lock:
            self._counters[name][_key(labels)] += amount

    def change(self, name: str, labels: Mapping[str, str], amount: float) -> None:
        """Move a gauge up or down."""
        with self._lock:
            self._gauges[name][_key(labels)] += amount

    def observe(self, name: str, labels: Mapping[str, str], seconds: float) -> None:
        """Count a duration in its histogram."""
        with self._lock:
            # One place per bucket, one for what is longer than any, and the sum.
            row = self._histograms[name].setdefault(_key(labels), [0.0] * (len(BUCKETS) + 2))
            row[next((i for i, end in enumerate(BUCKETS) if seconds <= end), len(BUCKETS))] += 1
            row[-1] += seconds

    def numbers(self) -> dict[str, Any]:
        """Everything so far, as `exposition` takes it."""
        with self._lock:
            histograms: dict[str, list[Any]] = {}
            for name, rows in self._histograms.items():
                histograms[name] = []
                for labels, row in rows.items():
                    running, buckets = 0.0, []
                    for end, count in zip(BUCKETS, row, strict=False):
                        running += count
                        buckets.append([end, running])
                    count = sum(row[:-1])
                    histograms[name].append([dict(labels), {"buckets": buckets, "sum": row[-1], "count": count}])
            plain = {
                kind: {name: [[dict(labels), value] for labels, value in rows.items()] for name, rows in found.items()}
                for kind, found in (("counters", self._counters), ("gauges", self._gauges))
            }
            return {**plain, "histograms": histograms, "help": dict(self._help)}


def exposition(parts: Sequence[Mapping[str, Any]], tenant: str | None = None) -> str:
    """Prometheus' text format (version 0.0.4).

    Args:
        parts: each with `counters` and `gauges` (name -> a number, or a list of [labels, number]), `histograms` (name -> a list of
            [labels, {"buckets": [[upper end, count so far], ...], "sum", "count"}]) and `help` (name -> a sentence). What is no
            finite number is left out.
        tenant: show only what has this label `tenant`: totals would tell of the others; None: everything.
    """
    lines: list[str] = []
    for part in parts:
        said = part.get("help") or {}
        for kind, word in (("counters", "counter"), ("gauges", "gauge"), ("histograms", "histogram")):
            for name, rows in sorted((part.get(kind) or {}).items()):
                found = [
                    line
                    for labels, value in (rows if isinstance(rows, list | tuple) else [[{}, rows]])
                    if tenant is None or labels.get("tenant") == tenant
                    for line in (_histogram(name, labels, value) if word == "histogram" else _sample(name, labels, value))
                ]
                if found:
                    if name in said:
                        lines.append(f"# HELP {name} {_escaped(said[name])}")
                    lines += [f"# TYPE {name} {word}", *found]
    return "\n".join(lines) + "\n"


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _sample(name: str, labels: Mapping[str, Any], value: Any) -> list[str]:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return []
    inside = ",".join(f'{key}="{_escaped(str(item), quoted=True)}"' for key, item in sorted(labels.items()))
    return [f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"]


def _histogram(name: str, labels: Mapping[str, Any], value: Mapping[str, Any]) -> list[str]:
    lines = []
    for end, count in value["buckets"]:
        if math.isfinite(end):
            lines += _sample(f"{name}_bucket", {**labels, "le": _number(end)}, count)
    lines += _sample(f"{name}_bucket", {**labels, "le": "+Inf"}, value["count"])
    return lines + _sample(f"{name}_sum", labels, value["sum"]) + _sample(f"{name}_count", labels, value["count"])


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text
