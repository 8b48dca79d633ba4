"""What arms of a learning run come to on unseen problems: Mean@k, Pass@k, paired differences, intervals. Pure, but for the picture.

Every arm plays the same problems with the same run indices, so that two arms differ in the library alone. A rollout without a
reward (it failed, ran out of time, or nobody could verify it) counts as 0 and is counted. Rollouts of a problem are averaged
first: the unit within a seed is the problem, and over seeds (each with its own problems and its own learning) the seed.

There are two kinds of interval, and each figure says which it has:

- over problems: percentiles of the bootstrap. What other problems might have come to, with these libraries.
- over seeds: Student's t. What learning again, on other problems, might have come to; wider, and the one to believe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...memory.errors import UserError
from ...memory.records import Rollout, Usage
from .benchmark import COLOURS, Interval, aligned, interval, mean, with_interval
from .benchmark import format_number as shown

__all__ = [
    "BOOTSTRAP_DRAWS",
    "ArmSummary",
    "Difference",
    "LearningStep",
    "Outcome",
    "arm_summaries",
    "bootstrap",
    "difference",
    "draw_library_curves",
    "interval_note",
    "mean_at_k",
    "pass_at_k",
    "steps_table",
    "table",
    "usage_table",
]

BOOTSTRAP_DRAWS = 10_000
"""Resamples of a bootstrap."""
Estimator = Literal["unbiased", "max of the first k"]


@dataclass(frozen=True)
class Outcome:
    """One arm on the test problems of one seed."""

    arm: str
    seed: int
    rewards: Mapping[str, tuple[float | None, ...]]
    """Task id -> the reward of each rollout, in the order of `numbers`. None: missing."""
    numbers: tuple[int, ...] = ()
    """Run indices of the rollouts, the same for every problem."""
    lessons: int = 0
    """In the library that it was given."""
    tool_calls: int = 0
    """Of all its rollouts."""
    actions: int = 0
    """In the world, of all its rollouts; a written answer is one."""
    usage: Usage = field(default_factory=Usage)
    """Of all its rollouts."""
    failures: tuple[tuple[str, str], ...] = ()
    """(rollout id, reason) of every missing reward."""

    @classmethod
    def of(cls, arm: str, seed: int, rollouts: Sequence[Rollout], lessons: int = 0) -> Outcome:
        """From the rollouts of the arm, in any order.

        Raises:
            UserError: a rollout is there twice, or a problem has fewer than others: Mean@k would be of different k.
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
        """How many there are, failed ones too."""
        return sum(map(len, self.rewards.values()))

    @property
    def k(self) -> int:
        """Rollouts of each problem."""
        return max(map(len, self.rewards.values()), default=0)


# One arm


def mean_at_k(rewards: Sequence[Sequence[float | None]]) -> float:
    """The mean over problems of the mean reward of their rollouts; a missing reward counts as 0.

    Args:
        rewards: for each problem, the rewards of its k rollouts, each in [0, 1].
    """
    _require_rollouts(rewards)
    return mean([mean(rewards_or_zero(runs)) for runs in rewards])


def pass_at_k(rewards: Sequence[Sequence[float | None]], k: int) -> tuple[float, Estimator]:
    """The chance that one of k rollouts solves a problem, mean over problems; and how it was estimated.

    With rewards of 0 and 1 the unbiased estimator: of n rollouts c are right, and 1 - C(n - c, k) / C(n, k) is the share of all
    ways to choose k of them that hold a right one (Chen et al., 2021, arXiv:2107.03374). With graded rewards, the mean over
    problems of the highest reward of the first k. A missing reward counts as 0.

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
    """Rewards with 0 for those that are missing."""
    return [0.0 if reward is None else reward for reward in runs]


def _unbiased_pass_at_k(n: int, right: int, k: int) -> float:
    return 1 - math.comb(n - right, k) / math.comb(n, k)


def _require_rollouts(rewards: Sequence[Sequence[float | None]]) -> None:
    if not rewards or not all(rewards):
        raise UserError("no rollouts to evaluate: every arm needs at least one problem and one rollout of each")


def bootstrap(values: Sequence[float], draws: int = BOOTSTRAP_DRAWS, level: float = 0.95, seed: int = 0) -> Interval | None:
    """The percentile interval of the mean under resampling with replacement; None for fewer than two values.

    Args:
        values: one per problem (the unit that is resampled), of one arm or of the paired differences of two.
        draws: resamples.
        level: of confidence.
        seed: of the draws. The same values and seed give the same interval on every machine.
    """
    import numpy as np

    if len(values) < 2:
        return None
    data, draw = np.asarray(values, dtype=float), np.random.default_rng(seed)
    # Resampling n values is drawing how often each is taken: draws x n numbers at once, but never the resamples themselves.
    taken = draw.multinomial(len(data), np.full(len(data), 1 / len(data)), size=draws)
    means = taken @ data / len(data)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# Two arms


@dataclass(frozen=True)
class Difference:
    """What one arm is better by than another, on the same problems with the same run indices."""

    mean: float
    """Mean over seeds of the mean over problems of the paired differences."""
    over_seeds: Interval | None
    """95 %, Student's t; None with a single seed."""
    over_problems: Interval | None
    """95 %, bootstrap over the problems of all seeds, each once; None with a single problem."""
    wins: int
    """Problems whose mean reward is higher; of all seeds together. One that several seeds played counts once, by its mean."""
    losses: int
    ties: int


