"""JitRL in an agent of LangChain: it learns from feedback, and tells what it did."""

from __future__ import annotations

from typing import Any

import pytest
import support_desk as desk
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.agents.jitrl import JitRLMiddleware


def make(store: Any, mode: str = "guide", **options: Any) -> tuple[Any, JitRLMiddleware]:
    learner = JitRLMiddleware(store, decide=["resolve"], state_key=desk.issue, mode=mode, **options)
    agent = create_agent(
        desk.SupportModel(), [desk.lookup_order, desk.resolve], middleware=[learner], checkpointer=InMemorySaver()
    )
    return agent, learner


def play(agent: Any, learner: JitRLMiddleware, tickets: range, tenant: str = "acme") -> list[float]:
    rewards = []
    for n in tickets:
        said, kind = desk.ticket(n)
        out = agent.invoke({"messages": said}, {"configurable": {"thread_id": f"t{n}", "tenant": tenant}})
        rewards.append(desk.reward(out["messages"], kind))
        learner.feedback(f"t{n}", reward=rewards[-1], tenant=tenant)
    return rewards


@pytest.mark.parametrize("mode", ["guide", "observe", "off"])
def test_it_learns_from_feedback_in_one_mode_only(mode: str) -> None:
    agent, learner = make(InMemoryStore(), mode)
    if mode == "off":
        out = agent.invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": "t0"}})
        assert not out["learning"]
        return
    rewards = play(agent, learner, range(60))
    last = sum(rewards[-20:]) / 20
    if mode == "guide":
        assert last >= 0.9
        assert "took resolve(how=" in learner.explain("t59", tenant="acme")
    else:
        assert last < 0.6
        assert learner.conversation("t59", tenant="acme").turns[0].advice
