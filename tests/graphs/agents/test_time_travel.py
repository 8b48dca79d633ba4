"""A thread that goes back in time: a rating stays with what was rated, and what was left is no part of what is rated later."""

from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from scripted_chat import SayingChat

from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.memory.conversations.turns import turns_until

THREAD: Any = {"configurable": {"thread_id": "t"}}


def resolve(how: Literal["refund", "replace", "exchange"]) -> str:
    """Resolve the issue."""
    return f"{how}: arranged"


class Changing(SayingChat):
    """Resolves each request in another way than the one before: refund, replace, exchange."""

    calls: int = 0

    def bind_tools(self, tools: Any, **options: Any) -> "Changing":
        return self

    def say(self, messages: Any, **options: Any) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage(f"Done: {messages[-1].text}")
        how = ("refund", "replace", "exchange")[self.calls % 3]
        self.calls += 1
        return AIMessage("", tool_calls=[{"name": "resolve", "args": {"how": how}, "id": f"c{self.calls}"}])


def make(*learners: Any) -> Any:
    return create_agent(Changing(), [resolve], middleware=[*learners], checkpointer=InMemorySaver())


def regenerate(agent: Any, requests: int = 1) -> list[Any]:
    """The messages after the last reply was made anew."""
    history = agent.get_state_history(THREAD)
    before = next(
        one
        for one in history
        if one.next == ("model",)
        and sum(isinstance(m, HumanMessage) for m in one.values["messages"]) == requests
        and isinstance(one.values["messages"][-1], HumanMessage)
    )
    return list(agent.invoke(None, before.config)["messages"])


def rated(learner: Any) -> dict[str, tuple[list[str], float | None]]:
    """Id of a rated stretch -> its calls, and its reward."""
    kept = learner._conversations({}).trajectories.all()
    return {
        one.id: ([step.action for step in one.transitions if "resolve" in step.action], one.transitions[-1].reward)
        for one in kept
    }


REFUND, REPLACE, EXCHANGE = (f"resolve(how='{how}')" for how in ("refund", "replace", "exchange"))


@pytest.mark.parametrize("by_id", [True, False])
def test_a_rating_stays_with_the_reply_that_was_rated(by_id: bool) -> None:
    learner = SynapseMiddleware(InMemoryStore())
    agent = make(learner)
    first = agent.invoke({"messages": "late"}, THREAD)["messages"][-1].id
    learner.feedback("t", reward=1.0, **({"message_id": first} if by_id else {}))
    second = regenerate(agent)[-1].id
    assert rated(learner) == {"t/0": ([REFUND], 1.0)}
    assert "turn 1, which the thread has left by going back in time:" in learner.explain("t")
    learner.feedback("t", reward=-1.0)
    assert rated(learner) == {"t/0": ([REFUND], 1.0), "t/1": ([REPLACE], -1.0)}
    learner.feedback("t", text="wonderful", message_id=first)
    learner.feedback("t", reward=0.0, message_id=second)
    assert rated(learner) == {"t/0": ([REFUND], 1.0), "t/1": ([REPLACE], 0.0)}
    assert learner.retract(message_id=first).text == "wonderful"


def test_a_reply_that_was_made_anew_can_be_rated_later() -> None:
    learner = SynapseMiddleware(InMemoryStore())
    agent = make(learner)
    first = agent.invoke({"messages": "late"}, THREAD)["messages"][-1].id
    regenerate(agent)
    regenerate(agent)
    learner.feedback("t", reward=1.0)
    assert rated(learner) == {"t/2": ([EXCHANGE], 1.0)}, "feedback on the thread is about the reply that stands"
    learner.feedback("t", reward=0.0, message_id=first)
    assert rated(learner) == {"t/0": ([REFUND], 0.0), "t/2": ([EXCHANGE], 1.0)}


