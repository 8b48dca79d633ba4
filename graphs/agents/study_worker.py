"""The thread that studies conversations behind the users' backs, and the pause of a model that fails again and again."""

import logging
import threading
import time
from collections.abc import Callable

__all__ = ["StudyWorker"]

LOG = logging.getLogger(__name__)
PAUSE = 1.0
"""Seconds from the first request to the study: what comes in between is studied with it."""
FIRST_PAUSE = 60.0
"""Seconds after the second failure in a row; they double with each further one, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = 3600.0
Scope = tuple[str, ...]


class BackOff:
    """The time from which a model is asked again, by its failures in a row."""

    def __init__(self) -> None:
        self.resume_at = 0.0
        """By the monotonic clock."""
        self._failures = 0

    @property
    def seconds_left(self) -> float:
        """Seconds for which the model is still left alone."""
        return max(0.0, self.resume_at - time.monotonic())

    def note_failure(self) -> None:
        """Note that it has failed."""
        self._failures += 1
        if self._failures > 1:
            self.resume_at = time.monotonic() + min(FIRST_PAUSE * 2.0 ** (self._failures - 2), LONGEST_PAUSE)

    def note_answer(self) -> None:
        """Note that it has answered: it is asked again at once."""
        self._failures, self.resume_at = 0, 0.0


class StudyWorker:
    """Studies scopes in a thread, which begins with the first request and ends when nothing is left.

    It does not keep a process from ending: what it had no time for waits in the store, for the next process or for `learn`.

    Args:
        study: studies a scope. Its errors are logged.
    """

    def __init__(self, study: Callable[[Scope], None]) -> None:
        self._study = study
        self._due: dict[Scope, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    @property
    def is_ending(self) -> bool:
        """True in the worker's own thread from `close` on: the study under way is to be its last."""
        return self._ended and threading.current_thread() is self._thread

    def ask(self, scope: Scope) -> None:
        """Have a scope studied soon; returns at once."""
        with self._changed:
            if self._ended:
                return
            self._due.setdefault(scope, time.monotonic() + PAUSE)
            if self._thread is None or not self._thread.is_alive():  # a fork has no threads
                self._thread = threading.Thread(target=self._run, name="learngraph-critic", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Drop what is due, and wait for the study that is going on."""
        with self._changed:
            self._ended = True
            self._due.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                scope, due = min(self._due.items(), key=lambda one: one[1])
                if (left := due - time.monotonic()) > 0:
                    self._changed.wait(left)
                    continue
                del self._due[scope]
            try:
                self._study(scope)
            except Exception as error:
                LOG.warning("conversations of %s wait to be studied: %s", "/".join(scope), error)
