"""Learning in Deep Agents: in a sub-agent, beside skills, and on a thread with checkpoints."""

from typing import Any

import help_desk as desk
import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from learning_agents import advice, config

from learngraph.graphs.agents.synapse import SynapseMiddleware

deepagents = pytest.importorskip("deepagents", reason="no package deepagents: pip install deepagents")
TIME = "2026-01-01T00:00:00+00:00"
SKILL = "---\nname: returns\ndescription: how a parcel comes back\n---\nPrint the label."


class Supervisor(desk.GuessingClerk):
    """Hands each request to the sub-agent `resolver`."""

    def say(self, messages: Any) -> AIMessage:
        if messages[-1].type == "tool":
            return AIMessage(messages[-1].text)
        asked = {"description": messages[-1].text, "subagent_type": "resolver"}
        return AIMessage("", tool_calls=[{"name": "task", "args": asked, "id": f"task-{len(messages)}"}])


@pytest.mark.slow
def test_a_sub_agent_learns_from_feedback_on_the_outer_thread_and_sees_it_in_a_thread_that_goes_on() -> None:
    learner, clerk = SynapseMiddleware(state_key=desk.issue), desk.HeedfulClerk()
    resolver = {
        "name": "resolver",
        "description": "resolves a customer's issue",
        "system_prompt": "You help customers.",
        "model": clerk,
        "tools": [desk.lookup_order, desk.resolve],
        "middleware": [learner],
        "skills": ["/skills/"],
    }
    agent = deepagents.create_deep_agent(
        Supervisor(), subagents=[resolver], checkpointer=InMemorySaver(), store=InMemoryStore(), name="desk"
    )
    files = {"/skills/returns/SKILL.md": {"content": SKILL, "encoding": "utf-8", "created_at": TIME, "modified_at": TIME}}

    def ask(number: int, thread: str) -> float:
        agent.invoke({"messages": desk.ticket(number)[0], "files": files}, config(thread))
        done = learner.conversation(thread, tenant="acme").turns[-1].steps
        reward = float(any(f"how={desk.RIGHT[desk.ticket(number)[1]]!r}" in step.action for step in done))
        learner.feedback(thread, reward=reward, tenant="acme")
        return reward

    ask(0, "long")
    rewards = [ask(4 * n, f"t{n}") for n in range(1, 12)]
    first = rewards.index(1.0) + 1
    assert rewards[first - 1 :] == [1.0] * (12 - first), "all of these tickets are alike"
    assert ask(48, "long") == 1.0
    assert {one["recalled"][0] for one in advice(learner, "long")} == {"t11/0"}, "what was learned since the thread began"
    assert "Total reward: 1" in clerk.seen[-1]
    assert "how a parcel comes back" in clerk.seen[-1]
