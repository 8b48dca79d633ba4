"""Worker processes that check answers and can be ended, so that a formula without end blocks nothing else.

Verifiers of mathematics evaluate what a model wrote, which may take for ever, or all memory. Threads cannot be ended, and signals
(math-verify's own way) work in the main thread only: in any other thread it raises, and a caller that reads this as "wrong"
scores every answer 0. So each check goes to one of a few worker processes (`answer_worker.py`), which the kernel ends when its
computing time is used up; the next check starts another process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["Workers"]

_SCRIPT = Path(__file__).with_name("answer_worker.py")
_START = 180.0
"""Seconds that a worker may take to import its packages; one or two on an idle machine."""
_WALL = 12.0
"""Longest wall time of a job as a multiple of its computing time: on a busy machine it waits for its turn."""
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


class Unverified(Exception):
    """An answer could not be verified: the verifier raised, took too long, or does not run.

    Args:
        reason: the reason in words.
        transient: True if another try may succeed: no process could be started, or it was ended from outside.
    """

    def __init__(self, reason: str, transient: bool = False) -> None:
        super().__init__(reason)
        self.is_transient = transient


class Workers:
    """A pool of processes that check answers. Many threads may ask at once; processes start when they are needed.

    Args:
        max_workers: highest number of processes; None: the number of processors, up to 4.
        seconds: longest computing time of a job.
    """

    def __init__(self, max_workers: int | None = None, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self._turn = threading.BoundedSemaphore(max_workers or min(4, os.cpu_count() or 1))
        self._lock = threading.Lock()
        self._free: list[_Worker] = []
        self._process = os.getpid()
        self._answers = lru_cache(maxsize=65536)(self._answer)
        weakref.finalize(self, _end, self._free)

    def ask(self, what: str, **job: Any) -> Any:
        """Send one job to a worker and return its result; blocks until it is done.

        Raises:
            Unverified: the job raised or took too long, or no process could be started.
        """
        with self._turn:
            for again in (True, False):
                worker = self._take()
                try:
                    reply = worker.ask({"what": what, **job}, self.seconds)
                    break
                except BaseException as cause:
                    worker.end()
                    if not (again and isinstance(cause, Unverified) and cause.is_transient):
                        raise
            with self._lock:
                self._free.append(worker)
        if "error" in reply:
            raise Unverified(reply["error"])
        return reply["value"]

    def answer(self, what: str, **job: Any) -> tuple[Any, str]:
        """The result of a job and no reason, or None and the reason. It is remembered: the same job is done once.

        Raises:
            Unverified: no process could do it, and another try may succeed.
        """
        return self._answers(what, json.dumps(job))

    def _answer(self, what: str, job: str) -> tuple[Any, str]:
        try:
            return self.ask(what, **json.loads(job)), ""
        except Unverified as cause:
            if cause.is_transient:
                raise
            return None, str(cause)

    def close(self) -> None:
        """End the idle processes. The next `ask` starts new ones."""
        with self._lock:
            _end(self._free)

    def _take(self) -> _Worker:
        with self._lock:
            if self._process != os.getpid():  # after a fork they are the parent's
                self._free.clear()
                self._process = os.getpid()
            while self._free:
                worker = self._free.pop()
                if worker.process.poll() is None:
                    return worker
                worker.end()
        return _Worker()


class _Worker:
    """One process, which does one job at a time."""

    def __init__(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not any(word in key.upper() for word in _SECRET)}
        environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                encoding="utf-8",
            )
        except OSError as cause:
            raise Unverified(f"no process for the verifier could be started: {cause}", True) from cause
        try:
            ready = self._read(_START)
        except BaseException:
            self.end()
            raise
        if "error" in ready:
            self.end()
            raise Unverified(f"the verifier does not start: {ready['error']}", True)

    def ask(self, job: dict[str, Any], limit: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({**job, "limit": limit}) + "\n")
            self.process.stdin.flush()
        except OSError as cause:
            raise Unverified(f"the verifier's process is gone: {cause}", True) from cause
        return self._read(limit * _WALL, limit)

    def _read(self, wall: float, limit: float = 0.0) -> dict[str, Any]:
        """The next reply; the process is killed if none arrives within `wall` seconds."""
        assert self.process.stdout is not None
        late = threading.Event()

        def kill() -> None:
            late.set()
            self.process.kill()

        clock = threading.Timer(wall, kill)
        clock.daemon = True
        clock.start()
        try:
            line = self.process.stdout.readline()
        finally:
            clock.cancel()
            clock.join()  # so that it cannot hit a later job
        if line.endswith("\n") and not late.is_set():
            reply: dict[str, Any] = json.loads(line)
            return reply
        code = self.process.wait()
        if late.is_set():
            raise Unverified(f"no reply within {wall:g} s", True)
        if code == -getattr(signal, "SIGPROF", 0):
            raise Unverified(f"not done after {limit:g} s of computing")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise Unverified(f"the verifier's process ended ({how})", code in (-9, -15))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent cannot be flushed
                    pipe.close()


def _end(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()
