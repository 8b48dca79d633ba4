"""Does the reward that a method sees tell how good its attempts are? r against r*, over the finished attempts of a run.

r is the return that the method saw and chose by (a rule's, a model's own, …: `earned` in episodes.jsonl), r* the true score.
A method that learns from a reward, or picks its answer by it, can be no better than the reward. Attempts at one task depend on
each other, so the seed is the unit of every interval and of every split. Pure functions, but for `read`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from ...memory.errors import UserError
from .benchmark import Interval, interval, mean
from .sweep import read_rows

__all__ = [
    "Bin",
    "Calibration",
    "CalibrationError",
    "Isotonic",
    "RatedAttempt",
    "SeedEstimate",
    "auroc",
    "calibrate",
    "calibrate_methods",
    "isotonic",
    "missing_reward_note",
    "read_run_folder",
    "report",
    "reward_bins",
    "spearman",
]

MIN_SEEDS = 5
"""An interval over fewer seeds says nothing."""
MAX_BINS = 8
"""So many different rewards stand in the table one by one; of more, so many bins are made."""


class CalibrationError(UserError, ValueError):
    """There is nothing that r could be held against."""


@dataclass(frozen=True)
class RatedAttempt:
    """A finished attempt."""

    seed: int
    reward: float | None
    """r, in the judge's units; None if it is missing."""
    score: float
    """r*, in the environment's units."""
    reason: str = ""
    """Why r is missing."""


@dataclass(frozen=True)
class SeedEstimate:
    """A number with its 95 % interval over seeds."""

    value: float | None
    """None where it is not defined: all r are the same, or all attempts are good, or none."""
    interval: Interval | None
    """None with fewer than five seeds, and where leaving out a seed makes no difference."""
    seeds: int
    """Behind it."""


@dataclass(frozen=True)
class Bin:
    """Attempts with about the same r."""

    low: float
    high: float
    count: int
    score: float
    """Their mean r*."""
    mapped: float
    """The mean r* that the mapping, fitted to all attempts, expects of them."""


