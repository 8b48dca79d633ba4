"""Walks into subgraphs, through questions, with breakpoints, and without blocking."""

import asyncio
import operator
import random
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from sqlite3 import connect
from types import SimpleNamespace
from typing import Annotated, Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict
from variants import quick

from learngraph.graphs import training_free_grpo
from learngraph.graphs.wiring.flow import wire
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.storage.serializer import serializer
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.notebook.walk import StepperError, Walk, start


class Single(TypedDict):
    x: int
    out: Annotated[list[int], operator.add]


class Group(TypedDict):
    xs: list[int]
    out: Annotated[list[int], operator.add]


class Deep(TypedDict):
    xs: list[int]
    out: Annotated[list[int], operator.add]


def chain(builder: Any, *names: str) -> Any:
    for a, b in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(a, b)
    return builder


def single() -> Any:
    """x -> x + 1, then out = [x]."""
    builder = StateGraph(Single)
    builder.add_node("raise", lambda state: {"x": state["x"] + 1})
    builder.add_node("put", lambda state: {"out": [state["x"]]})
    return chain(builder, "raise", "put").compile()


def group(**compile: Any) -> Any:
    """One subgraph for each of xs."""
    builder = StateGraph(Group)
    builder.add_node("begin", lambda state: {})
    builder.add_node("play", single())
    builder.add_node("end", lambda state: {})
    builder.add_edge(START, "begin")
    builder.add_conditional_edges("begin", lambda state: [Send("play", {"x": x, "out": []}) for x in state["xs"]], ["play"])
    builder.add_edge("play", "end")
    builder.add_edge("end", END)
    return builder.compile(**compile)


def begun(graph: Any = None) -> Walk:
    return start(graph or group(checkpointer=InMemorySaver()), {"xs": [10, 20, 30]})


def test_into_one_of_several_invocations_and_out_again() -> None:
    walk = begun().into("play", 1)
    assert (walk.next, walk.state["x"]) == (("raise",), 20)
    assert str(walk) == "play[1] > moment 0, before raise"
    assert walk.step().state["x"] == 21
    assert walk.next == ("put",)
    assert walk.out().next == ("end",)
    assert (walk.inside, walk.state["out"]) == ((), [11, 21, 31])
    with pytest.raises(StepperError, match="no subgraph"):
        walk.out()
    assert walk.finish().next == ()


def test_step_over_and_the_last_step_inside_come_out() -> None:
    assert begun().step(2).state["out"] == [11, 21, 31]
    walk = begun().into("play", 2).step(2)
    assert (walk.inside, walk.next) == ((), ("end",))


def test_edits_inside_and_going_back_inside() -> None:
    walk = begun().into("play", 1).step()
    other = walk.fork().edit(x=500)
    assert [moment.next for moment in other.path()] == [("raise",), ("put",), ("put",)]
    assert other.graph.get_state(other.place).next == other.next
    assert other.out().state["out"] == [11, 500, 31]
    assert walk.state["x"] == 21
    assert walk.out().state["out"] == [11, 21, 31]
    again = begun().into("play", 1).step()
    assert again.back().state["x"] == 20
    assert again.edit(x=99).step().state["x"] == 100
    assert again.finish().state["out"] == [11, 100, 31]
    with pytest.raises(StepperError, match=r"this is play\[1\] > moment 0, with 0 steps before it in 'play'; out"):
        begun().into("play", 1).back()


def test_a_subgraph_of_a_subgraph() -> None:
    builder = StateGraph(Deep)
    builder.add_node("all", group())
    builder.add_node("sum", lambda state: {"out": [sum(state["out"])]})
    walk = begun(chain(builder, "all", "sum").compile(checkpointer=InMemorySaver())).into("all").into("play", 2)
    assert str(walk) == "all > play[2] > moment 0, before raise"
    assert walk.step().edit(x=0).out().next == ("end",)
    assert walk.inside[0].node == "all"
    assert walk.out().state["out"] == [11, 21, 0]
    assert walk.finish().state["out"][-1] == 32


