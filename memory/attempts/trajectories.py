"""AdaMEM's long-term memory: the steps of remembered trajectories, found by the state in which they were taken.

A record is a step. Its key phi(s_t) is a text about the state; its value is the action, the rest of the trajectory and the
outcome. The memory keeps of the value only the reference (trajectory id, step): T steps cost T records, where a copy of each
rest, as in the published code, costs T^2.

Source: arXiv 2606.05684, section 3. Added to the paper: failures and graded returns, a least similarity, and a memory that grows.
"""

from __future__ import annotations

import hashlib
import math
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from ..conversations.messages import REPLY
from ..display import ShownAsTable, Table, make_table
from ..errors import UserError
from ..records import Precedent, Task, Trajectory, Transition
from ..returns.experiences import returns
from ..search.similarity import JaccardSimilarity, Similarity
from ..storage.branches import ABSENT, History, branching
from ..storage.record_store import read_jsonl
from ..storage.trajectory_store import TrajectoryStore, dated_records

__all__ = [
    "BadMemory",
    "KeyFunction",
    "OutcomeFilter",
    "Trajectories",
    "goal_key",
    "is_rewarded",
    "read_bank",
    "return_to_go",
    "structured_key",
    "whole_prompt_key",
]

OutcomeFilter = Literal["success", "all"]
"""The trajectories to search, by outcome."""

KeyFunction = Callable[[Task, Sequence[Transition], str], str]
"""(task, the steps before, the present abstract state) -> phi(s_t), the text by which the step is found."""


_Filters = tuple[OutcomeFilter, str, str | None, tuple[str, int] | None]
"""The kind, domain, task and `before` of a search."""


class BadMemory(UserError, ValueError):
    """An error: a setting, a bank or a query is invalid."""


def structured_key(task: Task, before: Sequence[Transition], state: str) -> str:
    """The goal and the present state, on labelled lines; earlier steps play no part.

    The abstract state is the part that an environment compares: the last observation, the inventory, the sub-goal.
    """
    return f"goal: {_line(task.instruction)}\nstate: {state}"


def whole_prompt_key(task: Task, before: Sequence[Transition], state: str) -> str:
    """The goal, all the steps before, and the present state: the whole prompt, as in the paper.

    Its length grows with t, and so do the tokens of a lexical index: T steps cost T^2 there (a dense index keeps one vector
    per step). The text that all prompts share outweighs the present state. Use it for comparison with the paper.
    """
    past = "".join(f"{step.state}\n> {step.action}\n" for step in before)
    return f"{_line(task.instruction)}\n{past}{state}"


def goal_key(task: Task, before: Sequence[Transition], state: str) -> str:
    """The task's text only, the same at each of its steps (Synapse, ReasoningBank)."""
    return task.instruction


def _line(text: str) -> str:
    return " ".join(text.split())


def is_rewarded(trajectory: Trajectory) -> bool | None:
    """True if the attempt's return is above 0: success, where only success is rewarded. None if a reward is missing."""
    return None if trajectory.value is None else trajectory.value > 0


def return_to_go(trajectory: Trajectory, step: int) -> float | None:
    """The sum of the rewards from this step (from 0) on, its own included; None if a reward is missing.

    Raises:
        BadMemory: the trajectory has no such step.
    """
    if not 0 <= step < len(trajectory.transitions):
        raise BadMemory(f"trajectory '{trajectory.id}' has {len(trajectory.transitions)} steps, asked for step {step}")
    return returns([transition.reward for transition in trajectory.transitions[step:]], 1.0)[0]


def read_bank(path: str | Path) -> tuple[Trajectory, ...]:
    """The trajectories of a JSONL file, as `learngraph memory export` writes them.

    Raises:
        UserError: a line is not a trajectory, two lines have one id, or there is none; names file, line and expectation.
    """
    found: dict[str, Trajectory] = {}
    for number, trajectory in read_jsonl(Trajectory, path):
        if trajectory.id in found:
            raise BadMemory(
                f"{path}, line {number}: trajectory '{trajectory.id}' was there before; each needs an id of its own"
            )
        found[trajectory.id] = trajectory
    if not found:
        raise BadMemory(f"{path} holds no trajectory: expected one per line, as `learngraph memory export` writes them")
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class _IndexedTrajectory:
    """A trajectory and the place of its records, which are neighbouring rows of the index."""

    trajectory: Trajectory
    success: bool | None
    own: bool  # from the run's store, not from a bank
    start: int  # its first row
    count: int  # of rows


