"""A benchmark of LangGraph's own costs (CPU and checkpoint bytes a step, resume), as ratios within one run. Asserts nothing.

    OMP_NUM_THREADS=1 python tests/performance/bench_engine.py

The agents play the toy world for T steps with a policy that never leaves the first place, so that only T varies. `jitrl`
decides with a memory of 20 episodes, so its state is that of a real run: 8 candidates, their estimates, and what similar
states earned. Bytes are those in the SQLite tables (checkpoints, metadata, writes). Times are CPU times of this process; what
LangGraph costs is the graph less a plain loop over the same nodes.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from learngraph.graphs import jitrl
from learngraph.graphs.baselines import static
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.parts import MethodInputs
from learngraph.memory.experiences import Experiences
from learngraph.memory.records import Candidate, Trajectory
from learngraph.memory.storage.checkpoints import open_checkpoints, serializer
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.episode import route_episode_end
from learngraph.nodes.act.policies import admissible_actions
from learngraph.nodes.state import EpisodeChannels
from learngraph.tools.environments.keyword_keep import KeywordKeep

LOOPS = {
    "static": ("propose", "choose", "act"),
    "jitrl": ("recall", "propose", "augment", "advise", "modulate", "choose", "act"),
}
"""The nodes of one env step."""


@dataclass(frozen=True)
class Stay:
    """Proposes every admissible action, and would rather stay where it is than follow anything that memory recommends."""

    def __call__(self, state: EpisodeChannels) -> dict[str, Any]:
        actions = admissible_actions(state, "stay")
        return {"candidates": [Candidate(a, -0.01 if a == "back" else -50 - i / 3) for i, a in enumerate(actions)]}


class Kept:
    """A shelf that is read at the beginning and not written any more."""

    def __init__(self) -> None:
        self.trajectories: list[Trajectory] = []

    def put(self, records: Iterable[Trajectory], /) -> None:
        """Leave what the bench itself plays."""
        self.trajectories += [record for record in records if record.run != "bench"]

    def all(self) -> Iterable[Trajectory]:
        """What was practised."""
        return list(self.trajectories)

    def delete(self, ids: Iterable[str], /) -> None:
        """Nothing is ever deleted here."""


def practised() -> Kept:
    """20 episodes of the task."""
    world, shelf = KeywordKeep(), Kept()
    episode = jitrl.build(MethodInputs(world, shelf=shelf), chain=True)
    run.build(episode).invoke({"task": world.task(0), "run": "before", "episode": 0, "episodes": 20})
    return shelf


SHELF = practised()


def build(method: str, steps: int, journal: Journal | None = None, **compile: Any) -> Any:
    journal = journal if journal is not None else Journal()
    parts = MethodInputs(KeywordKeep(steps), journal, make_policy=lambda view: Stay())
    if method == "static":
        return static.build(parts, static.Static(temperature=0), **compile)
    memory = Experiences(SHELF, gamma=0.8)
    return jitrl.build(parts, jitrl.JitRL(temperature=0, min_prior=0), experiences=memory, **compile)


def attempt() -> dict[str, Any]:
    return {"task": KeywordKeep().task(0), "run": "bench", "episode": 0}


def config(thread: str = "t") -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 1_000_000}


def stored(path: Path) -> tuple[int, int, int]:
    """Bytes of checkpoints, of their metadata, and of writes."""
    sql = "select (select sum(length(checkpoint)) from checkpoints), (select sum(length(metadata)) from checkpoints), "
    with sqlite3.connect(path) as database:
        found = database.execute(sql + "(select coalesce(sum(length(value)), 0) from writes)").fetchone()
    return int(found[0]), int(found[1]), int(found[2])


def play(method: str, steps: int, path: Path | None, chain: bool) -> float:
    """CPU seconds of an episode of so many steps, checkpointed at `path` if given."""
    if path is None:
        graph = build(method, steps, chain=chain)
        return cpu(lambda: graph.invoke(attempt(), config()))
    with open_checkpoints(path) as saver:
        graph = build(method, steps, chain=chain, checkpointer=saver)
        return cpu(lambda: graph.invoke(attempt(), config(), durability="async"))


def loop(method: str, steps: int) -> float:
    """CPU seconds of the same nodes in a plain loop."""
    nodes = {name: spec.runnable for name, spec in build(method, steps).builder.nodes.items()}
    functions = {name: getattr(node, "func", node) for name, node in nodes.items()}

    def once() -> None:
        state: dict[str, Any] = attempt()
        state |= functions["begin"](state)
        while True:
            for name in LOOPS[method]:
                state |= functions[name](state)
            if route_episode_end(state) == "over":  # type: ignore[arg-type]
                return

    return cpu(once)


class Number(TypedDict):
    """The smallest state there is."""

    n: int


def floor(steps: int) -> float:
    """CPU seconds of a graph of one node that counts: what a super-step costs at least."""
    builder = StateGraph(Number)
    builder.add_node("count", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "count")
    builder.add_conditional_edges("count", lambda state: "count" if state["n"] < steps else END, ["count", END])
    graph = builder.compile()
    return cpu(lambda: graph.invoke({"n": 0}, config()))


def cpu(call: Callable[[], Any]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def line(row: str, name: str, value: str, target: str) -> None:
    print(f"{row:>3}  {name:<66} {value:>22}   {target}")


def size_of_channels(method: str) -> Mapping[str, int]:
    """Bytes of each channel in the last checkpoint of an episode's loop, largest first."""
    with open_checkpoints(":memory:") as saver:
        graph = build(method, 40, chain=True, checkpointer=saver)
        graph.invoke(attempt(), config())
        values = next(s for s in graph.get_state_history(config()) if s.next and s.values["step"] == 30).values
    sizes = {name: len(serializer().dumps_typed(value)[1]) for name, value in values.items()}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def rows_7_and_8(folder: Path) -> None:
    for method in LOOPS:
        for chain in (True, False):
            sizes, parts = {}, (0, 0, 0)
            for steps in (60, 1000):
                path = folder / f"{method}-{chain}-{steps}.sqlite"
                play(method, steps, path, chain)
                parts = stored(path)
                sizes[steps] = sum(parts) / steps
            how = f"{method}, {'chained' if chain else 'one super-step per node'}"
            line("7", f"checkpoint bytes per env step, B(T=1000)/B(T=60): {how}", f"{sizes[1000] / sizes[60]:.3f}", "<= 1.02")
            kb = " + ".join(f"{part / 1e6:.2f}" for part in parts)
            line(
                "8", f"  kB per env step (checkpoints + metadata + writes = {kb})", f"{sizes[1000] / 1e3:.2f}", "<= 2.5 chained"
            )
        path = folder / f"{method}-run.sqlite"
        with open_checkpoints(path) as saver:
            plan = {**attempt(), "episodes": 4}
            run.build(build(method, 50, chain=True), checkpointer=saver).invoke(plan, config(), durability="async")
        line(
            "8", f"  kB per env step of a run of 4 episodes x 50 steps: {method}, chained", f"{sum(stored(path)) / 2e5:.2f}", ""
        )
        print(f"     largest channels, bytes: {dict(list(size_of_channels(method).items())[:6])}")


