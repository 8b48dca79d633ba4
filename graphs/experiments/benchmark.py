"""Comparison of methods: statistics over seeds, and Markdown tables. Pure functions.

A method plays every seed for the same number of episodes. Episodes of one seed depend on each other (that is the point of
learning), so the unit of all statistics is the seed: first a number per seed, then its mean and 95 % interval over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...memory.display import format_number, markdown_table, with_interval
from ...memory.errors import plural
from ...nodes.evaluate.statistics import Interval, interval, mean
from .costs import RunWork

MOST_CHARACTERS = 120
"""Characters in a line of a table that still fit on a usual terminal."""
_SAME = 1e-6  # differences up to this size are rounding errors


@dataclass(frozen=True)
class SeedResult:
    """The results of one method on one seed, episode by episode."""

    method: str
    seed: int
    optimum: float
    """The highest score that is possible, or (`is_walkthrough`) known to be possible, in the environment's units."""
    scores: tuple[float, ...]
    """The score of each episode, in the environment's units."""
    bests: tuple[float, ...]
    """The highest score within each episode."""
    steps: tuple[int, ...]
    """Steps taken in each episode."""
    tokens: int = 0
    """Input and output tokens of all model calls."""
    calls: int = 0
    """Calls of the model, with those of attempts that did not get to their end."""
    input_tokens: int = 0
    """Tokens that these calls read."""
    output_tokens: int = 0
    """Tokens that these calls wrote."""
    episode_tokens: int = 0
    """Input and output tokens of the finished episodes alone."""
    tokens_by_episode: tuple[int, ...] = ()
    """Input and output tokens of each finished episode."""
    calls_by_episode: tuple[int, ...] = ()
    """Calls of the model in each finished episode."""
    seconds: tuple[float | None, ...] = ()
    """Wall time of each episode; None where it was not measured."""
    answer: int | None = None
    """Number of the episode whose attempt the method submitted as its answer; None if it submitted none."""
    solved: float | None = None
    """Lowest score that counts as solved; None if the environment does not define one."""
    refreshes: tuple[int, ...] = ()
    """Strategies written in each episode; empty if they were not counted."""
    malformed: int = 0
    """Yes-or-no decisions that could not be parsed and were taken as no."""
    studied: int = 0
    """Tokens spent on reading a bank before the first attempt; not part of `tokens`."""
    look_ups: int = 0
    """Steps after the first episode that looked something up in memory, where the method notes it."""
    empty_look_ups: int = 0
    """Those that found nothing."""
    nearest_miss: float | None = None
    """The greatest similarity among what was not similar enough for them, where the method notes it."""
    is_stopped: bool = False
    """True if the run ended before its last episode because one had earned the highest possible score."""
    unreadable: int = 0
    """Replies of the model that could not be used and were asked for again."""
    lost_steps: int = 0
    """Steps for which no reply could be used; the world received nothing."""
    is_walkthrough: bool = False
    """True if `optimum` is only what a known path scores: a higher score may be possible."""
    judged: tuple[float | None, ...] = ()
    """The return of each episode by the judge that the method learned from; None if a reward is missing. Empty without a judge."""
    unjudged: tuple[str | None, ...] = ()
    """Why a reward of each episode is missing; None where none is."""
    work: RunWork | None = None
    """The work of its model; None if it is unknown."""


