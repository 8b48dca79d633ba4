"""AdaMEM's memory: targets 22 to 24 of the performance targets, as ratios within one run.

    python tests/performance/bench_dense.py [--counts 100000 1000000] [--dims 384]

A row is a step; 50 steps make a trajectory. Vectors are isotropic noise of unit length (an exact search does the same work
whatever they are), from an encoder that makes them up. Times are CPU times (process_time) of one thread where OMP_NUM_THREADS=1,
medians over queries asked in turns; nothing is asserted.
"""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray
from rows import cpu, make_parser, medians, ratios, report

from learngraph.memory.attempts.trajectories import Trajectories, structured_key
from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.search.similarity import KeyRows
from learngraph.memory.search.vectors import CosineSimilarity, EmbeddedKey

STEPS, K, TASKS = 50, 10, 100


def noise(of: str, dims: int) -> NDArray[np.float32]:
    seed = int.from_bytes(hashlib.blake2b(of.encode(), digest_size=8).digest(), "little")
    vector = np.random.Generator(np.random.SFC64(seed)).standard_normal(dims, np.float32)
    return vector / np.linalg.norm(vector)


class Encoder(Embeddings):
    """Makes up a vector for each text, always the same; counts."""

    def __init__(self, dims: int) -> None:
        self.dims, self.calls = dims, 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        return [noise(of, self.dims).tolist() for of in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Ready:
    """`Vectors` without file and encoder: what is left is the search."""

    minimum = default_floor = -1.0

    def __init__(self, dims: int) -> None:
        self._dims, self._rows = dims, CosineSimilarity(Encoder(dims)).rows

    def read(self, texts: Sequence[str], /) -> Sequence[Any]:
        return [self.read_query(of) for of in texts]

    def read_query(self, text: str, /) -> EmbeddedKey:
        vector = noise(text, self._dims)
        return EmbeddedKey((hashlib.blake2b(text.encode(), digest_size=16).digest(), vector), (b"", np.zeros_like(vector)))

    def rows(self) -> KeyRows:
        return self._rows()


def attempt(number: int, states: Sequence[str]) -> Trajectory:
    steps = tuple(Transition(state, "go on", float(number % 2)) for state in states)
    return Trajectory(f"bench/{number}", Task(f"task-{number % TASKS}", "find it"), steps, "bench", number)


def episode(number: int) -> Trajectory:
    return attempt(number, [f"state {number} {step}" for step in range(STEPS)])


def keys(count: int) -> list[str]:
    return [structured_key(Task("", "find it"), (), s.state) for n in range(count // STEPS) for s in episode(n).transitions]


def search(count: int, dims: int, rounds: int) -> None:
    """Targets 22, 23 and 4."""
    memory = Trajectories(similarity=Ready(dims))
    for number in range(count // STEPS):
        memory.add(episode(number))
    reading = memory.similarity.read(["asked"])[0]
    rows: Any = memory._rows
    blocks = [block.view(np.int32) for block in rows._states._blocks]
    tasks = np.repeat(np.arange(count // STEPS) % TASKS, STEPS)
    shares = {f"{share} % of the tasks": np.isin(tasks, np.arange(share)) for share in (90, 50, 10, 1)}

    def asked(among: NDArray[np.bool_] | None) -> Any:
        rows._states._last = b"", np.zeros(0, np.float32)  # each time as if it were a new question
        return rows.nearest(reading, K, -1.0, among)

    ways: dict[str, Callable[[], Any]] = {
        "once": lambda: [block.max() for block in blocks],
        "plain": lambda: asked(None),
        **{name: (lambda among=among: asked(among)) for name, among in shares.items()},
        "again": lambda: rows.nearest(reading, K, -1.0, shares["50 % of the tasks"]),
        "blas": lambda: [block @ reading.state[1] for block in rows._states._blocks],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3 * rounds):
        for name, way in ways.items():
            times[name].append(cpu(way))
    took = {name: medians(found, rounds) for name, found in times.items()}
    name = f"exact dense query among {count:,} steps of {dims} numbers, without the encoder, over one pass through the vectors"
    report(name, ratios(took["plain"], took["once"]), number=22, at_most=1.5, limit=1)
    report("for comparison: BLAS' matrix times vector alone, over that pass", ratios(took["blas"], took["once"]))
    for name in shares:
        report(f"the query filtered to {name}, over unfiltered", ratios(took[name], took["plain"]), number=23, at_most=1.2)
    report("the same text asked again, among others, over a query", ratios(took["again"], took["plain"]))
    few = np.arange(count) < 20_000
    brute = [(float(np.vecdot(noise(of, dims), reading.state[1])), n) for n, of in enumerate(keys(min(count, 20_000)))]
    same = asked(few)[0].tolist() == [n for _, n in sorted(brute, reverse=True)[:K]]
    report(f"the best {K} among the first {len(brute):,} are those of comparing one by one", float(same), number=4, at_least=1)


def calls(dims: int) -> None:
    """Target 24."""
    encoder = Encoder(dims)
    with tempfile.TemporaryDirectory() as folder:
        kept = CosineSimilarity(encoder, Path(folder, "vectors.sqlite"))
        memory = Trajectories(bank=[episode(0)], similarity=kept)
        before, played = encoder.calls, 20
        for number in range(1, played + 1):
            now = episode(number)
            for step, transition in enumerate(now.transitions):
                key = memory.key(now.task, now.transitions[:step], transition.state)
                memory.search(key, K, before=("bench", number))
            memory.add(now)
        made = (encoder.calls - before) / (played * STEPS)
        report("encoder calls a step: new states, each looked up and then stored", made, number=24, at_most=1)
        before = encoder.calls
        replay = attempt(played + 1, [transition.state for transition in episode(7).transitions])
        for transition in replay.transitions:
            memory.search(memory.key(replay.task, (), transition.state), K)
        memory.add(replay)
        report("encoder calls a step: states seen before", (encoder.calls - before) / STEPS, number=24, at_most=0)
        kept.close()


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--counts", type=int, nargs="+", default=[100_000])
    parser.add_argument("--dims", type=int, default=384)
    asked = parser.parse_args()
    calls(asked.dims)
    for count in [10_000] if asked.quick else asked.counts:
        search(count, asked.dims, asked.rounds)


if __name__ == "__main__":
    main()
