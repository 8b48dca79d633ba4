"""The writes of this process to a store, in their order, behind the backs of the users from whose turns they come.

    queue = queue_of(store)            one for all learners of a store
    queue.write(job)                   a hook of an agent: back when it is written, or at once where the store is slow
    queue.wait()                       before anybody reads what was written

As long as the store writes within `WRITE_PATIENCE`, a hook waits for its write: when the agent has answered, its turn is recorded. Once a
write took longer, no hook waits, until one is done in time again. What waits when the process ends is written then.
"""

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from langgraph.store.base import BaseStore

from ..errors import Unavailable
from ..records import Trajectory
from ..storage.branches import current_branch
from ..storage.outages import RESTART_SECONDS
from .turns import Conversation, Turn, with_turn

__all__ = ["SharedTurns", "WriteQueue", "queue_of"]

STORE_PATIENCE = 2.0
"""Seconds that a call waits for a slow store to say what is new."""
WRITE_PATIENCE = 0.5
"""Seconds that it waits for one to write."""
MOST_WAITING = 1_000
"""Writes that wait for a store; further ones fail, as if it were away."""
MOST_CHANGED = 256
"""Rated stretches of a store that are held in memory."""
MOST_OPEN = 1_000
"""Conversations of a store that are held in memory: those whose turn goes on, and those that have ended last."""
UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "UNKNOWN"})()
"""The conversation in a store that was not read."""
Place = tuple[tuple[str, ...], str]


@dataclass(frozen=True)
class _OpenThread:
    """A thread whose turn goes on."""

    stored: Any = UNKNOWN
    """Its conversation as the store has it; None: it has none."""
    now: Conversation | None = None
    """The same with what is still to be written."""
    ahead: int = 0
    """Number of turns' records that are still to be written."""
    ended: str = ""
    """Id of its last turn, where that has ended."""


class SharedTurns:
    """Memory that the learners of a store share in this process: the conversations whose turn goes on, and the rated stretches that were
    changed last, so that no learner reads what another one has written. Safe to use from threads."""

    def __init__(self) -> None:
        self.id = uuid4().hex[:12]
        self._threads = OrderedDict[Place, _OpenThread]()
        self._changed = OrderedDict[Place, Trajectory]()
        self._lock = threading.Lock()
        self._locks = WeakValueDictionary[tuple[str, ...], Any]()

    def lock_of(self, scope: tuple[str, ...]) -> Any:
        """The lock that whoever changes conversations of a scope holds."""
        with self._lock:
            return self._locks.setdefault(scope, threading.Lock())

    def add_changed(self, scope: tuple[str, ...], made: Iterable[Trajectory]) -> None:
        """Keep trajectories of a scope that were written."""
        with self._lock:
            self._changed |= {(scope, one.id): one for one in made}
            while len(self._changed) > MOST_CHANGED:
                self._changed.popitem(last=False)

    def find_changed(self, scope: tuple[str, ...], ids: Iterable[str]) -> dict[str, Trajectory]:
        """The trajectories with these ids that were kept."""
        with self._lock:
            return {id: self._changed[scope, id] for id in ids if (scope, id) in self._changed}

    def drop_changed(self, scope: tuple[str, ...], ids: Iterable[str]) -> None:
        """Keep trajectories no more that were deleted."""
        with self._lock:
            for id in ids:
                self._changed.pop((scope, id), None)

    def get(self, place: Place) -> _OpenThread | None:
        """A thread as it is held; None: it is not."""
        with self._lock:
            return self._threads.get(place)

    def begin(self, place: Place, was: _OpenThread | None, stored: Conversation | None) -> None:
        """Hold a thread as the store has it, unless something was recorded of it since `was` was held."""
        with self._lock:
            if self._threads.get(place) is was:
                self._hold(place, _OpenThread(stored, stored))

    def note(self, place: Place, turn: Turn, begun: Conversation) -> None:
        """Take note of a turn that is to be written; `begun`: the conversation where nothing is held of it."""
        with self._lock:
            known = self._threads.get(place, _OpenThread())
            if known.ended not in ("", turn.id):  # others may have written into the thread since then
                known = replace(known, stored=UNKNOWN, ended="")
            now = with_turn(known.now or begun, turn)
            self._hold(place, replace(known, now=now, ahead=known.ahead + 1))

    def take(self, place: Place, count: int) -> Any:
        """The conversation that the store has, of which so many records are written next: it is not known any more until then."""
        with self._lock:
            known = self._threads.get(place, _OpenThread())
            self._hold(place, replace(known, stored=UNKNOWN, ahead=max(0, known.ahead - count)))
            return known.stored

    def keep(self, place: Place, stored: Conversation, ended: str) -> None:
        """Hold what was written; `ended`: id of the turn that has ended with it, if one has."""
        with self._lock:
            known = self._threads.get(place, _OpenThread())
            written = replace(known, stored=stored)
            self._hold(place, written if known.ahead else replace(written, now=stored, ended=ended))

    def drop(self, scope: tuple[str, ...], threads: Collection[str] | None = None) -> None:
        """Hold threads of a scope no more; None: all of them."""
        with self._lock:
            for place in [one for one in self._threads if one[0] == scope and (threads is None or one[1] in threads)]:
                del self._threads[place]

    def _hold(self, place: Place, thread: _OpenThread) -> None:
        self._threads[place] = thread
        self._threads.move_to_end(place)
        if len(self._threads) > MOST_OPEN:
            self._threads.popitem(last=False)