def test_what_a_thread_has_left_is_no_part_of_what_is_rated_later() -> None:
    learner = SynapseMiddleware(InMemoryStore())
    agent = make(learner)
    agent.invoke({"messages": "late 1"}, THREAD)
    base = agent.get_state(THREAD).config
    agent.invoke({"messages": "late 2, first wording"}, THREAD)
    left = agent.get_state(THREAD).config
    agent.invoke({"messages": "late 2, edited"}, base)
    assert [turn in turns_until(learner.conversation("t")) for turn in learner.conversation("t").turns] == [True, False, True]
    learner.feedback("t", reward=1.0)
    assert rated(learner) == {"t/2": ([REFUND, EXCHANGE], 1.0)}
    assert learner.explain("t").endswith("user gave it reward 1 (of turns 1, 3)")
    agent.invoke({"messages": "late 3"}, left)
    learner.feedback("t", reward=0.0)
    assert rated(learner) == {"t/2": ([REFUND, EXCHANGE], 1.0), "t/3": ([REPLACE, REFUND], 0.0)}, "each turn is rated once"
    assert "turn 3, which the thread has left by going back in time:" in learner.explain("t")


def test_the_user_of_a_thread_that_went_back_rates_the_turn_that_stands() -> None:
    said = list[str]()

    def next_turn(messages: Any) -> float:
        said.append(str(messages[-1].text))
        return 0.0

    learner = SynapseMiddleware(InMemoryStore(), next_turn=next_turn)
    agent = make(learner)
    agent.invoke({"messages": "late 1"}, THREAD)
    base = agent.get_state(THREAD).config
    agent.invoke({"messages": "late 2, first wording"}, THREAD)
    agent.invoke({"messages": "late 2, edited"}, base)
    assert said == ["late 2, first wording", "late 2, edited"]
    assert rated(learner) == {"t/0": ([REFUND], 0.0)}, "both are said of the first turn"


def test_a_comment_on_one_of_several_turns_leaves_it_the_reward_of_all() -> None:
    learner = SynapseMiddleware(InMemoryStore())
    agent = make(learner)
    replies = [agent.invoke({"messages": f"late {n}"}, THREAD)["messages"][-1].id for n in range(3)]
    learner.feedback("t", reward=1.0)
    learner.feedback("t", text="quick", message_id=replies[1])
    assert rated(learner) == {"t/1": ([REPLACE], 1.0), "t/2": ([REFUND, EXCHANGE], 1.0)}
    assert [one.note for one in rated_records(learner)] == ["quick", ""]
    learner.feedback("t", reward=-1.0, message_id=replies[1])
    assert rated(learner) == {"t/1": ([REPLACE], -1.0), "t/2": ([REFUND, EXCHANGE], 1.0)}


@pytest.mark.parametrize("first", ["jitrl", "synapse"])
def test_two_learners_of_one_agent_compare_states_each_in_its_own_way(first: str) -> None:
    store = InMemoryStore()
    learners: list[Any] = [
        JitRLMiddleware(store, decide=["resolve"], state_key=lambda messages: "always"),
        SynapseMiddleware(store),
    ]
    agent = make(*(learners if first == "jitrl" else learners[::-1]))
    for n in range(3):
        agent.invoke({"messages": f"my order came late {n}"}, {"configurable": {"thread_id": f"t{n}"}})
        for one in learners:
            one.feedback(f"t{n}", reward=1.0)
    for one in learners:
        assert one.status().recalled > 0, one.status()
        other = "synapse" if one.method == "jitrl" else "jitrl"
        assert f"{one.method}: recalled" in one.explain("t2")
        assert f"{other}: " not in one.explain("t2")
    states = {step.state for one in rated_records(learners[0]) for step in one.for_method("jitrl").transitions}
    assert states == {"always"}
    assert all("late" in step.state for one in rated_records(learners[0]) for step in one.for_method("synapse").transitions)


def rated_records(learner: Any) -> list[Any]:
    """The rated stretches."""
    return list(learner._conversations({}).trajectories.all())


def test_a_call_that_waits_when_the_user_goes_on_was_never_made() -> None:
    learner = SynapseMiddleware(InMemoryStore())
    agent = create_agent(
        Changing(), [resolve], middleware=[HumanInTheLoopMiddleware({"resolve": True}), learner], checkpointer=InMemorySaver()
    )
    agent.invoke({"messages": "late"}, THREAD)
    learner.feedback("t", reward=1.0)
    assert rated(learner) == {"t/0": ([REFUND], 1.0)}
    agent.invoke({"messages": "never mind"}, THREAD)
    assert rated(learner) == {}, "nothing was done"
    assert [step.action for step in learner.conversation("t").turns[0].steps] == []
    learner.feedback("t", reward=0.5)
    assert [(one.id, one.task.instruction) for one in rated_records(learner)] == [("t/1", "never mind")], "what is answered"


