"""CLaaS's learner in a process of its own, at the lowest priority, so that serving keeps its speed.

    learner = WorkerLearner("pocket", folder, write, LoRA(rank=16), Objective(), hindsight=template)
    update = learner.step(batch, learner.correct(batch))
    learner.close()

The process reads versions from their folders, and writes the next one into a folder that it is given; labels stay here. A worker that
dies therefore loses nothing: another one is started, and does the same again. The process ends with its parent, however that ends.
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
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...memory.claas.settings import LoRA, Objective
from ...memory.errors import UserError
from ...memory.records import Correction, Exchange, Measured, Minibatch, Update
from ..local.model import LocalChatModel
from ..models.models import open_model
from .calls import decode_error, encode_error, scratch_folder
from .learner import LoRATrainer, make_deterministic

__all__ = ["WorkerDied", "WorkerLearner"]

log = logging.getLogger(__name__)

MAX_TRIES = 2
"""Attempts at one call, if the worker dies during it."""
START_SECONDS = 300.0
"""Seconds in which a worker must load its model."""


class WorkerDied(OSError):
    """The learner's process ended more than once, or was closed. An OSError: the machine or its memory failed, not the minibatch."""


class WorkerLearner:
    """An `InProcessLearner` in another process.

    Errors are raised here as they were raised there. Calls run one at a time; several threads wait for each other.

    Args:
        model: name of the base model, as `open_model` takes it.
        folder: label -> its folder.
        write: (minibatch, finished folder, the step's statistics) -> label.
        lora: see `LoRATrainer`.
        objective: see `LoRATrainer`.
        hindsight: see `LoRATrainer`.
        measure_kl: see `LoRATrainer`.
        scratch: where folders are made; best on the versions' file system.
        threads: threads of the worker.
        device: of the model.
        dtype: of the model.
        nice: the worker's priority, from 0 to 19, the lowest.
        thinking: of the model: prompts must be those that the engine serves.
    """

    def __init__(
        self,
        model: str,
        folder: Callable[[str], Path],
        write: Callable[[Minibatch, Path, dict[str, Any]], str],
        lora: LoRA,
        objective: Objective,
        hindsight: str = "$feedback",
        *,
        measure_kl: bool = True,
        scratch: Path | None = None,
        threads: int = 1,
        device: str = "cpu",
        dtype: str = "float32",
        nice: int = 19,
        thinking: bool | None = None,
    ) -> None:
        self._folder, self._write, self._scratch = folder, write, scratch
        opening = {"spec": model, "threads": threads, "device": device, "dtype": dtype, "thinking": thinking}
        self._settings = (opening, lora, objective, hindsight, measure_kl, nice)
        self._lock, self._is_closed = threading.Lock(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._errors: Any = None
        self.restarts = 0
        """Number of workers that died and were replaced."""
        self.base: str = self._call("base")
        """Fingerprint of the base model."""

    @property
    def process_id(self) -> int | None:
        """Id of the worker's process; None: it is not running."""
        return self._process.pid if self._process is not None else None

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

    def close(self) -> None:
        """End the worker at once. A call that is under way raises `WorkerDied`."""
        self._is_closed.set()
        if (process := self._process) is not None:
            process.kill()
            process.wait()
        with self._lock:
            self._discard_worker()

    def _version_folder(self, label: str) -> Path | None:
        return self._folder(label) if label else None

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the worker; if it dies, start another one and try again, up to `MAX_TRIES` times.

        Raises:
            WorkerDied: every attempt ended so, or the learner is closed.
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
        opening, *_, nice = self._settings
        code = f"from learngraph.tools.training.learner_worker import work; work({there.fileno()}, {os.getpid()}, {nice})"
        environment = {**os.environ, "OMP_NUM_THREADS": str(opening["threads"]), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
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
        pipe = self._pipe = Connection(here.detach())
        pipe.send(self._settings)
        if not pipe.poll(START_SECONDS):
            raise EOFError(f"no answer within {START_SECONDS:g} s")
        kind, answer = pipe.recv()
        if kind != "done":
            self._discard_worker()
            raise decode_error(kind, answer)
        return pipe

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
        trainer = _open_trainer(*calls.get()[:-1])
    except Exception as error:
        pipe.send(encode_error(error))
        return
    with contextlib.suppress(OSError):  # only now: at low priority, loading the model could take long on a busy machine
        for thread in Path("/proc/self/task").iterdir() if Path("/proc/self/task").exists() else ():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    pipe.send(("done", None))
    while True:
        name, arguments = calls.get()
        try:
            answer = ("done", trainer.base if name == "base" else getattr(trainer, name)(*arguments))
        except Exception as error:
            answer = encode_error(error)
        pipe.send(answer)


def _open_trainer(opening: dict[str, Any], lora: LoRA, objective: Objective, hindsight: str, measure_kl: bool) -> LoRATrainer:
    import torch

    torch.set_num_threads(opening["threads"])
    make_deterministic(opening["device"])
    model = open_model(**opening)
    if not isinstance(model, LocalChatModel):
        raise UserError(f"model {opening['spec']!r} cannot be trained here; use 'pocket' or 'local:PATH'")
    return LoRATrainer(model, lora, objective, hindsight, measure_kl)
