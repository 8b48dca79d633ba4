"""Live walks and drawings in the studio: buttons, forks, two tabs, errors of the user's nodes, and the notebook's widget."""

import asyncio
import json
import operator
import os
import re
import runpy
import signal
import sys
import threading
import typing
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from forks import Python
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt
from studio_runs import play_run
from typing_extensions import TypedDict
from variants import quick
from waiting import PATIENCE

import learngraph
from learngraph.graphs.studio.command import open_studio, studio
from learngraph.graphs.studio.drawing import Drawing
from learngraph.graphs.studio.forms import answer_form, input_form, question_text, read_settings, settings_form
from learngraph.graphs.studio.options import StudioOptions
from learngraph.graphs.studio.targets import _UserCode
from learngraph.graphs.studio.walk_session import StudioError, WalkSession
from learngraph.graphs.studio.widget import studio_view, widget_module
from learngraph.graphs.wiring.flow import to_mermaid, wire
from learngraph.memory.errors import UserError
from learngraph.tools.models.random_tools import HeedfulToolModel
from learngraph.tools.notebook.tables import StepperError, message_line
from learngraph.tools.notebook.walk import is_asynchronous, start


class Count(TypedDict, total=False):
    number: int
    answer: str


FLOW = """
flowchart LR
  START --> add --> check
  check -->|again| add
  check -->|enough| END
"""


def add(state: Count) -> Count:
    """Add one."""
    return {"number": state.get("number", 0) + 1}


def look(state: Count) -> Count:
    return {}


def route(state: Count) -> Literal["again", "enough"]:
    return "again" if state["number"] < 3 else "enough"


def counter(**nodes: Any) -> Any:
    builder = wire(StateGraph(Count), FLOW, {"add": add, "check": look, **nodes}, {"check": route})
    return builder.compile(checkpointer=InMemorySaver())


def session(graph: Any, input: Any = None) -> WalkSession:
    made = WalkSession("counter", lambda number, given: start(graph, given or input or {"number": 0}, thread=str(number)))
    made.start()
    return made


def act(walks: WalkSession, do: str, **more: Any) -> dict[str, Any]:
    seen = walks.overview()
    place = next(one["place"] for one in seen["branches"] if one["id"] == seen["current"])
    return walks.act(do, seen["current"], place, **more)


def current(seen: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in seen["branches"] if one["id"] == seen["current"])


def test_steps_rounds_and_the_end() -> None:
    walks = session(counter())
    seen = walks.overview()
    assert seen["version"] != session(counter()).overview()["version"], (
        "a page that is still open sees a studio that began anew"
    )
    assert (current(seen)["state"], current(seen)["note"], current(seen)["count"]) == ("paused", "before add", 1)
    assert set(current(seen)["can"]) == {"begin", "fork", "step", "round", "finish", "until"}
    assert current(act(walks, "step"))["note"] == "before check"
    assert current(act(walks, "round"))["note"] == "before check"
    moment = walks.moment(current(walks.overview())["id"], 3)
    assert (moment["lit"], moment["passes"]) == (["check"], [("START", "add", 1), ("add", "check", 2), ("check", "add", 1)])
    assert [(one["name"], one["line"], one["changed"]) for one in moment["state"]] == [("number", "2", True)]
    assert current(act(walks, "until", node="add"))["note"] == "before add"
    seen = act(walks, "finish")
    assert current(seen)["note"] == "at the end"
    assert set(current(seen)["can"]) == {"begin", "fork", "back"}
    assert walks.moment(seen["current"], current(seen)["count"] - 1)["lit"] == ["END"]
    rows = walks.moments(seen["current"], 0, 100)["rows"]
    assert [row["title"] for row in rows] == ["start", "add", "check", "add", "check", "add", "check"]
    assert rows[1]["text"] == "number 1"


def test_a_node_that_ran_twice_side_by_side_counts_twice() -> None:
    flow = "flowchart LR\n  START -.-> add --> END"
    wired = wire(
        StateGraph(MessagesState), flow, {"add": lambda state: {"messages": ["hi"]}}, fan_outs={"START": lambda state: [{}, {}]}
    )
    walks = session(wired.compile(checkpointer=InMemorySaver()), {"messages": "hello"})
    seen = act(walks, "finish")
    assert [row[:2] for row in walks.moment(seen["current"], 1)["costs"]] == [["add", "2×"]]


def test_back_and_fork_leave_what_was_taken_in_the_tree() -> None:
    walks = session(counter())
    act(walks, "finish")
    seen = act(walks, "back")
    assert [(one["name"], one["parent"], one["fork_at"], one["count"]) for one in seen["branches"]] == [
        ("run 1", "", 0, 7),
        ("what-if 1", "b0", 5, 6),
    ]
    seen = act(walks, "back")  # it has taken no step of its own: it moves
    assert [(one["name"], one["count"]) for one in seen["branches"]] == [("run 1", 7), ("what-if 1", 5)]
    act(walks, "step")
    seen = act(walks, "back")  # now it has
    assert [one["name"] for one in seen["branches"]] == ["run 1", "what-if 1", "what-if 2"]
    seen = walks.act("fork", "b0", seen["branches"][0]["place"], at=1)
    assert (current(seen)["name"], current(seen)["parent"], current(seen)["count"]) == ("what-if 3", "b0", 2)
    seen = act(walks, "edit", channel="number", value=9)
    rows = walks.moments(seen["current"], 0, 9)["rows"]
    assert [(row["title"], bool(row["cost"])) for row in rows] == [("start", False), ("add", True), ("edit", False)]
    assert current(act(walks, "finish"))["count"] == 4
    ends = walks.moment(seen["current"], 3)
    assert sorted((name, times) for name, times, _ in ends["costs"]) == [("add", "1×"), ("check", "1×")]
    assert sum(times for _, target, times in ends["passes"] if target == "check") == 1
    assert walks.moments("b0", 0, 100)["count"] == 7
    found = walks.compare(seen["current"], "b0")
    assert (found["head"][2:], found["rows"][0]) == (["what-if 3", "run 1"], ("moment 2 | 1", "number", "9", "1"))
    before = walks.overview()
    walks.walks["what-if 3"].keep()
    seen = walks.overview()  # the page hears of it, and which walk's moments the thread holds now
    assert before["version"] != seen["version"]
    records = [[one["name"] for one in told["branches"] if one["record"]] for told in (before, seen)]
    assert records == [["run 1"], ["what-if 3"]]
    assert start(walks.walks["run 1"].graph, thread="0").state == walks.walks["what-if 3"].state


