"""Conversations become trajectories and come back; other tools' records are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, convert_to_openai_messages

from learngraph.graphs.cli.main import main
from learngraph.memory.conversations import messages as conversations
from learngraph.memory.conversations import traces
from learngraph.memory.errors import UserError
from learngraph.memory.records import Trajectory
from learngraph.memory.storage.record_store import from_json, read_jsonl, to_json

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


def test_messages_come_back() -> None:
    found = conversations.trajectory(TALK, 0.5, run="t1", domain="support")
    back = conversations.messages(found)
    assert [type(m) for m in back] == [type(m) for m in TALK[1:]]
    assert [str(m.text) for m in back] == [str(m.text) for m in TALK[1:]]
    assert conversations.trajectory(back, 0.5, run="t1", domain="support") == found


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_rewards_are_finite_and_something_was_done(reward: float) -> None:
    with pytest.raises(UserError, match="finite number or None"):
        conversations.trajectory(TALK, reward)
    with pytest.raises(UserError, match="got 1 messages without one"):
        conversations.trajectory([HumanMessage("hello")], 1.0)
    assert conversations.trajectory(TALK, None).value is None


@pytest.mark.parametrize(
    "text",
    [
        "resolve",
        "resolve('a')",
        "resolve(**x)",
        "resolve(a=open('x'))",
        "a.b(c=1)",
        "resolve(a=__import__('os'))",
        "(" * 500,
        "",
    ],
)
def test_what_is_no_call_is_refused_and_nothing_is_evaluated(text: str) -> None:
    with pytest.raises(UserError, match="asked for a call such as"):
        conversations.read_call(text)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
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
def test_actions_and_rewards_survive_the_way_to_messages_and_back(talk: list[Any], reward: float | None) -> None:
    found = conversations.trajectory(talk, reward)
    again = conversations.trajectory(conversations.messages(found), reward)
    assert [step.action for step in again.transitions] == [step.action for step in found.transitions]
    assert again.value == found.value


# Records of other tools


def test_openai_messages_are_read(tmp_path: Path) -> None:
    rows = convert_to_openai_messages(TALK)
    lines = [
        {"id": "a", "messages": rows, "reward": 1},
        {"id": "b", "messages": rows, "score": False, "feedback": "late"},
        rows,
    ]
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = traces.read_traces(file)
    assert [(one.id, one.reward, one.note) for one in found] == [("a", 1.0, ""), ("b", 0.0, "late"), ("traces-2", None, "")]
    assert [step.action for step in conversations.steps(found[0].messages)] == [
        step.action for step in conversations.steps(TALK)
    ]
    (tmp_path / "one.json").write_text(json.dumps(rows))
    assert len(traces.read_traces(tmp_path / "one.json")) == 1


def test_langsmith_runs_are_read(tmp_path: Path) -> None:
    run = {
        "id": "r1",
        "run_type": "chain",
        "inputs": {"messages": [dumpd(TALK[1])]},
        "outputs": {"messages": [dumpd(m) for m in TALK[1:]]},
        "feedback_stats": {"user_score": {"n": 2, "avg": 0.5}},
    }
    plain = {**run, "id": "r2", "outputs": {"messages": [{"type": "ai", "content": "hello"}]}, "feedback_stats": None}
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps(run) + "\n" + json.dumps(plain) + "\n")
    first, second = traces.read_traces(file)
    assert (first.reward, second.reward) == (0.5, None)
    assert conversations.trajectory(first.messages, 0.5) == conversations.trajectory(TALK, 0.5)
    assert [m.type for m in second.messages] == ["human", "ai"]
    both = {**run, "feedback_stats": {"user_score": {"avg": 0.5}, "speed": {"avg": 3}}}
    file.write_text(json.dumps(both))
    with pytest.raises(UserError, match="feedback for 2 keys: user_score, speed"):
        traces.read_traces(file)
    assert traces.read_traces(file, feedback_key="speed")[0].reward == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1: not JSON"),
        ('{"a": 1}', "neither messages, nor inputs and outputs"),
        ('{"messages": [{"role": "nobody", "content": "x"}]}', "could not read it"),
        ('{"messages": [], "reward": "good"}', "its reward is 'good'"),
        ("[1, 2]", "could not read it"),
    ],
)
def test_what_is_no_conversation_is_refused_in_words(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(UserError, match=says):
        traces.read_traces(file)
    with pytest.raises(UserError, match="cannot read"):
        traces.read_traces(tmp_path / "nowhere.jsonl")


def test_the_command_imports_and_an_agent_learns_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from langgraph.store.memory import InMemoryStore

    from learngraph.graphs.agents.jitrl import JitRLMiddleware

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "judging.py").write_text(
        "def judge(messages):\n    return (float('new one' in messages[-3].text), 'because')\n"
    )
    rows = convert_to_openai_messages(TALK)
    Path("traces.jsonl").write_text(
        "".join(json.dumps({"id": f"c{n}", "messages": rows}) + "\n" for n in range(3)) + json.dumps({"messages": []})
    )
    assert main(["memory", "import", "traces.jsonl", "--out", "out.jsonl", "--reward", "judging:judge"]) == 0
    assert "3 conversations in out.jsonl, 3 with a reward" in capsys.readouterr().err
    assert [one.score for _, one in read_jsonl(Trajectory, "out.jsonl")] == [1.0, 1.0, 1.0]
    learner = JitRLMiddleware(InMemoryStore(), decide={"resolve": ["how"]})
    assert learner.import_trajectories("out.jsonl", tenant="acme") == 3
    learner.read_tools(
        [
            {
                "type": "function",
                "function": {
                    "name": "resolve",
                    "description": "",
                    "parameters": {"type": "object", "properties": {"how": {}, "amount": {}}},
                },
            }
        ]
    )
    assert len(learner._refreshed(learner._labels({"tenant": "acme"})).index.returns) == 3
    assert main(["memory", "import", "out.jsonl", "--out", "again.jsonl"]) == 0
    assert [one.score for _, one in read_jsonl(Trajectory, "again.jsonl")] == [1.0, 1.0, 1.0]
    assert main(["memory", "import", "traces.jsonl", "--out", "plain.jsonl"]) == 0
    assert "give --reward" in capsys.readouterr().err
    assert main(["memory", "import", "traces.jsonl", "--out", "traces.jsonl"]) == 2


@pytest.mark.parametrize("text", ["", "\n\n", "[]", '{"messages": [{"role": "user", "content": "Hello?"}]}'])
def test_a_file_without_a_conversation_says_that_nothing_was_read(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traces.jsonl").write_text(text)
    assert main(["memory", "import", str(tmp_path / "traces.jsonl"), "--out", str(tmp_path / "out.jsonl")]) == 2
    assert "nothing was read from" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
