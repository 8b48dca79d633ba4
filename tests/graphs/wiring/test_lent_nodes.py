"""Nodes of one graph, lent to another, bring the channels that they read and write."""

from operator import add
from typing import Annotated, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from typing_extensions import TypedDict

from learngraph import step
from learngraph.graphs.wiring.flow import rewire, wire


class Counts(TypedDict):
    n: int


class Notes(TypedDict):
    n: int
    note: str


def add_one(state: Counts) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def write(state: Notes) -> dict[str, Any]:
    return {"note": f"saw {state['n']}"}


def read(state: Notes) -> dict[str, Any]:
    return {"n": state["n"] * 10, "note": state["note"] + " and read it"}


def test_nodes_lent_by_another_graph_keep_their_channels() -> None:
    counting = wire(StateGraph(Counts), "flowchart LR\n START --> add_one --> END", {"add_one": add_one}).compile()
    noting = wire(
        StateGraph(Notes), "flowchart LR\n START --> write --> read --> END", {"write": write, "read": read}
    ).compile()
    both = rewire(counting, "flowchart LR\n START --> add_one --> write --> read --> END", **noting.builder.nodes)
    steps = list(both.stream({"n": 1}, stream_mode="updates"))
    assert steps == [{"add_one": {"n": 2}}, {"write": {"note": "saw 2"}}, {"read": {"n": 20, "note": "saw 2 and read it"}}]
    assert counting.invoke({"n": 1}) == {"n": 2}


class Seen(TypedDict):
    seen: Annotated[list[int], add]


def look(state: Counts) -> Seen:
    return {"seen": [state["n"]]}


def total(state: dict[str, Any]) -> Counts:
    return {"n": sum(state["seen"])}


def test_further_nodes_bring_the_channels_that_they_write_to_nodes_that_read_the_whole_state() -> None:
    counting = wire(StateGraph(Counts), "flowchart LR\n START --> add_one --> END", {"add_one": add_one}).compile()
    drawn = "flowchart LR\n START --> look --> add_one --> again --> total --> END"
    again = rewire(counting, drawn, look=look, again=look, total=total)
    assert again.invoke({"n": 1}) == {"n": 3}
    assert "seen" not in counting.builder.channels


def test_a_redrawn_graph_takes_the_inputs_that_it_took_before() -> None:
    plain = StateGraph(Notes).add_node("write", write).set_entry_point("write").compile(checkpointer=InMemorySaver())
    for log in (read, lambda state: {"note": state["note"] + "!"}, look):
        drawn = rewire(plain, "flowchart LR\n START --> write --> log --> END", log=log)
        assert step(drawn, {"n": 1}).finish().state["note"].startswith("saw 1"), "what a node writes is no input"
