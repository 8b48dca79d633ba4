"""The arithmetic of a large deployment: which part runs where, how many of each, and how long things wait.

    python -m learngraph.graphs.experiments.deployment                                   the sizes of the page
    python -m learngraph.graphs.experiments.deployment --agents 200 --transitions 2e6     others
    python -m learngraph.graphs.experiments.deployment --write graphs/serving/DEPLOYMENT.md

Times and bytes come from this project's benchmarks (`MEASURED`), on one machine of 2 cores; what was not measured is an option, and the
page says so. Waiting is computed by queueing formulas, and checked by a simulation of the same queue.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ...memory.display import markdown_table
from ...memory.errors import UserError
from ..cli.flags import parse_flags

GIB = 1 << 30
HOUR = 3600.0
MARK, END = "<!-- deployment -->", "<!-- /deployment -->"


@dataclass(frozen=True)
class Measurement:
    """A number that a benchmark printed."""

    value: float
    unit: str
    source: str
    """The benchmark, and what it measured."""


MEASURED = {
    "ram": Measurement(12_300, "bytes a transition in RAM", "bench_memory.py: states of 60 words, none seen twice"),
    "disk": Measurement(1_000, "bytes a transition on disk", "bench_memory.py: the same, as JSON"),
    "write": Measurement(0.0083, "s to write an episode of 50 steps", "bench_memory.py --postgres: one writer, one database"),
    "index": Measurement(0.44e-3, "s a transition to open a memory", "bench_memory.py: 100,000 transitions, on a busy machine"),
    "decide": Measurement(
        1.1e-3, "s of CPU that memory adds to a decision", "bench_agents.py: JitRL, largest of three medians"
    ),
    "orchestrate": Measurement(0.95e-3, "s of CPU a step of LangGraph with checkpoints", "bench_engine.py: JitRL"),
    "call": Measurement(2.5e-3, "s of CPU a model call through a client", "bench_rollouts.py: LangGraph and OpenAI's client"),
}


@dataclass(frozen=True)
class Workload:
    """The load to be served. The defaults are the largest deployment that is sensible with what exists."""

    transitions: float = 1e8
    """Remembered steps of all agents together."""
    agents: int = 10_000
    """Agents, each with a memory of its own. None sees another's."""
    tenants: int = 1_000
    """Tenants, each with a LoRA adapter of its own."""
    busy_share: float = 0.1
    """Share of the agents that are at work at the same time, in the busiest hour."""
    step_seconds: float = 5.0
    """Seconds from one step of a busy agent to its next: mostly the model's."""
    feedback_per_hour: float = 20.0
    """Feedbacks of a tenant in the busiest hour."""
    batch: int = 8
    """Feedbacks of a gradient step."""
    step_time: float = 20.0
    """Seconds of a gradient step with its gate, on the learner's accelerator. Not measured: no accelerator was at hand."""
    step_spread: float = 0.5
    """Standard deviation of that time, as a share of it."""
    max_wait: float = 60.0
    """Seconds that a step may wait for a learner, on average."""
    adapter_megabytes: float = 84.0
    """Size of an adapter: rank 16 on all linear layers of a model of 8 billion parameters, in bfloat16."""
    versions: int = 5
    """Versions of an adapter that are kept for the way back."""
    core_load: float = 0.6
    """Share of a core's time that is used in the busiest hour."""
    dollars_per_core_hour: float = 0.04
    """Price of a core with 4 GiB: assumed, to be replaced by yours."""
    dollars_per_gib_hour: float = 0.005
    """Price of a GiB of RAM beyond that: assumed, too."""
    write: Path | None = None
    """The page whose lines between the marks are replaced by these tables."""
    seed: int = 0
    """Seed of the simulation."""

    def __post_init__(self) -> None:
        for name in ("transitions", "agents", "tenants", "step_seconds", "batch", "step_time", "max_wait"):
            if not getattr(self, name) > 0:
                raise UserError(f"deployment: {name} is above 0, got {getattr(self, name)}")
        if not 0 < self.core_load < 1 or not 0 < self.busy_share <= 1:
            raise UserError("deployment: core_load is between 0 and 1, busy_share above 0 and at most 1")


