"""The metrics of a CLaaS service, for Prometheus.

They need the package prometheus_client, which comes with the extra `serve`; it is imported when a service is made.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...memory.errors import UserError

__all__ = ["ServiceMetrics"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper ends of the histograms' buckets, in seconds."""
COUNTERS = {
    "requests": "Chats that were begun.",
    "unfinished": "Chats that failed, or whose client went away.",
    "unrecorded": "Chats that were answered without a record, since none could be stored.",
    "prompt_tokens": "Tokens of the prompts of finished chats.",
    "reply_tokens": "Tokens of the replies of finished chats.",
    "feedbacks": "Feedbacks, each counted once.",
    "steps": "Gradient steps.",
    "skipped": "Minibatches from which nothing was learned.",
    "learner_errors": "Steps that failed and are tried again.",
    "gate": "Checks of the gate, by name and result.",
    "promoted": "Versions that became live or the canary.",
    "dropped": "Versions that never went live.",
    "rollbacks": "Returns to an earlier version.",
}
HISTOGRAMS = {
    "ttft_seconds": "From a chat to its first token.",
    "latency_seconds": "From a chat to its last token, kept in the replay buffer.",
    "step_seconds": "A gradient step with its gate.",
    "load_seconds": "Until the engine held a version.",
    "swap_seconds": "Until requests went to another version.",
}
GAUGES = {
    "running": "Chats that are being answered.",
    "replay_records": "Exchanges in the replay buffer, by state.",
    "storage_failed": "1 while what is said cannot be stored: the disk is full, or the database away.",
    "lost": "1 for an adapter of whose files some are gone, damaged, or not to be read; the log says which.",
    "learner_paused": "1 while the learner waits after failures.",
    "adapters": "Adapters by the outcome of their last turn at the learner.",
    "held_up": "Adapters by what holds their learning up; GET /v1/status says what helps.",
    "missing_feedbacks": "Feedbacks that a tenant's adapters lack for their next steps.",
    "held": "Conversations that nothing is learned from until a person releases them (--learn).",
    "lift": "Mean reward of replies with what was learned, less that of the control share (--learn, --control).",
    "shrink": "Factor by which the newest step scaled the adapter down to the gate's bounds; 1: not at all.",
    "loss": "Loss of the newest gradient step.",
    "ess": "Effective sample size of the newest minibatch, as a share of it.",
    "entropy": "Entropy of the learner in the newest step, in nats per token.",
    "kl": "KL of the learner to the base model in the newest step, in nats per token.",
    "engine_alive": "1 if the model itself answers, else 0.",
    "engine_waiting": "Requests that wait for a place at the model.",
    "engine_running": "Replies under way at the model.",
    "engine_memory": "Share of the memory for replies under way that they may come to use.",
    "engine_tokens_per_second": "Tokens made a second since the metrics were read last.",
    "loaded_versions": "Versions of adapters that the engine holds.",
}
LABELS = {
    "replay_records": ("state",),
    "adapters": ("outcome",),
    "held_up": ("tenant", "kind"),
    "missing_feedbacks": ("tenant",),
    "lost": ("tenant", "adapter"),
    "held": ("tenant", "adapter"),
    "lift": ("tenant", "adapter"),
    "gate": ("check", "result"),
}


class ServiceMetrics:
    """Counters, gauges and histograms of one service, in a registry of their own, each an attribute of its name. Safe for threads.

    Raises:
        UserError: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ModuleNotFoundError as error:
            raise UserError("a service counts with prometheus_client: pip install 'learngraph[serve]'") from error
        self.registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        for kind, helps in ((Counter, COUNTERS), (Gauge, GAUGES), (Histogram, HISTOGRAMS)):
            for name, help in helps.items():
                more: Any = {"buckets": BUCKETS} if kind is Histogram else {}
                made = kind(f"learngraph_{name}", help, LABELS.get(name, ()), registry=self.registry, **more)
                if isinstance(made, Gauge) and name not in LABELS:
                    made.set(math.nan)  # it has no value until something is measured; NaN is not shown
                self._metrics[name] = made

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_metrics"][name]
        except KeyError:
            raise AttributeError(name) from None

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
