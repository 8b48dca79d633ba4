"""`learngraph bench FILE --dry-run`: the runs that are left, and the calls, tokens and dollars that they would take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....memory.display import markdown_table
from ....memory.errors import UserError, plural
from ..dry_run import cost_estimates
from ..folder_settings import check_settings
from ..plan import BenchSweep, growing_record
from ..progress import show
from ..unfinished import unfinished_runs

__all__ = ["show_dry_run"]


def show_dry_run(planned: Sequence[BenchSweep], notes: Sequence[str], folder: Path) -> int:
    """Print a row for each sweep and method. Returns the exit status: 2 if the command itself would leave some of them out."""
    lines = [["environment", "model", "method", "runs left", "episodes", "calls", "tokens", "dollars"]]
    problems, runs = list[str](), 0
    for one in planned:
        try:
            if one.folder.exists():
                check_settings(one.folder, growing_record(one))
            estimates = {estimate.method: estimate.expected for estimate in cost_estimates(one.setup, one.folder)}
        except UserError as error:
            problems.append(f"{one.name}: cannot be played: {error}")
            continue
        batches, refused = unfinished_runs(one)
        counts = {batch[0].method: len(batch) for batch in batches}
        problems += [
            f"{one.name}: {one.arms[run.method].label}, seed {run.seed}: cannot be played: {run.reason}" for run in refused
        ]
        for batch in one.batches():
            left = counts.get(batch[0].method, 0)
            share, whole = left / len(batch), estimates[batch[0].method]
            tokens = round(share * (whole.input_tokens + whole.output_tokens))
            dollars = f"{share * whole.dollars:,.2f}" if one.setup.options.has_prices else "–"
            lines.append(
                [
                    *(one.environment.label, one.model.label, one.arms[batch[0].method].label, f"{left} of {len(batch)}"),
                    *(str(batch[0].episodes), f"{round(share * whole.calls):,}", f"{tokens:,}", dollars),
                ]
            )
            runs += left
    show(f"{folder}: nothing was played. {plural(runs, 'run')} left; from their first episode they would take about\n")
    show(markdown_table(lines, left=3))
    for line in [*problems, *notes]:
        show(f"\n{line}")
    return 2 if problems else 0
