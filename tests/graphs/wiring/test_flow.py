"""The drawing is the wiring: what parses, what is refused and with which words, and that a drawing survives the round trip."""

import asyncio
import re
from operator import add
from typing import Annotated, Any, Literal

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Overwrite, RetryPolicy, Send
from typing_extensions import TypedDict

from learngraph.graphs.wiring.flow import Edge, FlowError, read_flow, to_mermaid, wire
from learngraph.graphs.wiring.supersteps import MergeError, UncheckpointedGraph, is_blocking, merge_steps


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


def build(**compile: Any) -> Any:
    return wire(StateGraph(Counting), FLOW, NODES, {"c": decide}).compile(**compile)


def test_the_graph_runs_as_drawn() -> None:
    assert build().invoke({"n": 0, "seen": []}) == {"n": 6, "seen": ["a0", "b1", "c2", "a3", "b4", "c5"]}


def test_merged_nodes_do_the_same_in_fewer_super_steps() -> None:
    plain, chained = build(checkpointer=InMemorySaver()), merge_steps(build(checkpointer=InMemorySaver()))
    config: Any = {"configurable": {"thread_id": "1"}}
    assert plain.invoke({"n": 0, "seen": []}, config) == chained.invoke({"n": 0, "seen": []}, config)
    assert asyncio.run(merge_steps(build()).ainvoke({"n": 0, "seen": []})) == build().invoke({"n": 0, "seen": []})
    assert len(list(plain.get_state_history(config))) == 2 + 6
    assert len(list(chained.get_state_history(config))) == 2 + 2
    assert "a+b+c" in chained.nodes


def nothing(state: Counting) -> None:
    return None


async def later(state: Counting) -> dict[str, Any]:
    return {"seen": ["later"]}


class Later:
    async def __call__(self, state: Counting) -> dict[str, Any]:
        return {"seen": ["later"]}


class Narrow(TypedDict):
    n: int


def narrow(state: Narrow) -> dict[str, Any]:
    return {"seen": [",".join(sorted(state))]}


class Private(TypedDict, total=False):
    secret: str


def tell(state: Counting) -> dict[str, Any]:
    return {"secret": "x"}


def hear(state: Private) -> dict[str, Any]:
    return {"seen": [state.get("secret", "none"), ",".join(sorted(state))]}


def configured(state: Counting, config: RunnableConfig) -> dict[str, Any]:
    return {"seen": [config["configurable"]["thread_id"]]}


def spoil(state: Counting) -> dict[str, Any]:
    state["n"] = 100
    return {}


def afresh(state: Counting) -> dict[str, Any]:
    return {"seen": Overwrite(["afresh"])}


def jump(state: Counting) -> Command[Literal["__end__"]]:
    return Command(update={"n": 9, "seen": ["jump"]})


def yields(state: Counting) -> Any:
    yield {"n": 5}


def same_merged(flow: str, nodes: dict[str, Any], **more: Any) -> Any:
    """The results of a graph, merged or not, called or awaited."""
    results = []
    plain = wire(StateGraph(Counting), flow, nodes, **more).compile()
    for graph in (plain, merge_steps(plain)):
        results.append(asyncio.run(graph.ainvoke({"n": 0, "seen": []}, {"configurable": {"thread_id": "t"}})))
        if not any(node is later or isinstance(node, Later) for node in nodes.values()):
            results.append(graph.invoke({"n": 0, "seen": []}, {"configurable": {"thread_id": "t"}}))
    assert all(result == results[0] for result in results), results
    return results[0]


LINE = "flowchart LR\n START --> a --> b --> c --> END"


@pytest.mark.parametrize(
    "odd",
    [nothing, later, Later(), narrow, configured, spoil, afresh, jump, yields, RunnableLambda(lambda s: {"seen": [s["n"]]})],
)
def test_whatever_langgraph_takes_gives_the_same_when_merged(odd: Any) -> None:
    for nodes in ({**NODES, "a": odd}, {**NODES, "b": odd}, {**NODES, "c": odd}):
        same_merged(LINE, nodes)


