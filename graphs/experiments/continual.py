"""Metrics of continual learning, from a matrix of success rates (checkpoint x split). Pure functions.

A stream of tasks is cut into K contiguous splits. The learner is copied before the first split (checkpoint 0) and after each
split (checkpoints 1 to K), and every checkpoint plays every split again. In the study it plays against users that it has not
met; the system prompts are the same.

    P[k][j]      success rate of checkpoint k on split j, in [0, 1]; k from 0 to K, j from 1 to K
    forward      mean of P[k][j] over 1 <= k < j          success on splits that are still to come
    gain         mean of P[k][j] - P[0][j] over the same  the part of it that learning added
    forgetting   mean over j < K of max(P[j][j], ..., P[K-1][j]) - P[K][j]   success once reached and lost at the end
    BWT          mean over j < K of P[K][j] - P[j][j]     backward transfer: the effect of later splits on earlier ones
    final        mean of P[K][j] over all j

The CLaaS paper (arXiv 2606.05559) reports forward, forgetting and final; its exact formula of forgetting is not public, and
this one is ours. The unit of all statistics is the trial (one order of the stream, one seed): first a number per trial, then
the mean and its 95 % interval over trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...memory.display import markdown_table, with_interval
from ...memory.errors import UserError
from ...nodes.evaluate.statistics import interval, mean

__all__ = ["Trial", "table"]

Matrix = Sequence[Sequence[float]]
"""(K + 1) rows of K columns: P[k][j - 1]."""


@dataclass(frozen=True)
class Trial:
    """The results of one pass over a stream."""

    arm: str
    order: int
    """Number of the order of the scenarios."""
    seed: int
    """Seed of all random draws."""
    matrix: tuple[tuple[float, ...], ...]
    """P: K + 1 rows, one per checkpoint, of K success rates."""
    online: tuple[float, ...] = ()
    """Success rate while learning, scenario by scenario."""
    first: int | None = None
    """Scenarios played before the first update; None: there was no update."""
    updates: int = 0
    """Gradient steps taken."""
    seconds: float = 0.0
    """Wall time, in seconds."""
    retained: float | None = None
    """Share of an untrained ability that is left at the end: 1 means that nothing was lost."""
    ess: float | None = None
    """Effective sample size as a share of the samples, mean over the updates."""
    age: float | None = None
    """Age of the samples in gradient steps, mean over the updates."""
    dropped: int | None = None
    """Versions that failed the gate; None: there was no gate."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", tuple(tuple(row) for row in self.matrix))
        object.__setattr__(self, "online", tuple(self.online))
        _split_count(self.matrix)


def _split_count(p: Matrix) -> int:
    """The number of splits K; a UserError if the matrix does not have K + 1 rows of K numbers."""
    splits = len(p) - 1
    if splits < 1 or any(len(row) != splits for row in p):
        raise UserError(f"a matrix of K splits has K + 1 rows of K numbers, got rows of {[len(row) for row in p]}")
    return splits


def forward_success(p: Matrix) -> float | None:
    """Forward success: the mean of P[k][j] over 1 <= k < j; None for a single split."""
    splits = _split_count(p)
    ahead = [p[k][j - 1] for k in range(1, splits) for j in range(k + 1, splits + 1)]
    return mean(ahead) if ahead else None


def forward_gain(p: Matrix) -> float | None:
    """Forward gain: the mean of P[k][j] - P[0][j] over 1 <= k < j; None for a single split."""
    splits = _split_count(p)
    ahead = [p[k][j - 1] - p[0][j - 1] for k in range(1, splits) for j in range(k + 1, splits + 1)]
    return mean(ahead) if ahead else None


def forgetting(p: Matrix) -> float | None:
    """Forgetting: the mean over j < K of max(P[j][j], ..., P[K-1][j]) - P[K][j]; None for a single split.

    Below 0, nothing was forgotten.
    """
    splits = _split_count(p)
    lost = [max(p[k][j - 1] for k in range(j, splits)) - p[splits][j - 1] for j in range(1, splits)]
    return mean(lost) if lost else None


