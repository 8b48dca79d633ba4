"""Runs the benchmarks one after the other, and writes what they report to tests/performance/RESULTS.md.

    make bench                            all of them, about 25 minutes on 2 quiet cores
    make bench ARGS="--only 13 14 20"     those of these targets; a name (bench_lora) chooses one, too
    make bench ARGS=--quick               a check that all of them run; its figures mean nothing

Each benchmark is a process of its own. One that fails or takes longer than --limit seconds leaves the reason on the page, and
the others go on. Only a whole run writes RESULTS.md; any other writes build/bench.md, unless --out names a file.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rows import Row, digits, read_rows

HERE = Path(__file__).resolve().parent
TOPICS: dict[str, dict[str, tuple[int, ...]]] = {
    "Retrieval and memory": {"bench_retrieval": (1, 2, 3, 4, 5, 6), "bench_dense": (22, 23, 24)},
    "The engine: LangGraph and its checkpoints": {"bench_engine": (7, 8, 9, 10)},
    "Scoring actions with a local model": {"bench_scoring": (13, 14, 15, 16)},
    "Many calls at once": {"bench_rollouts": (11, 12), "bench_icrl": (16,), "bench_training_free": (21,)},
    "What a learning middleware adds to a model call of an agent": {"bench_agents": ()},
    "What a memory is worth: intervals on simulated desks": {"bench_lift": ()},
    "Learning": {"bench_lora": (17, 18)},
    "Serving": {"bench_swap": (19,), "bench_serving": (20,)},
}
"""Topic -> its benchmarks, with the targets that each measures."""
PACKAGES = ("torch", "transformers", "peft", "langgraph", "langchain-core", "chromadb", "numpy", "scipy")


@dataclass(frozen=True)
class Outcome:
    """The end of a benchmark."""

    rows: list[Row]
    seconds: float
    problem: str = ""
    """The reason why it ended early."""


def make_command(name: str, options: argparse.Namespace) -> list[str]:
    """The command of a benchmark, from the root of the repository."""
    more = ["--quick"] if options.quick else []
    return [f"tests/performance/{name}.py", *more, *(["--rounds", str(options.rounds)] if options.rounds else [])]


def run_benchmark(command: Sequence[str], limit: float) -> Outcome:
    """Run a benchmark to its end. Servers that it started end with it."""
    began, problem = time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        rows, errors = Path(folder, "rows"), Path(folder, "errors")
        rows.touch()
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=HERE.parents[1],
                env=os.environ | {"BENCH_ROWS": str(rows)},
                stderr=stderr,
                start_new_session=True,
            )
        try:
            if process.wait(limit):
                said = errors.read_text(errors="replace").strip()
                problem = (
                    f"the benchmark ended with code {process.returncode}: {said.splitlines()[-1] if said else 'no message'}"
                )
                print(said[-3000:], file=sys.stderr)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            problem = f"the benchmark had not ended after {limit:g} s"
        return Outcome(read_rows(rows), time.monotonic() - began, problem)


def line(row: Row) -> str:
    """A line of a table."""
    name = f"{row.name} ({row.note})" if row.note else row.name
    met = {None: "", True: "met", False: "**missed**"}[row.is_met]
    limit = "" if row.limit is None else digits(row.limit)
    return f"| {row.number or ''} | {name} | {row.value} | {row.spread} | {row.target} | {met} | {limit} |"


def summary(rows: Sequence[Row], numbers: Sequence[int]) -> str:
    """Which of the targets are met: by all of their rows."""
    unmeasured = sorted(set(numbers) - {row.number for row in rows})
    missed = sorted({row.number for row in rows if row.number and row.is_met is False})
    said = f"Of {len(numbers)} targets {len(numbers) - len(missed) - len(unmeasured)} are met"
    for how, which in (("missed in part or whole", missed), ("not measured", unmeasured)):
        said += f"; {how}: {', '.join(map(str, which))}" if which else ""
    return said + "."


def machine(loads: Sequence[float]) -> str:
    """The machine, and how busy it was."""
    info = Path("/proc/cpuinfo")
    names = (
        [text.partition(":")[2].strip() for text in info.read_text().splitlines() if text.startswith("model name")]
        if info.exists()
        else []
    )
    cores = f"{os.cpu_count()} cores ({names[0] if names else platform.machine()})"
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    return (
        f"{cores}; load between {min(loads):.1f} and {max(loads):.1f}, of which a benchmark itself is about 1. "
        f"OMP_NUM_THREADS {threads}; Python {platform.python_version()}, {versions}."
    )


def write_page(outcomes: dict[str, Outcome], loads: Sequence[float], options: argparse.Namespace) -> str:
    """The page in Markdown."""
    rows = [row for done in outcomes.values() for row in done.rows]
    numbers = sorted({number for name in outcomes for number in TOPIC_NUMBERS[name]})
    minutes = sum(done.seconds for done in outcomes.values()) / 60
    quick = "\n**A quick run: it shows that the benchmarks run; its figures mean nothing.**\n" if options.quick else ""
    page = [
        "# What it costs: the measurements",
        quick,
        f"`make bench` wrote this page on {datetime.now(UTC):%Y-%m-%d}, in {minutes:.0f} minutes. [How to read it, and what is behind it](README.md).",
        f"\n{machine(loads)}",
        "\nThe first number is that of a target; rows without a number have none of their own. Each row is the median of some rounds in "
        "one process, in which what is compared takes turns, with the lowest and the highest round; a row without them is "
        "counted and does not vary, or was measured once. Values without a unit are ratios. The limit is what no implementation can beat.",
        f"\n{summary(rows, numbers)}",
    ]
    for topic, names in TOPICS.items():
        if played := [name for name in names if name in outcomes]:
            page += [f"\n## {topic}\n", "```sh"]
            page += [f"python {' '.join(make_command(name, options))}   # {outcomes[name].seconds:.0f} s" for name in played]
            page += ["```\n", "| | | median | lowest to highest | target | | limit |", "|---:|---|---:|---|---|---|---:|"]
            page += [line(row) for name in played for row in outcomes[name].rows]
            page += [f"\n{name}: {outcomes[name].problem}" for name in played if outcomes[name].problem]
    return "\n".join(page) + "\n"


TOPIC_NUMBERS = {name: numbers for names in TOPICS.values() for name, numbers in names.items()}


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="N", help="numbers of targets, or names of benchmarks")
    parser.add_argument("--rounds", type=int, help="of each benchmark; by default each has its own number")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a benchmark may take")
    parser.add_argument("--out", type=Path, help="the page")
    options = parser.parse_args()
    known = {*TOPIC_NUMBERS, *(str(number) for numbers in TOPIC_NUMBERS.values() for number in numbers)}
    if wrong := set(options.only) - known:
        parser.error(f"--only {' '.join(sorted(wrong))}: give numbers from 1 to 24, or some of {', '.join(TOPIC_NUMBERS)}")
    chosen = [n for n, numbers in TOPIC_NUMBERS.items() if not options.only or {n, *map(str, numbers)} & set(options.only)]
    is_whole = not (options.only or options.quick)
    out = options.out or (HERE / "RESULTS.md" if is_whole else HERE.parents[1] / "build" / "bench.md")
    out.parent.mkdir(parents=True, exist_ok=True)
    outcomes, loads = dict[str, Outcome](), list[float]()
    for name in chosen:
        command = make_command(name, options)
        loads.append(os.getloadavg()[0])
        print(f"\n{name} (load {loads[-1]:.1f})", flush=True)
        outcomes[name] = run_benchmark(command, options.limit)
        loads.append(os.getloadavg()[0])
    out.write_text(write_page(outcomes, loads, options), encoding="utf-8")
    print(f"\n{out}")
    return int(any(done.problem for done in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
