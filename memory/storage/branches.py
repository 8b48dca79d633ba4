"""Branches of memory: futures of a run that are played to look at them see the memory as it was, and write apart from it.

    moment       an id of LangGraph's clock, which also gives the ids of checkpoints: so "as of a checkpoint" is a comparison of ids
    History      what each change of a memory replaced, with its moment: it undoes what came later
    Branch       memories as of a moment, and what was written in the branch since; `keep` adds that to the memories, or it is dropped
    branching    class decorator: while a branch is played, the methods of a memory work on the branch's copy of it

A copy is made when a branch first uses a memory. It has no file and no store, so nothing that a branch does reaches a disk before
`keep`. What a process wrote before is known by its moments as far as its store tells them (`created_at`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from threading import RLock
from types import FunctionType
from typing import Any, Generic, TypeVar

from langgraph.checkpoint.base.id import uuid6

from ..errors import UserError

__all__ = ["ABSENT", "Branch", "BranchError", "Change", "History", "branching", "moment_of_time"]

T = TypeVar("T")
Kind = TypeVar("Kind", bound=type)
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""The value of a record that does not exist."""
MAX_CHANGES = 20_000
"""Changes that a history keeps; older ones cannot be undone any more. Each keeps the record that it replaced or deleted in memory."""
_EPOCH = datetime(1582, 10, 15, tzinfo=UTC)


class BranchError(UserError, ValueError):
    """A branch that cannot be kept: something else was written in its place meanwhile."""


def new_moment() -> str:
    """The present moment: after all moments and checkpoints that this process has made."""
    return str(uuid6())


def moment_of_time(time: datetime) -> str:
    """The earliest moment at this time."""
    passed = time.astimezone(UTC) - _EPOCH
    ticks = (passed.days * 86_400 + passed.seconds) * 10_000_000 + passed.microseconds * 10
    digits = f"{ticks >> 12:012x}"
    return f"{digits[:8]}-{digits[8:]}-6{ticks & 0xFFF:03x}-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Change:
    """One write into a memory."""

    moment: str
    key: Any
    """The record's id."""
    before: Any
    """The record that it replaced or deleted; `ABSENT` if there was none."""
    order: tuple[Any, ...] = ()
    """The ids of all records in order, before the first of those that were deleted together."""


class History(Generic[T]):
    """The changes of one memory, oldest first.

    Args:
        made: the records that are there already, as (moment of writing, id).
        limit: changes that are kept, None for all; older ones cannot be undone any more.
    """

    def __init__(self, made: Iterable[tuple[str, Any]] = (), limit: int | None = MAX_CHANGES) -> None:
        self._changes = deque((Change(moment, key, ABSENT) for moment, key in sorted(made)), limit)

    def __iter__(self) -> Iterator[Change]:
        return iter(self._changes.copy())

    def note(self, key: Any, before: T = ABSENT, order: Iterable[Any] = ()) -> None:
        """Note a write that is being made now; `order`: the ids of all records, if one is deleted."""
        self._changes.append(Change(new_moment(), key, before, tuple(order)))

    def note_deletion(self, gone: Iterable[tuple[Any, T]], order: Iterable[Any]) -> None:
        """Note that records (id, record) are being deleted together; `order`: the ids of all records until now."""
        for key, before in gone:
            self.note(key, before, order)
            order = ()  # once says it for all, and an order is as long as the memory

    def undo(self, records: Mapping[Any, T], moment: str) -> dict[Any, T]:
        """The records as they were at a moment, in their order then. Without a moment: as they are."""
        found = dict(records)
        for change in reversed(self._changes.copy()) if moment else ():
            if change.moment < moment:
                break
            if change.before is ABSENT:
                found.pop(change.key, None)
            else:
                found[change.key] = change.before
            if change.order:
                found = {key: found[key] for key in change.order if key in found}
        return found

    def keys_since(self, moment: str) -> set[Any]:
        """The ids of the records that were written since a moment."""
        return {change.key for change in self._changes.copy() if change.moment >= moment}


