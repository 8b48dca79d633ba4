"""JitRL's memory M = {(s, a, G)}: the returns G that followed each action a in each state s (arXiv:2601.18510).

Only trajectories are stored, one item per episode. Returns, statistics and the index are derived from them when the memory is
opened, so the discount and the tokens may differ between two runs over the same memory.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Required, cast

from typing_extensions import TypedDict, Unpack

from ..display import ShownAsTable, Table, make_table
from ..errors import UserError, plural
from ..records import Experience, Neighbour, Trajectory
from ..search.segments import IndexSegment, TokenSegments
from ..search.similarity import Similarity, TokenSimilarity, shingles
from ..storage.branches import ABSENT, History, branching, moment_of_time
from ..storage.snapshot import Snapshots, folder_name
from ..storage.trajectory_store import TrajectoryStore, dated_records
from .scope import PART_ROWS, Scope, merge_parts

if TYPE_CHECKING:
    from ..storage.record_store import RecordStore

__all__ = ["BadExperience", "Credit", "ExperienceScope", "Experiences", "TrajectoryStore", "control_credit", "returns"]


class BadExperience(UserError, ValueError):
    """An error: no returns can be computed from this trajectory or setting."""


class ExperienceScope(TypedDict, total=False):
    """Keyword arguments that say which experiences a question to `Experiences` is about."""

    task: Required[str]
    """Id of the task whose experiences count."""
    domain: str
    """The environment that the task belongs to; empty by default."""
    cross_task: bool
    """True if the experiences of all tasks of the domain count; False by default."""
    only_other_tasks: bool
    """True if, with `cross_task`, those of the task itself do not count; False by default."""
    before: tuple[str, int] | None
    """(run, episode): the run's episodes from this number on do not count, so that a resumed or forked run learns only from
    its own past. None (default): all episodes count."""
    window: int | None
    """Only the last so many episodes with a known return count, because older ones stem from an older policy. None (default):
    all episodes count."""


def returns(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
    """JitRL, Eq. 3: G_t = r_t + gamma * G_{t+1}, in reward units; G after the last step is 0.

    A missing reward (None) is not zero. Every return that contains it is missing too: its own and all earlier ones (with
    gamma = 0 only its own).

    Raises:
        BadExperience: gamma is not in [0, 1].
    """
    if not 0 <= gamma <= 1:
        raise BadExperience(f"a discount gamma is between 0 and 1, got {gamma}")
    found: list[float | None] = []
    following: float | None = 0.0
    for reward in reversed(rewards):
        if reward is None or gamma == 0:
            following = reward
        elif following is not None:
            following = reward + gamma * following
        found.append(following)
    return found[::-1]


Credit = Callable[[Sequence[float | None], float], Sequence[float | None]]
"""(rewards, gamma) -> returns."""


def control_credit(credit: Credit, control: str) -> Credit:
    """The function from rewards to returns that a negative control puts in place of another. A return of None is not remembered.

    Args:
        credit: the function of the method itself.
        control: `none`; `cut`, nothing is remembered; `shuffled`, the returns stand at other steps; `zero`, every reward is 0.
    """

    def shuffle(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
        found = [*credit(rewards, gamma)]
        Random(repr(rewards)).shuffle(found)  # the same when the memory is opened again
        return found

    controls: Mapping[str, Credit] = {
        "none": credit,
        "cut": lambda rewards, gamma: [None] * len(rewards),
        "shuffled": shuffle,
        "zero": lambda rewards, gamma: credit([None if reward is None else 0.0 for reward in rewards], gamma),
    }
    return controls[control]


_READ_AT_ONCE = 1024
"""Experiences whose states are read together when a scope is made: enough for an encoder, and little memory."""


LEAST_UNSAVED = 2_000
"""Experiences of a scope that are worth a snapshot: to read so many again takes about a second."""


class _Unread(NamedTuple):
    """A stored trajectory that was not read yet."""

    domain: str
    task: str
    size: int
    """The number of its experiences."""


class _Copied(NamedTuple):
    """The contents of a snapshot of a scope, before they are brought into its form."""

    key: tuple[str, str | None]
    scope: Scope
    meta: dict[str, Any]
    columns: dict[str, Any]
    parts: list[Any]
    episodes: dict[str, Any]
    changes: int


_CATALOG = "episodes"
_PROBES = ("You don't see 2 well-lit doors: one red, 2.50 m wide. One door!", "goal: red\nstate: x=1", "|#.@|", "")


def _identity(gamma: float, credit: Credit, similarity: Similarity) -> dict[str, Any] | None:
    """All that a snapshot depends on besides the records; None if snapshots cannot be kept, as of functions made on the way."""
    if type(similarity) is not TokenSimilarity:
        return None
    tokens: Any = similarity.tokens
    functions = (tokens, credit)
    if any(getattr(sys.modules.get(f.__module__), getattr(f, "__qualname__", ""), None) is not f for f in functions):
        return None
    read = [sorted(set(tokens(text)), key=repr) for text in _PROBES]
    if not all(isinstance(token, str) for found in read for token in found):
        return None
    return {
        "gamma": gamma,
        "credit": [f"{credit.__module__}.{credit.__qualname__}", list(credit((1.0, 0.0, None, 0.5, 0.0, -1.0), gamma))],
        "tokens": [f"{tokens.__module__}.{tokens.__qualname__}", blake2b(json.dumps(read).encode()).hexdigest()],
    }


def _segments(meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[IndexSegment]:
    """The segments of the snapshot of a scope."""
    numbers = range(meta["segments"])
    return [IndexSegment({name: arrays[f"{n}.{name}"] for name in IndexSegment.NAMES}) for n in numbers]


def _is_unsaved(scope: Scope) -> bool:
    """True if a snapshot of the scope is worth its time."""
    return len(scope) - scope.saved >= LEAST_UNSAVED or (scope.saved < 0 and len(scope) >= LEAST_UNSAVED)


@branching("add", "prune", but=("reload", "save"))
class Experiences(ShownAsTable):
    """A memory of finished episodes that finds the returns of actions in states like the present one.

    A memory may hold several domains (`Trajectory.domain`), several tasks of each, and several runs at once. Episodes
    count in the order in which they were stored. It is safe to use from several threads. Another process sees this one's
    additions after `reload`.

    A store in a folder keeps snapshots of large memories beside it (memory/storage/snapshot.py), which are written while it grows
    and when the store is closed. Opened again, the memory answers from them at once: just what it would answer without them, or
    they are not used. Trajectories are then read when they are asked for.

    Args:
        store: durable storage of the trajectories; None: they last as long as the process.
        gamma: the discount of the returns, in [0, 1] (JitRL's paper: 0.5 for Jericho, 0.1 for WebArena).
        tokens: the tokens of a state's text. The similarity of two states is the Jaccard index of their sets of tokens
            (Eq. 24); `lambda text: bag(ngrams(words(text), 4))` gives multisets of 4-grams.
        similarity: another comparison of states, in place of `tokens`, such as one by embeddings
            (`memory.search.vectors.CosineSimilarity`). States of one text are one state.
        credit: turns rewards into returns; Eq. 3 if not given.

    Raises:
        BadExperience: gamma is not in [0, 1], or a stored reward is not finite.
    """

    def __init__(
        self,
        store: TrajectoryStore | None = None,
        *,
        gamma: float = 0.5,
        tokens: Callable[[str], Iterable[Hashable]] = shingles,
        similarity: Similarity | None = None,
        credit: Credit = returns,
    ) -> None:
        self.gamma = gamma
        self._credit = credit
        self._store = store
        self.similarity: Similarity = TokenSimilarity(tokens) if similarity is None else similarity
        self._writing = threading.Lock()  # one episode is stored at a time, while others may still ask
        self._lock = threading.RLock()
        self._episodes: dict[str, tuple[Trajectory, tuple[Experience, ...]] | _Unread] = {}
        self._scopes: dict[tuple[str, str | None], Scope] = {}  # (domain, task or None for all), made when asked for
        self._history = History[tuple[Trajectory, tuple[Experience, ...]]]()
        returns((), gamma)  # refuses a bad gamma now rather than at the end of the first episode
        self._snapshots: Snapshots | None = getattr(store, "snapshots", None)
        self._identity = _identity(gamma, credit, self.similarity) if self._snapshots is not None else None
        if self._identity is None:
            self._snapshots = None
        self._versions: dict[
            str, str
        ] = {}  # id -> time of the last write, of the records that have not changed since they were read
        self._writes = 0  # batches with which this object, or one before it, wrote to the store
        self._changes = 0  # records that this object replaced or deleted
        self._saving: threading.Thread | None = None
        if self._snapshots is not None:
            self._snapshots.store.before_close(self.save)
        self.reload()

    def __repr__(self) -> str:
        return f"Experiences({plural(len(self), 'step')} of {plural(len(self._episodes), 'episode')}, gamma={self.gamma})"

    def table(self) -> Table:
        """A table of the remembered steps, the newest first."""
        found = list(self)
        head = ("state", "action", "return", "episode", "task")
        rows = ((one.state, one.action, one.value, f"{one.run}/{one.episode}", one.task) for one in reversed(found))
        return make_table(repr(self), head, rows, len(found))

    def recall_table(self, state: str, k: int = 10, threshold: float = 0.0, **scope: Unpack[ExperienceScope]) -> Table:
        """A table of what would be recalled in a state, and why: similarity, visits, mean return, and age in episodes.

        Args:
            state, k, threshold, scope: as for `neighbours`.
        """
        found = self.neighbours(state, k, threshold, **scope)
        with self._lock:
            ages = {id: number for number, id in enumerate(reversed(self._episodes))}
            trajectories = self._read(one.id.rpartition("/")[0] for one in found)
            states = {one.id: one.state for _, experiences in trajectories for one in experiences}
        head = ("similarity", "action", "visits", "mean return", "age in episodes", "remembered state")
        rows = [
            (one.similarity, one.action, one.count, one.mean, ages.get(one.id.rpartition("/")[0]), states.get(one.id))
            for one in found
        ]
        return make_table(f"{len(found)} recalled of {self!r}", head, rows, len(rows))

    def __len__(self) -> int:
        """The number of experiences, that is of steps with a known return."""
        with self._lock:
            return sum(one.size if isinstance(one, _Unread) else len(one[1]) for one in self._episodes.values())

    def __iter__(self) -> Iterator[Experience]:
        """Every experience, in the order of storing."""
        with self._lock:
            return iter([one for _, experiences in self._read(self._episodes) for one in experiences])

    def reload(self) -> None:
        """Read the store again, and with it the additions of other processes."""
        if self._store is None:
            return
        with self._writing:
            writes = self._snapshots.count_writes() if self._snapshots is not None else 0
            self._versions = {}
            episodes, moments = self._read_catalog() or self._read_store()
            with self._lock:
                self._episodes = episodes
                self._history = History(moments)
                self._scopes.clear()
                self._writes, self._changes = writes, self._changes + 1

    def _read_store(self) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """All trajectories with their experiences, by id, and the moment of writing of each."""
        assert self._store is not None
        dated = dated_records(self._store)
        episodes = {trajectory.id: (trajectory, self._derive(trajectory)) for _, trajectory in dated}
        return episodes, [(moment, trajectory.id) for moment, trajectory in dated]

    def _read_catalog(self) -> tuple[dict[str, Any], list[tuple[str, str]]] | None:
        """The same, where those that the catalog of a snapshot has are left unread; None if there is no such snapshot."""
        found = self._snapshots.read(_CATALOG) if self._snapshots is not None else None
        if found is None or self._snapshots is None or found[0]["identity"] != self._identity:
            return None
        versions = self._snapshots.versions()
        if versions is None:
            return None
        episodes: dict[str, Any] = {}
        for id, version, *rest in found[0]["episodes"]:
            if id in versions and versions[id][1] == version:
                episodes[id] = _Unread(*rest)
        others = [id for id in versions if id not in episodes]
        if len(others) > len(episodes):
            return None  # to read all at once is faster
        for trajectory in cast("RecordStore[Trajectory]", self._store).get_many(others):
            episodes[trajectory.id] = (trajectory, self._derive(trajectory))
        order = sorted(episodes, key=lambda id: (versions[id][0], id))
        self._versions = {id: versions[id][1] for id in order}
        moments = [(moment_of_time(datetime.fromisoformat(versions[id][0])), id) for id in order]
        return {id: episodes[id] for id in order}, moments

    def _read(self, ids: Iterable[str]) -> list[tuple[Trajectory, tuple[Experience, ...]]]:
        """The trajectories with these ids, with their experiences; those that were not read yet are read."""
        asked = list(dict.fromkeys(ids))
        unread = [id for id in asked if isinstance(self._episodes.get(id), _Unread)]
        if unread:
            for trajectory in cast("RecordStore[Trajectory]", self._store).get_many(unread):
                self._episodes[trajectory.id] = (trajectory, self._derive(trajectory))
        found = [self._episodes.get(id) for id in asked]
        return [one for one in found if one is not None and not isinstance(one, _Unread)]

    def save(self) -> None:
        """Write snapshots of the scopes that have grown much since the last ones; the store does so when it is closed."""
        if (saving := self._saving) is not None and saving is not threading.current_thread():
            saving.join()
        with self._lock:
            large = [key for key, scope in self._scopes.items() if _is_unsaved(scope)]
        for key in large:
            if (copied := self._copy(key)) is not None:
                self._save(copied)

    def _save_in_background(self, key: tuple[str, str | None]) -> None:
        """Write a snapshot of a scope in a thread, unless one is being written."""
        if (self._saving is None or not self._saving.is_alive()) and (copied := self._copy(key)) is not None:
            self._saving = threading.Thread(target=self._save, args=(copied,), name="snapshot", daemon=True)
            self._saving.start()

    def _copy(self, key: tuple[str, str | None]) -> _Copied | None:
        """All that a snapshot of a scope needs, copied in an instant."""
        with self._lock:
            scope = self._scopes.get(key)
            if scope is None or not isinstance(scope.index, TokenSegments):
                return None
            return _Copied(key, scope, *scope.copy(), dict(self._episodes), self._changes)

    def _save(self, copied: _Copied) -> None:
        """Write a snapshot of a scope and of the catalog, unless records have changed meanwhile, or another object writes them."""
        snapshots, segments = self._snapshots, merge_parts(copied.parts)
        if snapshots is None or not self._is_current(copied):
            return
        versions = snapshots.versions()
        if versions is None or not self._is_current(copied) or not copied.episodes.keys() <= versions.keys():
            return
        catalog = []
        for id, one in copied.episodes.items():
            rest = one if isinstance(one, _Unread) else _Unread(one[0].domain, one[0].task.id, len(one[1]))
            catalog.append((id, versions[id][1], *rest))
        domain, task = copied.key
        inside = [(id, version) for id, version, of, at, _ in catalog if of == domain and task in (None, at)]
        meta = {**copied.meta, "identity": self._identity, "inside": inside, "segments": len(segments)}
        arrays = dict(copied.columns)
        for number, segment in enumerate(segments):
            arrays |= {f"{number}.{name}": array for name, array in segment.arrays.items()}
        mapped = snapshots.write(folder_name(copied.key), meta, arrays)
        if mapped is None:
            return
        snapshots.write(_CATALOG, {"identity": self._identity, "episodes": catalog}, {})
        with self._lock:
            if self._scopes.get(copied.key) is copied.scope and self._changes == copied.changes:
                copied.scope.index.put_segments(_segments(*mapped))  # in the place of those in this process's memory
                copied.scope.saved = len(copied.columns["row"])

    def _is_current(self, copied: _Copied) -> bool:
        """True if what was copied is still as it is stored: no record has changed, and no other object has written."""
        assert self._snapshots is not None
        with self._writing, self._lock:
            return self._changes == copied.changes and self._snapshots.count_writes() == self._writes

    def _load_scope(self, key: tuple[str, str | None], inside: Sequence[str]) -> tuple[Scope, int] | None:
        """The scope of a snapshot, and how many of the trajectories in scope it has; None if it is not of these trajectories."""
        found = self._snapshots.read(folder_name(key)) if self._snapshots is not None and self._versions else None
        if found is None or found[0]["identity"] != self._identity:
            return None
        saved = [(id, version) for id, version in found[0]["inside"]]
        if saved != [(id, self._versions.get(id)) for id in inside[: len(saved)]]:
            return None
        return Scope.load(found[0], found[1], _segments(*found)), len(saved)

    def as_of(self, moment: str) -> Experiences:
        """A copy of the memory as it was at a moment (memory/storage/branches.py), without a store."""
        made = Experiences(gamma=self.gamma, similarity=self.similarity, credit=self._credit)
        with self._lock:
            read = {one[0].id: one for one in self._read(self._episodes)}
            made._episodes = dict(self._history.undo(read, moment))
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """id -> trajectory, of those added since a moment; `ABSENT` for those deleted."""
        with self._lock:
            ids = [str(id) for id in self._history.keys_since(moment)]
            found: dict[Any, Any] = {trajectory.id: trajectory for trajectory, _ in self._read(ids)}
            return {id: found.get(id, ABSENT) for id in ids}

    def add(self, trajectory: Trajectory) -> None:
        """Add a finished episode, with one write to the store. It replaces a stored episode of the same id.

        Steps whose return is missing (see `returns`) leave no experience, nor do lost steps, at which no action was taken.

        Raises:
            BadExperience: a reward is not a finite number; then nothing is stored.
        """
        experiences = self._derive(trajectory)
        with self._writing:
            with self._lock:
                known = next(iter(self._read([trajectory.id])), None)
            if known is not None and known[0] == trajectory:
                return
            keys = [(trajectory.domain, None), (trajectory.domain, trajectory.task.id)]
            open_scopes = [scope for key in keys if (scope := self._scopes.get(key)) is not None]
            readings: dict[str, Any] = {}
            for scope in open_scopes:  # outside the lock: an encoder is slow
                readings |= self._readings(scope, experiences, readings)
            if self._store is not None:
                self._store.put([trajectory])
                self._writes += 1
            with self._lock:
                self._history.note(trajectory.id, ABSENT if known is None else known)
                self._episodes[trajectory.id] = (trajectory, experiences)
                if known is not None:
                    self._changes += 1
                    self._versions.pop(trajectory.id, None)
                    self._replace(keys, known[1], experiences)
                    return
                for key in keys:
                    if (scope := self._scopes.pop(key, None)) is not None:
                        self._fill(scope, experiences, readings)
                        self._scopes[key] = scope  # only now: an interrupted addition must not count half an episode
                        if scope.has_full_part:
                            self._save_in_background(key)

    def _replace(
        self, keys: Sequence[tuple[str, str | None]], before: Sequence[Experience], after: Sequence[Experience]
    ) -> None:
        """Change an episode in the scopes. Other feedback changes the returns alone; for all else they are made anew on demand."""
        changed = {key: self._scopes.pop(key) for key in keys if key in self._scopes}
        if [replace(one, value=0.0, lost=False) for one in before] != [replace(one, value=0.0, lost=False) for one in after]:
            self._scopes.clear()
            return
        for scope in changed.values():
            scope.replace(before, after)
        self._scopes |= changed  # only now: an interrupted change must not count half an episode

    def prune(self, *, keep_last: int) -> int:
        """Delete all but the last `keep_last` episodes; returns the number of deleted ones.

        Raises:
            ValueError: `keep_last` is negative.
        """
        if keep_last < 0:
            raise ValueError(f"cannot keep the last {keep_last} episodes: keep_last must be >= 0")
        with self._writing:
            with self._lock:
                gone = [*self._episodes][: max(len(self._episodes) - keep_last, 0)]
            if self._store is not None and gone:
                self._store.delete(gone)
                self._writes += 1
            with self._lock:
                self._history.note_deletion(list(zip(gone, self._read(gone), strict=True)), self._episodes)
                for name in gone:
                    del self._episodes[name]
                if gone:
                    self._changes += 1
                    self._scopes.clear()
        return len(gone)

    def neighbours(
        self, state: str, k: int, threshold: float = 0.0, newest: int | None = None, **scope: Unpack[ExperienceScope]
    ) -> tuple[Neighbour, ...]:
        """The statistics of each action in the k remembered states most similar to this one (JitRL, Eq. 24).

        The most similar state stands first; among equals, the one met most recently for the first time. A state's actions
        stand in the order of their first try.

        Args:
            state: text of the present state.
            k: the greatest number of distinct states, however often they were visited.
            threshold: the least similarity, in [0, 1]; a state without a common token is never similar.
            newest: only so many experiences of a state count, the last that were stored; None: all.
            scope: says which experiences count. With `newest`, `before` or `window` the statistics are computed anew from the
                single returns, at a cost that grows with the number of visits.

        Raises:
            ValueError: `window` is negative.
        """
        reading = self._read_query(state, **scope)
        with self._lock:
            view, shown = self._view(**scope)
            found = list[Neighbour]()
            for row, similarity in view.nearest(reading, k, threshold, shown):
                others = view.count_elsewhere(row, scope["task"], shown) if scope.get("cross_task") else {}
                for action, tally in view.tallies(row, shown, newest).items():
                    numbers = tally.count, tally.mean, tally.m2, tally.losses, others.get(action, 0)
                    found.append(Neighbour(tally.newest, similarity, action, *numbers))
            return tuple(found)

    def moments(self, **scope: Unpack[ExperienceScope]) -> tuple[float, float]:
        """Mean and variance of all returns in scope, in reward units (squared); zeros if there are none. See `neighbours`."""
        with self._lock:
            view, shown = self._view(**scope)
            return view.moments(shown)

    def raw_neighbours(
        self, state: str, threshold: float = 0.0, k: int | None = None, **scope: Unpack[ExperienceScope]
    ) -> list[tuple[float, Experience]]:
        """Every single experience in a state at least `threshold` similar, as (similarity, experience), oldest first.

        JitRL's published code neither merges repeated visits nor stops at k. The arguments are those of `neighbours`, but for
        `k`: only so many experiences, those of the most similar states, among equals the newest. None (default): all.
        """
        reading = self._read_query(state, **scope)
        with self._lock:
            view, shown = self._view(**scope)
            found = view.nearest(reading, view.row_count, threshold, shown)
            placed = list[tuple[int, float]]()
            for row, similarity in found:
                if k is not None and 0 < len(placed) >= k and similarity < placed[-1][1]:
                    break  # there are k that are more similar
                places = view.places(row, shown)
                placed += [(place, similarity) for place in places[0 if k is None else max(len(places) - k, 0) :]]
            if k is not None:
                placed = sorted(placed, key=lambda one: (-one[1], -one[0]))[:k]
            placed.sort()
            experiences = self._experiences_at(view, [place for place, _ in placed])
            return [(similarity, one) for (_, similarity), one in zip(placed, experiences, strict=True)]

    def visits(self, id: str, newest: int | None = None, **scope: Unpack[ExperienceScope]) -> tuple[Experience, ...]:
        """The single visits behind a neighbour, oldest first: those in scope to the same action in the same state.

        Args:
            id: of the neighbour, which is that of its newest experience.
            newest: only so many of them, the last that were stored; None: all.
            scope: where the neighbour was found. See `neighbours`.

        Raises:
            KeyError: no experience in scope has this id.
        """
        with self._lock:
            view, shown = self._view(**scope)
            place = view.find(id)
            if place is None:
                raise KeyError(f"no experience in scope has the id {id!r}")
            places = view.places_like(place, shown)
            return tuple(self._experiences_at(view, places if newest is None else places[-newest:]))

    def _experiences_at(self, view: Scope, places: Sequence[int]) -> list[Experience]:
        """The experiences at these places of a scope, whose trajectories are read if they were not."""
        trajectories = self._read(map(view.trajectory_at, places))
        by_id = {one.id: one for _, experiences in trajectories for one in experiences}
        return [by_id[view.id_at(place)] for place in places]

    def _view(
        self,
        *,
        task: str,
        domain: str = "",
        cross_task: bool = False,
        only_other_tasks: bool = False,
        before: tuple[str, int] | None = None,
        window: int | None = None,
    ) -> tuple[Scope, Callable[[int], bool] | None]:
        if window is not None and window < 0:
            raise ValueError(f"cannot look at the last {window} episodes: window must be >= 0")
        key = (domain, None if cross_task else task)
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._open_scope(key)
        return scope, scope.visible(before, window, task if only_other_tasks else "")

    def _open_scope(self, key: tuple[str, str | None]) -> Scope:
        """A scope, from its snapshot and what came after, or from all trajectories."""
        domain, task = key
        inside = []
        for id, one in self._episodes.items():
            of, at = one[:2] if isinstance(one, _Unread) else (one[0].domain, one[0].task.id)
            if of == domain and task in (None, at):
                inside.append(id)
        rows = TokenSegments() if self._snapshots is not None else self.similarity.rows()
        scope, known = self._load_scope(key, inside) or (Scope(rows), 0)
        self._fill(scope, [one for _, experiences in self._read(inside[known:]) for one in experiences], {})
        self._scopes[key] = scope
        if len(scope) - max(scope.saved, 0) >= PART_ROWS:
            self._save_in_background(key)
        return scope

    def _fill(self, scope: Scope, experiences: Sequence[Experience], readings: Mapping[str, Any]) -> None:
        """Add experiences to a scope. `readings` are those of states that were read already."""
        for start in range(0, len(experiences), _READ_AT_ONCE):
            part = experiences[start : start + _READ_AT_ONCE]
            found = {**readings, **self._readings(scope, part, readings)}
            for experience in part:
                scope.add(experience, found.get(experience.state))
            if scope.has_full_part and len(experiences) > PART_ROWS:
                scope.index.end_segment()

    def _readings(self, scope: Scope, experiences: Sequence[Experience], known: Mapping[str, Any]) -> dict[str, Any]:
        """state -> the form in which it is compared, for those that the scope does not have and that are not known."""
        states = list(dict.fromkeys(one.state for one in experiences if one.state not in scope.rows and one.state not in known))
        return dict(zip(states, self.similarity.read(states), strict=True)) if states else {}

    def _read_query(self, state: str, **scope: Unpack[ExperienceScope]) -> Any:
        """A state that is asked about, as it is compared; None where there is nothing to compare it with."""
        with self._lock:
            view, _ = self._view(**scope)
        return self.similarity.read_query(state) if view.row_count else None

    def _derive(self, trajectory: Trajectory) -> tuple[Experience, ...]:
        rewards = [transition.reward for transition in trajectory.transitions]
        for step, reward in enumerate(rewards):
            if reward is not None and not math.isfinite(reward):
                raise BadExperience(
                    f"trajectory '{trajectory.id}': the reward of step {step} is {reward}; "
                    "give a finite number, or None where it is not known"
                )
        return tuple(
            Experience(
                id=f"{trajectory.id}/{step}",
                state=transition.state,
                action=transition.action,
                value=value,
                run=trajectory.run,
                episode=trajectory.episode,
                task=trajectory.task.id,
                domain=trajectory.domain,
                lost=trajectory.lost and step == len(rewards) - 1,
            )
            for step, (transition, value) in enumerate(
                zip(trajectory.transitions, self._credit(rewards, self.gamma), strict=True)
            )
            if value is not None and not transition.is_lost
        )
