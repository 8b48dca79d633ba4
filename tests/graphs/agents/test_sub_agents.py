"""Sub-agents that a supervisor's tools call: their turns are rated with its reply, and left where it goes back in time."""

import asyncio
from typing import Any

import pytest
from billing_tool import billing_tool
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from scripted_chat import SayingChat

from learngraph.graphs.agents.learner import LearningState, rate_agents
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.memory.errors import UserError

THREAD: Any = {"configurable": {"thread_id": "t"}}


class Supervisor(SayingChat):
    """Asks billing what the user asks, unless he says nothing of bills."""

    asks: bool = True
    calls: int = 0

    def bind_tools(self, tools: Any, **options: Any) -> "Supervisor":
        return self

    def say(self, messages: Any, **options: Any) -> AIMessage:
        if not isinstance(messages[-1], HumanMessage) or not self.asks:
            return AIMessage("Done.")
        self.calls += 1
        return AIMessage("", tool_calls=[{"name": "ask_billing", "args": {"what": messages[-1].text}, "id": f"c{self.calls}"}])


class Biller(SayingChat):
    """Answers with what was asked."""

    def say(self, messages: Any, **options: Any) -> AIMessage:
        return AIMessage(f"The bill of {messages[-1].text}.")


def make_team(**options: Any) -> tuple[Any, Supervisor, list[SynapseMiddleware]]:
    """The supervisor's graph, its model, and the learners of both agents, with options of billing's."""
    store, model = InMemoryStore(), Supervisor()
    team = [SynapseMiddleware(store, name="supervisor"), SynapseMiddleware(store, name="billing", **options)]
    biller = create_agent(Biller(), [], middleware=team[1:])
    return create_agent(model, [billing_tool(biller)], middleware=team[:1], checkpointer=InMemorySaver()), model, team


def rated(learner: SynapseMiddleware) -> dict[str, float | None]:
    """The last action of each rated stretch -> its reward."""
    kept = learner._conversations({}).trajectories.all()
    return {one.transitions[-1].action: one.transitions[-1].reward for one in kept}


def begin_again(graph: Any, requests: int, *, is_awaited: bool = False) -> None:
    """Have the reply to one of the user's messages made anew."""
    before = next(
        one
        for one in graph.get_state_history(THREAD)
        if one.next == ("model",) and [m.type for m in one.values["messages"]].count("human") == requests
        if one.values["messages"][-1].type == "human"
    )
    asyncio.run(graph.ainvoke(None, before.config)) if is_awaited else graph.invoke(None, before.config)


def test_a_late_thumb_rates_the_turn_of_each_agent_that_was_part_of_the_reply() -> None:
    graph, _, team = make_team()
    replies = [graph.invoke({"messages": what}, THREAD)["messages"][-1].id for what in ("May", "June")]
    assert list(rate_agents(team, "t", reward=0.0, message_id=replies[0])) == ["supervisor", "billing"]
    assert rated(team[1]) == {"reply: The bill of May.": 0.0}
    rate_agents(team, "t", reward=1.0)
    assert rated(team[1]) == {"reply: The bill of May.": 0.0, "reply: The bill of June.": 1.0}
    with pytest.raises(UserError, match="none of the agents has reply 'x' in thread 't'"):
        rate_agents(team, "t", reward=0.0, message_id="x")
    assert list(rate_agents(team, reward=0.5, message_id=replies[0])) == ["supervisor", "billing"], "the reply says the thread"
    assert list(rate_agents(team, text="Thanks.")) == ["supervisor", "billing"], "it is the only one"
    graph.invoke({"messages": "July"}, {"configurable": {"thread_id": "other"}})
    said = "the memory of supervisor, billing has {} conversations{}: give a thread_id; its last threads are 't', 'other'"
    for asked, count, what in (({}, "2", ""), ({"message_id": "x"}, "no", " with reply 'x'")):
        with pytest.raises(UserError, match=said.format(count, what)):
            rate_agents(team, reward=0.0, **asked)  # type: ignore[arg-type]


def test_what_a_sub_agent_did_for_a_reply_that_was_left_is_not_rated_later() -> None:
    graph, model, team = make_team()
    for what in ("May", "June"):
        graph.invoke({"messages": what}, THREAD)
    begin_again(graph, 2)
    begin_again(graph, 1)
    assert team[1].explain("t").count("left by going back in time") == 3
    rate_agents(team, "t", reward=1.0)
    kept = team[1]._conversations({}).trajectories.all()
    assert [(one.id, len(one.transitions)) for one in kept] == [("t/3", 1)]
    model.asks = False
    begin_again(graph, 1)
    assert list(rate_agents(team, "t", reward=0.0)) == ["supervisor"], "billing has done nothing for the reply that stands"


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("scope", [("tenant?",), ("tenant",)])
def test_a_sub_agent_works_for_the_tenant_of_its_supervisors_thread(scope: Any, is_awaited: bool) -> None:
    """A checkpoint's config names none."""
    graph, _, (supervisor, billing) = make_team(scope=scope)
    graph.invoke({"messages": "May"}, {"configurable": {"thread_id": "t", "tenant": "acme"}})
    begin_again(graph, 1, is_awaited=is_awaited)
    assert supervisor.scopes() == billing.scopes() == [{"tenant": "acme"}]
    assert len(billing.conversation("t", tenant="acme").turns) == 2
    with pytest.raises(UserError, match="gives the tenant 'globex', and its thread was begun with 'acme'"):
        graph.invoke({"messages": "June"}, {"configurable": {"thread_id": "t", "tenant": "globex"}})
    graph.invoke({"messages": "June"}, {"configurable": {"thread_id": "u", "tenant": "globex"}})
    assert len(billing.conversation("u", tenant="globex").turns) == 1, "a tenant that is named holds"


