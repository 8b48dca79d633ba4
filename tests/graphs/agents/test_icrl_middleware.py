"""ICRL in an agent of LangChain: earlier conversations with their rewards in the system message."""

from __future__ import annotations

from typing import Any

import help_desk as desk
import pytest
from approved_prompts import assert_approved
from help_desk import HeedfulClerk, play
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.agents.icrl import ICRLMiddleware
from learngraph.graphs.icrl import ICRL


def make(store: Any, **options: Any) -> tuple[Any, ICRLMiddleware, HeedfulClerk]:
    learner, model = ICRLMiddleware(store, **{"task": desk.issue, **options}), HeedfulClerk()
    tools = [desk.lookup_order, desk.resolve]
    return (
        create_agent(model, tools, system_prompt="You help customers.", middleware=[learner], checkpointer=InMemorySaver()),
        learner,
        model,
    )


@pytest.mark.parametrize("awaited", [False, True])
def test_it_learns_from_feedback(awaited: bool) -> None:
    agent, learner, _ = make(InMemoryStore())
    rewards = play(agent, learner, range(28), awaited=awaited)
    assert rewards[-8:] == [1.0] * 8
    assert sum(rewards[:4]) < 4
    assert "conversations at 'was charged twice'" in learner.explain("t27", tenant="acme")
    assert learner.status(tenant="acme").problems == ()


def test_without_a_task_all_conversations_are_attempts_at_the_same() -> None:
    agent, learner, _ = make(InMemoryStore(), task=None)
    assert play(agent, learner, range(28))[-8:] == [1.0] * 8


def test_observing_changes_nothing_in_the_request() -> None:
    agent, learner, model = make(InMemoryStore(), mode="observe")
    assert sum(play(agent, learner, range(24))[-12:]) < 12
    assert set(model.seen) == {"You help customers."}
    assert learner.conversation("t20", tenant="acme").turns[0].advice[0]["recalled"][0] == "t0/0"


def test_tenants_never_see_each_others_conversations() -> None:
    agent, learner, model = make(InMemoryStore())
    play(agent, learner, range(8))
    model.seen.clear()
    play(agent, learner, range(1), tenant="bob")
    assert set(model.seen) == {"You help customers."}
    learner.forget(tenant="acme")
    play(agent, learner, range(8, 9))
    assert set(model.seen) == {"You help customers."}


def test_attempts_stay_within_the_budget_and_the_own_thread_is_none_of_them() -> None:
    agent, learner, model = make(InMemoryStore(), settings=ICRL(rewards="sparse", max_memory_tokens=300))
    play(agent, learner, range(0, 80, 4))
    (first, *_) = learner.conversation("t76", tenant="acme").turns[0].advice
    assert 0 < len(first["recalled"]) < 19
    model.seen.clear()
    play(agent, learner, range(76, 77))  # the same thread again
    assert "A76" not in model.seen[0]
    assert "A72" in model.seen[0]


def test_the_whole_system_message_is_as_approved() -> None:
    agent, learner, model = make(InMemoryStore())
    play(agent, learner, range(0, 12, 4), words=("That was not what I needed.", "Thank you,\nthat was quick."))
    assert_approved("icrl-conversation-4", lambda: play(agent, learner, range(12, 13)) and model.seen[-1])
