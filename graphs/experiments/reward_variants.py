"""Variants of a world for a study of action values: other rewards, another prior, an end that costs no points.

A method should do as well in each of them as in the world itself, or find out what is new: a constant in every reward means
nothing, a judge's dense rewards say the same as the world's in another way, and a strong prior may be right or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar, Literal

from ...memory.records import Candidate, Observation, Task
from ...memory.storage.journal import Journal
from ...nodes.act.policies import PromptView, UniformPolicy, admissible_actions
from ...nodes.state import CandidateChannels, EpisodeChannels, RewardChannels
from .recorded_worlds import RecordedWorld

__all__ = ["GIVE_UP", "VARIANTS", "HindsightOracle", "LeaningPolicy", "RewardVariant", "VariantWorld", "hindsight_rewards"]

GIVE_UP = "give up"
"""The action that ends an episode and costs no points."""


@dataclass(frozen=True)
class RewardVariant:
    """One way in which a world is changed."""

    name: str
    shift: float = 0.0
    """Constant that is added to every reward, as a multiple of the world's `CONSTANTS`."""
    gives_up: bool = False
    """True if every state has a further action, `GIVE_UP`. The prior gives it the share of one action."""
    judged: bool = False
    """True if a judge with hindsight rewards the steps, and the world's rewards are not seen."""
    prior: Literal["model", "uniform", "right", "wrong"] = "model"
    """The policy: `pocket`; uniform; sure of the right action along the solution, or of a wrong one there."""
    probability: float = 1.0
    """The probability that a sure prior gives to its action."""


VARIANTS: Mapping[str, RewardVariant] = {
    variant.name: variant
    for variant in (
        RewardVariant("plain"),
        RewardVariant("plus", shift=1.0),
        RewardVariant("minus", shift=-1.0),
        RewardVariant("gives-up", gives_up=True),
        RewardVariant("judged", judged=True),
        RewardVariant("uniform", prior="uniform"),
        RewardVariant("right-.9", prior="right", probability=0.9),
        RewardVariant("right-.99", prior="right", probability=0.99),
        RewardVariant("wrong-.9", prior="wrong", probability=0.9),
        RewardVariant("wrong-.99", prior="wrong", probability=0.99),
    )
}
"""Name -> variant."""


@dataclass(frozen=True)
class VariantWorld:
    """A world with a constant in every reward, and with `GIVE_UP` in every state if asked for."""

    instant: ClassVar[bool] = True

    world: RecordedWorld
    shift: float = 0.0
    """In the world's units."""
    gives_up: bool = False

    @property
    def name(self) -> str:
        """The world's own name."""
        return self.world.name

    @property
    def horizon(self) -> int:
        """The number of steps after which an episode ends."""
        return self.world.horizon

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions."""
        if actions and actions[-1] == GIVE_UP:
            before = self.world.observe(task, actions[:-1])
            return Observation(before.text, (), self.shift, True)
        shown = self.world.observe(task, actions)
        if self.shift and actions:
            shown = replace(shown, reward=(shown.reward or 0.0) + self.shift)
        if self.gives_up and not shown.over:
            shown = replace(shown, actions=tuple(sorted((*shown.actions, GIVE_UP))))
        return shown

    def abstract(self, observation: Observation) -> str:
        """The state key of an observation."""
        return self.world.abstract(observation)

    def score(self, task: Task, actions: Sequence[str]) -> float:
        """The sum of the world's own rewards, without the constant."""
        return self.world.score(task, [action for action in actions if action != GIVE_UP])


def hindsight_rewards(rewards: Sequence[float | None]) -> list[float]:
    """Dense rewards in [-10, 10] that count all that followed, as JitRL's judge gives them.

    10 for a step that pays, 10 * 0.9^d for a step d steps before the next one that pays, -5 for a step that loses points, and
    -2 for a step after which nothing is paid any more.
    """
    found: list[float] = []
    ahead: float | None = None
    for reward in reversed([reward or 0.0 for reward in rewards]):
        ahead = 10.0 if reward > 0 else None if ahead is None else 0.9 * ahead
        found.append(-5.0 if reward < 0 else -2.0 if ahead is None else ahead)
    return found[::-1]