@dataclass(frozen=True)
class MethodSummary:
    """One method over all seeds: a row of the table. Scores are in the environment's units."""

    method: str
    env: str
    model: str
    seeds: list[int]
    episodes: int
    """Episodes of the longest run: a token budget may end a run earlier."""
    avg: float
    """Mean score over all episodes."""
    avg_ci: Interval | None
    """95 % interval of `avg` over seeds; None with a single seed."""
    final: float
    """Mean score over the last tenth of the episodes, at least three."""
    final_ci: Interval | None
    """95 % interval of `final` over seeds; None with a single seed."""
    answer: float | None
    """Mean score of the attempt that the method chose as its answer; None if it chose none."""
    answer_ci: Interval | None
    """95 % interval of `answer` over seeds; None with a single seed."""
    top: float
    """Mean over seeds of the highest score of all episodes; only an oracle could pick that episode."""
    success: float | None
    """Share of the episodes that solved the task, mean over seeds; None if the environment defines no such score."""
    solved: float | None
    """Share of the seeds whose chosen attempt (the last one if none was chosen) solved the task; None if the environment
    defines no such score."""
    optimum: float
    """Mean over seeds of the highest score that is possible, or known to be possible."""
    is_walkthrough: bool
    """True if the optimum of some seed is only what a known path scores."""
    exceeded: int
    """Number of episodes, over all seeds, with a score above the optimum: a walkthrough's, then."""
    regret: float
    """Sum over episodes of optimum - score, mean over seeds. A score above a walkthrough's is a regret of 0."""
    best: float
    """The highest score within an episode, mean over episodes and seeds."""
    avg_of_optimum: float | None
    """Mean over seeds of (mean score / optimum); None if an optimum is not above 0."""
    final_of_optimum: float | None
    """The same for the last episodes."""
    steps: float
    """Steps per episode."""
    final_steps: float
    """Steps per episode over the last tenth of the episodes, at least three."""
    judged: float | None
    """Mean return by the judge that the method learned from, over the episodes with one; None without any."""
    judged_ci: Interval | None
    """95 % interval of `judged` over seeds; None with a single seed."""
    calls_per_run: float
    """Calls of the model in all episodes of a seed, with those of attempts that did not get to their end; mean over seeds."""
    input_tokens_per_run: float
    """Tokens that these calls read."""
    output_tokens_per_run: float
    """Tokens that these calls wrote."""
    tokens_per_run: float
    """Input and output tokens of all model calls in all episodes of a seed; mean over seeds."""
    unused_tokens: int
    """Tokens of calls that are part of no finished episode: of attempts that failed, and of ties that were judged again; sum over
    seeds."""
    dollars_per_run: float | None
    """The price of a run's calls, mean over seeds; None without prices."""
    tokens_per_episode: float
    """`tokens_per_run` divided by the episodes, mean over seeds."""
    tokens_per_step: float | None
    """`tokens_per_run` divided by the steps taken; None without any step."""
    seconds_per_step: float | None
    """Wall time per step, over the episodes whose time was measured, mean over seeds; None without any."""
    refreshes: float
    """Strategies written per episode, mean over seeds."""
    malformed: int
    """Decisions that could not be parsed, sum over all episodes."""
    studied: float
    """Tokens spent on reading a bank before the first attempt, mean over seeds; not part of the other costs."""
    look_ups: int
    """Steps after the first episode that looked something up in memory, sum over seeds, where the method notes it."""
    empty_look_ups: int
    """Those that found nothing."""
    nearest_miss: float | None
    """The greatest similarity among what was not similar enough for them, where the method notes it."""
    stopped: int
    """Number of seeds whose run ended early because an episode had earned the highest possible score."""
    played: int
    """Number of episodes that were played, sum over seeds."""
    unreadable: int
    """Replies of the model that could not be used and were asked for again, sum over all episodes."""
    lost_steps: int
    """Steps for which no reply could be used, sum over all episodes; the world received nothing."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self)


def final_count(episodes: int) -> int:
    """The number of episodes that count as the end of a run: a tenth, at least three (or all, if there are fewer)."""
    return min(episodes, max(3, episodes // 10))


def last_episodes(episodes: int) -> str:
    """The head of a column about the end of a run: `last 3 episodes`."""
    return f"last {plural(final_count(episodes), 'episode')}"


def summary(
    attempts: Sequence[SeedResult], env: str, model: str, price: Callable[[SeedResult], float] | None = None
) -> MethodSummary:
    """Summarise one method.

    Args:
        attempts: the method's results, one per seed.
        env: name of the environment.
        model: name of the model.
        price: a seed's result -> the dollars that its calls cost; None: unknown.
    """
    averages = [mean(a.scores) for a in attempts]
    finals = [mean(a.scores[-final_count(len(a.scores)) :]) for a in attempts]
    answers = [a.scores[a.answer] for a in attempts if a.answer is not None]
    chosen = [a.scores[-1 if a.answer is None else a.answer] for a in attempts]
    fractions = all(a.optimum > 0 for a in attempts)
    judged = [mean(known) for a in attempts if (known := [value for value in a.judged if value is not None])]
    timed = [_ratio(*_seconds_and_steps(a)) for a in attempts]
    return MethodSummary(
        method=attempts[0].method,
        env=env,
        model=model,
        seeds=[a.seed for a in attempts],
        episodes=max(len(a.scores) for a in attempts),
        avg=mean(averages),
        avg_ci=interval(averages),
        final=mean(finals),
        final_ci=interval(finals),
        answer=mean(answers) if len(answers) == len(attempts) else None,
        answer_ci=interval(answers) if len(answers) == len(attempts) else None,
        top=mean([max(a.scores) for a in attempts]),
        success=_solved_share(attempts, [a.scores for a in attempts]),
        solved=_solved_share(attempts, [(score,) for score in chosen]),
        optimum=mean([a.optimum for a in attempts]),
        is_walkthrough=any(a.is_walkthrough for a in attempts),
        exceeded=sum(score > a.optimum + _SAME for a in attempts for score in a.scores),
        regret=mean([math.fsum(max(a.optimum - score, 0.0) for score in a.scores) for a in attempts]),
        best=mean([mean(a.bests) for a in attempts]),
        avg_of_optimum=mean([x / a.optimum for x, a in zip(averages, attempts, strict=True)]) if fractions else None,
        final_of_optimum=mean([x / a.optimum for x, a in zip(finals, attempts, strict=True)]) if fractions else None,
        steps=mean([mean(a.steps) for a in attempts]),
        final_steps=mean([mean(a.steps[-final_count(len(a.steps)) :]) for a in attempts]),
        judged=mean(judged) if judged else None,
        judged_ci=interval(judged),
        calls_per_run=mean([a.calls for a in attempts]),
        input_tokens_per_run=mean([a.input_tokens for a in attempts]),
        output_tokens_per_run=mean([a.output_tokens for a in attempts]),
        tokens_per_run=mean([a.tokens for a in attempts]),
        unused_tokens=sum(max(0, a.tokens - a.episode_tokens) for a in attempts if a.calls),
        dollars_per_run=mean([price(a) for a in attempts]) if price else None,
        tokens_per_episode=mean([a.tokens / len(a.scores) for a in attempts]),
        tokens_per_step=_mean_or_none([_ratio(a.tokens, sum(a.steps)) for a in attempts]),
        seconds_per_step=_mean_or_none(timed),
        refreshes=mean([sum(a.refreshes) / len(a.scores) for a in attempts]),
        malformed=sum(a.malformed for a in attempts),
        studied=mean([a.studied for a in attempts]),
        look_ups=sum(a.look_ups for a in attempts),
        empty_look_ups=sum(a.empty_look_ups for a in attempts),
        nearest_miss=max((a.nearest_miss for a in attempts if a.nearest_miss is not None), default=None),
        stopped=sum(a.is_stopped for a in attempts),
        played=sum(len(a.scores) for a in attempts),
        unreadable=sum(a.unreadable for a in attempts),
        lost_steps=sum(a.lost_steps for a in attempts),
    )


def _solved_share(attempts: Sequence[SeedResult], scores: Sequence[Sequence[float]]) -> float | None:
    """The share of these scores that solve the seed's task, mean over seeds; None if some seed defines no such score."""
    if any(a.solved is None for a in attempts):
        return None
    pairs = zip(scores, attempts, strict=True)
    return mean([mean([float(score >= a.solved) for score in some]) for some, a in pairs if a.solved is not None])


