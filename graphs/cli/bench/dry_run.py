"""`learngraph bench FILE --dry-run`: the runs that are left, and the calls, tokens and dollars that they would take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....memory.errors import UserError, plural
from ...studies import sweep as sweeps
from ...studies.benchmark import markdown_table
from ..dry_run import cost_estimates
from .plan import BenchSweep

__all__ = ["show_dry_run"]


def show_dry_run(planned: Sequence[BenchSweep], notes: Sequence[str], folder: Path) -> int:
    """Print a row for each sweep and method. Returns the exit status: 2 if an environment cannot be opened."""
    lines = [["environment", "model", "method", "runs left", "episodes", "calls", "tokens", "dollars"]]
    problems, runs = list[str](), 0
    for one in planned:
        try:
            estimates = {estimate.method: estimate.expected for estimate in cost_estimates(one.setup, one.folder)}
        except UserError as error:
            problems.append(f"{one.name}: cannot be played: {error}")
            continue
        for batch in one.batches():
            left = [job for job in batch if not sweeps.is_finished(job)]
            share, whole = len(left) / len(batch), estimates[batch[0].method]
            tokens = round(share * (whole.input_tokens + whole.output_tokens))
            dollars = f"{share * whole.dollars:,.2f}" if one.setup.options.has_prices else "–"
            lines.append(
                [
                    *(one.environment.label, one.model.label, one.arms[batch[0].method].label, f"{len(left)} of {len(batch)}"),
                    *(str(batch[0].episodes), f"{round(share * whole.calls):,}", f"{tokens:,}", dollars),
                ]
            )
            runs += len(left)
    print(f"{folder}: nothing was played. {plural(runs, 'run')} left; from their first episode they would take about\n")
    print(markdown_table(lines, left=3))
    for line in [*problems, *notes]:
        print(f"\n{line}")
    return 2 if problems else 0
