"""Trials of a memory: conversations of which a draw decided whether they were advised, and whether an item was withheld from them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..records import Trajectory
from .reviews import without_rejected

__all__ = ["MemoryTrial"]


@dataclass(frozen=True, slots=True)
class MemoryTrial:
    """A rated conversation for which a method's memory had something."""

    id: str
    """`<method>/<thread>`."""
    thread: str
    task: str
    reward: float
    """The mean of its ratings, on the learner's scale; a stretch in which a person changed a call counts 0 at most: he earned the rest."""
    at: float
    """Time of its first rating, in seconds: the order of the trials."""
    is_advised: bool
    """False: it belongs to the control arm."""
    share: float
    """Probability of advice, in (0, 1]."""
    item: str = ""
    """The recalled item that a draw decided about; empty: none."""
    is_shown: bool = True
    """False: that item was withheld."""
    item_share: float = 1.0
    """Probability that it was shown, in (0, 1]."""
    tokens: int = 0
    """Tokens that advice has added to its prompts; calls of the method's own are not counted."""


def conversation_trials(
    advice: Sequence[Mapping[str, Any]], rated: Sequence[Trajectory], known: Mapping[str, MemoryTrial]
) -> list[MemoryTrial]:
    """The trials that a conversation is, one a method; `known` are those that were kept before."""
    found = [one for one in rated if one.value is not None]
    rewards = [one.score if without_rejected(one) is one else min(one.score, 0.0) for one in found]
    if not rewards:
        return []
    drawn, tokens = dict[str, dict[str, Any]](), dict[str, int]()
    for entry in advice:
        method = str(entry.get("method"))
        tokens[method] = tokens.get(method, 0) + int(entry.get("added_tokens", 0))
        if "trial" in entry:
            drawn[method] = entry["trial"]
    thread, task = rated[0].run, rated[0].task.id
    now, reward = time.time(), sum(rewards) / len(rewards)
    plain = {
        m: MemoryTrial(f"{m}/{thread}", thread, task, reward, known[m].at if m in known else now, True, 1.0) for m in drawn
    }
    return [replace(plain[method], **draw, tokens=tokens[method]) for method, draw in drawn.items()]