class WriteQueue:
    """The writes of this process to a store, one after the other in a thread, and its reads behind a user's back."""

    def __init__(self) -> None:
        self.process, self.shared = os.getpid(), SharedTurns()
        self._pace = 0.0
        """Seconds that the last write took; infinite: it is waited for in vain."""
        self._pool = ThreadPoolExecutor(1, "learngraph-writes")  # when the process ends, it does what waits
        self._lock, self._waiting, self._writer = threading.Lock(), 0, 0
        self._last = Future[Any]()
        self._last.set_result(None)

    def write(self, job: Callable[[], Any]) -> Future[Any]:
        """Have something written after all that was to be written before; waits for it as long as the store is quick.

        Raises:
            Unavailable: too many writes wait already.
        """
        if current_branch() is not None:  # that is a copy in memory
            done = Future[Any]()
            done.set_result(job())
            return done
        with self._lock:
            if self._waiting >= MOST_WAITING:
                raise Unavailable(f"the store does not answer: {self._waiting:,} writes wait for it")
            self._waiting += 1
            self._last = done = self._pool.submit(copy_context().run, self._do, job)
        self.is_late(done, WRITE_PATIENCE)
        return done

    def read(self, work: Callable[[], Any]) -> Future[Any]:
        """Have something read in a thread of its own, after all that was to be written before."""
        found = Future[Any]()

        def answer() -> None:
            try:
                self.wait()
                found.set_result(work())
            except Exception as error:
                found.set_exception(error)

        threading.Thread(target=copy_context().run, args=(answer,), daemon=True).start()
        return found

    def is_late(self, answer: Future[Any], patience: float) -> bool:
        """Wait for an answer of the store so many seconds, unless it is slower than that; True if there is none by then."""
        if self._pace <= patience and not wait([answer], patience).done:
            self._pace = math.inf
        return not answer.done()

    def wait(self) -> None:
        """Wait until all that was to be written by now is written.

        Raises:
            Unavailable: it is not after a minute.
        """
        if threading.get_ident() != self._writer and not wait([self._last], RESTART_SECONDS).done:
            raise Unavailable(
                f"the store does not answer: {self._waiting:,} writes have waited for {RESTART_SECONDS:g} seconds"
            )

    def _do(self, job: Callable[[], Any]) -> Any:
        self._writer, began = threading.get_ident(), time.monotonic()
        try:
            return job()
        finally:
            self._pace = time.monotonic() - began
            with self._lock:
                self._waiting -= 1


_QUEUES = WeakKeyDictionary[BaseStore, WriteQueue]()
_LOCK = threading.Lock()


def queue_of(store: BaseStore) -> WriteQueue:
    """The queue of a store in this process."""
    with _LOCK:
        if (found := _QUEUES.get(store)) is None or found.process != os.getpid():  # a fork has no threads
            found = _QUEUES[store] = WriteQueue()
        return found