def test_what_follows_a_fan_out_runs_once_when_merged_too() -> None:
    nodes = {
        "a": lambda state: {"seen": ["a"]},
        "b": lambda state: {"seen": [f"b{state['n']}"]},
        "c": lambda state: {"seen": [f"c after {len(state['seen'])}"]},
        "d": lambda state: {"seen": ["d"]},
    }
    flow = "flowchart LR\n START --> a\n a -.-> b --> c --> d --> END"
    out = same_merged(flow, nodes, fan_outs={"a": lambda state: [{"n": n, "seen": []} for n in range(3)]})
    assert out["seen"] == ["a", "b0", "b1", "b2", "c after 4", "d"]


def test_channels_that_only_some_nodes_know() -> None:
    assert same_merged(LINE, {"a": tell, "b": hear, "c": step("c")})["seen"] == ["x", "secret", "c0"]
    flow = "flowchart LR\n START --> a --> b --> c --> d --> END"
    assert same_merged(flow, {"a": tell, "b": later, "c": hear, "d": step("d")})["seen"][1] == "x"


def test_a_reducer_need_not_be_associative() -> None:
    class Newest(TypedDict):
        n: Annotated[int, lambda old, new: 10 * old + new]

    nodes: dict[str, Any] = {name: (lambda state, d=d: {"n": d}) for d, name in enumerate("abc", 1)}
    nodes = {name: RunnableLambda(node) for name, node in nodes.items()}
    plain = wire(StateGraph(Newest), LINE, nodes).compile()
    for graph in (plain, merge_steps(plain)):
        assert graph.invoke({"n": 4})["n"] == 4123
    assert "a+b+c" in merge_steps(plain).nodes


def test_a_router_on_start() -> None:
    def which(state: Counting) -> Literal["low", "high"]:
        return "low" if state["n"] < 1 else "high"

    flow = "flowchart LR\n START -->|low| a --> b --> END\n START -->|high| c --> END"
    assert same_merged(flow, NODES, routers={"START": which})["seen"] == ["a0", "b1"]


def test_a_command_nobody_announced_cannot_be_merged() -> None:
    def jumps(state: Counting) -> Any:
        return Command(goto="c")

    for returned, words in ((jumps, "returned a Command"), (lambda state: 3, "returned an int")):
        graph = merge_steps(wire(StateGraph(Counting), LINE, {**NODES, "b": returned}).compile())
        with pytest.raises(MergeError, match=f"node 'b' is merged with others and {words}.*Without merge_steps"):
            graph.invoke({"n": 0, "seen": []})


def test_two_labels_to_one_target_are_two_arrows() -> None:
    def which(state: Counting) -> Literal["up", "down", "out"]:
        return "out"

    flow = "flowchart LR\n START --> a\n a -->|up| b\n a -->|down| b --> END\n a -->|out| END"
    graph = wire(StateGraph(Counting), flow, {"a": NODES["a"], "b": NODES["b"]}, {"a": which}).compile()
    assert set(read_flow(to_mermaid(graph)).edges) == set(read_flow(flow).edges)


@pytest.mark.parametrize(
    "name", ["my-node", "A.before_model", "PII[email].before_model", "my node", 'say "hi" #1; 100%%', "größe", "9"]
)
def test_names_survive_the_round_trip(name: str) -> None:
    builder = StateGraph(Counting)
    builder.add_node(name, step("x"))
    builder.add_node("b", step("b"))
    builder.add_edge("__start__", name)
    builder.add_conditional_edges(name, decide, {"again": name, "done": "b"})
    assert set(read_flow(to_mermaid(builder.compile())).edges) == {
        Edge("START", name),
        Edge(name, name, "again"),
        Edge(name, "b", "done"),
        Edge("b", "END"),
    }


def test_arrows_need_no_spaces_around_hyphenated_names() -> None:
    assert read_flow("flowchart LR\na-->b-c-.->d.e-->|x|f").edges == [
        Edge("a", "b-c"),
        Edge("b-c", "d.e", "", True),
        Edge("d.e", "f", "x"),
    ]


def test_waits_commands_and_branches_without_a_map_are_drawn() -> None:
    def anywhere(state: Counting) -> Any:
        return [Send("b", state)]

    builder = StateGraph(Counting)
    for name, node in {**NODES, "jump": jump}.items():
        builder.add_node(name, node)
    builder.add_edge("__start__", "a")
    builder.add_conditional_edges("a", anywhere)
    builder.add_edge(["b", "c"], "jump")
    assert set(read_flow(to_mermaid(builder.compile())).edges) == {
        Edge("START", "a"),
        *(Edge("a", to, label) for to, label in (("b", "b"), ("c", "c"), ("jump", "jump"), ("END", "end"))),
        Edge("b", "jump", join=("b", "c")),
        Edge("c", "jump", join=("b", "c")),
        Edge("jump", "END", "end"),
    }


