"""The tables of a benchmark. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...memory.display import format_number, markdown_table, with_interval
from ...memory.errors import plural
from ...nodes.cached_model import Prices
from ...nodes.evaluate.statistics import PairedTest, mean, paired_test
from .measures import METRICS, RUN_METRICS, USUAL_METRICS, ArmEstimate, estimate, first_success, measure, metric_head
from .results import SeedResult, optimum_name, total_usage

__all__ = ["ResultTable", "score_table"]

PAIRED_METRICS = ("avg", "last")
"""The metrics in which methods are compared."""
WITH_INTERVAL = ("avg", "final", "last", "running-max", "answer", "judged")
"""The metrics whose intervals stand in the table; those of the others are in results.json and in the report."""
OF_SCORE = ("avg", "final", "last", "running-max", "answer", "best", "best-in-episode")
"""The metrics in units of scores, which the optimum's row has, too."""
MOST_CHARACTERS = 120
"""Characters in a line of a table that still fit on a usual terminal."""

Rows = list[list[str]]
"""The cells of a table, its header first."""


@dataclass(frozen=True)
class ResultTable:
    """The finished runs on one environment with one model, and with methods that ask no model beside them."""

    environment: str
    model: str
    runs: Mapping[str, Sequence[SeedResult]]
    """Label of a method -> its finished runs, which have one optimum on each seed."""
    against: str
    """The label of the method that the others are compared with."""
    episodes: int
    prices: Prices
    metrics: Sequence[str] = USUAL_METRICS
    """The columns."""
    folders: Mapping[tuple[str, int], Path] = field(default_factory=dict)
    """Label of a method and seed -> the folder of the run."""

    @cached_property
    def estimates(self) -> Mapping[str, Mapping[str, ArmEstimate]]:
        """Metric -> method -> estimate, without the metrics that no method has a number for."""
        names = dict.fromkeys((*self.metrics, *PAIRED_METRICS))
        found = {name: {arm: estimate(measure(name, runs, self.prices)) for arm, runs in self.runs.items()} for name in names}
        return {name: arms for name, arms in found.items() if any(one.mean is not None for one in arms.values())}

    @cached_property
    def tests(self) -> Mapping[str, Mapping[str, PairedTest]]:
        """Metric -> other method -> the test of `against` minus that method."""
        return {name: self.paired_tests(name) for name in PAIRED_METRICS}

    def paired_tests(self, metric: str) -> dict[str, PairedTest]:
        """Other method -> the test of `against` minus that method in a metric."""
        if self.against not in self.runs or metric not in self.estimates:
            return {}
        ours, others = self.estimates[metric][self.against].values, self.estimates[metric].items()
        tests = {arm: paired_test(ours, one.values) for arm, one in others if arm != self.against}
        return {arm: test for arm, test in tests.items() if test is not None}

    @property
    def columns(self) -> list[str]:
        """The metrics that are shown: those that say something."""
        shown = [name for name in self.metrics if name in self.estimates]
        if self.metrics is not RUN_METRICS:  # a file's own
            return shown
        lost = any(best > score + 1e-6 for run in self.all_runs for best, score in zip(run.bests, run.scores, strict=True))
        says = {"flops": "trained-tokens" in shown, "best-in-episode": lost, "last-of-optimum": abs(self.optimum - 1) > 1e-9}
        return [name for name in shown if says.get(name, True)]

    @property
    def all_runs(self) -> list[SeedResult]:
        """The runs of all methods."""
        return [run for runs in self.runs.values() for run in runs]

    @property
    def optimum(self) -> float:
        """The highest score that is possible, or known to be; mean over seeds."""
        return mean([*{run.seed: run.optimum for run in self.all_runs}.values()])


