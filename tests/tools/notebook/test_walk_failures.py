"""Walks whose node fails: they stand before that node, so that what ran before, with its effects, runs no second time."""

import operator
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from learngraph import step, wire
from learngraph.graphs.wiring.mermaid import FlowError
from learngraph.tools.notebook.walk import Walk


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Provider:
    """Nodes that count their runs; the ones of `down` fail the first time."""

    def __init__(self, *down: str) -> None:
        self.down, self.ran = set(down), list[str]()

    def node(self, name: str, asks: bool = False) -> Callable[[State], dict[str, Any]]:
        def run(state: State) -> dict[str, Any]:
            said = interrupt(name) if asks else ""
            self.ran.append(name)
            if name in self.down:
                self.down.remove(name)
                raise ConnectionError("503 from the provider")
            return {"log": [name + said]}

        return run

    def begin(self, *levels: str, asks: str = "", **inner: Any) -> Walk:
        """A walk of a graph of levels, whose nodes run side by side; `inner` are subgraphs by the names of nodes."""
        builder, before = StateGraph(State), [START]
        for names in levels:
            for name in names:
                builder.add_node(name, inner.get(name) or self.node(name, asks=name in asks))
                builder.add_edge(before if len(before) > 1 else before[0], name)
            before = [*names]
        start: Any = {"log": []}
        return step(builder.compile(checkpointer=InMemorySaver()), start)


def fail(move: Callable[[], Any]) -> None:
    with pytest.raises(ConnectionError, match="503"):
        move()


@pytest.mark.parametrize(
    "move",
    [Walk.finish, lambda walk: walk.until("e"), lambda walk: walk.until(lambda state: False), lambda walk: walk.step(5)],
    ids=["finish", "until a node", "until a test", "step"],
)
@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("is_what_if", [False, True])
def test_a_walk_stands_before_the_node_that_failed(move: Callable[[Walk], Walk], listens: bool, is_what_if: bool) -> None:
    nodes = Provider("d")
    walk = nodes.begin("a", "b", "c", "d", "e")
    walk = walk.fork() if is_what_if else walk
    walk.listen = (lambda event: None) if listens else None
    fail(lambda: move(walk))
    assert (str(walk), walk.state["log"], len(walk.path())) == ("moment 3, before d", ["a", "b", "c"], 4)
    assert walk.finish().state["log"] == [*"abcde"]
    assert nodes.ran == [*"abcdde"]


def test_of_nodes_side_by_side_only_the_one_that_failed_runs_again() -> None:
    nodes = Provider("c")
    walk = nodes.begin("a", "bc", "d")
    fail(walk.finish)
    assert walk.next == ("c",)
    assert {*walk.edit(log=["edited"]).finish().state["log"]} == {"a", "b", "edited", "c", "d"}
    assert (nodes.ran.count("a"), nodes.ran.count("b"), nodes.ran.count("c")) == (1, 1, 2)


def test_a_node_that_fails_inside_a_subgraph_leaves_what_ran_there_done() -> None:
    nodes = Provider("y")
    inner = nodes.begin("x", "y").graph
    inner.checkpointer = None
    walk = nodes.begin("a", "s", "b", s=inner)
    fail(walk.finish)
    assert (walk.next, walk.inside) == (("s",), ())
    assert str(walk.into()) == "s > moment 1, before y"
    walk.out().finish()
    assert nodes.ran == [*"axyyb"]
    nodes.down.add("y")
    walk = nodes.begin("a", "s", "b", s=inner).into("s")
    fail(walk.finish)
    assert str(walk) == "s > moment 1, before y"
    assert walk.finish().next == ()
    assert nodes.ran[5:] == [*"axyyb"]


def test_a_failed_answer_is_given_again_and_a_failed_way_to_a_subgraph_stands_outside_it() -> None:
    nodes = Provider("b", "d")
    walk = nodes.begin("a", "b", "d", asks="b").finish()
    fail(lambda: walk.resume(" 1"))
    assert walk.question == "b"
    fail(walk.resume(" 2").finish)
    assert walk.finish().state["log"] == ["a", "b 2", "d"]
    assert nodes.ran == [*"abbdd"]
    nodes.down.add("a")
    inner = nodes.begin("x").graph
    inner.checkpointer = None
    walk = nodes.begin("as", "b", s=inner)
    fail(lambda: walk.into("s"))
    assert walk.finish().state["log"] == ["a", "x", "b"]
    assert nodes.ran.count("x") == 1


class OneWord(TypedDict):
    word: str
    start: str


def begin_clash(is_inside: bool = False) -> Walk:
    """A walk of a drawn graph whose nodes `b` and `c` write one channel at the same time, perhaps in the subgraph `s`."""
    nodes: dict[str, Any] = {name: lambda state, name=name: {"word": name} for name in "abc"}
    graph = wire(StateGraph(OneWord), "flowchart LR\n START --> a --> b & c --> END", nodes).compile()
    if is_inside:
        graph = wire(StateGraph(OneWord), "flowchart LR\n START --> s --> END", {"s": graph}).compile()
    return step(graph.copy({"checkpointer": InMemorySaver()}), {"start": "x"})


@pytest.mark.parametrize("is_inside", [False, True])
def test_nodes_whose_writes_exclude_each_other_leave_a_walk_before_them_and_the_graph_free(is_inside: bool) -> None:
    walk = begin_clash(is_inside)
    walk = walk.into("s") if is_inside else walk
    for move in (walk.finish, walk.finish, lambda: walk.fork().finish(), lambda: walk.fork().edit(start="y").finish()):
        with pytest.raises(FlowError, match="'b' and 'c' ran at the same time, and each wrote `word`"):
            move()
        place = "moment 0, before s" if is_inside else "moment 1, before b and c"
        assert (str(walk), walk.inside) == (place, ())
    anew = step(walk.graph, {"start": "y"})
    assert (str(anew), anew.state["start"]) == (f"moment 0, before {'s' if is_inside else 'a'}", "y")
    assert anew.place["configurable"]["thread_id"] == "walk-2"
