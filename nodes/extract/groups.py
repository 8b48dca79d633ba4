"""Groups of rollouts of one problem: their rewards, and whether there is something to compare (Training-Free GRPO).

GRPO trains on A_g = (r_g - mean(r)) / std(r) within a group; a group whose rewards are all alike has no advantage, and teaches
nothing. Here the advantage is put into words instead, and the same groups are left out: those without spread.

| rewards | come from |
|---|---|
| `given` | the environment: its score as a share of what can be had |
| `majority` | no ground truth: 1 for the answer that most rollouts came to, if enough agree, else 0 |
| `self` | no ground truth: a model's opinion of the attempts, side by side |

Whatever they come from, tokens and actions may cost something (`graded`).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Annotated, Any, ClassVar, Literal

from langchain_core.runnables import Runnable, RunnableConfig

from ...memory.records import Comparison, Rollout, Task, Usage
from ..cached_model import BudgetSpent
from ..state import GroupChannels

__all__ = [
    "AssignRewards",
    "BudgetedGroup",
    "EmitComparison",
    "OpenGroup",
    "StopWhenBudgetSpent",
    "advantages",
    "fan_out_rollouts",
    "fan_out_summaries",
    "has_spread",
    "majority",
    "mean",
    "net_reward",
    "reward_std",
    "route_comparison",
    "sort_rollouts",
]

Truth = Literal["given", "majority", "self"]
_SAME = 1e-9
"""Rewards that differ by less are the same: sums of floats do not hit one number exactly."""


def mean(rewards: Sequence[float]) -> float:
    """The mean of at least one reward."""
    return math.fsum(rewards) / len(rewards)


def reward_std(rewards: Sequence[float]) -> float:
    """Standard deviation over a group (of the population, as in GRPO), in reward units; 0 for fewer than two."""
    if len(rewards) < 2:
        return 0.0
    middle = mean(rewards)
    return math.sqrt(mean([(reward - middle) ** 2 for reward in rewards]))


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """GRPO's A_g = (r_g - mean(r)) / std(r), without unit; 0 where all rewards are the same, None where one is missing."""
    known = [reward for reward in rewards if reward is not None]
    spread = reward_std(known)
    if spread <= _SAME:
        return [None if reward is None else 0.0 for reward in rewards]
    middle = mean(known)
    return [None if reward is None else (reward - middle) / spread for reward in rewards]


def net_reward(reward: float, tokens: int, actions: int, token_cost: float = 0.0, action_cost: float = 0.0) -> float:
    """A reward less what it took: `cost` per 1000 tokens, `turns` per action."""
    return reward - token_cost * tokens / 1000 - action_cost * actions


def majority(answers: Sequence[str]) -> tuple[str, float]:
    """The answer that was given most often, and by which share of all; of answers equally frequent the one that came first.

    An empty answer is none: it agrees with nobody, and counts among all. Without any answer: `("", 0.0)`.
    """
    counts = Counter(answer for answer in answers if answer)
    if not counts:
        return "", 0.0
    answer, count = counts.most_common(1)[0]  # equal counts stand in the order in which they were met
    return answer, count / len(answers)


def has_spread(rewards: Sequence[float | None], min_reward_std: float = 0.0) -> bool:
    """Whether a group's rewards differ: their standard deviation is above `spread`. Not whether 0 < mean < 1, by which graded
    rewards that are all the same would pass."""
    return reward_std([reward for reward in rewards if reward is not None]) > max(min_reward_std, _SAME)


