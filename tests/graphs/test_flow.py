"""The drawing is the wiring: what parses, what is refused and with which words, and that a drawing survives the round trip."""

import asyncio
import re
from operator import add
from typing import Annotated, Any, Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from typing_extensions import TypedDict

from learngraph.graphs.flow import Edge, FlowError, draw, parse, wire


class Counting(TypedDict):
    n: int
    seen: Annotated[list[str], add]


def step(name: str) -> Any:
    def node(state: Counting) -> dict[str, Any]:
        return {"n": state["n"] + 1, "seen": [f"{name}{state['n']}"]}

    return node


def decide(state: Counting) -> Literal["again", "done"]:
    return "again" if state["n"] < 6 else "done"


FLOW = """
flowchart LR
  %% counts up to six, two at a time
  START --> a --> b --> c
  c -->|again| a
  c -->|done| END
"""
NODES = {name: step(name) for name in "abc"}


def build(chain: bool = False, **compile: Any) -> Any:
    return wire(StateGraph(Counting), FLOW, NODES, {"c": decide}, chain=chain).compile(**compile)


def test_parse() -> None:
    assert parse(FLOW) == [
        Edge("START", "a"),
        Edge("a", "b"),
        Edge("b", "c"),
        Edge("c", "a", "again"),
        Edge("c", "END", "done"),
    ]
    assert parse("flowchart TD\n a -.-> b -->|x y| c") == [Edge("a", "b", "", True), Edge("b", "c", "x y")]


def test_the_graph_runs_as_drawn() -> None:
    assert build().invoke({"n": 0, "seen": []}) == {"n": 6, "seen": ["a0", "b1", "c2", "a3", "b4", "c5"]}


def test_chained_nodes_do_the_same_in_fewer_super_steps() -> None:
    plain, chained = build(checkpointer=InMemorySaver()), build(chain=True, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    assert plain.invoke({"n": 0, "seen": []}, config) == chained.invoke({"n": 0, "seen": []}, config)
    assert asyncio.run(build(chain=True).ainvoke({"n": 0, "seen": []})) == build().invoke({"n": 0, "seen": []})
    assert len(list(plain.get_state_history(config))) == 2 + 6
    assert len(list(chained.get_state_history(config))) == 2 + 2
    assert "a+b+c" in chained.nodes


def test_written_back_it_reads_the_same() -> None:
    graph = build()
    assert set(parse(draw(graph))) == set(parse(FLOW))
    again = wire(StateGraph(Counting), draw(graph), NODES, {"c": decide}).compile()
    assert again.invoke({"n": 0, "seen": []}) == graph.invoke({"n": 0, "seen": []})


def test_a_foreign_graph_can_be_written_back() -> None:
    builder = StateGraph(Counting)
    builder.add_node("a", step("a"))
    builder.add_node("b", step("b"))
    builder.add_edge("__start__", "a")
    builder.add_conditional_edges("a", lambda s: "b" if s["n"] < 2 else "__end__", ["b", "__end__"])
    builder.add_edge("b", "a")
    assert set(parse(draw(builder.compile()))) == {
        Edge("START", "a"),
        Edge("a", "b", "b"),
        Edge("a", "END", "end"),
        Edge("b", "a"),
    }


class Fan(TypedDict):
    items: list[int]
    squares: Annotated[list[int], add]


def test_dotted_arrows_fan_out() -> None:
    flow = """
    flowchart LR
      START --> plan -.-> square --> gather --> END
    """

    def plan(state: Fan) -> dict[str, Any]:
        return {"items": [1, 2, 3]}

    def square(work: dict[str, int]) -> dict[str, Any]:
        return {"squares": [work["item"] ** 2]}

    def gather(state: Fan) -> dict[str, Any]:
        return {}

    nodes = {"plan": plan, "square": square, "gather": gather}
    graph = wire(StateGraph(Fan), flow, nodes, fan_outs={"plan": lambda state: [{"item": i} for i in state["items"]]})
    assert graph.compile().invoke({"items": [], "squares": []})["squares"] == [1, 4, 9]


@pytest.mark.parametrize(
    ("flow", "nodes", "routers", "words"),
    [
        ("a --> b", NODES, {}, "a flow begins with 'flowchart LR'"),
        ("flowchart LR\n START -> a", NODES, {}, "cannot read"),
        ("flowchart LR\n START --> a -->", NODES, {}, "cannot read"),
        ("flowchart LR\n START --> a[Say hi] --> END", NODES, {}, "cannot read"),
        ("flowchart LR\n START --> a --> END\n START --> a", NODES, {}, "drawn twice"),
        ("flowchart LR\n START --> x --> END", NODES, {}, "draws 'x', but there is no such node; there are ['a', 'b', 'c']"),
        ("flowchart LR\n START --> a --> b --> END", NODES, {}, "node 'c' is not in the flow"),
        (FLOW, NODES, {}, "no router decides"),
        (FLOW, NODES, {"c": decide, "a": decide}, "router for 'a', but no labelled arrow"),
        (FLOW.replace("again", "more"), NODES, {"c": decide}, "cannot return; it returns ['again', 'done']"),
        (FLOW.replace("  c -->|again| a\n", ""), NODES, {"c": decide}, "can return 'again', but no arrow"),
        (FLOW + "  c --> b\n", NODES, {"c": decide}, "labelled and plain arrows"),
        (FLOW, NODES, {"c": lambda state: "done"}, "as a Literal return type"),
        ("flowchart LR\n START --> a --> b --> END\n c --> END", NODES, {}, "no arrow leads from START to 'c'"),
        ("flowchart LR\n START --> a --> b\n a --> c\n c --> END", NODES, {}, "no arrow leaves 'b'"),
        ("flowchart LR\n START --> a -.-> b --> c --> END", NODES, {}, "a dotted arrow, but no fan-out function"),
        ("flowchart LR\n START --> a --> b --> c --> END\n END --> a", NODES, {}, "nothing leaves END"),
    ],
)
def test_what_does_not_fit_is_said_in_words(flow: str, nodes: Any, routers: Any, words: str) -> None:
    with pytest.raises(FlowError, match=re.escape(words)):
        wire(StateGraph(Counting), flow, nodes, routers)
