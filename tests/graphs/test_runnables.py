"""Every graph, and every agent with a middleware of ours, is a Runnable in all the ways in which LangChain calls one.

An episode takes more super-steps than LangChain's default limit of 25, which `batch`, `|` and the like pass on as if it had been given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from scripted_chat import ScriptedChat
from still_trainer import StillTrainer

from learngraph.graphs.agents.adamem import AdaMEMMiddleware
from learngraph.graphs.agents.claas import FeedbackMiddleware
from learngraph.graphs.agents.icrl import ICRLMiddleware
from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.agents.reasoning_bank import ReasoningBankMiddleware
from learngraph.graphs.agents.reflexion import ReflexionMiddleware
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.graphs.agents.training_free_grpo import TrainingFreeGRPOMiddleware
from learngraph.graphs.arms import blueprint
from learngraph.graphs.methods import METHODS
from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.flow import DrawnGraph
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.lessons.library import Library
from learngraph.memory.records import Lesson, Task
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.state import AttemptState
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.models.models import open_model
from learngraph.tools.models.random_tools import RandomToolModel

WORLD = KeywordKeep()
EPISODE: dict[str, Any] = {"task": WORLD.task(0), "run": "r", "episode": 0}
WRITERS = ("react", "cot", "long-cot", "evotest")
"""Methods that reason in writing, which a model that scores cannot."""
MIDDLEWARES: dict[str, Callable[[], Any]] = {
    "lessons": lambda: TrainingFreeGRPOMiddleware(Library((Lesson("L0", "Look first"),))),
    "lessons-learner": lambda: TrainingFreeGRPOMiddleware(
        store=InMemoryStore(), critic=ScriptedChat(replies=["Learned: look first"])
    ),
    "jitrl-agent": lambda: JitRLMiddleware(InMemoryStore(), decide=["resolve"]),
    "adamem-agent": lambda: AdaMEMMiddleware(InMemoryStore()),
    "icrl-agent": lambda: ICRLMiddleware(InMemoryStore()),
    "reasoning-bank-agent": lambda: ReasoningBankMiddleware(InMemoryStore(), critic=ScriptedChat(replies=["Look first"])),
    "reflexion-agent": lambda: ReflexionMiddleware(InMemoryStore(), critic=ScriptedChat(replies=["Plan: look first"])),
    "synapse-agent": lambda: SynapseMiddleware(InMemoryStore()),
    "claas-agent": lambda: FeedbackMiddleware(InMemoryStore(), base_url="http://127.0.0.1:9"),  # asked only at feedback
}
AGENTS = tuple(MIDDLEWARES)
GRAPHS = (*(name for name in METHODS if name != "tool-agent"), "run", *AGENTS)  # the tool agent needs tools, as the agents have


@dataclass
class Case:
    """A graph, its input, and the part of its output that is the same each time."""

    graph: Any
    input: dict[str, Any]
    result: Callable[[Any], Any]
    state: type[Any]
    """Schema of a parent's state."""


@tool
def resolve(how: Literal["refund", "replace"]) -> str:
    """Resolve the customer's issue."""
    return f"{how}: arranged"


def agent(name: str) -> Case:
    model = RandomToolModel(seed=1)
    made = create_agent(model, [resolve], middleware=[MIDDLEWARES[name]()])

    def result(out: Any) -> Any:
        return [type(message).__name__ for message in out["messages"]][-1]

    return Case(made, {"messages": [("user", "It arrived broken")]}, result, MessagesState)


@cache
def pocket() -> Any:
    return open_model("pocket", threads=1)


def case(name: str) -> Case:
    if name in AGENTS:
        return agent(name)
    if name == "run":
        inner = METHODS["random"].build(MethodInputs(environment=WORLD), METHODS["random"].settings())
        return Case(run.build(inner), {**EPISODE, "episodes": 2}, lambda out: out["scores"], run.RunState)
    method = METHODS[name]
    if name in WRITERS:
        writer = ScriptedChat(replies=["Thought: on.\nAction: wait"])
        inputs = MethodInputs.with_chat_model(WORLD, Journal(), writer)
    elif method.needs_model:
        inputs = MethodInputs.with_scoring_model(WORLD, Journal(), pocket())
    else:
        inputs = MethodInputs(environment=WORLD)
    more: Any = {"make_trainer": lambda settings: StillTrainer()} if method.trains_weights else {}
    if method.has_training_phase:
        settings = TrainingFreeGRPO(problems=1, held_out=1, group_size=2, epochs=1)
        return Case(method.build(inputs, settings), {"run": "r"}, lambda out: out["step"], dict)
    return Case(method.build(inputs, method.settings(), **more), EPISODE, lambda out: out["score"], AttemptState)