def _seconds_and_steps(attempts: SeedResult) -> tuple[float, int]:
    """The seconds and the steps of the episodes whose time was measured."""
    known = [(s, n) for s, n in zip(attempts.seconds, attempts.steps, strict=False) if s is not None]
    return math.fsum(s for s, _ in known), sum(n for _, n in known)


def _ratio(amount: float, steps: int) -> float | None:
    return amount / steps if steps else None


def _mean_or_none(numbers: Sequence[float | None]) -> float | None:
    """The mean of the known numbers; None without any."""
    known = [number for number in numbers if number is not None]
    return mean(known) if known else None


def table(rows: Sequence[MethodSummary]) -> str:
    """A Markdown table with one row per method, and one for the optimum, or for the walkthrough where no optimum is known.

    `answer` is the attempt that the method chose itself, `best attempt` the highest score of all: an oracle's choice. `success` is
    the share of all episodes that solved the task, `solved` that of the answers. Where the optimum is not 1, scores are also given
    as a fraction of it. `best in episode` is there if points were lost again. `judged return` is what a judge gave and the method learned from, in the judge's units. A column without a
    number in it is left out. What is wider than 120 characters continues in a further table.
    """
    first = rows[0]
    fractions = all(r.final_of_optimum is not None for r in rows) and abs(first.optimum - 1) > 1e-9
    top = f"{first.optimum:.3g}"
    some_lost = any(r.best > r.avg + _SAME for r in rows)  # otherwise no episode ended below its best
    columns = [
        ("mean score", [with_interval(r.avg, r.avg_ci) for r in rows], top),
        (last_episodes(first.episodes), [with_interval(r.final, r.final_ci) for r in rows], top),
        (
            f"last / {optimum_name(rows)}",
            [format_number(r.final_of_optimum if fractions else None, ".2f") for r in rows],
            "1.00",
        ),
        ("answer", ["–" if r.answer is None else with_interval(r.answer, r.answer_ci) for r in rows], top),
        ("best attempt", [f"{r.top:.3g}" for r in rows], top),
        ("success", [format_number(r.success, ".2f") for r in rows], "1.00"),
        ("solved", [format_number(r.solved, ".2f") for r in rows], "1.00"),
        ("best in episode", [f"{r.best:.3g}" if some_lost else "–" for r in rows], top),
        ("regret", [f"{r.regret:.3g}" for r in rows], "0"),
        ("judged return", ["–" if r.judged is None else with_interval(r.judged, r.judged_ci) for r in rows], "–"),
        ("steps/episode", [f"{r.steps:.1f}" for r in rows], "–"),
        (f"steps, {last_episodes(first.episodes)}", [f"{r.final_steps:.1f}" for r in rows], "–"),
        ("refreshes/episode", [format_number(r.refreshes or None, ".1f") for r in rows], "–"),
        ("unreadable decisions", [format_number(r.malformed or None, ",") for r in rows], "–"),
        ("calls/run", [format_number(r.calls_per_run or None, ",.0f") for r in rows], "–"),
        ("tokens/run", [format_number(r.tokens_per_run or None, ",.0f") for r in rows], "–"),
        ("tokens/episode", [format_number(r.tokens_per_episode or None, ",.0f") for r in rows], "–"),
        ("tokens/step", [format_number(r.tokens_per_step or None, ",.0f") for r in rows], "–"),
        ("$/run", [format_number(r.dollars_per_run or None, ",.4g") for r in rows], "–"),
        ("s/step", [format_number(r.seconds_per_step, ".3g") for r in rows], "–"),
    ]
    columns = [column for column in columns if set(column[1]) != {"–"}]
    names = ["method", *(row.method for row in rows), optimum_name(rows)]
    parts: list[list[list[str]]] = [[names]]
    for head, cells, best in columns:
        column = [head, *cells, best]
        if len(parts[-1]) > 1 and _width([*parts[-1], column]) > MOST_CHARACTERS:
            parts.append([names])
        parts[-1].append(column)
    return "\n\n".join(markdown_table(list(zip(*part, strict=True))) for part in parts)


def _width(columns: Sequence[Sequence[str]]) -> int:
    """Characters in a line of the Markdown table of these columns."""
    return sum(max(map(len, column)) + 3 for column in columns) + 1


def optimum_name(rows: Sequence[MethodSummary | SeedResult]) -> str:
    """The name of the best known score: `walkthrough` if a higher one may be possible on some seed, else `optimum`."""
    return "walkthrough" if any(row.is_walkthrough for row in rows) else "optimum"


def with_common_optimum(methods: Sequence[Sequence[SeedResult]]) -> list[list[SeedResult]]:
    """The results with the same optimum for all methods on a seed: the highest that any of their runs recorded.

    Runs of earlier versions may have recorded different ones, where a world solved its tasks by random numbers.
    """
    known: dict[int, SeedResult] = {}
    for result in (result for seeds in methods for result in seeds):
        other = known.setdefault(result.seed, result)
        known[result.seed] = max(other, result, key=lambda one: (one.optimum, not one.is_walkthrough))
    return [
        [replace(a, optimum=known[a.seed].optimum, is_walkthrough=known[a.seed].is_walkthrough) for a in seeds]
        for seeds in methods
    ]
