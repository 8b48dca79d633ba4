"""Turns of every kind can be rated, feedback merges, and a graph of one's own learns with a node."""

import asyncio
import logging
import operator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import help_desk as desk
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelCallLimitMiddleware, SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.store.memory import InMemoryStore
from langgraph.types import Send
from learning_agents import METHODS, config, make
from scripted_agent import ScriptedCalls
from scripted_chat import SayingChat
from variants import quick
from waiting import PATIENCE

from learngraph.graphs.agents.icrl import ICRLMiddleware
from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.agents.learner import LearningState, rate_agents
from learngraph.graphs.agents.scope_memories import ScopeMemory
from learngraph.graphs.agents.status import LearnerStatus
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.memory.conversations.messages import count_turns_before
from learngraph.memory.conversations.store import ConversationStore
from learngraph.memory.errors import UserError

TOOLS = [desk.lookup_order, desk.resolve]


class Failing(desk.GuessingClerk):
    def say(self, messages: Any) -> AIMessage:
        if len(messages) > 2:
            raise ConnectionError("no model")
        return super().say(messages)


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("of_agents", [False, True])
def test_a_thumb_without_ids_is_about_the_turn_before_the_one_at_work(of_agents: bool, awaited: bool) -> None:
    begun, goes_on = Event(), Event()

    @tool
    def track(order: str) -> str:
        """Track an order."""
        if order == "A2":
            begun.set()
            assert goes_on.wait(PATIENCE)
        return "shipped"

    learner = ICRLMiddleware(InMemoryStore())
    model = ScriptedCalls(calls=[("track", {"order": "A1"}), None, ("track", {"order": "A2"}), None])
    agent = create_agent(model, [track], middleware=[learner], checkpointer=InMemorySaver())

    def ask(order: str) -> None:
        asked: Any = {"messages": f"Where is {order}?"}
        asyncio.run(agent.ainvoke(asked, config("a"))) if awaited else agent.invoke(asked, config("a"))

    ask("A1")
    with ThreadPoolExecutor() as threads:
        running = threads.submit(ask, "A2")
        assert begun.wait(PATIENCE)
        said: Any = {"reward": -1.0, "text": "bad", "tenant": "acme"}
        thumb = rate_agents([learner], "a", **said)["agent"] if of_agents else learner.feedback("a", **said)
        goes_on.set()
        running.result()
    first, second = learner.conversation("a", tenant="acme").turns
    assert (thumb.turn, len(first.steps), len(second.steps)) == (first.id, 2, 2)
    assert learner.feedback("a", reward=1.0, tenant="acme").turn == second.id
    (exported,) = learner.export(tenant="acme")
    assert [(one["turn"], one["reward"]) for one in exported["ratings"]] == [(first.id, -1.0), (second.id, 1.0)]


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("kind", ["fails", "fails at once", "recursion", "limit", "waits"])
def test_a_run_that_did_not_end_well_can_be_rated(kind: str, awaited: bool) -> None:
    learner = ICRLMiddleware(InMemoryStore())
    more: Any = {"limit": ModelCallLimitMiddleware(run_limit=1, exit_behavior="error")}.get(kind)
    more = HumanInTheLoopMiddleware({"resolve": True}) if kind == "waits" else more
    model = Failing() if kind == "fails" else desk.GuessingClerk()
    if kind == "fails at once":
        object.__setattr__(model, "say", lambda messages: (_ for _ in ()).throw(ConnectionError("no model")))
    agent = create_agent(model, TOOLS, middleware=[learner, *([more] if more else [])], checkpointer=InMemorySaver())
    settings = {**config("a"), "recursion_limit": 5 if kind == "recursion" else 100}
    asked: Any = {"messages": desk.ticket(0)[0]}
    with nullcontext() if kind == "waits" else pytest.raises(Exception, match=r"no model|[Rr]ecursion|limit"):
        asyncio.run(agent.ainvoke(asked, settings)) if awaited else agent.invoke(asked, settings)
    rating = learner.feedback("a", reward=0.0, text="no answer", tenant="acme")
    assert rating.reward == 0.0
    (turn,) = learner.conversation("a", tenant="acme").turns
    assert (turn.steps == ()) == (kind == "fails at once")


