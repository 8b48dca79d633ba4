"""The numbers of a benchmark: a number per run, then mean, intervals and paired tests over seeds, all by scipy. Pure functions.

    mean score     over all episodes of a run, then over runs: Avg in JitRL's tables (arXiv:2601.18510)
    Final          score of the last episode, mean over runs                       (the same)
    last           mean score over the last tenth of the episodes, at least three
    running max    mean over episodes of the best score so far
    regret         sum over episodes of optimum - score, never below 0; all methods on a seed have the same optimum

Runs are paired by seed: a seed is the same task for every method. The tests are over the differences seed by seed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ...nodes.cached_model import Prices
from ...nodes.evaluate.statistics import Interval, interval, mean
from .results import SeedResult, final_count, last_episodes

__all__ = ["METRICS", "RUN_METRICS", "ArmEstimate"]


@dataclass(frozen=True)
class Metric:
    """A number per run."""

    head: str
    """The head of its column."""
    of: Callable[[SeedResult, Prices], float | None] = field(repr=False)
    """The number of a run; None if it has none."""
    form: str = ".3g"
    """Its format in tables."""
    about: str = ""
    """A sentence on how it is computed from the rows of a run."""


def dollars(run: SeedResult, prices: Prices) -> float | None:
    """The dollars that a run's calls cost; None without a price."""
    return prices.cost(run.usage) if prices.input or prices.output else None


def _success(run: SeedResult, _: Prices) -> float | None:
    return None if run.solved is None else mean([float(score >= run.solved) for score in run.scores])


def _steps_to_success(run: SeedResult, _: Prices) -> float | None:
    """Steps of all episodes up to the first that solved the task, of all that were played if none did."""
    first = first_success(run)
    return None if run.solved is None else float(sum(run.steps if first is None else run.steps[: first + 1]))


def first_success(run: SeedResult) -> int | None:
    """The number of the first episode that solved the task; None if none did."""
    return next((n for n, score in enumerate(run.scores) if run.solved is not None and score >= run.solved), None)


def _judged(run: SeedResult, _: Prices) -> float | None:
    known = [value for value in run.judged if value is not None]
    return mean(known) if known else None


def _seconds(run: SeedResult, _: Prices) -> float | None:
    known = [value for value in run.seconds if value is not None]
    return math.fsum(known) if known else None


def _answer(run: SeedResult, _: Prices) -> float | None:
    return None if run.answer is None else run.scores[run.answer]


def _solved(run: SeedResult, _: Prices) -> float | None:
    chosen = run.scores[-1 if run.answer is None else run.answer]
    return None if run.solved is None else float(chosen >= run.solved)


def _last(values: Sequence[float]) -> float:
    """The mean over the last tenth of the episodes, at least three."""
    return mean(values[-final_count(len(values)) :])


def _seconds_per_step(run: SeedResult, _: Prices) -> float | None:
    known = [(s, n) for s, n in zip(run.seconds, run.steps, strict=False) if s is not None]
    steps = sum(n for _, n in known)
    return math.fsum(s for s, _ in known) / steps if steps else None


def _pass(run: SeedResult, _: Prices) -> float | None:
    """Pass@k, where each of the run's tasks was played k times: the mean over tasks of the best score."""
    best: dict[str, float] = {}
    for task, score in zip(run.tasks, run.scores, strict=False):
        best[task] = max(score, best.get(task, -math.inf))
    return mean([*best.values()]) if best else None


