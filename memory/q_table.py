"""A table of action values, learned from finished episodes: the memory of the tabular, non-LLM learner."""

from __future__ import annotations

from collections.abc import Sequence

from .experiences import TrajectoryStore
from .records import Trajectory
from .what_if import skip_in_what_if


class QTable:
    """Q(s, a) by Q-learning (Watkins), swept backwards over each finished episode, in the order of the episodes.

    The table is a function of the episodes before the present one, so an episode that is played again after a crash sees the
    same table as before.

    Args:
        shelf: durable storage of the episodes; None: they last as long as the process.
        gamma: the discount, in [0, 1].
        learning_rate: the share, in [0, 1], by which an update moves Q towards its target.
    """

    def __init__(self, shelf: TrajectoryStore | None = None, gamma: float = 0.95, learning_rate: float = 0.5) -> None:
        self.shelf, self.gamma, self.learning_rate = shelf, gamma, learning_rate
        self._episodes = {t.id: t for t in shelf.all()} if shelf else {}
        self._q: dict[str, dict[str, float]] = {}  # state -> action -> Q
        self._learned_ids: list[str] = []

    @skip_in_what_if
    def add(self, trajectory: Trajectory) -> None:
        """Add a finished episode. Adding it twice counts once; it replaces a different one of the same id."""
        if self._episodes.get(trajectory.id) != trajectory:
            self._episodes[trajectory.id] = trajectory
            if trajectory.id in self._learned_ids:
                self._q, self._learned_ids = {}, []
            if self.shelf:
                self.shelf.put([trajectory])

    def values(self, run: str, episode: int, state: str, actions: Sequence[str]) -> list[float]:
        """Q(s, a) in reward units, one per action, learned from this run's earlier episodes; 0 for an untried action."""
        due = sorted((t for t in self._episodes.values() if t.run == run and t.episode < episode), key=lambda t: t.episode)
        ids = [t.id for t in due]
        if ids[: len(self._learned_ids)] != self._learned_ids:  # asked for an earlier episode than before
            self._q, self._learned_ids = {}, []
        for trajectory in due[len(self._learned_ids) :]:
            self._learn(trajectory)
        self._learned_ids = ids
        known = self._q.get(state, {})
        return [known.get(action, 0.0) for action in actions]

    def _learn(self, trajectory: Trajectory) -> None:
        """Q(s, a) += learning_rate * (r + gamma * max_b Q(s', b) - Q(s, a)), from the last step to the first."""
        after: str | None = None  # the state that the step led to
        for step in reversed(trajectory.transitions):
            known = self._q.setdefault(step.state, {})
            if step.reward is not None:
                ahead = max(self._q[after].values(), default=0.0) if after is not None else 0.0
                old = known.get(step.action, 0.0)
                known[step.action] = old + self.learning_rate * (step.reward + self.gamma * ahead - old)
            after = step.state