def erlang_c(servers: int, load: float) -> float:
    """The probability that a customer of an M/M/c queue waits (Erlang's C formula).

    Args:
        servers: c.
        load: arrivals a second times seconds of service; below `servers`.
    """
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)  # Erlang's B, by its recursion, which does not overflow
    return blocked / (1 - load / servers * (1 - blocked))


def mean_wait(servers: int, arrivals: float, service: float, spread: float) -> float:
    """The mean wait in an M/G/c queue, in seconds: Erlang's C times (1 + spread^2) / 2 (Allen and Cunneen).

    It is exact for one server (Pollaczek and Khinchine) and for exponential service times; infinite if the queue grows without end.

    Args:
        servers: c.
        arrivals: customers a second, at random times.
        service: mean seconds of service.
        spread: its standard deviation over its mean.
    """
    load = arrivals * service
    if load >= servers:
        return math.inf
    return erlang_c(servers, load) * service / (servers - load) * (1 + spread**2) / 2


def servers_for(arrivals: float, service: float, spread: float, max_wait: float) -> int:
    """The least number of servers with which customers wait no longer than `max_wait` seconds on average."""
    servers = max(math.ceil(arrivals * service), 1)
    while mean_wait(servers, arrivals, service, spread) > max_wait:
        servers += 1
    return servers