def test_names_of_nodes_inside_are_hinted() -> None:
    with pytest.raises(StepperError, match=r"no node 'put'; there are begin, play, end; 'play' has one inside: into\('play'\)"):
        begun().until("put")
    with pytest.raises(StepperError, match="there is no number 3"):
        begun().into("play", 3)
    walk = begun()
    for node in ("end", None):
        says = f"'{node or 'begin'}' has no subgraph that LangGraph knows; 'play' can be entered"
        with pytest.raises(StepperError, match=says):
            walk.into(node)
        assert walk.next == ("begin",), "nothing was run"
    with pytest.raises(StepperError, match="'raise' has no subgraph that LangGraph knows, nor has another node here"):
        walk.into("play").into()
    assert begun().into("play").until("put").state["x"] == 11
    with pytest.raises(StepperError, match=r"there is no channel 'x'; 'play' has it inside: into\('play'\)"):
        begun().edit(x=1)


class Logged(TypedDict):
    x: int
    log: Annotated[list[str], operator.add]


def log(name: str, state: Logged) -> dict[str, Any]:
    return {"log": [f"{name} {state['x']}"], "x": state["x"] + 1}


def logging(depth: int, checkpointer: Any = None) -> Any:
    """Nodes a, b and c, which log x and add one to it; b is such a graph again, `depth` times."""
    builder = StateGraph(Logged)
    for name in "abc":
        builder.add_node(name, logging(depth - 1) if name == "b" and depth else partial(log, f"{name}{depth}"))
    return chain(builder, *"abc").compile(checkpointer=checkpointer)


def move(walk: Walk, do: str, **more: Any) -> None:
    getattr(walk, do)(**more)


@pytest.mark.parametrize("seed", quick(range(24), *range(6)))
def test_a_fork_ends_as_its_moves_do_alone_whatever_others_did(seed: int) -> None:
    rng, depth = random.Random(seed), 1 + seed % 2
    walks = [(start(logging(depth, InMemorySaver()), {"x": 0, "log": []}), list[dict[str, Any]]())]
    for _ in range(25):
        walk, moves = rng.choice(walks)
        made = {"do": rng.choice(["step", "into", "into", "out", "edit", "edit", "back", "fork", "fork", "finish"])}
        if made["do"] == "fork":
            walks.append((walk.fork(), [*moves]))
            continue
        made |= {"x": rng.randrange(100, 999)} if made["do"] == "edit" else {}
        with suppress(StepperError):
            move(walk, **made)
            moves.append(made)
    rng.shuffle(walks)
    for walk, _ in walks:
        if walk.next:
            walk.finish()
    for walk, moves in walks:
        alone = start(logging(depth, InMemorySaver()), {"x": 0, "log": []})
        for made in moves:
            move(alone, **made)
        if alone.next:
            alone.finish()
        assert (str(walk), walk.state) == (str(alone), alone.state), moves


def test_a_walk_inside_is_taken_up_by_another_process_and_a_kept_fork_is_the_run(tmp_path: Path) -> None:
    def opened() -> Any:
        return logging(1, SqliteSaver(connect(tmp_path / "c.sqlite", check_same_thread=False)))

    config: Any = {"configurable": {"thread_id": "run"}}
    start(opened(), {"x": 0, "log": []}, "run").into("b").step()
    walk = Walk(opened(), config).into("b")
    assert (str(walk), walk.state["x"]) == ("b > moment 1, before b", 2)
    one, two = walk.fork().edit(x=100), walk.fork().edit(x=200)
    assert (one.step().state["x"], two.step().state["x"]) == (101, 201)
    assert Walk(opened(), config).into("b").state["x"] == 2, "what-ifs leave no trace in the run's record"
    one.keep()
    again = Walk(opened(), one.place, inside=one.inside)
    assert (str(again), again.state["x"], two.finish().state["x"], walk.finish().state["x"]) == (str(one), 101, 203, 5)
    assert again.finish().state["log"] == ["a1 0", "a1 0", "a0 1", "b0 100", "c0 101", "c1 102"]
    two.keep()
    assert Walk(opened(), config).state["x"] == 103, "the record has gone on otherwise"


class Asked(TypedDict):
    n: int
    said: str


