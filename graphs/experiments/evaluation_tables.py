"""Tables of a learning run: one row per arm, per learning step, or per stage of model calls; and one-line notes. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...memory.display import format_number, markdown_table, with_interval
from ...memory.records import Usage
from ...nodes.evaluate.statistics import interval, mean
from .evaluation import ArmSummary, Outcome, difference
from .learning_curves import LearningStep

__all__ = ["table"]


def lead_notes(arms: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """One line for each arm but the first: the first arm's lead over it, paired by problem and run index, with its 95 % interval.

    The interval is over seeds, or over problems if there is one seed. Only an interval without 0 says that one of them is ahead.
    """
    (first, ours), *others = arms.items()
    lines = []
    for name, theirs in others:
        lead = difference(ours, theirs)
        band = lead.over_seeds or lead.over_problems
        if band is None or band[0] <= 0 <= band[1]:
            verdict = f"{first} is not shown to differ from {name}"
        else:
            verdict = f"{first} is {'ahead of' if lead.mean > 0 else 'behind'} {name}"
        lines.append(f"{verdict}: {lead.mean:+.3f}" + (f" [{band[0]:+.3f}, {band[1]:+.3f}]" if band else ""))
    return lines


def lost_comparison_notes(learning: Mapping[str, Sequence[Sequence[LearningStep]]]) -> list[str]:
    """One line for each arm that lost comparisons.

    Args:
        learning: arm -> the learning steps of each seed.
    """
    lines = []
    for arm, seeds in learning.items():
        steps = [step for seed in seeds for step in seed]
        if lost := sum(step.lost for step in steps):
            groups = sum(step.problems for step in steps)
            lines.append(
                f"{arm}: {lost:,} of {groups:,} comparisons were lost to failed rollouts or replies that could not be used"
            )
    return lines


def interval_note(rows: Sequence[ArmSummary]) -> str:
    """A phrase that says which intervals stand in the brackets of the table."""
    n = len(rows[0].seeds)
    if n > 1:
        return f"95 % over {n} seeds (Student's t; its ends may lie below 0 or above 1)"
    return f"95 % over {rows[0].problems} problems (bootstrap); one seed says nothing about others"


def table(rows: Sequence[ArmSummary]) -> str:
    """A Markdown table with one row per arm.

    Brackets hold 95 % intervals over seeds, or, with a single seed, over problems (`interval_note` says which). Delta and the
    problems won and lost are relative to the baseline arm. A column without a number in it is left out.
    """
    first, empty = rows[0], ["–"] * len(rows)

    def delta(row: ArmSummary) -> str:
        lead = row.difference
        if lead is None:
            return "–"
        ci = lead.over_seeds or lead.over_problems
        return f"{lead.mean:+.3f}" if ci is None else f"{lead.mean:+.3f} [{ci[0]:+.3f}, {ci[1]:+.3f}]"

    def standing(row: ArmSummary) -> str:
        lead = row.difference
        return "–" if lead is None else f"{lead.wins} / {lead.losses} / {lead.ties}"

    columns = [
        (f"Mean@{first.k}", [with_interval(row.mean_at_k, row.over_seeds or row.over_problems) for row in rows]),
        (
            f"Pass@{first.k}" if all(row.pass_by == "unbiased" for row in rows) else f"best of {first.k}",
            [f"{row.pass_at_k:.3g}" for row in rows],
        ),
        ("delta", [delta(row) for row in rows]),
        ("wins / losses / ties", [standing(row) for row in rows]),
        ("lessons", [f"{row.lessons:.3g}" for row in rows]),
        ("tool calls/rollout", [f"{row.tool_calls:.1f}" for row in rows] if any(row.tool_calls for row in rows) else empty),
        ("actions/rollout", [f"{row.actions:.1f}" for row in rows] if any(row.actions > 1 for row in rows) else empty),
        ("tokens/rollout", [format_number(row.tokens or None, ",.0f") for row in rows]),
        ("failures", [f"{row.failures} of {row.rollouts}" if row.failures else "0" for row in rows]),
    ]
    columns = [column for column in columns if set(column[1]) != {"–"}]
    lines = [["arm", *(head for head, _ in columns)]]
    lines += [[row.arm, *(cells[i] for _, cells in columns)] for i, row in enumerate(rows)]
    return markdown_table(lines)


def steps_table(seeds: Sequence[Sequence[LearningStep]]) -> str:
    """A Markdown table with one row per learning step: means over the seeds that reached the step.

    `train` is the mean reward of the step's rollouts, under the library before the step. On later passes over the same problems
    it does not measure learning, because the lessons were drawn from them; the held-out and test problems do.
    """
    lines = [["step", "seeds", "train", "held out", "test", "lessons", "accepted", "groups compared"]]
    for number in sorted({step.step for steps in seeds for step in steps}):
        here = [step for steps in seeds for step in steps if step.step == number]
        lines.append(
            [
                str(number + 1),
                str(len(here)),
                with_interval(mean([step.train for step in here]), interval([step.train for step in here])),
                _format_mean([step.held_out for step in here]),
                _format_mean([step.test for step in here]),
                f"{mean([step.lessons for step in here]):.3g}",
                f"{sum(step.accepted for step in here)} of {len(here)}",
                f"{mean([step.groups for step in here]):.3g}",
            ]
        )
    shown = [i for i in range(len(lines[0])) if len(lines) == 1 or {line[i] for line in lines[1:]} != {"–"}]
    return markdown_table([[line[i] for i in shown] for line in lines])


def _format_mean(numbers: Sequence[float | None]) -> str:
    known = [number for number in numbers if number is not None]
    return with_interval(mean(known), interval(known)) if known else "–"


def usage_table(stages: Mapping[str, Usage], dollars: Mapping[str, float]) -> str:
    """A Markdown table of the model calls and tokens of each stage.

    Args:
        stages: calls and tokens by stage.
        dollars: costs by stage; empty without prices.
    """
    lines = [["stage", "calls", "tokens read", "tokens written", "dollars"]]
    lines += [_usage_row(stage, usage, dollars.get(stage)) for stage, usage in stages.items()]
    lines.append(_usage_row("all", sum(stages.values(), Usage()), sum(dollars.values()) if dollars else None))
    return markdown_table(lines if dollars else [line[:-1] for line in lines])


def _usage_row(stage: str, usage: Usage, dollars: float | None) -> list[str]:
    numbers = [f"{number:,}" for number in (usage.calls, usage.input_tokens, usage.output_tokens)]
    return [stage, *numbers, format_number(dollars, ",.2f")]