def backward_transfer(p: Matrix) -> float | None:
    """Backward transfer: the mean over j < K of P[K][j] - P[j][j]; None for a single split."""
    splits = _split_count(p)
    moved = [p[splits][j - 1] - p[j][j - 1] for j in range(1, splits)]
    return mean(moved) if moved else None


def final_success(p: Matrix) -> float:
    """Final success: the mean of P[K][j] over all j."""
    return mean(p[_split_count(p)])


METRICS = {
    "forward": forward_success,
    "gain": forward_gain,
    "forgetting": forgetting,
    "BWT": backward_transfer,
    "final": final_success,
}
"""Name of a column -> the function that computes it from a matrix."""


def table(arms: Mapping[str, Sequence[Trial]]) -> str:
    """A Markdown table, a row per arm: mean over trials [95 % interval].

    `final - none` is paired: each trial minus the trial without learning on the same stream. `first update by` is the number of
    scenarios after which every trial had had its first update; `updates` is a mean.
    """
    extras: list[tuple[str, Any]] = [
        ("while learning", lambda trial: mean(trial.online) if trial.online else None),
        ("first update by", lambda trial: trial.first),
        ("updates", lambda trial: trial.updates),
        ("retained", lambda trial: trial.retained),
        ("ESS", lambda trial: trial.ess),
        ("age", lambda trial: trial.age),
        ("dropped", lambda trial: trial.dropped),
    ]
    columns = [
        (name, [_format_metric([figure(t.matrix) for t in trials]) for trials in arms.values()])
        for name, figure in METRICS.items()
    ]
    columns += [(name, [_format_metric([read(t) for t in trials], name) for trials in arms.values()]) for name, read in extras]
    if "none" in arms:
        columns.insert(
            len(METRICS),
            ("final - none", [_format_metric(_gain_over_baseline(trials, arms["none"])) for trials in arms.values()]),
        )
    columns = [column for column in columns if set(column[1]) != {"–"}]
    lines = [["arm", "trials", *(head for head, _ in columns)]]
    lines += [[arm, str(len(trials)), *(cells[i] for _, cells in columns)] for i, (arm, trials) in enumerate(arms.items())]
    return markdown_table(lines)


def _gain_over_baseline(trials: Sequence[Trial], base: Sequence[Trial]) -> list[float]:
    """Final success of each trial minus that of the baseline's trial with the same order and seed."""
    finals = {(trial.order, trial.seed): final_success(trial.matrix) for trial in base}
    pairs = [(final_success(trial.matrix), finals.get((trial.order, trial.seed))) for trial in trials]
    return [ours - theirs for ours, theirs in pairs if theirs is not None]


def _format_metric(numbers: Sequence[float | None], name: str = "") -> str:
    known = [number for number in numbers if number is not None]
    if not known:
        return "–"
    if name in ("first update by", "updates", "dropped"):
        return f"{max(known):g}" if name == "first update by" else f"{mean(known):.0f}"
    return with_interval(mean(known), interval(known))


def matrix_table(trials: Sequence[Trial]) -> str:
    """The matrix P, mean over trials, as a Markdown table."""
    averaged = _mean_matrix(trials)
    splits = len(averaged) - 1
    lines = [["checkpoint", *(f"split {j}" for j in range(1, splits + 1)), "mean"]]
    for k, row in enumerate(averaged):
        lines.append([f"after split {k}" if k else "untrained", *(f"{p:.2f}" for p in row), f"{mean(row):.2f}"])
    return markdown_table(lines)


def _mean_matrix(trials: Sequence[Trial]) -> list[list[float]]:
    if not trials:
        raise UserError("a matrix needs at least one trial, got none")
    rows = zip(*(trial.matrix for trial in trials), strict=True)
    return [[mean(column) for column in zip(*row, strict=True)] for row in rows]