@pytest.mark.parametrize("order", ["b0 b1 b2", "b2 b1 b0", "b1 b2 b0"])
def test_what_ifs_inside_a_subgraph_end_apart_in_any_order(order: str) -> None:
    builder = wire(
        StateGraph(Count), "flowchart LR\n  START --> play --> END", {"play": counter().copy({"checkpointer": None})}
    )
    walks = session(builder.compile(checkpointer=InMemorySaver()))
    act(walks, "into")
    act(walks, "step")
    for value in (-3, 10):
        seen = walks.overview()
        seen = walks.act("edit", "b0", seen["branches"][0]["place"], channel="number", value=value)
    assert len(seen["graphs"]) == 1
    for id in order.split():
        place = next(one["place"] for one in walks.overview()["branches"] if one["id"] == id)
        walks.act("finish", id, place)
    assert [walk.state["number"] for walk in walks.walks.values()] == [3, 3, 10]
    assert [len(walk.passes()) for walk in walks.walks.values()] == [2, 2, 2]


def test_a_tab_that_saw_another_place_runs_nothing() -> None:
    ran: list[int] = []

    def note(state: Count) -> Count:
        ran.append(1)
        return add(state)

    walks = session(counter(add=note))
    seen = walks.overview()
    walks.act("step", "b0", current(seen)["place"])
    with pytest.raises(StudioError, match="another tab has moved this walk on"):
        walks.act("step", "b0", current(seen)["place"])
    assert ran == [1]


def test_while_a_node_runs_others_wait_and_stop_ends_the_run_after_it() -> None:
    going, free = threading.Event(), threading.Event()

    def slow(state: Count) -> Count:
        going.set()
        free.wait(PATIENCE)
        return add(state)

    walks = session(counter(add=slow))
    place = current(walks.overview())["place"]
    running = threading.Thread(target=walks.act, args=("finish", "b0", place))
    running.start()
    try:
        assert going.wait(PATIENCE)
        assert walks.overview()["state"] == "running"
        with pytest.raises(StudioError, match="the walk is running"):
            walks.act("step", "b0", place)
        with pytest.raises(StudioError, match="walks are compared when they rest"):
            walks.compare("b0", "b0")
        walks.act("stop", "b0", "")
    finally:
        free.set()
        running.join(PATIENCE)
    assert current(walks.overview())["note"] == "before check"


def test_an_error_of_a_node_is_told_and_where_the_walk_stands() -> None:
    def fail(state: Count) -> Count:
        if state["number"] == 1:
            raise ValueError("no such <b>thing</b>")
        return {}

    walks = session(counter(check=fail))
    with pytest.raises(
        StudioError, match=r"ValueError: no such <b>thing</b>\. The walk stands at moment 1, before check\."
    ) as caught:
        act(walks, "finish")
    assert "in fail" in caught.value.details["traceback"]
    assert current(walks.overview())["note"] == "before check"
    assert current(walks.overview())["state"] == "paused"
    act(walks, "edit", channel="number", value=2)
    assert current(act(walks, "step"))["note"] != "before check"


