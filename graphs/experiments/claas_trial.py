"""A trial of `learngraph claas study`: one pass over one stream, with an exam of all splits before the first and after each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..claas import CLaaS
from .claas_curves import step_curves
from .claas_learner import SCOPE, StreamLearner, mean_ess_and_age, open_learner, temporary_folder
from .claas_served import play_served
from .continual import Trial

if TYPE_CHECKING:
    from ...tools.environments.hierarchy import Scenario
    from ...tools.pocket.guard import ScenarioTranscript

__all__ = ["SERVICE", "TrialJob", "play_trial"]

PROBE_STRIDE = 5
"""One of so many chats without rules is played, to save time."""
PROMPT_EXCHANGES = 4
"""Exchanges in the prompt of `icl`."""
EXAM_SALT = "exam"
"""Checkpoints meet other users than the learner met: their aims and questions are drawn anew."""
SERVICE = "service:"
"""Begin of the names of arms that are played through the service."""


@dataclass(frozen=True)
class TrialJob:
    """A trial to play, with its settings."""

    arm: str
    shuffle: int
    seed: int
    model: str
    size: int
    steps: int
    settings: CLaaS | None
    seconds: float = 0.0
    """Least time of a scenario; 0 where the service has no part."""

    @property
    def name(self) -> str:
        """Name of the trial's file, without its ending."""
        return f"{re.sub('[=,:]', '-', self.arm)}-h{self.shuffle}-s{self.seed}"


def play_trial(job: TrialJob) -> Trial:
    """Play one trial, one pass over one stream, in this process."""
    stream = _Stream(job)
    return asyncio.run(stream.run_served() if job.arm.startswith(SERVICE) else stream.run())


class _Stream:
    """One trial: one order of the stream, one seed."""

    def __init__(self, job: TrialJob) -> None:
        from ...tools.environments.hierarchy import SPLIT_SIZE, scenario_stream
        from ...tools.models.models import open_model

        self.job = job
        self.scenarios = [one for n, one in enumerate(scenario_stream(job.shuffle, job.seed)) if n % SPLIT_SIZE < job.size]
        self.model: Any = open_model(job.model, threads=1)
        self.past: list[Any] = []
        self.untrained: list[float] = []
        self.updates = self.skipped = self.dropped = 0
        self.first: int | None = None

    async def run(self) -> Trial:
        started, job = perf_counter(), self.job
        with ExitStack() as stack:
            learns = None
            if job.settings:
                folder = stack.enter_context(temporary_folder())
                learns = stack.enter_context(open_learner(job.settings, self.model, folder))
            rows, online, buffer = [self._success_rates(self._network(learns), 0)], [], []
            for number, scenario in enumerate(self.scenarios, 1):
                online.append(await self._play_and_learn(number, scenario, learns))
                buffer.append(learns.replay.counts(*SCOPE).get("ready", 0) if learns is not None else 0)
                if number % self.job.size == 0:
                    rows.append(self._success_rates(self._network(learns), number))
            retained = self._retention(learns.network()) if learns is not None else None
            drift = mean_ess_and_age(learns.replay) if learns is not None else (None, None)
            curves = step_curves(learns.replay, *SCOPE) | {"buffer": tuple(buffer)} if learns is not None else {}
        curves.pop("time", None)
        trial = self._trial(rows, online, started, retained, drift, curves)
        has_gate = job.settings is not None and job.settings.gate.enabled
        return replace(trial, dropped=self.dropped if has_gate else None)

    async def run_served(self) -> Trial:
        """The same through a service. Versions that were live at the ends of splits have their exams when the stream is over."""
        started, job = perf_counter(), self.job
        assert job.settings is not None
        with temporary_folder() as folder:
            played = await play_served(
                self.scenarios, job.size, job.settings, job.model, folder, seed=job.seed, seconds=job.seconds
            )
            self.first, self.updates, self.skipped = played.first, played.updates, played.skipped
            with open_learner(job.settings, self.model, folder) as learns:
                rows = [self._success_rates(learns.network(label), number) for number, label in enumerate(played.live)]
                retained = self._retention(learns.network(played.live[-1]))
        trial = self._trial(rows, played.won, started, retained, (played.ess, played.age), played.curves)
        return replace(trial, dropped=played.dropped)

    def _trial(
        self,
        rows: Sequence[Sequence[float]],
        online: Sequence[float],
        started: float,
        retained: float | None,
        drift: tuple[float | None, float | None],
        curves: Mapping[str, Sequence[float]],
    ) -> Trial:
        job, shares = self.job, tuple(tuple(row) for row in rows)
        seconds = round(perf_counter() - started, 1)
        counts = (self.first, self.updates, self.skipped)
        return Trial(job.arm, job.shuffle, job.seed, shares, tuple(online), *counts, seconds, retained, *drift, curves=curves)

    def _network(self, learns: StreamLearner | None) -> Any:
        return self.model.network if learns is None else learns.network()

    async def _play_and_learn(self, number: int, scenario: Scenario, learns: StreamLearner | None) -> float:
        """Play a scenario once and learn from it; 1 if no rule broke, else 0."""
        from ...tools.pocket.guard_chats import PastExchange

        played = self._play([scenario], self._network(learns), seed=1000 * self.job.seed + number)[0]
        self.past += [PastExchange(scenario, turn) for turn in played.turns]
        if learns is not None:
            learns.record(played, number)
            for _ in range(self.job.steps):
                outcome = await learns.step()
                self.updates += outcome == "live"
                self.skipped += outcome == "skipped"
                self.dropped += outcome == "dropped"
            if self.updates and self.first is None:
                self.first = number
        return float(played.is_won)

    def _success_rates(self, network: Any, number: int) -> list[float]:
        """Share of each split's scenarios that a network passes."""
        if number and network is self.model.network and not self.job.arm.startswith("icl"):
            return self.untrained  # the result would be the same
        played = self._play(self.scenarios, network, seed=10**6 * (1 + self.job.seed), salt=EXAM_SALT)
        won = [float(one.is_won) for one in played]
        ends = range(0, len(won) + 1, self.job.size)
        self.untrained = [sum(won[a:b]) / (b - a) for a, b in pairwise(ends)]
        return self.untrained

    def _play(self, scenarios: Sequence[Scenario], network: Any, seed: int, salt: str = "") -> list[ScenarioTranscript]:
        from ...tools.pocket import guard

        shown = self.past[-PROMPT_EXCHANGES:] if self.job.arm.startswith("icl") else []
        return guard.play_scenarios(
            network,
            self.model.tokenizer,
            scenarios,
            seed=seed,
            salt=salt,
            past=lambda scenario: shown,
            show_feedback=self.job.arm == "icl+text",
        )

    def _retention(self, learned: Any) -> float:
        """Share of chats without rules that a network answers as asked, divided by that of the base model."""
        from ...tools.pocket.guard import reply
        from ...tools.pocket.guard_chats import retention_probes

        def right(network: Any) -> float:
            chats = [chat for kind in retention_probes().values() for chat in kind][::PROBE_STRIDE]
            replies = reply(network, self.model.tokenizer, [said for said, _ in chats], seed=self.job.seed)
            return sum(given.text == wanted for given, (_, wanted) in zip(replies, chats, strict=True)) / len(chats)

        return right(learned) / right(self.model.network)