def test_feedback_merges_field_by_field_and_none_is_nothing() -> None:
    agent, learner, _ = make("icrl")
    run, thread = uuid4(), uuid4()
    agent.invoke({"messages": desk.ticket(0)[0]}, {**config(str(thread)), "run_id": run})
    learner.feedback(thread, reward=0.0, text=None, run_id=run, tenant="acme")
    learner.feedback(thread, text="the carrier should have been asked", tenant="acme")
    rating = learner.feedback(thread, reward=0.5, text=None, tenant="acme")
    assert (rating.reward, rating.text) == (0.5, "the carrier should have been asked")
    with pytest.raises(UserError, match="a reward is a number from -1 to 1, got 5; where rewards have another scale"):
        learner.feedback(thread, reward=5, tenant="acme")


def test_the_words_of_each_source_stay_until_it_says_something_else() -> None:
    agent, learner, _ = make("icrl")
    agent.invoke({"messages": desk.ticket(0)[0]}, config("a"))
    for source, text in (("reviewer", "Too dear."), ("user", "Thanks."), ("user", "Thank you!"), ("reviewer", "Too slow.")):
        rating = learner.feedback("a", text=text, source=source, reward=0.5 if source == "user" else None, tenant="acme")
    assert (rating.words, rating.reward) == ("user: Thank you!; reviewer: Too slow.", 0.5)
    assert learner._conversations({"tenant": "acme"}).trajectories.all()[0].note == rating.words
    assert learner.feedback("a", text=" \n", reward=0.5, tenant="acme").text == "Thank you!"
    with pytest.raises(UserError, match="feedback: give a reward, a text, or both"):
        learner.feedback("a", text="  ", tenant="acme")
    rating = learner.feedback("a", text="", source="reviewer", tenant="acme")
    assert (rating.words, rating.source) == ("Thank you!", "user"), "who gave the reward has decided"


def test_stars_lie_between_minus_one_and_one() -> None:
    agent, learner, _ = make("synapse", reward_range=(1, 5))
    for n, stars in enumerate((1, 2, 3, 4, 5)):
        agent.invoke({"messages": desk.ticket(0)[0]}, config(f"t{n}"))
        learner.feedback(f"t{n}", reward=stars, tenant="acme")
    ratings = [one["ratings"][0]["reward"] for one in learner.export(tenant="acme")]
    assert ratings == [-1.0, -0.5, 0.0, 0.5, 1.0]
    with pytest.raises(UserError, match="feedback has a source, such as 'user'; got ''"):
        learner.feedback("t0", reward=3, source="", tenant="acme")
    assert learner.rank(["t0", "t1"], tenant="acme") == {"t0": 5.0, "t1": 1.0}


@pytest.mark.parametrize(("scale", "least"), [((1, 5), -1.0), (None, 0.0)])
@pytest.mark.parametrize("is_up", [True, False])
def test_a_thumb_is_the_greatest_reward_or_that_of_a_failure_whoever_gives_it(is_up: bool, scale: Any, least: float) -> None:
    agent, learner, _ = make("synapse", reward_range=scale, reward=lambda messages: {"score": is_up})
    for thread in ("judged", "rated"):
        agent.invoke({"messages": desk.ticket(0)[0]}, config(thread))
    learner.feedback("rated", reward=is_up, tenant="acme")
    assert [one["ratings"][0]["reward"] for one in learner.export(tenant="acme")] == [1.0 if is_up else least] * 2


