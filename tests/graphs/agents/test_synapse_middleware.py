"""Synapse in an agent of LangChain: successful conversations as exemplars in the system message."""

from __future__ import annotations

import asyncio
from typing import Any

import help_desk as desk
import pytest
from approved_prompts import assert_approved
from help_desk import HeedfulClerk
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.graphs.baselines.synapse import Synapse
from learngraph.memory.errors import UserError


def make(store: Any, **options: Any) -> tuple[Any, SynapseMiddleware, HeedfulClerk]:
    learner, model = SynapseMiddleware(store, **{"state_key": desk.issue, **options}), HeedfulClerk()
    tools = [desk.lookup_order, desk.resolve]
    return (
        create_agent(model, tools, system_prompt="You help customers.", middleware=[learner], checkpointer=InMemorySaver()),
        learner,
        model,
    )


def play(
    agent: Any, learner: Any, tickets: range, tenant: str = "acme", awaited: bool = False, words: tuple[str, str] = ("", "")
) -> list[float]:
    rewards = []
    for n in tickets:
        said, kind = desk.ticket(n)
        given = {"messages": said}, {"configurable": {"thread_id": f"t{n}", "tenant": tenant}}
        out = asyncio.run(agent.ainvoke(*given)) if awaited else agent.invoke(*given)
        rewards.append(desk.reward(out["messages"], kind))
        learner.feedback(f"t{n}", reward=rewards[-1], text=words[int(rewards[-1])], tenant=tenant)
    return rewards


def advice(learner: Any, thread: str) -> list[dict[str, Any]]:
    return list(learner.conversation(thread, tenant="acme").turns[-1].advice)


@pytest.mark.parametrize("awaited", [False, True])
def test_it_learns_from_feedback(awaited: bool) -> None:
    agent, learner, _ = make(InMemoryStore())
    rewards = play(agent, learner, range(48), awaited=awaited)
    assert rewards[-8:] == [1.0] * 8
    assert sum(rewards[:4]) < 4
    assert "exemplar t" in learner.explain("t47", tenant="acme")
    assert learner.status(tenant="acme").problems == ()


def test_only_conversations_that_went_well_are_exemplars_and_all_calls_of_a_turn_have_the_same() -> None:
    agent, learner, model = make(InMemoryStore(), settings=Synapse(k=3))
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
    agent, learner, model = make(store, refresh_seconds=0.0)
    play(agent, learner, range(0, 24, 4))

    @tool
    def lookup_order(order: str) -> str:
        """Look an order up."""
        learner.forget(tenant="acme")
        return f"order {order}: shipped"

    agent = create_agent(model, [lookup_order, desk.resolve], middleware=[learner], checkpointer=InMemorySaver())
    play(agent, learner, range(24, 25))
    assert [bool(entry["recalled"]) for entry in advice(learner, "t24")] == [True, False, False]


def test_observing_changes_nothing_in_the_request() -> None:
    agent, learner, model = make(InMemoryStore(), mode="observe")
    assert sum(play(agent, learner, range(24))[-12:]) < 12
    assert set(model.seen) == {"You help customers."}
    assert any(advice(learner, f"t{n}")[0]["recalled"] for n in range(16, 24))


def test_tenants_never_see_each_others_conversations() -> None:
    agent, learner, model = make(InMemoryStore())
    play(agent, learner, range(24))
    model.seen.clear()
    play(agent, learner, range(1), tenant="bob")
    assert set(model.seen) == {"You help customers."}


def test_what_is_not_alike_is_no_exemplar_and_it_says_how_near_it_was() -> None:
    agent, learner, model = make(InMemoryStore(), settings=Synapse(outcomes="all"), min_similarity=0.9)
    play(agent, learner, range(2))
    first = advice(learner, "t1")[0]
    assert first["recalled"] == []
    assert 0 < first["nearest"] < 0.9
    assert "nothing was alike enough" in learner.explain("t1", tenant="acme")
    assert set(model.seen) == {"You help customers."}


def test_a_bank_is_refused() -> None:
    with pytest.raises(UserError, match="import its trajectories"):
        SynapseMiddleware(InMemoryStore(), settings=Synapse(bank="bank.jsonl"))


def test_the_whole_system_message_is_as_approved() -> None:
    agent, learner, model = make(InMemoryStore(), settings=Synapse(k=2, outcomes="all"))
    play(agent, learner, range(0, 12, 4), words=("That was not what I needed.", "Thank you,\nthat was quick."))
    play(agent, learner, range(12, 13))
    assert_approved("synapse-conversation-4", lambda: model.seen[-1])