@pytest.mark.parametrize(
    ("do", "more", "said"),
    [
        ("jump", {}, "there is no button 'jump'"),
        ("until", {"node": "adda"}, "there is no node 'adda'"),
        ("edit", {"channel": "nubmer", "value": 1}, "there is no channel 'nubmer'"),
        ("edit", {"channel": "number", "value": "many"}, "number does not take this: number: Input should be a valid integer"),
        ("fork", {"at": 99}, "there is no moment 99"),
        ("out", {}, "stands in no subgraph"),
        ("resume", {"answers": {"1": "x"}}, "nothing asks"),
        ("back", {}, "this is the first moment"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(do: str, more: dict[str, Any], said: str) -> None:
    walks = session(counter())
    with pytest.raises(UserError, match=said):
        act(walks, do, **more)
    assert [one["count"] for one in walks.overview()["branches"]] == [1]


def test_a_refused_edit_leaves_no_what_if() -> None:
    def route_known(state: Count) -> Literal["again", "enough"]:
        return {1: "again"}[state["number"]]  # type: ignore[return-value]

    builder = wire(StateGraph(Count), FLOW, {"add": add, "check": look}, {"check": route_known})
    walks = session(builder.compile(checkpointer=InMemorySaver()))
    act(walks, "step")
    act(walks, "step")
    with pytest.raises(UserError, match="the channels number do not take these values: 99"):
        act(walks, "edit", channel="number", value=99)
    assert [one["name"] for one in walks.overview()["branches"]] == ["run 1"]


def test_a_question_is_answered_and_a_subgraph_is_entered() -> None:
    def ask(state: Count) -> Count:
        return {"answer": interrupt("how many?")}

    inner = wire(StateGraph(Count), "flowchart LR\n START --> ask --> add --> END", {"ask": ask, "add": add}).compile()
    outer = wire(StateGraph(Count), "flowchart LR\n START --> group --> check --> END", {"group": inner, "check": look})
    walks = session(outer.compile(checkpointer=InMemorySaver()))
    seen = walks.overview()
    assert "into" in current(seen)["can"]
    seen = act(walks, "into")
    assert (current(seen)["inside"], current(seen)["note"]) == (["group"], "before ask")
    assert [box["name"] for box in seen["graphs"][current(seen)["graph"]]["nodes"]] == ["START", "ask", "add", "END"]
    seen = act(walks, "step")
    (asked,) = current(seen)["questions"]
    assert (asked["node"], asked["text"], "step" in current(seen)["can"]) == ("ask", "how many?", False)
    assert current(act(walks, "resume", answers={asked["id"]: "7 or so"}))["note"] == "before add"
    seen = act(walks, "out")
    assert (current(seen)["inside"], current(seen)["note"]) == ([], "before check")
    state = {one["name"]: one["line"] for one in walks.moment(seen["current"], current(seen)["count"] - 1)["state"]}
    assert state == {"number": "1", "answer": "7 or so"}


def test_questions_of_one_node_are_told_apart_by_what_they_work_on() -> None:
    builder = StateGraph(Count).add_node("ask", lambda work: {"number": interrupt("ok?") * 0})
    sends = [Send("ask", {"number": n}) for n in (5, 6)]
    builder.add_conditional_edges(START, lambda state: sends, ["ask"])
    walks = session(builder.compile(checkpointer=InMemorySaver()))
    asked = current(act(walks, "finish"))["questions"]
    assert [(one["node"], one["text"]) for one in asked] == [("ask ({'number': 5})", "ok?"), ("ask ({'number': 6})", "ok?")]
    with pytest.raises(UserError, match=re.escape("in this order they work on {'number': 5}, {'number': 6}")):
        walks.walks["run 1"].resume("yes")


def test_questions_are_answered_each_by_itself_and_an_answer_is_changed_while_others_are_open() -> None:
    class Log(TypedDict):
        log: typing.Annotated[list[str], operator.add]

    asked = {"a": {"question": "how many?", "most": 3}, "b": "which?", "c": {"sizes": [1, 2]}}
    builder = StateGraph(Log)
    for name, question in asked.items():
        builder.add_node(name, lambda state, name=name, question=question: {"log": [f"{name} {interrupt(question)}"]})
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    walks = WalkSession("asks", lambda number, given: start(graph, {"log": []}, str(number)))
    walks.start()
    seen = current(act(walks, "step"))
    shown = {one["node"]: (one["text"], [part["name"] for part in one["parts"]]) for one in seen["questions"]}
    assert shown == {"a": ("how many?", ["most"]), "b": ("which?", []), "c": ("", ["sizes"])}  # nothing twice
    ids = {one["node"]: one["id"] for one in seen["questions"]}

    def answer(node: str, said: Any) -> tuple[list[str], dict[str, Any]]:
        found = current(act(walks, "resume", answers={ids[node]: said}))
        ids.update({one["node"]: one["id"] for one in found["questions"]})
        return [one["node"] for one in found["questions"]], {one["node"]: one["answer"] for one in found["answered"]}

    with pytest.raises(StudioError, match="gone is not asked here"):
        act(walks, "resume", answers={"gone": 1})
    assert answer("b", "red") == (["a", "c"], {"b": "red"})
    assert answer("b", "blue") == (["a", "c"], {"b": "blue"})
    assert answer("a", '{"n": 2}') == (["c"], {"b": "blue", "a": {"n": 2}})
    forked = current(act(walks, "fork"))
    assert {one["node"]: one["answer"] for one in forked["answered"]} == {"b": "blue", "a": {"n": 2}}
    act(walks, "drop")
    assert answer("a", "3") == (["c"], {"b": "blue", "a": 3})
    assert answer("c", "1") == ([], {})
    (walk,) = walks.walks.values()
    assert sorted(walk.state["log"]) == ["a 3", "b blue", "c 1"]


def test_beside_a_node_that_waits_the_page_says_what_python_says() -> None:
    def ask(state: Count) -> Count:
        return {"answer": interrupt("how many?")}

    flow = "flowchart LR\n START --> ask --> END\n START --> add --> END"
    walks = session(wire(StateGraph(Count), flow, {"ask": ask, "add": add}).compile(checkpointer=InMemorySaver()))
    (walk,) = walks.walks.values()
    arrows = {("START", "ask"): 1, ("START", "add"): 1}
    for said in ("before ask and add", "before ask"):
        assert (current(walks.overview())["note"], walk.passes()) == (said, arrows)
        assert said in str(walk)
        moment = walks.moment(walks.overview()["current"], 0)
        assert (moment["title"], moment["lit"]) == (f"0: {said}", said.removeprefix("before ").split(" and "))
        assert {(source, target): times for source, target, times in moment["passes"]} == arrows
        if not walk.questions:
            walk.step()  # in Python: `add` has run then, and no moment is new
    (asked,) = current(act(walks, "edit", channel="number", value=5))["questions"]
    for answer in (7, 8):  # at once, as in Python, also where the walk went back to
        assert current(walks.overview())["questions"] == [asked | {"asks_anew": True}]
        ended = current(act(walks, "resume", answers={asked["id"]: str(answer)}))
        assert (ended["note"], walks.walks[ended["name"]].state) == ("at the end", {"number": 5, "answer": answer})
        assert current(act(walks, "back"))["note"] == "before ask"


def test_a_graph_of_asynchronous_nodes_is_walked() -> None:
    async def wait(state: Count) -> Count:
        await asyncio.sleep(0)
        return add(state)

    graph = counter(add=wait)
    assert is_asynchronous(graph)
    assert not is_asynchronous(counter())
    walks = WalkSession("counter", lambda number, given: start(graph, {"number": 0}, str(number)))
    walks.start()
    act(walks, "step")
    act(walks, "back")
    act(walks, "edit", channel="number", value=1)
    act(walks, "round")
    seen = act(walks, "finish")
    assert current(seen)["note"] == "at the end"


@pytest.mark.slow
def test_what_memory_was_told_is_shown_and_a_what_if_is_kept_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    walks = open_studio(StudioOptions("jitrl", episodes=1)).walk
    assert walks is not None

    def written(branch: str) -> list[str]:
        count = walks.moments(branch, 0, 0)["count"]
        return [one["name"] for one in walks.moment(branch, count - 1)["memory"]["written"]]

    seen = act(walks, "finish")
    assert written("b0") == ["Experiences: studio/1"]
    assert walks.moment("b0", 3)["memory"]["written"] == []
    titles = [row["title"] for row in walks.moments("b0", 0, 100)["rows"]]
    before, after = (walks.moment("b0", titles.index("choose", titles.index("act")) + n) for n in (-1, 0))
    assert before["decision"]["chosen"] is None, "the action is that of the step before"
    assert after["decision"]["chosen"] in {bar["action"] for bar in after["decision"]["bars"]}
    assert "drop" not in current(seen)["can"]
    seen = act(walks, "back")
    assert {"keep", "drop"} <= set(current(seen)["can"])
    assert written("b1") == []  # as it was before the episode was remembered
    act(walks, "edit", channel="score", value=7.0)
    act(walks, "finish")
    assert written("b1") == ["Experiences: studio/1"]
    with pytest.raises(UserError, match="other records of studio/1"):
        act(walks, "keep")
    kept = current(act(walks, "keep", replace=True))
    assert kept["what_if"] is False
    assert "drop" not in kept["can"], "what is in the real memories is not dropped"
    seen = act(walks, "drop")
    assert [one["id"] for one in seen["branches"]] == ["b0"]
    with pytest.raises(StudioError, match="only what-ifs are dropped"):
        act(walks, "drop")


class Clerk(BaseChatModel):
    """Calls its tool after a first word, then tells its reply word by word."""

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> Iterator[ChatGenerationChunk]:
        call = {"name": "resolve", "args": '{"how": "refund"}', "id": "1", "index": 0}
        calls = AIMessageChunk("", tool_call_chunks=[call])  # type: ignore[list-item]
        for chunk in [AIMessageChunk(f"{w} ") for w in ["all", "done"]] if messages[-1].type == "tool" else [calls]:
            if run_manager:
                run_manager.on_llm_new_token(str(chunk.text), chunk=ChatGenerationChunk(message=chunk))
            yield ChatGenerationChunk(message=chunk)
        used = UsageMetadata(input_tokens=3, output_tokens=2, total_tokens=5)
        yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=used))

    def _generate(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError("it is streamed")

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "clerk"


def resolve(how: Literal["refund", "replace"]) -> str:
    """Resolve the issue."""
    return f"{how}: arranged"


def desk() -> WalkSession:
    graph = create_agent(Clerk(), [resolve]).copy(update={"checkpointer": InMemorySaver()})
    return WalkSession("desk", lambda number, given: start(graph, given, thread=str(number)), input_form(graph))


def test_an_agent_is_talked_to_and_a_call_is_edited_by_its_tools_schema() -> None:
    walks = desk()
    seen = walks.act("say", "", "", text="It broke")
    walk = walks.walks["run 1"]
    said = [message_line(one) for one in walk.state["messages"]]
    assert said == ["human: It broke", "ai -> resolve(how='refund')", "tool resolve: refund: arranged", "ai: all done"]
    rows, moment = walks.moments("b0", 0, 9)["rows"], walks.moment("b0", 3)
    assert [row["cost"].partition(", ")[2] for row in rows] == ["", "5 tokens", "", "5 tokens"]
    assert [(row[0], row[1], row[2].endswith("10 tokens")) for row in moment["costs"] if row[0] == "model"] == [
        ("model", "2×", True)
    ]
    assert current(act(walks, "say", text="Again"))["name"] == "turn 2"
    turn = walks.walks["turn 2"]
    back = current(act(walks, "back"))  # what was taken stays in the tree, of a later turn too
    assert (back["name"], back["parent"], back["fork_at"]) == ("what-if 1", "b1", 2)
    assert (turn.branch, len(turn.state["messages"])) == (None, 8)
    form = walks.edit_form("b0", "messages", 1)
    (args,) = form["schema"]["properties"]["calls"]["prefixItems"]
    assert (args["properties"]["how"]["enum"], form["value"]["calls"]) == (["refund", "replace"], [{"how": "refund"}])
    value = {**form["value"], "calls": [{"how": "replace"}]}
    place = seen["branches"][0]["place"]
    walks.act("edit", "b0", place, channel="messages", index=1, value=value)
    edited = walks.walks["what-if 2"].state["messages"]
    assert ([message_line(one) for one in edited][1], len(edited)) == ("ai -> resolve(how='replace')", 4)
    assert walk.state["messages"][1].tool_calls[0]["args"] == {"how": "refund"}


def test_back_leads_from_the_first_moment_of_a_turn_to_the_end_of_the_turn_before() -> None:
    walks = desk()
    walks.act("say", "", "", text="It broke")
    turn = current(act(walks, "say", text="Again"))
    assert (turn["name"], "drop" in turn["can"], "back" in turn["can"]) == ("turn 2", False, True)  # it really happened
    with pytest.raises(StudioError, match="turn 2 is no what-if"):
        act(walks, "drop")
    for _ in range(turn["count"] - 1):
        seen = current(act(walks, "back"))
    assert (seen["name"], seen["parent"], seen["count"]) == ("what-if 1", turn["id"], 1)
    seen = current(act(walks, "back"))
    assert (seen["name"], seen["parent"], seen["note"], len(walks.walks)) == ("what-if 1", "b0", "at the end", 3)
    assert len(walks.walks["what-if 1"].state["messages"]) == 4
    assert current(act(walks, "say", text="Otherwise"))["parent"] == seen["id"]  # another second turn
    assert [message_line(one) for one in walks.walks["turn 3"].state["messages"]][4] == "human: Otherwise"
    overview = walks.overview()
    (what_if,) = (one for one in overview["branches"] if one["name"] == "what-if 1")
    left = walks.act("drop", what_if["id"], what_if["place"])  # the turn that was said in it goes along
    assert [one["name"] for one in left["branches"]] == ["run 1", "turn 2"]


def test_a_question_that_python_came_to_is_shown_though_the_place_is_the_same() -> None:
    builder = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": interrupt("how?")}).add_edge(START, "ask")
    walk = start(builder.compile(checkpointer=InMemorySaver()), {"messages": "It broke"})
    walks = WalkSession("desk", lambda number, given: walk)
    walks.adopt(walk)
    walks.overview()
    walk.finish()
    (shown,) = current(walks.overview())["questions"]
    assert shown["id"] in walk.questions


def test_a_turn_that_was_sent_goes_on_after_an_answer() -> None:
    ask = HumanInTheLoopMiddleware({"resolve": True})
    graph = create_agent(Clerk(), [resolve], middleware=[ask], checkpointer=InMemorySaver())
    walks = WalkSession("desk", lambda number, given: start(graph, given, thread=str(number)), input_form(graph))
    walks.act("say", "", "", text="It broke")
    (question,) = walks.walks["run 1"].questions
    with pytest.raises(StepperError, match="'aprove' is no decision on a call of 'resolve'; did you mean approve"):
        walks.walks["run 1"].resume({"decisions": [{"type": "aprove"}]})
    for args, said in {
        ("how", None): "the call of 'resolve' is not made: how is required",
        ("how", 3): "the call of 'resolve' is not made: how is 3: Input should be",
        ("hwo", "x"): "'resolve' takes no argument 'hwo'; did you mean how",
    }.items():
        edited = {"type": "edit", "edited_action": {"name": "resolve", "args": dict([args])}}
        with pytest.raises(StepperError, match=said):
            act(walks, "resume", answers={question: json.dumps({"decisions": [edited]})})
    outer = (
        StateGraph(MessagesState)
        .add_node("desk", create_agent(HeedfulToolModel(seed=3), [resolve], middleware=[ask]))
        .add_edge(START, "desk")
    )
    around = start(
        outer.compile(checkpointer=InMemorySaver()), {"messages": "It broke"}
    ).finish()  # the tools are the subgraph's
    for walk in (walks.walks["run 1"], around):
        edited = {"type": "edit", "edited_action": {"name": "resolv", "args": {"how": "refund"}}}
        with pytest.raises(StepperError, match="there is no tool 'resolv'; did you mean resolve"):
            walk.resume({"decisions": [edited]})
    answer = json.dumps({"decisions": [{"type": "approve"}]})
    act(walks, "resume", answers={question: answer})
    assert message_line(walks.walks["run 1"].state["messages"][-1]) == "ai: all done"


def test_breakpoints_pause_before_and_after_nodes() -> None:
    walks = session(counter())
    walks.act("break", "", "", node="add", when="after")
    assert current(act(walks, "finish"))["note"] == "before check"
    walks.act("break", "", "", node="add", when="after")
    walks.act("break", "", "", node="add", when="before")
    assert current(act(walks, "finish"))["note"] == "before add"
    walks.act("break", "", "", node="add", when="before")
    assert current(act(walks, "finish"))["note"] == "at the end"


def test_the_input_of_any_typed_dict_has_a_form() -> None:
    class Typed(typing.TypedDict):
        words: list[str]

    graph = StateGraph(Typed).add_node("look", lambda state: {}).add_edge(START, "look").compile()
    assert input_form(graph)["schema"]["properties"]["words"]["items"] == {"type": "string"}


def test_a_form_requires_what_an_input_says_and_of_a_whole_state_nothing() -> None:
    """A state's further channels, such as an answer, are written by nodes: nobody gives them at the beginning."""

    class Asked(TypedDict):
        number: int

    class State(Asked):
        answer: str

    for input_schema, required in ((None, []), (Asked, ["number"])):
        builder = StateGraph(State, input_schema=input_schema).add_node("look", lambda state: {}).add_edge(START, "look")
        assert input_form(builder.compile())["schema"]["required"] == required


def test_calls_that_wait_for_approval_have_a_form() -> None:
    asked = {"action_requests": [{"name": "resolve", "args": {"how": "refund"}}]}
    question = {**asked, "review_configs": [{"action_name": "resolve", "allowed_decisions": ["approve", "edit"]}]}
    form = answer_form(question)
    assert form is not None
    (decision,) = form["schema"]["properties"]["decisions"]["prefixItems"]
    assert decision["title"] == "resolve(how='refund')"
    assert form["value"]["decisions"] == [{"message": "", "edited_action": {"name": "resolve", "args": {"how": "refund"}}}]
    assert (question_text(question), question_text("how many?"), answer_form(asked)) == ("resolve", "how many?", None)


# The drawing


def test_a_drawing_is_checked_and_saved_and_not_over_what_another_wrote(tmp_path: Path) -> None:
    path, graph = tmp_path / "flows" / "counter.mmd", counter()
    drawing = Drawing("counter", path, to_mermaid(graph), graph)
    first = drawing.read()
    assert (first["exists"], first["text"]) == (False, to_mermaid(graph))
    assert drawing.check(first["text"])["findings"] == []
    saved = drawing.save(first["text"], first["version"])
    assert path.read_text() == first["text"]
    other = drawing.save(first["text"] + "%% mine\n", saved["version"])  # a second tab
    with pytest.raises(StudioError, match=r"counter.mmd was changed since this page read it.*nothing was saved") as caught:
        drawing.save("flowchart LR\n", saved["version"])
    assert caught.value.details == {"text": first["text"] + "%% mine\n", "version": other["version"]}
    path.unlink()
    with pytest.raises(StudioError, match="was changed since"):
        drawing.save("flowchart LR\n", other["version"])
    assert [one.name for one in path.parent.iterdir()] == []


def test_mistakes_of_a_drawing_name_their_lines() -> None:
    graph = counter()
    drawing = Drawing("counter", Path("no-such-folder/counter.mmd"), "", graph)
    unread = drawing.check("flowchart LR\n  START --> add\n  add -->> check\n")
    assert unread["graph"] is None
    assert [one["line"] for one in unread["findings"]] == [3]
    misnamed = drawing.check(FLOW.strip().replace("again| add", "agian| add"))
    assert misnamed["graph"] is not None
    assert (misnamed["findings"][0]["line"], "agian" in misnamed["findings"][0]["message"]) == (3, True)
    boxes = {box["name"]: box for box in drawing.check(FLOW)["graph"]["nodes"]}
    assert boxes["add"]["about"] == "Add one."
    drawing.title = "agent.mmd"
    (found, *_) = drawing.check("flowchart LR\n START --> begin --> END\n")["findings"]
    assert found["message"].endswith("behind 'begin', neither here nor in the catalogue; did you mean Begin?")


def test_a_link_with_a_key_of_ones_own_holds_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("learngraph.tools.serving.studio_server.StudioServer.run", lambda server: None)
    monkeypatch.setenv("LEARNGRAPH_STUDIO_KEY", "a-key-of-24-characters__")
    studio(["new.mmd", "--no-browser"])
    said = capsys.readouterr().out
    assert "/#key=a-key-of-24-characters__" in said
    assert "new.mmd is a new drawing: it is written when you save it" in said
    for short in ("short", "a key of 24 characters &"):
        monkeypatch.setenv("LEARNGRAPH_STUDIO_KEY", short)
        with pytest.raises(UserError, match="is a secret of at least 16 letters"):
            studio(["new.mmd", "--no-browser"])


@pytest.mark.parametrize("target", quick(["agent.mmd", "./my_studio_own.py:graph"], "./my_studio_own.py:graph"))
def test_any_node_of_the_catalogue_is_put_into_a_drawing_of_ones_own(target: str, app_folder: Path) -> None:
    (app_folder / "my_studio_own.py").write_text(APP)
    drawing = open_studio(StudioOptions(target, model="pocket")).drawing
    assert drawing is not None
    text, said = drawing.read()["text"], Counter[str]()
    for name in [node["name"] for group in drawing.palette()[1:] for node in group["nodes"]]:
        for finding in drawing.check(re.sub(r"START --> (\w+)", rf"START --> \1 --> {name}_2", text, count=1))["findings"]:
            assert name in finding["message"]
            said.update(re.findall(r"reads|has no default for .* in a Python file", finding["message"])[:1])
    assert sum(said.values()) > 50
    shown = {node["name"]: node["settings"] for group in drawing.palette()[1:] for node in group["nodes"]}
    assert (shown["EpsilonGreedy"], shown["LookUpQValues"]) == ("epsilon: float", "")
    further = text.replace("START --> ", "START --> Submit --> EpsilonGreedy --> ")
    form = drawing.node_form(further, "EpsilonGreedy")
    assert form is not None
    assert (form["value"], form["schema"]["properties"]["epsilon"]["default"]) == ({"epsilon": 0.1}, 0.1)
    assert drawing.node_form(further, "Act") is None, "it has no settings"
    further += '  %% EpsilonGreedy {"epsilon": 0.25}\n'
    form = drawing.node_form(further, "EpsilonGreedy")
    assert form is not None
    assert (form["value"], form["schema"]["properties"]["epsilon"]["default"]) == ({"epsilon": 0.25}, 0.1)
    for wrong, says in (
        ('{"epsilon": "many"}', "epsilon"),
        ('{"eps": 1}', "takes epsilon, got eps"),
        ("{0.3}", "a JSON object"),
    ):
        found = drawing.check(further.replace('{"epsilon": 0.25}', wrong))["findings"]
        assert any(says in one["message"] for one in found), found
    told = drawing.save("flowchart LR\n START --> Act", drawing.read()["version"])["message"]
    assert re.search(r"Saved to .*; it cannot run yet, for \d faults?\. line 2: .*'Act'", told), told
    drawing.save(further, drawing.read()["version"])
    assert drawing.write_python()["message"].endswith("Fill in the dots of Submit first.")
    written = drawing.path.with_suffix(".py").read_text()
    assert "'Submit': inputs.node('Submit', read=..., toolset=...)" in written
    assert "'EpsilonGreedy': inputs.node('EpsilonGreedy', epsilon=0.25)" in written
    assert written.count("inputs.node('Act')") == ("agent" in target)  # and its router is another


def test_the_python_file_of_a_methods_drawing_makes_its_graph_and_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    drawing = open_studio(StudioOptions("jitrl")).drawing
    assert drawing is not None
    text = str(drawing.read()["text"])
    drawing.save(text.replace("choose --> act", "act"), drawing.read()["version"])
    with pytest.raises(UserError, match=r"its graph could not be made: .*; mend the drawing first"):
        drawing.write_python()
    drawing.save(text, drawing.read()["version"])
    drawing.write_python()
    drawing.write_python()
    written = drawing.path.with_suffix(".py")
    assert "modulate" in runpy.run_path(str(written))["graph"].nodes
    assert "inputs.node" not in written.read_text()
    runpy.run_path(str(written), run_name="__main__")
    assert re.findall(r"^episode \d: score ", capsys.readouterr().out, re.M) == [f"episode {n}: score " for n in range(5)]
    written.write_text(mine := written.read_text().replace("range(5)", "range(50)"))
    with pytest.raises(StudioError, match="has lines that are not the studio's, and was left as it is; move it away"):
        drawing.write_python()
    assert written.read_text() == mine


def test_a_notebooks_view_begins_further_runs_and_says_more_in_a_chat() -> None:
    def act(view: Any, do: str, **more: Any) -> Any:
        seen = view.studio.answer("overview", {"view": "walk"})
        branch = next(one for one in seen["branches"] if one["id"] == seen["current"])
        return view.studio.answer(
            "act", {"view": "walk", "do": do, "branch": branch["id"], "expected": branch["place"], **more}
        )

    view = studio_view(start(counter(), {"number": 4}))
    form = view.studio.answer("overview", {"view": "walk"})["form"]
    assert form["value"] == {"number": 4}
    act(view, "begin", input={"number": 7})
    assert view.walks["run 2"].state["number"] == 7
    agent = create_agent(FakeListChatModel(responses=["One.", "Two."]), [], checkpointer=InMemorySaver())
    view = studio_view(start(agent, {"messages": "Hello"}).finish())
    act(view, "say", text="And then?")
    assert [str(one.text) for one in view.walks["turn 2"].state["messages"]] == ["Hello", "One.", "And then?", "Two."]


OWN_AGENT = '''
import learngraph
from langgraph.graph import StateGraph

world = learngraph.open_environment("toy")
inputs = learngraph.MethodInputs(world)
nodes = {name: inputs.node(name) for name in ("Begin", "LookUpQValues", "EpsilonGreedy", "Act", "UpdateQTable")}
flow = """flowchart LR
  START --> Begin --> LookUpQValues --> EpsilonGreedy --> Act
  Act -->|next step| LookUpQValues
  Act -->|over| UpdateQTable --> END
"""
builder = StateGraph(learngraph.AttemptState, input_schema=learngraph.EpisodeInput, output_schema=learngraph.EpisodeResult)
agent = learngraph.wire(builder, flow, nodes, {"Act": inputs.node("route_episode_end")}).compile()
'''


def test_an_agent_of_ones_own_that_plays_episodes_walks_with_a_task_of_the_world(app_folder: Path) -> None:
    (app_folder / "my_own_agent.py").write_text(OWN_AGENT)
    studio = open_studio(StudioOptions("my_own_agent:agent"))
    form = studio.answer("overview", {"view": "walk"})["form"]
    assert (form["value"]["task"]["seed"], form["value"]["run"]) == (0, "studio")

    def begin(value: Any) -> Any:
        return studio.answer("act", {"view": "walk", "do": "begin", "branch": "", "expected": "", "input": value})

    with pytest.raises(UserError, match=r"the input lacks `run`; it has `task`, `episode`"):
        begin({key: one for key, one in form["value"].items() if key != "run"})
    with pytest.raises(UserError, match=r"task does not take this: instruction: Field required"):
        begin({**form["value"], "task": {"id": "x"}})
    seen = begin(form["value"])
    for _ in range(4):
        seen = studio.answer("act", {"view": "walk", "do": "step", "branch": "b0", "expected": current(seen)["place"]})
    assert current(seen)["note"] == "before LookUpQValues"


KEPT_APP = """
import sqlite3
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.sqlite import SqliteSaver

saver = SqliteSaver(sqlite3.connect("kept.sqlite", check_same_thread=False))
graph = create_agent(FakeListChatModel(responses=["One."]), [], checkpointer=saver)
"""


def test_a_new_run_begins_anew_where_the_checkpointer_holds_those_of_an_earlier_process(app_folder: Path) -> None:
    (app_folder / "my_kept_app.py").write_text(KEPT_APP)

    def say(text: str) -> tuple[Any, dict[str, Any]]:
        """A studio after the first talk, and what the page shows of it."""
        studio = open_studio(StudioOptions("my_kept_app:graph"))
        seen = studio.answer("act", {"view": "walk", "do": "say", "branch": "", "expected": "", "text": text})
        return studio, current(seen)

    (_, kept), (studio, new) = say("a secret"), say("a new talk")
    walks = studio.walk
    assert [str(one.text) for one in walks.walks["run 1"].state["messages"]] == ["a new talk", "One."]
    assert [one for one, _ in studio.answer("threads", {})] == [new["thread"], kept["thread"]]
    seen = current(walks.act("open", "", "", thread=kept["thread"]))
    assert (seen["note"], seen["thread"], "say" in seen["can"]) == ("at the end", kept["thread"], True)
    act(walks, "say", text="go on")
    assert [str(one.text) for one in walks.walks["turn 2"].state["messages"]] == ["a secret", "One.", "go on", "One."]
    with pytest.raises(UserError, match=r"^the checkpointer holds nothing of thread_id 'lost'$"):
        walks.act("open", "", "", thread="lost")
    assert current(session(counter()).overview())["thread"] == "", "a thread in the process's memory ends with it"


def test_settings_of_a_methods_form_go_into_the_walk_and_the_python_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    studio = open_studio(StudioOptions("jitrl:paper-equations", episodes=1))
    seen = studio.answer("overview", {"view": "walk"})
    form, branch = seen["settings"], seen["branches"][0]
    assert form["schema"]["properties"]["beta"]["default"] == form["value"]["beta"] == 1.0

    def begin(**changes: Any) -> Any:
        place = {"branch": branch["id"], "expected": branch["place"]}
        return studio.answer("act", {"view": "walk", "do": "begin", **place, "input": {**form["value"], **changes}})

    for changes, said in (
        ({"k": "many"}, "k is to be an integer, got 'many'"),
        ({"k": 0}, "at least 1"),
        ({"q": 1}, "no option 'q'"),
    ):
        with pytest.raises(UserError, match=said):
            begin(**changes)
    assert all(part["description"] for part in form["schema"]["properties"].values())  # inherited ones, too
    first = studio.answer("drawing", {})
    seen = begin(k=3, beta=2.5)
    assert seen["title"].startswith("jitrl:paper-equations, k=3, beta=2.5 in toy")
    assert seen["settings"]["value"]["k"] == 3
    assert len(seen["branches"]) == 2
    text = studio.answer("drawing", {})
    assert (first["graph"], text["graph"]) == (0, 1)
    assert "beta = 2.5" in str(studio.answer("check", {"text": text["text"]})["graph"])
    studio.answer("save", {"text": text["text"], "version": text["version"]})
    studio.answer("python", {})
    written = Path("jitrl-paper-equations.py")
    assert "replace(method_settings('jitrl:paper-equations'), k=3, beta=2.5)" in written.read_text()
    made = runpy.run_path(str(written))["graph"]
    assert "beta = 2.5" in str(Drawing("", written.with_suffix(".mmd"), "", made).check(text["text"])["graph"])
    assert begin()["title"].startswith("jitrl:paper-equations in toy")  # back to where it was


def test_a_setting_without_a_docstring_has_its_type_and_default_in_the_form() -> None:
    @dataclass(frozen=True)
    class Plain:
        depth: int | None = 3
        prefix: str = ""

    made = settings_form("plain", Plain(), Plain(5))
    field, value = made["schema"]["properties"]["depth"], made["value"]
    assert (field["anyOf"][0]["type"], field["default"], field["description"], value["depth"]) == ("integer", 3, "", 5)
    assert read_settings(Plain(), {"depth": None, "prefix": "a & b=3?"}) == Plain(None, "a & b=3?")


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_drawing_that_cannot_be_read_is_a_sentence(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "agent.mmd"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=r"agent.mmd cannot be read"):
        Drawing("agent", path, "", counter())


# What the command opens


def test_a_method_walks_on_what_it_has_learned_and_on_the_saved_drawing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    studio = open_studio(StudioOptions("jitrl", episodes=1))
    tabs = [["drawing", "Drawing"], ["walk", "Walk"]]
    assert studio.answer("about", {}) == {"title": "jitrl", "tabs": tabs, "opens": "walk"}
    seen, moment = (
        studio.answer("overview", {"view": "walk"}),
        studio.answer("moment", {"view": "walk", "branch": "b0", "number": 0}),
    )
    state = {one["name"]: one["line"] for one in moment["state"]}
    assert (seen["title"], state["episode"]) == ("jitrl in toy, task keep-test-0", "1")
    drawing = studio.answer("drawing", {})
    without = drawing["text"].replace("augment --> ", "")
    studio.answer("save", {"text": without, "version": drawing["version"]})
    act = {"view": "walk", "do": "begin", "branch": "", "expected": ""}
    assert [seen["is_redrawn"], studio.answer("overview", {"view": "walk", "version": seen["version"]})["is_redrawn"]] == [
        False,
        True,
    ]
    seen = studio.answer("act", act)
    assert not seen["is_redrawn"]
    assert "augment" not in [box["name"] for box in seen["graphs"][current(seen)["graph"]]["nodes"]]
    (tmp_path / "jitrl.mmd").write_text("flowchart LR\n  START --> nothing --> END\n")
    with pytest.raises(UserError, match="nothing"):
        studio.answer("act", act)
    broken = open_studio(StudioOptions("jitrl", episodes=0))
    assert broken.answer("overview", {"view": "walk"})["state"] == "no run has begun"


APP = """
from langgraph.graph import StateGraph, MessagesState, START, END
def talk(state): return {"messages": [("ai", "hello")]}
builder = StateGraph(MessagesState)
builder.add_node(talk); builder.add_edge(START, "talk"); builder.add_edge("talk", END)
graph = builder.compile()
def make(): return builder
number = 3
"""


@pytest.mark.slow
def test_a_graph_of_the_users(app_folder: Path) -> None:
    (app_folder / "my_studio_app.py").write_text(APP)
    for name in ("graph", "builder", "make"):
        studio = open_studio(StudioOptions(f"my_studio_app:{name}"))
        seen = studio.answer("overview", {"view": "walk"})
        assert (list(seen["form"]["schema"]["properties"]), seen["branches"]) == (["messages"], [])
        assert seen["can"] == ["begin", "say"]
        seen = studio.answer(
            "act", {"view": "walk", "do": "begin", "branch": "", "expected": "", "input": {"messages": "Hello"}}
        )
        assert current(seen)["note"] == "before talk"
    saved = (app_folder / "my_studio_app.py").stat()
    (app_folder / "my_studio_app.py").write_text(APP.replace("hello", "howdy"))
    os.utime(app_folder / "my_studio_app.py", ns=(saved.st_atime_ns, saved.st_mtime_ns))  # two changes in one tick of its clock
    seen = studio.answer("overview", {"view": "walk"})
    assert seen["problems"] == ["The code has changed: every next step runs the new one."]
    seen = studio.answer("act", {"view": "walk", "do": "step", "branch": "b0", "expected": current(seen)["place"]})
    state = studio.answer("moment", {"view": "walk", "branch": "b0", "number": 1})["state"]
    assert state[0]["line"] == "2 messages, the last: ai: howdy"
    (app_folder / "my_studio_app.py").write_text("graph = = 3")
    assert "cannot be loaded (SyntaxError" in studio.answer("overview", {"view": "walk"})["problems"][0]
    (app_folder / "my_studio_app.py").write_text(APP)
    with pytest.raises(UserError, match="`mesages` is no channel of the input; did you mean messages"):
        studio.answer("act", {"view": "walk", "do": "begin", "branch": "", "expected": "", "input": {"mesages": "x"}})
    for name in ("number", "absent"):
        with pytest.raises(UserError, match=name):
            open_studio(StudioOptions(f"my_studio_app:{name}"))
    with pytest.raises(UserError, match="no method is called 'jitlr'"):
        open_studio(StudioOptions("jitlr"))
    assert open_studio(StudioOptions("claas-serving")).answer("about", {})["tabs"] == [["drawing", "Drawing"]]
    assert open_studio(StudioOptions("rest_method:METHOD", episodes=0)).walk is not None
    with pytest.raises(UserError, match="there is no folder runs/none"):
        open_studio(StudioOptions("runs/none"))
    with pytest.raises(UserError, match="has a model write"):
        open_studio(StudioOptions("reflexion"))
    play_run(app_folder / "runs" / "mine", episodes=1)
    assert [one["folder"] for one in open_studio(StudioOptions()).answer("runs", {})] == ["runs/mine"]


# The notebook


def test_a_walk_shows_itself_in_a_notebook() -> None:
    pytest.importorskip("anywidget")
    walk = start(counter(), {"number": 0})
    shown = learngraph.studio(walk)
    bundle = shown._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert (
        "a still picture, since no widget runs here, though the kernel has anywidget: pip install anywidget where Jupyter"
        in bundle["text/html"]
    )
    found = shown.answer({"number": "1", "name": "overview", "args": {"view": "walk"}})["found"]
    place = current(found)["place"]
    step = {"view": "walk", "do": "step", "branch": "b0", "expected": place}
    assert shown.answer({"number": "2", "name": "act", "args": step})["number"] == "2"
    assert walk.next == ("check",)
    assert "another tab" in shown.answer({"number": "3", "name": "act", "args": step})["error"]
    assert "there are about, runs" in shown.answer({"number": "4", "name": "nothing"})["error"]


def test_without_widgets_it_is_a_still_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    for shown in (studio_view(start(counter(), {"number": 0})), studio_view(play_run(tmp_path / "mine", episodes=1))):
        bundle = shown._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" not in bundle
        assert "a still picture, since the kernel has no anywidget" in bundle["text/html"]
        assert "%pip install anywidget" in bundle["text/html"]
        assert "flowchart" in bundle["text/plain"]
    with pytest.raises(UserError, match="holds no steps yet"):
        studio_view(tmp_path)
    with pytest.raises(UserError, match=r"studio takes a walk, such as learngraph.step\(graph, input\), .*; got a DrawnGraph"):
        studio_view(counter())


def test_the_widget_is_one_module() -> None:
    text = widget_module()
    assert "\nimport " not in text
    assert text.rstrip().endswith("export default modules.widget.widget;")


@pytest.mark.slow
def test_the_command_prints_a_link_answers_it_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    play_run(tmp_path / "runs" / "mine", episodes=1)
    errors = tmp_path / "errors"
    process = Python("-m", "learngraph", "studio", "runs/mine", "--no-browser", folder=tmp_path, errors=errors)
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        home, _, key = link.partition("#key=")
        asked = urllib.request.Request(f"{home}ask/runs", data=b"{}", headers={"x-studio-key": key})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            assert json.load(answer)[0]["runs"][0]["title"] == "jitrl, seed 0"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(f"{home}ask/runs", data=b"{}"), timeout=PATIENCE)
        process.send_signal(signal.SIGINT)
        process.communicate()
    finally:
        process.kill()
    assert (process.returncode, errors.read_text()) in ((0, ""), (130, ""))


def test_options_that_make_no_sense_are_sentences() -> None:
    with pytest.raises(UserError, match="--port is at least 0, got -1"):
        StudioOptions(port=-1)
    with pytest.raises(UserError, match="--input is JSON such as"):
        open_studio(StudioOptions("json:loads", input="{"))


@pytest.mark.parametrize("folder", ["/", "site-packages"])
def test_code_that_changed_is_run_anew_and_neither_python_nor_packages_are_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Where the current directory has Python itself below it, or is not that of the code; a folder of compiled files cannot be written."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "site-packages").mkdir()
    monkeypatch.chdir(tmp_path / folder)
    for name in ("z4_app", "z4_part", "z4_package"):
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    (tmp_path / "site-packages" / "z4_package.py").write_text("")
    (tmp_path / "z4_part.py").write_text("")
    text = """
import z4_package, z4_part
from typing import TypedDict
from langgraph.graph import StateGraph
class State(TypedDict):
    number: int
graph = StateGraph(State).add_node("one", lambda state: {"number": 1}).set_entry_point("one").compile()
"""
    (tmp_path / "z4_app.py").write_text(text)
    code = _UserCode("z4_app:graph")
    assert {"z4_app", "z4_part"} <= code._texts.keys()
    assert not {"z4_package", "json", "langgraph.graph", "learngraph"} & code._texts.keys()
    assert code.reload() is None
    (tmp_path / "z4_app.py").write_text(text.replace("1}", "2}"))
    refused, imported = list[Path](), dict(sys.modules)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        refused.append(path)
        raise PermissionError(path)

    with monkeypatch.context() as locked:
        locked.setattr(Path, "unlink", refuse)
        assert code.reload() is not None
    sys.modules.update(imported)  # the modules of other tests are below "/", too
    assert [path.name.partition(".")[0] for path in refused] == ["z4_app"]