def asking(checkpointer: Any) -> Any:
    builder = StateGraph(Asked)
    builder.add_node("count", lambda state: {"n": state["n"] + 1})
    builder.add_node("ask", lambda state: {"said": f"{interrupt('how was it?')} {interrupt('sure?')}"})
    builder.add_node("end", lambda state: {})
    return chain(builder, "count", "ask", "end").compile(checkpointer=checkpointer)


def test_a_question_pauses_until_it_is_answered() -> None:
    walk = start(asking(InMemorySaver()), {"n": 0})
    assert walk.question is None
    with pytest.raises(StepperError, match="nothing asks"):
        walk.resume("good")
    assert walk.finish().question == "how was it?"
    assert str(walk) == "moment 1, before ask, which asks how was it?"
    with pytest.raises(StepperError, match=r"asks how was it\?: answer with resume\(value\)"):
        walk.step()
    other = walk.fork()
    assert walk.resume("good").question == "sure?"
    assert walk.resume("yes").state["said"] == "good yes"
    assert walk.finish().next == ()
    assert other.resume("bad").resume("no").finish().state["said"] == "bad no"
    assert walk.state["said"] == "good yes"


@pytest.mark.parametrize("edits", [False, True])
def test_any_number_of_wrong_answers_leaves_the_question_open(edits: bool) -> None:
    builder = StateGraph(Asked)
    builder.add_node("ask", lambda state: {"n": state["n"] + int(interrupt("how many?"))})
    walk = start(chain(builder, "ask").compile(checkpointer=InMemorySaver()), {"n": 0})
    walk = (walk.edit(n=10) if edits else walk).step()
    for wrong in "xyz":
        with pytest.raises(ValueError, match=f"'{wrong}'"):
            walk.resume(wrong)
        assert (walk.question, walk.fork().resume("2").state["n"] % 10) == ("how many?", 2)
    assert walk.resume("3").state["n"] == (13 if edits else 3)


def test_a_node_that_has_asked_asks_anew_after_going_back() -> None:
    walk = start(asking(InMemorySaver()), {"n": 0}).finish().resume("good").resume("yes")
    assert str(walk.back()) == "moment 1, before ask, which asks anew"  # and not the second question, which was asked last
    assert walk.step().question == "how was it?"
    assert walk.resume("bad").resume("no").state["said"] == "bad no"


def test_a_fan_out_passes_its_arrow_as_often_as_it_sends() -> None:
    arrows = {("START", "begin"): 1, ("begin", "play"): 3, ("play", "end"): 1, ("end", "END"): 1}
    assert begun().finish().passes() == arrows
    for many in (1, 5):  # an edit changes what is handed out
        edited = begun().step().edit(xs=[1] * many)
        assert edited.finish().passes() == {**arrows, ("begin", "play"): many}


@pytest.mark.parametrize("flow", ["b & d --> e", "d --> e; b --> e:::deferred"])
def test_an_arrow_whose_node_waits_for_others_is_passed_when_that_runs(flow: str) -> None:
    nodes: dict[str, Any] = {name: lambda state: {} for name in "abcde"}
    drawn = f"flowchart LR; START --> a --> b & c; c --> d; {flow}; e --> END"
    walk = start(wire(StateGraph(Group), drawn, nodes).compile(checkpointer=InMemorySaver()), {"xs": []}).until("d")
    assert walk.passes() == {("START", "a"): 1, ("a", "b"): 1, ("a", "c"): 1, ("c", "d"): 1}
    assert walk.finish().passes().items() >= {(("b", "e"), 1), (("d", "e"), 1), (("e", "END"), 1)}


def test_two_questions_at_once_need_their_names() -> None:
    builder = StateGraph(Group)
    builder.add_node("ask", lambda state: {"out": [interrupt(f"number {state['x']}?")]})
    builder.add_conditional_edges(START, lambda state: [Send("ask", {"x": x}) for x in state["xs"]], ["ask"])
    walk = start(builder.compile(checkpointer=InMemorySaver()), {"xs": [1, 2]}).step()
    assert sorted(walk.question.values()) == ["number 1?", "number 2?"]
    with pytest.raises(StepperError, match="2 nodes ask"):
        walk.resume(5)
    answers = {id: 10 * int(text[7]) for id, text in walk.question.items()}
    assert walk.resume(answers).state["out"] == [10, 20]


