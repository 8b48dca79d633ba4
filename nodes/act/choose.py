"""Draws: probabilities from logits, a random generator for each decision, and the node that draws an action."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from typing_extensions import TypedDict

from ..arguments import Amount
from ..state import CandidateChannels, StepPlace

__all__ = ["Choose", "seeded_random", "softmax"]


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Probabilities proportional to exp(z / temperature). Temperature 0 is the limit: equal maxima share all probability."""
    top = max(logits)
    if temperature == 0:
        weights = [float(z == top) for z in logits]
    else:
        weights = [math.exp((z - top) / temperature) for z in logits]
    total = sum(weights)
    return [w / total for w in weights]


def log_softmax(logits: Sequence[float]) -> list[float]:
    """Log-probabilities over these options, at most 0, in nats: each logit less the log of the sum of all exponentials."""
    top = max(logits)
    total = top + math.log(sum(math.exp(z - top) for z in logits))
    return [min(z - total, 0.0) for z in logits]


def sample_index(probabilities: Sequence[float], random: Random) -> int:
    """A random index, drawn with these probabilities."""
    return random.choices(range(len(probabilities)), probabilities)[0]


def seeded_random(*where: object) -> Random:
    """A random generator for one decision, seeded by its place (run, episode, step, purpose).

    The same place always draws the same numbers, so a step that is executed again decides the same.
    """
    return Random("/".join(map(str, where)))


class FinalCandidates(StepPlace, CandidateChannels):
    """Candidates whose logits are final, and the place that seeds the draw."""


class ChosenAction(TypedDict):
    """The action to take at this step."""

    action: str


@dataclass(frozen=True)
class Choose:
    """Draw an action from the softmax of the logits. The seed is (run, episode, step): a repeated step repeats the draw."""

    role: ClassVar[str] = "compute"

    temperature: Amount = 1.0
    """0 takes the candidate with the highest logit; of equal ones, the first."""

    def __call__(self, state: FinalCandidates) -> ChosenAction:
        logits = [c.logit for c in state["candidates"]]
        if self.temperature == 0 or len(logits) == 1:
            picked = logits.index(max(logits))
        else:
            random = seeded_random(state["run"], state["episode"], state["step"], "choose")
            picked = sample_index(softmax(logits, self.temperature), random)
        return {"action": state["candidates"][picked].action}
