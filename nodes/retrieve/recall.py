"""Recall the returns of similar states, and remember those of this episode (JitRL, arXiv:2601.18510)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...memory.records import Experience, Neighbour, Trajectory
from ...memory.returns.experiences import Experiences, ExperienceScope
from ...memory.returns.progress import last_progress
from ...memory.storage.journal import Journal
from ..act.advantage import reference_returns
from ..act.episode import EarnedReturn, Environment, FinishedEpisode, build_trajectory
from ..arguments import Share
from ..state import HeadChannel, NeighbourChannels, RecallChannels, Situation

__all__ = ["Recall", "RecallVisits", "ReferenceRecall", "ReferenceRemember", "Remember"]


class SituationWithHistory(Situation, HeadChannel):
    """The present observation, its place in an episode of a task, and the steps that led there."""


@dataclass(frozen=True)
class ExperienceQuery:
    """The settings that the nodes of this file share: a memory, and which of its states are neighbours of the present one."""

    role: ClassVar[str] = "memory"

    experiences: Experiences
    environment: Environment
    k: int
    """Greatest number of remembered states."""
    threshold: float
    """The least similarity, in [0, 1]."""
    cross_task: bool = False
    """True: experience from other tasks of the same environment counts."""
    only_other_tasks: bool = False
    """True: with `cross_task`, experience from this very task does not count: a cold start."""
    threshold_decay: float = 0.0
    """Fall of the threshold over the first 20 steps of an episode: later states are longer told, and seldom quite alike."""

    def least_similarity(self, state: Situation) -> float:
        """The least similarity of a neighbour at this step of the episode."""
        fall = self.threshold_decay * min(state["step"] / 20, 1) if self.threshold_decay else 0.0
        return max(self.threshold - fall, 0.0)

    def scope(self, state: Situation) -> ExperienceScope:
        """The experiences that count in this state: of this environment, from before this episode."""
        return {
            "task": state["task"].id,
            "domain": self.environment.name,
            "cross_task": self.cross_task,
            "only_other_tasks": self.only_other_tasks,
            "before": (state["run"], state["episode"]),
        }

    def visits(self, state: Situation, k: int | None = None) -> list[tuple[float, Experience]]:
        """Single visits to states that are similar enough to the present one, as (similarity, experience), oldest first.

        With `k` only so many, the most similar ones, among equals the newest.
        """
        key, least = self.environment.abstract(state["observation"]), self.least_similarity(state)
        return self.experiences.raw_neighbours(key, threshold=least, k=k, **self.scope(state))


@dataclass(frozen=True)
class Recall(ExperienceQuery):
    """Retrieve the k remembered states most similar to the present one (Jaccard, Eq. 24), with the returns of each action.

    The statistics are merged: one neighbour per remembered state and action, over all visits. Experiences of this run's
    present and later episodes stay hidden, so that a resumed or forked episode decides as the first one did. Of the running
    episode, the actions taken in this very state since its last progress are counted.
    """

    journal: Journal | None = None
    """The steps of the running episode; None: its repeats are not counted."""
    newest: int | None = None
    """Visits of a state that count, the newest; None: all."""

    def __call__(self, state: SituationWithHistory) -> RecallChannels:
        key, scope = self.environment.abstract(state["observation"]), self.scope(state)
        least, newest = self.least_similarity(state), self.newest
        found = self.experiences.neighbours(key, k=self.k, threshold=least, newest=newest, **scope)
        average, variance = self.experiences.moments(**scope)
        return {**_found(found), "average": average, "variance": variance, "repeats": self._repeats(state, key)}

    def _repeats(self, state: HeadChannel, key: str) -> dict[str, int]:
        steps = self.journal.history(state["head"]) if self.journal else ()
        recent = steps[last_progress([step.reward for step in steps]) :]
        return dict(Counter(step.action for step in recent if step.state == key))


class RecallVisits(ExperienceQuery):
    """Retrieve the k most similar single visits, as the paper does: a neighbour is one (s, a, G). Ties go to the newest."""

    def __call__(self, state: Situation) -> NeighbourChannels:
        newest = reversed(self.visits(state, self.k))
        return _found([_neighbour(state, *one) for one in sorted(newest, key=lambda one: -one[0])])


@dataclass(frozen=True)
class ReferenceRecall(ExperienceQuery):
    """Retrieve as the authors' code does: among equals the highest returns first, near-copies beyond k, a falling threshold."""

    threshold_decay: float = 0.1
    near_copy_similarity: float = 0.98
    """All visits more similar than this are kept, even beyond k."""

    def __call__(self, state: Situation) -> NeighbourChannels:
        found = self.visits(state)
        found.sort(key=lambda one: (-one[0], -one[1].value))
        sure = sum(similarity > self.near_copy_similarity for similarity, _ in found)
        return _found([_neighbour(state, *one) for one in found[: max(sure, self.k)]])


def _neighbour(state: Situation, similarity: float, visit: Experience) -> Neighbour:
    return Neighbour(visit.id, similarity, visit.action, 1, visit.value, elsewhere=int(visit.task != state["task"].id))


def _found(neighbours: Sequence[Neighbour]) -> NeighbourChannels:
    hits = [sum(one.count for one in neighbours), sum(one.elsewhere for one in neighbours)]
    return {"neighbours": list(neighbours), "hits": hits}


@dataclass(frozen=True)
class Remember:
    """Store the finished episode: every (s_t, a_t) with its discounted return G_t (Eq. 3).

    Steps whose return is missing leave no experience. An episode stored twice counts once. A run has one past: an episode that
    was forked and finished again replaces the first one; give the fork another run name to keep both.
    """

    role: ClassVar[str] = "memory"

    experiences: Experiences
    environment: Environment
    journal: Journal

    def __call__(self, state: FinishedEpisode) -> EarnedReturn:
        attempt = build_trajectory(state, self.environment, self.journal)
        self.experiences.add(self.credit(attempt, state))
        return {"earned": attempt.value}

    def credit(self, attempt: Trajectory, state: FinishedEpisode) -> Trajectory:
        """The episode as it is stored: with its rewards, which the memory discounts."""
        return attempt


@dataclass(frozen=True)
class ReferenceRemember(Remember):
    """Store the finished episode as the authors' code does: each step with its return, for the memory to take as it is."""

    gamma: Share
    """The discount of a step."""
    merges: bool
    """True if a judge's scores are merged with the world's rewards; False: the rewards stand for the scores, as where it fails."""

    def credit(self, attempt: Trajectory, state: FinishedEpisode) -> Trajectory:
        """The episode with returns in place of rewards."""
        scores, solved = [step.reward for step in attempt.transitions], getattr(self.environment, "solved", None)
        taken = [step for step in self.journal.history(state["head"]) if not step.is_lost]
        rewards = [step.reward for step in taken] if self.merges else scores
        is_won = not self.merges or (solved is not None and attempt.score >= solved)
        found = reference_returns(scores, rewards, self.gamma, is_won=is_won)
        steps = [replace(step, reward=value) for step, value in zip(attempt.transitions, found, strict=True)]
        return replace(attempt, transitions=tuple(steps))
