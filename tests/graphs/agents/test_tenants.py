"""Two tenants with the same threads and the same words: each agent works as if the other tenant did not exist."""

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import help_desk as desk
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.store.memory import InMemoryStore
from learning_agents import METHODS
from variants import quick


class SteadyClerk(desk.HeedfulClerk):
    """A clerk whose guess depends on what it reads alone, so that other conversations cannot change it by being there."""

    def say(self, messages: Any) -> AIMessage:
        self._numbers = itertools.repeat(zlib.crc32(repr([(m.type, m.text) for m in messages]).encode()))
        return super().say(messages)


Step = tuple[str, int, float | None]
"""Tenant, number of the ticket, reward; None: no feedback."""
steps = st.lists(
    st.tuples(st.sampled_from(["acme", "bob"]), st.integers(0, 5), st.sampled_from([0.0, 1.0, None])), min_size=2, max_size=8
)


def play(method: str, played: Sequence[Step]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What each tenant's agent said and remembers, and each (tenant, system message) that the model read.

    The thread, the ids and all words are the same for both tenants, but for the order's number and the words of the feedback.
    """
    model = SteadyClerk()
    job: dict[str, Any] = {"study": "job"} if method in ("reasoning-bank", "reflexion", "lessons") else {}
    learner = METHODS[method](InMemoryStore(), **job, **({"critic": SteadyClerk()} if method == "lessons" else {}))
    tools = [desk.lookup_order, desk.resolve]
    agent = create_agent(model, tools, middleware=[learner])  # without a checkpointer, which knows no tenants
    said: dict[str, Any] = {"acme": [], "bob": []}
    read = list[tuple[str, str]]()
    for place, (tenant, number, reward) in enumerate(played):
        own = sum(one[0] == tenant for one in played[:place])
        words = desk.ticket(number)[0].replace(f"order A{number}", f"order {tenant}{number}")
        model.seen.clear()
        out = agent.invoke(
            {"messages": [HumanMessage(words, id=f"h{own}")]}, {"configurable": {"thread_id": f"t{own}", "tenant": tenant}}
        )
        read += [(tenant, text) for text in model.seen]
        said[tenant].append(
            [(m.type, str(m.text), [(c["name"], c["args"]) for c in getattr(m, "tool_calls", ())]) for m in out["messages"]]
        )
        said[tenant].append([{k: v for k, v in entry.items() if k != "turn"} for entry in out.get("learning", ())])
        if reward is not None:
            model.criticised.clear()
            learner.feedback(f"t{own}", reward=reward, text=f"says {tenant}", tenant=tenant)
            if job:
                learner.learn(tenant=tenant)
            read += [(tenant, text) for text in model.criticised]
    for tenant in said:
        said[tenant].append([_without_ids_and_times(one) for one in learner.export(tenant=tenant)])
    return said, read


def _without_ids_and_times(conversation: dict[str, Any]) -> dict[str, Any]:
    turns = [{**turn, "run_id": "", "replies": []} for turn in conversation["turns"]]
    return {**conversation, "turns": turns, "ratings": [{**one, "at": ""} for one in conversation["ratings"]]}


@pytest.mark.parametrize("method", quick(name for name in METHODS if name not in ("adamem", "adamem-high")))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(played=steps)
def test_an_agent_works_as_if_the_other_tenant_did_not_exist(method: str, played: list[Step]) -> None:
    together, read = play(method, played)
    for tenant, other in (("acme", "bob"), ("bob", "acme")):
        alone, _ = play(method, [one for one in played if one[0] == tenant])
        assert together[tenant] == alone[tenant]
        assert other not in repr(together[tenant])
        assert not [text for whose, text in read if whose == tenant and other in text]
