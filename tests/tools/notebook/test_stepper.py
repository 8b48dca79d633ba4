"""Walking through a run: any graph with a checkpointer, not only ours."""

import operator
import re
from typing import Annotated, Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from typing_extensions import TypedDict

from learngraph.memory.records import Candidate, Neighbour
from learngraph.tools.notebook.bars import bars
from learngraph.tools.notebook.compare import compare
from learngraph.tools.notebook.tables import message_line, to_line, two_lines
from learngraph.tools.notebook.walk import StepperError, Walk, start, table


class Count(TypedDict):
    n: int
    by: int
    trail: Annotated[list[int], operator.add]


def counter(checkpointer: Any = None) -> Any:
    """Adds `by` to `n` until 5 is reached."""

    def raise_n(state: Count) -> dict[str, Any]:
        return {"n": state["n"] + state["by"]}

    def note(state: Count) -> dict[str, Any]:
        return {"trail": [state["n"]]}

    def again(state: Count) -> str:
        return "add" if state["n"] < 5 else END

    graph = StateGraph(Count)
    graph.add_node("add", raise_n)
    graph.add_node("note", note)
    graph.add_edge(START, "add")
    graph.add_edge("add", "note")
    graph.add_conditional_edges("note", again, ["add", END])
    return graph.compile(checkpointer=checkpointer)


def begun(**values: int) -> Walk:
    return start(counter(InMemorySaver()), {"n": 0, "by": 1, **values})


def test_it_pauses_before_every_node_and_before_named_ones() -> None:
    walk = begun()
    assert (walk.next, walk.state["n"]) == (("add",), 0)
    assert walk.step().next == ("note",)
    assert walk.step(2).state["n"] == 2
    assert walk.until("add").state == {"n": 2, "by": 1, "trail": [1, 2]}
    assert walk.until("add").state["n"] == 3
    assert walk.finish().next == ()
    assert walk.state["trail"] == [1, 2, 3, 4, 5]
    assert str(walk) == "moment 10, the end"
    with pytest.raises(StepperError, match="has ended"):
        walk.step()


def test_back_edit_and_on() -> None:
    walk = begun().step(4)
    assert walk.back(2).state == {"n": 1, "by": 1, "trail": [1]}
    assert walk.next == ("add",)
    assert walk.edit(by=10).finish().state["trail"] == [1, 11]
    assert [len(moment.values.get("trail", [])) for moment in walk.path()] == [0, 0, 1, 1, 1, 2]
    with pytest.raises(StepperError, match="back 6 steps: this is moment 5"):
        walk.back(6)


METADATA = ("response_metadata: {}", "response_metadata: {'model': 'b'}")


@pytest.mark.parametrize(
    ("one", "other", "lines"),
    [
        (["same", "one"], ["same", "two"], ("['same', 'one']", "['same', 'two']")),
        ([1] * 500, [*[1] * 499, 2], ("[499]: 1", "[499]: 2")),
        (
            {"a": {"b": ["x" * 200 + "y"]}},
            {"a": {"b": ["x" * 200 + "z"]}},
            (f"a: b: [0]: …{'x' * 20}y", f"a: b: [0]: …{'x' * 20}z"),
        ),
        (AIMessage("yes", id="1"), AIMessage("yes", id="2"), ("ai: yes", "ai: yes")),
        (AIMessage("yes", id="1"), AIMessage("yes", id="2", response_metadata={"model": "b"}), METADATA),
        ([1] * 500, [1] * 501, ("500 of these: 1", "501 of these: 1")),
    ],
)
def test_lines_of_values_that_differ_show_in_what(one: Any, other: Any, lines: tuple[str, str]) -> None:
    assert two_lines(one, other) == lines
    assert len(set(two_lines(one, one))) == 1


