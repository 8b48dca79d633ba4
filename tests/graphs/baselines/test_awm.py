"""AWM: workflows are written after attempts, and read before later ones."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from acting_agent import ActingAgent as Agent
from killed_runs import play_past_deaths

from learngraph.graphs.baselines import awm
from learngraph.graphs.baselines.awm import WorkflowMemory
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.memory.storage.journal import Journal


class Door:
    """A door that opens at a word."""

    name, horizon, solved, instant = "door", 3, 1.0, True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        won = bool(actions) and actions[-1] == "say friend"
        over = won or len(actions) >= self.horizon
        return Observation("A closed door.", () if over else ("knock", "say friend", "wait"), float(won), over)

    def abstract(self, observation: Observation) -> str:
        return observation.text


TASK = Task("door", "get in")


def play(agent: Agent, episodes: int, settings: WorkflowMemory | None = None, **more: Any) -> Any:
    """The attempts one after the other."""
    inputs = MethodInputs.with_chat_model(Door(), Journal(), agent, **more)
    graph = awm.build(inputs, settings)
    out: Any = None
    for episode in range(episodes):
        out = graph.invoke({"task": TASK, "run": "r", "episode": episode, "episodes": episodes})
    return out


def workflows(prompt: str) -> str:
    found = re.search(r"<workflows>\n(.*?)</workflows>", prompt, flags=re.DOTALL)
    return found[1] if found else ""


def test_a_success_teaches_and_a_failure_does_not() -> None:
    actions = iter([*["knock"] * 3, *["say friend"] * 2, *["knock"] * 6])  # the second and the third attempt succeed at once
    agent = Agent(act=lambda asked: next(actions), write=lambda n: f"Workflows:\nWay {n}:\n1. say friend")
    play(agent, 5)
    assert len(agent.wrote) == 2
    assert "Reward: 1" in agent.wrote[0]
    first_of = [0, 3, 4, 5, 8]  # the first prompt for an action in each attempt
    assert [workflows(agent.acted[at]) for at in first_of] == [
        "",
        "",
        "Way 0:\n1. say friend\n",
        "Way 0:\n1. say friend\n\nWay 1:\n1. say friend\n",
        "Way 0:\n1. say friend\n\nWay 1:\n1. say friend\n",
    ]
    assert workflows(agent.wrote[1]) == "Way 0:\n1. say friend\n"  # the writer knows what the list has
    assert "workflows in front" in agent.acted[4]
    assert "workflows in front" not in agent.acted[0]


def test_what_the_list_has_already_is_not_added() -> None:
    said = ["Workflows:\nWay", "Workflows: none", "**Workflows:**\nWay"]
    agent = Agent(act=lambda asked: "say friend", write=lambda n: said[n])
    play(agent, 4)
    assert [workflows(prompt) for prompt in agent.acted] == ["", "Way\n", "Way\n", "Way\n"]


def test_rewriting_keeps_one_text_and_learns_from_every_attempt() -> None:
    agent = Agent(act=lambda asked: "knock", write=lambda n: f"Nothing opened.\nWorkflow:\n1. version {n}\n2. wait")
    play(agent, 4, WorkflowMemory(variant="rewrite"))
    assert len(agent.wrote) == 3  # nobody would read what the last attempt teaches
    assert [workflows(agent.acted[3 * e]) for e in range(4)] == ["", *(f"1. version {n}\n2. wait\n" for n in range(3))]
    assert [workflows(prompt) for prompt in agent.wrote] == ["", "1. version 0\n2. wait\n", "1. version 1\n2. wait\n"]
    assert "Result: no success" in agent.wrote[0]


def test_a_reply_that_cannot_be_used_leaves_the_old_text() -> None:
    agent = Agent(act=lambda asked: "knock", write=lambda n: "Workflow:\n1. first" if n == 0 else "I would rather not.")
    out = play(agent, 3, WorkflowMemory(variant="rewrite"))
    assert workflows(agent.acted[-1]) == "1. first\n"
    assert out["usage"].unreadable == 0
    assert len(agent.wrote) == 1 + 3


def test_the_last_attempt_of_a_run_asks_for_nothing() -> None:
    agent = Agent(act=lambda asked: "say friend", write=lambda n: "Workflows:\nWay")
    play(agent, 1)
    assert agent.wrote == []


def test_a_long_text_is_cut_at_a_line_and_never_ends_a_run() -> None:
    long = "\n".join(f"{n}. say friend to the door" for n in range(2000))
    agent = Agent(act=lambda asked: "knock", write=lambda n: f"Workflow:\n{long}")
    play(agent, 2, WorkflowMemory(variant="rewrite"), window=1500)
    shown = workflows(agent.acted[-1])
    assert shown.startswith("0. say friend")
    assert shown.endswith("to the door\n")
    assert len(shown) < len(long) / 10
    tiny = Agent(act=lambda asked: "knock", write=lambda n: "Workflow:\n" + "word " * 9000)
    play(tiny, 2, WorkflowMemory(variant="rewrite"), window=700)  # a single line is cut at a word
    assert workflows(tiny.acted[-1]).startswith("word word")


def test_many_workflows_leave_the_oldest_out() -> None:
    agent = Agent(act=lambda asked: "say friend", write=lambda n: f"Workflows:\nWay {n}: " + "say friend " * 60)
    play(agent, 12, window=1200, reserved_tokens=100)
    numbers = [int(n) for n in re.findall(r"Way (\d+):", workflows(agent.acted[-1]))]
    assert numbers == [*range(numbers[0], 11)]
    assert 0 < numbers[0] < 10


def test_an_unknown_success_is_asked_for() -> None:
    class Open(Door):
        solved: Any = None

    agent = Agent(act=lambda asked: "wait", write=lambda n: "")
    with pytest.raises(UserError, match=r"awm: which return is a success\? door does not say it; .* awm\?variant=rewrite"):
        awm.build(MethodInputs.with_chat_model(Open(), Journal(), agent))
    awm.build(MethodInputs.with_chat_model(Open(), Journal(), agent), WorkflowMemory(variant="rewrite"))
    awm.build(MethodInputs.with_chat_model(Open(), Journal(), agent), WorkflowMemory(success_threshold=0.5))
    with pytest.raises(UserError, match="a uniform prior only picks actions"):
        awm.build(MethodInputs(Door()))


def test_a_run_that_was_killed_while_writing_goes_on_as_if_it_had_not() -> None:
    def played(fails_at: int) -> tuple[list[str], Any]:
        agent = Agent(act=lambda asked: "say friend", write=lambda n: "Workflow:\n1. say friend", fails_at=fails_at)

        def make(journal: Journal, records: Any) -> Any:
            inputs = MethodInputs.with_chat_model(Door(), journal, agent, records=records)
            return awm.build(inputs, WorkflowMemory(variant="rewrite"))

        scores = play_past_deaths(make, TASK, 3)["scores"]
        return [workflows(prompt) for prompt in agent.acted], scores

    assert played(fails_at=1) == played(fails_at=-1)


@pytest.mark.slow
def test_pocket_writes_lessons_and_reads_them() -> None:
    """It writes one line after each attempt; with those lines it ends higher than without."""
    from learngraph.graphs.baselines import static
    from learngraph.tools.environments.keyword_keep import KeywordKeep
    from learngraph.tools.models.models import open_model

    world, pocket = KeywordKeep(), open_model("pocket", threads=1)

    def final(build: Any, settings: Any) -> float:
        ends = []
        for seed in range(2):
            graph = merge_steps(build(MethodInputs.with_scoring_model(world, Journal(), pocket), settings))  # type: ignore[arg-type]
            plan = {"task": world.task(seed), "run": f"r{seed}", "episode": 0, "episodes": 8}
            ends += run.build(graph).invoke(plan)["scores"][-3:]
        return sum(ends) / len(ends)

    assert final(awm.build, WorkflowMemory(variant="rewrite")) > final(static.build, None) + 1
