"""Counters, gauges and histograms of a service, as plain numbers: what a Prometheus page is made of."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock
from typing import Any

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper ends of a histogram's buckets, in seconds."""
HELP = {
    "learngraph_requests_total": "Chats that were begun.",
    "learngraph_unfinished_total": "Chats that failed or whose client went away.",
    "learngraph_prompt_tokens_total": "Tokens of prompts of finished chats.",
    "learngraph_reply_tokens_total": "Tokens of replies of finished chats.",
    "learngraph_ttft_seconds": "From a chat to its first token.",
    "learngraph_latency_seconds": "From a chat to its last token, kept in the replay buffer.",
    "learngraph_feedbacks_total": "Feedbacks, each counted once.",
    "learngraph_steps_total": "Gradient steps.",
    "learngraph_skipped_total": "Minibatches from which nothing was learned.",
    "learngraph_learner_errors_total": "Steps that failed, and are tried again.",
    "learngraph_learner_paused": "1 while the learner waits after failures.",
    "learngraph_promoted_total": "Versions that went live, or out as a canary.",
    "learngraph_dropped_total": "Versions that never went live.",
    "learngraph_rollbacks_total": "Returns to an earlier version.",
    "learngraph_step_seconds": "A gradient step with its gate.",
    "learngraph_load_seconds": "Until the engine held a version.",
    "learngraph_swap_seconds": "Until requests went to another version.",
    "learngraph_loss": "Of the newest gradient step.",
    "learngraph_ess": "Effective share of the newest minibatch.",
    "learngraph_age": "Mean age of the newest minibatch, in gradient steps.",
    "learngraph_entropy": "Of the learner in the newest step, in nats.",
    "learngraph_kl": "KL of the learner to the base model in the newest step, in nats.",
    "learngraph_gate_total": "Lines of gates, by name and result.",
    "learngraph_replay_records": "Exchanges in the replay buffer, by state.",
    "learngraph_running": "Chats that are being answered.",
    "learngraph_loaded_versions": "Versions of adapters that the engine holds.",
}

Labels = tuple[tuple[str, str], ...]


@dataclass
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0


@dataclass
class Meter:
    """Numbers that are added up while a service runs. Safe for threads."""

    counters: dict[str, dict[Labels, float]] = field(default_factory=dict)
    gauges: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, _Histogram] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Count."""
        with self.lock:
            series, key = self.counters.setdefault(name, {}), tuple(sorted(labels.items()))
            series[key] = series.get(key, 0.0) + value

    def set(self, name: str, value: float, **labels: str) -> None:
        """Say how much there is."""
        with self.lock:
            self.gauges.setdefault(name, {})[tuple(sorted(labels.items()))] = value

    def observe(self, name: str, seconds: float) -> None:
        """Count a duration into its bucket."""
        with self.lock:
            histogram = self.histograms.setdefault(name, _Histogram())
            histogram.counts[bisect_left(BOUNDS, seconds)] += 1
            histogram.total += seconds

    def told(self) -> dict[str, Any]:
        """All of it: `counters` and `gauges` (name -> [[labels, number], ...]), `histograms` (name -> [[labels, buckets, sum and
        count]], cumulative), `help`."""
        with self.lock:
            plain = {
                kind: {name: [[dict(labels), value] for labels, value in series.items()] for name, series in every.items()}
                for kind, every in (("counters", self.counters), ("gauges", self.gauges))
            }
            found: dict[str, Any] = {}
            for name, one in self.histograms.items():
                rising = list(accumulate(one.counts))
                buckets = [[bound, n] for bound, n in zip(BOUNDS, rising, strict=False)]
                found[name] = [[{}, {"buckets": buckets, "sum": one.total, "count": rising[-1]}]]
        return {**plain, "histograms": found, "help": HELP}