METRICS: Mapping[str, Metric] = {
    "avg": Metric("mean score", lambda run, _: mean(run.scores), about="Mean score over all episodes of the run."),
    "final": Metric("Final", lambda run, _: run.scores[-1], about="Score of the run's last episode."),
    "last": Metric(
        "last", lambda run, _: _last(run.scores), about="Mean score over the last tenth of the episodes, at least three."
    ),
    "last-of-optimum": Metric(
        "last / optimum",
        lambda run, _: _last(run.scores) / run.optimum if run.optimum > 0 else None,
        ".2f",
        about="The same divided by the optimum, or by what the walkthrough scores within the step limit.",
    ),
    "answer": Metric("answer", _answer, about="Score of the attempt that the method itself chose as its answer."),
    "running-max": Metric(
        "running max", lambda run, _: mean([*accumulate(run.scores, max)]), about="Mean over episodes of the best score so far."
    ),
    "best": Metric(
        "best attempt", lambda run, _: max(run.scores), about="Highest score of all episodes; only an oracle can pick it."
    ),
    "best-in-episode": Metric(
        "best in episode",
        lambda run, _: mean(run.bests),
        about="Mean over episodes of the highest score within the episode: points may be lost again before its end.",
    ),
    "of-optimum": Metric(
        "mean / optimum",
        lambda run, _: mean(run.scores) / run.optimum if run.optimum > 0 else None,
        ".2f",
        about="Mean score divided by the optimum, or by what the walkthrough scores within the step limit; none where that is 0.",
    ),
    "pass": Metric("best of each task", _pass, about="Mean over the run's tasks of the best score: Pass@k of k attempts."),
    "lessons": Metric("lessons", lambda run, _: run.lessons, about="Lessons of the library that was learned before."),
    "tool-calls": Metric(
        "tool calls/episode",
        lambda run, _: (run.tool_calls or 0) / len(run.scores) or None,
        ".1f",
        about="Calls of tools per episode.",
    ),
    "success": Metric("success", _success, ".2f", about="Share of the episodes that solved the task."),
    "solved": Metric("solved", _solved, ".2f", about="Share of the answers (or last attempts) that solved the task."),
    "regret": Metric(
        "regret",
        lambda run, _: math.fsum(max(run.optimum - score, 0.0) for score in run.scores),
        about="Sum over episodes of optimum minus score; a score above a walkthrough's counts as 0.",
    ),
    "judged": Metric("judged return", _judged, about="Mean over episodes of the return by the judge."),
    "steps": Metric("steps/episode", lambda run, _: mean(run.steps), ".1f", about="Steps per episode."),
    "last-steps": Metric(
        "steps, last", lambda run, _: _last(run.steps), ".1f", about="The same over the last tenth of the episodes."
    ),
    "refreshes": Metric(
        "refreshes/episode",
        lambda run, _: sum(run.refreshes) / len(run.scores) or None,
        ".1f",
        about="Strategies written per episode.",
    ),
    "malformed": Metric(
        "unreadable decisions", lambda run, _: run.usage.malformed or None, ",.0f", about="Yes-or-no decisions taken as no."
    ),
    "steps-to-success": Metric(
        "steps to success",
        _steps_to_success,
        ",.0f",
        about="Steps of all episodes up to and with the first that solved the task. A run that never solved it counts with all the steps that "
        "it played (a restricted mean), which is the least that it would have taken.",
    ),
    "cross-task": Metric(
        "hits from other tasks",
        lambda run, _: run.look_ups.hits_elsewhere / run.look_ups.hits if run.look_ups.hits else None,
        ".1%",
        about="Share of the recalled visits that were made in other tasks (JitRL's Table 6); none where nothing was recalled.",
    ),
    "calls": Metric(
        "calls/run",
        lambda run, _: run.usage.calls or None,
        ",.0f",
        about="Calls of the model, with those of attempts that were not finished.",
    ),
    "tokens": Metric("tokens/run", lambda run, _: run.tokens or None, ",.0f", about="Tokens read and written in these calls."),
    "episode-tokens": Metric(
        "tokens/episode", lambda run, _: run.tokens / len(run.scores) or None, ",.0f", about="The same per episode."
    ),
    "step-tokens": Metric(
        "tokens/step",
        lambda run, _: run.tokens / sum(run.steps) if run.tokens and sum(run.steps) else None,
        ",.0f",
        about="The same per step of the world.",
    ),
    "trained-tokens": Metric(
        "tokens trained",
        lambda run, _: run.work.tokens_trained if run.work else None,
        ",.0f",
        about="Tokens that the weights were trained on, once for each epoch; none where a method trains no weights.",
    ),
    "flops": Metric(
        "FLOPs",
        lambda run, _: run.work.flops if run.work else None,
        ".3g",
        about="Floating-point operations of a model in this process: its forward passes, and all passes of its training. An "
        "episode that a crash cut short counts from where it was resumed. Not counted for a model behind an API.",
    ),
    "dollars": Metric("$/run", lambda run, prices: dollars(run, prices), ".4g", about="Price of these tokens."),
    "episode-dollars": Metric(
        "$/episode",
        lambda run, prices: None if (cost := dollars(run, prices)) is None else cost / len(run.scores),
        ".3g",
        about="The same per episode.",
    ),
    "seconds": Metric("s/run", _seconds, ".3g", about="Seconds of all episodes."),
    "hours": Metric(
        "h/run", lambda run, _: None if (known := _seconds(run, _)) is None else known / 3600, ".3g", about="The same in hours."
    ),
    "step-seconds": Metric("s/step", _seconds_per_step, ".3g", about="Seconds per step of the world."),
}
"""Name in a benchmark file -> metric."""
USUAL_METRICS = (
    *("avg", "final", "last", "running-max", "success", "regret", "judged", "steps", "steps-to-success"),
    *("tokens", "trained-tokens", "flops", "dollars", "seconds"),
)
"""The columns of a table where the file names none. A column without a number is left out."""
RUN_METRICS = (
    *("avg", "last", "last-of-optimum", "answer", "best", "success", "solved", "best-in-episode", "regret", "judged"),
    *("steps", "last-steps", "refreshes", "malformed", "calls", "tokens", "episode-tokens", "step-tokens", "trained-tokens"),
    *("flops", "dollars", "step-seconds"),
)
"""The columns of the table of `learngraph run METHOD`."""
LEARNING_METRICS = (
    *("avg", "pass", "lessons", "tool-calls", "steps", "calls", "tokens", "episode-tokens", "dollars", "episode-dollars"),
)
"""The same where a method learns on other problems than it plays."""


def metric_head(name: str, episodes: int) -> str:
    """The head of a metric's column: `last 3 episodes` for `last`."""
    heads = {"last": last_episodes(episodes), "last-steps": f"steps, {last_episodes(episodes)}"}
    return heads.get(name) or METRICS[name].head


@dataclass(frozen=True)
class ArmEstimate:
    """A metric of a method over its runs."""

    values: Mapping[int, float | None]
    """Seed -> the run's number; None if it has none."""
    mean: float | None
    """Mean over the runs that have a number; None without any."""
    by_t: Interval | None
    """95 % interval of the mean by Student's t; None for fewer than two runs."""

    @property
    def missing(self) -> int:
        """Number of runs without a number."""
        return sum(value is None for value in self.values.values())


def measure(name: str, runs: Sequence[SeedResult], prices: Prices) -> dict[int, float | None]:
    """Seed -> a metric's number, for each run of a method."""
    return {run.seed: METRICS[name].of(run, prices) for run in runs}


def estimate(values: Mapping[int, float | None]) -> ArmEstimate:
    """Mean and 95 % interval of a metric over runs, given by seed."""
    known = [value for value in values.values() if value is not None]
    if not known:
        return ArmEstimate(values, None, None)
    return ArmEstimate(values, mean(known), interval(known))
