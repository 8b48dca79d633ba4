"""Scores of the arms of a learning run on unseen problems: Mean@k, Pass@k, paired differences, intervals. Pure functions.

Every arm plays the same problems with the same run indices, so that two arms differ only in their library. A rollout without a
reward (it failed, timed out, or could not be verified) counts as 0, and such rollouts are counted. Rollouts of a problem are
averaged first: the unit within a seed is the problem; over seeds (each has its own problems and its own learning) it is the seed.

There are two kinds of interval, and each field says which it holds:

- over problems: the bootstrap. The spread over other problems, with the same libraries.
- over seeds: Student's t. The spread over repeated learning on other problems. It is wider, and the one to trust.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ...memory.errors import UserError
from ...memory.records import Rollout, Usage
from ...nodes.evaluate.statistics import Interval, bootstrap_interval, interval, mean

__all__ = ["ArmSummary", "Difference", "Outcome"]

Estimator = Literal["unbiased", "max of the first k"]


@dataclass(frozen=True)
class Outcome:
    """The rollouts of one arm on the test problems of one seed."""

    arm: str
    seed: int
    rewards: Mapping[str, tuple[float | None, ...]]
    """Task id -> the reward of each rollout, in [0, 1], in the order of `numbers`. None: missing."""
    numbers: tuple[int, ...] = ()
    """Run indices of the rollouts, the same for every problem."""
    lessons: int = 0
    """Number of lessons in the arm's library."""
    tool_calls: int = 0
    """Tool calls of all rollouts."""
    actions: int = 0
    """Actions in the environment, of all rollouts; a written answer is one action."""
    usage: Usage = field(default_factory=Usage)
    """Model calls and tokens of all rollouts."""
    failures: tuple[tuple[str, str], ...] = ()
    """(rollout id, reason) of every missing reward."""

    @classmethod
    def of(cls, arm: str, seed: int, rollouts: Sequence[Rollout], lessons: int = 0) -> Outcome:
        """Build the outcome from the arm's rollouts, in any order.

        Raises:
            UserError: a rollout is there twice, or problems have different run indices, so that k would differ between them.
        """
        by_task: dict[str, dict[int, Rollout]] = {}
        for rollout in rollouts:
            if rollout.number in by_task.setdefault(rollout.task.id, {}):
                raise UserError(f"{arm}, seed {seed}: rollout {rollout.number} of {rollout.task.id} is there twice")
            by_task[rollout.task.id][rollout.number] = rollout
        numbers = {tuple(sorted(runs)) for runs in by_task.values()}
        if len(numbers) > 1:
            raise UserError(f"{arm}, seed {seed}: problems have different run indices: {sorted(numbers)}")
        ordered = {task: [runs[n] for n in sorted(runs)] for task, runs in sorted(by_task.items())}
        flat = [rollout for runs in ordered.values() for rollout in runs]
        return cls(
            arm,
            seed,
            {task: tuple(rollout.reward for rollout in runs) for task, runs in ordered.items()},
            min(numbers, default=()),
            lessons,
            sum(rollout.tool_calls for rollout in flat),
            sum(rollout.steps for rollout in flat),
            sum((rollout.usage for rollout in flat), Usage()),
            tuple((rollout.id, rollout.error or "no reward") for rollout in flat if rollout.reward is None),
        )

    @property
    def rollouts(self) -> int:
        """The number of rollouts, failed ones included."""
        return sum(map(len, self.rewards.values()))

    @property
    def k(self) -> int:
        """The number of rollouts of each problem."""
        return max(map(len, self.rewards.values()), default=0)


# One arm


def mean_at_k(rewards: Sequence[Sequence[float | None]]) -> float:
    """Mean@k: the mean over problems of the mean reward of their rollouts. A missing reward counts as 0.

    Args:
        rewards: for each problem, the rewards of its k rollouts, each in [0, 1].
    """
    _require_rollouts(rewards)
    return mean([mean(rewards_or_zero(runs)) for runs in rewards])


