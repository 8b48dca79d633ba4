"""CLaaS's service with the urn as its model, and turns of its users."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import urn
from claas_settings import OPEN_GATE, changed
from waiting import until

from learngraph.graphs.claas import CLaaS
from learngraph.graphs.serving.service import Service
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import ReplaySettings
from learngraph.memory.records import Exchange

JAM = changed(
    CLaaS(),
    replay={"held_out_share": 0.0},
    gate={"min_entropy_share": 0.0, "max_kl": 0.7},
    rollout={"watch_rewards": 0, "max_lead": None},
)
"""A gate whose bound the urn would soon cross: a word that is certain is log 4 = 1.39 nats away from the base model."""


@asynccontextmanager
async def serving(
    folder: Path,
    chosen: CLaaS | None = None,
    limits: ReplaySettings | None = None,
    learns: bool = True,
    buffer: str = "",
    must_store: bool = True,
    rest: float = 0.0,
    **learner: Any,
) -> AsyncIterator[Service]:
    chosen = chosen or OPEN_GATE
    replay = Replay(buffer or folder / "replay.sqlite", limits or chosen.replay)
    trains = urn.UrnLearner(lambda tenant, adapter: service.versions(tenant, adapter), **learner) if learns else None
    service = Service(
        urn.UrnEngine(), trains, replay, folder / "adapters", chosen, model="urn", must_store=must_store, rest=rest
    )
    async with service:
        yield service


async def turns(
    service: Service, n: int, tenant: str = "acme", start: int = 0, word: str = "blue", adapter: str = "default"
) -> list[Exchange]:
    found = []
    for i in range(start, start + n):
        id = f"chat-{i}" if adapter == "default" else f"{adapter}-{i}"
        exchange = await urn.say(service, f"say {i}", id, tenant, adapter)
        await urn.like(service, exchange, word)
        found.append(exchange)
    return found


async def teach(service: Service, n: int, tenant: str = "acme", **more: Any) -> list[Exchange]:
    """Turns, and all that can be learned from them."""
    found = await turns(service, n, tenant, **more)
    await until(lambda: idle(service) and not service._live.tasks)
    return found


def idle(service: Service) -> bool:
    trainer = service._learning
    assert trainer is not None
    return trainer.busy is None and not any(turn.due for turn in trainer._turns.values())


async def metric(service: Service, name: str, **labels: str) -> float:
    """The value of one metric."""
    (value,) = [
        sample.value
        for family in await service.metrics()
        for sample in family.samples
        if (sample.name, sample.labels) == (name, labels)
    ]
    return float(value)
