"""A benchmark of LangGraph's own costs (CPU and checkpoint bytes a step, resume), as ratios within one run. Asserts nothing.

    OMP_NUM_THREADS=1 python tests/performance/bench_engine.py

The agents play the toy world for T steps with a policy that never leaves the first place, so that only T varies. `jitrl`
decides with a memory of 20 episodes, so its state is that of a real run: 8 candidates, their estimates, and what similar
states earned. Bytes are those in the SQLite tables (checkpoints, metadata, writes). Times are CPU times of this process; what
LangGraph costs is the graph less a plain loop over the same nodes. Its limit is a graph written by hand, whose only node calls
the same functions one after the other: what LangGraph takes to keep this state, whatever we add.
"""

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from langgraph.graph import END, START, StateGraph
from rows import cpu, make_parser, medians, ratios, report

from learngraph.graphs import jitrl
from learngraph.graphs.baselines import static
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.records import Candidate, Trajectory
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.checkpoints import open_checkpoints
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
    """A store that is read at the beginning and not written any more."""

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
    world, records = KeywordKeep(), Kept()
    episode = merge_steps(jitrl.build(MethodInputs(world, records=records)))
    run.build(episode).invoke({"task": world.task(0), "run": "before", "episode": 0, "episodes": 20})
    return records


RECORDS = practised()


def build(method: str, steps: int, journal: Journal | None = None, policy: Any = None, **compile: Any) -> Any:
    journal = journal if journal is not None else Journal()
    inputs = MethodInputs(KeywordKeep(steps), journal, make_policy=lambda view: policy or Stay())
    if method == "static":
        return static.build(inputs, static.Static(temperature=0), **compile)
    memory = Experiences(RECORDS, gamma=0.8)
    return jitrl.build(inputs, jitrl.JitRL(temperature=0, min_prior=0), experiences=memory, **compile)


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


@contextmanager
def checkpointed(path: Path | None) -> Iterator[dict[str, Any]]:
    """The arguments with which a graph is compiled: its checkpoints in a file, or none."""
    if path is None:
        yield {}
    else:
        with open_checkpoints(path) as saver:
            yield {"checkpointer": saver}


def play(graph: Any, path: Path | None) -> float:
    """CPU seconds of an episode."""
    durability = {} if path is None else {"durability": "async"}
    return cpu(lambda: graph.invoke(attempt(), config(), **durability))


def ours(method: str, steps: int, path: Path | None) -> float:
    """CPU seconds of an episode of so many steps, checkpointed at `path` if given."""
    with checkpointed(path) as compile:
        return play(merge_steps(build(method, steps, **compile)), path)


def functions_of(method: str, steps: int) -> dict[str, Any]:
    """The functions of the method's nodes by name."""
    nodes = {name: spec.runnable for name, spec in build(method, steps).builder.nodes.items()}
    return {name: getattr(node, "func", node) for name, node in nodes.items()}


def env_step(functions: Mapping[str, Any], method: str, state: dict[str, Any]) -> dict[str, Any]:
    """What the nodes of one env step change, called one after the other; `state` changes with it."""
    changed: dict[str, Any] = {}
    for name in LOOPS[method]:
        update = functions[name](state)
        state |= update
        changed |= update
    return changed


def loop(method: str, steps: int) -> float:
    """CPU seconds of the same nodes in a plain loop."""
    functions = functions_of(method, steps)

    def once() -> None:
        state: dict[str, Any] = attempt()
        state |= functions["begin"](state)
        while True:
            env_step(functions, method, state)
            if route_episode_end(state) == "over":  # type: ignore[arg-type]
                return

    return cpu(once)


def by_hand(method: str, steps: int, path: Path | None) -> float:
    """CPU seconds of the same functions in a graph of one node, which calls them: what this state costs in LangGraph."""
    functions = functions_of(method, steps)
    builder = StateGraph(build(method, 1).builder.state_schema)
    builder.add_node("begin", functions["begin"])
    builder.add_node("step", lambda state: env_step(functions, method, dict(state)))
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "step")
    builder.add_conditional_edges("step", route_episode_end, {"over": END, "next step": "step"})
    with checkpointed(path) as compile:
        return play(builder.compile(**compile), path)