@pytest.mark.parametrize("awaited", [False, True])
def test_a_reward_may_be_awaited(awaited: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def judge(messages: Any) -> tuple[float, str]:
        await asyncio.sleep(0)
        return 1.0, "well done"

    agent, learner, _ = make("icrl", reward=judge)
    with caplog.at_level(logging.WARNING):
        asked = {"messages": desk.ticket(0)[0]}
        asyncio.run(agent.ainvoke(asked, config("a"))) if awaited else agent.invoke(asked, config("a"))
    assert "judge gave it reward 1: well done" in learner.explain("a", tenant="acme")


@pytest.mark.parametrize("method", ["jitrl", "adamem"])
def test_the_record_in_the_state_is_that_of_the_last_turn(method: str) -> None:
    agent, _, _ = make(method)
    for n in range(3):
        out = agent.invoke({"messages": desk.ticket(n)[0]}, config("a"))
        assert len(out["learning"]) == 3


@pytest.mark.parametrize("method", quick(METHODS, "icrl", "lessons"))
def test_every_streamed_message_is_in_the_state(method: str) -> None:
    agent, learner, _ = make(method, task=desk.issue, state_key=desk.issue)
    for n in range(16):
        chunks = agent.stream({"messages": desk.ticket(n)[0]}, config(f"t{n}"), stream_mode="messages")
        streamed = {chunk.id for chunk, _ in chunks}
        state = agent.get_state(config(f"t{n}")).values["messages"]
        assert streamed <= {message.id for message in state}
        learner.feedback(f"t{n}", reward=desk.reward(state, desk.ticket(n)[1]), tenant="acme")


@pytest.mark.parametrize("awaited", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(("method", "schema"), [("reasoning-bank", LearningState), ("adamem-max", MessagesState)])
def test_a_graph_of_ones_own_learns_with_a_node(method: str, schema: Any, awaited: bool) -> None:
    """Whether or not its state has room for what the learner did."""
    _, learner, model = make(method)
    builder = StateGraph(schema)
    builder.add_node("model", learner.node(model, TOOLS, "You help customers."))
    builder.add_node("tools", ToolNode(TOOLS))
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    graph = builder.compile(checkpointer=InMemorySaver())
    rewards = desk.play(graph, learner, range(24), awaited=awaited)
    assert sum(rewards[-8:]) == 8
    (turn,) = learner.conversation("t23", tenant="acme").turns
    assert [len(turn.steps), len(turn.advice)] == [3, 3]
    assert turn.advice[-1]["cached"] > 0.5, "advice stays where it was given"


@pytest.mark.parametrize("schema", [LearningState, MessagesState])
def test_what_other_nodes_say_is_none_of_the_actions_of_a_node(schema: Any) -> None:
    read = list[str]()
    learner = ICRLMiddleware(InMemoryStore(), next_turn=lambda talk: read.append(talk[-1].text) or 1.0)
    builder = StateGraph(schema)
    builder.add_node("planner", lambda state: {"messages": [AIMessage("Plan: look it up.")]})
    builder.add_node("model", learner.node(model := desk.HeedfulClerk(), TOOLS)).add_node("tools", ToolNode(TOOLS))
    builder.add_node("closer", lambda state: {"messages": [AIMessage("Goodbye.")]})
    builder.add_edge(START, "planner").add_edge("planner", "model").add_edge("tools", "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "closer")
    graph = builder.compile(checkpointer=InMemorySaver())
    for n in range(2):
        out = graph.invoke({"messages": desk.ticket(n)[0]}, config("a"))
    for turn in learner.conversation("a", tenant="acme").turns:
        assert [step.action.partition("(")[0] for step in turn.steps] == ["lookup_order", "resolve", "reply: It is done."]
        assert turn.steps[0].observation_text.startswith("My order A")
        assert len(turn.advice) == 3
    assert read == [desk.ticket(1)[0]], "the turn before is rated by what the user said"
    assert "Plan: look it up." in [message.text for message in out["messages"]]
    sent = [{"role": one.type, "content": one.text} for one in out["messages"] if one.type in ("human", "ai") and one.text]
    graph.invoke({"messages": [*sent, ("user", desk.ticket(2)[0])]}, config("b"))
    (turn,) = learner.conversation("b", tenant="acme").turns
    assert turn.steps[0].observation_text == desk.ticket(2)[0], "what a client sends as history has no signatures"
    assert len(model.seen) == 9


def test_nodes_of_two_learners_of_one_method_keep_what_they_did_apart() -> None:
    """The second one recalls what it has learned itself, and its trials are its own."""
    store, saver = InMemoryStore(), InMemorySaver()
    first, second = (ICRLMiddleware(store, name=name, control=0.5) for name in ("first", "second"))
    builder = StateGraph(LearningState)
    builder.add_node("first", first.node(FakeListChatModel(responses=["Hello."])))
    builder.add_node("second", second.node(FakeListChatModel(responses=["Goodbye."])))
    graph = builder.add_edge(START, "first").add_edge("first", "second").compile(checkpointer=saver)
    for n in range(8):
        out = graph.invoke({"messages": desk.ticket(n)[0]}, config(f"t{n}"))
        first.feedback(f"t{n}", reward=1.0, tenant="acme")
    assert [entry["agent"] for entry in out["learning"]] == ["first", "second"]
    for learner, has_trials in ((first, True), (second, False)):
        (turn,) = learner.conversation("t7", tenant="acme").turns
        assert len(turn.advice) == 1
        assert ("trial" in turn.advice[0]) == bool(turn.advice[0]["recalled"]) == has_trials
        assert "agent" not in turn.advice[0], "its conversations name the agent already"
    second.feedback("t7", reward=0.0, tenant="acme")
    assert first.lift(tenant="acme").memory is not None
    assert second.lift(tenant="acme").memory is None


class Talk(TypedDict):
    talk: list[Any]


@pytest.mark.parametrize(
    ("arguments", "schema", "says"),
    [
        (("gpt",), MessagesState, "node: model is a chat model .*; got 'gpt'"),
        ((desk.HeedfulClerk(), desk.resolve), MessagesState, "node: tools is a sequence; got"),
        ((desk.HeedfulClerk(), [3]), MessagesState, "node: tools is a sequence, each of it .* a function; got \\[3\\]"),
        ((desk.HeedfulClerk(),), Talk, "a state has `messages`, as MessagesState; this one has talk"),
        ((FakeListChatModel(responses=["Hello."]),), MessagesState, ""),
    ],
)
def test_a_node_says_what_it_cannot_work_with_and_answers_where_nobody_has_asked(
    arguments: Any, schema: Any, says: str
) -> None:
    with pytest.raises(UserError, match=says) if says else nullcontext():
        builder = StateGraph(schema).add_node("model", make("synapse")[1].node(*arguments)).add_edge(START, "model")
        given: Any = {"messages": []} if schema is MessagesState else {"talk": []}
        assert builder.compile().invoke(given, config("a"))["messages"][-1].type == "ai"


def test_turns_are_told_apart_where_messages_have_no_ids() -> None:
    """As in Deep Agents, whose messages of users have none."""

    class Bare(LearningState):
        messages: Annotated[list[Any], operator.add]  # type: ignore[misc]

    _, learner, model = make("synapse", state_key=desk.issue)
    builder = StateGraph(Bare).add_node("model", learner.node(model, TOOLS)).add_node("tools", ToolNode(TOOLS))
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    graph = builder.compile(checkpointer=InMemorySaver())
    for n in range(2):
        graph.invoke({"messages": [HumanMessage(desk.ticket(n)[0])]}, config("a"))
        learner.feedback("a", reward=1.0, tenant="acme")
    first, second = learner.conversation("a", tenant="acme").turns
    assert [len(first.advice), len(second.advice), second.id] == [3, 3, "turn 2"]


@pytest.mark.parametrize("shared", [False, True])
def test_each_branch_of_send_is_a_turn_with_its_own_calls(shared: bool) -> None:
    """Where `Send` hands over messages without ids, as where all branches have the user's message; a repeated thread keeps all turns."""
    _, learner, model = make("synapse")
    asked = ["It is late.", "It is broken."]

    def fan_out(state: Any) -> list[Send]:
        rest = state["messages"] if shared else []
        own = [[SystemMessage(text), *rest] if shared else [HumanMessage(text)] for text in asked]
        return [Send("model", {"messages": one}) for one in own]

    builder = (
        StateGraph(LearningState).add_node("model", learner.node(model, TOOLS)).add_conditional_edges(START, fan_out, ["model"])
    )
    graph = builder.compile(checkpointer=InMemorySaver())
    for _ in range(2):
        graph.invoke({"messages": "Please help."}, config("a"))
    turns = learner.conversation("a", tenant="acme").turns
    assert [len(turn.steps) for turn in turns] == [1] * 4
    assert sorted(turn.steps[0].observation_text for turn in turns) == (["Please help."] * 4 if shared else sorted(asked * 2))
    with pytest.raises(UserError, match="a branch of Send has a message of the user") if shared else nullcontext():
        graph.invoke({"messages": []}, config("b"))


@pytest.mark.slow
def test_ten_praises_are_enough_for_a_decision_to_be_taken() -> None:
    agent, learner, _ = make("jitrl", model=desk.GuessingClerk(seed=1))
    taken = list[str]()
    praises = 0
    for n in range(0, 240, 4):
        out = agent.invoke({"messages": desk.ticket(n)[0]}, config(f"t{n}"))
        how = next(c["args"]["how"] for m in out["messages"] for c in getattr(m, "tool_calls", ()) if c["name"] == "resolve")
        if praises < 10 and how == "replace":
            praises += 1
            learner.feedback(f"t{n}", reward=1.0, tenant="acme")
        elif praises == 10:
            taken.append(how)
    assert taken.count("replace") > 0.6 * len(taken)


def test_status_says_what_would_make_states_alike() -> None:
    assert "25% of 40 model calls: states are hardly ever alike; give a state_key" in str(LearnerStatus("jitrl", 9, 40, 10))
    assert LearnerStatus("jitrl", 9, 40, 30).problems == ()
    assert LearnerStatus("icrl", 9, 40, 0, early=40).problems == (
        "all 40 model calls came before there was anything to recall",
    )
    assert LearnerStatus("icrl", 9, 40, 0, early=9).problems[0].startswith("nothing that was rated was alike: states are")
    assert "state_key" not in str(LearnerStatus("reasoning-bank", 9, 40, 0, waiting=9))
    assert LearnerStatus("reasoning-bank", 2, 21, 9, early=12, lessons=1, nearest=0.0).problems == (), (
        "memory was empty until then"
    )
    (said,) = LearnerStatus("jitrl", 9, 40, 6, early=12, nearest=0.0).problems
    assert said.startswith("recalled in 21% of 28 model calls since there was something to recall: states")
    assert "nearest" not in said


def test_the_log_says_once_that_nothing_is_recalled(caplog: pytest.LogCaptureFixture) -> None:
    memory = ScopeMemory(ConversationStore(InMemoryStore(), ("agents", "a")), object())  # type: ignore[type-var]
    for _ in range(60):
        memory.tally({"method": "synapse", "recalled": []})
    assert caplog.messages == ["synapse: nothing was recalled for the first 50 model calls of agents/a; status() says why"]


def test_a_graph_that_is_awaited_uses_the_learner_without_blocking() -> None:
    async def use() -> tuple[Any, ...]:
        agent, learner, _ = make("icrl")
        await agent.ainvoke({"messages": desk.ticket(0)[0]}, config("a"))
        await learner.afeedback("a", reward=1.0, tenant="acme")
        exported = [one["id"] async for one in learner.aexport(tenant="acme")]
        seen = (await learner.astatus(tenant="acme")).rated, len(await learner.amemory(tenant="acme"))
        said = await learner.aexplain("a", tenant="acme")
        return exported, seen, "gave it reward 1" in said, await learner.aforget(tenant="acme")

    assert asyncio.run(use()) == (["a"], (1, 1), True, 1)


def test_each_rated_turn_is_about_what_was_asked_then_and_a_thread_may_be_a_number() -> None:
    learner = ICRLMiddleware(store := InMemoryStore())
    agent = create_agent(desk.GuessingClerk(), TOOLS, middleware=[learner], checkpointer=InMemorySaver())
    for said in ("Send me apples.", "Cancel all."):
        agent.invoke({"messages": said}, {"configurable": {"thread_id": 5, "tenant": "acme"}})
        learner.feedback(5, reward=1.0, tenant="acme")
    kept = ConversationStore(store, ("agents", "agent", "tenant=acme"))
    assert [one.task.instruction for one in kept.trajectories.all()] == ["Send me apples.", "Cancel all."]
    learner.quarantine(5, "hm", tenant="acme")
    assert learner.quarantine_reasons(tenant="acme") == {"5": "hm"}
    learner.release(5, tenant="acme")
    assert learner.forget([5], tenant="acme") == 1


@pytest.mark.parametrize("is_summarized", [False, True])
@pytest.mark.parametrize("method", quick(["jitrl", "synapse"]))
def test_a_thread_recalls_its_own_turns_also_after_a_summary(method: str, is_summarized: bool) -> None:
    model = desk.GuessingClerk()
    options: dict[str, Any] = {"decide": ["resolve"]} if method == "jitrl" else {}
    learner: Any = {"jitrl": JitRLMiddleware, "synapse": SynapseMiddleware}[method](InMemoryStore(), **options)
    summary = SummarizationMiddleware(model=desk.GuessingClerk(), trigger=("messages", 14), keep=("messages", 8))
    middleware = [summary, learner] if is_summarized else [learner]
    agent = create_agent(model, [desk.lookup_order, desk.resolve], middleware=middleware, checkpointer=InMemorySaver())
    run: Any = {"configurable": {"thread_id": "long"}}
    for _ in range(6):
        agent.invoke({"messages": desk.ticket(0)[0]}, run)
        learner.feedback("long", reward=1)
    turns = learner.conversation("long").turns
    recalled = [{id for entry in one.advice for id in entry["recalled"]} for one in turns]
    assert [f"long/{number}" in found for number, found in enumerate(recalled[1:])] == [True] * 5
    assert not any("summary of the conversation" in step.state for one in turns for step in one.steps)


class Tireless(desk.GuessingClerk):
    """Looks twelve orders up before it replies."""

    looked: int = 0

    def say(self, messages: Any) -> AIMessage:
        if self.looked == 12:
            return AIMessage("Done.")
        self.looked += 1
        call = {"name": "lookup_order", "args": {"order": f"A{self.looked}"}, "id": f"c{self.looked}"}
        return AIMessage("", tool_calls=[call])  # type: ignore[list-item]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_turn_whose_beginning_is_summarized_is_one_turn(awaited: bool) -> None:
    def rewarded(messages: Any) -> float:
        return 0.5

    learner = SynapseMiddleware(InMemoryStore(), reward=rewarded)
    summary = SummarizationMiddleware(model=desk.GuessingClerk(), trigger=("messages", 8), keep=("messages", 4))
    agent = create_agent(Tireless(), TOOLS, middleware=[summary, learner], checkpointer=InMemorySaver())
    run: Any = {"configurable": {"thread_id": "long"}, "recursion_limit": 200}
    asked: Any = {"messages": "Look all my orders up."}
    out = asyncio.run(agent.ainvoke(asked, run)) if awaited else agent.invoke(asked, run)
    learner.feedback("long", reward=1.0, message_id=out["messages"][-1].id)
    assert "not rated" not in str(learner.status()), "what reward= says is about the turn, whose message is gone"
    assert learner.conversation("long").task.instruction == "Look all my orders up.", "and it is about what was asked"
    assert learner._conversations({}).ratings("long")[0].earlier == {"rewarded": 0.5}
    (turn,) = learner.conversation("long").turns
    assert [step.action for step in turn.steps] == [*(f"lookup_order(order='A{n}')" for n in range(1, 13)), "reply: Done."]
    assert [len(one.transitions) for one in learner._conversations({}).trajectories.all()] == [13]


def test_turns_before_are_told_from_ids_and_those_ahead_of_someone_who_went_back_do_not_count() -> None:
    first, second, now = (HumanMessage(id, id=id) for id in ("a", "b", "now"))
    summary = HumanMessage("So far: ...", id="s", additional_kwargs={"lc_source": "summarization"})
    assert count_turns_before([first, second, now], [], "now") == 2
    assert count_turns_before([first, now], ["a", "b", "c"], "now") == 1
    assert count_turns_before([summary, second, now], ["a", "b"], "now") == 2
    assert count_turns_before([summary, now], ["a", "b", "c", "now"], "now") == 3


def test_a_rated_turn_in_which_the_agent_did_nothing_says_that_nothing_is_learned() -> None:
    class Broken(SayingChat):
        def say(self, messages: Any, **options: Any) -> AIMessage:
            raise OSError("the model is away")

    learner = make("synapse")[1]
    agent = create_agent(Broken(), [], middleware=[learner])
    with pytest.raises(OSError, match="the model is away"):
        agent.invoke({"messages": "Help."}, config("a"))
    learner.feedback("a", reward=0.0, tenant="acme")
    assert learner.explain("a", tenant="acme").endswith("reward 0: nothing is learned, since the agent did nothing")
