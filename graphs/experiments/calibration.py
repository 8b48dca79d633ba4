"""Calibration of the reward that a method sees (r) against the true score (r*), over the finished attempts of a run.

r is the return that the method saw and chose by (from a rule, a judge, the model itself; `earned` in episodes.jsonl); r* is the
environment's score. A method that learns from r, or picks its answer by r, can be no better than r. Attempts at one task depend
on each other, so the seed is the unit of every interval and of every split. Pure functions, except for `read_run_folder`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from ...memory.display import markdown_table
from ...memory.errors import UserError, plural
from ...nodes.evaluate.statistics import mean
from .calibration_statistics import MIN_SEEDS, SeedEstimate, auroc, isotonic, jackknife_estimate, mean_estimate, spearman
from .folder_settings import read_sweep_settings, run_stem
from .jsonl import read_rows

__all__ = [
    "Bin",
    "Calibration",
    "CalibrationError",
    "RatedAttempt",
    "calibrate",
    "calibrate_methods",
    "missing_reward_note",
    "read_run_folder",
    "report",
    "reward_bins",
]

MAX_BINS = 8
"""Rows of the table of bins. With at most as many different rewards, each has a bin of its own."""


class CalibrationError(UserError, ValueError):
    """There are no rewards to compare with the scores, or no run folder to read them from."""


@dataclass(frozen=True)
class RatedAttempt:
    """The reward and the score of a finished attempt."""

    seed: int
    reward: float | None
    """r, in the judge's units; None if it is missing."""
    score: float
    """r*, in the environment's units."""
    reason: str = ""
    """Reason why r is missing; empty if it is not, or if no reason was recorded."""


@dataclass(frozen=True)
class Bin:
    """A group of attempts with about the same r."""

    low: float
    """Lowest r."""
    high: float
    """Highest r."""
    count: int
    """Number of attempts."""
    score: float
    """Mean r* of the attempts."""
    mapped: float
    """Mean r* that the mapping, fitted to all attempts, predicts for them."""


