"""The rows of the performance page: every benchmark reports its figures with `report`, in words, and with the target beside.

A row is printed. Where `run_all.py` runs the benchmark, the row also goes to a file of JSON lines, which the environment
variable BENCH_ROWS names.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TARGETS = {
    1: "retrieval of a decision among a million transitions",
    2: "the same over one pass through its postings",
    3: "retrieval's speed-up over the published memories, with the same result",
    4: "share of queries whose result is that of comparing with every row",
    5: "cost of appending a transition, and its growth with the memory",
    6: "storing an episode, speed-up over rewriting the whole memory",
    7: "checkpoint bytes per step, long episodes over short ones",
    8: "checkpoint bytes per step",
    9: "LangGraph's own CPU time per step, without and with durable checkpoints",
    10: "time to resume, long episodes over short ones",
    11: "rollouts at once against a server that takes 1 s, fraction of ideal",
    12: "rollouts at once against a server that takes 50 ms, over LangChain's chat model alone",
    13: "scoring candidate actions under a new prompt, over one forward pass",
    14: "scoring candidate actions under a known prompt, over one forward pass",
    15: "scoring 30 actions in one pass, speed-up over 30 passes",
    16: "prompt tokens computed over new ones",
    17: "a LoRA step over its arithmetic",
    18: "a distillation step, speed-up over the published code's way",
    19: "pause of the answering thread while an adapter is swapped, and failed requests",
    20: "time of a whole reply while learning, over that without a learner",
    21: "a step of Training-Free GRPO on 128 slots, over the lower bound",
    22: "an exact dense query without its encoder, over one pass through the vectors",
    23: "a filtered dense query over an unfiltered one",
    24: "encoder calls per step",
}
"""The project's performance targets by number. A target may have several rows."""


@dataclass(frozen=True)
class Row:
    """A figure of a benchmark."""

    name: str
    values: tuple[float, ...]
    """A value of each round; empty if it could not be measured."""
    unit: str = ""
    number: int | None = None
    """Of the target, if it belongs to one."""
    at_most: float | None = None
    at_least: float | None = None
    """The target, where higher is better."""
    limit: float | None = None
    """The value that no implementation can beat."""
    note: str = ""
    """Further conditions; or the reason why there is no value."""

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool | None:
        """None if there is no target."""
        if self.at_most is None and self.at_least is None:
            return None
        if not self.values:
            return False
        return self.median <= self.at_most if self.at_most is not None else self.median >= (self.at_least or 0.0)

    @property
    def target(self) -> str:
        """At most, or at least, so much."""
        wanted = self.at_most if self.at_most is not None else self.at_least
        return "" if wanted is None else f"{'≤' if self.at_most is not None else '≥'} {digits(wanted)}"

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
    if row.values:
        shown = f"{digits(row.median)} {unit}".strip() + (f"  [{row.spread}]" if row.spread else "")
        met = {None: "", True: "met", False: "MISSED"}[row.is_met]
        limit = "" if row.limit is None else f"limit {digits(row.limit)}"
        text = f"{shown:<30}{f'{row.target} {met}':<18}{limit:<12}{row.note}"
    else:
        text = f"not measured: {row.note}"
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


def memory_in_use() -> int:
    """Bytes of RAM that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def medians(costs: Sequence[float], rounds: int) -> list[float]:
    """The median of each round, where measurement n belongs to round n % rounds."""
    return [statistics.median(costs[n::rounds]) for n in range(min(rounds, len(costs)))]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]
