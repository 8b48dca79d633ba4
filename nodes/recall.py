"""Recall what similar states earned, and remember what this episode earned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..memory.experiences import Experiences
from ..memory.journal import Journal
from ..memory.records import Neighbour, Trajectory, Transition
from .episode import Environment
from .state import Episode, Judged


@dataclass(frozen=True)
class Recall:
    """Retrieve the k remembered states most similar to the present one (Jaccard, Eq. 24), with what each action earned.

    The statistics are merged: one neighbour per remembered state and action, over all visits. What this run learned in
    this episode or later stays hidden, so that a resumed or forked episode decides as the first one did.
    """

    role: ClassVar[str] = "memory"

    experiences: Experiences
    environment: Environment
    k: int
    """The largest number of remembered states."""
    threshold: float
    """The least similarity, in [0, 1]."""
    cross_task: bool = False
    """Whether experience from other tasks of the same environment counts."""

    def __call__(self, state: Episode) -> dict[str, Any]:
        task, domain, before = state["task"].id, self.environment.name, (state["run"], state["episode"])
        found = self.experiences.neighbours(
            self.environment.abstract(state["observation"]),
            k=self.k,
            threshold=self.threshold,
            task=task,
            domain=domain,
            cross_task=self.cross_task,
            before=before,
        )
        average = self.experiences.average(task=task, domain=domain, cross_task=self.cross_task, before=before)
        return {"neighbours": list(found), "average": average}


@dataclass(frozen=True)
class RecallVisits:
    """Retrieve the k most similar single visits, as the paper and its code do: a neighbour is one (s, a, G)."""

    role: ClassVar[str] = "memory"

    experiences: Experiences
    environment: Environment
    k: int
    threshold: float
    cross_task: bool = False
    decay: float = 0.0
    """By how much the threshold falls over the first 20 steps (the reference code: 0.1; the paper: none)."""
    certain: float = 1.1
    """Visits more similar than this are all kept, beyond k (the reference code: 0.98; the paper: k is a cap)."""

    def __call__(self, state: Episode) -> dict[str, Any]:
        found = self.experiences.raw_neighbours(
            self.environment.abstract(state["observation"]),
            threshold=self.threshold - self.decay * min(state["step"] / 20, 1),
            task=state["task"].id,
            domain=self.environment.name,
            cross_task=self.cross_task,
            before=(state["run"], state["episode"]),
        )
        found.sort(key=lambda one: (one[0], one[1].value), reverse=True)
        sure = [(similarity, e) for similarity, e in found if similarity > self.certain]
        others = [(similarity, e) for similarity, e in found if similarity <= self.certain]
        kept = sure + others[: max(self.k - len(sure), 0)]
        return {"neighbours": [Neighbour(e.id, similarity, e.action, 1, e.value) for similarity, e in kept]}


class Finished(Episode, Judged):
    """An episode that is over, with a reward (or none) for every step."""


@dataclass(frozen=True)
class Remember:
    """Store the finished episode: every (s_t, a_t) with its discounted return G_t (Eq. 3).

    Steps whose reward is missing leave no experience behind. Storing an episode twice stores it once.
    """

    role: ClassVar[str] = "memory"

    experiences: Experiences
    environment: Environment
    journal: Journal

    def __call__(self, state: Finished) -> dict[str, Any]:
        steps = self.journal.history(state["head"])
        self.experiences.add(
            Trajectory(
                id=f"{state['run']}/{state['episode']}",
                task=state["task"],
                transitions=tuple(
                    Transition(step.state, step.action, reward) for step, reward in zip(steps, state["rewards"], strict=True)
                ),
                run=state["run"],
                episode=state["episode"],
                score=state["score"],
                domain=self.environment.name,
            )
        )
        return {}