_COLUMNS = {"domain": "i", "task": "i", "run": "i", "episode": "q", "own": "b", "success": "b", "count": "i"}


@branching("add", but=("reload", "is_durable"))
class Trajectories(ShownAsTable):
    """A memory of the steps of finished episodes that finds those taken in states like the present one.

    Args:
        store: durable storage of the run's own trajectories; None: they last as long as the process.
        bank: trajectories made elsewhere, by another model or from walkthroughs. They are searched beside the run's own,
            never change, and count as older than all of those.
        key: phi, which makes the text by which a step is found; query with `memory.key(task, before, state)`.
        similarity: compares keys; None: by their tokens (`JaccardSimilarity`). `memory.search.vectors.CosineSimilarity`
            compares embeddings.
        success: tells whether an attempt succeeded; attempts for which it returns None are found only with the kind `all`.
        first_only: one record per trajectory, its first step (Synapse).
        run: the run that will add to the memory. A bank with episodes of that run is refused here, before an episode is lost.

    Raises:
        BadMemory: a setting is out of range, or two trajectories share an id.

    The memory is safe to use from several threads. Another process sees this one's additions after `reload`.
    """

    def __init__(
        self,
        store: TrajectoryStore | None = None,
        *,
        bank: Iterable[Trajectory] = (),
        key: KeyFunction = structured_key,
        similarity: Similarity | None = None,
        success: Callable[[Trajectory], bool | None] = is_rewarded,
        first_only: bool = False,
        run: str = "",
    ) -> None:
        self.key = key
        self.similarity: Similarity = JaccardSimilarity() if similarity is None else similarity
        self._store = store
        self._success = success
        self._first_only = first_only
        self._writing = threading.Lock()  # one episode is stored at a time, while others may still ask
        self._lock = threading.Lock()
        self._bank: dict[str, Trajectory] = {}
        for trajectory in bank:
            if self._bank.setdefault(trajectory.id, trajectory) != trajectory:
                raise BadMemory(f"the bank has two trajectories '{trajectory.id}': each needs an id of its own")
        if run and (same := next((id for id in self._bank if id.rpartition("/")[0] == run), None)) is not None:
            self._refuse(same)
        self._history = History[Trajectory]()
        self._load({})
        if store is not None:
            self.reload()

    def __repr__(self) -> str:
        return f"Trajectories({len(self)} steps of {len(self._kept)} trajectories, {len(self._bank)} of them from a bank)"

    def table(self) -> Table:
        """A table of the trajectories, the newest first; those of a bank last."""
        found = list(self)
        consulted = Counter(id for one in found for id in set(one.used))
        head = ("trajectory", "task", "steps", "score", "consulted by", "note")
        rows = (
            (one.id, one.task.instruction or one.task.id, len(one.transitions), one.score, consulted[one.id], one.note)
            for one in reversed(found)
        )
        return make_table(repr(self), head, rows, len(found))

    def recall_table(self, key: str, k: int = 10, **filters: Any) -> Table:
        """A table of what a search would find, and why: similarity, return from that step on, and age in trajectories.

        Args:
            key, k, filters: as for `search`.
        """
        found = self.search(key, k, **filters)
        ages = {one.id: number for number, one in enumerate(reversed(list(self)))}
        rows = []
        for one in found:
            trajectory = self.trajectory(one.trajectory)
            step = trajectory.transitions[one.step]
            ahead = return_to_go(trajectory, one.step)
            rows.append(
                (one.similarity, step.action, ahead, ages[one.trajectory], f"{one.trajectory}, step {one.step}", step.state)
            )
        head = ("similarity", "action", "return from there", "age in trajectories", "step", "remembered state")
        return make_table(f"{len(rows)} recalled of {self!r}", head, rows, len(rows))

    def __len__(self) -> int:
        """The number of records that are searched."""
        with self._lock:
            return sum(kept.count for kept in self._kept)

    def __iter__(self) -> Iterator[Trajectory]:
        """Every trajectory: the bank's, then the run's own in the order of storing."""
        with self._lock:
            return iter([kept.trajectory for kept in self._kept])

    def __contains__(self, id: object) -> bool:
        with self._lock:
            return id in self._places

    @property
    def is_durable(self) -> bool:
        """True if trajectories outlive the process, in a store."""
        return self._store is not None

    def reload(self) -> None:
        """Read the store again, and with it the additions of other processes."""
        if self._store is not None:
            with self._writing:
                dated = dated_records(self._store)
                self._load({trajectory.id: trajectory for _, trajectory in dated})
                self._history = History((moment, trajectory.id) for moment, trajectory in dated)

    def as_of(self, moment: str) -> Trajectories:
        """A copy of the memory as it was at a moment (memory/storage/branches.py), without a store."""
        made = Trajectories(
            bank=self._bank.values(),
            key=self.key,
            similarity=self.similarity,
            success=self._success,
            first_only=self._first_only,
        )
        with self._lock:
            own = self._history.undo({kept.trajectory.id: kept.trajectory for kept in self._kept if kept.own}, moment)
        made._load(own)
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """id -> trajectory, of those added since a moment."""
        with self._lock:
            own = {kept.trajectory.id: kept.trajectory for kept in self._kept if kept.own}
            return {id: own.get(str(id), ABSENT) for id in self._history.keys_since(moment)}

    def add(self, trajectory: Trajectory) -> None:
        """Add a finished episode, with one write to the store. It replaces a stored episode of the same id.

        A trajectory without steps is stored and never found.

        Raises:
            BadMemory: a reward is not a finite number, or the bank has a trajectory of this id; then nothing is stored.
        """
        self._check(trajectory)
        readings, pairs = self._read(trajectory)
        with self._writing:
            known = self._places.get(trajectory.id)
            if known is not None and self._kept[known].trajectory == trajectory:
                return
            if self._store is not None:
                self._store.put([trajectory])
            self._history.note(trajectory.id, ABSENT if known is None else self._kept[known].trajectory)
            if known is None:
                with self._lock:
                    self._append(trajectory, readings, pairs, own=True)
            elif not self._replace(known, trajectory, pairs):  # its records stand among others: rebuild the index in order
                own = {kept.trajectory.id: kept.trajectory for kept in self._kept if kept.own}
                self._load({**own, trajectory.id: trajectory})

    def search(
        self,
        key: str,
        k: int,
        *,
        kind: OutcomeFilter = "all",
        min_similarity: float | None = 0.0,
        per_trajectory: int = 1,
        distinct: bool = False,
        domain: str = "",
        task: str | None = None,
        before: tuple[str, int] | None = None,
    ) -> list[Precedent]:
        """The k records whose keys are most similar to this one. The search is exact, as if comparing with every record.

        The most similar record stands first, among equals the newest (later stored, then later in its trajectory).

        Args:
            key: phi(s_t), see `key`.
            k: the number of records, at least 1.
            kind: the trajectories to search; those of unknown outcome are found only with `all`.
            min_similarity: the least similarity, in [0, 1], for cosines in [-1, 1]; None: the default of the memory's
                comparison (`Similarity.default_floor`). Keys without a common token are never similar.
            per_trajectory: the greatest number of records of one trajectory, since neighbouring steps are redundant; 0: any.
            distinct: of records with the same key text and the same action only the best counts: that with the greatest return
                from there on (`return_to_go`; an unknown one is the least), among equals the newest. The others are redundant,
                and an agent that plays a task many times makes many of them. The last step of a failure does not count if nobody
                knows what came of it, as where a limit has cut the attempt off.
            domain: only trajectories of this domain.
            task: only those of the task with this id.
            before: (run, episode): that run's own episodes from this number on count as if they had never been stored.

        Returns:
            The precedents; empty if there is none.

        Raises:
            BadMemory: an argument is out of range.
        """
        min_similarity = self.similarity.default_floor if min_similarity is None else min_similarity
        self._check_query(k, kind, min_similarity, per_trajectory)
        filters = kind, domain, task, before
        with self._lock:
            if not self._among(filters, distinct).any():
                return []
        reading = self.similarity.read_query(key)  # outside the lock: an encoder is slow
        with self._lock:
            found = self._nearest(reading, k, min_similarity, per_trajectory, self._among(filters, distinct))
            return [self._precedent(row, similarity) for similarity, row in found]

    def _check_query(self, k: int, kind: OutcomeFilter, min_similarity: float, per_trajectory: int) -> None:
        if k < 1:
            raise BadMemory(f"asked for {k} precedents: k is at least 1")
        least = self.similarity.minimum
        if not least <= min_similarity <= 1:
            raise BadMemory(f"a least similarity of {min_similarity}: similarities are between {least:g} and 1")
        if per_trajectory < 0:
            raise BadMemory(f"at most {per_trajectory} precedents of one trajectory: at least 1, or 0 for any number")
        if kind not in get_args(OutcomeFilter):
            raise BadMemory(f"precedents of the kind {kind!r}: there are {', '.join(get_args(OutcomeFilter))}")

    def trajectory(self, id: str) -> Trajectory:
        """The trajectory with this id.

        Raises:
            BadMemory: there is none.
        """
        with self._lock:
            return self._kept[self._place(id)].trajectory

    def _nearest(
        self, reading: Any, k: int, min_similarity: float, cap: int, among: NDArray[np.bool_]
    ) -> list[tuple[float, int]]:
        """At most k records as (similarity, row). The ranking is fetched in growing parts until they are certain."""
        if not among.any():
            return []
        everything, shown = len(among), None if among.all() else among
        fetch = 4 * k if cap else k
        while True:
            rows, similarities = self._rows.nearest(reading, fetch, min_similarity, shown)
            taken: dict[int, int] = {}
            found = []
            for similarity, row in zip(similarities.tolist(), rows.tolist(), strict=True):
                owner = self._owners[row]
                taken[owner] = taken.get(owner, 0) + 1
                if not cap or taken[owner] <= cap:
                    found.append((similarity, row))
            if len(found) >= k or len(rows) < fetch:
                return found[:k]
            fetch = min(4 * fetch, everything + 1)

    def _among(self, filters: _Filters, distinct: bool) -> NDArray[np.bool_]:
        """row -> whether it may be found; with `distinct`, of those with one key and action the best alone."""
        kind, domain, task, before = filters
        if before is not None and self._latest.get(before[0], before[1] - 1) < before[1]:
            before = None  # hides nothing
        asked = (kind, domain, task, before), distinct
        if asked not in self._masks:
            if len(self._masks) == 8:
                del self._masks[next(iter(self._masks))]
            self._masks[asked] = self._mask(kind, domain, task, before, distinct)
        return self._masks[asked]

    def _mask(
        self, kind: OutcomeFilter, domain: str, task: str | None, before: tuple[str, int] | None, distinct: bool
    ) -> NDArray[np.bool_]:
        has = {name: np.array(column) for name, column in self._columns.items()}
        shown = has["domain"] == self._names.get(domain, -1)
        if task is not None:
            shown &= has["task"] == self._names.get(task, -1)
        if kind == "success":
            shown &= has["success"] == 1
        if before is not None:
            shown &= ~((has["own"] == 1) & (has["run"] == self._names.get(before[0], -1)) & (has["episode"] >= before[1]))
        rows: NDArray[np.bool_] = np.repeat(shown, has["count"])
        if distinct:  # a search without repeats is as fast in a memory of a thousand plays of one task as in one of ten
            worths, pairs = np.array(self._worths), np.array(self._pairs, np.intp)
            seen = np.flatnonzero(rows & ~np.isnan(worths))
            most, best = np.full(len(self._numbers), -math.inf), np.full(len(self._numbers), -1)
            np.maximum.at(most, pairs[seen], worths[seen])
            seen = seen[worths[seen] == most[pairs[seen]]]
            best[pairs[seen]] = seen  # the last of equals stays
            rows[:] = False
            rows[best[best >= 0]] = True
        return rows

    def _precedent(self, row: int, similarity: float) -> Precedent:
        kept = self._kept[self._owners[row]]
        return Precedent(kept.trajectory.id, row - kept.start, similarity, kept.success)

    def _place(self, id: str) -> int:
        place = self._places.get(id)
        if place is None:
            raise BadMemory(f"this memory has no trajectory '{id}': it has {len(self._places)} others")
        return place

    def _load(self, own: dict[str, Trajectory]) -> None:
        """Rebuild the index from the bank and these trajectories."""
        for trajectory in own.values():
            self._check(trajectory)
        read = [(t, *self._read(t), t.id in own) for t in (*self._bank.values(), *own.values())]
        with self._lock:
            self._rows = self.similarity.rows()
            self._owners = array("i")  # row -> place of its trajectory
            self._pairs = array("i")  # row -> number of its key and action
            self._worths = array("d")  # row -> the return from there on, see `_worths`
            self._numbers: dict[bytes, int] = {}  # hash of a key and an action -> their number
            self._kept: list[_IndexedTrajectory] = []
            self._places: dict[str, int] = {}
            self._latest: dict[str, int] = {}  # run -> its last own episode
            self._columns = {name: array(kind) for name, kind in _COLUMNS.items()}  # by place: what searches filter by
            self._names: dict[str, int] = {}  # text in a column -> its number
            self._masks: dict[tuple[_Filters, bool], NDArray[np.bool_]] = {}  # of the latest searches since the last change
            for trajectory, readings, pairs, mine in read:
                self._append(trajectory, readings, pairs, mine)

    def _check(self, trajectory: Trajectory) -> None:
        if trajectory.id in self._bank:
            self._refuse(trajectory.id)
        for step, transition in enumerate(trajectory.transitions):
            if transition.reward is not None and not math.isfinite(transition.reward):
                raise BadMemory(
                    f"trajectory '{trajectory.id}': the reward of step {step} is {transition.reward}; "
                    "give a finite number, or None where it is not known"
                )

    def _refuse(self, id: str) -> NoReturn:
        raise BadMemory(
            f"trajectory '{id}' is in the bank as well as among the run's own: give the run another name, or give its "
            "folder as the bank (--bank RUN_FOLDER): what is taken from there is named after the folder"
        )

    def _read(self, trajectory: Trajectory) -> tuple[Sequence[Any], list[bytes]]:
        """(each record's key as the similarity reads it, a hash of its key and action)"""
        steps = trajectory.transitions
        chosen = range(min(1, len(steps)) if self._first_only else len(steps))
        keys = [self.key(trajectory.task, steps[:t], steps[t].state) for t in chosen]
        pairs = [_digest(key, steps[t].action) for key, t in zip(keys, chosen, strict=True)]
        return self.similarity.read(keys), pairs

    def _append(self, trajectory: Trajectory, readings: Sequence[Any], pairs: Sequence[bytes], own: bool) -> None:
        place = len(self._kept)
        kept = _IndexedTrajectory(trajectory, self._success(trajectory), own, len(self._owners), len(readings))
        for reading in readings:
            self._rows.add(reading)
        self._owners.extend([place] * len(readings))
        self._pairs.extend([self._numbers.setdefault(pair, len(self._numbers)) for pair in pairs])
        self._worths.extend(_worths(trajectory, kept.success)[: len(readings)])
        self._kept.append(kept)
        self._places[trajectory.id] = place
        for name, value in self._row(kept).items():
            self._columns[name].append(value)
        if own:
            self._latest[trajectory.run] = max(trajectory.episode, self._latest.get(trajectory.run, trajectory.episode))
        self._masks.clear()

    def _row(self, kept: _IndexedTrajectory) -> dict[str, int]:
        one = kept.trajectory
        domain, task, run = (self._names.setdefault(text, len(self._names)) for text in (one.domain, one.task.id, one.run))
        success = -1 if kept.success is None else kept.success
        return dict(zip(_COLUMNS, (domain, task, run, one.episode, kept.own, success, kept.count), strict=True))

    def _replace(self, place: int, trajectory: Trajectory, pairs: Sequence[bytes]) -> bool:
        """Put a trajectory at the place of one with the same keys and actions, such as one with another reward.

        Returns False, and changes nothing, if they are not the same.
        """
        kept = self._kept[place]
        same_name = (trajectory.run, trajectory.episode) == (kept.trajectory.run, kept.trajectory.episode)
        numbers = [self._numbers.get(pair) for pair in pairs]
        if not same_name or numbers != self._pairs[kept.start : kept.start + kept.count].tolist():
            return False
        with self._lock:
            self._kept[place] = replace(kept, trajectory=trajectory, success=self._success(trajectory))
            self._worths[kept.start : kept.start + kept.count] = _worths(trajectory, self._success(trajectory))[: kept.count]
            for name, value in self._row(self._kept[place]).items():
                self._columns[name][place] = value
            self._masks.clear()
        return True


def _digest(*texts: str) -> bytes:
    """A short hash of texts, in place of keys as long as a whole prompt."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _worths(trajectory: Trajectory, success: bool | None) -> array[float]:
    """Each step's return from there on; minus infinity where a reward is missing, NaN where the step proves nothing.

    The last step of a failure proves nothing if nobody knows what came of it, as where a limit has cut the attempt off. A reply in
    words ends a turn, and its rating says what came of it.
    """
    steps = trajectory.transitions
    worths = array("d", [-math.inf if one is None else one for one in returns([step.reward for step in steps], 1.0)])
    is_answered = trajectory.lost or trajectory.last_observation or not steps or steps[-1].reward
    if success is False and not is_answered and not steps[-1].action.startswith(REPLY):
        worths[-1] = math.nan
    return worths
