"""Synapse in an agent of LangChain: successful conversations as exemplars in the system message."""

import help_desk as desk
from help_desk import play
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from learning_agents import PLAIN, advice, make

from learngraph.graphs.baselines.synapse import Synapse


def test_only_conversations_that_went_well_are_exemplars_and_all_calls_of_a_turn_have_the_same() -> None:
    agent, learner, model = make("synapse", state_key=desk.issue, settings=Synapse(k=3))
    rewards = play(agent, learner, range(0, 80, 4))
    well = {f"t{4 * n}/0" for n, reward in enumerate(rewards) if reward}
    entries = advice(learner, "t76")
    assert len(entries) == 3
    assert len(entries[0]["recalled"]) == 3
    assert set(entries[0]["recalled"]) <= well
    assert [entry["recalled"] for entry in entries] == [entries[0]["recalled"]] * 3
    assert entries[0]["tokens"] > 0
    assert len(set(model.seen[-3:])) == 1, "the system message of a turn stays, for prefix caches"


def test_feedback_within_a_turn_changes_no_exemplars_and_forgetting_takes_them_out() -> None:
    from langchain_core.tools import tool

    store = InMemoryStore()
    agent, learner, model = make("synapse", store, state_key=desk.issue, refresh_seconds=0.0)
    play(agent, learner, range(0, 24, 4))

    @tool
    def lookup_order(order: str) -> str:
        """Look an order up."""
        learner.forget(tenant="acme")
        return f"order {order}: shipped"

    agent = create_agent(model, [lookup_order, desk.resolve], middleware=[learner], checkpointer=InMemorySaver())
    play(agent, learner, range(24, 25))
    assert [bool(entry["recalled"]) for entry in advice(learner, "t24")] == [True, False, False]


def test_what_is_not_alike_is_no_exemplar_and_it_says_how_near_it_was() -> None:
    agent, learner, model = make("synapse", state_key=desk.issue, settings=Synapse(outcomes="all"), min_similarity=0.9)
    play(agent, learner, range(2))
    first = advice(learner, "t1")[0]
    assert first["recalled"] == []
    assert 0 < first["nearest"] < 0.9
    assert "nothing was alike enough" in learner.explain("t1", tenant="acme")
    assert set(model.seen) == {PLAIN}