class _PairedDifference(NamedTuple):
    task: str
    delta: float


def difference(ours: Sequence[Outcome], baseline: Sequence[Outcome]) -> Difference:
    """Compare two arms problem by problem.

    Args:
        ours: the arm, one outcome per seed.
        theirs: what it is measured against: the same seeds.

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
        over_problems=bootstrap(deltas),
        wins=sum(delta > _SAME for delta in deltas),
        losses=sum(delta < -_SAME for delta in deltas),
        ties=sum(abs(delta) <= _SAME for delta in deltas),
    )


def _by_problem(values: Iterable[tuple[str, float]]) -> list[float]:
    """One value per problem: the mean over the seeds that played it. Seeds with the same problems make no more problems of them."""
    found: dict[str, list[float]] = {}
    for task, value in values:
        found.setdefault(task, []).append(value)
    return [mean(each) for each in found.values()]


_SAME = 1e-9
"""Differences of means of floats that are none."""


def _paired_differences(ours: Outcome, theirs: Outcome) -> list[_PairedDifference]:
    lengths = [{task: len(runs) for task, runs in arm.rewards.items()} for arm in (ours, theirs)]
    if lengths[0] != lengths[1] or ours.numbers != theirs.numbers:
        apart = sorted(ours.rewards.keys() ^ theirs.rewards.keys()) or "the numbers of their rollouts"
        raise UserError(f"{ours.arm} and {theirs.arm}, seed {ours.seed}: arms play the same problems; they differ in {apart}")
    return [
        _PairedDifference(task, mean(rewards_or_zero(runs)) - mean(rewards_or_zero(theirs.rewards[task])))
        for task, runs in ours.rewards.items()
    ]


# All arms


@dataclass(frozen=True)
class ArmSummary:
    """One arm over all seeds: a row of the table."""

    arm: str
    env: str
    model: str
    seeds: list[int]
    problems: int
    """Test problems of each seed."""
    k: int
    """Rollouts of each problem."""
    mean_at_k: float
    """Mean over seeds."""
    over_seeds: Interval | None
    """Its 95 % interval by Student's t; None with a single seed."""
    over_problems: Interval | None
    """Its 95 % interval by bootstrap over the problems of all seeds."""
    pass_at_k: float
    """Mean over seeds."""
    pass_by: Estimator
    difference: Difference | None
    """To the arm that all are measured against; None for that arm itself."""
    lessons: float
    """In the library, mean over seeds."""
    tool_calls: float
    """Per rollout."""
    actions: float
    """In the world, per rollout."""
    tokens: float
    """Input and output of all model calls, per rollout, whether they were paid for or came from the cache."""
    failures: int
    """Rollouts without a reward, of all seeds together; they count as 0."""
    rollouts: int
    """Of all seeds together."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def arm_summaries(arms: Mapping[str, Sequence[Outcome]], env: str, model: str, baseline: str = "") -> list[ArmSummary]:
    """Sum up arms, each with one outcome per seed.

    Args:
        arms: by name, in the order of the table.
        env: the world that was played.
        model: that played it.
        against: the arm that the others are measured against; empty, or no such arm: none is.
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
        over_problems=bootstrap(problems),
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