def cell(name: str, one: ArmEstimate, runs: Sequence[SeedResult]) -> str:
    """A metric of a method as text: the mean with its interval by t; of how many runs, where some have no number or never succeeded."""
    if one.mean is None:
        return "–"
    form = METRICS[name].form
    text = with_interval(one.mean, one.by_t) if name in WITH_INTERVAL else format_number(one.mean, form)
    if name == "steps-to-success" and (never := sum(first_success(run) is None for run in runs)):
        return f"≥ {text} (never: {never} of {len(runs)})"
    return f"{text} ({len(one.values) - one.missing} of {len(one.values)})" if one.missing else text


def legend(tables: Sequence[ResultTable]) -> list[str]:
    """The lines on the columns of these tables that need one."""
    name = "steps-to-success"
    needs = any(first_success(run) is None for table in tables if name in table.columns for run in table.all_runs)
    return [f"{METRICS[name].head}: {METRICS[name].about}"] if needs else []


def score_table(table: ResultTable) -> Rows:
    """A row for each method, and one for the optimum, or for the walkthrough where no optimum is known."""
    optimum = optimum_name(table.all_runs)
    heads = [metric_head(name, table.episodes).replace("optimum", optimum) for name in table.columns]
    head = ["method", "runs", *heads]
    rows = [
        [arm, str(len(runs)), *(cell(name, table.estimates[name][arm], runs) for name in table.columns)]
        for arm, runs in table.runs.items()
    ]
    top = f"{table.optimum:.3g}"
    can_solve = all(run.solved is None or run.optimum >= run.solved for run in table.all_runs)
    bests = {**dict.fromkeys(OF_SCORE, top), "regret": "0", "of-optimum": "1.00"}
    bests |= {"last-of-optimum": "1.00", **dict.fromkeys(("success", "solved"), "1.00" if can_solve else "–")}
    return [head, *rows, [optimum, "–", *(bests.get(name, "–") for name in table.columns)]]


def paired_table(table: ResultTable) -> Rows:
    """A row for each method that is compared with `against`: differences over seeds, intervals, p values."""
    last = metric_head("last", table.episodes)
    head = [
        *(f"{table.against} minus", "seeds", "mean score, by t", "p (permutation)"),
        *(f"{last}, by t", "p (permutation)", "won / lost / tied", "says"),
    ]
    rows = []
    for arm, avg in table.tests["avg"].items():
        final = table.tests["last"][arm]
        rows.append(
            [
                *(arm, str(len(avg.differences)), avg.as_text(), _p(avg.permutation_p)),
                *(final.as_text(), _p(final.permutation_p)),
                *(f"{avg.wins} / {avg.losses} / {avg.ties}", avg.verdict() or "–"),
            ]
        )
    return [head, *rows]


def lead_table(table: ResultTable) -> Rows:
    """The same in short, for a terminal: differences with their intervals by t, and what these say."""
    last = metric_head("last", table.episodes)
    rows = [[f"{table.against} minus", "mean score", last, "seeds won / lost / tied", "95 % interval says"]]
    for arm, avg in table.tests["avg"].items():
        final, counts = table.tests["last"][arm], f"{avg.wins} / {avg.losses} / {avg.ties}"
        rows.append([arm, avg.as_text(), final.as_text(), counts, avg.verdict() or "–"])
    return rows


def fitted_tables(rows: Rows) -> str:
    """Markdown tables of at most 120 characters in width: further columns continue in further tables."""
    first, *columns = zip(*rows, strict=True)
    parts: list[list[Sequence[str]]] = [[first]]
    for column in columns:
        width = sum(max(map(len, one)) + 3 for one in (*parts[-1], column)) + 1
        if len(parts[-1]) > 1 and width > MOST_CHARACTERS:
            parts.append([first])
        parts[-1].append(column)
    return "\n\n".join(markdown_table([list(line) for line in zip(*part, strict=True)]) for part in parts)