@pytest.mark.parametrize(
    ("flow", "nodes", "routers", "words"),
    [
        ("flowchart LR\n START --> a -->", NODES, {}, "cannot read"),
        (FLOW, NODES, {"c": decide, "a": decide}, "router for 'a', but no labelled arrow"),
        (FLOW + "  c --> b\n", NODES, {"c": decide}, "labelled and plain arrows"),
        ("flowchart LR\n START --> a --> b --> c --> END\n END --> a", NODES, {}, "nothing leaves END"),
    ],
)
def test_what_does_not_fit_is_said_in_words(flow: str, nodes: Any, routers: Any, words: str) -> None:
    with pytest.raises(FlowError, match=re.escape(words)):
        wire(StateGraph(Counting), flow, nodes, routers)


def test_nodes_with_a_pause_or_a_policy_are_not_merged() -> None:
    config: Any = {"configurable": {"thread_id": "1"}}
    paused = merge_steps(build(checkpointer=InMemorySaver(), interrupt_before=["b"]))
    assert paused.invoke({"n": 0, "seen": []}, config)["seen"] == ["a0"]
    assert paused.invoke(None, config)["seen"] == ["a0", "b1", "c2", "a3"]
    builder = StateGraph(Counting)
    builder.add_node("a", step("a"), retry_policy=RetryPolicy())
    builder.add_node("b", step("b"))
    builder.add_edge(START, "a").add_edge("a", "b")
    assert list(merge_steps(builder.compile()).nodes) == ["__start__", "a", "b"]


# Graphs without checkpoints


def test_an_uncheckpointed_graph_gives_the_same() -> None:
    graph = build()
    assert UncheckpointedGraph(graph).invoke({"n": 0, "seen": ["x"]}) == graph.invoke({"n": 0, "seen": ["x"]})
    assert asyncio.run(UncheckpointedGraph(graph).ainvoke({"n": 2, "seen": []})) == graph.invoke({"n": 2, "seen": []})


def test_an_uncheckpointed_graph_plays_graphs_within_graphs_and_runnables() -> None:
    inner = build()
    nodes = {"a": inner, "b": RunnableLambda(step("b")), "c": step("c")}
    outer = wire(StateGraph(Counting), "flowchart LR\n START --> a --> b --> c --> END", nodes).compile()
    assert UncheckpointedGraph(outer).invoke({"n": 0, "seen": []}) == outer.invoke({"n": 0, "seen": []})


@pytest.mark.parametrize(
    ("flow", "more", "says"),
    [
        ("flowchart LR\n START --> a --> b --> END\n a --> c --> END", {}, "more than one node"),
        ("flowchart LR\n START --> a -.-> b --> c --> END", {"fan_outs": {"a": lambda state: [state]}}, "fan-out"),
    ],
)
def test_what_an_uncheckpointed_graph_cannot_play(flow: str, more: Any, says: str) -> None:
    with pytest.raises(FlowError, match=says):
        UncheckpointedGraph(wire(StateGraph(Counting), flow, NODES, **more).compile())


def test_an_uncheckpointed_graph_is_made_of_the_graph_before_it_is_merged() -> None:
    with pytest.raises(FlowError, match="made by merge_steps"):
        UncheckpointedGraph(merge_steps(build()))


def test_an_uncheckpointed_graph_does_not_pause() -> None:
    with pytest.raises(FlowError, match="pauses"):
        UncheckpointedGraph(build(checkpointer=InMemorySaver(), interrupt_before=["b"]))


def test_an_uncheckpointed_graph_says_which_node_returned_something_else() -> None:
    nodes = {**NODES, "b": lambda state: [1]}
    with pytest.raises(FlowError, match="'b' returned a list"):
        UncheckpointedGraph(wire(StateGraph(Counting), FLOW, nodes, {"c": decide}).compile()).invoke({"n": 0, "seen": []})


def test_which_nodes_wait() -> None:
    class Computes:
        role = "compute"

    class Says:
        role = "compute"
        is_blocking = True

    assert [is_blocking(node) for node in (Computes(), Says(), step("a"))] == [False, True, True]
