"""A table of action values, learned from finished episodes: the memory of the tabular, non-LLM learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records import Trajectory
from ..storage.branches import ABSENT, History, branching
from ..storage.trajectory_store import TrajectoryStore, dated_records

__all__ = ["QTable", "count_note"]


@branching("add")
class QTable:
    """Q(s, a) by Q-learning (Watkins), swept backwards over each finished episode, in the order of the episodes.

    The table is a function of the episodes before the present one, so an episode that is played again after a crash sees the
    same table as before.

    Args:
        store: durable storage of the episodes; None: they last as long as the process.
        gamma: the discount, in [0, 1].
        learning_rate: the share, in [0, 1], by which an update moves Q towards its target.
        initial_value: Q of an untried action, in reward units. Above what can be earned it makes the table try everything.
    """

    def __init__(
        self, store: TrajectoryStore | None = None, gamma: float = 0.95, learning_rate: float = 0.5, initial_value: float = 0.0
    ) -> None:
        self.store, self.gamma, self.learning_rate, self.initial_value = store, gamma, learning_rate, initial_value
        dated = dated_records(store) if store else []
        self._episodes = {t.id: t for _, t in dated}
        self._history = History[Trajectory]((moment, t.id) for moment, t in dated)
        self._q: dict[str, dict[str, float]] = {}  # state -> action -> Q
        self._learned_ids: list[str] = []
        self._asked: tuple[str, int] | None = None  # (run, episode) of the last question, since which nothing was added

    def __len__(self) -> int:
        return len(self._episodes)

    def as_of(self, moment: str) -> QTable:
        """A copy of the table as it was at a moment (memory/storage/branches.py), without a store."""
        made = QTable(None, self.gamma, self.learning_rate, self.initial_value)
        made._episodes = self._history.undo(self._episodes, moment)
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """id -> episode, of those added since a moment."""
        return {id: self._episodes.get(str(id), ABSENT) for id in self._history.keys_since(moment)}

    def add(self, trajectory: Trajectory) -> None:
        """Add a finished episode. Adding it twice counts once; it replaces a different one of the same id."""
        if self._episodes.get(trajectory.id) != trajectory:
            self._history.note(trajectory.id, self._episodes.get(trajectory.id, ABSENT))
            self._episodes[trajectory.id] = trajectory
            self._asked = None
            if trajectory.id in self._learned_ids:
                self._q, self._learned_ids = {}, []
            if self.store:
                self.store.put([trajectory])

    def values(self, run: str, episode: int, state: str, actions: Sequence[str]) -> list[float]:
        """Q(s, a) in reward units, one per action, learned from this run's earlier episodes; the initial value if untried."""
        if self._asked != (run, episode):
            self._learn_before(run, episode)
            self._asked = run, episode
        known = self._q.get(state, {})
        return [known.get(action, self.initial_value) for action in actions]

    def _learn_before(self, run: str, episode: int) -> None:
        """Learn from the episodes of this run before one of them, and from no others."""
        due = sorted((t for t in self._episodes.values() if t.run == run and t.episode < episode), key=lambda t: t.episode)
        ids = [t.id for t in due]
        if ids[: len(self._learned_ids)] != self._learned_ids:  # asked for an earlier episode than before
            self._q, self._learned_ids = {}, []
        for trajectory in due[len(self._learned_ids) :]:
            self._learn(trajectory)
        self._learned_ids = ids

    def _learn(self, trajectory: Trajectory) -> None:
        """Q(s, a) += learning_rate * (r + gamma * max_b Q(s', b) - Q(s, a)), from the last step to the first.

        The maximum is over the actions tried in s'. With an initial value other than 0 it is over all admissible ones, whose
        number in each state stands in the trajectory's note (`count_note`).
        """
        admissible = [int(count) for count in trajectory.note.split()] if self.initial_value else []
        ahead = 0.0  # max_b Q(s', b); nothing follows the last step
        for number, step in reversed([*enumerate(trajectory.transitions)]):
            known = self._q.setdefault(step.state, {})
            if step.reward is not None:
                old = known.get(step.action, self.initial_value)
                known[step.action] = old + self.learning_rate * (step.reward + self.gamma * ahead - old)
            values = [*known.values()]
            if admissible and len(known) < admissible[number]:
                values.append(self.initial_value)
            ahead = max(values, default=0.0)


def count_note(counts: Sequence[int]) -> str:
    """The note of a trajectory with the number of admissible actions at each step."""
    return " ".join(map(str, counts))