@dataclass(frozen=True)
class _Write:
    moment: str
    memory: Any
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Branch:
    """The memories as they were at a moment, and what was written since in this branch alone.

    Args:
        moment: the moment, such as the id of a checkpoint; empty: now.
    """

    def __init__(self, moment: str = "") -> None:
        self.moment = moment or new_moment()
        self._writes: list[_Write] = []
        self._copies: dict[int, tuple[Any, Any]] = {}  # id of a memory -> it, and its copy
        self._lock = RLock()

    def __repr__(self) -> str:
        return f"Branch({self.size} writes)"

    @property
    def size(self) -> int:
        """The number of writes in this branch."""
        return len(self._writes)

    def copy(self, memory: Any) -> Any:
        """The branch's own copy of a memory."""
        with self._lock:
            known = self._copies.get(id(memory))
            if known is None:
                made = memory.as_of(self.moment)
                for write in self._writes:
                    if write.memory is memory:
                        getattr(made, write.method)(*write.args, **write.kwargs)
                known = self._copies[id(memory)] = memory, made
            return known[1]

    def note(self, memory: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a write into a memory's copy."""
        with self._lock:
            self._writes.append(_Write(new_moment(), memory, method, args, kwargs))

    def at(self, moment: str) -> Branch:
        """A branch of this one as it was at a moment; the two are independent."""
        made = Branch(min(self.moment, moment))
        with self._lock:
            made._writes = [write for write in self._writes if write.moment < moment]
        return made

    @contextmanager
    def play(self) -> Iterator[None]:
        """A context: all that runs in it, also in the threads of LangGraph, reads and writes in this branch."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    def keep(self, *, replace: bool = False) -> int:
        """Write into the memories what was written in this branch, and return the number of writes. The branch is empty then.

        All is tried on copies first: what cannot be kept is refused before anything is written. A process that is killed in between
        has kept a part of the branch, and lost nothing else.

        Args:
            replace: whether records that were written otherwise since the branch began are replaced. Logs replace nothing.

        Raises:
            BranchError: there are such records; names them.
        """
        with self._lock, self.outside():
            memories = list({id(write.memory): write.memory for write in self._writes}.values())
            for memory in sorted(memories, key=lambda one: getattr(one, "replaces", True)):  # logs, which decide it, come first
                mine, theirs = self.copy(memory).writes_since(""), memory.writes_since(self.moment)
                clash = [key for key in mine if key in theirs and mine[key] != theirs[key]]
                if clash and not (replace and getattr(memory, "replaces", True)):
                    names = ", ".join(map(str, clash[:3])) + (" and others" if len(clash) > 3 else "")
                    what, done = f"the memory {memory!r} has", "keep(replace=True) replaces what it has"
                    if not getattr(memory, "replaces", True):
                        what, done = (
                            f"the log {memory!r} has",
                            "a log keeps what came first: give the run another seed or episode",
                        )
                    raise BranchError(
                        f"{what} other records of {names} since this branch began; {done}, or drop() forgets the branch"
                    )
            now = Branch()
            now._writes = list(self._writes)
            for memory in memories:
                now.copy(memory)
            for write in self._writes:
                getattr(write.memory, write.method)(*write.args, **write.kwargs)
            count = len(self._writes)
            self.drop()
            return count

    @staticmethod
    @contextmanager
    def outside() -> Iterator[None]:
        """A context: what runs in it reads and writes the memories themselves, whatever branch is played."""
        before = _current.set(None)
        try:
            yield
        finally:
            _current.reset(before)

    def drop(self) -> None:
        """Forget what was written in this branch."""
        with self._lock:
            self._writes.clear()
            self._copies.clear()


_current: ContextVar[Branch | None] = ContextVar("branch", default=None)


def current_branch() -> Branch | None:
    """The branch that is being played; None in a real run."""
    return _current.get()


_SPECIAL = ("__len__", "__iter__", "__contains__", "__repr__")


def branching(*writes: str, but: Collection[str] = ()) -> Callable[[Kind], Kind]:
    """Class decorator of memories: while a branch is played, public methods and properties work on its copy.

    The class has `as_of(moment)`, a copy as it was then (now, if that is empty) without a file or a store behind it, and
    `writes_since(moment)`, what was written since: id -> record, or `ABSENT` where it was deleted.

    Args:
        writes: names of the methods that write; a branch notes their calls, so that they can be made again.
        but: names of methods and properties that are left as they are.
    """

    def decorate(memory: Kind) -> Kind:
        for name, member in list(vars(memory).items()):
            if name in ("as_of", "writes_since", *but) or (name.startswith("_") and name not in _SPECIAL):
                continue
            if isinstance(member, FunctionType):
                setattr(memory, name, _in_branch(member, name, name in writes))
            elif isinstance(member, property) and member.fget is not None:
                setattr(memory, name, property(_in_branch(member.fget, name, False), doc=member.__doc__))
        return memory

    return decorate


def _in_branch(method: Any, name: str, is_write: bool) -> Any:
    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        branch = _current.get()
        if branch is None:
            return method(self, *args, **kwargs)
        with branch.outside():
            found = method(branch.copy(self), *args, **kwargs)
            if is_write:
                branch.note(self, name, args, kwargs)
            return found

    return call
