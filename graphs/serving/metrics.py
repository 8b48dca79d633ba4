"""The metrics of a CLaaS service, for Prometheus.

They need the package prometheus_client, which comes with the extra `serve`; it is imported when a service is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

__all__ = ["ServiceMetrics"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper ends of the histograms' buckets, in seconds."""


class ServiceMetrics:
    """Counters, gauges and histograms of one service, in a registry of their own. Safe for threads.

    Raises:
        UserError: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ModuleNotFoundError as error:
            raise UserError("a service counts with prometheus_client: pip install 'learngraph[serve]'") from error
        self.registry = CollectorRegistry()
        self._add_chat_metrics()
        self._add_learner_metrics()
        self._add_version_metrics()

    def _add_chat_metrics(self) -> None:
        self.requests = self._counter("requests", "Chats that were begun.")
        self.unfinished = self._counter("unfinished", "Chats that failed, or whose client went away.")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of the prompts of finished chats.")
        self.reply_tokens = self._counter("reply_tokens", "Tokens of the replies of finished chats.")
        self.first_token_seconds = self._histogram("ttft_seconds", "From a chat to its first token.")
        self.chat_seconds = self._histogram("latency_seconds", "From a chat to its last token, kept in the replay buffer.")
        self.feedbacks = self._counter("feedbacks", "Feedbacks, each counted once.")
        self.running = self._gauge("running", "Chats that are being answered.")
        self.replay_records = self._gauge("replay_records", "Exchanges in the replay buffer, by state.", "state")

    def _add_learner_metrics(self) -> None:
        self.steps = self._counter("steps", "Gradient steps.")
        self.skipped = self._counter("skipped", "Minibatches from which nothing was learned.")
        self.step_seconds = self._histogram("step_seconds", "A gradient step with its gate.")
        self.learner_errors = self._counter("learner_errors", "Steps that failed and are tried again.")
        self.learner_paused = self._gauge("learner_paused", "1 while the learner waits after failures.")
        self.adapters = self._gauge("adapters", "Adapters by the outcome of their last turn at the learner.", "outcome")
        self.held_up = self._gauge(
            "held_up", "Adapters by what holds their learning up; GET /v1/status says what helps.", "tenant", "kind"
        )
        self.missing_feedbacks = self._gauge(
            "missing_feedbacks", "Feedbacks that a tenant's adapters lack for their next steps.", "tenant"
        )
        self.shrink = self._gauge(
            "shrink", "Factor by which the newest step scaled the adapter down to the gate's bounds; 1: not at all."
        )
        self.loss = self._gauge("loss", "Loss of the newest gradient step.")
        self.ess = self._gauge("ess", "Effective sample size of the newest minibatch, as a share of it.")
        self.entropy = self._gauge("entropy", "Entropy of the learner in the newest step, in nats per token.")
        self.kl = self._gauge("kl", "KL of the learner to the base model in the newest step, in nats per token.")

    def _add_version_metrics(self) -> None:
        self.gate_checks = self._counter("gate", "Checks of the gate, by name and result.", "check", "result")
        self.promoted = self._counter("promoted", "Versions that became live or the canary.")
        self.dropped = self._counter("dropped", "Versions that never went live.")
        self.rollbacks = self._counter("rollbacks", "Returns to an earlier version.")
        self.load_seconds = self._histogram("load_seconds", "Until the engine held a version.")
        self.swap_seconds = self._histogram("swap_seconds", "Until requests went to another version.")
        self.loaded_versions = self._gauge("loaded_versions", "Versions of adapters that the engine holds.")

    def set_adapters(self, outcomes: Mapping[str, int]) -> None:
        """Set the number of adapters by the outcome of their last turn."""
        for outcome in ("too few", "skipped", "stepped", "live", "canary", "dropped", "failed"):
            self.adapters.labels(outcome).set(outcomes.get(outcome, 0))

    def set_obstacles(self, by_tenant: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Set what holds learning up: for each tenant the rows of `summarize_obstacles`."""
        self.held_up.clear()
        self.missing_feedbacks.clear()
        for tenant, rows in by_tenant.items():
            self.missing_feedbacks.labels(tenant).set(sum(row["missing"] for row in rows))
            for row in rows:
                self.held_up.labels(tenant, row["kind"]).set(row["adapters"])

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        from prometheus_client import Counter

        return Counter(f"learngraph_{name}", help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        from prometheus_client import Gauge

        made = Gauge(f"learngraph_{name}", help, labels, registry=self.registry)
        if not labels:
            made.set(math.nan)  # it has no value until something is measured; NaN is not shown
        return made

    def _histogram(self, name: str, help: str) -> Histogram:
        from prometheus_client import Histogram

        return Histogram(f"learngraph_{name}", help, registry=self.registry, buckets=BUCKETS)