@dataclass(frozen=True)
class Calibration:
    """r against r* for one method."""

    method: str
    seeds: int
    attempts: int
    missing: int
    """Attempts without r."""
    missing_score: float | None
    """Their mean r*; None if there are none."""
    score: float
    """Mean r* of the attempts that have an r; all that follows is about these."""
    same: bool
    """Whether r is r* in all of them."""
    varied: bool
    """Whether r* is not the same in all of them; if it is, nothing can be said of r."""
    good: str
    """Which attempts count as good, in words, and how many are."""
    spearman: SeedEstimate
    """Rank correlation of r and r*."""
    spearman_within: SeedEstimate
    """The same within a seed, mean over the seeds where it is defined: what counts for choosing among attempts at one task."""
    auroc: SeedEstimate
    """The chance that of a good attempt and another one the good one has the higher r; ties count half."""
    auroc_within: SeedEstimate
    """The same within a seed."""
    bins: tuple[Bin, ...]
    binary: bool
    """Whether r* is only ever 0 or 1: then the squared errors are Brier scores."""
    error: float
    """Mean squared error of r* as mapped from r, on seeds that the mapping was not fitted to, in units of r* squared."""
    error_of_mean: float
    """The same for the mean r* of the other seeds, whatever r is."""
    gain: SeedEstimate
    """error_of_mean - error: above 0, r tells something that holds on other tasks."""
    mapping: tuple[tuple[float, float], ...]
    """r -> r*, fitted to all attempts, at the values of r that occurred; straight lines between them."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


# Statistics


def spearman(rewards: Sequence[float], scores: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties with their mean rank; None if one of the two never changes."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    if len(set(rewards)) < 2 or len(set(scores)) < 2:
        return None
    x, y = rankdata(rewards), rankdata(scores)
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / math.sqrt((x @ x) * (y @ y)))


def auroc(rewards: Sequence[float], good: Sequence[bool]) -> float | None:
    """The area under the ROC curve: P(r of a good one > r of another) + P(equal) / 2; None without both kinds."""
    from scipy.stats import rankdata

    n, others = sum(good), len(good) - sum(good)
    if not n or not others:
        return None
    ranks = math.fsum(rank for rank, one in zip(rankdata(rewards), good, strict=True) if one)
    return (ranks - n * (n + 1) / 2) / (n * others)


@dataclass(frozen=True)
class Isotonic:
    """A mapping from r to r* that never falls: straight lines between knots, flat beyond them."""

    rewards: tuple[float, ...]
    scores: tuple[float, ...]

    def __call__(self, reward: float) -> float:
        import numpy as np

        return float(np.interp(reward, self.rewards, self.scores))


def isotonic(rewards: Sequence[float], scores: Sequence[float]) -> Isotonic:
    """The mapping with the least squared error among those that never fall (pool adjacent violators)."""
    from scipy.optimize import isotonic_regression  # type: ignore[import-untyped]

    found: dict[float, list[float]] = {}
    for reward, score in zip(rewards, scores, strict=True):
        found.setdefault(reward, []).append(score)
    knots = sorted(found)
    fitted = isotonic_regression([mean(found[knot]) for knot in knots], weights=[len(found[knot]) for knot in knots])
    return Isotonic(tuple(knots), tuple(map(float, fitted.x)))


def reward_bins(rewards: Sequence[float], scores: Sequence[float], mapping: Callable[[float], float]) -> tuple[Bin, ...]:
    """Bins of about as many attempts each, lowest r first; equal r stand in the same bin, and few values have one each."""
    pairs = sorted(zip(rewards, scores, strict=True))
    groups = [list(group) for _, group in groupby(pairs, key=lambda pair: pair[0])]
    joined: list[list[tuple[float, float]]] = []
    done = 0
    for group in groups:
        # A new bin where the last one has its share.
        if not joined or len(groups) <= MAX_BINS or done * MAX_BINS >= len(joined) * len(pairs):
            joined.append([])
        joined[-1] += group
        done += len(group)
    return tuple(
        Bin(one[0][0], one[-1][0], len(one), mean([s for _, s in one]), mean([mapping(r) for r, _ in one])) for one in joined
    )


# r against r*


def calibrate(rated: Sequence[RatedAttempt], method: str = "", solved: float | None = None) -> Calibration:
    """Hold r against r*.

    Args:
        rated: the attempts.
        method: whose.
        solved: the r* from which a task counts as solved. Without it an attempt is good if its r* is above the median.

    Raises:
        CalibrationError: no attempt has an r, or only attempts on one seed have.
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
            f"{method or 'the method'} has rewards on seed {seed} alone; a mapping from r to r* is tried on seeds that it was "
            "not fitted to, so there must be at least two: play with --seeds 10"
        )
    seeds = [by_seed[seed] for seed in sorted(by_seed)]
    rewards, scores = _columns(seeds)
    is_good, good = _success_criterion(scores, solved)

    def ranks(seeds: Sequence[Sequence[tuple[float, float]]]) -> float | None:
        return spearman(*_columns(seeds))

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
        spearman=_jackknife_estimate(seeds, ranks, (-1.0, 1.0)),
        spearman_within=_mean_estimate([ranks([seed]) for seed in seeds]),
        auroc=_jackknife_estimate(seeds, area, (0.0, 1.0)),
        auroc_within=_mean_estimate([area([seed]) for seed in seeds]),
        bins=reward_bins(rewards, scores, mapping),
        binary=set(scores) <= {0.0, 1.0},
        error=mean(errors),
        error_of_mean=mean(of_mean),
        gain=_mean_estimate(gains),
        mapping=tuple(zip(mapping.rewards, mapping.scores, strict=True)),
    )


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
    """Per seed the mean squared error of the mapping, and that of the mean, both fitted to the half that the seed is not in."""
    halves = [_columns(seeds[1::2]), _columns(seeds[::2])]
    fitted = [(isotonic(rewards, scores), mean(scores)) for rewards, scores in halves]
    errors, of_mean = [], []
    for place, seed in enumerate(seeds):
        mapping, middle = fitted[place % 2]
        errors.append(mean([(mapping(reward) - score) ** 2 for reward, score in seed]))
        of_mean.append(mean([(middle - score) ** 2 for _, score in seed]))
    return errors, of_mean


