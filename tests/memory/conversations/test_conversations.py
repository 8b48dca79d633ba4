"""Conversations become trajectories and come back; other tools' records are read."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from learngraph.memory.conversations import messages as conversations
from learngraph.memory.conversations.screen import Screen
from learngraph.memory.errors import UserError
from learngraph.memory.records import Trajectory
from learngraph.memory.storage.record_store import from_json, to_json

TALK = [
    SystemMessage("Be brief."),
    HumanMessage("My order A7 arrived broken."),
    AIMessage(
        "", tool_calls=[{"name": "lookup", "args": {"order": "A7"}, "id": "1"}, {"name": "policy", "args": {}, "id": "2"}]
    ),
    ToolMessage("shipped", tool_call_id="1", name="lookup"),
    ToolMessage("30 days", tool_call_id="2", name="policy"),
    AIMessage("", tool_calls=[{"name": "resolve", "args": {"how": "replace", "amount": 2.5}, "id": "3"}]),
    ToolMessage("done", tool_call_id="3", name="resolve"),
    AIMessage("A new one is on its way."),
    HumanMessage("thank you"),
    AIMessage("You are welcome."),
]


def test_steps_by_hand() -> None:
    found = conversations.trajectory(TALK, 0.5, run="t1", domain="support")
    assert [step.action for step in found.transitions] == [
        "lookup(order='A7')",
        "policy()",
        "resolve(amount=2.5, how='replace')",
        "reply: A new one is on its way.",
        "reply: You are welcome.",
    ]
    assert [step.reward for step in found.transitions] == [0, 0, 0, 0, 0.5]
    assert found.transitions[0].state == found.transitions[1].state == "My order A7 arrived broken."
    assert found.transitions[2].state == "My order A7 arrived broken.\nlookup: shipped\npolicy: 30 days"
    assert found.transitions[2].observation == "lookup: shipped\npolicy: 30 days"
    assert found.transitions[4].state == "My order A7 arrived broken.\nthank you"
    assert (found.id, found.value, found.task.instruction) == ("t1/0", 0.5, "My order A7 arrived broken.")
    assert conversations.last_turn(TALK[:7]) == "My order A7 arrived broken.\nlookup: shipped\npolicy: 30 days\nresolve: done"
    assert from_json(Trajectory, json.loads(json.dumps(to_json(found)))) == found


def test_calls_of_one_message_are_told_from_calls_that_read_the_same() -> None:
    """An agent that asks again and again reads the same each time."""
    calls: Any = [{"name": name, "args": {}, "id": name} for name in ("ask", "look")]
    polls: Any = [AIMessage("", tool_calls=[{"name": "poll", "args": {}, "id": f"p{n}"}]) for n in range(2)]
    results = [ToolMessage("pending", name="poll", tool_call_id=f"p{n}") for n in range(2)]
    found = [ToolMessage("pending", name=name, tool_call_id=name) for name in ("ask", "look")]
    talk = [
        HumanMessage("Help."),
        AIMessage("", tool_calls=calls),
        *found,
        polls[0],
        results[0],
        polls[1],
        results[1],
        AIMessage("Late."),
    ]
    done = conversations.steps(talk)
    assert [step.observation for step in done] == [
        "Help.",
        conversations.AT_ONCE,
        "ask: pending\nlook: pending",
        "poll: pending",
        "poll: pending",
    ]
    back = [message.type for _, read, said in conversations.told_steps(done) for message in (*read, said)]
    assert back == ["human", "ai", "ai", "tool", "tool", "ai", "tool", "ai", "tool", "ai"]


def test_messages_come_back() -> None:
    found = conversations.trajectory(TALK, 0.5, run="t1", domain="support")
    back = [message for _, read, said in conversations.told_steps(found.transitions) for message in (*read, said)]
    assert [m.type for m in back] == ["human", "ai", "ai", "tool", "tool", "ai", "tool", "ai", "human", "ai"]
    assert [str(m.text) for m in back if m.type != "ai"] == [str(m.text) for m in TALK[1:] if m.type != "ai"]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_rewards_are_finite_and_something_was_done(reward: float) -> None:
    with pytest.raises(UserError, match="finite number or None"):
        conversations.trajectory(TALK, reward)
    with pytest.raises(UserError, match="got 1 messages without one"):
        conversations.trajectory([HumanMessage("hello")], 1.0)
    assert conversations.trajectory(TALK, None).value is None


@pytest.mark.parametrize(
    "text",
    ["resolve", "resolve('a')", "resolve(**x)", "resolve(a=open('x'))", "a.b(c=1)", "f(a=__import__('os'))", "(" * 500, ""],
)
def test_what_is_no_call_is_refused_and_nothing_is_evaluated(text: str) -> None:
    with pytest.raises(UserError, match="asked for a call such as"):
        conversations.read_call(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e99, 1e99) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda name: not __import__("keyword").iskeyword(name))
CALLS = st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3))


@given(CALLS)
def test_a_call_is_read_as_it_was_written(call: tuple[str, dict[str, Any]]) -> None:
    assert conversations.read_call(conversations.call_text({"name": call[0], "args": call[1]})) == call


@st.composite
def talks(draw: Any) -> list[Any]:
    found: list[Any] = [HumanMessage(draw(st.text(max_size=30)))]
    for turn in range(draw(st.integers(1, 3))):
        for step in range(draw(st.integers(0, 3))):
            calls = [
                {"name": n, "args": a, "id": f"{turn}/{step}/{i}"}
                for i, (n, a) in enumerate(draw(st.lists(CALLS, min_size=1, max_size=3)))
            ]
            found.append(AIMessage("", tool_calls=calls))
            found += [ToolMessage(draw(st.text(max_size=20)), tool_call_id=call["id"], name=call["name"]) for call in calls]
        found.append(AIMessage(draw(st.text(max_size=20))))
        found.append(HumanMessage(draw(st.text(max_size=20))))
    return found[:-1]


@pytest.mark.slow
@settings(max_examples=100)
@given(talks(), st.floats(-10, 10) | st.none())
def test_actions_survive_the_way_to_messages_and_back(talk: list[Any], reward: float | None) -> None:
    found = conversations.trajectory(talk, reward)
    again, _ = Screen(redacts=False, finds_instructions=False).retell(found.transitions)
    assert [step and step.action for step in again] == [step.action for step in found.transitions]
