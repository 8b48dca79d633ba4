"""Memory, Reflexion, AWM and EvoTest over the tasks of a world: what one task left is shown at the next."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from acting_agent import ActingAgent as Agent
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.arms import make_arm
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.attempts.buffer import Buffer
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Shown, Task, Trajectory
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore
from learngraph.nodes.retrieve.attempts import Compose, note_line


class Door:
    """Doors that open at the second word."""

    name, horizon, solved, instant = "doors", 3, 1.0, True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        over = len(actions) >= self.horizon
        return Observation("A closed door.", () if over else ("knock", "wait"), 0.5 * over, over)

    def abstract(self, observation: Observation) -> str:
        return observation.text


RED, BLUE, WALL = (Task(words.split()[-2], words) for words in ("open the red door", "open the blue door", "paint all walls"))


def first_prompts(method: str, write: Callable[[int], str], plays: Sequence[Task]) -> list[str]:
    """The first prompt of each attempt; a task's attempts are those of a run, and all runs share a store."""
    records, arm, found = RecordStore(InMemoryStore(), ("m",), Trajectory), make_arm(method), list[str]()
    agent, made = Agent(act=lambda asked: "knock", write=write), dict[str, int]()
    for task in plays:
        graph = arm.method.build(MethodInputs.with_chat_model(Door(), Journal(), agent, records=records), arm.settings)
        episode = made[task.id] = made.get(task.id, -1) + 1
        before, ends = len(agent.acted), plays.count(task)
        graph.invoke({"task": task, "run": task.id, "episode": episode, "episodes": ends})
        found.append(agent.acted[before])
    return found


@pytest.mark.parametrize(
    ("method", "write", "left"),
    [
        ("memory", str, "Its task: {task}\n"),
        ("reflexion", "Plan: idea {}".format, "- (at another task: {task}) idea {n}\n"),
        ("awm?success_threshold=1", "Workflows:\nWay {}:\n1. knock".format, "Way {n}:\n1. knock\n"),
        ("evotest", '{{"guide": "guide {}", "examples": 0}}'.format, "<guide>\nguide {n}\n</guide>\n"),
    ],
)
def test_what_a_task_left_is_shown_at_another_one(method: str, write: Callable[[int], str], left: str) -> None:
    """Also what its last attempt left: no attempt of its own would read it."""
    plays, of_red = [RED, BLUE, BLUE], left.format(task=RED.instruction, n=0)
    ask = "&" if "?" in method else "?"
    alone = first_prompts(method, write, [RED, BLUE])
    assert of_red not in alone[1]
    name = method.replace("success_threshold=1", "success_threshold=0.5")
    shared = first_prompts(f"{name}{ask}cross_task=true", write, plays)
    assert of_red not in shared[0]
    assert of_red in shared[1]
    own = "idea 1" if method == "reflexion" else left.format(task=BLUE.instruction, n=1)
    assert own in shared[2]
    cold = first_prompts(f"{name}{ask}cross_task=true&only_other_tasks=true", write, plays)
    assert of_red in cold[1]
    assert of_red in cold[2]
    assert own not in cold[2]
    with pytest.raises(UserError, match="only_other_tasks=True recalls nothing without cross_task"):
        make_arm(f"{method}{ask}only_other_tasks=true")


def test_workflows_of_the_tasks_most_like_this_one_come_first() -> None:
    buffer = Buffer(shared_by="doors")
    for number, task in enumerate((RED, WALL)):
        buffer.add(Trajectory(f"r{number}/0", task, (), f"r{number}", domain="doors", note="a " * 40))
    state: Any = {"task": BLUE, "run": "r2", "episode": 0, "observation": Observation("A closed door.", ())}

    def shown(**more: Any) -> list[Shown]:
        return Compose(buffer, note_line, len, window=300, keep="all", **more)(state)["shown"]

    assert shown(by_task=True) == [Shown("r0/0")]  # there is room for one
    assert shown() == [Shown("r1/0")]  # the newest
    assert buffer.attempt("r2", "blue", 0, "r0/0") is not None
    assert buffer.attempts("r1", "walls", 0) == [buffer.attempt("r2", "blue", 0, "r0/0")]