def simulate_waits(servers: int, arrivals: float, service: float, spread: float, customers: int, seed: int) -> list[float]:
    """The waits of customers of a queue that is played event by event: random arrivals, log-normal service, first come first served."""
    draw = Random(seed)
    sigma = math.sqrt(math.log1p(spread**2))
    free, now, waits = [0.0] * servers, 0.0, list[float]()
    for _ in range(customers):
        now += draw.expovariate(arrivals)
        begins = max(now, heapq.heappop(free))
        heapq.heappush(free, begins + draw.lognormvariate(math.log(service) - sigma**2 / 2, sigma))
        waits.append(begins - now)
    return waits[customers // 10 :]  # the first find an empty queue


def part_rows(work: Workload) -> list[tuple[str, str, str, str]]:
    """(part, where it runs, arithmetic, number) of each part."""
    each = work.transitions / work.agents
    busy = work.agents * work.busy_share
    steps = busy / work.step_seconds
    ram = busy * each * MEASURED["ram"].value / GIB
    cpu = steps * (MEASURED["decide"].value + MEASURED["orchestrate"].value + MEASURED["call"].value)
    cores = math.ceil(cpu / work.core_load)
    disk = work.transitions * MEASURED["disk"].value / GIB
    writes = steps / 50
    database = writes * MEASURED["write"].value
    opening = each * MEASURED["index"].value
    adapters = work.tenants * work.versions * work.adapter_megabytes / 1024
    return [
        (
            "memory of an agent",
            "in the process that runs it",
            f"{work.transitions:.0e} / {work.agents:,} transitions; {MEASURED['ram'].value / 1000:.1f} kB each",
            f"{each:,.0f}; {each * MEASURED['ram'].value / GIB * 1024:,.0f} MiB",
        ),
        ("opening it", "the same, once", f"{MEASURED['index'].value * 1e3:.2f} ms a transition", f"{opening:.1f} s"),
        (
            "busy agents at a time",
            "agent processes, by hash of the agent's name",
            f"{work.busy_share:.0%} of {work.agents:,}; their memories are in RAM",
            f"{busy:,.0f}; {ram:,.0f} GiB",
        ),
        (
            "steps a second",
            "the same processes",
            f"{busy:,.0f} / {work.step_seconds:g} s; {cpu / steps * 1e3:.2f} ms of CPU each, at {work.core_load:.0%} load",
            f"{steps:,.0f}; {cores} cores",
        ),
        (
            "records",
            "Postgres",
            f"{work.transitions:.0e} transitions of {MEASURED['disk'].value / 1000:.1f} kB",
            f"{disk:,.0f} GiB",
        ),
        (
            "episodes written a second",
            "Postgres",
            f"{steps:,.0f} / 50 steps; {MEASURED['write'].value * 1e3:.1f} ms each",
            f"{writes:,.1f}; {database:.0%} of one writer",
        ),
        (
            "adapters on disk",
            "object store",
            f"{work.tenants:,} tenants x {work.versions} versions x {work.adapter_megabytes:g} MB",
            f"{adapters:,.0f} GiB",
        ),
        (
            "hourly price without accelerators",
            "prices assumed",
            f"{cores} cores, {max(ram - 4 * cores, 0):,.0f} GiB of RAM beyond 4 a core",
            f"${cores * work.dollars_per_core_hour + max(ram - 4 * cores, 0) * work.dollars_per_gib_hour:,.2f}",
        ),
    ]


def queue_rows(work: Workload) -> list[tuple[str, str, str, str, str]]:
    """(learners, load, mean wait by formula, simulated, 95th percentile) for numbers of learners around the least that will do."""
    arrivals = work.tenants * work.feedback_per_hour / work.batch / HOUR
    least = servers_for(arrivals, work.step_time, work.step_spread, work.max_wait)
    rows = []
    for servers in range(max(math.ceil(arrivals * work.step_time), least - 1), least + 2):
        formula = mean_wait(servers, arrivals, work.step_time, work.step_spread)
        waits = sorted(simulate_waits(servers, arrivals, work.step_time, work.step_spread, 200_000, work.seed))
        simulated, late = sum(waits) / len(waits), waits[int(0.95 * len(waits))]
        chosen = " (chosen)" if servers == least else ""
        shown = "grows without end" if math.isinf(formula) else f"{formula:.1f} s"
        rows.append(
            (f"{servers}{chosen}", f"{arrivals * work.step_time / servers:.0%}", shown, f"{simulated:.1f} s", f"{late:.0f} s")
        )
    return rows


def page(work: Workload) -> str:
    """The tables of the page."""
    arrivals = work.tenants * work.feedback_per_hour / work.batch / HOUR
    parts = markdown_table([("part", "where", "arithmetic", "number"), *part_rows(work)], left=3)
    queue = markdown_table(
        [("learners", "load", "mean wait, formula", "simulated", "95th percentile, simulated"), *queue_rows(work)]
    )
    sources = markdown_table(
        [("measured", "by", "number"), *((m.unit, m.source, f"{m.value:g}") for m in MEASURED.values())], left=2
    )
    return (
        f"{parts}\n\n**Learners.** {work.tenants:,} tenants with {work.feedback_per_hour:g} feedbacks an hour, {work.batch} to a gradient "
        f"step: one step every {1 / arrivals:.1f} s. A step takes {work.step_time:g} s (assumed), with a standard deviation of "
        f"{work.step_spread:.0%}; it may wait {work.max_wait:g} s on average.\n\n{queue}\n\n{sources}"
    )


def main(args: Sequence[str] | None = None) -> int:
    """Print the tables, and write them into the page if asked."""
    work = parse_flags(
        Workload, args if args is not None else sys.argv[1:], "learngraph.graphs.experiments.deployment", __doc__ or ""
    )
    text = page(work)
    print(text)
    if work.write is not None:
        before = work.write.read_text(encoding="utf-8")
        head, mark, rest = before.partition(MARK)
        _, end, tail = rest.partition(END)
        if not mark or not end:
            raise UserError(f"{work.write} has no lines {MARK} and {END} to write between")
        work.write.write_text(f"{head}{MARK}\n{text}\n{END}{tail}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