def checkpoint_bytes(folder: Path, long: int) -> None:
    """Targets 7 and 8."""
    for method in LOOPS:
        sizes, inputs = {}, (0, 0, 0)
        for steps in (60, long):
            path = folder / f"{method}-{steps}.sqlite"
            ours(method, steps, path)
            inputs = stored(path)
            sizes[steps] = sum(inputs) / steps
        name = f"checkpoint bytes per step, episodes of {long:,} steps over those of 60: {method}"
        report(name, sizes[long] / sizes[60], number=7, at_most=1.02, limit=1)
        note = "checkpoints + metadata + writes = " + " + ".join(f"{part / long / 1e3:.2f}" for part in inputs)
        report(f"checkpoint bytes per step: {method}", sizes[long] / 1e3, "kB", number=8, at_most=2.5, note=note)
        path = folder / f"{method}-run.sqlite"
        with open_checkpoints(path) as saver:
            plan = {**attempt(), "episodes": 4}
            run.build(merge_steps(build(method, 50)), checkpointer=saver).invoke(plan, config(), durability="async")
        report(
            f"checkpoint bytes per step of a run of 4 episodes x 50 steps: {method}", sum(stored(path)) / 2e5, "kB", number=8
        )


def own_time(folder: Path, rounds: int, steps: int = 300) -> None:
    """Target 9."""
    for method in LOOPS:
        costs: dict[str, list[float]] = {name: [] for name in ("loop", "hand", "ours", "durable hand", "durable ours")}
        for n in range(rounds):  # interleaved, so that a busy machine is busy for all
            costs["loop"].append(loop(method, steps))
            for name, way in (("hand", by_hand), ("ours", ours)):
                costs[name].append(way(method, steps, None))
                costs[f"durable {name}"].append(way(method, steps, folder / f"{method}-{n}-{name}.sqlite"))
        ms = {name: [took / steps * 1e3 for took in found] for name, found in costs.items()}
        report(f"CPU per step of a plain loop over the same nodes: {method}", ms["loop"], "ms")
        for durable, which, target in (("", "without", 0.25), ("durable ", "with durable", 0.7)):
            extra, least = (
                [took - bare for took, bare in zip(ms[f"{durable}{way}"], ms["loop"], strict=True)] for way in ("ours", "hand")
            )
            what = f"LangGraph's own CPU per step, {which} checkpoints: {method}"
            report(what, extra, "ms", number=9, at_most=max(target, 1.1 * median(least)), limit=median(least))


def resume(folder: Path, rounds: int, short: int, long: int) -> None:
    """Target 10."""
    for method in LOOPS:
        cost: dict[int, list[float]] = {short: [], long: []}
        for steps in cost:
            with open_checkpoints(folder / f"{method}-resume-{steps}.sqlite") as saver:
                journal = Journal(folder / f"{method}-{steps}.jsonl")
                graph = merge_steps(build(method, steps + 10, journal, checkpointer=saver))
                for n, _ in enumerate(graph.stream(attempt(), config(), stream_mode="updates", durability="sync")):
                    if n == steps:
                        break
                journal.close()
        for _ in range(8 * rounds):
            for steps, found in cost.items():
                with open_checkpoints(folder / f"{method}-resume-{steps}.sqlite") as saver:
                    graph = merge_steps(build(method, steps + 10, checkpointer=saver))
                    found.append(cpu(lambda graph=graph: graph.get_state(config())))  # type: ignore[misc]
        few, many = (medians(cost[steps], rounds) for steps in (short, long))
        name = f"time to resume after {long:,} steps, over that after {short}: {method}"
        report(name, ratios(many, few), number=10, at_most=1.1, limit=1, note=f"{median(many) * 1e3:.2f} ms")
        opened = [cpu(lambda: Journal(folder / f"{method}-{long}.jsonl").close()) for _ in range(rounds)]
        report(
            f"opening the journal, linear in its steps, CPU per step: {method}", [took / long * 1e6 for took in opened], "us"
        )


def main() -> None:
    options = make_parser(__doc__, rounds=5).parse_args()
    short, long = (20, 100) if options.quick else (200, 1_000)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint_bytes(Path(folder), long)
        own_time(Path(folder), options.rounds, 60 if options.quick else 300)
        resume(Path(folder), options.rounds, short, long)


if __name__ == "__main__":
    main()