def lead_notes(arms: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """A line for each arm but the first: how far the first is ahead of it, on the same problems and run indices, with the interval
    over seeds, or over problems where there is one seed."""
    (first, ours), *others = arms.items()
    lines = []
    for name, theirs in others:
        found = difference(ours, theirs)
        band = found.over_seeds or found.over_problems
        lines.append(
            f"{first} is ahead of {name} by {found.mean:+.3f}" + (f" [{band[0]:+.3f}, {band[1]:+.3f}]" if band else "")
        )
    return lines


def interval_note(rows: Sequence[ArmSummary]) -> str:
    """What the brackets in a table of these rows are."""
    n = len(rows[0].seeds)
    if n > 1:
        return f"95 % over {n} seeds (Student's t; its ends may lie below 0 or above 1)"
    return f"95 % over {rows[0].problems} problems (bootstrap, {BOOTSTRAP_DRAWS:,} draws); one seed says nothing about others"


def table(rows: Sequence[ArmSummary]) -> str:
    """A Markdown table with one row per arm.

    Brackets are intervals over seeds, or, with a single seed, over problems (`compared` says which). Delta, and the problems won
    and lost, are to the arm that the others are measured against. What says nothing of any arm has no column.
    """
    first, empty = rows[0], ["–"] * len(rows)

    def delta(row: ArmSummary) -> str:
        found = row.difference
        if found is None:
            return "–"
        ci = found.over_seeds or found.over_problems
        return f"{found.mean:+.3f}" if ci is None else f"{found.mean:+.3f} [{ci[0]:+.3f}, {ci[1]:+.3f}]"

    def standing(row: ArmSummary) -> str:
        found = row.difference
        return "–" if found is None else f"{found.wins} / {found.losses} / {found.ties}"

    columns = [
        (f"Mean@{first.k}", [with_interval(row.mean_at_k, row.over_seeds or row.over_problems) for row in rows]),
        (
            f"Pass@{first.k}" if all(row.pass_by == "unbiased" for row in rows) else f"best of {first.k}",
            [f"{row.pass_at_k:.3g}" for row in rows],
        ),
        ("delta", [delta(row) for row in rows]),
        ("wins / losses / ties", [standing(row) for row in rows]),
        ("lessons", [f"{row.lessons:.3g}" for row in rows]),
        ("tool calls/rollout", [f"{row.tool_calls:.1f}" for row in rows] if any(row.tool_calls for row in rows) else empty),
        ("actions/rollout", [f"{row.actions:.1f}" for row in rows] if any(row.actions > 1 for row in rows) else empty),
        ("tokens/rollout", [shown(row.tokens or None, ",.0f") for row in rows]),
        ("failures", [f"{row.failures} of {row.rollouts}" if row.failures else "0" for row in rows]),
    ]
    told = [column for column in columns if set(column[1]) != {"–"}]
    lines = [["arm", *(head for head, _ in told)]]
    lines += [[row.arm, *(cells[i] for _, cells in told)] for i, row in enumerate(rows)]
    return aligned(lines)


# Learning, step by step


@dataclass(frozen=True)
class LearningStep:
    """One learning step of one seed."""

    seed: int
    step: int
    """From 0."""
    train: float
    """Mean reward of the step's rollouts, under the library before it; a missing reward counts as 0."""
    held_out: float | None
    """Mean reward on the held-out problems under the library after it; None: not measured."""
    lessons: int
    """In the library after it."""
    accepted: bool
    """Whether the step changed the library."""
    groups: int = 0
    """That were compared."""
    test: float | None = None
    """Mean reward on the test problems under the library after it; None: not measured."""


def steps_table(seeds: Sequence[Sequence[LearningStep]]) -> str:
    """A Markdown table with one row per learning step: means over the seeds that came so far.

    The rewards of a step's rollouts (train) are under the library before it. On later passes over the same problems they are no
    measure of learning, since the lessons were drawn from them; held-out and test problems are.
    """
    lines = [["step", "seeds", "train", "held out", "test", "lessons", "accepted", "groups compared"]]
    for number in sorted({step.step for steps in seeds for step in steps}):
        here = [step for steps in seeds for step in steps if step.step == number]
        lines.append(
            [
                str(number + 1),
                str(len(here)),
                with_interval(mean([step.train for step in here]), interval([step.train for step in here])),
                _format_mean([step.held_out for step in here]),
                _format_mean([step.test for step in here]),
                f"{mean([step.lessons for step in here]):.3g}",
                f"{sum(step.accepted for step in here)} of {len(here)}",
                f"{mean([step.groups for step in here]):.3g}",
            ]
        )
    said = [i for i in range(len(lines[0])) if len(lines) == 1 or {line[i] for line in lines[1:]} != {"–"}]
    return aligned([[line[i] for i in said] for line in lines])


def _format_mean(numbers: Sequence[float | None]) -> str:
    known = [number for number in numbers if number is not None]
    return with_interval(mean(known), interval(known)) if known else "–"


def usage_table(stages: Mapping[str, Usage], dollars: Mapping[str, float]) -> str:
    """A Markdown table of what each stage asked of models.

    Args:
        stages: by stage, its calls and tokens.
        dollars: by stage; empty without prices.
    """
    lines = [["stage", "calls", "tokens read", "tokens written", "dollars"]]
    lines += [_usage_row(stage, usage, dollars.get(stage)) for stage, usage in stages.items()]
    lines.append(_usage_row("all", sum(stages.values(), Usage()), sum(dollars.values()) if dollars else None))
    return aligned(lines if dollars else [line[:-1] for line in lines])


def _usage_row(stage: str, usage: Usage, dollars: float | None) -> list[str]:
    numbers = [f"{number:,}" for number in (usage.calls, usage.input_tokens, usage.output_tokens)]
    return [stage, *numbers, shown(dollars, ",.2f")]


def draw_library_curves(
    seeds: Sequence[Sequence[LearningStep]],
    start: Sequence[float | None],
    end: Sequence[float | None],
    title: str,
    paths: Sequence[Path],
) -> None:
    """Draw what the library is worth step by step: mean over seeds with its 95 % interval. A seed that stops keeps its library.

    Args:
        seeds: the learning steps of each seed.
        start: of each seed, the mean reward on the test problems under the empty library; None: not measured.
        end: the same under the library that the seed has learned.
        title: above the picture.
        paths: where to; the suffix says the format (.png, .svg).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.6, 4.2), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    last = max((step.step for steps in seeds for step in steps), default=-1)
    tests = [[first, *_carry_forward(steps, last, "test")] for first, steps in zip(start, seeds, strict=True)]
    for measured, product in zip(tests, end, strict=True):
        if last >= 0 and measured[-1] is None:
            measured[-1] = product
    lines: Mapping[str, tuple[int, list[list[float | None]]]] = {
        "test": (0, tests),
        "held out": (1, [_carry_forward(steps, last, "held_out") for steps in seeds]),
        "train (library before the step)": (
            0,
            [[_value_at_step(steps, n, "train") for n in range(last + 1)] for steps in seeds],
        ),
    }
    for colour, (label, (offset, numbers)) in zip(COLOURS, lines.items(), strict=False):
        known = [
            (offset + n, column)
            for n, values in enumerate(zip(*numbers, strict=True))
            if (column := [value for value in values if value is not None])
        ]
        if not known:
            continue
        at = [n for n, _ in known]
        whole = at == list(range(at[0], at[-1] + 1))  # else only the beginning and the end were measured
        middles = [mean(column) for _, column in known]
        axes.plot(at, middles, color=colour, lw=2, ls="-" if whole else ":", marker="o", ms=4, label=label)
        bands = [(n, band) for n, column in known if (band := interval(column)) is not None]
        if bands and whole:
            axes.fill_between(
                [n for n, _ in bands], [b[0] for _, b in bands], [b[1] for _, b in bands], color=colour, alpha=0.1, lw=0
            )
    said = f"mean of {n} seeds, 95 % interval" if (n := len(seeds)) > 1 else "one seed"
    axes.set_xlabel(f"learning steps taken ({said})")
    axes.set_ylabel("mean reward")
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylim(0, 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    if axes.lines:
        figure.legend(loc="outside right upper", frameon=False)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"part-{path.name}")  # whoever finds the picture finds all of it
        figure.savefig(part, metadata={"Date": None} if path.suffix == ".svg" else None)
        part.replace(path)


def _carry_forward(steps: Sequence[LearningStep], last: int, name: str) -> list[float | None]:
    """A figure after each step up to the last one of all seeds."""
    found: list[float | None] = []
    for number in range(last + 1):
        ended = not steps or number > steps[-1].step
        found.append(found[-1] if ended and found else _value_at_step(steps, number, name))
    return found


def _value_at_step(steps: Sequence[LearningStep], number: int, name: str) -> float | None:
    found: float | None = next((getattr(step, name) for step in steps if step.step == number), None)
    return found
