"""A graph of ours is a Runnable that takes as many super-steps as its episode needs, however it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph

from learngraph.graphs.baselines.static import StaticState
from learngraph.graphs.cli.draw import blueprint
from learngraph.graphs.methods import METHODS
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.flow import UnboundedGraph
from learngraph.graphs.wiring.parts import MethodInputs
from learngraph.memory.records import Task
from learngraph.nodes.state import EpisodeInput
from learngraph.tools.environments.keyword_keep import KeywordKeep

WORLD = KeywordKeep()
INPUT: dict[str, Any] = {"task": WORLD.task(0), "run": "r", "episode": 0}


def episode(name: str = "static") -> Any:
    """An episode of the toy: more super-steps than LangChain's default limit of 25."""
    method = METHODS[name]
    return method.build(MethodInputs(environment=WORLD), method.settings())


def under_a_parent(graph: Any) -> Any:
    builder = StateGraph(StaticState, input_schema=EpisodeInput)
    builder.add_node("episode", graph)
    builder.add_edge(START, "episode")
    builder.add_edge("episode", END)
    return builder.compile()


async def events(graph: Any) -> Any:
    found = [event async for event in graph.astream_events(INPUT, version="v2")]
    return found[-1]["data"]["output"]


async def first_of_abatch(graph: Any) -> Any:
    return (await graph.abatch([INPUT, INPUT]))[0]


def fails(_: Any) -> Any:
    raise ValueError("the first choice is down")


CALLS: dict[str, Callable[[Any], Any]] = {
    "invoke": lambda graph: graph.invoke(INPUT),
    "invoke with a config": lambda graph: graph.invoke(INPUT, {"tags": ["mine"]}),
    "batch": lambda graph: graph.batch([INPUT, INPUT])[0],
    "map": lambda graph: graph.map().invoke([INPUT])[0],
    "pipe": lambda graph: (RunnableLambda(lambda x: x) | graph).invoke(INPUT),
    "parallel": lambda graph: RunnableParallel(one=graph, other=graph).invoke(INPUT)["one"],
    "fallback": lambda graph: RunnableLambda(fails).with_fallbacks([graph]).invoke(INPUT),
    "with fallbacks": lambda graph: graph.with_fallbacks([RunnableLambda(fails)]).invoke(INPUT),
    "retry": lambda graph: graph.with_retry().invoke(INPUT),
    "parent": lambda graph: under_a_parent(graph).invoke(INPUT),
    "batch of a parent": lambda graph: under_a_parent(graph).batch([INPUT])[0],
    "tool": lambda graph: graph.as_tool(
        name="play", description="Play once", arg_types={"task": Task, "run": str, "episode": int}
    ).invoke(INPUT),
    "last of a stream": lambda graph: list(graph.stream(INPUT, stream_mode="values"))[-1],
}
ASYNC_CALLS: dict[str, Callable[[Any], Any]] = {
    "ainvoke": lambda graph: graph.ainvoke(INPUT),
    "abatch": first_of_abatch,
    "astream_events": events,
    "events of a parent": lambda graph: events(under_a_parent(graph)),
    "async pipe": lambda graph: (RunnableLambda(lambda x: x) | graph).ainvoke(INPUT),
    "async parallel": lambda graph: (RunnableParallel(one=graph) | (lambda found: found["one"])).ainvoke(INPUT),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore:This API is in beta")
def test_every_way_to_call_plays_the_episode_to_its_end(call: str) -> None:
    graph = episode()
    assert CALLS[call](graph)["score"] == graph.invoke(INPUT)["score"]


@pytest.mark.parametrize("call", ASYNC_CALLS)
async def test_every_async_way_to_call_plays_the_episode_to_its_end(call: str) -> None:
    graph = episode()
    assert (await ASYNC_CALLS[call](graph))["score"] == graph.invoke(INPUT)["score"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_such_a_graph(name: str) -> None:
    graph = blueprint(name, METHODS[name].settings())
    assert isinstance(graph, UnboundedGraph)
    assert isinstance(graph.with_config(tags=["mine"]), UnboundedGraph)


def test_a_run_plays_in_a_batch() -> None:
    (found,) = run.build(episode()).batch([INPUT | {"episodes": 30}])
    assert len(found["scores"]) == 30


def test_a_limit_that_the_user_gives_holds() -> None:
    with pytest.raises(GraphRecursionError, match="Recursion limit of 7"):
        episode().invoke(INPUT, {"recursion_limit": 7})