def pass_at_k(rewards: Sequence[Sequence[float | None]], k: int) -> tuple[float, Estimator]:
    """Pass@k: the probability that at least one of k rollouts solves a problem, mean over problems; and the estimator used.

    With rewards of 0 and 1 this is the unbiased estimator 1 - C(n - c, k) / C(n, k), where c of n rollouts are right: the share
    of all choices of k rollouts that contain a right one (Chen et al., 2021, arXiv:2107.03374). With graded rewards it is the
    highest reward of the first k rollouts. A missing reward counts as 0.

    Raises:
        UserError: k is below 1, or a problem has fewer than k rollouts.
    """
    _require_rollouts(rewards)
    fewest = min(map(len, rewards))
    if not 1 <= k <= fewest:
        raise UserError(f"Pass@k: k is from 1 to the number of rollouts, {fewest}; got {k}")
    known = [rewards_or_zero(runs) for runs in rewards]
    if all(reward in (0.0, 1.0) for runs in known for reward in runs):
        return mean([_unbiased_pass_at_k(len(runs), round(sum(runs)), k) for runs in known]), "unbiased"
    return mean([max(runs[:k]) for runs in known]), "max of the first k"


def rewards_or_zero(runs: Sequence[float | None]) -> list[float]:
    """The rewards, with 0 in place of missing ones."""
    return [0.0 if reward is None else reward for reward in runs]


def _unbiased_pass_at_k(n: int, right: int, k: int) -> float:
    return 1 - math.comb(n - right, k) / math.comb(n, k)


def _require_rollouts(rewards: Sequence[Sequence[float | None]]) -> None:
    if not rewards or not all(rewards):
        raise UserError("no rollouts to evaluate: every arm needs at least one problem and one rollout of each")


# Two arms


@dataclass(frozen=True)
class Difference:
    """The lead of one arm over another, on the same problems with the same run indices."""

    mean: float
    """Mean over seeds of the mean over problems of the paired reward differences."""
    over_seeds: Interval | None
    """95 % interval by Student's t; None with a single seed."""
    over_problems: Interval | None
    """95 % interval by bootstrap over the problems of all seeds, each once; None with a single problem."""
    wins: int
    """Number of problems with a higher mean reward, over all seeds. A problem that several seeds played counts once, by its mean."""
    losses: int
    """Number of problems with a lower mean reward."""
    ties: int
    """Number of problems with the same mean reward."""


class _PairedDifference(NamedTuple):
    task: str
    delta: float


def difference(ours: Sequence[Outcome], baseline: Sequence[Outcome]) -> Difference:
    """Compare two arms problem by problem.

    Args:
        ours: the arm, one outcome per seed.
        baseline: the arm that it is compared with, on the same seeds.

    Raises:
        UserError: the arms did not play the same problems with the same run indices.
    """
    by_seed = {outcome.seed: outcome for outcome in baseline}
    if {outcome.seed for outcome in ours} != by_seed.keys():
        raise UserError(
            f"arms are compared on the same seeds; {ours[0].arm} has {sorted(o.seed for o in ours)}, "
            f"{baseline[0].arm} has {sorted(by_seed)}"
        )
    pairs = [_paired_differences(outcome, by_seed[outcome.seed]) for outcome in ours]
    deltas = _by_problem((pair.task, pair.delta) for seed in pairs for pair in seed)
    means = [mean([pair.delta for pair in seed]) for seed in pairs]
    return Difference(
        mean=mean(means),
        over_seeds=interval(means),
        over_problems=bootstrap_interval(deltas),
        wins=sum(delta > _SAME for delta in deltas),
        losses=sum(delta < -_SAME for delta in deltas),
        ties=sum(abs(delta) <= _SAME for delta in deltas),
    )


def _by_problem(values: Iterable[tuple[str, float]]) -> list[float]:
    """One value per problem: the mean over the seeds that played it, so that a problem counts once."""
    by_task: dict[str, list[float]] = {}
    for task, value in values:
        by_task.setdefault(task, []).append(value)
    return [mean(each) for each in by_task.values()]


_SAME = 1e-9
"""Differences up to this size are rounding errors and count as ties."""