def test_forks_do_not_move_each_other() -> None:
    walk = begun().step(3)
    other = walk.fork().edit(by=2)
    assert walk.state["by"] == 1
    other.finish()
    assert walk.state == {"n": 2, "by": 1, "trail": [1]}
    walk.finish()
    assert other.state["trail"] == [1, 2, 4, 6]
    assert walk.state["trail"] == [1, 2, 3, 4, 5]
    differing = compare(walk, other, before="note", show=["n"])
    assert differing.rows == (("0", "1", "1"), ("1", "2", "2"), ("2", "3", "4"), ("3", "4", "6"), ("4", "5", "–"))
    assert differing.marked == {2, 3, 4}
    assert compare(walk, other, before="note").head == ("", "n", "n ′", "by", "by ′", "trail", "trail ′"), "those that differ"
    ends = [("now", "n", "5", "6"), ("now", "by", "1", "2"), ("now", "trail", "[1, 2, 3, 4, 5]", "[1, 2, 4, 6]")]
    assert compare(walk, other).rows == (("moment 3 | 4", "by", "1", "2"), *ends), "the edit is a moment"
    assert compare(walk, walk.fork()).rows == ()


def test_a_walk_can_take_up_a_run_that_is_there() -> None:
    graph = counter(InMemorySaver())
    graph.invoke({"n": 0, "by": 1}, {"configurable": {"thread_id": "7"}})
    walk = Walk(graph, {"configurable": {"thread_id": "7"}})
    assert walk.back().next == ("note",)
    assert walk.state["n"] == 5


def test_the_view_marks_what_changed() -> None:
    shown = begun().step().view("n", "by")
    assert shown.rows == (("n", "1"), ("by", "1"))
    assert shown.marked == {0}
    assert "moment 1, before note" in str(shown)
    assert "<td" in shown._repr_html_()


def test_messages_are_read_line_by_line() -> None:
    picture = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
    call = {"name": "resolve", "args": {"how": "refund"}, "id": "1"}
    broken = {"name": "resolve", "args": "{how", "id": "2", "error": "no JSON"}

    def talk(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [
                AIMessage("Sorry!\n", tool_calls=[call]),
                ToolMessage("refund: arranged", name="resolve", tool_call_id="1"),
            ]
        }

    graph = StateGraph(MessagesState).add_node("talk", talk).add_edge(START, "talk").compile(checkpointer=InMemorySaver())
    walk = start(graph, {"messages": [HumanMessage([{"type": "text", "text": "It broke."}, picture])]}).step()
    shown = walk.view()
    assert shown.rows == (
        ("messages", "human: It broke. [image]"),
        ("", "ai: Sorry! -> resolve(how='refund')"),
        ("", "tool resolve: refund: arranged"),
    )
    assert shown.marked == {1, 2}
    long = start(graph, {"messages": "word " * 50}).view()._repr_html_()
    assert f"…</summary>human: {'word ' * 49}word</details>" in long
    assert table(walk.state["messages"]).rows == tuple((line,) for _, line in shown.rows)
    assert to_line(walk.state["messages"]) == "3 messages, the last: tool resolve: refund: arranged"
    assert message_line(AIMessage("", invalid_tool_calls=[broken])) == "ai -> resolve({how), which cannot be read"


def test_a_walk_without_a_name_begins_anew() -> None:
    graph = counter(InMemorySaver())
    first, second = (start(graph, {"n": 0, "by": 1}).finish() for _ in range(2))
    assert first.state["trail"] == second.state["trail"] == [1, 2, 3, 4, 5]
    assert start(graph, {"n": 0, "by": 1}, thread="walk-2").finish().state["trail"] == [1, 2, 3, 4, 5] * 2


def test_step_without_an_input_stands_where_the_thread_stands() -> None:
    graph = counter(InMemorySaver())
    assert start(graph, {"n": 0, "by": 1}, thread="kept").until("note").next == ("note",)
    again = start(graph, thread="kept")
    assert (again.next, again.state["n"]) == (("note",), 1), "no node has run"
    assert start(graph, thread="kept", config={"configurable": {"user": "ann"}}).finish().state["trail"] == [1, 2, 3, 4, 5]
    with pytest.raises(StepperError, match="holds nothing of thread_id 'lost'; step"):
        start(graph, thread="lost")


