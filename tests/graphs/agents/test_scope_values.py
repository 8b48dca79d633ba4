"""Whose memory a run works with: values of the scope from every place, closed where they are missing; names and stores of agents."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import help_desk as desk
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from learning_agents import config
from pydantic import BaseModel

from learngraph.graphs.agents.icrl import ICRLMiddleware
from learngraph.graphs.agents.scope_values import AgentScope, ScopeError, scope_of
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.memory.errors import UserError


@dataclass
class Ctx:
    tenant: str | None = None


class Model(BaseModel):
    tenant: str | None = None


class User(dict[str, Any]):
    identity = "ann"


@pytest.mark.parametrize(
    ("context", "configurable", "user", "labels"),
    [
        (Ctx("acme"), {}, None, ("tenant=acme", "user_id")),
        (Model(tenant="acme"), {}, None, ("tenant=acme", "user_id")),
        ({"tenant": "acme"}, {"user_id": 7}, None, ("tenant=acme", "user_id=7")),
        (None, {"tenant": "acme"}, User(), ("tenant=acme", "user_id=ann")),
        (None, {}, User(tenant="acme"), ("tenant=acme", "user_id=ann")),
        (Ctx("acme"), {"tenant": "acme"}, None, ("tenant=acme", "user_id")),
        (Ctx("acme"), {"tenant": "bob"}, None, "disagree on its tenant: 'acme' in context, 'bob' in configurable"),
        (Ctx(), {}, None, "names tenant, and the run gives none"),
        (None, {"tenant": ""}, None, "names tenant, and the run gives none"),
        (None, {"tennant": "acme"}, None, "no tenant, but tennant: did you mean tenant"),
        (None, {"tenant": "acme", "userid": 7}, None, "no user_id, but userid"),
        (None, {"tenant": "acme", "userId": 7}, None, "no user_id, but userId"),
        (None, {"TENANT": "acme"}, None, "no tenant, but TENANT"),
        (Ctx("acme"), {"user_id": object()}, None, "a whole number or a UUID"),
        (Ctx("acme"), {"user_id": "\ud83d"}, None, "a text of whole characters"),
    ],
)
def test_the_values_of_a_scope_are_read_from_every_place(context: Any, configurable: Any, user: Any, labels: Any) -> None:
    runtime = SimpleNamespace(context=context, server_info=SimpleNamespace(user=user))
    if isinstance(labels, tuple):
        assert AgentScope(("tenant", "user_id?")).of_run(runtime, configurable, {}) == labels
        return
    with pytest.raises(ScopeError, match=labels):
        AgentScope(("tenant", "user_id?")).of_run(runtime, configurable, {})


def make(store: Any, tools: Any = (desk.lookup_order, desk.resolve), agent_name: str | None = None, **options: Any) -> Any:
    learner = ICRLMiddleware(store, **options)
    agent = create_agent(
        desk.HeedfulClerk(), list(tools), middleware=[learner], context_schema=Ctx, name=agent_name, store=InMemoryStore()
    )
    return agent, learner


def ask(agent: Any, thread: str, tenant: str | None = "acme") -> None:
    agent.invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": thread}}, context=Ctx(tenant))


def test_tenants_of_context_share_nothing_and_a_missing_one_stops_the_run() -> None:
    agent, learner = make(InMemoryStore(), scope=("tenant",))
    ask(agent, "a")
    learner.feedback("a", reward=1.0, tenant="acme")
    ask(agent, "b", "bob")
    assert learner.conversation("b", tenant="bob").turns[0].advice[0]["recalled"] == []
    with pytest.raises(UserError, match="the run gives none"):
        ask(agent, "c", None)
    with pytest.raises(UserError, match="no value is given: give tenant="):
        learner.feedback("a", reward=1.0)
    with pytest.raises(UserError, match="has tenant; got tennant"):
        learner.feedback("a", reward=1.0, tennant="acme")


@pytest.mark.parametrize(
    "given",
    [
        {"org": "acme"},
        {"organizationId": 7},
        {"customer_id": "acme"},
        {"account": "acme", "user_id": "ann"},
        {"workspace_slug": "acme"},
        {"teamId": "acme", "model": "small"},
    ],
)
@pytest.mark.parametrize("is_context", [False, True])
def test_what_looks_like_a_tenant_and_is_no_part_of_the_scope_is_said_once(
    caplog: pytest.LogCaptureFixture, given: Any, is_context: bool
) -> None:
    agent, learner = make(InMemoryStore(), name="agent")
    context, more = (SimpleNamespace(**given), {}) if is_context else (None, given)
    for thread in "ab":
        agent.invoke({"messages": "Late."}, {"configurable": {"thread_id": thread, **more}}, context=context)
    (name, *_) = given
    words = f"a run gave no tenant, but {name}, which the scope does not name"
    assert caplog.text.count(words) == str(learner.status()).count(words) == 1
    assert f"scope=({name!r},) keeps them apart, and scope=() says that all share" in caplog.text


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (
            {
                "user_id": "ann",
                "session_id": "s",
                "model": "small",
                "language": "en",
                "customer_name": "Ann",
                "company_name": "Acme",
            },
            {},
        ),
        (
            {
                "langgraph_auth_user_id": "ann",
                "assistant_id": "a",
                "graph_id": "g",
                "langgraph_request_id": "r",
                "checkpoint_ns": "",
            },
            {},
        ),
        (
            {
                "account_balance": 3,
                "team_size": 4,
                "workspace": object(),
                "org": "",
                "team": None,
                "customer": True,
                "accounts": "x",
            },
            {},
        ),
        ({"org": "acme", "tenant": "acme"}, {}),
        ({"org": "acme"}, {"scope": ()}),
        ({"org": "acme"}, {"scope": ("org", "team?")}),
        ({"customer": "ann", "org": "acme"}, {"scope": ("org?",)}),
    ],
)
def test_of_other_values_of_a_run_nothing_is_said(caplog: pytest.LogCaptureFixture, given: Any, options: Any) -> None:
    agent, _ = make(InMemoryStore(), name="agent", **options)
    agent.invoke({"messages": "Late."}, {"configurable": {"thread_id": "a", **given}})
    assert "gave no" not in caplog.text


def search(topic: str = "") -> str:
    """Search the manual."""
    return "found"


def escalate() -> str:
    """Hand over."""
    return "done"


def hang_up() -> str:
    """End the call."""
    return "done"


def test_agents_of_one_store_have_names() -> None:
    store = InMemoryStore()
    for name in ("support", "docs"):
        agent, _ = make(store, agent_name=name)
        ask(agent, "a")
    assert {namespace[1] for namespace in store.list_namespaces()} == {"support", "docs"}
    with pytest.raises(UserError, match="the store has the agents docs, support: say which one"):
        make(store)[1].feedback("a", reward=1.0, tenant="acme")
    make(store, name="docs")[1].feedback("a", reward=1.0, tenant="acme")
    with pytest.raises(UserError, match="one middleware serves the agents third and second"):
        create_agent(desk.HeedfulClerk(), [desk.resolve], middleware=[make(store, agent_name="third")[1]], name="second")


class Caller(desk.GuessingClerk):
    """Hands a request to its tool, and repeats what that says."""

    def say(self, messages: Any) -> AIMessage:
        calls = [{"name": "help_out", "args": {"what": messages[-1].text}, "id": "call"}]
        return AIMessage("Done.") if messages[-1].type == "tool" else AIMessage("", tool_calls=calls)


@pytest.mark.parametrize("passed", ["nothing", "config", "thread"])
def test_a_sub_agent_has_its_own_memory_however_its_callers_call_it(passed: str) -> None:
    store, learners = InMemoryStore(), []
    for name in ("clerk", None):
        clerk, learner = make(store, agent_name=name)
        learners.append(learner)

        @tool
        def help_out(what: str, config: RunnableConfig) -> str:
            """Help out."""
            own = {"thread": [{"configurable": {"thread_id": "own"}}], "config": [config]}.get(passed, ())
            return str(clerk.invoke({"messages": what}, *own, context=Ctx("acme"))["messages"][-1].text)

        for caller in ("desk", "shop"):
            mine = ICRLMiddleware(store)
            agent = create_agent(Caller(), [help_out], middleware=[mine], name=caller)
            agent.invoke({"messages": f"from {caller}"}, config(caller))
            steps = mine.conversation(caller, tenant="acme").turns[-1].steps
            assert [step.action.partition("(")[0] for step in steps] == ["help_out", "reply: Done."]
    assert {labels[1] for labels in store.list_namespaces()} == {"clerk", "desk", "shop", "agent"}
    assert [one.status(tenant="acme").consulted for one in learners] == [2, 2]


def test_a_tenant_is_forgotten_with_all_of_its_users_and_a_thread_that_is_not_there_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent, learner = make(store := InMemoryStore(), scope=("tenant", "user_id?"))
    for thread, where in enumerate(wheres := [("a", "ann"), ("a", "bob"), ("a", None), ("b", "ann")]):
        scope = {name: value for name, value in zip(("tenant", "user_id"), where, strict=True) if value}
        agent.invoke({"messages": "hello"}, {"configurable": {"thread_id": f"t{thread}", **scope}})
    with pytest.raises(UserError, match="give tenant="):
        learner.forget(user_id="ann")
    for count in (1, 0):  # what another call has erased is no error
        assert learner.forget(["t0", "nope"], tenant="a", user_id="ann") == count
    assert learner.forget(["t0"], tenant="aa", user_id="ann") == 0
    assert caplog.messages[-1] == f"{learner.method}: nothing is recorded of these values; did you mean a?"
    said = "nothing is kept of the conversations nope in agents/agent/tenant=a/user_id=ann: forgotten before, or misspelt"
    assert [one for one in caplog.messages if "kept" in one and "=aa" not in one] == [said, said.replace("nope", "nope, t0")]
    assert len(wheres) - 1 - learner.forget(tenant="a", user_id=None) - learner.forget(tenant="a") == 1
    assert {one.namespace[2:3] for one in store.search((), limit=100)} == {(), ("tenant=b",)}


def test_agents_of_one_graph_record_their_own_calls_alone() -> None:
    store, graph, learners = InMemoryStore(), StateGraph(MessagesState), [ICRLMiddleware(), ICRLMiddleware()]
    for name, learner in zip(("first", "second"), learners, strict=True):
        tools = [desk.lookup_order, desk.resolve]
        graph.add_node(name, create_agent(desk.HeedfulClerk(), tools, middleware=[learner], name=name))
    graph.add_edge(START, "first").add_edge("first", "second")
    graph.compile(store=store).invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": "t"}})
    done = [[step.action for step in learner.conversation("t").turns[0].steps] for learner in learners]
    assert [len(one) for one in done] == [3, 1]


def test_agents_without_a_name_and_with_other_tools_are_told_to_take_one() -> None:
    store = InMemoryStore()
    ask(make(store)[0], "a")
    ask(make(store, [desk.lookup_order, desk.resolve, search])[0], "b")  # an agent may get another tool
    for options in ({"tools": [escalate, search, hang_up]}, {"tools": []}):
        with pytest.raises(UserError, match="belongs to one with the tools lookup_order, resolve, search, and this one has"):
            ask(make(store, **options)[0], "c")
    ask(make(store, [hang_up], name="agent")[0], "c")


def test_the_only_agent_of_a_store_is_found_before_its_first_run() -> None:
    store = InMemoryStore()
    ask(make(store, agent_name="support")[0], "a")
    assert make(store)[1].feedback("a", reward=1.0, tenant="acme").reward == 1.0


def test_without_a_store_it_takes_that_of_its_graph() -> None:
    agent, learner = make(None)
    with pytest.raises(UserError, match="takes that of its graph"):
        learner.status()
    ask(agent, "a")
    learner.feedback("a", reward=1.0, tenant="acme")
    assert learner.status(tenant="acme").rated == 1
    bare = create_agent(desk.HeedfulClerk(), [desk.resolve], middleware=[ICRLMiddleware()])
    with pytest.raises(UserError, match="no store is known"):
        bare.invoke({"messages": "hello"})


@pytest.mark.parametrize("store", [5, {}, InMemoryStore, "", "chroma:"])
def test_what_is_no_store_is_refused_at_once(store: Any) -> None:
    with pytest.raises(UserError, match=r"store is a (LangGraph store, a folder, a URL, or None|folder or a URL; got ')"):
        ICRLMiddleware(store)


def test_a_store_that_was_not_entered_is_refused_with_the_remedy(tmp_path: Any) -> None:
    from langgraph.store.sqlite import SqliteStore

    with pytest.raises(UserError, match="enter it first"):
        ICRLMiddleware(SqliteStore.from_conn_string(str(tmp_path / "x")))  # type: ignore[arg-type]


def test_export_reaches_as_far_as_forget_and_status_and_learn_name_what_is_told_apart_below() -> None:
    agent, learner = make(InMemoryStore(), scope=("tenant", "user_id?"))
    for user in ("ann", "bob"):
        agent.invoke({"messages": "Hello."}, {"configurable": {"thread_id": user, "tenant": "acme", "user_id": user}})
        learner.feedback(user, reward=1.0, tenant="acme", user_id=user)
    ids = [
        sorted(one["id"] for one in learner.export(**scope))
        for scope in ({"tenant": "acme"}, {"tenant": "acme", "user_id": None})
    ]
    assert ids == [["ann", "bob"], []]
    scopes = [{"tenant": "acme", "user_id": user} for user in ("ann", "bob")]
    assert [one["scope"] for one in learner.export(tenant="acme") if one["agent"] == "agent"] == scopes
    assert learner.scopes() == learner.scopes(tenant="acme") == scopes
    assert {name: one.rated for name, one in learner.learn_all().items()} == {
        "tenant=acme user_id=ann": 1,
        "tenant=acme user_id=bob": 1,
    }
    more = "not counted here is what has a user_id: give user_id, as scopes() lists"
    for read in (learner.status, learner.learn):
        assert more in str(read(tenant="acme"))
        assert "not counted" not in str(read(tenant="acme", user_id="ann"))
    assert learner.forget(tenant="acme") == 2
    assert more not in str(learner.status(tenant="acme"))
    assert learner.scopes() == []


@pytest.mark.parametrize("value", ["b.c", "x/y=1", "50% é", "user_id=1", "7"])
def test_the_values_of_labels_are_those_that_they_were_made_of(value: str) -> None:
    scope = AgentScope(("tenant", "user_id?"))
    for values in ({"tenant": value, "user_id": None}, {"tenant": "a", "user_id": value}):
        assert scope_of(("agents", "a%2Eb", *scope.labels(values))) == {"agent": "a.b", "scope": values}


def test_two_agents_without_a_name_are_told_of_once_where_their_instructions_differ(caplog: pytest.LogCaptureFixture) -> None:
    """The same agent, made anew, is none of two; neither is one with two learners."""
    store = InMemoryStore()
    kept = [SynapseMiddleware(store) for _ in range(4)]
    for learner, told in zip(kept, ("You bill.", "You bill.", "You ship.", "You ship."), strict=True):
        agent = create_agent(desk.GuessingClerk(), [desk.resolve], system_prompt=told, middleware=[learner])
        agent.invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": told}})
    assert [one.getMessage().partition(": ")[2] for one in caplog.records if "share one memory" in one.getMessage()] == [
        "model (You bill.) and model (You ship.); name each, create_agent(name=...) or name=..."
    ]