def _paired_differences(ours: Outcome, theirs: Outcome) -> list[_PairedDifference]:
    lengths = [{task: len(runs) for task, runs in arm.rewards.items()} for arm in (ours, theirs)]
    if lengths[0] != lengths[1] or ours.numbers != theirs.numbers:
        apart = sorted(ours.rewards.keys() ^ theirs.rewards.keys()) or "the numbers of their rollouts"
        raise UserError(
            f"{ours.arm} and {theirs.arm}, seed {ours.seed}: arms are compared on the same problems; they differ in {apart}"
        )
    return [
        _PairedDifference(task, mean(rewards_or_zero(runs)) - mean(rewards_or_zero(theirs.rewards[task])))
        for task, runs in ours.rewards.items()
    ]


# All arms


@dataclass(frozen=True)
class ArmSummary:
    """The results of one arm over all seeds: a row of the table."""

    arm: str
    env: str
    model: str
    seeds: list[int]
    problems: int
    """Number of test problems of each seed."""
    k: int
    """Number of rollouts of each problem."""
    mean_at_k: float
    """Mean@k, mean over seeds."""
    over_seeds: Interval | None
    """95 % interval of Mean@k over seeds, by Student's t; None with a single seed."""
    over_problems: Interval | None
    """95 % interval of Mean@k by bootstrap over the problems of all seeds."""
    pass_at_k: float
    """Pass@k, mean over seeds."""
    pass_by: Estimator
    """Estimator of Pass@k."""
    difference: Difference | None
    """Lead over the baseline arm; None for the baseline itself, and without one."""
    lessons: float
    """Number of lessons in the library, mean over seeds."""
    tool_calls: float
    """Tool calls per rollout."""
    actions: float
    """Actions in the environment per rollout."""
    tokens: float
    """Input and output tokens of all model calls per rollout, paid for or from the cache."""
    failures: int
    """Number of rollouts without a reward, over all seeds; they count as 0."""
    rollouts: int
    """Number of rollouts, over all seeds."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self)


def arm_summaries(arms: Mapping[str, Sequence[Outcome]], env: str, model: str, baseline: str = "") -> list[ArmSummary]:
    """Summarise arms, each with one outcome per seed.

    Args:
        arms: outcomes by arm, in the order of the table.
        env: name of the environment.
        model: name of the model.
        baseline: the arm that the others are compared with; empty, or not among the arms: there is no comparison.
    """
    base = arms.get(baseline)
    return [
        _arm_summary(name, seeds, env, model, None if base is None or name == baseline else base)
        for name, seeds in arms.items()
    ]


def _arm_summary(name: str, seeds: Sequence[Outcome], env: str, model: str, base: Sequence[Outcome] | None) -> ArmSummary:
    means = [mean_at_k(list(outcome.rewards.values())) for outcome in seeds]
    passes = [pass_at_k(list(outcome.rewards.values()), outcome.k) for outcome in seeds]
    problems = _by_problem((task, mean(rewards_or_zero(runs))) for outcome in seeds for task, runs in outcome.rewards.items())
    rollouts = sum(outcome.rollouts for outcome in seeds)
    tokens = sum(outcome.usage.input_tokens + outcome.usage.output_tokens for outcome in seeds)
    # One way of counting for a whole row: a seed whose rewards happen to be 0 and 1 alone must not change it.
    by: Estimator = "unbiased" if all(way == "unbiased" for _, way in passes) else "max of the first k"
    return ArmSummary(
        arm=name,
        env=env,
        model=model,
        seeds=[outcome.seed for outcome in seeds],
        problems=max(len(outcome.rewards) for outcome in seeds),
        k=max(outcome.k for outcome in seeds),
        mean_at_k=mean(means),
        over_seeds=interval(means),
        over_problems=bootstrap_interval(problems),
        pass_at_k=mean([value for value, _ in passes]),
        pass_by=by,
        difference=None if base is None else difference(seeds, base),
        lessons=mean([outcome.lessons for outcome in seeds]),
        tool_calls=sum(outcome.tool_calls for outcome in seeds) / rollouts,
        actions=sum(outcome.actions for outcome in seeds) / rollouts,
        tokens=tokens / rollouts,
        failures=sum(len(outcome.failures) for outcome in seeds),
        rollouts=rollouts,
    )
