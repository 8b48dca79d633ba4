"""A trainer of weights that trains nothing, and keeps what it was asked."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from learngraph.memory.claas.weights import PlayedAttempt, TrainingReport


@dataclass
class StillTrainer:
    """Every training gives a version of its label, which plays like the base model."""

    calls: list[tuple[str, str, str, tuple[PlayedAttempt, ...]]] = field(default_factory=list)
    """(imitate or reinforce, parent, version, attempts)"""
    loads: list[str] = field(default_factory=list)
    kept: list[frozenset[str]] = field(default_factory=list)

    def use(self, version: str) -> None:
        if self.loads[-1:] != [version]:
            self.loads.append(version)

    def keep(self, versions: Collection[str]) -> None:
        self.kept.append(frozenset(versions))

    def imitate(self, parent: str, version: str, attempts: Sequence[PlayedAttempt], seed: int) -> TrainingReport:
        self.calls.append(("imitate", parent, version, tuple(attempts)))
        return TrainingReport(version, attempts=len(attempts), tokens=10, seconds=0.5, flops=100.0)

    def reinforce(self, parent: str, version: str, attempts: Sequence[PlayedAttempt], seed: int) -> TrainingReport:
        self.calls.append(("reinforce", parent, version, tuple(attempts)))
        return TrainingReport(version, attempts=len(attempts), tokens=10, seconds=0.5, flops=100.0)

    def perplexities(self, version: str, attempts: Sequence[PlayedAttempt]) -> list[float]:
        return [1.5 for _ in attempts]
