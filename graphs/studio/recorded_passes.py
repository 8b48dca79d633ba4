"""The way that a recorded episode took through its graph: how often each arrow was passed, from the run's checkpoints.

The file is opened for reading only, also while a run writes to it. A run whose checkpoints lie on a server, or whose method keeps none
inside its episodes, has no passes here.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.sqlite import SqliteSaver

from ...memory.storage.checkpoints import serializer

__all__ = ["RecordedMoment", "RecordedPasses"]

BRANCH = "branch:to:"
"""The beginning of the channels by which LangGraph starts a node."""


class RecordedMoment(NamedTuple):
    """A checkpoint within an episode."""

    id: str
    step: int
    """Steps that the episode had taken."""
    next: tuple[str, ...]
    """The nodes about to run; a chain of nodes is one name, joined by +."""


class RecordedPasses:
    """The checkpoints of a run's episodes. Not safe for threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._spaces: dict[str, tuple[str, int]] = {}
        """Namespace -> its thread, and the number of its episode."""
        self._moments: dict[str, list[RecordedMoment]] = {}

    def moments(self, episode: int) -> list[RecordedMoment]:
        """The checkpoints of an episode, the oldest first; empty if there are none.

        Raises:
            sqlite3.Error: the file is damaged.
        """
        if not self.path.is_file():
            return []
        with self._open() as (connection, saver):
            found = self._find(episode, connection, saver)
            if found is None:
                return []
            space, thread = found
            (count,) = connection.execute(
                "select count(*) from checkpoints where thread_id = ? and checkpoint_ns = ?", (thread, space)
            ).fetchone()
            if len(self._moments.get(space, ())) != count:
                self._moments[space] = [_moment(one.checkpoint) for one in saver.list(_config(thread, space))][::-1]
        return self._moments[space]

    def state(self, episode: int, steps: int) -> Mapping[str, Any]:
        """The channels of an episode when it had taken so many steps; empty if that was not kept."""
        fitting = [one for one in self.moments(episode) if one.step == steps and one.next != ("__start__",)]
        if not fitting:
            return {}
        with self._open() as (connection, saver):
            found = self._find(episode, connection, saver)
            kept = saver.get_tuple(_config(found[1], found[0], fitting[0].id)) if found else None
        values = kept.checkpoint["channel_values"] if kept else {}
        return {name: value for name, value in values.items() if not name.startswith((BRANCH, "__"))}

    def passes(self, episode: int, steps: int) -> list[tuple[str, str, int]] | None:
        """(source, target, passes) of the arrows until the episode had taken so many steps, and to its end after its last step; None
        where no checkpoints were kept."""
        moments = [one for one in self.moments(episode) if one.next != ("__start__",)]
        if not moments:
            return None
        longest = max(one.step for one in moments)
        counted: Counter[tuple[str, str]] = Counter()
        ran: tuple[str, ...] = ("START",)
        for one in moments:
            for chain in ran:
                counted.update(pairwise(chain.split("+")))
            counted.update((a.split("+")[-1], b.split("+")[0]) for a in ran for b in one.next or ("END",))
            ran = one.next
            if 0 < one.step == steps < longest:
                break
        return [(a, b, n) for (a, b), n in counted.items()]

    @contextmanager
    def _open(self) -> Iterator[tuple[sqlite3.Connection, SqliteSaver]]:
        uri = f"{self.path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=5, check_same_thread=False)) as connection:
            saver = SqliteSaver(connection, serde=serializer())
            saver.is_setup = True  # it would write tables
            yield connection, saver

    def _find(self, episode: int, connection: sqlite3.Connection, saver: SqliteSaver) -> tuple[str, str] | None:
        """Namespace and thread of an episode."""
        rows = connection.execute(
            "select checkpoint_ns, thread_id, max(checkpoint_id) from checkpoints where checkpoint_ns like 'episode:%' "
            "and checkpoint_ns not like '%|%' group by 1, 2 order by 3"
        ).fetchall()
        for space, thread, newest in rows:
            if space not in self._spaces:
                kept = saver.get_tuple(_config(thread, space, newest))
                number = kept.checkpoint["channel_values"].get("episode") if kept else None
                if isinstance(number, int):
                    self._spaces[space] = (thread, number)
        return next(((space, thread) for space, (thread, number) in self._spaces.items() if number == episode), None)


def _config(thread: str, space: str, id: str = "") -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": space, **({"checkpoint_id": id} if id else {})}}


def _moment(checkpoint: Any) -> RecordedMoment:
    values = checkpoint["channel_values"]
    upcoming = [name.removeprefix(BRANCH) for name in values if name.startswith(BRANCH)]
    step = values.get("step", 0)
    return RecordedMoment(
        checkpoint["id"],
        step if isinstance(step, int) else 0,
        ("__start__",) if "__start__" in values else tuple(upcoming),
    )