def overview(tables: Sequence[ResultTable]) -> Rows:
    """A row for each method, a column for each table: mean score / last, and how far `against` is ahead in the mean score; `=`: not told apart."""
    arms = list(dict.fromkeys(arm for table in tables for arm in table.runs))
    rows = [["method", *(f"{table.environment}, {table.model}" for table in tables)]]
    for arm in arms:
        rows.append([arm, *(_overview_cell(table, arm) for table in tables)])
    return rows


def _overview_cell(table: ResultTable, arm: str) -> str:
    if not table.runs.get(arm):
        return "–"
    avg, last = (table.estimates[name][arm].mean for name in PAIRED_METRICS)
    scores = f"{format_number(avg, '.3g')} / {format_number(last, '.3g')}"
    test = table.tests["avg"].get(arm)
    if test is None:
        return scores
    mark = {"behind": " (behind)", "not told apart": " ="}.get(test.verdict(), "")
    return f"{scores}; {test.as_text()}{mark}"


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}" if value >= 0.001 else "<.001"


def markdown_page(title: str, text: str, command: str, tables: Sequence[ResultTable], notes: Sequence[str]) -> str:
    """The results as Markdown: the command, an overview of several tables, each table with its paired comparison, and notes."""
    parts = [f"**{title}**" if title else "", text, f"```sh\n{command}\n```"]
    if len(tables) > 1:
        against = dict.fromkeys(table.against for table in tables)
        parts += [
            f"Mean score / last episodes; then how far {' and '.join(against)} is ahead in the mean score, paired by seed, with the 95 % interval by t "
            "(`=`: it holds zero).",
            markdown_table(overview(tables)),
        ]
    for table in tables:
        if not table.runs:
            continue
        parts += [f"*{table.environment}, {table.model}*: {_description(table)}", markdown_table(score_table(table))]
        if table.tests["avg"]:
            parts.append(markdown_table(paired_table(table)))
    parts.append("\n".join(f"- {note}" for note in (*legend(tables), *notes)))
    return "\n\n".join(filter(None, parts))


def _description(table: ResultTable) -> str:
    seeds = sorted({run.seed for run in table.all_runs})
    return f"{plural(table.episodes, 'episode')}, {plural(len(seeds), 'seed')}; [95 % interval over seeds, by Student's t]"


def as_objects(table: ResultTable) -> list[dict[str, Any]]:
    """One object per method for JSON, with every run's number of every metric."""
    found = []
    for arm, runs in table.runs.items():
        estimates = {name: of[arm] for name, of in table.estimates.items()}
        numbers = {name: {"mean": e.mean, "by_t": e.by_t, "values": dict(e.values)} for name, e in estimates.items()}
        tests = {name: _test_object(of[arm]) for name, of in table.tests.items() if arm in of}
        found.append(
            {
                **{"environment": table.environment, "model": table.model, "method": arm, "against": table.against},
                **{"episodes": table.episodes, "seeds": [run.seed for run in runs], "optimum": table.optimum},
                **{"totals": _totals(runs), "metrics": numbers, "lead_of_against": tests},
            }
        )
    return found


def _totals(runs: Sequence[SeedResult]) -> dict[str, int]:
    """Counts over all runs of a method."""
    names = ("calls", "input_tokens", "output_tokens", "studied", "unreadable", "lost_steps")
    unused = sum(max(0, run.tokens - run.episode_tokens) for run in runs if run.usage.calls)
    usage = total_usage(runs)
    counts = {name: getattr(usage, name) for name in names}
    counts |= {"look_ups": sum(run.look_ups.steps for run in runs), "empty_look_ups": sum(run.look_ups.empty for run in runs)}
    return counts | {"unused_tokens": unused, "played": sum(len(run.scores) for run in runs)}


def _test_object(test: PairedTest) -> dict[str, Any]:
    return {
        **{"mean": test.mean, "by_t": test.by_t, "permutation_p": test.permutation_p},
        **{"wins": test.wins, "losses": test.losses, "ties": test.ties},
        **{"verdict": test.verdict(), "differences": dict(test.differences)},
    }
