"""Groups of rollouts of one problem: their rewards, and whether there is something to compare (Training-Free GRPO).

GRPO trains on the advantage A_g = (r_g - mean(r)) / std(r) within a group. If all rewards are equal, every A_g is 0, and the
group teaches nothing. Here the advantage is put into words instead of weights, and the same groups are left out.

| rewards | come from |
|---|---|
| `given` | the environment: its score as a share of the best possible score |
| `implicit` | no ground truth, and no rewards: every group is compared, and the model has to judge for itself (the paper's ablation) |

A group of one rollout (the paper's "without group computation") has no advantage; the rollout is studied by itself.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from langchain_core.runnables import Runnable, RunnableConfig
from typing_extensions import TypedDict

from ...memory.records import Comparison, Edit, Rollout, Ruling, Usage
from ..ask import State
from ..cached_model import BudgetSpent
from ..evaluate.statistics import mean
from ..state import GroupChannels, TaskChannel
from .rule_critic import Truth

__all__ = [
    "COMPARABLE_KINDS",
    "AssignRewards",
    "EmitComparison",
    "GroupOutput",
    "GroupState",
    "OpenGroup",
    "StopWhenBudgetSpent",
    "Truth",
    "advantages",
    "fan_out_rollouts",
    "fan_out_summaries",
    "is_lost_comparison",
    "route_comparison",
]

_SAME = 1e-9
"""Standard deviation up to which rewards count as equal: sums of floats are not exact."""


def reward_std(rewards: Sequence[float]) -> float:
    """Standard deviation over a group (of the population, as in GRPO), in reward units; 0 for fewer than two."""
    if len(rewards) < 2:
        return 0.0
    middle = mean(rewards)
    return math.sqrt(mean([(reward - middle) ** 2 for reward in rewards]))


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """GRPO's A_g = (r_g - mean(r)) / std(r), without unit; 0 for all where rewards are equal, None for a missing reward."""
    known = [reward for reward in rewards if reward is not None]
    spread = reward_std(known)
    if spread <= _SAME:
        return [None if reward is None else 0.0 for reward in rewards]
    middle = mean(known)
    return [None if reward is None else (reward - middle) / spread for reward in rewards]


def has_spread(rewards: Sequence[float | None]) -> bool:
    """True if some advantage of the group is not 0: its rewards differ.

    The paper's test, 0 < mean < 1, would let pass graded rewards that are all equal.
    """
    return any(advantages(rewards))


