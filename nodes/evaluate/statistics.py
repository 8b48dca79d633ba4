"""Statistics over seeds and the tables of them: pure functions that agents' evaluations and experiments share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Interval = tuple[float, float]
"""The lower and the upper end of a confidence interval."""


def mean(numbers: Sequence[float]) -> float:
    """The arithmetic mean; there must be at least one number."""
    return math.fsum(numbers) / len(numbers)


def interval(numbers: Sequence[float], level: float = 0.95) -> Interval | None:
    """The confidence interval of the mean by Student's t (n - 1 degrees of freedom); None for fewer than two numbers.

    Only the quantile is scipy's: `scipy.stats.t.interval` gives NaN where all numbers are equal, and importing scipy.stats takes
    over half a second more.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    n = len(numbers)
    if n < 2:
        return None
    middle = mean(numbers)
    half = float(stdtrit(n - 1, (1 + level) / 2)) * statistics.stdev(numbers) / math.sqrt(n)
    return middle - half, middle + half


def format_number(number: float | None, form: str) -> str:
    """A number in a format of Python's `format`, without rounding errors such as 7e-18 or -0; a dash for None."""
    return "–" if number is None else format(round(number, 12) + 0, form)


def with_interval(number: float, ci: Interval | None) -> str:
    """A number with its interval, as `0.5 [0.4, 0.6]`; the number alone without an interval."""
    middle, *ends = (format_number(one, ".3g") for one in (number, *(ci or ())))
    return f"{middle} [{', '.join(ends)}]" if ends else middle


def markdown_table(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """An aligned Markdown table.

    Args:
        lines: the header and the rows, each with one cell per column.
        left: the number of leading columns that are aligned to the left; the others are aligned to the right.
    """
    from tabulate import tabulate  # type: ignore[import-untyped]

    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]  # in a label
    sides = ["left"] * left + ["right"] * (len(lines[0]) - left)
    # The header goes in as a row, because tabulate makes a column at least two characters wider than a header.
    text = tabulate(lines, tablefmt="pipe", colalign=sides, disable_numparse=True)
    rule, header, *rows = text.splitlines()
    return "\n".join([header, rule.replace(":", "-", left), *rows])