def test_a_sub_agent_works_for_the_user_of_its_supervisors_turn_whoever_resumes_it() -> None:
    store, scope = InMemoryStore(), ("tenant", "user_id?")
    supervisor, billing = [SynapseMiddleware(store, name=name, scope=scope) for name in ("supervisor", "billing")]
    human, ask_billing = (
        HumanInTheLoopMiddleware({"ask_billing": True}),
        billing_tool(create_agent(Biller(), [], middleware=[billing])),
    )
    graph = create_agent(Supervisor(), [ask_billing], middleware=[supervisor, human], checkpointer=InMemorySaver())
    for given, user in (({"messages": "May"}, "bob"), (Command(resume={"decisions": [{"type": "approve"}]}), "rita")):
        graph.invoke(given, {"configurable": {"thread_id": "t", "tenant": "acme", "user_id": user}})  # type: ignore[arg-type]
    assert supervisor.scopes() == billing.scopes() == [{"tenant": "acme", "user_id": "bob"}]


def test_a_sub_agent_works_for_the_tenant_of_a_graph_of_ones_own() -> None:
    supervisor, billing = [SynapseMiddleware(InMemoryStore(), name=name) for name in ("supervisor", "billing")]
    ask_billing = billing_tool(create_agent(Biller(), [], middleware=[billing]))
    tools = ToolNode([ask_billing], wrap_tool_call=supervisor.wrap_tool_call)
    builder = StateGraph(LearningState).add_node("model", supervisor.node(Supervisor(), [ask_billing])).add_node(tools)
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.invoke({"messages": "May"}, {"configurable": {"thread_id": "t", "tenant": "acme"}})
    graph.invoke(None, next(one for one in graph.get_state_history(THREAD) if one.next == ("tools",)).config)
    assert supervisor.scopes() == billing.scopes() == [{"tenant": "acme"}]
    assert len(billing.conversation("t", tenant="acme").turns) == 2


def test_a_sub_agent_that_is_given_a_tenant_works_for_that_one() -> None:
    learners = [SynapseMiddleware(store := InMemoryStore(), name=name) for name in ("supervisor", "billing")]
    ask_billing = billing_tool(create_agent(Biller(), [], middleware=learners[1:]), {"configurable": {"tenant": "bank"}})
    graph = create_agent(Supervisor(), [ask_billing], middleware=learners[:1], store=store)
    graph.invoke({"messages": "May"}, {"configurable": {"thread_id": "t", "tenant": "acme"}})
    assert [one.scopes() for one in learners] == [[{"tenant": "acme"}], [{"tenant": "bank"}]]


def test_what_a_supervisor_says_is_a_sub_agents_task_and_none_of_its_actions() -> None:
    learner = SynapseMiddleware(InMemoryStore(), name="billing")
    biller = create_agent(Biller(), [], middleware=[learner])
    for said in ([AIMessage("May", name="supervisor")], [HumanMessage("Help."), AIMessage("June")]):
        biller.invoke({"messages": said}, THREAD)
    turns = learner.conversation("t").turns
    assert [[(step.observation, step.action) for step in turn.steps] for turn in turns] == [
        [("May", "reply: The bill of May.")],
        [("Help.", "reply: The bill of June.")],
    ]


@pytest.mark.parametrize("event", [SystemMessage("Parcel"), AIMessage("Parcel", name="webhook")])
@pytest.mark.parametrize("name", [None, "desk"])
def test_an_event_begins_a_turn_also_where_the_turn_before_was_not_rated(event: Any, name: str | None) -> None:
    learner = SynapseMiddleware(InMemoryStore())
    agent = create_agent(Biller(), [], middleware=[learner], checkpointer=InMemorySaver(), name=name)
    replies = [agent.invoke({"messages": [said]}, THREAD)["messages"][-1].id for said in (("user", "May"), event)]
    agent.invoke({"messages": "June"}, THREAD)
    for reply, reward in zip(replies, (1.0, 0.0), strict=True):
        learner.feedback("t", reward=reward, message_id=reply)
    assert rated(learner) == {"reply: The bill of May.": 1.0, "reply: The bill of Parcel.": 0.0}
    assert learner._conversations({}).trajectories.all()[1].task.instruction == "Parcel"
