"""The report of runs that learn before they play: arms problem by problem, the learning steps, their curve, and what was paid for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....memory.display import format_number, markdown_table, with_interval
from ....memory.records import Usage
from ....nodes.evaluate.statistics import interval, mean, paired_test
from ..costs import CACHE, ledger_usage
from ..figures import draw_curve, save_figure, score_axes
from ..folder import Sweep
from ..recorded import read_rows
from ..results import SeedResult
from ..tables import ResultTable
from .options import learning_arms

__all__ = []

LearningSteps = Sequence[Mapping[str, Any]]
"""The learning steps of a seed: the rows of its learned.jsonl, each with `test`, the mean reward on the unseen problems under the
library after the step (None: not measured)."""


def learning_report(one: Sweep, table: ResultTable) -> tuple[list[str], list[str]]:
    """The tables of a sweep that learns before it plays, and notes. Draws the curve of the first arm that learned something."""
    learned = {
        one.arms[key].label: [read_learning_steps(one.job(key, seed).folder) for seed in one.seeds]
        for key, settings in learning_arms(one.arms).items()
        if settings.arm == "learned" and key in one.arms
    }
    parts = []
    if table.runs:
        parts += [
            "unseen problems, one by one, a problem that several seeds played counting once; [95 % over problems, by Student's t]",
            markdown_table(problem_table(table.runs, table.against)),
        ]
    for label, seeds in learned.items():
        if any(seeds):
            parts += [f"{label}, step by step; train is under the library before the step", markdown_table(steps_table(seeds))]
    paid = ledger_usage(one.folder, CACHE)
    if any(usage.calls for usage in paid.values()):
        dollars = {stage: one.options.stage_prices(stage).cost(usage) for stage, usage in paid.items()}
        parts += [
            f"{one.name}: paid for, by stage (what arms share is paid once)",
            usage_table(paid, dollars if any(dollars.values()) else {}),
        ]
    if drawn := next((label for label, seeds in learned.items() if any(seeds)), ""):
        empty = next((one.arms[key].label for key, settings in learning_arms(one.arms).items() if settings.arm == "empty"), "")
        start, end = ([_mean_score(table.runs.get(label, ()), seed) for seed in one.seeds] for label in (empty, drawn))
        paths = [one.folder / "curves.png", one.folder / "curves.svg"]
        draw_library_curves(learned[drawn], start, end, f"{one.name}: {drawn}", paths)
    notes = lost_comparison_notes(learned)
    for label, runs in table.runs.items():
        if reasons := [why for run in runs for why in run.unjudged if why]:
            notes.append(
                f"{label}: {len(reasons)} of {sum(len(r.scores) for r in runs)} rollouts have no reward and count as 0: {reasons[0]}"
            )
    if (arms := learning_arms(one.arms).values()) and not any(settings.arm == "empty" for settings in arms):
        notes.append(
            "what the lessons are worth: the same command with --compare training-free-grpo?arm=empty adds the agent without them"
        )
    return parts, notes


def read_learning_steps(folder: Path) -> LearningSteps:
    """The learning steps of a run, without those that were cut short by the budget; with the tool calls of a rollout, if there are any."""
    tests = {row["step"]: row for row in read_rows(folder / "curve.jsonl")}
    found = []
    for row in read_rows(folder / "learned.jsonl"):
        if not str(row["id"]).endswith("/stopped"):
            rollouts, test = sum(map(len, row["truths"].values())), tests.get(row["step"], {})
            calls = {"train_calls": row["tool_calls"] / rollouts or None, "test_calls": test.get("tool_calls")}
            found.append({**row, **calls, "test": test.get("test")})
    return found


def _mean_score(runs: Sequence[SeedResult], seed: int) -> float | None:
    return next((mean(run.scores) for run in runs if run.seed == seed), None)


# Tables


def problem_table(arms: Mapping[str, Sequence[SeedResult]], against: str) -> list[list[str]]:
    """A row for each arm: its mean score over problems, and how far `against` is ahead, problem by problem."""
    means = {label: _by_problem(runs) for label, runs in arms.items()}
    rows = [["arm", "problems", "mean score", f"{against} minus", "won / lost / tied"]]
    for label, values in means.items():
        test = paired_test(means[against], values) if label != against and against in means else None
        lead = "–" if test is None else test.as_text()
        score = with_interval(mean([*values.values()]), interval([*values.values()]))
        counts = "–" if test is None else f"{test.wins} / {test.losses} / {test.ties}"
        rows.append([label, str(len(values)), score, lead, counts])
    return rows


def _by_problem(runs: Sequence[SeedResult]) -> dict[Any, float]:
    """Task -> the mean score of all its rollouts, so that a problem that several seeds played counts once."""
    by_task: dict[str, list[float]] = {}
    for run in runs:
        for task, score in zip(run.tasks, run.scores, strict=True):
            by_task.setdefault(task, []).append(score)
    return {task: mean(scores) for task, scores in by_task.items()}


def steps_table(seeds: Sequence[LearningSteps]) -> list[list[str]]:
    """A row for each learning step: means over the seeds that reached the step.

    `train` is under the library before the step (Mean@G and Pass@G of the paper's Fig. 4). On later passes over the same problems it
    does not measure learning, because the lessons were drawn from them; the held-out and test problems do.
    """
    group = max((len(rewards) for steps in seeds for row in steps for rewards in row["truths"].values()), default=0)
    names = {
        "train": f"train, Mean@{group}",
        "passed": f"train, Pass@{group}",
        "train_calls": "tool calls",
        "held_out": "held out",
    }
    names |= {"test": "test", "test_calls": "tool calls, test"}
    lines = [["step", "seeds", *names.values(), "lessons", "accepted", "groups compared"]]
    for number in sorted({row["step"] for steps in seeds for row in steps}):
        here = [row for steps in seeds for row in steps if row["step"] == number]
        accepted = sum(row["accepted"] and row["before"] != row["library"] for row in here)
        means = (_format_mean([row[name] for row in here]) for name in names)
        numbers = [f"{mean([row[name] for row in here]):.3g}" for name in ("lessons", "compared")]
        lines.append([str(number + 1), str(len(here)), *means, numbers[0], f"{accepted} of {len(here)}", numbers[1]])
    shown = [i for i in range(len(lines[0])) if {line[i] for line in lines[1:]} != {"–"}]
    return [[line[i] for i in shown] for line in lines]


def _format_mean(numbers: Sequence[float | None]) -> str:
    known = [number for number in numbers if number is not None]
    return with_interval(mean(known), interval(known)) if known else "–"


def usage_table(stages: Mapping[str, Usage], dollars: Mapping[str, float]) -> str:
    """A Markdown table of the model calls and tokens of each stage, and their dollars where there are prices."""
    everything = {**stages, "all": sum(stages.values(), Usage())}
    costs = {**dollars, "all": sum(dollars.values())} if dollars else {}
    lines = [["stage", "calls", "tokens read", "tokens written", "dollars"]]
    for stage, usage in everything.items():
        numbers = [f"{number:,}" for number in (usage.calls, usage.input_tokens, usage.output_tokens)]
        lines.append([stage, *numbers, format_number(costs.get(stage), ",.2f")])
    return markdown_table(lines if dollars else [line[:-1] for line in lines])


def lost_comparison_notes(learned: Mapping[str, Sequence[LearningSteps]]) -> list[str]:
    """One line for each arm that lost comparisons."""
    lines = []
    for label, seeds in learned.items():
        rows = [row for steps in seeds for row in steps]
        if lost := sum(row["lost"] for row in rows):
            groups = sum(len(row["problems"]) for row in rows)
            lines.append(
                f"{label}: {lost:,} of {groups:,} comparisons were lost to failed rollouts or replies that could not be used"
            )
    return lines


# The curve


def draw_library_curves(
    seeds: Sequence[LearningSteps],
    start: Sequence[float | None],
    end: Sequence[float | None],
    title: str,
    paths: Sequence[Path],
) -> None:
    """Draw the mean reward under the library after each step, with its 95 % interval over seeds.

    A seed that stops early keeps its library, so its last value is carried forward.

    Args:
        seeds: the learning steps of each seed.
        start: for each seed, the mean reward on the test problems under the empty library; None: not measured.
        end: the same under the library that the seed has learned.
        title: text above the picture.
        paths: files to write; the suffix gives the format (.png, .svg).
    """
    seeds_note = f"mean of {n} seeds, 95 % interval" if (n := len(seeds)) > 1 else "one seed"
    figure, axes = score_axes(title, f"learning steps taken ({seeds_note})", "mean reward")
    last = max((row["step"] for steps in seeds for row in steps), default=-1)
    tests = [[first, *_carry_forward(steps, last, "test")] for first, steps in zip(start, seeds, strict=True)]
    for measured, product in zip(tests, end, strict=True):
        if last >= 0 and measured[-1] is None:
            measured[-1] = product
    train = [[{row["step"]: row["train"] for row in steps}.get(n) for n in range(last + 1)] for steps in seeds]
    held_out = [[None, *_carry_forward(steps, last, "held_out")] for steps in seeds]
    for number, (label, values) in enumerate(
        {"test": tests, "held out": held_out, "train (library before the step)": train}.items()
    ):
        columns = {at: [one for one in each if one is not None] for at, each in enumerate(zip(*values, strict=True))}
        if known := {at: each for at, each in columns.items() if each}:
            draw_curve(axes, number, label, [*known], [*known.values()], band=True, marker="o", ms=4)
    axes.set_ylim(0, 1.05)
    if axes.lines:
        figure.legend(loc="outside right upper", frameon=False)
    save_figure(figure, paths)


def _carry_forward(steps: LearningSteps, last: int, name: str) -> list[float | None]:
    """A field of each step up to `last`, the last step of all seeds; after a seed's own last step its value repeats."""
    values = [row[name] for row in steps]
    return [*values, *[values[-1] if values else None] * (last + 1 - len(values))]
