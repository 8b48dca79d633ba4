"""The checklist: one reading call at a time, a change is looked at, and the environment's scores stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.support.checklist import Checklist, informative_calls


class Lamps:
    """Two lamps: the task's seed says which are off; each can be looked at and switched. Every lamp that is on at the end pays 1."""

    name, horizon = "lamps", 9

    def task(self, seed: int, split: str = "test") -> Task:
        return Task(f"lamps-{seed}", "Switch them on.", seed)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        lamps, answer = [task.seed % 2, task.seed // 2], ""
        for action in actions:
            name, _, number = action.strip("()").partition("(")
            if name == "switch":
                lamps[int(number)] = 1 - lamps[int(number)]
            answer = (
                "ok" if name == "switch" else "a lamp" if name == "count" else f"{'on' if lamps[int(number or 0)] else 'off'}"
            )
        over = bool(actions) and (actions[-1] == "done()" or len(actions) == self.horizon)
        listed = ("count()", "done()", "look(0)", "look(1)", "switch(0)", "switch(1)")
        reward = float(sum(lamps)) if actions and actions[-1] == "done()" else 0.0
        return Observation(f"Ticket: lamps\n\n{answer}" if actions else "Ticket: lamps", () if over else listed, reward, over)

    def only_reads(self, action: str) -> bool:
        return action.startswith(("look", "count"))

    def closing_call(self, task: Task, text: str) -> str:
        return "done()"

    def answer(self, observation: Observation) -> str:
        return observation.text.partition("\n\n")[2]


def test_a_change_is_looked_at_and_the_score_is_that_of_the_environment() -> None:
    tools = Lamps()
    world, task = Checklist(tools, ("look(0)", "look(1)")), tools.task(2)  # the first lamp is off
    assert world.observe(task, ()) == Observation("Ticket: lamps", ("look(0)",), 0.0, False)
    shown = world.observe(task, ["look(0)"])
    assert shown.text == world.abstract(shown) == "Ticket: lamps\nlook(0) says:\noff"
    assert shown.actions == ("look(1)", "switch(0)", "switch(1)")
    assert world.observe(task, ["look(0)", "switch(0)"]).text.endswith("look(0) says:\non")
    last = world.observe(task, ["look(0)", "switch(0)", "look(1)"])
    assert last.actions == ("done()", "switch(0)", "switch(1)")
    over = world.observe(task, ["look(0)", "switch(0)", "look(1)", "done()"])
    assert (over.reward, over.over, over.actions) == (2.0, True, ())


def test_repeated_looks_count_towards_the_step_limit() -> None:
    tools = Lamps()
    world, task = Checklist(tools, ("look(0)", "look(1)")), tools.task(0)
    steps = ["look(0)", *["switch(0)"] * 4]  # 1 + 4 * 2 calls
    assert [world.observe(task, steps[:n]).over for n in range(6)] == [False] * 5 + [True]


def test_a_history_is_answered_from_any_point() -> None:
    tools = Lamps()
    one, other = Checklist(tools, ("look(0)",)), Checklist(tools, ("look(0)",))
    task, steps = tools.task(1), ["look(0)", "switch(1)", "done()"]
    forwards = [one.observe(task, steps[:n]) for n in range(4)]
    backwards = [other.observe(task, steps[:n]) for n in reversed(range(4))][::-1]
    assert forwards == backwards


def test_the_calls_that_tell_tasks_apart() -> None:
    tools = Lamps()
    assert informative_calls(tools, [tools.task(n) for n in (0, 1)]) == ("look(0)",)
    assert informative_calls(tools, [tools.task(n) for n in (0, 2)]) == ("look(1)",)
    assert informative_calls(tools, [tools.task(0)]) == ()


def test_a_checklist_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="at least one reading call, got none"):
        Checklist(Lamps(), ())
