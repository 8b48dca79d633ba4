"""The parts of an adapter that a service keeps in memory: the versions that answer, and its newest rewards."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ...memory.claas.adapters import Adapters

__all__ = ["AdapterState"]

MAX_NAMED = 4
"""Most versions of an adapter that stay loaded because requests named them."""


def gradient_steps_of(label: str) -> int:
    """The number of gradient steps behind a version, which its name begins with; 0 for the base model."""
    return int(label.rpartition("@")[2].partition("-")[0]) if label else 0


@dataclass
class AdapterState:
    """An adapter's state between requests. All of it can be read from disk again."""

    versions: Adapters
    live: str = ""
    """Label of the version that answers requests; empty: the base model."""
    canary: str = ""
    """Label of the canary; empty: there is none."""
    previous_live: str = ""
    """Label of the version that was live before. It stays loaded."""
    rewards: OrderedDict[str, tuple[str, float, float]] = field(default_factory=OrderedDict)
    """Exchange id -> (label, reward, Unix time of the reply), oldest first."""
    has_new_rewards: bool = False
    """True if there are rewards that the watch has not seen."""
    named: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NAMED))
    """Labels of the versions that requests named last. They stay loaded."""
    switch_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def refresh(self) -> None:
        """Read from disk which versions answer from now on."""
        live = self.versions.current
        if live != self.live:
            self.previous_live = self.live
        self.live = live
        self.canary = self.versions.canary

    def rewards_by_version(self, since: float = -math.inf) -> dict[str, list[float]]:
        """Label -> rewards of replies that were made at `since` (Unix time) or later, oldest first."""
        found: dict[str, list[float]] = {}
        for label, reward, created in self.rewards.values():
            if created >= since:
                found.setdefault(label, []).append(reward)
        return found
