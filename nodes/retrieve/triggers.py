"""When to ask memory: the model's own vote, and what can be seen from outside (AdaMEM's refresh decision).

The model votes on its own plan, and one that is stuck tends to vote for going on. The other triggers look at the episode
since the last strategy was written (or since its start): each is a pure function, and `Decide` puts any of them together.

| trigger | memory is asked when |
|---|---|
| `vote` | the model says so; one that only scores actions: its best one is less probable than `confidence` |
| `stalled` | the last `stall` steps earned nothing and showed no new state |
| `repeated` | the present state was seen before |
| `refused` | the world says that it did not understand the last action, or the drafted one is not admissible |
| `drift` | the key of the present state is less similar than `drift` to that for which the strategy was written |
| `subgoal` | the last step earned something: what comes next needs other advice (only in worlds that pay on the way) |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...memory.records import Candidate, Transition
from ...memory.search.similarity import jaccard, shingles
from ...memory.storage.journal import Journal
from ..act.episode import Environment
from ..state import ChoiceChannels, DraftChannels, EpisodeChannels, StrategyChannels
from .recollect import PrecedentMemory, key_of

__all__ = ["CheckTriggers", "DraftedActionState", "Trigger", "is_hesitant", "is_repeated", "is_stalled", "route_memory_request"]

Trigger = Literal["vote", "stalled", "repeated", "refused", "drift", "subgoal"]


class DraftedActionState(EpisodeChannels, ChoiceChannels, StrategyChannels, DraftChannels):
    """A drafted action, before anybody decided whether to ask memory."""


def is_hesitant(candidates: Sequence[Candidate], confidence: float) -> bool:
    """Whether the most probable of these candidates has a probability below `confidence`, in [0, 1]."""
    return math.exp(max(candidate.logit for candidate in candidates)) < confidence


def is_stalled(steps: Sequence[Transition], state: str, n: int) -> bool:
    """Whether the last n of these steps earned nothing and led to no state that was new."""
    if len(steps) < n:
        return False
    late = steps[-n:]
    known = {step.state for step in steps[:-n]} | {late[0].state}
    return not any(step.reward for step in late) and {*(step.state for step in late[1:]), state} <= known


def is_repeated(steps: Sequence[Transition], state: str) -> bool:
    """Whether this state was seen before in these steps."""
    return any(step.state == state for step in steps)


@dataclass(frozen=True)
class CheckTriggers:
    """Ask memory before the drafted action is carried out? Names every trigger that says so."""

    role: ClassVar[str] = "compute"

    memory: PrecedentMemory
    environment: Environment
    journal: Journal
    triggers: tuple[Trigger, ...] = ("vote",)
    min_confidence: float = 0.6
    """Of `vote`, for a model that scores actions."""
    stall_steps: int = 4
    """Steps of `stalled`."""
    min_key_similarity: float = 0.3
    """Least Jaccard similarity of the two keys' words, pairs and triples (`drift`)."""

    def __call__(self, state: DraftedActionState) -> dict[str, Any]:
        return {"tentative": state["action"], "reasons": [name for name in self.triggers if self._fires(name, state)]}

    def _fires(self, name: Trigger, state: DraftedActionState) -> bool:
        tests: dict[Trigger, Callable[[DraftedActionState], bool]] = {
            "vote": self._has_vote,
            "stalled": lambda state: is_stalled(
                self._since(state), self.environment.abstract(state["observation"]), self.stall_steps
            ),
            "repeated": lambda state: is_repeated(self._since(state), self.environment.abstract(state["observation"])),
            "refused": self._is_refused,
            "drift": self._has_drifted,
            "subgoal": lambda state: any((step.reward or 0.0) > 0 for step in self._since(state)[-1:]),
        }
        return tests[name](state)

    def _since(self, state: DraftedActionState) -> tuple[Transition, ...]:
        """The steps taken since the last strategy was written."""
        count = state["step"] - max(state["written"], 0)
        return self.journal.history(state["head"], last=count) if count else ()

    def _has_vote(self, state: DraftedActionState) -> bool:
        scored = len(state["candidates"]) > 1  # who writes its action proposes no other
        return is_hesitant(state["candidates"], self.min_confidence) if scored else state["vote"]

    def _is_refused(self, state: DraftedActionState) -> bool:
        shown, refused = state["observation"], getattr(self.environment, "is_refused", None)
        free = getattr(self.environment, "free_text", False)  # it understands more than it lists
        listed = not shown.actions or state["action"] in shown.actions
        return (refused is not None and refused(shown)) or not (listed or free)

    def _has_drifted(self, state: DraftedActionState) -> bool:
        strategy = state["strategy"]
        if strategy is None:
            return False
        here = key_of(self.memory, self.environment, self.journal, state)
        return jaccard(set(shingles(strategy.key)), set(shingles(here))) < self.min_key_similarity


def route_memory_request(state: DraftedActionState) -> Literal["go on", "ask memory"]:
    """Router: does anything say that memory is to be asked?"""
    return "ask memory" if state["reasons"] else "go on"
