"""CLaaS's learner in a process of its own, at the lowest priority, so that serving keeps its speed.

    learner = WorkerLearner(LearnerModel("pocket"), folder, write, LearnerSettings(LoRA(rank=16)))
    update = learner.step(batch, learner.correct(batch))
    learner.close()

The process reads versions from their folders, and writes the next one into a folder that it is given; labels stay here. A worker that
dies therefore loses nothing: another one is started, and does the same again. The process ends with its parent, however that ends.

With a cluster, the process has no model: it hands the work to an actor of Ray (ray_learner.py). What dies there, dies here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Minibatch
from .calls import ClusterLost, LabelledLearner, LearnerModel, LearnerSettings, decode_error, encode_error

__all__ = ["WorkerDied", "WorkerLearner"]

log = logging.getLogger(__name__)

MAX_TRIES = 2
"""Attempts at one call, if the worker dies during it."""
START_SECONDS = 300.0
"""Seconds in which a worker must load its model."""


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
        self._errors: Any = None
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
            process.wait()
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
                    if name == "step":
                        _empty_folder(arguments[-1])  # files of a worker that died half-way
                    pipe.send((name, arguments))
                    kind, answer = pipe.recv()
                except (EOFError, OSError) as error:
                    why = self._discard_worker()
                    if self._is_closed.is_set():
                        raise WorkerDied("the learner was closed while it worked") from error
                    log.warning("the learner's process died (%s); attempt %d of %d", why, attempt, MAX_TRIES)
                    self.restarts += 1
                    if attempt == MAX_TRIES:
                        raise WorkerDied(f"the learner's process died {MAX_TRIES} times of the same work: {why}") from error
                    continue
                if kind == "done":
                    return answer
                raise decode_error(kind, answer)
        raise AssertionError("unreachable")

    def _start(self) -> Connection:
        here, there = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the worker
        model, *_, nice = self._settings
        code = f"from learngraph.tools.training.learner_worker import work; work({there.fileno()}, {os.getpid()}, {nice})"
        environment = {**os.environ, "OMP_NUM_THREADS": str(model.threads), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=(there.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C goes to this process, which ends the worker
        )
        there.close()
        if self._is_closed.is_set():
            raise EOFError("closed meanwhile")
        pipe = self._pipe = Connection(here.detach())
        pipe.send(self._settings)
        if not pipe.poll(START_SECONDS):
            raise EOFError(f"no answer within {START_SECONDS:g} s")
        kind, answer = pipe.recv()
        problem = None if kind == "done" else decode_error(kind, answer)
        if problem is None and self.base not in ("", answer):
            problem = UserError(f"it has base model {answer}, the engine {self.base}")
        if problem is None:
            return pipe
        self._discard_worker()
        if not self.base:
            raise problem
        raise RuntimeError(f"the learner cannot be started: {problem}") from problem

    def _discard_worker(self) -> str:
        """End the worker and close its pipe; returns how it ended, in words."""
        process, pipe, errors = self._process, self._pipe, self._errors
        self._process = self._pipe = self._errors = None
        if pipe is not None:
            pipe.close()
        if process is None:
            return "was not started"
        process.kill()
        code = process.wait()
        said = ""
        if errors is not None:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            said = f", and said {lines[-1]!r}" if lines else ""
            errors.close()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return how + said


def _empty_folder(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


# In the worker


def work(descriptor: int, parent: int, nice: int) -> None:
    """The worker's main function: reads the settings, then answers calls until the parent ends.

    Args:
        descriptor: file descriptor of the pipe.
        parent: the parent's process id.
        nice: priority, from 0 to 19.
    """
    pipe = Connection(descriptor)
    calls: queue.Queue[Any] = queue.Queue()

    def listen() -> None:
        while True:
            try:
                calls.put(pipe.recv())
            except (EOFError, OSError):
                os._exit(0)

    def watch() -> None:
        """End with the parent, also where its other children keep the pipe open."""
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    for loop in (listen, watch):
        threading.Thread(target=loop, daemon=True).start()
    try:
        from .learner import open_trainer  # here, for its torch is of no use in the process that asks
        from .ray_learner import RayTrainer

        model, settings, cluster, _ = calls.get()
        trainer = open_trainer(model, settings) if cluster is None else RayTrainer(model, settings, cluster)
    except Exception as error:
        pipe.send(encode_error(error))
        return
    with contextlib.suppress(OSError):  # only now: at low priority, loading the model could take long on a busy machine
        for thread in Path("/proc/self/task").iterdir() if Path("/proc/self/task").exists() else ():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    pipe.send(("done", trainer.base))
    while True:
        name, arguments = calls.get()
        try:
            answer = ("done", trainer.base if name == "base" else getattr(trainer, name)(*arguments))
        except ClusterLost as error:
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
            os._exit(1)  # the next process connects anew
        except Exception as error:
            answer = encode_error(error)
        pipe.send(answer)
