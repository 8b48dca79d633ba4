"""The costs of methods that train weights, beside those of methods that do not: tokens, seconds and floating-point operations of a run.

The passes of a model in this process are counted by tools/training/flops.py, with what the prefix cache saves: forward passes of
the policy, and the forward and backward passes of trainings. An episode that a crash cut short counts only from where it was resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...memory.errors import plural
from .benchmark import format_number, markdown_table, mean
from .costs import TRAINING_FILE
from .sweep import Job, read_rows

__all__ = ["MethodCosts", "costs_table", "method_costs", "training_notes"]


@dataclass(frozen=True)
class MethodCosts:
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
    seconds: float | None
    """Wall time of the episodes; None if it was not measured for all."""
    training_seconds: float
    """The part of it that trainings took."""
    forward_flops: float | None
    """Floating-point operations of the policy's passes; None if they were not counted: for a model behind an API."""
    training_flops: float
    """Floating-point operations of trainings."""

    @property
    def flops(self) -> float | None:
        """All floating-point operations; None if some were not counted."""
        return None if self.forward_flops is None else self.forward_flops + self.training_flops

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self) | {"flops": self.flops}


def method_costs(method: str, jobs: Sequence[Job]) -> MethodCosts:
    """The costs of a method from the folders of its finished runs."""
    runs = [_run_costs(job.folder) for job in jobs]
    trainings = [row for found in runs for row in found["trainings"]]
    seconds, flops = ([found[name] for found in runs] for name in ("seconds", "flops"))
    return MethodCosts(
        method=method,
        tokens_read=mean([found["tokens"] for found in runs]),
        tokens_trained=mean([_total(found["trainings"], "tokens") for found in runs]),
        trainings=len(trainings),
        reasons=dict(Counter(row["why"] for row in trainings if row["why"])),
        missing_returns=sum(row["left_out"] for row in trainings),
        seconds=None if None in seconds else mean(seconds),
        training_seconds=mean([_total(found["trainings"], "seconds") for found in runs]),
        forward_flops=None
        if None in flops
        else mean([max(0.0, found["flops"] - _total(found["trainings"], "flops")) for found in runs]),
        training_flops=mean([_total(found["trainings"], "flops") for found in runs]),
    )


def _run_costs(folder: Path) -> dict[str, Any]:
    """The costs of one run: `flops` are those of all passes, trainings included."""
    rows = read_rows(folder / "episodes.jsonl")
    timed = {row["id"]: row for row in _rows(folder / "seconds.jsonl")}
    of = [timed.get(row["id"], {}) for row in rows]
    return {
        "tokens": sum(row.get("input_tokens", 0) for row in rows),
        "seconds": sum(row["seconds"] for row in of) if all("seconds" in row for row in of) else None,
        "flops": sum(row["flops"] for row in of) if all("flops" in row for row in of) else None,
        "trainings": [row for row in _rows(folder / TRAINING_FILE) if row["kind"] == "training"],
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_rows(path) if path.is_file() else []


def _total(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows))


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
