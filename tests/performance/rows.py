"""The rows of the performance page: every benchmark reports its figures with `report`, in words, and with the target beside.

A row is printed. Where `run_all.py` runs the benchmark, the row also goes to a file of JSON lines, which the environment
variable BENCH_ROWS names.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """A figure of a benchmark."""

    name: str
    values: tuple[float, ...]
    """A value of each round."""
    unit: str = ""
    number: int | None = None
    """Of the target, if it belongs to one."""
    at_most: float | None = None
    at_least: float | None = None
    """The target, where higher is better."""
    limit: float | None = None
    """The value that no implementation can beat."""
    note: str = ""
    """Further conditions."""

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool | None:
        """None if there is no target."""
        if self.at_most is not None:
            return self.median <= self.at_most
        return None if self.at_least is None else self.median >= self.at_least

    @property
    def target(self) -> str:
        """At most, or at least, so much."""
        wanted = self.at_most if self.at_most is not None else self.at_least
        return "" if wanted is None else f"{'≤' if self.at_most is not None else '≥'} {digits(wanted)}"

    @property
    def value(self) -> str:
        """The median with its unit."""
        return f"{digits(self.median)} {self.unit}".strip()

    @property
    def spread(self) -> str:
        """The lowest and the highest round."""
        low, high = digits(min(self.values)), digits(max(self.values))
        return "" if len(self.values) == 1 else f"{low} to {high}"


def digits(value: float) -> str:
    """Three of them, or the whole number."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def report(name: str, values: float | Sequence[float], unit: str = "", **more: Any) -> Row:
    """Print a row, and hand it to the page.

    Args:
        name: What was measured, in words.
        values: One value of each round; a single one for what is counted and does not vary.
        unit: Of the values; none for ratios.
        **more: `number`, `at_most`, `at_least`, `limit` and `note` of the `Row`.
    """
    found = tuple(map(float, values)) if isinstance(values, Sequence) else (float(values),)
    row = Row(name, found, unit, **more)
    shown = f"{row.value}  [{row.spread}]" if row.spread else row.value
    met = {None: "", True: "met", False: "MISSED"}[row.is_met]
    limit = "" if row.limit is None else f"limit {digits(row.limit)}"
    text = f"{shown:<30}{f'{row.target} {met}':<18}{limit:<12}{row.note}"
    print(f"{row.number or '':>3}  {name:<92} {text}".rstrip(), flush=True)
    if path := os.environ.get("BENCH_ROWS"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
    return row


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of JSON lines."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [Row(**row | {"values": tuple(row["values"])}) for row in rows]


def make_parser(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds: a check that it runs, whose figures mean nothing"
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="what is compared takes turns, so many times (%(default)s)")
    return parser


def cpu(call: Callable[[], Any]) -> float:
    """CPU seconds of one call, of all threads of this process."""
    start = time.process_time()
    call()
    return time.process_time() - start


def elapsed(call: Callable[[], Any], device: str) -> float:
    """CPU seconds of one call on a CPU; on a GPU wall-clock seconds until its work has ended."""
    if device == "cpu":
        return cpu(call)
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def medians(costs: Sequence[float], rounds: int) -> list[float]:
    """The median of each round, where measurement n belongs to round n % rounds."""
    return [statistics.median(costs[n::rounds]) for n in range(min(rounds, len(costs)))]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]