def sort_rollouts(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """By number: in which order they ended says nothing."""
    return sorted(rollouts, key=lambda rollout: rollout.number)


class BudgetedGroup(GroupChannels):
    """A group that the budget may not last for."""

    stops: Annotated[list[str], add]
    """What was said when it was spent; empty: it has lasted so far."""


@dataclass(frozen=True)
class StopWhenBudgetSpent(Runnable[Any, Any]):
    """A node of a group that the budget may not last for: it says so, and nothing that follows in the group is done.

    To raise would cancel what goes on beside it: calls that are paid for, and whose replies would be lost.
    """

    node: Callable[[Any], Any] | Runnable[Any, Any]

    @property
    def role(self) -> str:
        """The node's."""
        return str(getattr(self.node, "role", "compute"))

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if input.get("stops"):
            return {}
        try:
            return self.node.invoke(input, config) if isinstance(self.node, Runnable) else self.node(input)
        except BudgetSpent as spent:
            return {"stops": [str(spent)]}

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if input.get("stops"):
            return {}
        try:
            if isinstance(self.node, Runnable):
                return await self.node.ainvoke(input, config)
            return await asyncio.to_thread(self.node, input)
        except BudgetSpent as spent:
            return {"stops": [str(spent)]}


@dataclass(frozen=True)
class OpenGroup:
    """Begin with the group: nothing has been found out."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: GroupChannels) -> dict[str, Any]:
        return {
            "number": 0,
            "rewards": [],
            "plain": [],
            "kind": "",
            "insights": [],
            "votes": [],
            "edits": [],
            "rulings": [],
            "usage": Usage(),
        }


@dataclass(frozen=True)
class AssignRewards(Runnable[Any, Any]):
    """Say what each rollout of the group is worth, and of which kind the group is (see `memory.records.Comparison`)."""

    role: ClassVar[str] = "compute"

    truth: Truth = "given"
    min_agreement: float = 0.6
    """Least share of rollouts that must have come to one answer, for a majority."""
    min_reward_std: float = 0.0
    """Standard deviation above which rewards differ."""
    hard: bool = False
    """Whether groups in which every rollout failed are compared with the reference."""
    token_cost: float = 0.0
    """Reward per 1000 tokens."""
    action_cost: float = 0.0
    """Reward per action."""
    success_threshold: Callable[[Task], float] = field(default=lambda task: 1.0, repr=False)
    """The reward from which a rollout of the task is a success."""
    reference: Callable[[Task], str] | None = field(default=None, repr=False)
    """The true answer, where it is known."""
    answer: Callable[[str], str] = field(default=lambda text: " ".join(text.casefold().split()), repr=False)
    """What two answers have in common that say the same."""
    discriminate: Runnable[Any, Any] | None = field(default=None, repr=False)
    """Gives the rewards in the channel `rewards`, where `truth` is `self`."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        state = self._with_sorted_rollouts(input)
        asks = self._asks(state)
        return self._update(state, self.discriminate.invoke(state, config) if asks and self.discriminate else {})

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        state = self._with_sorted_rollouts(input)
        asks = self._asks(state)
        said = await self.discriminate.ainvoke(state, config) if asks and self.discriminate else {}
        if self.truth != "majority":
            return self._update(state, said)
        return await asyncio.to_thread(self._update, state, said)  # to find out what an answer means may take a while

    @staticmethod
    def _with_sorted_rollouts(state: Mapping[str, Any]) -> dict[str, Any]:
        return {**state, "rollouts": sort_rollouts(state["rollouts"])}

    def _has_result(self, rollout: Rollout) -> bool:
        """Whether there is something to compare: where the verifier has no say, what it could not say does not matter."""
        return rollout.reward is not None if self.truth == "given" else bool(rollout.answer)

    def _asks(self, state: Mapping[str, Any]) -> bool:
        return self.truth == "self" and sum(map(self._has_result, state["rollouts"])) >= 2

    def _update(self, state: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
        rollouts: list[Rollout] = state["rollouts"]
        failures = [f"rollout {r.number}: {r.error or 'no reward'}" for r in rollouts if r.reward is None]
        usage: Usage = said.get("usage", Usage())
        for rollout in rollouts:
            usage += rollout.usage
        plain, agreed = self._plain(rollouts, said)
        rewards = [
            None if reward is None else net_reward(reward, _tokens(r.usage), r.steps, self.token_cost, self.action_cost)
            for reward, r in zip(plain, rollouts, strict=True)
        ]
        kind = self._kind(state["task"], rewards, plain, agreed)
        return {
            "rewards": rewards,
            "plain": plain,
            "kind": kind,
            "failures": [*failures, *said.get("failures", ())],
            "usage": usage,
        }

    def _plain(self, rollouts: Sequence[Rollout], said: Mapping[str, Any]) -> tuple[list[float | None], bool]:
        """The rewards before costs, and whether they can be relied on."""
        if self.truth == "given":
            return [rollout.reward for rollout in rollouts], True
        if self.truth == "self":
            found = list(said.get("rewards") or [])
            known = len(found) == len(rollouts)
            return found if known else [None] * len(rollouts), known
        answers = [self.answer(rollout.answer) if self._has_result(rollout) else "" for rollout in rollouts]
        most, share = majority(answers)
        return [float(given == most) if given else None for given in answers], share >= self.min_agreement

    def _kind(self, task: Task, rewards: Sequence[float | None], plain: Sequence[float | None], agreed: bool) -> str:
        known = [reward for reward in plain if reward is not None]
        if len(known) < 2:
            return "failed"
        if not agreed:
            return "disagreed"
        if has_spread(rewards, self.min_reward_std):
            return "mixed"
        if self.hard and self.reference and self.truth == "given" and max(known) < self.success_threshold(task) - _SAME:
            return "hard"
        return "alike"


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens


def route_comparison(state: GroupChannels) -> Literal["compare", "no lesson"]:
    """Router: is there something to compare?"""
    return "compare" if state["kind"] in ("mixed", "hard") else "no lesson"


@dataclass(frozen=True)
class EmitComparison:
    """Hand over what the group came to."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: BudgetedGroup) -> dict[str, Any]:
        if state.get("stops"):
            return {"comparisons": [Comparison(state["task"].id, kind="stopped", failures=(state["stops"][0],))]}
        rollouts = sort_rollouts(state["rollouts"])
        return {
            "comparisons": [
                Comparison(
                    state["task"].id,
                    rewards=tuple(state["rewards"]),
                    truths=tuple(rollout.reward for rollout in rollouts),
                    kind=state["kind"],
                    insights=tuple(state["insights"]),
                    edits=tuple(state["edits"]),
                    rulings=tuple(state["rulings"]),
                    votes=tuple(state["votes"]),
                    failures=tuple(state["failures"]),
                    steps=sum(rollout.steps for rollout in rollouts),
                    tool_calls=sum(rollout.tool_calls for rollout in rollouts),
                    shown=tuple(sorted(Counter(id for rollout in rollouts for id in rollout.shown).items())),
                )
            ]
        }


def fan_out_summaries(state: GroupChannels) -> list[Mapping[str, Any]]:
    """Fan-out: the rollouts that are in the comparison, each to be summarised."""
    return [{**state, "number": n} for n, reward in enumerate(state["rewards"]) if reward is not None]


def fan_out_rollouts(group_size: int) -> Callable[[GroupChannels], list[Mapping[str, Any]]]:
    """Fan-out: `group` rollouts of the problem."""

    def rollouts(state: GroupChannels) -> list[Mapping[str, Any]]:
        return [{**state, "number": n} for n in range(group_size)]

    return rollouts