def test_what_was_released_says_nothing_of_later_turns() -> None:
    learner = SynapseMiddleware(InMemoryStore(), hold=True)
    agent = make(learner)
    for n in range(2):
        agent.invoke({"messages": f"late {n}"}, THREAD)
        learner.feedback("t", reward=1.0)
        assert len(rated(learner)) == n, "the last one waits"
        assert list(learner.quarantine_reasons()) == ["t"]
        learner.release("t")
        assert (len(rated(learner)), learner.quarantine_reasons()) == (n + 1, {})


def test_each_turn_is_rated_once_also_where_the_last_one_is_made_anew() -> None:
    learner = SynapseMiddleware(InMemoryStore())
    agent = make(learner)
    for n in range(2):
        agent.invoke({"messages": f"late {n}"}, THREAD)
    learner.feedback("t", reward=1.0)
    regenerate(agent, requests=2)
    learner.feedback("t", reward=0.0)
    assert rated(learner) == {"t/1": ([REFUND, REPLACE], 1.0), "t/2": ([EXCHANGE], 0.0)}


def test_of_several_readers_the_low_median_counts_and_a_reward_that_is_taken_back_no_more() -> None:
    learner = SynapseMiddleware(InMemoryStore(), reward=lambda messages: 0.5)
    agent = make(learner)
    agent.invoke({"messages": "late"}, THREAD)
    assert [one.score for one in learner._conversations({}).trajectories.all()] == [0.5]
    assert learner.feedback("t", reward=1.0, text="nice").reward == 1.0, "feedback comes before reward="
    assert "user gave it reward 1: nice" in learner.explain("t")
    assert [learner.feedback("t", reward=reward, source=who).reward for who, reward in (("b", 1), ("c", 0), ("d", 0))] == [
        1,
        1,
        0,
    ]
    learner.feedback("t", reward=1.0, text="right", source="d")
    learner.feedback("t", text="bad tone", source="qa")
    assert "d gave it reward 1, the low median of 4 readers: d: right; " in learner.explain("t")
    assert "qa: bad tone" in learner.explain("t")
    assert "user: nice" in learner.explain("t")
    rewards = []
    for who in ("qa", "b", "user", "d", "c"):
        learner.retract("t", source=who)
        rewards.append(learner._conversations({}).trajectories.all()[0].score)
    assert rewards == [1.0, 1.0, 0.0, 0.0, 0.5]


def test_a_run_that_an_event_begins_is_rated_by_itself_where_the_turn_before_was_rated() -> None:
    learner = SynapseMiddleware(InMemoryStore())
    agent = make(learner)
    ids = [agent.invoke({"messages": "late"}, THREAD)["messages"][-1].id]
    learner.feedback("t", reward=1.0, text="right")
    for _ in range(2):
        ids.append(agent.invoke({"messages": [SystemMessage("event: it has arrived")]}, THREAD)["messages"][-1].id)
        learner.feedback("t", reward=0.0, message_id=ids[-1])
    assert rated(learner) == {"t/0": ([REFUND], 1.0), "t/1": ([REPLACE], 0.0), "t/2": ([EXCHANGE], 0.0)}
    learner.feedback("t", reward=0.5, message_id=ids[1])
    assert [one.reward for one in learner._conversations({}).ratings("t")] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("scope", [("tenant?",), ("tenant",)])
def test_a_run_from_a_checkpoints_config_stays_with_its_tenant(scope: tuple[str, ...]) -> None:
    learner = SynapseMiddleware(InMemoryStore(), scope=scope, user="user_id")
    agent = create_agent(Changing(), [resolve], middleware=[learner], checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "t", "tenant": "acme", "user_id": "ann"}}
    agent.invoke({"messages": "Hello"}, thread)
    before = [one for one in agent.get_state_history(thread) if one.next == ("model",)][-1]
    assert "tenant" not in before.config["configurable"]
    agent.invoke(None, before.config)
    assert learner.scopes() == [{"tenant": "acme"}]
    talk = learner.conversation("t", tenant="acme")
    assert (len(talk.turns), talk.user) == (2, "user_id=ann")


def test_an_agent_whose_learner_is_off_needs_no_tenant() -> None:
    learner = SynapseMiddleware(InMemoryStore(), scope=("tenant",), mode="off")
    agent = create_agent(Changing(), [resolve], middleware=[learner])
    assert agent.invoke({"messages": "Hello"})["messages"][-1].text == "Done: refund: arranged"
