"""Graph -> drawing -> graph: the nodes run in the same order, whatever LangGraph has: joins, routers, sends, Commands, subgraphs."""

from operator import add
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send
from scripted_agent import ScriptedCalls
from typing_extensions import TypedDict

from learngraph.graphs.adamem import MODES
from learngraph.graphs.arms import SERVED_GRAPHS, blueprint, load_graph
from learngraph.graphs.methods import METHODS
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.flow import FlowError, Router, check, read_flow, rewire, to_mermaid, wire
from learngraph.graphs.wiring.supersteps import merge_steps


class Trail(TypedDict):
    seen: Annotated[list[str], add]


class Step(NamedTuple):
    """A node of a random graph."""

    kind: str
    targets: tuple[int, ...]
    """Numbers of nodes; that of the number of nodes is END. The first is the next node."""
    joined: int
    """A node that waits for this one and for the next one; 0: none."""


KINDS = ("plain", "plain", "router", "sends", "says it sends", "command", "announced command", "subgraph")


@st.composite
def graphs(draw: st.DrawFn) -> list[Step]:
    size = draw(st.integers(3, 7))
    steps = []
    for n in range(size):
        others = draw(st.lists(st.integers(1, size), max_size=2, unique=True))
        kind = draw(st.sampled_from(KINDS))
        if kind in ("plain", "subgraph"):  # only a choice leads back: the others would never end
            others = [other for other in others if other > n]
        join = draw(st.integers(0, size - 1))
        may_wait = kind in ("plain", "subgraph") and n + 2 <= join
        steps.append(Step(kind, tuple(dict.fromkeys([n + 1, *others])), join if may_wait else 0))
    return steps


def build(steps: list[Step], **compile: Any) -> Any:
    """The graph, wired by LangGraph's own calls."""
    builder = StateGraph(Trail)
    names = [*(f"n {number}" if number % 3 == 2 else f"n{number}" for number in range(len(steps))), END]
    for number, step in enumerate(steps):
        name, targets = names[number], [names[one] for one in step.targets]
        add_node(builder, name, step.kind, targets)
        if step.kind in ("plain", "subgraph"):
            for target in targets:
                builder.add_edge(name, target)
        elif step.kind == "router":
            # Outcomes that look odd, are no strings, and one that is the target's name.
            outcomes: list[Any] = [targets[0], True, 'x|"y"'][: len(targets)]
            builder.add_conditional_edges(name, choose(outcomes), dict(zip(outcomes, targets, strict=True)))
        elif step.kind in ("sends", "says it sends"):
            places = [target for target in targets if target != END]
            if places:
                builder.add_conditional_edges(name, sending(places, step.kind == "says it sends"), places)
            else:
                builder.add_edge(name, END)
    for number, step in enumerate(steps[:-1]):
        if step.joined and steps[number + 1].kind in ("plain", "subgraph"):
            builder.add_edge([names[number], names[number + 1]], names[step.joined])
    builder.add_edge(START, names[0])
    return builder.compile(**compile)


def add_node(builder: Any, name: str, kind: str, targets: list[str]) -> None:
    def plain(state: Trail) -> dict[str, Any]:
        return {"seen": [name]}

    def sends(state: Trail) -> Any:
        return Command(
            update={"seen": [name]}, goto=targets[len(state["seen"]) % len(targets)] if is_short(state) else targets[0]
        )

    if kind == "subgraph":
        inner = StateGraph(Trail)
        inner.add_sequence([("first", lambda state: {"seen": ["first"]}), ("second", lambda state: {"seen": ["second"]})])
        inner.add_edge(START, "first")
        builder.add_node(name, inner.compile())
    elif kind == "command":
        builder.add_node(name, sends, destinations={target: f"to {target}" for target in targets})
    elif kind == "announced command":
        builder.add_node(name, sends, destinations=tuple(targets))
    else:
        builder.add_node(name, plain, metadata={"kind": kind})


def is_short(state: Trail) -> bool:
    return len(state["seen"]) < 12


def choose(outcomes: list[Any]) -> Any:
    return lambda state: outcomes[len(state["seen"]) % len(outcomes)] if is_short(state) else outcomes[0]


def sending(places: list[str], says: bool) -> Any:
    def send(state: Trail) -> Any:
        return [Send(place, {"seen": state["seen"] + ["sent"]}) for place in (places if is_short(state) else places[:1])]

    def send_and_say(state: Trail) -> list[Send]:
        return list(send(state))

    return send_and_say if says else send


def order(graph: Any) -> list[list[str]]:
    """The nodes that ran in each super-step, also of a graph that runs on and on."""
    ran: list[list[str]] = []
    try:
        for update in graph.stream({"seen": []}, {"recursion_limit": 12}, stream_mode="debug"):
            if update["type"] == "task":
                ran += [[] for _ in range(update["step"] - len(ran))]
                ran[-1] = sorted([*ran[-1], update["payload"]["name"]])  # within a step they run at the same time
    except GraphRecursionError:
        ran.append(["and on"])
    return ran


