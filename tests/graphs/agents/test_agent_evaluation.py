"""An agent that learns is told from one that does not, by the same tasks in the same orders."""

from typing import Any

import help_desk as desk
import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from learngraph.graphs.agents.evaluation import AgentArm, AgentTask, LearningReport, TaskResult, evaluate_learning
from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.experiments.agent_curves import block_means, draw_agent_curves
from learngraph.memory.errors import UserError
from learngraph.memory.records import Usage

TASKS = [AgentTask(f"ticket-{n}", desk.ticket(n)[0], desk.ticket(n)[1]) for n in range(40)]


def make_agent(middleware: Any, seed: int) -> Any:
    tools = [desk.lookup_order, desk.resolve]
    return create_agent(desk.GuessingClerk(seed=seed), tools, middleware=middleware, checkpointer=InMemorySaver())


def reward(task: AgentTask, messages: Any) -> float:
    return desk.reward(messages, task.reference)


def learner(store: Any) -> JitRLMiddleware:
    return JitRLMiddleware(store, decide=["resolve"], state_key=desk.issue)


@pytest.mark.slow
def test_an_arm_that_learns_is_ahead_and_one_with_shuffled_rewards_is_not() -> None:
    arms = {
        "none": None,
        "jitrl": learner,
        "shuffled": learner,
        "observe": lambda store: JitRLMiddleware(store, decide=["resolve"], mode="observe"),
    }
    report = evaluate_learning(make_agent, TASKS[:32], reward, arms=arms, seeds=2, shuffled=["shuffled"])
    none, jitrl, shuffled, observe = report.arms
    assert jitrl.lead > 0.25
    assert jitrl.lead_ci is not None
    assert jitrl.last > 0.7 > shuffled.last, "it overrules no clerk on a case or two, and explores no customer"
    assert (observe.last, observe.lead) == (none.last, 0.0), "the control arm's agent says what it says without one"
    assert none.first == pytest.approx(0.25, abs=0.2)
    assert not observe.harmed
    assert len(report.results) == 4 * 2 * 32
    assert "| jitrl " in report.table()
    assert "| shuffled (shuffled rewards) |" in report.table()
    orders = {(one.arm, one.seed): [] for one in report.results}
    for one in report.results:
        orders[one.arm, one.seed].append(one.task)
    assert orders["none", 1] == orders["jitrl", 1] != orders["none", 0]


def test_anybodys_memory_is_an_arm_and_what_fails_is_counted() -> None:
    class Notes:
        def __init__(self, seed: int) -> None:
            self.known: dict[str, str] = {}

        def invoke(self, input: Any, config: Any) -> Any:
            if "A7 " in input["messages"]:
                raise ConnectionError("away")
            how = next((how for kind, how in self.known.items() if kind in input["messages"]), "refund")
            return {"messages": [desk.GuessingClerk().say([desk.HumanMessage("hello")]), how]}

    def learn(agent: Notes, task: AgentTask, messages: Any, reward: float | None) -> None:
        agent.known[task.reference] = desk.RIGHT[task.reference]

    def right(task: AgentTask, messages: Any) -> float:
        return float(isinstance(messages[-1], str) and messages[-1] == desk.RIGHT[task.reference])

    arms = {"notes": AgentArm(Notes, learn), "no notes": AgentArm(Notes)}
    report = evaluate_learning(make_agent, TASKS, right, arms=arms, seeds=2)
    notes, without = report.arms
    assert notes.last > without.last
    assert (notes.failures, without.failures) == (2, 2)
    assert without.harmed
    assert any("ConnectionError: away" in one.failure for one in report.results)


@pytest.mark.parametrize(
    ("tasks", "shuffled", "says"),
    [([], (), "one task or more"), ([TASKS[0], TASKS[0]], (), "an id of its own"), (TASKS, ["other"], "the arms are none")],
)
def test_mistakes_are_sentences(tasks: Any, shuffled: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        evaluate_learning(make_agent, tasks, reward, arms={"none": None}, shuffled=shuffled)


def test_learning_curves_are_means_of_blocks_with_intervals_over_seeds() -> None:
    rewards = {("none", 0): [0.0, 0.0, 1.0, 0.0, 1.0], ("none", 1): [1.0, 0.0, 0.0, 0.0, 0.0]}
    rewards |= {("learner", 0): [0.0, 1.0, 1.0, 1.0, 1.0], ("learner", 1): [0.0, 0.0, 1.0, None, 1.0]}
    report = LearningReport(
        tuple(
            TaskResult(arm, seed, place, f"t{place}", reward, Usage(), 0.0)
            for (arm, seed), row in rewards.items()
            for place, reward in enumerate(row)
        ),
        part=0.4,
        pass_reward=1.0,
    )
    assert block_means(report, "learner", 2) == [[0.5, 0.0], [1.0, pytest.approx(2 / 3)]], "the fifth task is in the last block"
    (axes,) = draw_agent_curves(report, block=2, title="two arms").figure.axes
    assert [line.get_label() for line in axes.lines] == ["none", "learner"]
    assert axes.lines[1].get_ydata().tolist() == [0.25, pytest.approx(5 / 6)]
    assert len(axes.collections) == 2, "a band an arm"
    assert draw_agent_curves(report, block=2)._repr_png_().startswith(b"\x89PNG")
    for block in (0, 6):
        with pytest.raises(UserError, match=f"at most the 5 of a seed; got {block}"):
            block_means(report, "none", block)
