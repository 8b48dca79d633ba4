"""AdaMEM's retrieval: how often the precedents of a state hold what an expert does there next.

    learngraph adamem build --env alfworld --split train --tasks 50 --out bank.jsonl
    learngraph adamem build --env alfworld --split test --tasks 140 --out asked.jsonl
    python tests/performance/bench_adamem_retrieval.py bank.jsonl asked.jsonl [--k 4]

The bank is searched at every step of the other file's trajectories, walkthroughs of tasks that it does not hold. A precedent is a hit
if its action is the expert's next one up to numbers, once the words of each task's goal are named alike: its last word (the place of
things in ALFWorld) and the others. So `clean mug 1 with sink 2` is a hit where a plate is to be cleaned and the mug was. First steps
count apart, since nothing has happened yet. A row is a setting; the first is the default. Nothing is asserted.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from learngraph.graphs.adamem import AdaMEM
from learngraph.graphs.wiring.banks import KEYS
from learngraph.memory.attempts.trajectories import Trajectories, read_bank
from learngraph.memory.records import Precedent, Trajectory
from learngraph.memory.search.similarity import JaccardSimilarity, shingles, words

_COMMON = frozenset(
    words("a an and at clean cool examine from hot heat in into it look move of on put some take the to two under with")
)


def slots(action: str, goal: str) -> str:
    """The action without numbers, and with the goal's words replaced by `place` for the last one and `thing` for others."""
    named = words(goal)
    kinds = {word: "thing" for word in named if word not in _COMMON} | {named[-1]: "place"}
    return " ".join(kinds.get(word, word) for word in words(re.sub(r"\d+", "", action)))


def task_type(trajectory: Trajectory) -> tuple[str, ...]:
    """The verbs of a walkthrough: tasks of one type have the same ones."""
    return tuple(sorted({words(step.action)[0] for step in trajectory.transitions} - {"go", "open", "close"}))


def measure(memory: Trajectories, asked: Sequence[Trajectory], settings: AdaMEM) -> str:
    """A row of the table: shares of later steps without a precedent, with a hit, with the nearest a hit; of like tasks at t = 0."""
    none = hits = nearest = later = like = found_at_start = 0
    for trajectory in asked:
        for t, step in enumerate(trajectory.transitions):
            found: list[Precedent] = memory.search(
                memory.key(trajectory.task, trajectory.transitions[:t], step.state),
                settings.k,
                min_similarity=settings.min_similarity,
                per_trajectory=settings.max_per_trajectory,
                distinct=settings.distinct,
                domain=trajectory.domain,
            )
            held = [(memory.trajectory(one.trajectory), one.step) for one in found]
            if not t:
                like += sum(task_type(source) == task_type(trajectory) for source, _ in held)
                found_at_start += len(held)
                continue
            next_action = slots(step.action, trajectory.task.instruction)
            right = [slots(source.transitions[at].action, source.task.instruction) == next_action for source, at in held]
            later, none, hits = later + 1, none + (not held), hits + any(right)
            nearest += bool(right) and right[0]
    return f"{none / later:>8.2f} {hits / later:>6.2f} {nearest / later:>8.2f} {like / max(found_at_start, 1):>10.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bank", type=Path)
    parser.add_argument("asked", type=Path)
    parser.add_argument("--k", type=int, default=4)
    options = parser.parse_args()
    bank, asked = read_bank(options.bank), read_bank(options.asked)
    usual, plain = AdaMEM(k=options.k), JaccardSimilarity(lambda goal, text: shingles(text))
    whole = replace(AdaMEM.paper_low(), k=options.k)
    rows = [
        ("default", usual, None),
        ("no least similarity", replace(usual, min_similarity=0.0), None),
        ("words as they are, at least 0.3", replace(usual, min_similarity=0.3), plain),
        ("words as they are, no least", replace(usual, min_similarity=0.0), plain),
        ("whole prompt (paper's key)", whole, plain),
    ]
    print(
        f"{len(bank)} trajectories in the bank, {sum(len(t.transitions) - 1 for t in asked)} later steps asked, k = {options.k}"
    )
    print(f"{'':34}{'nothing':>8} {'hit':>6} {'nearest':>8} {'like at t=0':>11}")
    for name, settings, similarity in rows:
        memory = Trajectories(bank=bank, key=KEYS[settings.retrieval_key], similarity=similarity)
        print(f"{name:34}{measure(memory, asked, settings)}", flush=True)


if __name__ == "__main__":
    main()
