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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...memory.display import markdown_table, with_interval
from ...memory.errors import UserError
from ...nodes.evaluate.statistics import interval, mean

__all__ = ["Trial", "dynamics_table", "matrix_table", "measures", "phase_table", "table"]

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
    """Scenarios played before a learned version first answered; None: none did."""
    steps: tuple[Mapping[str, float], ...] = ()
    """Gradient steps: `scenario` (number played before the step), `loss`, `entropy` (nats per token), `ess` (effective share of the
    minibatch) and `age` (mean, in gradient steps)."""
    levels: tuple[int, ...] = ()
    """Exchanges in the buffer that a step may draw, after each scenario."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds in all of each part of the work: playing (`generate`, `verify`, `record`), learning (the nodes of the learning graph),
    and `examine` (the checkpoints). Players and learner take turns: nobody waits for anybody."""
    retained: float | None = None
    """Share of an untrained ability that is left at the end: 1 means that nothing was lost."""
    dropped: int | None = None
    """Versions that failed the gate; None: there was no gate."""

    def __post_init__(self) -> None:
        for name in ("online", "steps", "levels"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "matrix", tuple(tuple(row) for row in self.matrix))
        splits = len(self.matrix) - 1
        if splits < 1 or any(len(row) != splits for row in self.matrix):
            lengths = [len(row) for row in self.matrix]
            raise UserError(f"a matrix of K splits has K + 1 rows of K numbers, got rows of {lengths}")

    def mean_step(self, name: str) -> float | None:
        """A number of the gradient steps, mean over these; None without a step."""
        return mean([step[name] for step in self.steps]) if self.steps else None


def measures(p: Matrix) -> dict[str, float | None]:
    """`forward`, `gain`, `forgetting`, `BWT` and `final` of a matrix; all but the last are None for a single split."""
    splits, final = len(p) - 1, mean(p[-1])
    if splits == 1:
        return {"forward": None, "gain": None, "forgetting": None, "BWT": None, "final": final}
    ahead = [(p[k][j - 1], p[0][j - 1]) for k in range(1, splits) for j in range(k + 1, splits + 1)]
    before = range(1, splits)
    return {
        "forward": mean([now for now, _ in ahead]),
        "gain": mean([now - untrained for now, untrained in ahead]),
        "forgetting": mean([max(p[k][j - 1] for k in range(j, splits)) - p[splits][j - 1] for j in before]),
        "BWT": mean([p[splits][j - 1] - p[j][j - 1] for j in before]),
        "final": final,
    }


def table(arms: Mapping[str, Sequence[Trial]]) -> str:
    """A Markdown table, a row per arm: mean over trials [95 % interval].

    `final - none` is paired: each trial minus the trial without learning on the same stream. `first update by` is the number of
    scenarios after which every trial had had its first update; `updates` is a mean.
    """
    finals = {(trial.order, trial.seed): mean(trial.matrix[-1]) for trial in arms.get("none", ())}
    rows: dict[str, dict[str, list[Any]]] = {}
    for arm, trials in arms.items():
        cells = rows[arm] = {}
        for trial in trials:
            base = finals.get((trial.order, trial.seed))
            found = measures(trial.matrix)
            found |= {
                "final - none": None if base is None else mean(trial.matrix[-1]) - base,
                "while learning": mean(trial.online) if trial.online else None,
                "first update by": trial.first,
                "updates": len(trial.steps),
                **{"retained": trial.retained, "ESS": trial.mean_step("ess"), "age": trial.mean_step("age")},
                "dropped": trial.dropped,
            }
            for name, number in found.items():
                cells.setdefault(name, []).append(number)
    texts = {arm: {name: _cell(name, numbers) for name, numbers in cells.items()} for arm, cells in rows.items()}
    heads = [name for name in next(iter(texts.values()), {}) if {cells[name] for cells in texts.values()} != {"–"}]
    lines = [[arm, str(len(arms[arm])), *(cells[name] for name in heads)] for arm, cells in texts.items()]
    return markdown_table([["arm", "trials", *heads], *lines])


def _cell(name: str, numbers: Sequence[float | None]) -> str:
    known = [number for number in numbers if number is not None]
    if not known:
        return "–"
    if name in ("first update by", "updates", "dropped"):
        return f"{max(known):g}" if name == "first update by" else f"{mean(known):.0f}"
    return with_interval(mean(known), interval(known))


def matrix_table(trials: Sequence[Trial]) -> str:
    """The matrix P, mean over trials (at least one), as a Markdown table."""
    averaged = [
        [mean(column) for column in zip(*row, strict=True)] for row in zip(*(one.matrix for one in trials), strict=True)
    ]
    lines = [["checkpoint", *(f"split {j}" for j in range(1, len(averaged))), "mean"]]
    for k, row in enumerate(averaged):
        lines.append([f"after split {k}" if k else "untrained", *(f"{p:.2f}" for p in row), f"{mean(row):.2f}"])
    return markdown_table(lines)


def phase_table(arms: Mapping[str, Sequence[Trial]]) -> str:
    """Seconds a scenario of each part of the work, a row per arm, mean over trials (Fig. 7, left)."""
    names = list(dict.fromkeys(name for trials in arms.values() for trial in trials for name in trial.phases))
    lines = [["seconds a scenario", *names]]
    for arm, trials in arms.items():
        means = [mean([trial.phases.get(name, 0.0) / max(len(trial.online), 1) for trial in trials]) for name in names]
        lines.append([arm, *(f"{seconds:.3f}" if seconds else "–" for seconds in means)])
    return markdown_table(lines)


def dynamics_table(trials: Sequence[Trial]) -> str:
    """Learning while the stream is played, a row for each split, mean over trials: success, loss, entropy (Fig. 6), buffer (Fig. 7, right)."""
    splits = len(trials[0].matrix) - 1
    lines = [["while playing", "success", "steps", "loss", "entropy", "age", "ready exchanges"]]
    for k in range(splits):
        parts = [slice(k * len(one.online) // splits, (k + 1) * len(one.online) // splits) for one in trials]
        steps = [
            step
            for one, part in zip(trials, parts, strict=True)
            for step in one.steps
            if part.start < step["scenario"] <= part.stop
        ]
        cells = [f"{mean([x for one, part in zip(trials, parts, strict=True) for x in one.online[part]]):.2f}"]
        cells.append(f"{len(steps) / len(trials):.1f}")
        cells += [f"{mean([step[name] for step in steps]):.2f}" if steps else "–" for name in ("loss", "entropy", "age")]
        levels = [x for one, part in zip(trials, parts, strict=True) for x in one.levels[part]]
        lines.append([f"split {k + 1}", *cells, f"{mean(levels):.0f}" if levels else "–"])
    return markdown_table(lines)