def test_two_nodes_that_ask_are_answered_by_their_names() -> None:
    builder = StateGraph(Group)
    for name in ("approve", "rate"):
        builder.add_node(name, lambda state: {"out": [interrupt("ok?")]})
        builder.add_edge(START, name)
    walk = start(builder.compile(checkpointer=InMemorySaver()), {"xs": []}).step()
    says = "2 nodes ask: answer with a dict of node -> answer, such as resume({'approve': ..., 'rate': ...})"
    for wrong in (5, {"aprove": 1}):
        with pytest.raises(StepperError, match=re.escape(says)):
            walk.resume(wrong)
    assert walk.fork().resume({"approve": 1, "rate": 2}).state["out"] == [1, 2]
    walk.resume({"rate": 2})
    assert walk.resume({"approve": 1}).state["out"] == [1, 2]
    walk = start(builder.compile(checkpointer=InMemorySaver()), {"xs": []}).step()
    assert walk.resume(dict.fromkeys(walk.questions, 3)).state["out"] == [3, 3]


def test_a_question_inside_a_subgraph() -> None:
    builder = StateGraph(Asked)
    builder.add_node("inner", asking(None))
    walk = start(chain(builder, "inner").compile(checkpointer=InMemorySaver()), {"n": 0}).into("inner").step(2)
    assert walk.question == "how was it?"
    assert walk.resume("a").resume("b").next == ("end",)
    assert walk.inside
    assert walk.finish().state["said"] == "a b"


def test_questions_side_by_side_are_answered_by_id_and_a_wrong_answer_is_given_again() -> None:
    one = StateGraph(Single)
    one.add_node("ask", lambda state: {"out": [interrupt(f"number {state['x']}?")["n"]]})
    one.add_node("rest", lambda state: {})
    builder = StateGraph(Group)
    builder.add_node("sub", chain(one, "ask", "rest").compile())
    builder.add_conditional_edges(START, lambda state: [Send("sub", {"x": x}) for x in state["xs"]], ["sub"])
    walk = start(builder.compile(checkpointer=InMemorySaver()), {"xs": [1, 2]}).into("sub", 1).step()
    assert walk.question == "number 2?"
    for wrong, says in (("twenty", "indices must be"), ({}, "'n'"), ("2", "indices must be")):
        with pytest.raises((TypeError, KeyError), match=says):  # LangGraph alone would answer "twenty" for ever
            walk.resume(wrong)
    assert walk.resume({"n": 20}).next == ("rest",)
    assert walk.out().question == "number 1?"
    assert walk.into("sub").question == "number 1?"
    assert (walk.out().question, walk.inside) == ("number 1?", ())  # nothing was run
    assert walk.resume({"n": 10}).state["out"] == [10, 20]


def looping(checkpointer: Any) -> Any:
    builder = StateGraph(Single)
    builder.add_node("raise", lambda state: {"x": state["x"] + 1})
    builder.add_node("put", lambda state: {"out": [state["x"]]})
    builder.add_edge(START, "raise")
    builder.add_edge("raise", "put")
    builder.add_conditional_edges("put", lambda state: "raise" if state["x"] < 9 else END, ["raise", END])
    return builder.compile(checkpointer=checkpointer)


def test_breakpoints_on_nodes_and_on_the_state() -> None:
    walk = start(looping(InMemorySaver()), {"x": 0})
    assert walk.until(lambda state: state["x"] == 3).state["x"] == 3
    assert walk.next == ("put",)
    walk.break_on("raise")
    assert (walk.finish().next, walk.state["x"]) == (("raise",), 3)
    walk.breakpoints.clear()
    walk.break_on(lambda state: len(state["out"]) == 5)
    assert walk.finish().state["out"] == [1, 2, 3, 4, 5]
    walk.breakpoints.clear()
    assert walk.finish().next == ()
    assert walk.passes() == {("START", "raise"): 1, ("raise", "put"): 9, ("put", "raise"): 8, ("put", "END"): 1}
    with pytest.raises(StepperError, match="no node 'lift'"):
        walk.break_on("lift")
    with pytest.raises(StepperError, match=r"'y'.*no channel; there are .*x"):
        start(looping(InMemorySaver()), {"x": 0}).until(lambda state: state["y"])


