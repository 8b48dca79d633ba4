"""JitRL's retrieval and memory: rows 1 to 6 of the performance targets, as ratios within one run.

    python tests/performance/bench_retrieval.py [--rows 100000 1000000]

Texts have 60 tokens with Zipf frequencies over a vocabulary of 20,000, in variations of rooms. Times are CPU times
(process_time), of one thread where OMP_NUM_THREADS=1; nothing is asserted. The two slow ways are written anew here
after their description, to compare within one run: no code of the paper's authors is used.
"""

import argparse
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from langgraph.store.sqlite import SqliteStore
from numpy.typing import NDArray

from learngraph.memory.experiences import Experiences
from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.search.similarity import JaccardIndex, bag, multiset_jaccard, reference_words, words
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.shelf import RecordStore

VOCABULARY, LENGTH, K = 20_000, 60, 10
FREQUENCY = 1 / np.arange(1, VOCABULARY + 1)
FREQUENCY /= FREQUENCY.sum()
Rows = NDArray[np.int64]


def zipf(draw: np.random.Generator, size: int | tuple[int, int]) -> Rows:
    return draw.choice(VOCABULARY, size=size, p=FREQUENCY)


def corpus(count: int, draw: np.random.Generator) -> Rows:
    """(count, 60) token numbers: 50 visits to each room, a fifth of the tokens changed at each."""
    rooms = zipf(draw, (max(count // 50, 1), LENGTH))
    rows = rooms[draw.integers(0, len(rooms), count)]
    changed = draw.random(rows.shape) < 0.2
    rows[changed] = zipf(draw, int(changed.sum()))
    return rows


def near_query(rows: Rows, draw: np.random.Generator) -> list[int]:
    """A stored text with a quarter of its tokens replaced."""
    query = rows[draw.integers(len(rows))].copy()
    changed = draw.random(LENGTH) < 0.25
    query[changed] = zipf(draw, int(changed.sum()))
    return query.tolist()


def text(row: list[int]) -> str:
    return " ".join(f"w{token}" for token in row)


def cpu(call: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def report(row: str, what: str, value: str, target: str) -> None:
    print(f"{row:>3}  {what:<92}{value:>24}   {target}", flush=True)


def scan(index: JaccardIndex, rows: Rows, queries: list[list[int]]) -> float:
    """Row 4: the share of queries whose top k equals that of comparing with every row."""
    ordered = np.sort(rows, axis=1)
    first = np.ones(ordered.shape, np.bool_)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    sizes, equal = first.sum(axis=1), 0
    for query in queries:
        wanted = np.zeros(VOCABULARY, np.bool_)
        wanted[query] = True
        common = (wanted[ordered] & first).sum(axis=1)
        similarities = common / (len(set(query)) + sizes - common)
        best = np.lexsort((-np.arange(len(rows)), -similarities))[:K]
        expected = [(int(row), float(similarities[row])) for row in best if common[row]]
        equal += index.search(query, K) == expected
    return equal / len(queries)


def retrieval(count: int, draw: np.random.Generator) -> None:
    """Rows 1, 2, 4 and 5 on an index of `count` rows."""
    rows = corpus(count, draw)
    index, per_append = JaccardIndex(), []
    for start in range(0, count, 1_000):
        block = rows[start : start + 1_000].tolist()
        per_append.append(cpu(lambda block=block: [index.add(row) for row in block]) / len(block))
    near = [near_query(rows, draw) for _ in range(50)]
    novel = [zipf(draw, LENGTH).tolist() for _ in range(50)]
    index.search(near[0], K)  # scipy's import is not part of it
    times = [np.array([cpu(lambda query=query: index.search(query, K)) for query in group]) for group in (near, novel)]
    p50, p50_novel = (float(np.median(group)) for group in times)
    report(
        "1",
        f"query at {count:,} rows, CPU ms: p50 / p95",
        f"{p50 * 1e3:.2f} / {np.quantile(times[0], 0.95) * 1e3:.2f}",
        "<= 5 (1e6)",
    )
    report(
        "1",
        f"novel query at {count:,} rows, CPU ms: p50 / p95",
        f"{p50_novel * 1e3:.2f} / {np.quantile(times[1], 0.95) * 1e3:.2f}",
        "<= 15 (1e6)",
    )
    known, size = rows[:: max(count // 20_000, 1)], min(count, 20_000)
    frequency = np.bincount(np.concatenate([np.unique(row) for row in known]), minlength=VOCABULARY) / size
    touched = int(np.median([frequency[list(set(query))].sum() for query in near]) * count)
    blocks = np.zeros((max(1, (1 << 28) // (4 * touched)), touched), np.int32) + 1  # together larger than any cache
    once = float(np.median([cpu(block.max) for block in blocks[:50]]))
    report(
        "2",
        f"query / one pass over its {touched * 4 / 1e6:.1f} MB of postings ({once * 1e3:.2f} ms)",
        f"{p50 / once:.1f}",
        "<= 4 (1e6)",
    )
    equality = scan(index, rows, near[:10] + novel[:10])
    report("4", f"top-{K} equal to comparing with all {count:,} rows", f"{equality:.2f}", "1.00")
    small, large = (float(np.median(part)) for part in (per_append[5:10], per_append[-20:]))
    report(
        "5",
        f"append of a row, t({count:,}) / t(10,000), and CPU us",
        f"{large / small:.2f}, {large * 1e6:.1f}",
        "<= 1.2, <= 30",
    )


def against_scanning(count: int, draw: np.random.Generator) -> None:
    """Row 3: tokenising and counting every stored text at each query, as the published WebArena memory does."""
    rows = corpus(count, draw)
    texts = [text(row) for row in rows.tolist()]
    query = text(near_query(rows, draw))

    def slow() -> list[tuple[float, int]]:
        wanted: Counter[Any] = Counter(reference_words(query))
        scored = [(multiset_jaccard(wanted, Counter(reference_words(stored))), row) for row, stored in enumerate(texts)]
        return sorted(scored, reverse=True)[:K]

    index = JaccardIndex()
    for stored in texts:
        index.add(bag(reference_words(stored)))
    fast = float(np.median([cpu(lambda: index.search(bag(reference_words(query)), K)) for _ in range(20)]))
    expected: list[tuple[float, int]] = []
    scanning = cpu(lambda: expected.extend(slow()))
    same = [(similarity, row) for row, similarity in index.search(bag(reference_words(query)), K)] == expected
    report(
        "3",
        f"speed-up over tokenise + Counter of all {count:,} rows ({scanning * 1e3:,.0f} ms)",
        f"{scanning / fast:,.0f}x, {'same' if same else 'OTHER'} top k",
        ">= 1,000x",
    )


def episode(number: int, rows: list[list[int]]) -> Trajectory:
    steps = tuple(Transition(text(row), f"go {row[0] % 10}", float(row[1] % 2)) for row in rows)
    return Trajectory(f"bench/{number}", Task("task-0", "find it"), steps, "bench", number, domain="bench")


def storing(count: int, draw: np.random.Generator) -> None:
    """Rows 5 (durable) and 6: one 50-step episode more, with `count` steps in memory already."""
    rows = corpus(count + 1_000, draw).reshape(-1, 50, LENGTH).tolist()
    episodes = [episode(number, steps) for number, steps in enumerate(rows)]
    more, first = episodes[count // 50 :], episodes[: count // 50]
    mirror = Experiences(tokens=words)
    for one in first:
        mirror.add(one)
    state = text(near_query(np.array(rows[0]), draw))
    scope: dict[str, Any] = {"task": "task-0", "domain": "bench"}
    mirror.neighbours(state, K, **scope)
    asking = float(np.median([cpu(lambda: mirror.neighbours(state, K, **scope)) for _ in range(20)]))
    report("1", f"Experiences.neighbours at {count:,} steps, tokenising included, CPU ms", f"{asking * 1e3:.2f}", "")
    kept = {"in memory only": float(np.median([cpu(lambda one=one: mirror.add(one)) for one in more]))}
    with (
        tempfile.TemporaryDirectory() as folder,
        ChromaStore.open(Path(folder, "chroma")) as chroma,
        SqliteStore.from_conn_string(str(Path(folder, "store.db"))) as sqlite,
    ):
        sqlite.setup()
        for name, store in (("durable, SQLite", sqlite), ("durable, Chroma", chroma)):
            memory = Experiences(RecordStore(store, ("bench",), Trajectory), tokens=words)
            memory.neighbours(state, K, **scope)  # from now on its index grows with every episode
            kept[name] = float(np.median([cpu(lambda one=one, memory=memory: memory.add(one)) for one in more]))
    for name, seconds in kept.items():
        report(
            "5", f"a new step of a 50-step episode, tokenising included, {name}; CPU us", f"{seconds / 50 * 1e6:.1f}", "<= 30"
        )
    vectors = draw.random((count, 1536), dtype=np.float32)
    records = [
        {"state": s.state, "action": s.action, "reward": s.reward, "episode": e.episode} for e in first for s in e.transitions
    ]
    with tempfile.TemporaryDirectory() as folder:

        def rewrite() -> None:
            for name in ("history", "state"):
                vectors.tofile(Path(folder, name))
            with Path(folder, "records").open("wb") as file:
                pickle.dump(records, file)

        rewriting = cpu(rewrite)
    for name, seconds in kept.items():
        report(
            "6",
            f"store 50 steps, {name}: speed-up over rewriting everything at {count:,} ({rewriting * 1e3:,.0f} ms)",
            f"{rewriting / seconds:,.0f}x",
            ">= 500x",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    counts = parser.parse_args().rows
    draw = np.random.default_rng(0)
    report("row", "", "measured", "target")
    for count in counts:
        retrieval(count, draw)
    against_scanning(min(min(counts), 100_000), draw)
    storing(min(min(counts), 100_000), draw)


if __name__ == "__main__":
    main()
