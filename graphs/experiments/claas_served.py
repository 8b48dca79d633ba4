"""A stream of `learngraph claas study` through the service: chats and feedback as users send them, while the learner works beside.

The service is that of `learngraph serve` without its web server: gate, held-out feedback, watch, and a learner in a process of its own.
Nothing waits for the learner. A scenario takes at least `seconds`, as a user's does (in the paper 30 to 60 s, with 5 to 10 s for a
gradient step), so that results depend on the machine's speed, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ...memory.records import ChatCall, ChatRequest, Exchange, Feedback, Sampling
from ..claas import CLaaS
from ..cli.serve import ServeOptions, build_service
from .claas_curves import step_curves
from .claas_learner import SCOPE, mean_ess_and_age

if TYPE_CHECKING:
    from ...tools.environments.hierarchy import Scenario
    from ..serving.service import Service

__all__ = ["ServedStream", "play_served"]


@dataclass(frozen=True)
class ServedStream:
    """The results of a stream that was played through a service."""

    won: tuple[float, ...]
    """1 for each scenario in which no rule broke, else 0."""
    live: tuple[str, ...]
    """Label of the live version before the first split and after each one; empty: the base model."""
    first: int | None
    """Scenarios played before a version went live; None: none did."""
    updates: int
    """Gradient steps."""
    skipped: int
    """Minibatches from which nothing was learned."""
    dropped: int
    """Versions that failed the gate."""
    ess: float | None
    """Effective share of the minibatches, mean over the updates."""
    age: float | None
    """Age of the samples in gradient steps, mean over the updates."""
    curves: Mapping[str, tuple[float, ...]]
    """Those of `step_curves`, and for each scenario `began` and `ended`, in seconds since the first, and `buffer`, ready exchanges."""


async def play_served(
    scenarios: Sequence[Scenario], split_size: int, settings: CLaaS, model: str, folder: Path, *, seed: int, seconds: float
) -> ServedStream:
    """Play each scenario once, in order, against a service that learns from the verifier's feedback.

    Args:
        scenarios: the stream.
        split_size: scenarios in a split.
        settings: of the service.
        model: `guard`, or `local:PATH`.
        folder: the service's; its versions stay there.
        seed: of the replies' draws.
        seconds: least time from one scenario to the next.
    """
    options = ServeOptions(model=model, out=folder, threads=1, learner_nice=0)
    async with build_service(options, settings) as service:
        assert service.learner is not None
        await asyncio.to_thread(service.learner.measure, "", ())  # returns once its process is up
        versions, replay = service.versions(*SCOPE), service.replay
        began, ended, buffer, won, live = list[float](), list[float](), list[float](), list[float](), [versions.current]
        first, start = None, time.time()
        for number, scenario in enumerate(scenarios, 1):
            began.append(time.time() - start)
            won.append(await _play_scenario(service, scenario, number, seed))
            ended.append(time.time() - start)
            await asyncio.sleep(max(0.0, began[-1] + seconds - ended[-1]))
            counts = await asyncio.to_thread(replay.counts, *SCOPE)
            buffer.append(counts.get("ready", 0) + counts.get("leased", 0))
            if first is None and versions.current:
                first = number
            if number % split_size == 0:
                live.append(versions.current)
        skipped = sum(
            sample.value
            for family in await service.metrics()
            for sample in family.samples
            if sample.name == "learngraph_skipped_total"
        )
        states = list(versions.states().values())
        steps = step_curves(replay, *SCOPE)
        steps["time"] = tuple(at - start for at in steps["time"])
        times = {"began": tuple(began), "ended": tuple(ended), "buffer": tuple(buffer)}
        return ServedStream(
            tuple(won),
            tuple(live),
            first,
            replay.step(*SCOPE),
            int(skipped),
            states.count("dropped"),
            *mean_ess_and_age(replay),
            {name: tuple(round(value, 4) for value in values) for name, values in {**steps, **times}.items()},
        )


async def _play_scenario(service: Service, scenario: Scenario, number: int, seed: int) -> float:
    """Play a scenario to its end, with feedback on every reply; 1 if no rule broke, else 0."""
    from ...tools.environments.hierarchy import HierarchyTurn, chat_messages, is_over, next_attack, verify

    turns: list[HierarchyTurn] = []
    while not is_over(scenario, turns):
        said = next_attack(scenario, turns).text
        sampling = Sampling(seed=Random(f"{seed} {scenario.id} {len(turns)}").getrandbits(31))
        request = ChatRequest(tuple(chat_messages(scenario, turns, said)), sampling)
        call = ChatCall(f"{number}-{len(turns)}", SCOPE[0], request, SCOPE[1], scenario.family, scenario.id, len(turns))
        exchange: Any = [item async for item in service.chat(call)][-1]
        assert isinstance(exchange, Exchange)
        verdict = verify(scenario, said, exchange.reply.text)
        await service.feedback(SCOPE[0], exchange.id, Feedback(float(verdict.reward), verdict.feedback, "verifier"))
        turns.append(HierarchyTurn(said, exchange.reply.text, verdict))
    return float(all(turn.verdict.reward for turn in turns))