def test_a_value_of_another_type_is_refused_at_once() -> None:
    chat = StateGraph(MessagesState).add_node("talk", lambda state: {}).add_edge(START, "talk")
    walk = start(chat.compile(checkpointer=InMemorySaver()), {"messages": "hi"})
    with pytest.raises(StepperError, match=r"messages do not take these values: Unsupported message type: <class 'int'>$"):
        walk.edit(messages=3)
    assert (walk.branch, len(walk.path())) == (None, 1)
    with pytest.raises(StepperError, match="only what-ifs"):
        walk.keep()
    walk = begun()
    with pytest.raises(StepperError, match=r"channel 'xs' holds list\[int\], got ten \(str\)"):
        walk.edit(xs="ten")
    with pytest.raises(StepperError, match=r"xs\[1\]"):
        walk.edit(xs=[1, "2"])
    assert walk.edit(xs=[1]).step(2).state["out"] == [2]
    with pytest.raises(StepperError, match="do not take these values"):
        walk.edit(out=5)


def slow(checkpointer: Any) -> Any:
    async def wait(state: Asked) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"n": state["n"] + 1}

    async def ask(state: Asked) -> dict[str, Any]:
        return {"said": interrupt("well?")}

    builder = StateGraph(Asked)
    builder.add_node("wait", wait)
    builder.add_node("ask", ask)
    return chain(builder, "wait", "ask").compile(checkpointer=checkpointer)


def test_asynchronous_nodes_and_checkpoints(tmp_path: Any) -> None:
    async def play() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "c.sqlite")) as saver:
            await asyncio.to_thread(walk_through, saver)
            walk_through(saver)  # as in a cell of a notebook, in the loop of the checkpointer
            walk = begun(group(checkpointer=saver)).into("play", 1).step()
            other = walk.fork().edit(x=500).out()
            assert (other.state["out"], str(other)) == ([11, 500, 31], "moment 2, before end")
            assert walk.out().finish().state["out"] == [11, 21, 31]
            pooled = cast(Any, AsyncSqliteSaver(saver.conn))
            pooled.conn = SimpleNamespace(getconn=None)  # as of an AsyncConnectionPool: it would wait for the loop that waits
            with pytest.raises(StepperError, match=r"^the pool of AsyncSqliteSaver lends .*`await asyncio.to_thread"):
                begun(group(checkpointer=pooled))

    asyncio.run(play())
    walk_through(InMemorySaver())


def walk_through(saver: Any) -> None:
    walk = start(slow(saver), {"n": 0})
    assert walk.step().state["n"] == 1
    walk.edit(n=5)
    assert walk.until(lambda state: state["n"] > 100).question == "well?"
    assert walk.resume("fine").state == {"n": 5, "said": "fine"}
    assert walk.next == ()
    builder = StateGraph(Asked)
    builder.add_node("inner", slow(None))
    inside = start(chain(builder, "inner").compile(checkpointer=saver), {"n": 1})
    inside.into()
    assert inside.step().state["n"] == 2
    assert inside.next == ("ask",)


def test_into_a_group_of_training_free_grpo() -> None:
    """Its subgraph is held by an object, and leaves no checkpoints unless a walk asks for them."""
    world = KeywordKeep()
    settings = training_free_grpo.TrainingFreeGRPO(author="rule", epochs=1, batch_size=2)
    problems = [world.task(n) for n in range(2)]
    graph = training_free_grpo.build(
        MethodInputs(environment=world),
        settings,
        problems=problems,
        held_out=[world.task(9)],
        checkpointer=InMemorySaver(serde=serializer()),
    )
    walk = start(graph, {"run": "r"}).into("group", 1)
    assert (walk.next, walk.state["task"]) == (("open",), problems[1])
    assert str(walk.step()) == "group[1] > moment 1, before rollout (5 times)"
    assert len(walk.step().state["rollouts"]) == 5
    assert walk.out().next == ("consolidate",)
