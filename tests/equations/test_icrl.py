"""ICRL (arXiv:2506.06303): the return of an attempt, the best attempt, and the schedule of its instruction, by hand."""

from typing import Any

import pytest

from learngraph.memory.attempts.buffer import Buffer
from learngraph.memory.records import Observation, Shown, Task, Trajectory, Transition
from learngraph.nodes.retrieve.attempts import Compose, InstructionStrategy, Layout, instruction
from learngraph.nodes.retrieve.budget import all_attempts, best_attempt, select_within_budget


def attempt(episode: int, *rewards: float | None) -> Trajectory:
    steps = tuple(Transition(f"place {n}", f"go {episode}.{n}", reward) for n, reward in enumerate(rewards))
    return Trajectory(f"run/{episode}", Task("t", "do it"), steps, "run", episode)


@pytest.mark.parametrize(("rewards", "expected"), [((0.5, -1.0, 2.0), 1.5), ((0.0,), 0.0), ((), 0.0), ((1.0, None), None)])
def test_the_return_of_an_attempt_is_the_sum_of_its_rewards(rewards: tuple[float | None, ...], expected: float | None) -> None:
    """G = sum_t r_t, undiscounted; one unknown reward makes it unknown."""
    assert attempt(0, *rewards).value == expected


def test_the_best_attempt_has_the_highest_return_then_the_fewest_steps_then_came_first() -> None:
    """Returns 1, 3, 3, 3 and unknown, in 1, 3, 2, 2 and 1 steps."""
    attempts = [attempt(0, 1.0), attempt(1, 1.0, 1.0, 1.0), attempt(2, 2.0, 1.0), attempt(3, 1.0, 2.0), attempt(4, None)]
    assert best_attempt(attempts).episode == 2
    assert best_attempt(attempts[:2]).episode == 1
    assert best_attempt([attempt(0, None), attempt(1, None)]).episode == 1, "without any return the newest"
    assert best_attempt([attempt(0, -2.0), attempt(1, None)]).episode == 0, "any return is better than none"


@pytest.mark.parametrize(
    ("strategy", "one_based", "expected"),
    [
        ("preset", False, ["explore", "exploit", "explore", "exploit"]),
        ("preset", True, ["exploit", "explore", "exploit", "explore"]),
        ("autonomous", False, ["explore or exploit"] * 4),
        ("explore", False, ["explore"] * 4),
        ("exploit", True, ["exploit"] * 4),
        ("none", False, [""] * 4),
    ],
)
def test_the_schedule_of_the_instruction(strategy: InstructionStrategy, one_based: bool, expected: list[str]) -> None:
    """s_ICRL of rounds 0 to 3. The paper's Algorithm 1 counts from 1, its code from 0."""
    assert [instruction(strategy, round, one_based) for round in range(4)] == expected


def test_the_buffer_that_a_prompt_shows() -> None:
    """All attempts (the paper), the last two (its short context), or the best and the newest if there is room for two."""
    attempts = [attempt(0, 3.0), attempt(1, 1.0), attempt(2, 2.0)]
    assert all_attempts(attempts) == [Shown("run/0"), Shown("run/1"), Shown("run/2")]
    buffer = Buffer()
    for one in attempts:
        buffer.add(one)
    state: Any = {"task": attempts[0].task, "run": "run", "episode": 3, "observation": Observation("door black")}
    for keep, shown in (("all", [0, 1, 2]), ("last", [1, 2])):
        compose = Compose(buffer, Layout().attempt, count_tokens=len, window=4000, keep=keep, last=2)  # type: ignore[arg-type]
        assert compose(state)["shown"] == [Shown(f"run/{n}") for n in shown]

    def size(shown: Shown, trajectory: Trajectory) -> int:
        return 10

    assert select_within_budget(attempts, size, 30) == all_attempts(attempts)
    assert select_within_budget(attempts, size, 20) == [Shown("run/0"), Shown("run/2")]
