"""Lines below a table of methods: what its numbers leave out, and what went wrong without an error. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from ...memory.errors import plural
from .benchmark import MethodSummary, optimum_name

__all__ = [
    "bank_cost_notes",
    "cost_notes",
    "early_end_notes",
    "empty_look_up_notes",
    "reply_notes",
    "unusable_run_warnings",
    "walkthrough_notes",
]


def walkthrough_notes(rows: Sequence[MethodSummary]) -> list[str]:
    """One line on the row `walkthrough`, and one for each method that scored higher than that."""
    if optimum_name(rows) == "optimum":
        return []
    return [
        "walkthrough: what a known way earns within the horizon; a higher score may be possible",
        *(
            f"{row.method}: {plural(row.exceeded, 'episode')} scored higher than the walkthrough, a regret of 0"
            for row in rows
            if row.exceeded
        ),
    ]


def bank_cost_notes(rows: Sequence[MethodSummary]) -> list[str]:
    """One line for each method that read a bank: what that cost, which the table leaves out."""
    return [
        f"{row.method}: reading its bank before the first attempt took {row.studied:,.0f} tokens a seed, which the table leaves out"
        for row in rows
        if row.studied
    ]


def early_end_notes(rows: Sequence[MethodSummary], episodes: int) -> list[str]:
    """One line for each method with runs that ended after the full score: their means are over fewer episodes.

    Args:
        rows: the methods.
        episodes: number of episodes that each run was asked for.
    """
    return [
        f"{row.method} ended at the full score on {row.stopped} of {plural(len(row.seeds), 'seed')}: {row.played} of "
        f"{episodes * len(row.seeds)} episodes were played, and means are over those; --no-stop-at-full-score plays the others"
        for row in rows
        if row.stopped
    ]


def empty_look_up_notes(rows: Sequence[MethodSummary]) -> list[str]:
    """One line for each method whose memory held nothing alike at some steps."""
    return [
        f"{row.method} found nothing alike in its memory at {row.empty_look_ups:,} of {row.look_ups:,} steps after the first episode"
        + ("" if row.nearest_miss is None else f"; what was nearest there had a similarity of {row.nearest_miss:.2f} at most")
        for row in rows
        if row.empty_look_ups
    ]


def reply_notes(rows: Sequence[MethodSummary]) -> list[str]:
    """One line for each method with replies that could not be used, and how many steps were lost by it."""
    lines = []
    for row in rows:
        if row.unreadable or row.lost_steps:
            lost = (
                f"; at {plural(row.lost_steps, 'step')} no try gave one that could, and nothing was done"
                if row.lost_steps
                else ""
            )
            calls = row.calls_per_run * len(row.seeds)
            lines.append(f"{row.method}: {row.unreadable:,} of {calls:,.0f} replies could not be used{lost}")
    return lines


def unusable_run_warnings(rows: Sequence[MethodSummary]) -> list[str]:
    """One line for each method at least half of whose replies could not be used: its scores are the server's and not its own."""
    return [
        f"{row.method} could not use {row.unreadable:,} of {calls:,.0f} replies, so its scores say little about it; another model would do, or, where "
        "replies are cut off, more tokens for them (--max-tokens)"
        for row in rows
        if row.unreadable and row.unreadable >= 0.5 * (calls := row.calls_per_run * len(row.seeds))
    ]


def cost_notes(rows: Sequence[MethodSummary]) -> list[str]:
    """One line for each method about what its calls cost, with what is in no finished episode."""
    lines = []
    for row in rows:
        if not row.calls_per_run:
            continue
        runs = len(row.seeds)
        dollars = "" if row.dollars_per_run is None else f", ${row.dollars_per_run * runs:,.4g}"
        unused = f"; {row.unused_tokens:,} of these tokens are in no finished episode" if row.unused_tokens else ""
        lines.append(
            f"{row.method} cost {row.calls_per_run * runs:,.0f} calls, {row.input_tokens_per_run * runs:,.0f} tokens read, "
            f"{row.output_tokens_per_run * runs:,.0f} written{dollars}{unused}"
        )
    return lines
