"""JitRL's memory M = {(s, a, G)}: the returns G that followed each action a in each state s (arXiv:2601.18510).

Only trajectories are stored, one item per episode. Returns, statistics and the index are derived from them when the memory is
opened, so the discount and the tokens may differ between two runs over the same memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol, Required

from typing_extensions import TypedDict, Unpack

from .branches import ABSENT, History, branching
from .display import Table, make_table
from .errors import UserError
from .records import Experience, Neighbour, Trajectory
from .search.sections import SectionRows
from .search.similarity import Similarity, TokenRows, TokenSimilarity, shingles

__all__ = [
    "BadExperience",
    "Credit",
    "ExperienceScope",
    "Experiences",
    "TrajectoryStore",
    "control_credit",
    "reference_returns",
    "returns",
]


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


def reference_returns(scores: Sequence[float | None], gamma: float) -> list[float | None]:
    """The returns of JitRL's published code, which differ from Eq. 3; use them only to reproduce that code.

    The defect: in the return of step t, each later step whose score is 0 counts with the score of step t in place of its own
    0. So [4, 0, 0, 0, 0] at gamma 0.5 gives 7.75 for the first step, where Eq. 3 gives 4.
    """
    known = [score or 0.0 for score in scores]  # that code has no way to say that a score is missing
    return [sum(gamma**ahead * (score or known[t]) for ahead, score in enumerate(known[t:])) for t in range(len(known))]


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


class TrajectoryStore(Protocol):
    """Durable storage of trajectories, such as `memory.storage.shelf.RecordStore` over any LangGraph store."""

    def put(self, records: Iterable[Trajectory], /) -> None:
        """Store these trajectories; one with a stored id replaces it."""

    def all(self) -> Iterable[Trajectory]:
        """All stored trajectories, oldest first."""
        ...

    def delete(self, ids: Iterable[str], /) -> None:
        """Delete the trajectories with these ids."""


def dated_records(shelf: TrajectoryStore) -> list[tuple[str, Trajectory]]:
    """All records of a shelf, oldest first, each with the moment of its writing; that is empty where the shelf does not tell it."""
    dated = getattr(shelf, "with_moments", None)
    return list(dated()) if dated is not None else [("", one) for one in shelf.all()]


@dataclass(slots=True)
class _Tally:
    """Welford's running count, mean and M2 of the returns of one action in one state."""

    newest: str = ""
    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    losses: int = 0

    def add(self, experience: Experience) -> None:
        self.newest = experience.id
        self.count += 1
        self.losses += experience.lost
        off = experience.value - self.mean
        self.mean += off / self.count
        self.m2 += off * (experience.value - self.mean)


