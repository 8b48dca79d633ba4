"""Scores of a random player and of the gold path, and the time of a step, for each environment.

    python tests/performance/bench_environments.py [SPEC ...] [--tasks 40] [--episodes 5]

Random is uniform over the admissible actions of the first tasks of the split `test`; the error is the standard error over
tasks. A step's time is that of `observe` with the history grown by one action, other work on the machine included.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.text_world_express import GAMES

SPECS = ("toy", *(f"twx:{game}" for game in GAMES))


def measure(spec: str, tasks: int, episodes: int) -> str:
    """One row of the table."""
    env = open_environment(spec)
    means, gold, best, steps, seconds = [], [], [], 0, 0.0
    for task in (env.task(n) for n in range(tasks)):
        gold.append(len(env.gold(task)))
        best.append(env.optimum(task))
        scores = []
        for episode in range(episodes):
            draw, actions, score = random.Random(f"{task.id}/{episode}"), [], 0.0
            start = time.perf_counter()
            shown = env.observe(task, actions)
            while not shown.over:
                actions.append(draw.choice(shown.actions))
                shown = env.observe(task, actions)
                score += shown.reward
            seconds += time.perf_counter() - start
            steps += len(actions)
            scores.append(score)
        means.append(statistics.fmean(scores))
    env.close()
    error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else float("nan")
    return (
        f"| {spec} | {statistics.fmean(means):.3f} ({error:.3f}) | {statistics.fmean(best):.3f} | "
        f"{statistics.fmean(gold):.1f} ({max(gold)}) | {steps / tasks / episodes:.1f} | {1000 * seconds / steps:.2f} |"
    )


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--episodes", type=int, default=5)
    given = parser.parse_args()
    print("| environment | random (error) | gold | its steps, mean (most) | random's steps | ms per step |")
    print("|---|---|---|---|---|---|")
    for spec in given.specs:
        print(measure(spec, given.tasks, given.episodes), flush=True)


if __name__ == "__main__":
    main()
