"""Nodes of the tabular, non-LLM learner: look up action values, choose epsilon-greedily, update the table."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from langchain_core.runnables.base import coerce_to_runnable

from ...memory.records import Candidate, Trajectory
from ...memory.returns.q_table import QTable, count_note
from ...memory.storage.journal import Journal
from ..arguments import Share
from ..ask import State
from ..state import CandidateChannels, EpisodeInput, HeadChannel, Situation
from .choose import ChosenAction, FinalCandidates, seeded_random
from .episode import EarnedReturn, Environment
from .policies import admissible_actions

__all__ = ["EpsilonGreedy", "LookUpQValues", "UpdateQTable"]


class FinishedGame(EpisodeInput, HeadChannel):
    """An episode that is over."""

    score: float


class JudgedReturn(EarnedReturn, total=False):
    """The return of the finished episode by its judge; nothing if there is none."""

    unjudged: str


@dataclass(frozen=True)
class LookUpQValues:
    """Look up Q(s, a) of every admissible action. The values take the place of logits, in reward units."""

    role: ClassVar[str] = "memory"

    table: QTable
    environment: Environment

    def __call__(self, state: Situation) -> CandidateChannels:
        actions = admissible_actions(state, "tabular")
        key = self.environment.abstract(state["observation"])
        values = self.table.values(state["run"], state["episode"], key, actions)
        return {"candidates": [Candidate(a, q, source="memory") for a, q in zip(actions, values, strict=True)]}


@dataclass(frozen=True)
class EpsilonGreedy:
    """Choose a best candidate, ties broken at random, or with probability epsilon any. The seed is (run, episode, step)."""

    role: ClassVar[str] = "compute"

    epsilon: Share

    def __call__(self, state: FinalCandidates) -> ChosenAction:
        random = seeded_random(state["run"], state["episode"], state["step"], "choose")
        candidates = state["candidates"]
        if random.random() >= self.epsilon:
            top = max(c.logit for c in candidates)
            candidates = [c for c in candidates if c.logit == top]
        return {"action": random.choice(candidates).action}


@dataclass(frozen=True)
class UpdateQTable:
    """Add the finished episode to the table, with a judge's rewards if there is one.

    A table with optimism also learns how many actions each state admitted.
    """

    role: ClassVar[str] = "memory"

    table: QTable
    environment: Environment
    journal: Journal
    judge: Any = None
    """The node that rewards the steps; None: the environment's own rewards hold."""

    def __call__(self, state: FinishedGame | State) -> JudgedReturn | dict[str, Any]:
        steps = self.journal.history(state["head"])
        found: dict[str, Any] = {}
        if self.judge is not None:
            judged = coerce_to_runnable(self.judge).invoke(state)
            rewards = judged["rewards"]
            found = {"earned": None if None in rewards else math.fsum(rewards), "unjudged": judged["unjudged"]}
            steps = tuple(replace(step, reward=reward) for step, reward in zip(steps, rewards, strict=True))
        id, name = f"{state['run']}/{state['episode']}", self.environment.name
        note = ""
        if self.table.initial_value:
            actions = [step.action for step in steps]
            shown = [self.environment.observe(state["task"], actions[:number]) for number in range(len(steps))]
            note = count_note([len(one.actions) for one in shown])
        self.table.add(Trajectory(id, state["task"], steps, state["run"], state["episode"], state["score"], name, note))
        return found