def _jackknife_estimate(
    seeds: Sequence[Sequence[tuple[float, float]]],
    statistic: Callable[[Sequence[Sequence[tuple[float, float]]]], float | None],
    limits: Interval,
) -> SeedEstimate:
    """A statistic of all attempts together; its interval by the jackknife, leaving out one seed at a time."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    value, n = statistic(seeds), len(seeds)
    without = [statistic([*seeds[:i], *seeds[i + 1 :]]) for i in range(n)] if n >= MIN_SEEDS else []
    known = [one for one in without if one is not None]
    if value is None or not known or len(known) < n or len(set(known)) == 1:
        return SeedEstimate(value, None, n)  # that it is the same without any seed is no sign of certainty: AUROC 1, say
    middle = mean(known)
    half = float(stdtrit(n - 1, 0.975)) * math.sqrt((n - 1) / n * math.fsum((one - middle) ** 2 for one in known))
    return SeedEstimate(value, (max(limits[0], value - half), min(limits[1], value + half)), n)


def _mean_estimate(values: Sequence[float | None]) -> SeedEstimate:
    """The mean over the seeds where there is a value."""
    known = [value for value in values if value is not None]
    if not known:
        return SeedEstimate(None, None, 0)
    return SeedEstimate(mean(known), interval(known) if len(known) >= MIN_SEEDS else None, len(known))


def _most_frequent_reason(missing: Sequence[RatedAttempt]) -> str:
    """The most frequent reason, after a colon; empty without any."""
    reasons = Counter(one.reason for one in missing if one.reason).most_common(1)
    return f": {reasons[0][0]}" if reasons else ""


# Runs, and the report


def read_run_folder(folder: Path, method: str | None = None) -> dict[str, tuple[list[RatedAttempt], float | None]]:
    """The finished attempts in a run folder, and the score from which a task counts as solved (None: nobody says).

    Args:
        folder: as `learngraph run` makes it. A run that is under way, or was killed, has its attempts so far.
        method: one method only.

    Raises:
        CalibrationError: it is no run folder, or no such method was played in it.
    """
    try:
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        methods, seeds = list(settings["methods"]), list(settings["seeds"])
    except OSError:
        there = "has no settings.json" if folder.is_dir() else "does not exist" if not folder.exists() else "is a file"
        raise CalibrationError(f"{folder} {there}; a folder that `learngraph run` has made would do") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CalibrationError(f"{folder}/settings.json is damaged ({error}); another run folder would do") from None
    if method is not None and method not in methods:
        raise CalibrationError(f"{folder} has no runs of {method}; it has {', '.join(methods)}")
    return {name: _attempts(folder, name, seeds) for name in ([method] if method else methods)}


def _attempts(folder: Path, method: str, seeds: Sequence[int]) -> tuple[list[RatedAttempt], float | None]:
    rated, solved = [], None
    for seed in seeds:
        run = folder / f"{method.replace(':', '-')}-s{seed}"
        if (run / "episodes.jsonl").exists():
            rated += [
                RatedAttempt(seed, row.get("earned"), row["score"], row.get("unjudged", ""))
                for row in read_rows(run / "episodes.jsonl")
            ]
        if (run / "result.json").exists():
            solved = json.loads((run / "result.json").read_text(encoding="utf-8")).get("solved")
    return rated, solved


def missing_reward_note(rated: Sequence[RatedAttempt], method: str, expected_reason: str) -> str:
    """One line on the attempts that have no reward and why, as '3 of 30 attempts of icrl have no reward: …'; empty if all have.

    Args:
        rated: the attempts of a method.
        method: its name.
        without: the reason that goes without saying: nothing is said of a method that has no rewards by design.
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
    """What was found, to read."""
    words = [f"{calibration.attempts} on {calibration.seeds} seeds, mean r* {calibration.score:.3g}"]
    if calibration.missing_score is not None:
        words = [
            f"{calibration.attempts - calibration.missing} with r, mean r* {calibration.score:.3g}, on {calibration.seeds} seeds"
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
    widths = [max(len(line[i]) for line in table) for i in range(4)]
    shown = ["| " + " | ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in table]
    rule = "|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|"
    lines += [shown[0], rule, *shown[1:]]
    notes = [""]
    if calibration.seeds < MIN_SEEDS:
        notes += [f"No intervals: those over fewer than {MIN_SEEDS} seeds say nothing."]
    if not calibration.varied:
        notes += [f"r* is {calibration.score:g} in every attempt: nothing can be said of r."]
    elif calibration.same:
        notes += ["r is r* in every attempt: the method saw the true score, and there is nothing to calibrate."]
    elif len(calibration.mapping) == 1:
        notes += ["r is the same for every attempt: it tells nothing."]
    return "\n".join([*lines, *notes]).rstrip()


def _format_estimate(figure: SeedEstimate, seeds: bool = False) -> str:
    if figure.value is None:
        return "–"
    span = f" [{figure.interval[0]:.3g}, {figure.interval[1]:.3g}]" if figure.interval else ""
    return f"{figure.value:.3g}{span}" + (f" ({figure.seeds} seed{'s' * (figure.seeds > 1)})" if seeds else "")


def calibrate_methods(
    attempts_by_method: Mapping[str, tuple[list[RatedAttempt], float | None]],
) -> tuple[list[Calibration], list[str]]:
    """The calibration of every method that has enough rewards, and why the others have none.

    Raises:
        CalibrationError: no method has.
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