def sort_rollouts(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts by number. The order in which they ended has no meaning."""
    return sorted(rollouts, key=lambda rollout: rollout.number)


class BudgetStops(TypedDict, total=False):
    """The ends of a budget."""

    stops: Annotated[list[str], add]
    """Messages of `BudgetSpent`; empty as long as the budget lasts."""


class GroupOutput(TypedDict):
    """The output of a group's graph."""

    comparisons: Annotated[list[Comparison], add]
    usage: Annotated[Usage, add]
    stops: Annotated[list[str], add]


class GroupState(GroupChannels, GroupOutput):
    """The channels of a group's graph."""


@dataclass(frozen=True)
class StopWhenBudgetSpent(Runnable[BudgetStops | State, BudgetStops | State]):
    """Wraps a node of a group. If the budget runs out, it records that, and the remaining nodes of the group are skipped.

    An exception would cancel the calls that run beside it, which are paid for, and lose their replies.
    """

    inner_node: Callable[[Any], Any] | Runnable[Any, Any]

    @property
    def role(self) -> str:
        """The role of the wrapped node, for pictures."""
        return str(getattr(self.inner_node, "role", "compute"))

    def invoke(self, input: BudgetStops | State, config: RunnableConfig | None = None, **kwargs: Any) -> BudgetStops | State:
        if input.get("stops"):
            return {}
        node: Any = self.inner_node
        try:
            found: State = node.invoke(input, config) if isinstance(node, Runnable) else node(input)
            return found
        except BudgetSpent as spent:
            return {"stops": [str(spent)]}

    async def ainvoke(
        self, input: BudgetStops | State, config: RunnableConfig | None = None, **kwargs: Any
    ) -> BudgetStops | State:
        if input.get("stops"):
            return {}
        node: Any = self.inner_node
        try:
            return await (node.ainvoke(input, config) if isinstance(node, Runnable) else asyncio.to_thread(node, input))
        except BudgetSpent as spent:
            return {"stops": [str(spent)]}


class EmptyGroup(TypedDict):
    """The channels of a group before its rollouts."""

    number: int
    rewards: list[float | None]
    kind: str
    insights: list[str]
    votes: list[tuple[str, int]]
    edits: list[Edit]
    rulings: list[Ruling]
    usage: Usage


class GroupKind(TypedDict):
    """The kind of a group."""

    kind: str
    """See `memory.records.Comparison`."""


class ComparedGroup(TaskChannel, GroupKind):
    """The rollouts of a group, and what was concluded from them."""

    rollouts: list[Rollout]
    rewards: list[float | None]
    insights: list[str]
    votes: list[tuple[str, int]]
    edits: list[Edit]
    rulings: list[Ruling]
    failures: list[str]
    stops: NotRequired[list[str]]


class ComparisonChannel(TypedDict):
    """The result of a group."""

    comparisons: list[Comparison]


@dataclass(frozen=True)
class OpenGroup:
    """Set the channels of a group to their empty values."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: object) -> EmptyGroup:
        return {
            "number": 0,
            "rewards": [],
            "kind": "",
            "insights": [],
            "votes": [],
            "edits": [],
            "rulings": [],
            "usage": Usage(),
        }


class GroupRollouts(TaskChannel):
    """The rollouts of a group, in the order in which they ended."""

    rollouts: list[Rollout]


class GroupRewards(GroupKind):
    """The rewards of a group's rollouts."""

    rewards: list[float | None]
    failures: list[str]
    usage: Usage


@dataclass(frozen=True)
class AssignRewards:
    """Give each rollout of the group its reward, and the group its kind (see `memory.records.Comparison`)."""

    role: ClassVar[str] = "compute"

    truth: Truth = "given"

    def __call__(self, state: GroupRollouts) -> GroupRewards:
        rollouts = sort_rollouts(state["rollouts"])
        if self.truth == "given":
            rewards = [rollout.reward for rollout in rollouts]
        else:  # 0 stands for a rollout that can be read; no prompt shows it
            rewards = [0.0 if rollout.answer else None for rollout in rollouts]
        return {
            "rewards": rewards,
            "kind": self._kind(rewards),
            "failures": [f"rollout {r.number}: {r.error or 'no reward'}" for r in rollouts if r.reward is None],
            "usage": sum((rollout.usage for rollout in rollouts), Usage()),
        }

    def _kind(self, rewards: Sequence[float | None]) -> str:
        known = [reward for reward in rewards if reward is not None]
        if len(known) < min(2, len(rewards)) or not known:
            return "failed"
        if self.truth == "implicit":
            return "unlabelled"
        if len(rewards) == 1:
            return "single"
        return "mixed" if has_spread(rewards) else "alike"


COMPARABLE_KINDS = ("mixed", "single", "unlabelled")
"""Kinds of groups from which something can be learned."""


def is_lost_comparison(comparison: Comparison) -> bool:
    """True if nothing was learned from a group because its rollouts or the reply that compares them are missing."""
    if comparison.kind == "failed":
        return True
    unread = any(failure.startswith("contrast of ") and " a vote on " not in failure for failure in comparison.failures)
    return unread and not comparison.insights and not comparison.edits


def route_comparison(state: GroupKind) -> Literal["compare", "no lesson"]:
    """`compare` if the group has something to compare, else `no lesson`."""
    return "compare" if state["kind"] in COMPARABLE_KINDS else "no lesson"


@dataclass(frozen=True)
class EmitComparison:
    """Put the result of the group into one `Comparison`."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: ComparedGroup) -> ComparisonChannel:
        if state.get("stops"):
            return {"comparisons": [Comparison(state["task"].id, kind="stopped", failures=(state["stops"][0],))]}
        rollouts = sort_rollouts(state["rollouts"])
        return {
            "comparisons": [
                Comparison(
                    state["task"].id,
                    rewards=tuple(None if state["kind"] == "unlabelled" else reward for reward in state["rewards"]),
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
    """One piece of work for every rollout that is compared: its summary."""
    return [{**state, "number": n} for n, reward in enumerate(state["rewards"]) if reward is not None]


def fan_out_rollouts(group_size: int) -> Callable[[GroupChannels], list[Mapping[str, Any]]]:
    """A fan-out of `group_size` rollouts of the problem."""

    def rollouts(state: GroupChannels) -> list[Mapping[str, Any]]:
        return [{**state, "number": n} for n in range(group_size)]

    return rollouts
