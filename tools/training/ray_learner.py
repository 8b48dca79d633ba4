"""CLaaS's learner as an actor of a Ray cluster: on a GPU of another machine, or on one of this machine's cores.

    trainer = RayTrainer(LearnerModel("local:Qwen/Qwen3-8B", device="cuda", dtype="bfloat16"), LearnerSettings(), "ray://head:10001")
    update, statistics = trainer.step(folder, batch, trainer.correct(folder, batch), out)

It has the calls of a `LoRATrainer`; `WorkerLearner` runs it in a process of its own, for a driver of Ray ends with its cluster. The files
of a version travel as bytes through Ray's object store, and stay where the service keeps them: the actor has copies only. An actor
that is killed is started again by Ray, on whatever node has room, and does the same call again: the same parent, minibatch and seed
give the same version, and whoever asked adopts it once.

Every node needs this package, with the extras `[ray,train]` and the model's weights; `ray start --head` begins a cluster.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.records import Correction, Exchange, Measured, Minibatch, Update
from ...memory.telemetry import span, take_over_trace, traceparent
from .calls import Answer, ClusterLost, LearnerModel, LearnerSettings, answer_of, result_of, scratch_folder
from .ray_cluster import connect

if TYPE_CHECKING:
    from .learner import LoRATrainer

__all__ = ["RayTrainer"]

MAX_RETRIES = 2
"""Times that Ray makes a call again whose actor died."""
MAX_COPIES = 4
"""Versions whose files stay in the object store, and with the actor."""
Files = Mapping[str, bytes]


class RayTrainer:
    """A `LoRATrainer` on a Ray cluster. Errors are raised here as they were raised there.

    Args:
        model: the base model. On another device than `cpu` it takes one GPU; it takes as many cores as it has threads.
        settings: see `LoRATrainer`.
        address: `ray` (a cluster started here, or that of $RAY_ADDRESS) or `ray://HOST:PORT`.

    Raises:
        UserError: Ray is not installed, no cluster answers, or the model cannot be trained.
    """

    def __init__(self, model: LearnerModel, settings: LearnerSettings, address: str) -> None:
        self._ray = connect(f"--learner {address}", address, model.threads)
        actor = self._ray.remote(
            num_cpus=model.threads, num_gpus=int(model.device != "cpu"), max_restarts=-1, max_task_retries=MAX_RETRIES
        )(_LearnerActor)
        self._actor = actor.remote(model, settings)
        self._stored: OrderedDict[Path, Any] = OrderedDict()
        self.base: str = self._call("base", None)
        """Fingerprint of the base model."""

    def correct(self, folder: Path | None, batch: Minibatch) -> Correction:
        """See `LoRATrainer.correct`."""
        found: Correction = self._call("correct", folder, batch)
        return found

    def step(self, folder: Path | None, batch: Minibatch, correction: Correction, out: Path) -> tuple[Update, dict[str, Any]]:
        """See `LoRATrainer.step`."""
        update, statistics, files = self._call("step", folder, batch, correction)
        _write_files(files, out)
        return update, statistics

    def measure(self, folder: Path | None, exchanges: Sequence[Exchange], with_kl: bool = True) -> Measured:
        """See `LoRATrainer.measure`."""
        found: Measured = self._call("measure", folder, tuple(exchanges), with_kl)
        return found

    def _call(self, name: str, folder: Path | None, *arguments: Any) -> Any:
        """The actor's answer.

        Raises:
            ClusterLost: the actor died again and again, or the cluster is gone.
        """
        try:
            files = None if folder is None else self._stored_files(folder)
            answer = self._ray.get(self._actor.call.remote(name, str(folder), files, traceparent(), *arguments))
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise ClusterLost(f"the learner on Ray is gone: {type(error).__name__}") from error
        return result_of(answer)

    def _stored_files(self, folder: Path) -> Any:
        """A version's files in the object store. A labelled version never changes."""
        if folder not in self._stored:
            self._stored[folder] = self._ray.put(_read_files(folder))
            if len(self._stored) > MAX_COPIES:
                self._stored.popitem(last=False)
        return self._stored[folder]


def _read_files(folder: Path) -> Files:
    """The files of a version."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _write_files(files: Files, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


class _LearnerActor:
    """Takes the steps, on a node of the cluster. It keeps nothing that is not elsewhere."""

    def __init__(self, model: LearnerModel, settings: LearnerSettings) -> None:
        self._options = (model, settings)
        self._folder = tempfile.TemporaryDirectory(prefix="learngraph-learner-")
        self._copies: dict[str, Path] = {}

    def call(self, name: str, place: str, files: Files | None, trace: str, *arguments: Any) -> Answer:
        """Call the trainer, with a version's files in place of its folder; a step answers with those of the new version, too.

        `trace` is the caller's trace context.

        An error of Ray itself means that the actor or its node died: all others are in the answer.
        """

        def work() -> Any:
            if name == "base":
                return self._trainer.base
            folder = None if files is None else self._version_folder(place, files)
            with span(f"learner.{name}"):
                if name != "step":
                    return getattr(self._trainer, name)(folder, *arguments)
                batch, correction = arguments
                with scratch_folder(Path(self._folder.name)) as out:
                    return *self._trainer.step(folder, batch, correction, out), _read_files(out)

        take_over_trace(trace)
        return answer_of(work)

    @cached_property
    def _trainer(self) -> LoRATrainer:
        from .learner import open_trainer

        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same step gives the same bytes
        return open_trainer(*self._options)

    def _version_folder(self, place: str, files: Files) -> Path:
        """The folder with a version's files here; the last few stay."""
        if place not in self._copies:
            folder = Path(self._folder.name) / Path(place).name
            folder.mkdir(exist_ok=True)
            _write_files(files, folder)
            self._copies[place] = folder
            if len(self._copies) > MAX_COPIES:
                shutil.rmtree(self._copies.pop(next(iter(self._copies))), ignore_errors=True)
        return self._copies[place]