WRONG: dict[str, Any] = {
    "no node 'sub'; there are add, note": lambda: begun().until("sub"),
    "no node 'nte'; did you mean note": lambda: begun().until("nte"),
    "no node 'nte'; did you mean note?": lambda: compare(begun(), begun(), before="nte", show=["n"]),
    "cannot go back -1 steps": lambda: begun().back(-1),
    "no channel 'm'; there are n": lambda: begun().view("m"),
    "no channel 'm'; there are": lambda: begun().edit(m=1),
    "no channel 'trai'; did you mean trail": lambda: compare(begun(), begun(), before="note", show=["trai"]),
    "'trai', which is no channel; did you mean trail": lambda: begun().until(lambda state: state["trai"]),
    "takes a number of steps, got 'first'; until(NODE)": lambda: begun().step(cast(Any, "first")),
    "a stop is the name of a node, or a test of the state; got 3": lambda: begun().until(cast(Any, 3)),
    "edit takes channels and their values": lambda: begun().edit({"n": 1}),
    "step takes a number of steps, got 0": lambda: begun().step(0),
    "there is no node 'END'; there are add, note; finish() runs": lambda: begun().until("END"),
    "compare takes two walks first, got an int": lambda: compare(begun(), cast(Any, 3), before="note", show=["n"]),
    "step takes the input second, such as {'n': ...}": lambda: start(counter(InMemorySaver())),
    "step takes the input second, such as {'n': ...}, got hi (a str)": lambda: start(counter(InMemorySaver()), "hi"),
    "go_on takes an input, such as {'n': ...}, got 3 (an int)": lambda: begun().finish().go_on(3),
    "InMemorySaver": lambda: start(counter(), {"n": 0, "by": 1}),
    "holds nothing of thread_id 'lost'; step(graph, input, thread=NAME) begins a run": lambda: Walk(
        counter(InMemorySaver()), {"configurable": {"thread_id": "lost"}}
    ),
    "such as {'configurable': {'thread_id': 'walk-1'}}; got 'walk-1'": lambda: Walk(
        counter(InMemorySaver()), cast(Any, "walk-1")
    ),
}


@pytest.mark.parametrize("says", WRONG)
def test_errors_in_words(says: str) -> None:
    with pytest.raises(StepperError, match=re.escape(says)):
        WRONG[says]()


def test_records_as_a_table() -> None:
    neighbours = [Neighbour("r/0/1", 1.0, "<north>", 3, 0.25), Neighbour("r/1/1", 0.5, "south", 1, 0.123456)]
    shown = table(neighbours, ["action", "mean"])
    assert shown.rows == (("<north>", "0.25"), ("south", "0.1235"))
    assert "&lt;north&gt;" in shown._repr_html_()
    assert table([]).rows == ()
    assert f"</summary>{'a word ' * 40}</details>" in table([{"line": 3, "said": "a word " * 40}])._repr_html_()
    with pytest.raises(StepperError, match="no column 'value'"):
        table(neighbours, ["value"])


def test_bars_show_logits_and_probabilities_before_and_after() -> None:
    state = {"candidates": [Candidate("a", 1.0), Candidate("b", -1.0)], "prior": [-0.7, -0.7], "action": "a"}
    figure = bars(state)
    logits, chances = figure.axes
    assert sorted(p.get_width() for p in logits.patches) == [-1.0, -0.7, -0.7, 1.0]  # type: ignore[attr-defined]
    assert sum(p.get_width() for p in chances.patches) == pytest.approx(2)  # type: ignore[attr-defined]
    assert [t.get_text() for t in logits.get_yticklabels()] == ["b", "a"]
    assert figure._repr_png_().startswith(b"\x89PNG")