@pytest.mark.slow
@settings(max_examples=30)
@given(graphs())
def test_the_nodes_run_in_the_same_order(steps: list[Step]) -> None:
    graph = build(steps)
    drawn = to_mermaid(graph)
    ran = order(graph)
    again = rewire(graph, drawn)
    assert (order(again), to_mermaid(again)) == (ran, drawn)
    assert sorted(again.builder.waiting_edges) == sorted(graph.builder.waiting_edges)
    assert order(rewire(again, drawn)) == ran
    assert not check(drawn, graph)


@pytest.mark.parametrize("name", [*METHODS, *SERVED_GRAPHS, "run", *(f"adamem?mode={mode}" for mode in MODES)])
def test_every_graph_is_read_from_its_drawing(name: str) -> None:
    graph = run.build(blueprint("jitrl")) if name == "run" else load_graph(name)
    again = rewire(graph, to_mermaid(graph))
    assert set(read_flow(to_mermaid(again)).edges) == set(read_flow(to_mermaid(graph)).edges)
    assert type(again) is type(graph)
    assert again.config == graph.config


def node(name: str) -> Any:
    return lambda state: {"seen": [name]}


def joined() -> Any:
    builder = StateGraph(Trail)
    for name in "abcd":
        builder.add_node(name, node(name), retry_policy=RetryPolicy(max_attempts=2))
    for one, other in ((START, "a"), (START, "c"), ("a", "b"), ("d", END)):
        builder.add_edge(one, other)
    builder.add_edge(["b", "c"], "d")
    return builder.compile(checkpointer=InMemorySaver(), interrupt_before=["d"], name="joined")


def test_a_join_is_kept_and_two_arrows_are_two_edges() -> None:
    graph = joined()
    assert to_mermaid(graph) == "flowchart LR\n  START --> a --> b\n  START --> c\n  b & c --> d --> END\n"
    nodes: dict[str, Any] = {name: node(name) for name in "abcd"}
    joins = wire(StateGraph(Trail), to_mermaid(graph), nodes).compile()
    assert joins.invoke({"seen": []})["seen"] == ["a", "c", "b", "d"]
    two = wire(
        StateGraph(Trail), to_mermaid(graph).replace("b & c --> d --> END", "b --> d --> END\n c --> d"), nodes
    ).compile()
    assert two.invoke({"seen": []})["seen"] == ["a", "c", "b", "d", "d"]


def test_an_edited_drawing_keeps_policies_pauses_and_checkpoints() -> None:
    graph = joined()
    edited = rewire(graph, "flowchart LR\n START --> c --> d --> e --> END", e=node("e"))
    assert edited.builder.nodes["d"].retry_policy == RetryPolicy(max_attempts=2)
    assert (edited.name, edited.checkpointer, edited.interrupt_before_nodes) == ("joined", graph.checkpointer, ["d"])
    config: Any = {"configurable": {"thread_id": "1"}}
    assert edited.invoke({"seen": []}, config)["seen"] == ["c"]
    assert edited.invoke(None, config)["seen"] == ["c", "d", "e"]


def test_a_node_may_be_replaced_and_a_new_one_may_decide() -> None:
    def again(state: Trail) -> Literal["again", "enough"]:
        return "again" if len(state["seen"]) < 4 else "enough"

    routers: dict[str, Router] = {"b": again}
    graph = wire(StateGraph(Trail), "flowchart LR\n START --> a --> b --> END", {"a": node("a"), "b": node("b")}).compile()
    text = "flowchart LR\n START --> a --> b\n b -->|again| a\n b -->|enough| END"
    assert rewire(graph, text, routers, b=node("B")).invoke({"seen": []})["seen"] == ["a", "B", "a", "B"]
    with pytest.raises(FlowError, match=r"line 2: the flow draws 'x'.*there are \['a', 'b'\]"):
        rewire(graph, "flowchart LR\n START --> x --> END")
    looping = rewire(graph, text, routers)
    assert rewire(looping, "flowchart LR\n START --> a --> b --> END").invoke({"seen": []})["seen"] == ["a", "b"]
    with pytest.raises(FlowError, match="can return 'again', but no arrow"):
        rewire(looping, text.replace(" b -->|again| a\n", ""))


