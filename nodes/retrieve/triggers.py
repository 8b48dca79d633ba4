"""Triggers that ask memory: the model's own vote, and signs in the episode (AdaMEM's refresh decision).

The model votes on its own plan, and a stuck model tends to vote for going on. The other triggers look at the episode since the
last strategy was written (or since its start). Each is a pure function; `CheckTriggers` combines any of them.

| trigger | memory is asked when |
|---|---|
| `vote` | the model votes for it; for a model that only scores actions: the best one is less probable than `min_confidence` |
| `stalled` | the last `stall_steps` steps earned nothing and showed no new state |
| `repeated` | the present state was seen before |
| `refused` | the world did not understand the last action, or the drafted one is not admissible |
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NotRequired

from ...memory.records import Candidate, Transition
from ...memory.storage.journal import Journal
from ..act.episode import Environment, takes_unlisted_actions
from ..state import ChoiceChannels, HeadChannel, ObservationChannel, ReasonsChannel, StrategyChannel, TaskChannel

__all__ = ["REASONS", "CheckTriggers", "DraftedAction", "Trigger", "route_memory_request"]

Trigger = Literal["vote", "stalled", "repeated", "refused"]


REASONS: Mapping[Trigger, str] = {
    "vote": "the agent itself asks for advice",
    "stalled": "its last steps earned nothing and led to nothing new",
    "repeated": "it was in this situation before",
    "refused": "the world did not understand its last action, or does not list the one that it drafted",
}
"""Trigger -> the reason for asking memory, in words for prompts."""


class DraftedAction(TaskChannel, ObservationChannel, HeadChannel, ChoiceChannels, StrategyChannel):
    """A drafted action, what it is drafted for, and the strategy in force."""

    step: int
    written: int
    vote: NotRequired[bool]
    """The model's vote, where it writes."""


class DraftAndReasons(ReasonsChannel):
    """The drafted action, and the triggers that fired."""

    tentative: str | None


def is_hesitant(candidates: Sequence[Candidate], confidence: float) -> bool:
    """True if the most probable of these candidates has a probability below `confidence`, in [0, 1]."""
    return math.exp(max(candidate.logit for candidate in candidates)) < confidence


def is_stalled(steps: Sequence[Transition], state: str, n: int) -> bool:
    """True if the last n of these steps earned nothing and led to no new state."""
    if len(steps) < n:
        return False
    late = steps[-n:]
    known = {step.state for step in steps[:-n]} | {late[0].state}
    return not any(step.reward for step in late) and {*(step.state for step in late[1:]), state} <= known


def is_repeated(steps: Sequence[Transition], state: str) -> bool:
    """True if one of these steps was taken in this state."""
    return any(step.state == state for step in steps)


@dataclass(frozen=True)
class CheckTriggers:
    """Write the triggers that fire for the drafted action into `reasons`; any of them asks memory."""

    role: ClassVar[str] = "compute"

    environment: Environment
    journal: Journal
    triggers: tuple[Trigger, ...] = ("vote",)
    min_confidence: float = 0.6
    """Least probability of the best action (`vote`, for a model that scores actions)."""
    stall_steps: int = 4
    """Number of steps (`stalled`)."""

    def __call__(self, state: DraftedAction) -> DraftAndReasons:
        return {"tentative": state["action"], "reasons": [name for name in self.triggers if self._fires(name, state)]}

    def _fires(self, name: Trigger, state: DraftedAction) -> bool:
        tests: dict[Trigger, Callable[[DraftedAction], bool]] = {
            "vote": self._has_vote,
            "stalled": lambda state: is_stalled(
                self._since(state), self.environment.abstract(state["observation"]), self.stall_steps
            ),
            "repeated": lambda state: is_repeated(self._since(state), self.environment.abstract(state["observation"])),
            "refused": self._is_refused,
        }
        return tests[name](state)

    def _since(self, state: DraftedAction) -> tuple[Transition, ...]:
        """The steps taken since the last strategy was written."""
        count = state["step"] - max(state["written"], 0)
        return self.journal.history(state["head"], last=count) if count else ()

    def _has_vote(self, state: DraftedAction) -> bool:
        scored = len(state["candidates"]) > 1  # a model that writes its action proposes only one
        return is_hesitant(state["candidates"], self.min_confidence) if scored else state["vote"]

    def _is_refused(self, state: DraftedAction) -> bool:
        shown, refused = state["observation"], getattr(self.environment, "is_refused", None)
        listed = not shown.actions or state["action"] in shown.actions
        return (refused is not None and refused(shown)) or not (listed or takes_unlisted_actions(self.environment))


def route_memory_request(state: ReasonsChannel) -> Literal["go on", "ask memory"]:
    """Router: did a trigger fire?"""
    return "ask memory" if state["reasons"] else "go on"
