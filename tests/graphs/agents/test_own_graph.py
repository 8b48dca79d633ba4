"""A graph of one's own learns with nodes, whatever its state is made of."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import help_desk as desk
import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt
from learning_agents import config
from pydantic import BaseModel

from learngraph.graphs.agents import model_node
from learngraph.graphs.agents.icrl import ICRLMiddleware
from learngraph.graphs.agents.learner import LearningState, rate_agents
from learngraph.graphs.agents.scope_values import ScopeError
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.memory.errors import UserError


class Scripted(GenericFakeChatModel):
    """A chat model that says these replies, and keeps what it read."""

    read: list[Any] = []  # noqa: RUF012 (a field of pydantic)

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.read.append(messages)
        return super()._generate(messages, *args, **kwargs)


def scripted(*replies: AIMessage) -> Scripted:
    return Scripted(messages=iter(replies), read=[])


def call(number: int) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "lookup_order", "args": {"order": "A0"}, "id": f"c{number}"}])


class Plain(TypedDict):
    messages: list[Any]


class Talk(TypedDict):
    talk: Annotated[list[Any], add_messages]


@dataclass
class Fields:
    messages: Annotated[list[Any], add_messages] = field(default_factory=list)
    order: str = ""


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    order: str = ""


@pytest.mark.parametrize(
    ("schema", "given", "key"),
    [
        (Plain, [("user", "Where is it?")], "messages"),
        (Plain, [{"role": "user", "content": "Where is it?"}], "messages"),
        (Plain, ["Where is it?"], "messages"),
        (Plain, "Where is it?", "messages"),
        (Fields, "Where is it?", "messages"),
        (Model, "Where is it?", "messages"),
        (Talk, "Where is it?", "talk"),
    ],
)
def test_a_state_may_be_of_any_kind_and_its_messages_what_makes_some(schema: Any, given: Any, key: str) -> None:
    learner = ICRLMiddleware(InMemoryStore())
    builder = StateGraph(schema).add_node("model", learner.node(scripted(AIMessage("Here.")), messages_key=key))
    out = builder.add_edge(START, "model").compile().invoke({key: given}, config("a"))
    assert out[key][-1].text == "Here."
    (turn,) = learner.conversation("a", tenant="acme").turns
    assert [(step.observation_text, step.action) for step in turn.steps] == [("Where is it?", "reply: Here.")]


@pytest.mark.parametrize(
    ("given", "says"), [(None, "`messages` of the state are messages, .*; got None"), ([3], r"or what makes some; got \[3\]")]
)
def test_a_state_says_what_its_messages_are_not(given: Any, says: str) -> None:
    learner = ICRLMiddleware(InMemoryStore())
    graph = StateGraph(Plain).add_node("model", learner.node(scripted())).add_edge(START, "model").compile()
    with pytest.raises(UserError, match=says):
        graph.invoke({"messages": given}, config("a"))


def test_a_node_refuses_tools_that_it_cannot_see_or_bind_and_a_call_outside_of_a_graph() -> None:
    learner, echo = ICRLMiddleware(InMemoryStore()), RunnableLambda(lambda messages: AIMessage(messages[-1].text))
    with pytest.raises(UserError, match=r"the model has tools already, .*: give both, learner.node\(model, tools\)"):
        learner.node(desk.HeedfulClerk().bind(tools=[desk.resolve]))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a RunnableLambda takes none"):
        learner.node(echo, [desk.resolve])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="it runs as a node of a graph"):
        learner.node(echo).invoke({"messages": "Hello"}, config("a"))  # type: ignore[arg-type]


def test_advice_stands_once_where_messages_have_no_ids() -> None:
    class Bare(TypedDict):
        messages: Annotated[list[Any], lambda known, new: known + new]

    learner, model = ICRLMiddleware(InMemoryStore()), scripted(*(AIMessage(f"Reply {n}") for n in range(4)))
    builder = StateGraph(Bare).add_node("model", learner.node(model)).add_edge(START, "model")
    graph = builder.compile(checkpointer=InMemorySaver())
    for thread in ("a", "b", "b"):
        graph.invoke({"messages": [("user", "Where is it?")]}, config(thread))
        learner.feedback("a", reward=1.0, tenant="acme")
    assert [message.text.count("<attempt") for message in model.read[-1]] == [1, 0, 0]


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("schema", [MessagesState, LearningState])
def test_a_call_that_ends_a_turn_is_rated_at_the_end_node(schema: Any, awaited: bool) -> None:
    read = list[list[str]]()
    learner = SynapseMiddleware(InMemoryStore(), reward=lambda talk: read.append([m.type for m in talk]) or 1.0)
    model = scripted(call(0), AIMessage("Done."), call(1))
    builder = StateGraph(schema).add_node("model", learner.node(model, [desk.lookup_order]))
    builder.add_node("tools", ToolNode([desk.lookup_order])).add_node("end", learner.end_node())
    graph = builder.add_edge(START, "model").add_edge("model", "tools").add_edge("tools", "end").compile()
    for n in range(3):
        asked: Any = {"messages": desk.ticket(n)[0]}
        asyncio.run(graph.ainvoke(asked, config(f"t{n}"))) if awaited else graph.invoke(asked, config(f"t{n}"))
    assert read == [["human", "ai", "tool"], ["human", "ai"], ["human", "ai", "tool"]], "once a turn"
    assert [len(turn.advice) for turn in learner.conversation("t2", tenant="acme").turns] == [1]
    assert learner.status(tenant="acme").notes == ()


@pytest.mark.parametrize("schema", [MessagesState, Model, LearningState])
def test_a_call_that_ended_a_turn_is_rated_after_its_thread_went_back_to_before_it(schema: Any) -> None:
    learner, thread = SynapseMiddleware(InMemoryStore()), config("t")
    builder = StateGraph(schema).add_node("model", learner.node(scripted(call(0), call(1)), [desk.lookup_order]))
    builder.add_node("tools", ToolNode([desk.lookup_order])).add_node("end", learner.end_node())
    builder.add_edge(START, "model").add_edge("model", "tools").add_edge("tools", "end")
    graph = builder.compile(checkpointer=InMemorySaver())
    first = graph.invoke({"messages": desk.ticket(0)[0]}, thread)["messages"][1].id
    (before,) = [one.config for one in graph.get_state_history(thread) if one.next == ("model",)]
    second = graph.invoke(None, before)["messages"][1].id
    learner.feedback(message_id=second, reward=1.0, tenant="acme")
    learner.feedback(message_id=first, reward=0.0, tenant="acme")
    assert [one.reward for one in learner._conversations({"tenant": "acme"}).ratings("t")] == [0.0, 1.0]
    assert [len(turn.advice) for turn in learner.conversation("t", tenant="acme").turns] == [1, 1]


def test_a_turn_that_no_node_ends_is_said_to_wait_for_its_reward() -> None:
    learner = SynapseMiddleware(InMemoryStore(), reward=lambda talk: 1.0)
    builder = StateGraph(MessagesState).add_node("model", learner.node(scripted(call(0)), [desk.lookup_order]))
    builder.add_edge(START, "model").compile().invoke({"messages": desk.ticket(0)[0]}, config("a"))
    (note,) = learner.status(tenant="acme").notes
    assert note == "reward= waits for the end of 1 turn, the last reply of which calls a tool; end_node() ends one"


def test_a_loop_of_tools_may_be_written_by_hand_within_a_node() -> None:
    rewarded = list[int]()
    learner = SynapseMiddleware(InMemoryStore(), reward=lambda talk: rewarded.append(len(talk)) or 1.0)
    ask = learner.node(scripted(call(0), AIMessage("It is late.")), [desk.lookup_order])

    def agent(state: Any) -> dict[str, Any]:
        talk = list(state["messages"])
        while not isinstance(talk[-1], AIMessage):
            talk += ask.invoke({**state, "messages": talk})["messages"]
            talk += [ToolMessage("late", tool_call_id=one["id"], name=one["name"]) for one in talk[-1].tool_calls]
        return {"messages": talk}

    graph = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent").compile()
    graph.invoke({"messages": "Where is it?"}, config("a"))
    (turn,) = learner.conversation("a", tenant="acme").turns
    assert [step.action for step in turn.steps] == ["lookup_order(order='A0')", "reply: It is late."]
    assert rewarded == [4]


class Echo(Scripted):
    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"Of {messages[0].text}"))])


@pytest.mark.parametrize("shared", [False, True])
def test_a_branch_is_rated_by_the_id_of_its_reply_and_the_thread_rates_the_rest(shared: bool) -> None:
    """Each branch is a trajectory of its own; a comment on one leaves it the reward of all."""
    learner = SynapseMiddleware(InMemoryStore())

    def fan_out(state: Any) -> list[Send]:
        rest = state["messages"] if shared else []
        kind = SystemMessage if shared else HumanMessage
        return [Send("model", {"messages": [kind(f"part {n}"), *rest]}) for n in range(3)]

    builder = StateGraph(LearningState).add_node("model", learner.node(Echo(messages=iter([]))))
    out = builder.add_conditional_edges(START, fan_out, ["model"]).compile().invoke({"messages": "Help."}, config("a"))
    first, second, third = [str(message.id) for message in out["messages"] if message.type == "ai"]

    def rated() -> dict[str, tuple[float | None, str]]:
        found = learner._conversations({"tenant": "acme"}).trajectories.all()
        return {one.transitions[-1].action.removeprefix("reply: Of "): (one.value, one.note) for one in found}

    assert learner.explain("a", tenant="acme").count(", sent '") == 3 - shared
    learner.feedback(message_id=second, reward=0.0, text="wrong part", tenant="acme")
    assert rated() == {"part 1": (0.0, "wrong part")}
    learner.feedback("a", reward=1.0, tenant="acme")
    assert rated() == {"part 0": (1.0, ""), "part 1": (0.0, "wrong part"), "part 2": (1.0, "")}
    learner.feedback("a", text="well done", message_id=third, tenant="acme")
    assert rated()["part 2"] == (1.0, "well done")
    learner.retract("a", message_id=second, tenant="acme")
    assert rated()["part 1"] == (1.0, "")
    with pytest.raises(UserError, match=f"conversation 'a' has no reply 'x'; its last ones are .*{first}"):
        learner.feedback("a", reward=1.0, message_id="x", tenant="acme")


def echo() -> tuple[Any, Any]:
    learner = ICRLMiddleware(InMemoryStore())
    builder = StateGraph(MessagesState).add_node("model", learner.node(Echo(messages=iter([])))).add_edge(START, "model")
    return learner, builder.compile(checkpointer=InMemorySaver())


def test_a_thumb_under_one_reply_of_a_chat_rates_its_turn_alone() -> None:
    learner, graph = echo()
    for n in range(3):
        out = graph.invoke({"messages": f"Question {n}"}, config("a"))
    learner.feedback("a", reward=0.0, message_id=out["messages"][3].id, tenant="acme")
    rating = learner.feedback("a", reward=1.0, tenant="acme")
    assert not rating.is_single
    found = learner._conversations({"tenant": "acme"}).trajectories.all()
    assert sorted((one.value, len(one.transitions)) for one in found) == [(0.0, 1), (1.0, 2)]
    asked = {one.value: one.task.instruction for one in found}
    assert asked == {0.0: "Question 1", 1.0: "Question 0"}, "critics are told what the rated turn has answered"
    out = graph.invoke({"messages": "Question 3"}, config("a"))
    learner.feedback("a", reward=0.0, message_id=out["messages"][-1].id, tenant="acme")
    rating = learner.feedback("a", text="a comment on the same", tenant="acme")
    assert (rating.is_single, rating.reward) == (True, 0.0)


def test_a_thread_that_is_older_than_its_memory_is_about_what_is_asked_now() -> None:
    """As one whose user was forgotten, or that had no learner before: what was said then is not recorded anew."""
    learner, graph = echo()
    graph.invoke({"messages": "My secret is Xyzzy."}, config("a"))
    learner.forget(tenant="acme")
    graph.invoke({"messages": "And now?"}, config("a"))
    learner.feedback("a", reward=1.0, tenant="acme")
    (one,) = learner._conversations({"tenant": "acme"}).trajectories.all()
    assert (one.task.instruction, "Xyzzy" in repr([*learner.export(tenant="acme")])) == ("And now?", False)


@pytest.mark.parametrize("place", range(3))
def test_the_thread_rates_what_no_thumb_has_rated_whichever_turn_was_last(place: int) -> None:
    """As of branches that are subgraphs, whose turns end in any order."""
    learner, graph = echo()
    for n in range(3):
        out = graph.invoke({"messages": f"Question {n}"}, config("a"))
    learner.feedback("a", reward=0.0, message_id=out["messages"][2 * place + 1].id, tenant="acme")
    for said in ({"reward": 1.0}, {"text": "Thanks."}):
        learner.feedback("a", **said, tenant="acme")
    found = learner._conversations({"tenant": "acme"}).trajectories.all()
    assert sorted((one.value, len(one.transitions), one.note) for one in found) == [(0.0, 1, ""), (1.0, 2, "Thanks.")]


def test_one_call_rates_the_agents_that_took_part_since_the_feedback_before() -> None:
    store = InMemoryStore()
    names = ("supervisor", "billing", "shipping")
    team = [SynapseMiddleware(store, name=name) for name in names[:2]]
    team.append(SynapseMiddleware(store, name="shipping", scope=(), reward=lambda talk: 0.5))  # one for all tenants
    workers = {one.agent.name: create_agent(Echo(messages=iter([])), [], middleware=[one]) for one in team[1:]}

    def ask_agent(agent: str) -> str:
        """Ask another agent."""
        return str(workers[agent].invoke({"messages": "What is it?"})["messages"][-1].text)

    def ask(*agents: str) -> AIMessage:
        calls: Any = [{"name": "ask_agent", "args": {"agent": one}, "id": f"c-{one}"} for one in agents]
        return AIMessage("", tool_calls=calls)

    model = scripted(
        ask("billing", "shipping"), AIMessage("Done."), ask("shipping"), AIMessage("Done."), ask("billing"), AIMessage("Done.")
    )
    graph = create_agent(model, [ask_agent], middleware=[team[0]], checkpointer=InMemorySaver())

    def rate(**said: Any) -> list[str]:
        return list(rate_agents(team, "a", tenant="acme", **said))

    with pytest.raises(UserError, match="thread 'a' is recorded of none of the agents supervisor, billing, shipping"):
        rate(reward=1.0)
    graph.invoke({"messages": "Help."}, config("a"))
    assert [rate(reward=1.0), rate(text="Thanks.")] == [list(names)] * 2, "a comment is about the same agents"
    graph.invoke({"messages": "Again."}, config("a"))
    assert [rate(reward=0.0), rate(text="Late.")] == [["supervisor", "shipping"]] * 2
    (rating,) = team[1]._conversations({"tenant": "acme"}).ratings("a")
    assert (rating.reward, rating.text) == (1.0, "Thanks.")
    graph.invoke({"messages": "Once more."}, config("b"))

    def rate_next(**said: Any) -> list[str]:
        return list(rate_agents(team, "b", tenant="acme", **said))

    team[1].feedback("b", text="A typo in the bill.", tenant="acme")
    assert rate_next(reward=0.0) == ["supervisor", "billing"], "what was said of one alone leaves the whole's reward to all"
    team[1].feedback("b", reward=1.0, tenant="acme")
    assert rate_next(text="Slow.") == ["supervisor", "billing"], "also after one was rated by itself"
    (rating,) = team[1]._conversations({"tenant": "acme"}).ratings("b")
    assert (rating.reward, rating.text) == (1.0, "Slow.")
    with pytest.raises(UserError, match="no learner has 'tenent' in its scope; did you mean tenant"):
        rate_agents(team, "a", reward=1.0, tenent="acme")
    with pytest.raises(UserError, match="rate_agents: learners is a sequence"):
        rate_agents(team[0], "a", reward=1.0)  # type: ignore[arg-type]


class Failing(Scripted):
    """Fails first, where it is told to."""

    fails: bool = False

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fails:
            self.fails = False
            raise ConnectionError
        return super()._generate(messages, *args, **kwargs)


def waiting_graph(learner: Any, model: Any, schema: Any, saver: Any) -> Any:
    """A graph whose tools wait for a person."""
    builder = StateGraph(schema).add_node("model", learner.node(model, [desk.lookup_order]))
    builder.add_node("person", lambda state: interrupt("Call?") and {}).add_node("tools", ToolNode([desk.lookup_order]))
    builder.add_edge(START, "model").add_edge("person", "tools").add_edge("tools", "model")
    builder.add_conditional_edges("model", tools_condition, {"tools": "person", "__end__": "__end__"})
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("scope", [("tenant?",), ("tenant",)])
@pytest.mark.parametrize(("schema", "worker"), [(LearningState, "another"), (LearningState, "same"), (MessagesState, "same")])
def test_a_run_that_names_its_thread_alone_goes_on_with_the_threads_tenant(
    schema: Any, worker: str, scope: Any, is_awaited: bool
) -> None:
    store, saver, model = InMemoryStore(), InMemorySaver(), scripted(call(1), AIMessage("Here."), AIMessage("Bye."))
    learner = ICRLMiddleware(store, name="clerk", scope=scope)
    waiting_graph(learner, model, schema, saver).invoke({"messages": "Where is it?"}, config("a"))
    learner = ICRLMiddleware(store, name="clerk", scope=scope) if worker == "another" else learner
    graph, thread = waiting_graph(learner, model, schema, saver), {"configurable": {"thread_id": "a"}}
    for given in (Command(resume="yes"), {"messages": "Thanks."}):
        asyncio.run(graph.ainvoke(given, thread)) if is_awaited else graph.invoke(given, thread)
    assert learner.scopes() == [{"tenant": "acme"}]
    turns = learner.conversation("a", tenant="acme").turns
    assert [[step.action for step in one.steps] for one in turns] == [
        ["lookup_order(order='A0')", "reply: Here."],
        ["reply: Bye."],
    ]
    with pytest.raises(ScopeError, match="gives the tenant 'bob', and its thread was begun with 'acme'"):
        graph.invoke({"messages": "Hello."}, config("a", "bob"))
    model.messages = iter([AIMessage("Here.")])
    graph.invoke({"messages": "Hello."}, config("b", "bob"))
    assert learner.conversation("b", tenant="bob").turns[-1].steps[-1].action == "reply: Here."


def test_a_call_that_failed_is_made_again_for_the_threads_tenant_and_no_other_thread_has_it() -> None:
    learner, thread = ICRLMiddleware(InMemoryStore()), {"configurable": {"thread_id": "a"}}
    model = Failing(messages=iter([AIMessage("Here."), AIMessage("There.")]), fails=True)
    graph = waiting_graph(learner, model, LearningState, InMemorySaver())
    with pytest.raises(ConnectionError):
        graph.invoke({"messages": "Where is it?"}, config("a"))
    graph.invoke(None, thread)
    assert learner.scopes() == [{"tenant": "acme"}]
    waiting_graph(learner, model, MessagesState, None).invoke({"messages": "Where is it?"}, thread)
    assert learner.conversation("a").turns[0].steps[0].action == "reply: There.", "without a checkpointer it is another thread"


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("begun", ["in a state of its own", "by a call that failed", "at its first checkpoint"])
def test_a_run_that_cannot_know_the_tenant_of_its_turn_is_refused(begun: str, is_awaited: bool) -> None:
    """Another process goes on, and the state has not kept it."""
    store, saver, thread = InMemoryStore(), InMemorySaver(), {"configurable": {"thread_id": "a"}}
    schema = MessagesState if "state" in begun else LearningState
    model = Failing(messages=iter([call(1), AIMessage("Here.")]), fails="failed" in begun)
    graph = waiting_graph(SynapseMiddleware(store, name="clerk"), model, schema, saver)
    with pytest.raises(ConnectionError) if model.fails else nullcontext():
        graph.invoke({"messages": "Where is it?"}, config("a"))
    given = None if schema is LearningState else Command(resume="yes")
    where = [*graph.get_state_history(thread)][-2].config if "checkpoint" in begun else thread
    learner = SynapseMiddleware(store, name="clerk")
    graph = waiting_graph(learner, model, schema, saver)
    with pytest.raises(ScopeError, match="turn of thread 'a' that was begun with a tenant, and gives none: give the same"):
        asyncio.run(graph.ainvoke(given, where)) if is_awaited else graph.invoke(given, where)
    assert learner.scopes() == [{"tenant": "acme"}]
    where["configurable"]["tenant"] = "acme"
    graph.invoke(None, where)
    assert learner.scopes() == [{"tenant": "acme"}]


def test_a_run_without_a_tenant_goes_on_in_another_process_whatever_others_have() -> None:
    store, saver, model = InMemoryStore(), InMemorySaver(), scripted(call(1), call(2), AIMessage("Here."))
    learner, thread = SynapseMiddleware(store, name="clerk"), {"configurable": {"thread_id": "a"}}
    tenants = SynapseMiddleware(store, name="clerk")
    waiting_graph(tenants, model, MessagesState, InMemorySaver()).invoke({"messages": "Where is it?"}, config("a"))
    waiting_graph(learner, model, MessagesState, saver).invoke({"messages": "Where is it?"}, thread)
    learner = SynapseMiddleware(store, name="clerk")
    waiting_graph(learner, model, MessagesState, saver).invoke(Command(resume="yes"), thread)
    assert [len(one.steps) for one in learner.conversation("a").turns] == [2]
    assert [len(one.steps) for one in learner.conversation("a", tenant="acme").turns] == [1]


@pytest.mark.parametrize("learner", [ICRLMiddleware, SynapseMiddleware])
def test_tenants_whose_clients_number_threads_and_messages_alike_read_nothing_of_each_other(learner: Any) -> None:
    memory, model = learner(InMemoryStore(), scope=("tenant",), refresh_seconds=0.0), scripted(*[AIMessage("Here.")] * 4)
    graph: Any = StateGraph(MessagesState).add_node("model", memory.node(model)).add_edge(START, "model").compile()
    for thread in ("0", "1"):
        for tenant in ("acme", "zeta"):
            said = {"messages": [HumanMessage("Where is it?" if thread == "1" else f"Where is it? I am {tenant}.", id="m")]}
            graph.invoke(said, {"configurable": {"thread_id": thread, "tenant": tenant}})
            memory.feedback(thread, reward=1.0, tenant=tenant)
    prompts = [str(prompt) for prompt in model.read[2:]]
    assert [["I am acme" in one, "I am zeta" in one] for one in prompts] == [[True, False], [False, True]]


@pytest.mark.parametrize("option", ["scope", "user"])
@pytest.mark.parametrize("schema", [LearningState, MessagesState])
def test_a_reviewer_who_resumes_a_graph_of_ones_own_goes_on_for_its_user_and_another_tenant_is_refused(
    schema: Any, option: str
) -> None:
    options: Any = {"scope": ("tenant", "user_id?")} if option == "scope" else {"scope": ("tenant",), "user": "user_id"}
    learner, model = ICRLMiddleware(InMemoryStore(), **options), scripted(call(1), AIMessage("Here."), AIMessage("Bye."))
    graph = waiting_graph(learner, model, schema, InMemorySaver())

    def where(tenant: str, user: str) -> Any:
        return {"configurable": {"thread_id": "a", "tenant": tenant, "user_id": user}}

    graph.invoke({"messages": "Where is it?"}, where("acme", "bob"))
    with pytest.raises(ScopeError, match="gives the tenant 'zeta', and its thread was begun with 'acme': resume it with the"):
        graph.invoke(Command(resume="yes"), where("zeta", "bob"))
    graph.invoke(None, where("acme", "rita"))
    (turn,) = learner.conversation("a", tenant="acme", user_id="bob").turns
    assert [step.action for step in turn.steps] == ["lookup_order(order='A0')", "reply: Here."]
    assert len(learner.scopes()) == 1
    said = {"messages": "And mine?"}
    if option == "scope":
        with pytest.raises(ScopeError, match="gives the user_id 'rita', and its thread was begun with 'bob': give another"):
            graph.invoke(said, where("acme", "rita"))
    else:
        graph.invoke(said, where("acme", "rita"))
        assert [one.user for one in learner.conversation("a", tenant="acme").turns] == ["user_id=bob", "user_id=rita"]


def test_threads_that_run_meanwhile_disturb_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = model_node.KeptThreads("agent", [])
    kept._threads |= {("t1",): {"learning": ["said"]}, ("t2",): {}}
    kept._newest |= {"t1": ("t1",)}

    def meanwhile(state: Any) -> str:  # another thread begins while this one is looked for
        kept._threads[f"beside {len(kept._threads)}",] = {}
        return "t1"

    monkeypatch.setattr(model_node, "_thread", meanwhile)
    monkeypatch.setattr(model_node, "get_config", dict)
    assert kept.added_to({})["learning"] == ["said"]
