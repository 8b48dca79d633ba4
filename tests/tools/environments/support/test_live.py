"""The pool of live games: what it replays, what it keeps, and what it does when a game dies."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.support.live import LiveGames

TASK = Task("count-0", "count", 0)


@dataclass
class Counting:
    """A game that shows the actions so far; dies when its world says so."""

    world: World
    history: list[str] = field(default_factory=list)
    closed: bool = False

    def step(self, action: str) -> Observation:
        assert not self.closed
        self.world.steps += 1
        if self.world.deaths and action == "risk":
            self.world.deaths -= 1
            raise ConnectionError("the machine is gone")
        self.history.append(action)
        return Observation(" ".join(self.history), ("go", "risk"), reward=1.0)

    def close(self) -> None:
        self.closed = True


@dataclass
class World:
    deaths: int = 0
    steps: int = 0
    games: list[Counting] = field(default_factory=list)

    def start(self, task: Task) -> tuple[Counting, Observation]:
        self.games.append(Counting(self))
        return self.games[-1], Observation("", ("go", "risk"))

    def pool(self, **settings: int) -> LiveGames:
        return LiveGames("count", self.start, horizon=5, **settings)


def test_growing_a_history_steps_once_and_repeating_it_not_at_all() -> None:
    world = World()
    pool = world.pool()
    for n in range(5):
        assert pool.observe(TASK, ["go"] * n).text == " ".join(["go"] * n)
        assert pool.observe(TASK, ["go"] * n).text == " ".join(["go"] * n)
    assert (world.steps, len(world.games)) == (4, 1)


def test_a_fork_replays_in_another_game() -> None:
    world = World()
    pool = world.pool()
    pool.observe(TASK, ["go", "go", "go"])
    assert pool.observe(TASK, ["go", "risk"]).text == "go risk"
    assert pool.observe(TASK, ["go", "go", "go", "go"]).text == "go go go go"
    assert (world.steps, len(world.games)) == (3 + 2 + 1, 2)


def test_the_oldest_game_is_closed_when_the_pool_is_full() -> None:
    world = World()
    pool = world.pool(size=2)
    for first in (["go"], ["risk"], ["go", "go", "go"], ["risk", "risk"]):
        pool.observe(Task(f"count-{first}", "", 0), first)
    assert [game.closed for game in world.games] == [True, True, False, False]
    pool.close()
    assert all(game.closed for game in world.games)


def test_a_game_that_dies_is_replaced_by_replay() -> None:
    world = World(deaths=1)
    pool = world.pool()
    pool.observe(TASK, ["go", "go"])
    assert pool.observe(TASK, ["go", "go", "risk"]) == Observation("go go risk", ("go", "risk"), 1.0)
    assert [game.closed for game in world.games] == [True, False]


def test_a_game_that_dies_twice_is_reported_with_its_cause() -> None:
    world = World(deaths=2)
    pool = world.pool()
    with pytest.raises(
        UserError, match=r"count: the game of count-0 died twice at step 1 \('risk'\): ConnectionError: the machine is gone"
    ) as raised:
        pool.observe(TASK, ["go", "risk"])
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert all(game.closed for game in world.games)
    assert pool.observe(TASK, ["go", "risk"]).text == "go risk"  # and it works when the trouble is over


def test_a_refused_action_costs_nothing() -> None:
    world = World()
    pool = world.pool()
    pool.observe(TASK, ["go"])
    with pytest.raises(UserError, match=r"count: 'stop' is not admissible at step 1 of count-0: choose one of go, risk"):
        pool.observe(TASK, ["go", "stop"])
    assert pool.observe(TASK, ["go", "go"]).text == "go go"
    assert (world.steps, len(world.games)) == (2, 1)


def test_the_horizon_ends_the_episode_and_nothing_follows() -> None:
    pool = World().pool()
    assert pool.observe(TASK, ["go"] * 5) == Observation("go go go go go", (), 1.0, over=True)
    with pytest.raises(UserError, match="count-0 was over after 5 steps, got one more action: 'go'"):
        pool.observe(TASK, ["go"] * 6)


def test_free_text_games_take_any_text_but_an_empty_one() -> None:
    world = World()
    pool = LiveGames("count", world.start, 5, free_text=True)
    assert pool.observe(TASK, ["sing"]).text == "sing"
    with pytest.raises(UserError, match="must be a text, got ' '"):
        pool.observe(TASK, ["sing", " "])