class _Scope:
    """The experiences that may be neighbours of each other: those of one task, or of one domain."""

    def __init__(self, similarity: Similarity) -> None:
        self.index = similarity.rows()  # one row per distinct state
        self.rows: dict[str, int] = {}  # state text -> row
        self.experiences: list[Experience] = []  # in the order of storing
        self.visits: list[list[int]] = []  # row -> its experiences' places in that list
        self.tallies: list[dict[str, _Tally]] = []  # row -> action -> statistics
        self.latest: dict[str, int] = {}  # run -> its last episode here
        self.all: _Tally | None = _Tally()  # None: to be counted

    def add(self, experience: Experience, reading: Any) -> None:
        """Add an experience; `reading` is its state as it is compared."""
        row = self.rows.get(experience.state)
        if row is None:
            # Texts that no query can tell apart share a row.
            row = self.index.find(reading) if isinstance(self.index, TokenRows | SectionRows) else None
            if row is None:
                row = len(self.visits)
                self.index.add(reading)
                self.visits.append([])
                self.tallies.append({})
            self.rows[experience.state] = row
        self.visits[row].append(len(self.experiences))
        self.experiences.append(experience)
        if self.all is not None:
            self.all.add(experience)
        tallies = self.tallies[row]
        if experience.action not in tallies:
            tallies[experience.action] = _Tally()
        tallies[experience.action].add(experience)
        self.latest[experience.run] = max(experience.episode, self.latest.get(experience.run, experience.episode))

    def replace(self, before: Sequence[Experience], after: Sequence[Experience]) -> None:
        """Put experiences in the place of those with the same ids, states and actions, whose returns were others."""
        rows = set[int]()
        for old, new in zip(before, after, strict=True):
            row = self.rows[old.state]
            place = next(place for place in reversed(self.visits[row]) if self.experiences[place].id == old.id)
            self.experiences[place] = new
            rows.add(row)
        for row in rows:
            self.tallies[row] = tallies = dict[str, _Tally]()
            for experience in map(self.experiences.__getitem__, self.visits[row]):
                tallies.setdefault(experience.action, _Tally()).add(experience)
        self.all = None  # counted again when it is asked for

    @property
    def total(self) -> _Tally:
        """The statistics of all returns."""
        if self.all is None:
            count, mean, m2, losses = 0, 0.0, 0.0, 0  # as `_Tally.add`, to the last bit
            for count, experience in enumerate(self.experiences, 1):
                off = experience.value - mean
                mean += off / count
                m2 += off * (experience.value - mean)
                losses += experience.lost
            self.all = _Tally(self.experiences[-1].id if self.experiences else "", count, mean, m2, losses)
        return self.all

    def visible(self, before: tuple[str, int] | None, window: int | None) -> Callable[[int], bool] | None:
        """A test for the places in `experiences` that may be seen; None where all may be."""
        run, episode = before or ("", 0)
        if before is not None and self.latest.get(run, episode - 1) < episode:
            before = None
        if before is None and window is None:
            return None

        def is_visible(place: int) -> bool:
            seen = self.experiences[place]
            return before is None or seen.run != run or seen.episode < episode

        if window is None:
            return is_visible
        start, trajectories = len(self.experiences), set[str]()
        for place in reversed(range(len(self.experiences))):
            if is_visible(place):
                trajectories.add(self.experiences[place].id.rpartition("/")[0])
                if len(trajectories) > window:
                    break
            start = place
        return lambda place: place >= start and is_visible(place)

    def places(self, row: int, shown: Callable[[int], bool] | None) -> list[int]:
        return self.visits[row] if shown is None else [place for place in self.visits[row] if shown(place)]

    def nearest(self, reading: Any, k: int, threshold: float, shown: Callable[[int], bool] | None) -> list[tuple[int, float]]:
        """The k nearest states with a visible experience, as (row, similarity). Hidden experiences have no influence."""
        if not k or reading is None or not self.visits:
            return []
        if shown is None:
            return self._search(reading, k, threshold)
        fetch = k
        while True:
            fetch = min(2 * fetch, len(self.visits))
            found = self._search(reading, fetch, threshold)
            first = {row: next(iter(self.places(row, shown)), -1) for row, _ in found}
            states = [(row, similarity) for row, similarity in found if first[row] >= 0]
            states = sorted(states, key=lambda state: (-state[1], -first[state[0]]))[:k]
            if len(found) < fetch or fetch == len(self.visits):
                return states
            if len(states) == k and states[-1][1] > found[-1][1]:  # nothing further down can tie with the k-th
                return states

    def _search(self, reading: Any, k: int, threshold: float) -> list[tuple[int, float]]:
        rows, similarities = self.index.nearest(reading, k, threshold, None)
        return list(zip(rows.tolist(), similarities.tolist(), strict=True))


_READ_AT_ONCE = 1024
"""Experiences whose states are read together when a scope is made: enough for an encoder, and little memory."""


