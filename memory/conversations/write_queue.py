"""The writes of this process to a store, behind the backs of the users from whose turns they come: those of a conversation in their order,
and first those that somebody waits for.

    queue = queue_of(store)            one for all learners of a store
    queue.write(job)                   a hook of an agent: back when it is written, or at once where the store is slow
    queue.wait()                       before anybody reads what was written

As long as the store writes within `WRITE_PATIENCE`, a hook waits for its write: when the agent has answered, its turn is recorded. Once a
write took longer, no hook waits, until one is done in time again. What waits when the process ends is written then.

A write that fails, as of a store that is away, waits for the next one or for the next reader, and all that follows of its conversation
behind it.
"""

import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from langgraph.store.base import BaseStore

from ..errors import Unavailable, UserError
from ..records import Trajectory
from ..storage.branches import current_branch
from ..storage.outages import RESTART_SECONDS
from .turns import Conversation, Turn, with_turn

__all__ = ["SharedTurns", "WriteQueue", "queue_of"]

LOG = logging.getLogger(__name__)

STORE_PATIENCE = 2.0
"""Seconds that a call waits for a slow store to say what is new."""
WRITE_PATIENCE = 0.5
"""Seconds that it waits for one to write."""
MOST_WAITING = 1_000
"""Writes that wait for a store; further ones fail, as if it were away. And most writes that have failed and wait; the oldest are given up."""
MOST_TRIES = 3
"""Times that a write fails while its store takes others before it is given up: what is wrong is the write then."""
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
        self._losses = OrderedDict[Place, str]()
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

    def note_loss(self, place: Place, why: str) -> None:
        """Take note that the last turn of a thread, or the one of a reply, whose id stands for the thread's, was given up."""
        with self._lock:
            self._losses[place] = why
            if len(self._losses) > MOST_OPEN:
                self._losses.popitem(last=False)

    def loss_of(self, place: Place) -> str:
        """Why the last turn of a thread, or the one of a reply, was given up; empty: it was not."""
        return self._losses.get(place, "")

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

    def take(self, place: Place) -> Any:
        """The conversation that the store has, which is written next: it is not known any more until then."""
        with self._lock:
            known = self._threads.get(place, _OpenThread())
            self._hold(place, replace(known, stored=UNKNOWN))
            return known.stored

    def keep(self, place: Place, stored: Conversation, ended: str, count: int) -> None:
        """Hold what was written, so many records; `ended`: id of the turn that has ended with it, if one has."""
        with self._lock:
            self._losses.pop(place, None)
            known = self._threads.get(place, _OpenThread())
            written = replace(known, stored=stored, ahead=max(0, known.ahead - count))
            self._hold(place, written if written.ahead else replace(written, now=stored, ended=ended))

    def skip(self, place: Place, turn: str, count: int) -> bool:
        """True if a later record of the turn waits, in whose place so many need not be written."""
        with self._lock:
            known = self._threads.get(place)
            if known is None or known.now is None or known.ahead <= count or known.now.turns[-1].id != turn or current_branch():
                return False
            self._threads[place] = replace(known, ahead=known.ahead - count)
            return True

    def drop(self, scope: tuple[str, ...], threads: Collection[str] | None = None) -> None:
        """Hold threads of a scope no more; None: all of them."""
        with self._lock:
            for kept in (self._threads, self._losses):
                for place in [one for one in kept if one[0] == scope and (threads is None or one[1] in threads)]:
                    del kept[place]

    def _hold(self, place: Place, thread: _OpenThread) -> None:
        self._threads[place] = thread
        self._threads.move_to_end(place)
        if len(self._threads) > MOST_OPEN:
            self._threads.popitem(last=False)


@dataclass(eq=False)
class _Write:
    """A write of a conversation that is tried again where it fails."""

    place: Place
    job: Callable[[], Any]
    on_failure: Callable[[Exception], object]
    context: Context
    tries: int = 0
    """Times that it has failed while the store took others."""
    is_given_up: bool = False
    """True once it is tried no more."""


