"""The parts that all learners share, wherever they work: settings, versions by label, and errors as messages. Loads no torch."""

from __future__ import annotations

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
from ...memory.errors import UserError, WindowError, machine_error
from ...memory.records import Correction, Exchange, Measured, Minibatch, Update

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
    measure_kl: bool = True
    """Measure KL(pi || base) of each new version on its minibatch, by two more passes without a gradient."""


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
        found: Correction = self._call("correct", batch, self._version_folder(batch.parent))
        return found

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """See `LoRATrainer.step`; the version is adopted when this returns, and `Update.version` is its label."""
        with scratch_folder(self._scratch) as out:
            update: Update
            update, statistics = self._call("step", batch, correction, self._version_folder(batch.parent), out)
            return update if update.skipped else replace(update, version=self._write(batch, out, statistics))

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """See `LoRATrainer.measure`; the empty label is the base model."""
        found: Measured = self._call("measure", label, self._version_folder(label), tuple(exchanges))
        return found

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """End a process of the learner's own, if it has one."""

    def _version_folder(self, label: str) -> Path | None:
        return self._folder(label) if label else None


def decode_error(kind: str, answer: Any) -> Exception:
    """The error of a message of `encode_error`."""
    if kind == "failed":
        return RuntimeError(f"the learner's process failed; this is a bug:\n{answer}")
    name, text, tokens, number = answer
    if name == "OSError":
        return OSError(number, text)
    error: UserError
    if name == "WindowError":
        error = WindowError(text, tokens)
    elif name == "VersionError":
        error = VersionError(text)
    else:
        error = UserError(text)
    if number is not None:  # keeps an error of the machine recognisable
        error.__cause__ = OSError(number, os.strerror(number))
    return error


def encode_error(error: Exception) -> tuple[str, Any]:
    """An error as a message: its class's name, text, tokens and the number of an OSError in its causes."""
    failure = machine_error(error)
    number = None if failure is None else failure.errno or 0
    if isinstance(error, UserError):
        return "raised", (type(error).__name__, str(error), getattr(error, "tokens", 0), number)
    if failure is not None:
        return "raised", ("OSError", failure.strerror or str(error), 0, number)
    return "failed", traceback.format_exc()


@contextmanager
def scratch_folder(scratch: Path | None) -> Iterator[Path]:
    """A folder for a new version, removed afterwards unless it was moved away.

    Raises:
        UserError: it cannot be made.
    """
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
