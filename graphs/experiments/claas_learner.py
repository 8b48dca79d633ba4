"""The learner of a stream's trial: buffer, versions and learning graph, driven step by step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...memory.claas.adapters import Adapters
from ...memory.claas.replay import Replay
from ...memory.records import ChatRequest, Exchange, Feedback, Reply, Sampling
from ..claas import CLaaS, build_learning, read_hindsight

if TYPE_CHECKING:
    from ...tools.pocket.guard import ScenarioTranscript

__all__ = ["StreamLearner"]

SCOPE = ("study", "default")
"""Tenant and adapter of a trial."""


class StreamLearner:
    """A learner with its buffer and versions; each step is a run of the learning graph that the service runs, too."""

    def __init__(self, settings: CLaaS, model: Any, folder: Path, replay: Replay) -> None:
        from ...tools.training.calls import LearnerSettings
        from ...tools.training.learner import InProcessLearner

        self.versions = Adapters(folder / "adapters", *SCOPE, keep_versions=settings.rollout.keep_versions)
        self.replay = replay

        def keep(batch: Any, written: Path, about: dict[str, Any]) -> str:
            return self.versions.write(written, batch.step, batch.parent, self.learner.base, about)

        self.learner = InProcessLearner(
            model,
            self.versions.folder,
            keep,
            # the study does not report KL
            LearnerSettings(settings.lora, settings.loss, read_hindsight(model.model), measure_kl=False),
        )
        self.graph = build_learning(self.learner, replay, lambda tenant, adapter: self.versions, settings)

    def network(self) -> Any:
        """The network of the newest version."""
        return self.learner.network(self.versions.current)

    def record(self, played: ScenarioTranscript, number: int) -> None:
        """Append every turn of a played scenario to the buffer, with the verifier's feedback."""
        from ...tools.environments.hierarchy import chat_messages

        label = self.versions.current
        step = self.versions.version(label).step if label else 0
        for turn, (result, reply) in enumerate(zip(played.turns, played.replies, strict=True)):
            exchange = Exchange(
                f"{number}/{turn}",
                SCOPE[0],
                ChatRequest(tuple(chat_messages(played.scenario, played.turns[:turn], result.user)), Sampling()),
                Reply(result.reply, reply.prompt_ids, reply.token_ids, reply.token_logprobs, version=label),
                self.learner.base,
                step=step,
                family=played.scenario.family,
                scenario=played.scenario.id,
                turn=turn,
                created=float(number),
            )
            self.replay.append(exchange)
            verdict = result.verdict
            self.replay.add_feedback(SCOPE[0], exchange.id, Feedback(float(verdict.reward), verdict.feedback, "verifier"))

    async def step(self) -> str:
        """One gradient step, if the buffer has enough exchanges; returns the graph's outcome."""
        state = await self.graph.ainvoke({"tenant": SCOPE[0], "adapter": SCOPE[1]})
        self.versions.prune(protect=(self.replay.head(*SCOPE),))
        return str(state["outcome"])


def mean_ess_and_age(replay: Replay) -> tuple[float | None, float | None]:
    """Mean effective share of a trial's minibatches, and their mean age in gradient steps, over all updates. None: no updates."""
    rows = replay.updates(*SCOPE, limit=10**6)
    return (fmean(row["ess"] for row in rows), fmean(row["age"] for row in rows)) if rows else (None, None)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A temporary folder, in memory where there is /dev/shm."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@contextmanager
def open_learner(settings: CLaaS, model: Any, folder: Path) -> Iterator[StreamLearner]:
    """A learner whose buffer and versions lie in a folder."""
    with Replay(folder / "replay.sqlite", settings.replay, clock=lambda: 0.0) as replay:
        yield StreamLearner(settings, model, folder, replay)
