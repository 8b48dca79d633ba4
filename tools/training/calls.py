"""The parts that all learners share, wherever they work: settings, versions by label, and errors as messages. Loads no torch."""

import os
import shutil
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...memory.claas.settings import LoRA, Objective
from ...memory.errors import UserError, machine_error
from ...memory.records import Correction, Exchange, Measured, Minibatch, Update
from ...memory.telemetry import span, take_over_trace

__all__ = ["ClusterLost", "LabelledLearner", "LearnerModel", "LearnerSettings", "VersionError"]


class VersionError(UserError, ValueError):
    """A version's folder that this learner cannot go on from."""


class ClusterLost(OSError):
    """The cluster of a learner is gone; the connection to it cannot be used any more."""


@dataclass(frozen=True)
class LearnerSettings:
    """The settings of a `LoRATrainer`, apart from its model."""

    lora: LoRA = field(default_factory=LoRA)
    """Rank, alpha and targets of the adapters."""
    objective: Objective = field(default_factory=Objective)
    """Loss, correction, teacher and optimizer."""
    hindsight: str = "$feedback"
    """Template of the teacher's prompt (tools/training/examples.py, `hindsight_block`)."""


@dataclass(frozen=True)
class LearnerModel:
    """The base model of a learner in another process, as `open_model` takes it."""

    spec: str
    threads: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    thinking: bool | None = None
    """True where the engine's model thinks: prompts must be those that it serves."""


class LabelledLearner(ABC):
    """A learner by labels of versions: it finds their folders, and has each new version adopted. Calls run one at a time.

    Args:
        folder: label -> its folder, as `Adapters.folder` gives it.
        write: (minibatch, finished folder, the step's statistics) -> label, as `Adapters.write` adopts it.
        scratch: where folders are made; best on the versions' file system. Default: the system's.
    """

    base: str
    """Fingerprint of the base model."""

    def __init__(
        self,
        folder: Callable[[str], Path],
        write: Callable[[Minibatch, Path, dict[str, Any]], str],
        scratch: Path | None = None,
    ) -> None:
        self._folder, self._write, self._scratch = folder, write, scratch

    @abstractmethod
    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the `LoRATrainer`."""

    def correct(self, batch: Minibatch) -> Correction:
        """See `LoRATrainer.correct`."""
        found: Correction = self._call("correct", self._version_folder(batch.parent), batch)
        return found

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """See `LoRATrainer.step`; the version is adopted when this returns, and `Update.version` is its label."""
        with scratch_folder(self._scratch) as out:
            update: Update
            update, statistics = self._call("step", self._version_folder(batch.parent), batch, correction, out)
            return update if update.skipped else replace(update, version=self._write(batch, out, statistics))

    def measure(self, label: str, exchanges: Sequence[Exchange], with_kl: bool = True) -> Measured:
        """See `LoRATrainer.measure`; the empty label is the base model."""
        found: Measured = self._call("measure", self._version_folder(label), tuple(exchanges), with_kl)
        return found

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """End a process of the learner's own, if it has one."""

    def _version_folder(self, label: str) -> Path | None:
        return self._folder(label) if label else None


Answer = tuple[str, Any]
"""`done` with a result, or `failed` with an error and the failure of the machine behind it."""


def answer_of(work: Callable[[], Any]) -> Answer:
    """The result of some work as a message to another process. An error that is no `UserError` and not the machine's is a bug."""
    try:
        return "done", work()
    except ClusterLost:
        raise
    except Exception as error:
        failure = machine_error(error)
        if isinstance(error, UserError):
            return "failed", (error, failure)
        bug = RuntimeError(f"the learner's process failed; this is a bug:\n{traceback.format_exc()}")
        return "failed", (failure or bug, None)


def call_trainer(trainer: Any, name: str, arguments: Sequence[Any], trace: str) -> Answer:
    """The answer of a call of a trainer, as a part of the caller's trace (memory/telemetry.py)."""
    take_over_trace(trace)

    def work() -> Any:
        with span(f"learner.{name}"):
            return getattr(trainer, name)(*arguments)

    return answer_of(work)


def result_of(answer: Answer) -> Any:
    """The result in a message of `answer_of`, or its error, raised as it was raised there."""
    kind, content = answer
    if kind == "done":
        return content
    error, failure = content
    raise error from failure  # keeps an error of the machine recognisable


@contextmanager
def scratch_folder(scratch: Path | None) -> Iterator[Path]:
    """A folder for a new version, removed afterwards unless it was moved away."""
    try:
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        out = Path(tempfile.mkdtemp(prefix="version-", dir=scratch))
    except OSError as error:
        raise UserError(f"cannot make a folder for the new version: {error}") from error
    try:
        yield out
    finally:
        shutil.rmtree(out, ignore_errors=True)


def publish_folder(folder: Path, place: Path) -> None:
    """Rename a finished folder to its place. A power cut must not leave a folder of empty files there."""
    for path in filter(Path.is_file, folder.rglob("*")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    folder.replace(place)