class WriteQueue:
    """The writes of this process to a store, one after the other in a thread, and its reads behind a user's back."""

    def __init__(self) -> None:
        self.process, self.shared = os.getpid(), SharedTurns()
        self._pace = 0.0
        """Seconds that the last write took; infinite: it is waited for in vain."""
        self._pool = ThreadPoolExecutor(1, "learngraph-writes")  # when the process ends, it does what waits
        self._lock, self._writer = threading.Lock(), 0
        self._open = dict[Future[Any], tuple[Place | None, Callable[[], Any]]]()
        """What waits, the oldest first, and what is being written."""
        self._urgent = list[Place | None]()
        self._failed = dict[_Write, None]()
        """What has failed, and what is of the same conversations, the oldest first; changed by the thread that writes."""

    def write(self, job: Callable[[], Any], place: Place | None = None) -> Future[Any]:
        """Have something written after all that was to be written before of its conversation; waits for it as long as the store is quick.

        Args:
            job: writes.
            place: the labels of the conversation's scope, and its thread; None: it is of none.

        Raises:
            Unavailable: too many writes wait already.
        """
        if current_branch() is not None:  # that is a copy in memory
            done = Future[Any]()
            done.set_result(job())
            return done
        with self._lock:
            if len(self._open) >= MOST_WAITING:
                raise Unavailable(f"the store does not answer: {len(self._open):,} writes wait for it")
            done = Future[Any]()
            self._open[done] = place, partial(copy_context().run, job)
            self._pool.submit(self._do_next)
        self.is_late(done, WRITE_PATIENCE)
        return done

    def ask(self, place: Place, job: Callable[[], Any]) -> Any:
        """As `write`, of a conversation that somebody waits for, before what waits of others; returns what the job returns.

        Raises:
            Unavailable: it is not done after a minute.
        """
        if threading.get_ident() == self._writer:
            return job()
        with self._hurry(place):
            done = self.write(job, place)
            if not wait([done], RESTART_SECONDS).done:
                raise Unavailable(f"the store does not answer: a write has waited for {RESTART_SECONDS:g} seconds")
        return done.result()

    @contextmanager
    def _hurry(self, place: Place | None) -> Iterator[None]:
        """Meanwhile write what waits of a conversation before all others."""
        self._urgent.append(place)
        try:
            yield
        finally:
            self._urgent.remove(place)

    def write_turn(self, place: Place, job: Callable[[], Any], on_failure: Callable[[Exception], object]) -> bool:
        """As `write`, of a conversation, and again with a later write where the store fails.

        Args:
            place: the labels of its scope, and its thread.
            job: writes; twice is the same as once. False: it wrote nothing, since a later write of the conversation will.
            on_failure: is told why it is given up.

        Returns:
            False if it is known to be given up.
        """
        if current_branch() is not None:
            try:
                job()
            except Exception as error:
                on_failure(error)
                return False
            return True
        write = _Write(place, job, on_failure, copy_context())
        try:
            self.write(partial(self._try_all, place, write), place)
        except Unavailable as error:
            self._give_up(write, error)
        return not write.is_given_up

    def has_failed(self, place: Place) -> bool:
        """True if a write of a conversation waits, since the store has failed."""
        return any(one.place == place for one in list(self._failed))

    def count_failed(self, scope: tuple[str, ...] | None = None) -> int:
        """The number of writes of a scope, or of all, that wait, since the store has failed."""
        return sum(scope in (None, one.place[0]) for one in list(self._failed))

    def failed_scopes(self, prefix: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The scopes whose labels begin so, and of which writes wait, since the store has failed."""
        return list(dict.fromkeys(one.place[0] for one in list(self._failed) if one.place[0][: len(prefix)] == prefix))

    def drop_failed(self, scope: tuple[str, ...], threads: Collection[str] | None) -> None:
        """Try the writes no more that have failed of these threads of a scope, or of all: they are to be forgotten."""
        if current_branch() is None:
            self.ask((scope, ""), partial(self._drop_failed, scope, threads))

    def _drop_failed(self, scope: tuple[str, ...], threads: Collection[str] | None) -> None:
        for one in [*self._failed]:
            if one.place[0] == scope and (threads is None or one.place[1] in threads):
                del self._failed[one]
                self.shared.drop(scope, {one.place[1]})

    def give_up_failed(self) -> None:
        """Give up what has failed, since the store is closed."""

        def give_up() -> None:
            for one in [*self._failed]:
                self._give_up(one, Unavailable("the store was closed before it took it"))

        self.ask(((), ""), give_up)

    def _try_all(self, first: Place | None, new: _Write | None = None) -> None:
        """Write what has failed, in order, but that of the conversation `first` before all, and then what is `new` in it. What stands
        behind a failure of its conversation waits on; so does what failed of others while the store has taken nothing."""
        stuck, store_works = set[Place](), False
        for one in sorted([*self._failed, *([new] if new else [])], key=lambda one: one.place != first):
            if one.place in stuck:
                continue
            if new and one.place != first and not store_works:  # the new one was passed over
                break
            store_works |= self._try(one, store_works=store_works)
            if one in self._failed:
                stuck.add(one.place)
                if not store_works:
                    break
        if new and new.place in stuck:
            self._keep(new)

    def _try(self, write: _Write, *, store_works: bool) -> bool:
        """Try a write once; returns True if the store has taken something."""
        try:
            is_written = write.context.run(write.job) is not False
        except Exception as error:
            write.tries += store_works
            if write.tries >= MOST_TRIES or (isinstance(error, UserError) and not isinstance(error, Unavailable)):
                self._give_up(write, error)
            else:
                LOG.warning("a write has failed, and is tried again with the next one: %s: %s", type(error).__name__, error)
                self._keep(write)
            return False
        self._failed.pop(write, None)
        return is_written

    def _keep(self, write: _Write) -> None:
        self._failed[write] = None
        if len(self._failed) > MOST_WAITING:
            self._give_up(
                next(iter(self._failed)), Unavailable(f"the store does not answer: {MOST_WAITING:,} writes wait for it")
            )

    def _give_up(self, write: _Write, error: Exception) -> None:
        write.is_given_up = True
        scope, thread = write.place
        self.shared.drop(scope, {thread})
        try:
            write.on_failure(error)
        except Exception:  # the other writes wait for their try
            LOG.warning("a write was given up for %s: %s, and nobody could be told", type(error).__name__, error, exc_info=True)
        self._failed.pop(write, None)  # only now: until then feedback on the turn is told that it waits

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

    def wait(self, place: Place | None = None) -> None:
        """Wait until all that was to be written by now, or what was of one conversation, is written, or has failed again.

        Raises:
            Unavailable: it is not after a minute.
        """
        if threading.get_ident() == self._writer:
            return
        has_failed = self._failed if place is None else self.has_failed(place)
        with self._hurry(place):
            if has_failed and current_branch() is None:
                self.write(partial(self._try_all, place), place)
            with self._lock:
                asked = [one for one, (where, _) in self._open.items() if place in (None, where)]
            if late := wait(asked, RESTART_SECONDS).not_done:
                raise Unavailable(
                    f"the store does not answer: {len(late):,} writes have waited for {RESTART_SECONDS:g} seconds"
                )

    def _do_next(self) -> None:
        """Do the oldest job of those that somebody waits for, else of all."""
        with self._lock:
            urgent = {*self._urgent} - {None}
            done = next((one for one, (place, _) in self._open.items() if place in urgent), next(iter(self._open)))
            _, job = self._open[done]
        self._writer, began = threading.get_ident(), time.monotonic()
        try:
            result, error = job(), None
        except BaseException as failed:
            result, error = None, failed
        self._pace = time.monotonic() - began
        with self._lock:
            del self._open[done]
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


_QUEUES = WeakKeyDictionary[BaseStore, WriteQueue]()
_LOCK = threading.Lock()


def queue_of(store: BaseStore) -> WriteQueue:
    """The queue of a store in this process."""
    with _LOCK:
        if (found := _QUEUES.get(store)) is None or found.process != os.getpid():  # a fork has no threads
            found = _QUEUES[store] = WriteQueue()
        return found
