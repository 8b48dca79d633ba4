"""An agent of LangChain as a method: it plays a world's tool calls, and its middleware learns from tasks of the train fold."""

from collections import defaultdict
from itertools import count
from typing import Literal

import pytest
from langchain.agents import create_agent
from langgraph.store.memory import InMemoryStore
from telecom_experts import Expert, expert_plan
from worlds_here import needs

from learngraph.graphs.agents.agent_method import LearningAgent, build, open_learner, teach
from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.storage.cache import Cache
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.cached_model import CachedChatModel
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.tau2_bench import TauBench
from learngraph.tools.models.random_tools import HeedfulToolModel


@needs("tau2")
@pytest.mark.slow
def test_a_middleware_is_told_what_the_train_tasks_earned_and_the_journal_has_each_call() -> None:
    world, settings, journal = TauBench(), LearningAgent(learner="synapse", problems=1), Journal()
    train, test = world.task(0, "train"), world.task(0)
    learner = open_learner(settings, world, train, None)
    inputs = MethodInputs(environment=world, journal=journal, model=Expert(plan=expert_plan(world, train)))
    assert list(teach(build(inputs, settings, learner=learner), learner, [train], "s0", shuffled=False)) == [1.0]
    assert learner.status().rated == 1
    (told,) = learner.export()
    assert [rating["reward"] for rating in told["ratings"]] == [1.0]
    graph = build(MethodInputs(environment=world, journal=journal, model=Expert(plan=expert_plan(world, test))), settings)
    out = graph.invoke({"task": test, "run": "s0/test", "episode": 0})
    assert out["score"] == 1.0
    assert [step.action for step in journal.history(out["head"])] == [*map(str, expert_plan(world, test))]
    assert learner.status().rated == 1


def test_a_world_without_tools_and_a_learner_that_there_is_not_are_refused() -> None:
    with pytest.raises(UserError, match="plays by tool calls, and toy has none: take tau2:telecom"):
        build(MethodInputs(environment=KeywordKeep()))
    with pytest.raises(UserError, match="there is no 'synaps'; did you mean synapse"):
        LearningAgent(learner="synaps")


def test_jitrl_weighs_several_draws_of_a_cached_model() -> None:
    def resolve(how: Literal["refund", "replace", "exchange"]) -> str:
        """Resolve the customer's issue."""
        return f"{how}: arranged"

    learner = JitRLMiddleware(InMemoryStore(), decide=["resolve"])
    model = CachedChatModel(HeedfulToolModel(seed=3), "heedful", Cache(), draws=defaultdict(count))
    agent = create_agent(model, [resolve], middleware=[learner])
    for n in range(6):
        out = agent.invoke({"messages": "My vase arrived in pieces"}, {"configurable": {"thread_id": f"t{n}"}})
        how = next(one.tool_calls[0]["args"]["how"] for one in out["messages"] if getattr(one, "tool_calls", None))
        learner.feedback(f"t{n}", reward=float(how == "replace"))
    assert how == "replace"
    assert "memory overruled 3 of 6 decisions" in str(learner.status())
