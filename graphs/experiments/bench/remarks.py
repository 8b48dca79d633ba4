"""Lines below the tables of a benchmark: what went wrong in finished runs without an error. Pure functions."""

from __future__ import annotations

from ....nodes.evaluate.judge import NO_REWARDS_REASON
from ..benchmark import optimum_name, summary
from ..calibration import RatedAttempt, missing_reward_note
from ..table_notes import empty_look_up_notes, reply_notes, unusable_run_warnings, walkthrough_notes
from ..tables import BenchTable

__all__ = ["table_remarks"]


def table_remarks(table: BenchTable) -> list[str]:
    """Lines on unusable replies, missing rewards, scores above the optimum, and a memory that held nothing alike.

    Of steps that found nothing alike in memory only those of methods are named that found nothing at half of them or more.
    """
    rows = [summary(runs, table.environment, table.model) for runs in table.runs.values()]
    lines = [*unusable_run_warnings(rows), *reply_notes(rows), *_missing_rewards(table)]
    if rows and optimum_name(rows) == "walkthrough":
        lines += walkthrough_notes(rows)[1:]
    else:
        lines += [
            f"{row.method}: {row.exceeded:,} of {row.played:,} episodes scored above the optimum"
            for row in rows
            if row.exceeded
        ]
    lines += empty_look_up_notes([row for row in rows if 2 * row.empty_look_ups >= row.look_ups])
    return [f"{table.environment}, {table.model}: {line}" for line in lines]


def _missing_rewards(table: BenchTable) -> list[str]:
    """A line for each method some of whose episodes lack a reward; its score counts as 0 there."""
    lines = []
    for arm, runs in table.runs.items():
        reasons = [(run.seed, reason) for run in runs for reason in run.unjudged]
        rated = [RatedAttempt(seed, 0.0 if why is None else None, 0.0, why or "") for seed, why in reasons]
        lines.append(missing_reward_note(rated, arm, NO_REWARDS_REASON))
    return [line for line in lines if line]
