"""The checks that environments share."""

import pytest

from learngraph.memory.errors import UserError
from learngraph.memory.records import Task
from learngraph.tools.environments.support.arguments import (
    check_actions,
    check_horizon,
    check_settings,
    check_split,
    check_step,
    pick_task,
)

TASK = Task("puzzle-3", "solve it", 3)


def test_a_task_is_picked_by_its_place_in_the_split() -> None:
    splits = {"train": range(10, 20), "dev": (), "test": (7, 9)}
    assert (pick_task("w", splits, "train", 3), pick_task("w", splits, "test", 1)) == (13, 9)
    with pytest.raises(UserError, match="w: no split 'best'; there are train, dev, test"):
        pick_task("w", splits, "best", 0)
    with pytest.raises(UserError, match=r"w: test has tasks 0 to 1, got 2 \(of 5 rows\)"):
        pick_task("w", splits, "test", 2, " (of 5 rows)")
    with pytest.raises(UserError, match="w: test has tasks 0 to 1, got -1"):
        pick_task("w", splits, "test", -1)
    with pytest.raises(UserError, match="w: dev has no tasks, got 0"):
        pick_task("w", splits, "dev", 0)


def test_settings_horizon_and_split_are_checked() -> None:
    check_settings("w:", {"size": "3"}, ("size", "seed"))
    check_horizon("w", 1)
    check_split("w", "dev")
    with pytest.raises(UserError, match="w: no setting 'sise'; it has size, seed"):
        check_settings("w:", {"sise": "3"}, ("size", "seed"))
    with pytest.raises(UserError, match="w: no setting 'a'; it has none"):
        check_settings("w:", ["a"], ())
    with pytest.raises(UserError, match="w: horizon must be at least 1, got 0"):
        check_horizon("w", 0)
    with pytest.raises(UserError, match="w: no split 'best'; there are train, dev, test"):
        check_split("w", "best")


def test_actions_are_texts_and_end_with_the_episode() -> None:
    check_actions("w", ["go"])
    check_step("w", TASK, 0, "go", over=False)
    check_step("w", TASK, 0, " ", over=False, empty=True)
    with pytest.raises(UserError, match="w: actions must be a sequence of strings, got the string 'go'"):
        check_actions("w", "go")
    with pytest.raises(UserError, match="w: step 4 of puzzle-3: the action must be a text, got ' '"):
        check_step("w", TASK, 4, " ", over=False)
    with pytest.raises(UserError, match="w: puzzle-3 was over after 4 steps, got one more action: 'go'"):
        check_step("w", TASK, 4, "go", over=True)