@dataclass(frozen=True)
class Calibration:
    """The calibration of one method's rewards r against the scores r*."""

    method: str
    seeds: int
    attempts: int
    missing: int
    """Number of attempts without r."""
    missing_score: float | None
    """Mean r* of the attempts without r; None if there are none."""
    score: float
    """Mean r* of the attempts with r. All fields below are about these attempts."""
    same: bool
    """True if r equals r* in all of them."""
    varied: bool
    """True if r* differs between attempts; if it does not, r cannot be judged."""
    good: str
    """The criterion for a good attempt, in words, and how many attempts meet it."""
    spearman: SeedEstimate
    """Rank correlation of r and r*."""
    spearman_within: SeedEstimate
    """Rank correlation within a seed, mean over the seeds where it is defined: how well r ranks attempts at one task."""
    auroc: SeedEstimate
    """Probability that a good attempt has a higher r than another one; ties count half."""
    auroc_within: SeedEstimate
    """AUROC within a seed, mean over the seeds where it is defined."""
    bins: tuple[Bin, ...]
    """Groups of attempts, lowest r first."""
    binary: bool
    """True if every r* is 0 or 1: then the squared errors are Brier scores."""
    error: float
    """Mean squared error of r* predicted from r, on seeds that the mapping was not fitted to, in units of r* squared."""
    error_of_mean: float
    """The same error if the mean r* of the other seeds is predicted, without r."""
    gain: SeedEstimate
    """error_of_mean - error. Above 0, r predicts r* on other tasks."""
    mapping: tuple[tuple[float, float], ...]
    """Mapping from r to r*, fitted to all attempts: pairs (r, r*) at the values of r that occurred, linear between them."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self)


def reward_bins(rewards: Sequence[float], scores: Sequence[float], mapping: Callable[[float], float]) -> tuple[Bin, ...]:
    """Bins of about equal size, lowest r first. Attempts with equal r share a bin; few different rewards have one bin each."""
    pairs = sorted(zip(rewards, scores, strict=True))
    groups = [list(group) for _, group in groupby(pairs, key=lambda pair: pair[0])]
    joined: list[list[tuple[float, float]]] = []
    done = 0
    for group in groups:
        # Begin a new bin once the last one has its share of the attempts.
        if not joined or len(groups) <= MAX_BINS or done * MAX_BINS >= len(joined) * len(pairs):
            joined.append([])
        joined[-1] += group
        done += len(group)
    return tuple(
        Bin(one[0][0], one[-1][0], len(one), mean([s for _, s in one]), mean([mapping(r) for r, _ in one])) for one in joined
    )


# r against r*


def calibrate(rated: Sequence[RatedAttempt], method: str = "", solved: float | None = None) -> Calibration:
    """Compare the rewards r of a method's attempts with their scores r*.

    Args:
        rated: the attempts.
        method: name of the method.
        solved: lowest r* that counts as solved. Without it an attempt is good if its r* is above the median.

    Raises:
        CalibrationError: no attempt has an r, or all attempts with r are of one seed.
    """
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for one in rated:
        if one.reward is not None:
            by_seed.setdefault(one.seed, []).append((one.reward, one.score))
    missing = [one for one in rated if one.reward is None]
    if not by_seed:
        raise CalibrationError(
            f"none of the {len(rated)} attempts of {method or 'the method'} has a reward r{_most_frequent_reason(missing)}"
        )
    if len(by_seed) < 2:
        (seed,) = by_seed
        raise CalibrationError(
            f"{method or 'the method'} has rewards on seed {seed} alone; a mapping from r to r* is tested on seeds that it was "
            "not fitted to, so there must be at least two: play with --seeds 10"
        )
    seeds = [by_seed[seed] for seed in sorted(by_seed)]
    rewards, scores = _columns(seeds)
    is_good, good = _success_criterion(scores, solved)

    def area(seeds: Sequence[Sequence[tuple[float, float]]]) -> float | None:
        rewards, scores = _columns(seeds)
        return auroc(rewards, [is_good(score) for score in scores])

    errors, of_mean = _held_out_errors(seeds)
    gains = [b - a for a, b in zip(errors, of_mean, strict=True)]
    mapping = isotonic(rewards, scores)
    return Calibration(
        method=method,
        seeds=len(seeds),
        attempts=len(rated),
        missing=len(missing),
        missing_score=mean([one.score for one in missing]) if missing else None,
        score=mean(scores),
        same=rewards == scores,
        varied=len(set(scores)) > 1,
        good=f"{good}: {sum(map(is_good, scores))} of {len(scores)}",
        spearman=jackknife_estimate(seeds, _rank_correlation, (-1.0, 1.0)),
        spearman_within=mean_estimate([_rank_correlation([seed]) for seed in seeds]),
        auroc=jackknife_estimate(seeds, area, (0.0, 1.0)),
        auroc_within=mean_estimate([area([seed]) for seed in seeds]),
        bins=reward_bins(rewards, scores, mapping),
        binary=set(scores) <= {0.0, 1.0},
        error=mean(errors),
        error_of_mean=mean(of_mean),
        gain=mean_estimate(gains),
        mapping=tuple(zip(mapping.rewards, mapping.scores, strict=True)),
    )


def _rank_correlation(seeds: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    return spearman(*_columns(seeds))


def _columns(seeds: Sequence[Sequence[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    return [reward for seed in seeds for reward, _ in seed], [score for seed in seeds for _, score in seed]


def _success_criterion(scores: Sequence[float], solved: float | None) -> tuple[Callable[[float], bool], str]:
    if solved is not None:
        return (lambda score: score >= solved), f"r* >= {solved:g}, solved"
    middle, top = median(scores), max(scores)
    if middle < top:
        return (lambda score: score > middle), f"r* > {middle:g}, the median"
    return (lambda score: score >= top), f"r* >= {top:g}, the highest"


def _held_out_errors(seeds: Sequence[Sequence[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """For each seed the mean squared errors of the mapping and of the mean, both fitted to the half without the seed."""
    halves = [_columns(seeds[1::2]), _columns(seeds[::2])]
    fitted = [(isotonic(rewards, scores), mean(scores)) for rewards, scores in halves]
    errors, of_mean = [], []
    for place, seed in enumerate(seeds):
        mapping, middle = fitted[place % 2]
        errors.append(mean([(mapping(reward) - score) ** 2 for reward, score in seed]))
        of_mean.append(mean([(middle - score) ** 2 for _, score in seed]))
    return errors, of_mean


def _most_frequent_reason(missing: Sequence[RatedAttempt]) -> str:
    """The most frequent reason, after a colon; empty without reasons."""
    reasons = Counter(one.reason for one in missing if one.reason).most_common(1)
    return f": {reasons[0][0]}" if reasons else ""


# Runs, and the report


def read_run_folder(folder: Path, method: str | None = None) -> dict[str, tuple[list[RatedAttempt], float | None]]:
    """For each method of a run folder its finished attempts, and the lowest score that counts as solved (None: not defined).

    Args:
        folder: a folder made by `learngraph run`. A run that is under way or was killed gives its attempts so far.
        method: read this method only.

    Raises:
        UserError: the folder is not a run folder, or has no runs of the method.
    """
    settings = read_sweep_settings(folder)
    methods, seeds = list(settings["methods"]), settings["seeds"]
    if method is not None and method not in methods:
        raise CalibrationError(f"{folder} has no runs of {method}; it has {', '.join(methods)}")
    return {name: _attempts(folder, name, seeds) for name in ([method] if method else methods)}


def _attempts(folder: Path, method: str, seeds: Sequence[int]) -> tuple[list[RatedAttempt], float | None]:
    rated, solved = [], None
    for seed in seeds:
        run = folder / f"{run_stem(method)}-s{seed}"
        if (run / "episodes.jsonl").exists():
            rated += [
                RatedAttempt(seed, row.get("earned"), row["score"], row.get("unjudged", ""))
                for row in read_rows(run / "episodes.jsonl")
            ]
        if (run / "result.json").exists():
            solved = json.loads((run / "result.json").read_text(encoding="utf-8")).get("solved")
    return rated, solved


def missing_reward_note(rated: Sequence[RatedAttempt], method: str, expected_reason: str) -> str:
    """One line on the attempts without a reward, as '3 of 30 attempts of icrl have no reward: …'; empty if all have one.

    Args:
        rated: the attempts of a method.
        method: name of the method.
        expected_reason: reason of a method that has no rewards by design; if all missing rewards have it, the line is empty.
    """
    missing = [one for one in rated if one.reward is None]
    if not missing or all(one.reason == expected_reason for one in missing):
        return ""
    reasons = Counter(one.reason or "the environment could not read an action" for one in missing).most_common()
    more = (
        f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 2 else " (and another reason)" if len(reasons) == 2 else ""
    )
    why = reasons[0][0] if len(reasons[0][0]) <= 200 else reasons[0][0][:200] + "…"
    return f"{len(missing)} of {len(rated)} attempts of {method} have no reward: {why}{more}"


def report(calibration: Calibration) -> str:
    """The calibration as text: estimates with intervals, the table of bins, notes."""
    words = [f"{calibration.attempts} on {plural(calibration.seeds, 'seed')}, mean r* {calibration.score:.3g}"]
    if calibration.missing_score is not None:
        words = [
            f"{calibration.attempts - calibration.missing} with r, mean r* {calibration.score:.3g}, on {plural(calibration.seeds, 'seed')}"
        ]
        words += [f"{calibration.missing} without r, mean r* {calibration.missing_score:.3g}"]
    lines = [
        f"{calibration.method}: r, the return that the method saw, against r*, the true score",
        "",
        f"attempts       {'; '.join(words)}",
        f"Spearman       {_format_estimate(calibration.spearman)}; within a seed {_format_estimate(calibration.spearman_within, seeds=True)}",
        f"AUROC          {_format_estimate(calibration.auroc)}; within a seed {_format_estimate(calibration.auroc_within, seeds=True)}  (good: {calibration.good})",
        f"r -> r*        {'Brier score' if calibration.binary else 'mean squared error'} {calibration.error:.3g} on held-out seeds; "
        f"{calibration.error_of_mean:.3g} for the mean, whatever r is; lower by {_format_estimate(calibration.gain)}",
        "",
    ]
    table = [("r", "attempts", "mean r*", "mapped")]
    for one in calibration.bins:
        span = f"{one.low:g}" if one.low == one.high else f"{one.low:.3g} to {one.high:.3g}"
        table.append((span, str(one.count), f"{one.score:.3g}", f"{one.mapped:.3g}"))
    lines.append(markdown_table(table, left=0))
    notes = [""]
    if calibration.seeds < MIN_SEEDS:
        notes += [f"No intervals: those over fewer than {MIN_SEEDS} seeds would say nothing."]
    if not calibration.varied:
        notes += [f"r* is {calibration.score:g} in every attempt: nothing can be said about r."]
    elif calibration.same:
        notes += ["r is r* in every attempt: the method saw the true score, and there is nothing to calibrate."]
    elif len(calibration.mapping) == 1:
        notes += ["r is the same for every attempt: it says nothing about r*."]
    return "\n".join([*lines, *notes]).rstrip()


def _format_estimate(figure: SeedEstimate, seeds: bool = False) -> str:
    if figure.value is None:
        return "–"
    span = f" [{figure.interval[0]:.3g}, {figure.interval[1]:.3g}]" if figure.interval else ""
    return f"{figure.value:.3g}{span}" + (f" ({figure.seeds} seed{'s' * (figure.seeds > 1)})" if seeds else "")


def calibrate_methods(
    attempts_by_method: Mapping[str, tuple[list[RatedAttempt], float | None]],
) -> tuple[list[Calibration], list[str]]:
    """The calibration of every method that has enough rewards, and one line for each other method that says why it has none.

    Raises:
        CalibrationError: no method has enough rewards.
    """
    done, left = [], []
    for method, (rated, solved) in attempts_by_method.items():
        try:
            done.append(calibrate(rated, method, solved))
        except CalibrationError as error:
            left.append(str(error))
    if not done:
        raise CalibrationError("; ".join(left))
    return done, left
