"""Walks through nodes that run side by side: each walk has answers of its own, and what they have left can be edited."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from learngraph import step
from learngraph.tools.notebook.walk import Walk


class State(TypedDict):
    n: int
    log: Annotated[list[str], operator.add]


def walk(asks: bool) -> Walk:
    builder = StateGraph(State)
    for name in "ab":
        builder.add_node(name, lambda state, name=name: {"log": [f"{name} {interrupt(name) if asks else 'done'}"]})
    builder.add_node("first", lambda state: {"log": ["first"]})
    builder.add_node("last", lambda state: {"log": [f"last {state['n']}"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "a")
    builder.add_edge("first", "b")
    builder.add_edge(["a", "b"], "last")
    builder.add_edge("last", END)
    begin: Any = {"n": 0}
    return step(builder.compile(checkpointer=InMemorySaver()), begin).until("last")


def test_two_walks_answer_the_same_open_questions_apart() -> None:
    real = walk(asks=True)
    other, (first, second) = real.fork(), real.questions
    other.resume({first: "F"})
    real.resume({first: "R"})
    assert (real.state["log"], other.state["log"]) == (["first", "a R"], ["first", "a F"])
    other.resume({second: "F2"})  # the last one, by its id, too
    real.resume("R2")
    assert real.finish().state["log"] == ["first", "a R", "b R2", "last 0"]
    assert other.finish().state["log"] == ["first", "a F", "b F2", "last 0"]


def test_an_edited_fork_leaves_the_questions_of_the_walk_open() -> None:
    real = walk(asks=True)
    first, second = real.questions
    real.fork().edit(n=7)
    real.resume({first: 1})
    assert [*real.questions.values()] == ["b"]
    assert real.resume({second: 2}).finish().state["log"] == ["first", "a 1", "b 2", "last 0"]


def test_what_parallel_nodes_have_left_is_edited_and_leads_on_as_it_did() -> None:
    real = walk(asks=False)
    other = real.fork().edit(n=7).edit(n=8)
    assert (other.next, other.finish().state) == (("last",), {"n": 8, "log": ["first", "a done", "b done", "last 8"]})
    assert real.finish().state["n"] == 0
