"""The experiences that may be neighbours of each other, in columns: 26 bytes for a visit to a state, and the index of the states."""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..records import Experience
from ..search.sections import SectionRows
from ..search.segments import MERGE_ROWS, IndexSegment, TokenSegments
from ..search.similarity import JaccardIndex

__all__ = ["Scope"]

PART_ROWS = 1 << 15
"""Rows of an index in Python's objects, which take 12 kB for a new text of 60 words, before they become a segment, of 2 kB."""
_COLUMNS = {"episode": "i", "step": "i", "action": "i", "row": "i", "value": "d", "lost": "b"}


@dataclass(slots=True)
class Tally:
    """Welford's running count, mean and M2 of the returns of one action in one state."""

    newest: str = ""
    """Id of the newest experience."""
    count: int = 0
    mean: float = 0.0
    """Mean return."""
    m2: float = 0.0
    """Sum of squared deviations from the mean."""
    losses: int = 0
    """Number of experiences with which an episode was lost."""

    def add(self, id: str, value: float, lost: bool) -> None:
        """Count an experience."""
        self.newest = id
        self.count += 1
        self.losses += lost
        off = value - self.mean
        self.mean += off / self.count
        self.m2 += off * (value - self.mean)


def merge_parts(parts: Sequence[Any]) -> list[IndexSegment]:
    """The parts of an index as segments, small ones merged."""
    groups: list[list[IndexSegment]] = []
    for part in parts:
        groups.append([part if isinstance(part, IndexSegment) else IndexSegment.of(part)])
        while len(groups) > 1:
            before, last = (sum(map(len, group)) for group in groups[-2:])
            if before >= 2 * last or before + last > MERGE_ROWS:
                break  # so that each row is merged only so often as the memory doubles
            groups[-2:] = [groups[-2] + groups[-1]]
    return [group[0] if len(group) == 1 else IndexSegment.merge(group) for group in groups]


