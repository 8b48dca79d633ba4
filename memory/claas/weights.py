"""Weights that learn from whole attempts: how they are trained, what they are shown, what a training costs, and a run's log of it.

The log holds one row per attempt and one per training. It decides which version of the adapter an attempt is played with, so a
run that was killed goes on with the version that it had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..records import Task
from ..storage.rows import Rows
from .settings import LoRA

__all__ = ["PlayedAttempt", "PlayedStep", "TrainingLog", "TrainingReport", "WeightSettings", "version_label"]


@dataclass(frozen=True)
class WeightSettings:
    """The settings of a training of weights."""

    lora: LoRA = field(default_factory=LoRA)
    """Shape of the adapter."""
    learning_rate: float = 1e-3
    """Learning rate of AdamW, constant; its moments go on from one training to the next."""
    epochs: int = 1
    """Times that a training goes over its examples."""
    batch_size: int = 32
    """Steps behind one update; of GRPO, all steps of a group are."""
    clip: float = 0.2
    """GRPO's epsilon: bound on the ratio of probabilities, which matters from the second epoch on."""
    max_pass_tokens: int = 8192
    """Tokens of a pass at most, padding included. It changes memory and speed, not the result."""


@dataclass(frozen=True)
class PlayedStep:
    """A decision to learn from: what the policy read, and the action that it took."""

    messages: Sequence[Any]
    """The policy's own prompt, as LangChain messages."""
    action: str


@dataclass(frozen=True)
class PlayedAttempt:
    """The decisions of an attempt, and what it earned."""

    steps: Sequence[PlayedStep]
    value: float | None
    """The return, by the rewards that the method sees; None: one is missing."""


@dataclass(frozen=True)
class TrainingReport:
    """The result of a training, and its costs."""

    version: str
    """The version that is played with from now on: a new one, or if nothing was learned the one before."""
    why: str = ""
    """The reason why nothing was learned; empty if something was."""
    attempts: int = 0
    """Attempts that were learned from."""
    examples: int = 0
    """Steps that were learned from."""
    left_out: int = 0
    """Steps that do not fit the model's window, and attempts without a return."""
    updates: int = 0
    """Updates of the weights."""
    tokens: int = 0
    """Tokens of all training passes, without padding: an example counts once for each epoch."""
    seconds: float = 0.0
    """Wall time."""
    flops: float = 0.0
    """Floating-point operations of all passes, forward and backward."""
    loss: float | None = None
    """The trainer's loss, mean over the updates."""


def version_label(episode: int) -> str:
    """The label of the version that is trained after an episode: `after-0007`."""
    return f"after-{episode:04d}"


class TrainingLog:
    """The attempts of runs and the trainings between them, in the order in which they were made.

    Args:
        rows: where they are kept; in memory if not given.
    """

    def __init__(self, rows: Rows | None = None) -> None:
        self._rows = Rows() if rows is None else rows

    @property
    def is_durable(self) -> bool:
        """True if it is written to a disk."""
        return self._rows.path is not None

    def add_attempt(
        self, run: str, episode: int, task: Task, head: str, value: float | None, steps: int, practice: bool = False
    ) -> None:
        """Add a finished attempt. One that is there already is not added again.

        Args:
            run: name of the run.
            episode: number of the run's episode.
            task: its task; a run that practises on other tasks has several attempts in an episode.
            head: id of its last step in the journal.
            value: the return that the method sees; None: a reward is missing.
            steps: steps taken.
            practice: whether it is not the run's own task.
        """
        place = {"id": f"attempt/{run}/{episode}/{task.id}", "run": run, "episode": episode}
        told = {"task": task.id, "instruction": task.instruction, "seed": task.seed}
        self._rows.append(
            {**place, "kind": "attempt", **told, "head": head, "value": value, "steps": steps, "practice": practice}
        )

    def attempts(self, run: str, until: int, since: int = 0) -> list[Mapping[str, Any]]:
        """The rows of a run's attempts in the episodes from `since` to `until`, both included, oldest first."""
        found = [row for row in self._rows.values() if row["kind"] == "attempt" and row["run"] == run]
        return sorted((row for row in found if since <= row["episode"] <= until), key=lambda row: int(row["episode"]))

    def add_training(self, run: str, episode: int, report: TrainingReport) -> None:
        """Add the training after an episode; it is on the disk when this returns."""
        place = {"id": f"training/{run}/{episode}", "run": run, "episode": episode, "kind": "training"}
        self._rows.append({**place, **asdict(report)})
        self._rows.sync()

    def training(self, run: str, episode: int) -> Mapping[str, Any] | None:
        """The row of the training after an episode, if there is one."""
        return self._rows.get(f"training/{run}/{episode}")

    def version(self, run: str, episode: int) -> str:
        """The version that an episode is played with: that of the last training before it; empty for the base model."""
        before = [row for row in self._rows.values() if row["kind"] == "training" and row["run"] == run]
        before = [row for row in before if row["episode"] < episode]
        return str(max(before, key=lambda row: int(row["episode"]))["version"]) if before else ""