@dataclass(frozen=True)
class HindsightOracle:
    """A judge that knows the world's rewards, and rewards every step by all that followed from it."""

    role: ClassVar[str] = "compute"
    credits_future: ClassVar[bool] = True

    journal: Journal

    def __call__(self, state: EpisodeChannels) -> RewardChannels:
        steps = self.journal.history(state["head"])
        return {"rewards": [*hindsight_rewards([step.reward for step in steps])], "unjudged": ""}


@dataclass(frozen=True)
class LeaningPolicy:
    """A prior that is nearly sure of one action in the states of the solution, and uniform elsewhere."""

    role: ClassVar[str] = "compute"

    world: RecordedWorld
    probability: float
    """The probability of its action, below 1; the others share the rest."""
    is_right: bool
    """True: its action is the solution's; False: always the same other one."""
    favourites: dict[str, dict[str, str]] = field(default_factory=dict)
    """Task id -> state -> the solution's action, worked out when first asked for."""

    def __call__(self, state: EpisodeChannels) -> CandidateChannels:
        actions = admissible_actions(state, "leaning")
        favourite = self._favourite(state, actions)
        if favourite is None:
            return UniformPolicy()(state)
        rest = math.log((1 - self.probability) / (len(actions) - 1))
        return {"candidates": [Candidate(a, math.log(self.probability) if a == favourite else rest) for a in actions]}

    def _favourite(self, state: EpisodeChannels, actions: Sequence[str]) -> str | None:
        """The action that it is sure of; None outside the solution and where there is no choice."""
        task, key = state["task"], self.world.abstract(state["observation"])
        if task.id not in self.favourites:
            self.favourites[task.id] = solution_by_state(self.world, task)
        right = self.favourites[task.id].get(key)
        if right not in actions or len(actions) < 2:
            return None
        if self.is_right:
            return right
        return Random(f"wrong {key}").choice([action for action in actions if action != right])


def solution_by_state(world: RecordedWorld, task: Task) -> dict[str, str]:
    """State -> the action that the world's solution takes there (the last one, where it takes several)."""
    found: dict[str, str] = {}
    taken: list[str] = []
    shown = world.observe(task, ())
    for action in world.gold(task):
        if shown.over:
            break
        found[world.abstract(shown)] = action
        taken.append(action)
        shown = world.observe(task, taken)
    return found


@dataclass(frozen=True)
class GiveUpPolicy:
    """A policy that does not know `GIVE_UP`, which gets the share of one action: 1/n of n."""

    policy: Callable[[Any], Any]

    @property
    def role(self) -> str:
        """The policy's own role, for pictures."""
        return getattr(self.policy, "role", "compute")

    def __call__(self, state: EpisodeChannels) -> CandidateChannels:
        shown = state["observation"]
        known = replace(shown, actions=tuple(action for action in shown.actions if action != GIVE_UP))
        share, found = 1 / len(shown.actions), self.policy({**state, "observation": known})["candidates"]
        kept = {c.action: c.logit + math.log(1 - share) for c in found} | {GIVE_UP: math.log(share)}
        return {"candidates": [Candidate(action, kept[action]) for action in shown.actions]}


def make_policy(
    variant: RewardVariant, world: RecordedWorld, model: Callable[[PromptView], Any]
) -> Callable[[PromptView], Any]:
    """The function from a prompt view to the variant's policy.

    Args:
        variant: the variant.
        world: the world without changes.
        model: the function for the prior `model`.
    """

    def make(view: PromptView) -> Any:
        policy: Any
        match variant.prior:
            case "model":
                policy = model(view)
            case "uniform":
                policy = UniformPolicy()
            case _:
                policy = LeaningPolicy(world, variant.probability, variant.prior == "right")
        return GiveUpPolicy(policy) if variant.gives_up else policy

    return make