def under_a_parent(one: Case) -> Any:
    builder = StateGraph(one.state)
    builder.add_node("episode", one.graph)
    builder.add_edge(START, "episode")
    builder.add_edge("episode", END)
    return builder.compile()


def fails(_: Any) -> Any:
    raise ValueError("the first choice is down")


async def last_event(graph: Any, input: Any) -> Any:
    found = [event async for event in graph.astream_events(input, version="v2")]
    return found[-1]["data"]["output"]


async def first_of_abatch(graph: Any, input: Any) -> Any:
    return (await graph.abatch([input, input]))[0]


async def last_of_astream(graph: Any, input: Any) -> Any:
    return [part async for part in graph.astream(input, stream_mode="values")][-1]


def streamed(graph: Any, input: Any) -> Any:
    return list(graph.stream(input, stream_mode="values"))[-1]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "with a config": lambda graph, input: graph.invoke(input, {"tags": ["mine"]}),
    "batch": lambda graph, input: graph.batch([input, input])[0],
    "batch as completed": lambda graph, input: next(iter(graph.batch_as_completed([input])))[1],
    "map": lambda graph, input: graph.map().invoke([input])[0],
    "pipe": lambda graph, input: (RunnableLambda(lambda x: x) | graph).invoke(input),
    "parallel": lambda graph, input: RunnableParallel(one=graph, other=graph).invoke(input)["one"],
    "fallback": lambda graph, input: RunnableLambda(fails).with_fallbacks([graph]).invoke(input),
    "with fallbacks": lambda graph, input: graph.with_fallbacks([RunnableLambda(fails)]).invoke(input),
    "retry": lambda graph, input: graph.with_retry().invoke(input),
    "bound config": lambda graph, input: graph.with_config(tags=["mine"]).invoke(input),
    "stream": streamed,
}
ASYNC_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "ainvoke": lambda graph, input: graph.ainvoke(input),
    "abatch": first_of_abatch,
    "astream": last_of_astream,
    "astream_events": last_event,
    "async pipe": lambda graph, input: (RunnableLambda(lambda x: x) | graph).ainvoke(input),
    "async parallel": lambda graph, input: (RunnableParallel(one=graph) | (lambda found: found["one"])).ainvoke(input),
    "async fallback": lambda graph, input: RunnableLambda(fails).with_fallbacks([graph]).ainvoke(input),
}
QUICK = ("static", "lessons", "jitrl-agent", "claas-agent")
"""Those whose model, messages and store are asked in ways of their own; the others are wrapped alike."""


def long_unless_quick(names: Any) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.fixture(params=long_unless_quick(GRAPHS))
def one(request: pytest.FixtureRequest) -> Case:
    return case(request.param)


@cache
def invoked(name: str) -> Any:
    """The result of a graph that is invoked."""
    made = case(name)
    return made.result(made.graph.invoke(made.input))


@pytest.fixture
def expected(request: pytest.FixtureRequest) -> Any:
    return invoked(request.node.callspec.params["one"])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore:This API is in beta")
def test_every_way_to_call_a_graph_comes_to_the_same(one: Case, call: str, expected: Any) -> None:
    assert one.result(CALLS[call](one.graph, one.input)) == expected


@pytest.mark.parametrize("call", ASYNC_CALLS)
async def test_every_async_way_to_call_a_graph_comes_to_the_same(one: Case, call: str, expected: Any) -> None:
    assert one.result(await ASYNC_CALLS[call](one.graph, one.input)) == expected


async def test_a_graph_is_the_node_of_another(one: Case, expected: Any) -> None:
    if one.state is dict:
        pytest.skip("the graph of learning has a state of its own")
    parent = under_a_parent(one)
    assert one.result(parent.invoke(one.input)) == expected
    assert one.result(parent.batch([one.input])[0]) == expected
    assert one.result(await last_event(parent, one.input)) == expected


@pytest.mark.filterwarnings("error:This API is in beta")
def test_a_graph_is_a_tool_without_a_warning() -> None:
    graph = case("static").graph
    played = graph.as_tool(name="play", description="Play once", arg_types={"task": Task, "run": str, "episode": int})
    assert played.invoke(EPISODE)["score"] == graph.invoke(EPISODE)["score"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_a_graph_without_the_default_limit(name: str) -> None:
    graph = blueprint(name, METHODS[name].settings())
    assert isinstance(graph, DrawnGraph)
    assert isinstance(graph.with_config(tags=["mine"]), DrawnGraph)


@pytest.mark.slow
def test_a_run_plays_in_a_batch() -> None:
    (found,) = run.build(case("static").graph).batch([EPISODE | {"episodes": 10}])
    assert len(found["scores"]) == 10


def test_a_limit_that_the_user_gives_holds() -> None:
    with pytest.raises(GraphRecursionError, match="Recursion limit of 7"):
        case("static").graph.invoke(EPISODE, {"recursion_limit": 7})
