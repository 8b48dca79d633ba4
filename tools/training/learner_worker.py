"""CLaaS's learner in a process of its own, at the lowest priority, so that serving keeps its speed.

    learner = WorkerLearner(LearnerModel("pocket"), folder, write, LearnerSettings(LoRA(rank=16)))
    update = learner.step(batch, learner.correct(batch))
    learner.close()

The process reads versions from their folders, and writes the next one into a folder that it is given; labels stay here. A worker that
dies therefore loses nothing: another one is started, and does the same again. The process ends with its parent, however that ends.

With a cluster, the process has no model: it hands the work to an actor of Ray (ray_learner.py). What dies there, dies here.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Minibatch
from ...memory.telemetry import traceparent
from .calls import ClusterLost, LabelledLearner, LearnerModel, LearnerSettings, answer_of, call_trainer, result_of

__all__ = ["WorkerDied", "WorkerLearner"]

log = logging.getLogger(__name__)

MAX_TRIES = 2
"""Attempts at one call, if the worker dies during it."""
START_SECONDS = 300.0
"""Seconds in which a worker must load its model."""
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20)}
"""For glibc: a worker keeps what a pass frees, about 512 MiB, for the next pass. (Where each layer's memory goes back to the system, a
pass of `guard` over 1,000 tokens takes 57 ms in place of 33.)"""


class WorkerDied(OSError):
    """The learner's process ended more than once, or was closed. An OSError: the machine or its memory failed, not the minibatch."""


class WorkerLearner(LabelledLearner):
    """An `InProcessLearner` in another process. Errors are raised here as they were raised there; several threads wait for each other.

    Args:
        model: the base model.
        folder: see `LabelledLearner`.
        write: see `LabelledLearner`.
        settings: see `LoRATrainer`.
        scratch: see `LabelledLearner`.
        nice: the worker's priority, from 0 to 19, the lowest.
        cluster: address of the Ray cluster that takes the steps (see `RayTrainer`); None: the process itself.
        base: fingerprint that the base model must have. Then the process starts in the background, which may take a while at low
            priority, and calls wait for it. Empty: whatever it has, once it has started.

    Raises:
        UserError: without `base`, the model cannot be trained.
    """

    def __init__(
        self,
        model: LearnerModel,
        folder: Callable[[str], Path],
        write: Callable[[Minibatch, Path, dict[str, Any]], str],
        settings: LearnerSettings,
        *,
        scratch: Path | None = None,
        nice: int = 19,
        cluster: str | None = None,
        base: str = "",
    ) -> None:
        super().__init__(folder, write, scratch)
        self._settings = (model, settings, cluster, nice)
        self._lock, self._is_closed = threading.Lock(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self.restarts = 0
        """Number of workers that died and were replaced."""
        self.base = base
        """Fingerprint of the base model."""
        if base:
            threading.Thread(target=self._warm_up, name="learner", daemon=True).start()
        else:
            self.base = self._call("base")

    @property
    def process_id(self) -> int | None:
        """Id of the worker's process; None: it is not running."""
        return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """End the worker at once. A call that is under way raises `WorkerDied`."""
        self._is_closed.set()
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._discard_worker()

    def _warm_up(self) -> None:
        try:
            self._call("base")
        except Exception as error:  # the next call tries again, and raises it
            if not self._is_closed.is_set():
                log.error("%s", error)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the worker; if it dies, start another one and try again, up to `MAX_TRIES` times.

        Raises:
            WorkerDied: every attempt ended so, or the learner is closed.
            RuntimeError: it does not start, or has another base model than it must have: not the fault of what it is asked.
        """
        with self._lock:
            for attempt in range(1, MAX_TRIES + 1):
                if self._is_closed.is_set():
                    raise WorkerDied("the learner is closed")
                try:
                    pipe = self._pipe or self._start()
                    if name == "step":  # files of a worker that died half-way
                        for path in arguments[-1].iterdir():
                            path.unlink()
                    pipe.send((name, arguments, traceparent()))
                    answer = pipe.recv()
                except (EOFError, OSError) as error:
                    why = f"{self._discard_worker()} {error}".strip()
                    if self._is_closed.is_set():
                        raise WorkerDied("the learner was closed while it worked") from error
                    log.warning("the learner's process died (%s); attempt %d of %d", why, attempt, MAX_TRIES)
                    self.restarts += 1
                    if attempt == MAX_TRIES:
                        raise WorkerDied(f"the learner's process died {MAX_TRIES} times of the same work: {why}") from error
                else:
                    return result_of(answer)
        raise AssertionError("unreachable")

    def _start(self) -> Connection:
        # A process of multiprocessing would run the user's script once more, where that has no `if __name__ == "__main__"`.
        here, there = Pipe()
        command = [sys.executable, "-c", f"from {__name__} import work; work()", str(there.fileno())]
        places = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *sys.path]))
        env = {**KEEP_MEMORY, **os.environ, "PYTHONPATH": places}
        self._process = subprocess.Popen(command, pass_fds=[there.fileno()], env=env)
        self._pipe = here
        there.close()
        here.send((os.getpid(), *self._settings))
        if self._is_closed.is_set():
            raise EOFError("closed meanwhile")
        if not here.poll(START_SECONDS):
            raise EOFError(f"no answer within {START_SECONDS:g} s")
        answer = here.recv()
        try:
            base = result_of(answer)
            if self.base not in ("", base):
                raise UserError(f"it has base model {base}, the engine {self.base}")
        except Exception as problem:
            self._discard_worker()
            if not self.base:
                raise
            raise RuntimeError(f"the learner cannot be started: {problem}") from problem
        return here

    def _discard_worker(self) -> str:
        """End the worker and close its pipe; returns how it ended, in words."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is None:
            return "was not started"
        process.kill()
        code = process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def work() -> None:
    """The worker: loads the model, says its fingerprint, then answers calls through the pipe with the number in the command, until the
    parent ends."""
    pipe = Connection(int(sys.argv[1]))
    parent, model, settings, cluster, nice = pipe.recv()
    os.setpgrp()  # Ctrl-C goes to the parent, which ends the worker. (Linux with autogroups heeds a priority within a session only.)
    os.environ |= {
        "OMP_NUM_THREADS": str(model.threads),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }  # torch reads them when it loads

    def watch() -> None:
        """End with the parent, also where its other children keep the pipe open."""
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()

    def open_trainer() -> Any:
        from .learner import open_trainer
        from .ray_learner import RayTrainer

        return open_trainer(model, settings) if cluster is None else RayTrainer(model, settings, cluster)

    kind, trainer = answer_of(open_trainer)
    if kind != "done":
        pipe.send((kind, trainer))
        return
    with contextlib.suppress(OSError):  # only now: at low priority, loading the model could take long on a busy machine
        for thread in Path("/proc/self/task").iterdir() if Path("/proc/self/task").exists() else ():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    pipe.send(("done", trainer.base))
    with contextlib.suppress(EOFError, ClusterLost):  # of a lost cluster: the next process connects anew
        while True:
            name, arguments, trace = pipe.recv()
            pipe.send(("done", trainer.base) if name == "base" else call_trainer(trainer, name, arguments, trace))
