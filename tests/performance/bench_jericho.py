"""Steps per second of one core's time in a game of Jericho through our environment, and without it.

    JERICHO_GAMES=DIR python tests/performance/bench_jericho.py [GAME ...] [--episodes 20]

`bare` does with the package alone what an agent of these games needs at every step: the action, `look` and `inventory` (taken back
again), the world's hash, and a list of actions by that hash. Both play the same random episodes twice; the second time, all lists are
known, and it counts. `step alone`: the package's step without any of that.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from typing import Any

from learngraph.memory.records import Task
from learngraph.tools.environments.jericho import Jericho, find_valid_actions

HORIZON = 60


def ours(env: Jericho, task: Task, episodes: int) -> tuple[float, list[list[str]]]:
    """Seconds of the processor, and the actions of each episode."""
    played, start = [], time.process_time()
    for episode in range(episodes):
        draw, actions = random.Random(episode), list[str]()
        shown = env.observe(task, actions)
        while not shown.over:
            actions.append(draw.choice(shown.actions))
            shown = env.observe(task, actions)
        played.append(actions)
    return time.process_time() - start, played


def bare(game: Any, lists: dict[str, tuple[str, ...]], played: list[list[str]]) -> float:
    """Seconds of the same episodes with the package alone."""
    start = time.process_time()
    for actions in played:
        game.reset()
        for action in [None, *actions]:
            if action is not None:
                game.step(action)
            if game.game_over() or game.victory():
                break
            state = game.get_state()
            texts = []
            for command in ("look", "inventory"):
                texts.append(game.step(command)[0])
                game.set_state(state)
            key = hashlib.md5("\n\n".join((game.get_world_state_hash(), *texts)).encode()).hexdigest()
            if key not in lists:
                lists[key] = find_valid_actions(game)
    return time.process_time() - start


def step_alone(game: Any, played: list[list[str]]) -> float:
    """Seconds of the steps alone."""
    start = time.process_time()
    for actions in played:
        game.reset()
        for action in actions:
            game.step(action)
    return time.process_time() - start


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", default=("zork1", "detective", "library"))
    parser.add_argument("--episodes", type=int, default=20)
    given = parser.parse_args()
    print(
        "| game | ours, steps/s | bare, steps/s | ours / bare | step alone, steps/s | first visits, steps/s |\n|---|---|---|---|---|---|"
    )
    for name in given.games:
        env = Jericho(name, {"seed": "0", "cache": "none"}, HORIZON, live=1)
        first, played = ours(env, env.task(0), given.episodes)
        game, lists = env._emulator(0), dict[str, tuple[str, ...]]()
        bare(game, lists, played)
        steps, rounds = sum(map(len, played)), range(3)
        mine = min(ours(env, env.task(n + 1), given.episodes)[0] for n in rounds)
        theirs = min(bare(game, lists, played) for _ in rounds)
        alone = min(step_alone(game, played) for _ in rounds)
        row = [f"{steps / seconds:.0f}" for seconds in (mine, theirs, alone, first)]
        print(f"| {name} | {row[0]} | {row[1]} | {theirs / mine:.2f} | {row[2]} | {row[3]} |", flush=True)
        env.close()


if __name__ == "__main__":
    main()