class Scope:
    """The experiences of one task, or of one domain.

    Args:
        index: rows of states, one for each distinct state: `Similarity.rows()`, or `TokenSegments` where snapshots are kept.
    """

    def __init__(self, index: Any) -> None:
        self.index = index
        self.rows: dict[str, int] = {}  # state text -> row; of a snapshot, only texts that were met again
        self.row_count = 0
        self.saved = 0  # experiences that a snapshot has; -1 if one of them has changed
        self.latest: dict[str, int] = {}  # run -> its last episode here
        self._episodes: list[tuple[str, str, int, str]] = []  # (id, run, number, task) of each trajectory with an experience
        self._actions: dict[str, int] = {}  # action -> its number
        self._action_texts: list[str] = []
        self._columns: dict[str, array[Any]] = {
            name: array(kind) for name, kind in _COLUMNS.items()
        }  # by the order of storing: a visit's place
        self._older: tuple[NDArray[np.intp], NDArray[np.intp]] | None = (
            None  # places of a snapshot by row; where each row begins
        )
        self._visits: dict[int, array[int]] = {}  # row -> its places after those
        self._tallies: dict[int, dict[str, Tally]] = {}  # row -> action -> statistics, of the rows that were asked for
        self._moments: tuple[float, float] | None = None  # of all returns; None: to be counted

    def __len__(self) -> int:
        """The number of experiences."""
        return len(self._columns["row"])

    def __repr__(self) -> str:
        return f"Scope({len(self)} experiences of {self.row_count} states)"

    def add(self, experience: Experience, reading: Any) -> None:
        """Add an experience; `reading` is its state as it is compared."""
        row = self.rows.get(experience.state)
        if row is None:
            # Texts that no query can tell apart share a row.
            row = self.index.find(reading) if isinstance(self.index, JaccardIndex | SectionRows | TokenSegments) else None
            if row is None:
                row = self.row_count
                self.index.add(reading)
                self.row_count += 1
            self.rows[experience.state] = row
        trajectory, _, step = experience.id.rpartition("/")
        if not self._episodes or self._episodes[-1][0] != trajectory:
            self._episodes.append((trajectory, experience.run, experience.episode, experience.task))
            self.latest[experience.run] = max(experience.episode, self.latest.get(experience.run, experience.episode))
        action = self._actions.setdefault(experience.action, len(self._actions))
        if action == len(self._action_texts):
            self._action_texts.append(experience.action)
        place = len(self)
        values = (len(self._episodes) - 1, int(step), action, row, experience.value, experience.lost)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        if row not in self._visits:
            self._visits[row] = array("i")
        self._visits[row].append(place)
        self._moments = None
        if (tallies := self._tallies.get(row)) is not None:
            tallies.setdefault(experience.action, Tally()).add(experience.id, experience.value, experience.lost)

    def id_at(self, place: int) -> str:
        """The id of the experience at a place."""
        return f"{self.trajectory_at(place)}/{self._columns['step'][place]}"

    def trajectory_at(self, place: int) -> str:
        """The id of its trajectory."""
        number: int = self._columns["episode"][place]
        return self._episodes[number][0]

    def find(self, id: str) -> int | None:
        """The place of the experience with this id, if there is one."""
        trajectory, _, step = id.rpartition("/")
        return self._places_of(trajectory).get(int(step)) if step.isdecimal() else None

    def _places_of(self, trajectory: str) -> dict[int, int]:
        """step -> place, of the experiences of a trajectory."""
        number = next((n for n in reversed(range(len(self._episodes))) if self._episodes[n][0] == trajectory), None)
        places = [] if number is None else np.flatnonzero(np.array(self._columns["episode"]) == number).tolist()
        return {self._columns["step"][place]: place for place in places}

    def places_like(self, place: int, shown: Callable[[int], bool] | None) -> list[int]:
        """The places of the visible experiences of the same action in the same state."""
        actions = self._columns["action"]
        return [other for other in self.places(self._columns["row"][place], shown) if actions[other] == actions[place]]

    def replace(self, before: Sequence[Experience], after: Sequence[Experience]) -> None:
        """Put experiences in the place of those with the same ids, states and actions, whose returns were others."""
        rows = set[int]()
        places = self._places_of(before[0].id.rpartition("/")[0]) if before else {}
        for old, new in zip(before, after, strict=True):
            place = places[int(old.id.rpartition("/")[2])]
            self._columns["value"][place], self._columns["lost"][place] = new.value, new.lost
            rows.add(self._columns["row"][place])
            self.saved = self.saved if place >= self.saved else -1
        for row in rows:
            self._tallies.pop(row, None)
        self._moments = None

    def tallies(self, row: int, shown: Callable[[int], bool] | None, newest: int | None = None) -> dict[str, Tally]:
        """action -> statistics of the visible experiences of a row, or of so many of its newest."""
        if newest is not None:
            return self._count(self.places(row, shown)[-newest:])
        if shown is not None:
            return self._count(self.places(row, shown))
        if row not in self._tallies:
            self._tallies[row] = self._count(self.places(row, None))
        return self._tallies[row]

    def _count(self, places: Sequence[int]) -> dict[str, Tally]:
        found: dict[str, Tally] = {}
        actions, values, lost = self._columns["action"], self._columns["value"], self._columns["lost"]
        for place in places:
            found.setdefault(self._action_texts[actions[place]], Tally()).add(self.id_at(place), values[place], lost[place])
        return found

    def count_elsewhere(self, row: int, task: str, shown: Callable[[int], bool] | None) -> Counter[str]:
        """Action -> number of the visible experiences of a row that come from other tasks than this one."""
        actions, of_place = self._columns["action"], self._columns["episode"]
        places = (place for place in self.places(row, shown) if self._episodes[of_place[place]][3] != task)
        return Counter(self._action_texts[actions[place]] for place in places)

    def moments(self, shown: Callable[[int], bool] | None) -> tuple[float, float]:
        """Mean and variance of all visible returns; zeros if there are none."""
        if shown is None and self._moments is not None:
            return self._moments
        values = np.array(self._columns["value"])
        if shown is not None:
            values = values[[place for place in range(len(values)) if shown(place)]]
        found = (float(values.mean()), float(values.var(ddof=1)) if len(values) > 1 else 0.0) if len(values) else (0.0, 0.0)
        if shown is None:
            self._moments = found
        return found

    def visible(
        self, before: tuple[str, int] | None, window: int | None, hidden_task: str = ""
    ) -> Callable[[int], bool] | None:
        """A test for the places that may be seen; None where all may be."""
        run, episode = before or ("", 0)
        if before is not None and self.latest.get(run, episode - 1) < episode:
            before = None
        if before is None and window is None and not hidden_task:
            return None
        episodes, of_place = self._episodes, self._columns["episode"]

        def is_visible(place: int) -> bool:
            _, seen_run, number, task = episodes[of_place[place]]
            return (before is None or seen_run != run or number < episode) and (not hidden_task or task != hidden_task)

        if window is None:
            return is_visible
        start, trajectories = len(self), set[str]()
        for place in reversed(range(len(self))):
            if is_visible(place):
                trajectories.add(self.trajectory_at(place))
                if len(trajectories) > window:
                    break
            start = place
        return lambda place: place >= start and is_visible(place)

    def places(self, row: int, shown: Callable[[int], bool] | None) -> list[int]:
        """The places of the visible experiences of a row, in the order of storing."""
        found: list[int] = []
        if self._older is not None:
            order, starts = self._older
            if row + 1 < len(starts):
                found = order[starts[row] : starts[row + 1]].tolist()
        found += self._visits.get(row, ())
        return found if shown is None else [place for place in found if shown(place)]

    def nearest(self, reading: Any, k: int, threshold: float, shown: Callable[[int], bool] | None) -> list[tuple[int, float]]:
        """The k nearest states with a visible experience, as (row, similarity). Hidden experiences have no influence."""
        if not k or reading is None or not self.row_count:
            return []
        if shown is None:
            return self._search(reading, k, threshold)
        fetch = k
        while True:
            fetch = min(2 * fetch, self.row_count)
            found = self._search(reading, fetch, threshold)
            first = {row: next(iter(self.places(row, shown)), -1) for row, _ in found}
            states = [(row, similarity) for row, similarity in found if first[row] >= 0]
            states = sorted(states, key=lambda state: (-state[1], -first[state[0]]))[:k]
            if len(found) < fetch or fetch == self.row_count:
                return states
            if len(states) == k and states[-1][1] > found[-1][1]:  # nothing further down can tie with the k-th
                return states

    def _search(self, reading: Any, k: int, threshold: float) -> list[tuple[int, float]]:
        rows, similarities = self.index.nearest(reading, k, threshold, None)
        return list(zip(rows.tolist(), similarities.tolist(), strict=True))

    @property
    def has_full_part(self) -> bool:
        """True if the part of the index that grows should become a segment."""
        return isinstance(self.index, TokenSegments) and self.index.newest >= PART_ROWS

    def copy(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]], list[Any]]:
        """All that a snapshot needs: what else belongs to it, columns, and the parts of the index, which do not change any more."""
        self.index.begin_part()
        meta = {"episodes": list(self._episodes), "actions": list(self._action_texts), "rows": self.row_count}
        columns = {name: np.array(column) for name, column in self._columns.items()}
        return meta, columns, [part for part in self.index.parts[:-1] if len(part)]

    @classmethod
    def load(cls, meta: Mapping[str, Any], columns: Mapping[str, NDArray[Any]], segments: Sequence[IndexSegment]) -> Self:
        """The scope of a snapshot."""
        made = cls(TokenSegments(segments))
        made.row_count = int(meta["rows"])
        made._episodes = [(id, run, number, task) for id, run, number, task in meta["episodes"]]
        for _, run, number, _ in made._episodes:
            made.latest[run] = max(number, made.latest.get(run, number))
        made._action_texts = list(meta["actions"])
        made._actions = {action: number for number, action in enumerate(made._action_texts)}
        for name, column in made._columns.items():
            column.frombytes(columns[name].tobytes())
        rows = columns["row"]
        made._older = (
            np.argsort(rows, kind="stable"),
            np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=made.row_count))]),
        )
        made.saved = len(made)
        return made