def row_9(folder: Path, steps: int = 300, times: int = 5) -> None:
    for method in LOOPS:
        costs: dict[str, list[float]] = {
            "floor": [],
            "loop": [],
            "bare": [],
            "durable": [],
            "bare, unchained": [],
            "durable, unchained": [],
        }
        for n in range(times):  # interleaved, so that a busy machine is busy for all
            costs["floor"].append(floor(steps))
            costs["loop"].append(loop(method, steps))
            for chain, tail in ((True, ""), (False, ", unchained")):
                costs[f"bare{tail}"].append(play(method, steps, None, chain))
                costs[f"durable{tail}"].append(play(method, steps, folder / f"{method}-{n}{tail}.sqlite", chain))
        ms = {name: median(found) / steps * 1e3 for name, found in costs.items()}
        line("9", "floor: ms per super-step of a graph that only counts", f"{ms['floor']:.2f}", "0.16")
        line("9", f"{method}: CPU ms per env step, plain loop over the same nodes", f"{ms['loop']:.2f}", "")
        for name, target in (("bare", "<= 0.25"), ("durable", "<= 0.7"), ("bare, unchained", ""), ("durable, unchained", "")):
            extra = ms[name] - ms["loop"]
            ratio = f"{extra:.2f} ({extra / ms['floor']:.1f}x)"
            line("9", f"  LangGraph on top, {name}: ms (x the floor)", ratio, target)


def row_10(folder: Path, times: int = 40) -> None:
    for method in LOOPS:
        cost: dict[int, list[float]] = {200: [], 1000: []}
        for steps in cost:
            with open_checkpoints(folder / f"{method}-resume-{steps}.sqlite") as saver:
                journal = Journal(folder / f"{method}-{steps}.jsonl")
                graph = build(method, steps + 10, journal, chain=True, checkpointer=saver)
                for n, _ in enumerate(graph.stream(attempt(), config(), stream_mode="updates", durability="sync")):
                    if n == steps:
                        break
                journal.close()
        for _ in range(times):
            for steps, found in cost.items():
                with open_checkpoints(folder / f"{method}-resume-{steps}.sqlite") as saver:
                    graph = build(method, steps + 10, chain=True, checkpointer=saver)
                    found.append(cpu(lambda graph=graph: graph.get_state(config())))  # type: ignore[misc]
        short, long = median(cost[200]) * 1e3, median(cost[1000]) * 1e3
        line("10", f"resume, t(T=1000)/t(T=200): {method} ({long:.2f} ms)", f"{long / short:.2f}", "<= 1.1")
        opened = median(cpu(lambda: Journal(folder / f"{method}-1000.jsonl").close()) for _ in range(5))  # noqa: B023
        line("", "  opening the journal, linear in its steps: us per step", f"{opened * 1e3:.0f}", "")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows_7_and_8(Path(folder))
        row_9(Path(folder))
        row_10(Path(folder))


if __name__ == "__main__":
    main()
