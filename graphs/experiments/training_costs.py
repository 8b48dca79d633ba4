"""The costs of methods that train weights, beside those of methods that do not: tokens, seconds and floating-point operations of a run.

They are means over the runs of a method; costs.py (`run_work`) has how each is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...memory.display import format_number, markdown_table
from ...memory.errors import plural
from ...nodes.evaluate.statistics import mean
from .costs import ModelWork, run_work
from .jsonl import read_rows
from .sweep import Job

__all__ = ["MethodCosts", "costs_table", "method_costs", "training_notes"]


@dataclass(frozen=True)
class MethodCosts(ModelWork):
    """The costs of a method's run, mean over its seeds."""

    method: str
    tokens_read: float
    """Tokens that the model's calls read."""
    tokens_trained: float
    """Tokens of the passes of trainings, without padding; an example counts once for each epoch."""
    trainings: int
    """Trainings of all seeds."""
    reasons: Mapping[str, int]
    """Why nothing was learned -> in how many of them."""
    missing_returns: int
    """Attempts and steps that trainings left out: without a return, or too long for the window; sum over all of them."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self) | {"flops": self.flops}


def method_costs(method: str, jobs: Sequence[Job]) -> MethodCosts:
    """The costs of a method from the folders of its finished runs."""
    runs = [run_work(job.folder, read_rows(job.folder / "episodes.jsonl")) for job in jobs]
    trainings = [row for run in runs for row in run.trainings]
    return MethodCosts(
        method=method,
        tokens_read=mean([run.tokens_read for run in runs]),
        tokens_trained=mean([run.tokens_trained or 0.0 for run in runs]),
        trainings=len(trainings),
        reasons=dict(Counter(row["why"] for row in trainings if row["why"])),
        missing_returns=sum(row["left_out"] for row in trainings),
        seconds=_mean_of_all([run.seconds for run in runs]),
        training_seconds=mean([run.training_seconds for run in runs]),
        forward_flops=_mean_of_all([run.forward_flops for run in runs]),
        training_flops=mean([run.training_flops for run in runs]),
    )


def _mean_of_all(numbers: Sequence[float | None]) -> float | None:
    """The mean; None if one is missing."""
    known = [number for number in numbers if number is not None]
    return mean(known) if len(known) == len(numbers) else None


def costs_table(costs: Sequence[MethodCosts]) -> str:
    """A Markdown table of costs per run, with one row per method, the first method's FLOPs over each other one's at the end."""
    first = costs[0].flops
    head = [
        "a run's costs",
        "tokens read",
        "tokens trained",
        "seconds",
        "in training",
        "forward FLOPs",
        "training FLOPs",
        f"FLOPs, {costs[0].method} = 1",
    ]
    lines = [head]
    for one in costs:
        share = one.flops / first if first and one.flops is not None else None
        lines.append(
            [
                one.method,
                f"{one.tokens_read:,.0f}",
                format_number(one.tokens_trained or None, ",.0f"),
                format_number(one.seconds, ".3g"),
                format_number(one.training_seconds or None, ".3g"),
                format_number(one.forward_flops, ".3g"),
                format_number(one.training_flops or None, ".3g"),
                format_number(share, ".3g"),
            ]
        )
    return markdown_table(lines)


def training_notes(costs: Sequence[MethodCosts]) -> list[str]:
    """One line for each method some of whose trainings learned nothing, and one for what trainings left out."""
    lines = []
    for one in costs:
        for why, count in sorted(one.reasons.items(), key=lambda item: -item[1]):
            lines.append(f"{one.method}: {count} of {plural(one.trainings, 'training')} learned nothing: {why}")
        if one.missing_returns:
            lines.append(f"{one.method}: trainings left out {one.missing_returns} attempts without a return or steps too long")
    return lines
