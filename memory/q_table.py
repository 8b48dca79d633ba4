"""A table of action values, learned from finished episodes: the memory of the tabular, non-LLM learner."""

from __future__ import annotations

from collections.abc import Sequence

from .experiences import TrajectoryShelf
from .records import Trajectory


class QTable:
    """Q(s, a) by Q-learning (Watkins), swept backwards over each finished episode, in the order they were played.

    The table is a function of the episodes before the one asked for, so an episode that is played again after a crash sees
    the table that it saw the first time.
    """

    def __init__(self, shelf: TrajectoryShelf | None = None, gamma: float = 0.95, rate: float = 0.5) -> None:
        self.shelf, self.gamma, self.rate = shelf, gamma, rate
        self._episodes = {t.id: t for t in shelf.all()} if shelf else {}
        self._q: dict[tuple[str, str], float] = {}
        self._learned: list[str] = []

    def add(self, trajectory: Trajectory) -> None:
        """Keep a finished episode. Adding it twice keeps it once."""
        if trajectory.id not in self._episodes:
            self._episodes[trajectory.id] = trajectory
            if self.shelf:
                self.shelf.put([trajectory])

    def values(self, run: str, episode: int, state: str, actions: Sequence[str]) -> list[float]:
        """Q(s, a) in reward units, one per action, 0 where never tried, as learned from this run's earlier episodes."""
        due = sorted((t for t in self._episodes.values() if t.run == run and t.episode < episode), key=lambda t: t.episode)
        ids = [t.id for t in due]
        if ids[: len(self._learned)] != self._learned:  # asked for an earlier episode than before
            self._q, self._learned = {}, []
        for trajectory in due[len(self._learned) :]:
            self._learn(trajectory)
        self._learned = ids
        return [self._q.get((state, action), 0.0) for action in actions]

    def _learn(self, trajectory: Trajectory) -> None:
        ahead, after = 0.0, None
        best: dict[str, float] = {}
        for (state, _), q in self._q.items():
            best[state] = max(best.get(state, q), q)
        for step in reversed(trajectory.transitions):
            if step.reward is None:
                continue
            ahead = best.get(after, 0.0) if after is not None else 0.0
            key = (step.state, step.action)
            old = self._q.get(key, 0.0)
            self._q[key] = old + self.rate * (step.reward + self.gamma * ahead - old)
            best[step.state] = max(best.get(step.state, self._q[key]), self._q[key])
            after = step.state