@branching("add", "prune", but=("reload",))
class Experiences:
    """A memory of finished episodes that finds the returns of actions in states like the present one.

    A memory may hold several domains (`Trajectory.domain`), several tasks of each, and several runs at once. Episodes
    count in the order in which they were stored. It is safe to use from several threads. Another process sees this one's
    additions after `reload`.

    Args:
        shelf: durable storage of the trajectories; None: they last as long as the process.
        gamma: the discount of the returns, in [0, 1] (JitRL's paper: 0.5 for Jericho, 0.1 for WebArena).
        tokens: the tokens of a state's text. The similarity of two states is the Jaccard index of their sets of tokens
            (Eq. 24); `lambda text: bag(ngrams(words(text), 4))` gives multisets of 4-grams.
        similarity: another comparison of states, in place of `tokens`, such as one by embeddings
            (`memory.search.vectors.CosineSimilarity`). States of one text are one state.
        credit: turns rewards into returns: Eq. 3, or `reference_returns` to reproduce the published code.

    Raises:
        BadExperience: gamma is not in [0, 1], or a stored reward is not finite.
    """

    def __init__(
        self,
        shelf: TrajectoryStore | None = None,
        *,
        gamma: float = 0.5,
        tokens: Callable[[str], Iterable[Hashable]] = shingles,
        similarity: Similarity | None = None,
        credit: Credit = returns,
    ) -> None:
        self.gamma = gamma
        self._credit = credit
        self._shelf = shelf
        self.similarity: Similarity = TokenSimilarity(tokens) if similarity is None else similarity
        self._writing = threading.Lock()  # one episode is stored at a time, while others may still ask
        self._lock = threading.Lock()
        self._episodes: dict[str, tuple[Trajectory, tuple[Experience, ...]]] = {}
        self._scopes: dict[tuple[str, str | None], _Scope] = {}  # (domain, task or None for all), made when asked for
        self._history = History[tuple[Trajectory, tuple[Experience, ...]]]()
        returns((), gamma)  # refuses a bad gamma now rather than at the end of the first episode
        self.reload()

    def __repr__(self) -> str:
        return f"Experiences({len(self)} of {len(self._episodes)} episodes, gamma={self.gamma})"

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
            states = {one.id: one.state for _, experiences in self._episodes.values() for one in experiences}
        head = ("similarity", "action", "visits", "mean return", "age in episodes", "remembered state")
        rows = [
            (one.similarity, one.action, one.count, one.mean, ages.get(one.id.rpartition("/")[0]), states.get(one.id))
            for one in found
        ]
        return make_table(f"{len(found)} recalled of {self!r}", head, rows, len(rows))

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __len__(self) -> int:
        """The number of experiences, that is of steps with a known return."""
        with self._lock:
            return sum(len(experiences) for _, experiences in self._episodes.values())

    def __iter__(self) -> Iterator[Experience]:
        """Every experience, in the order of storing."""
        with self._lock:
            return iter([one for _, experiences in self._episodes.values() for one in experiences])

    def reload(self) -> None:
        """Read the shelf again, and with it the additions of other processes."""
        if self._shelf is None:
            return
        with self._writing:
            dated = dated_records(self._shelf)
            episodes = {trajectory.id: (trajectory, self._derive(trajectory)) for _, trajectory in dated}
            with self._lock:
                self._episodes = episodes
                self._history = History((moment, trajectory.id) for moment, trajectory in dated)
                self._scopes.clear()

    def as_of(self, moment: str) -> Experiences:
        """A copy of the memory as it was at a moment (memory/branches.py), without a shelf."""
        made = Experiences(gamma=self.gamma, similarity=self.similarity, credit=self._credit)
        with self._lock:
            made._episodes = self._history.undo(self._episodes, moment)
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """id -> trajectory, of those added since a moment; `ABSENT` for those deleted."""
        with self._lock:
            return {id: self._episodes.get(str(id), (ABSENT,))[0] for id in self._history.keys_since(moment)}

    def add(self, trajectory: Trajectory) -> None:
        """Add a finished episode, with one write to the shelf. It replaces a stored episode of the same id.

        Steps whose return is missing (see `returns`) leave no experience, nor do lost steps, at which no action was taken.

        Raises:
            BadExperience: a reward is not a finite number; then nothing is stored.
        """
        experiences = self._derive(trajectory)
        with self._writing:
            known = self._episodes.get(trajectory.id)
            if known is not None and known[0] == trajectory:
                return
            keys = [(trajectory.domain, None), (trajectory.domain, trajectory.task.id)]
            open_scopes = [scope for key in keys if (scope := self._scopes.get(key)) is not None]
            readings: dict[str, Any] = {}
            for scope in open_scopes:  # outside the lock: an encoder is slow
                readings |= self._readings(scope, experiences, readings)
            if self._shelf is not None:
                self._shelf.put([trajectory])
            with self._lock:
                self._history.note(trajectory.id, ABSENT if known is None else known)
                self._episodes[trajectory.id] = (trajectory, experiences)
                if known is not None:
                    self._replace(keys, known[1], experiences)
                    return
                for key in keys:
                    if (scope := self._scopes.pop(key, None)) is not None:
                        self._fill(scope, experiences, readings)
                        self._scopes[key] = scope  # only now: an interrupted addition must not count half an episode

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

    def prune(self, *, keep_last: int | None = None, drop: Callable[[Trajectory], bool] = lambda trajectory: False) -> int:
        """Delete all but the last `keep_last` episodes, and those for which `drop` is true; returns the number of deleted ones.

        Raises:
            ValueError: `keep_last` is negative.
        """
        if keep_last is not None and keep_last < 0:
            raise ValueError(f"cannot keep the last {keep_last} episodes: keep_last must be >= 0")
        with self._writing:
            stored = [trajectory for trajectory, _ in self._episodes.values()]
            old = 0 if keep_last is None else max(len(stored) - keep_last, 0)
            gone = [trajectory.id for i, trajectory in enumerate(stored) if i < old or drop(trajectory)]
            if self._shelf is not None and gone:
                self._shelf.delete(gone)
            with self._lock:
                for name in gone:
                    self._history.note(name, self._episodes[name], self._episodes)
                    del self._episodes[name]
                if gone:
                    self._scopes.clear()
        return len(gone)

    def neighbours(self, state: str, k: int, threshold: float = 0.0, **scope: Unpack[ExperienceScope]) -> tuple[Neighbour, ...]:
        """The statistics of each action in the k remembered states most similar to this one (JitRL, Eq. 24).

        The most similar state stands first; among equals, the one met most recently for the first time. A state's actions
        stand in the order of their first try.

        Args:
            state: text of the present state.
            k: the greatest number of distinct states, however often they were visited.
            threshold: the least similarity, in [0, 1]; a state without a common token is never similar.
            scope: says which experiences count. With `before` or `window` the statistics are computed anew from the single
                returns, at a cost that grows with the number of visits.

        Raises:
            ValueError: `window` is negative.
        """
        reading = self._read_query(state, **scope)
        with self._lock:
            view, shown = self._view(**scope)
            neighbours = []
            for row, similarity in view.nearest(reading, k, threshold, shown):
                tallies = view.tallies[row]
                if shown is not None:
                    tallies = {}
                    for experience in map(view.experiences.__getitem__, view.places(row, shown)):
                        tallies.setdefault(experience.action, _Tally()).add(experience)
                neighbours += [
                    Neighbour(tally.newest, similarity, action, tally.count, tally.mean, tally.m2, tally.losses)
                    for action, tally in tallies.items()
                ]
            return tuple(neighbours)

    def moments(self, **scope: Unpack[ExperienceScope]) -> tuple[float, float]:
        """Mean and variance of all returns in scope, in reward units (squared); zeros if there are none. See `neighbours`."""
        with self._lock:
            view, shown = self._view(**scope)
            seen = view.total
            if shown is not None:
                seen = _Tally()
                for place, one in enumerate(view.experiences):
                    if shown(place):
                        seen.add(one)
            return seen.mean, seen.m2 / max(seen.count - 1, 1)

    def raw_neighbours(
        self, state: str, threshold: float = 0.0, **scope: Unpack[ExperienceScope]
    ) -> list[tuple[float, Experience]]:
        """Every single experience in a state at least `threshold` similar, as (similarity, experience), oldest first.

        JitRL's published code neither merges repeated visits nor stops at k. The arguments are those of `neighbours`.
        """
        reading = self._read_query(state, **scope)
        with self._lock:
            view, shown = self._view(**scope)
            found = view.nearest(reading, len(view.visits), threshold, shown)
            placed = sorted((place, similarity) for row, similarity in found for place in view.places(row, shown))
            return [(similarity, view.experiences[place]) for place, similarity in placed]

    def visits(self, id: str, **scope: Unpack[ExperienceScope]) -> tuple[Experience, ...]:
        """The single visits behind a neighbour, oldest first: those in scope to the same action in the same state.

        Args:
            id: of the neighbour, which is that of its newest experience.
            scope: where the neighbour was found. See `neighbours`.

        Raises:
            KeyError: no experience in scope has this id.
        """
        with self._lock:
            view, shown = self._view(**scope)
            newest = next((one for one in reversed(view.experiences) if one.id == id), None)
            if newest is None:
                raise KeyError(f"no experience in scope has the id {id!r}")
            places = view.places(view.rows[newest.state], shown)
            return tuple(one for one in map(view.experiences.__getitem__, places) if one.action == newest.action)

    def _view(
        self,
        *,
        task: str,
        domain: str = "",
        cross_task: bool = False,
        before: tuple[str, int] | None = None,
        window: int | None = None,
    ) -> tuple[_Scope, Callable[[int], bool] | None]:
        if window is not None and window < 0:
            raise ValueError(f"cannot look at the last {window} episodes: window must be >= 0")
        key = (domain, None if cross_task else task)
        scope = self._scopes.get(key)
        if scope is None:
            scope = _Scope(self.similarity)
            inside = [
                experience
                for trajectory, experiences in self._episodes.values()
                if trajectory.domain == domain and (cross_task or trajectory.task.id == task)
                for experience in experiences
            ]
            self._fill(scope, inside, {})
            self._scopes[key] = scope
        return scope, scope.visible(before, window)

    def _fill(self, scope: _Scope, experiences: Sequence[Experience], readings: Mapping[str, Any]) -> None:
        """Add experiences to a scope. `readings` are those of states that were read already."""
        for start in range(0, len(experiences), _READ_AT_ONCE):
            part = experiences[start : start + _READ_AT_ONCE]
            found = {**readings, **self._readings(scope, part, readings)}
            for experience in part:
                scope.add(experience, found.get(experience.state))

    def _readings(self, scope: _Scope, experiences: Sequence[Experience], known: Mapping[str, Any]) -> dict[str, Any]:
        """state -> the form in which it is compared, for those that the scope does not have and that are not known."""
        states = list(dict.fromkeys(one.state for one in experiences if one.state not in scope.rows and one.state not in known))
        return dict(zip(states, self.similarity.read(states), strict=True)) if states else {}

    def _read_query(self, state: str, **scope: Unpack[ExperienceScope]) -> Any:
        """A state that is asked about, as it is compared; None where there is nothing to compare it with."""
        with self._lock:
            view, _ = self._view(**scope)
        return self.similarity.read_query(state) if view.visits else None

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
