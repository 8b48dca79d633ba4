"""Processes of a local Ray cluster that are killed."""

import os
import signal
from pathlib import Path
from typing import Any

from learngraph.memory.records import Minibatch
from learngraph.tools.training import ray_learner
from learngraph.tools.training.learner_worker import WorkerLearner


def ray_processes(above: int, name: str) -> list[int]:
    """Ids of the processes below a process that work on an actor or a task of this name."""
    parents: dict[int, int] = {}
    titles: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            titles[int(place.name)] = (place / "cmdline").read_text()
        except OSError:
            continue

    def descends(process: int) -> bool:
        while process not in (0, above):
            process = parents.get(process, 0)
        return process == above

    return [process for process, title in titles.items() if title.startswith(f"ray::{name}") and descends(process)]


def die_in_a_step(learner: WorkerLearner, mark: Path) -> None:
    """Have the learner's actor end by SIGKILL in its next step: all is computed, and nothing is answered yet.

    A kill from outside that waits to see the step under way may come too late, as a step takes milliseconds.

    Args:
        mark: a file that is made when the actor dies.
    """
    call = learner._call

    def call_once(name: str, *arguments: Any) -> Any:
        if name != "step":
            return call(name, *arguments)
        learner._call = call  # type: ignore[method-assign]
        place, batch, *rest = arguments
        return call(name, place, DeadlyBatch(batch, mark), *rest)

    learner._call = call_once  # type: ignore[method-assign]


class DeadlyBatch:
    """A minibatch on its way to an actor, which dies of it once."""

    def __init__(self, batch: Minibatch, mark: Path) -> None:
        self.batch, self.mark = batch, mark

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self.batch, self.mark)


def _unpack(batch: Minibatch, mark: Path) -> DeadlyBatch | Minibatch:
    """The minibatch, in the actor; on the way there, what stands for it."""
    if not Path("/proc/self/cmdline").read_text().startswith("ray::_LearnerActor"):
        return DeadlyBatch(batch, mark)

    def die(_: Path) -> Any:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    if not mark.exists():
        ray_learner._read_files = die  # it reads the new version's files, for its answer
    return batch