def supervisor() -> Any:
    """A supervisor with two workers, as langgraph-supervisor and handoffs build them."""

    def decide(state: Trail) -> Command[Literal["research", "code", "__end__"]]:
        return Command(update={"seen": ["supervisor"]}, goto=["research", "code", END][len(state["seen"]) // 2])

    builder = StateGraph(Trail)
    builder.add_node("supervisor", decide)
    for name in ("research", "code"):
        builder.add_node(name, node(name))
        builder.add_edge(name, "supervisor")
    builder.add_edge(START, "supervisor")
    return builder.compile()


def test_a_supervisor_is_read_from_its_drawing() -> None:
    graph = supervisor()
    seen = ["supervisor", "research", "supervisor", "code", "supervisor"]
    nodes = {name: spec.runnable.func for name, spec in graph.builder.nodes.items()}
    text = to_mermaid(graph)
    assert {(e.source, e.target) for e in read_flow(text).edges} == {
        *(("START", "supervisor"), ("supervisor", "research"), ("supervisor", "code"), ("supervisor", "END")),
        *(("research", "supervisor"), ("code", "supervisor")),
    }
    assert rewire(graph, text).invoke({"seen": []})["seen"] == seen
    assert wire(StateGraph(Trail), text, nodes).compile().invoke({"seen": []})["seen"] == seen
    lost = text.replace("  supervisor -->|code| code --> supervisor\n", "")
    with pytest.raises(FlowError, match="a Command of 'supervisor' may lead to 'code', but no arrow does"):
        rewire(graph, lost)


def test_an_agent_of_langchain_is_read_from_its_drawing() -> None:
    def order_status(number: str) -> str:
        """The status of an order."""
        return "sent"

    def agent() -> Any:
        model = ScriptedCalls(calls=[("order_status", {"number": "7"})])
        return create_agent(model, [order_status], middleware=[HumanInTheLoopMiddleware(interrupt_on={})])

    text = to_mermaid(agent())
    names = {name for edge in read_flow(text).edges for name in (edge.source, edge.target)}
    assert names == {"START", "END", "model", "tools", "HumanInTheLoopMiddleware.after_model"}
    again = rewire(agent(), text).invoke({"messages": "Where is order 7?"})
    assert [m.text for m in again["messages"]] == [
        m.text for m in agent().invoke({"messages": "Where is order 7?"})["messages"]
    ]
    assert again["messages"][2].text == "sent"


def test_a_graph_without_an_end_is_drawn_without_one() -> None:
    builder = StateGraph(Trail)
    builder.add_node("a", node("a"))
    builder.add_node("b", node("b"))
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_conditional_edges("b", lambda state: ["a"] if len(state["seen"]) < 4 else [], {"a": "a"})
    graph = builder.compile()
    assert order(rewire(graph, to_mermaid(graph))) == [["a"], ["b"], ["a"], ["b"]]


def test_two_branches_of_one_node_keep_their_own_outcomes() -> None:
    builder = StateGraph(Trail)
    for name in "abc":
        builder.add_node(name, node(name))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", choose(["b"]), {"b": "b"})
    builder.add_conditional_edges("a", RunnableLambda(choose(["third"]), name="other"), {"third": "c"})
    graph = builder.compile()
    assert order(rewire(graph, to_mermaid(graph))) == order(graph) == [["a"], ["b", "c"]]


def test_a_deferred_node_is_drawn_as_one_and_runs_once_after_every_way_through_the_drawing() -> None:
    builder, nodes = StateGraph(Trail), {name: node(name) for name in ("a", "b", "b2", "with a space")}
    for name, function in nodes.items():
        builder.add_node(name, function, defer=name == "with a space")
    builder.add_edge(START, "a").add_edge(START, "b").add_edge("b", "b2")
    builder.add_edge("a", "with a space").add_edge("b2", "with a space")
    graph = builder.compile()
    text = to_mermaid(graph)
    again = [rewire(graph, text), rewire(graph, text, **{"with a space": nodes["with a space"]}), merge_steps(graph)]
    for made in [*again, wire(StateGraph(Trail), text, nodes).compile()]:
        assert to_mermaid(made).count(":::deferred") == 1
        assert made.invoke({"seen": []})["seen"] == ["a", "b", "b2", "with a space"]
    twice = rewire(graph, text.replace(":::deferred", "")).invoke({"seen": []})["seen"]
    assert twice.count("with a space") == 2  # as this drawing says


def test_a_function_in_place_of_a_node_keeps_its_policies() -> None:
    builder = StateGraph(Trail)
    builder.add_node("a", node("a"), retry_policy=RetryPolicy(initial_interval=0, max_attempts=2))
    builder.add_edge(START, "a")
    graph, calls = builder.compile(), list[str]()

    def fail_once(state: Trail) -> Trail:
        calls.append("call")
        if len(calls) == 1:
            raise ConnectionError("no line")
        return {"seen": ["a"]}

    assert rewire(graph, to_mermaid(graph), a=fail_once).invoke({"seen": []})["seen"] == ["a"]
