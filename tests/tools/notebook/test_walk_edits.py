"""An edit of a value that no router reads leaves what is about to run, and what runs from there, as they were."""

import operator
from random import Random
from typing import Annotated, Any, Literal

import pytest
from langchain.agents import create_agent
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Overwrite, Send, interrupt
from typing_extensions import TypedDict
from variants import quick

from learngraph.graphs.studio.walk_session import WalkSession
from learngraph.graphs.wiring.flow import wire
from learngraph.tools.models.random_tools import HeedfulToolModel
from learngraph.tools.notebook.walk import StepperError, Walk, start


class State(TypedDict):
    note: str
    log: Annotated[list[str], operator.add]


def leave(name: str, way: str, ends: list[str], asks: bool) -> Any:
    """A node that logs what it was sent, and which way it leads: by arrows, a router, Commands, or fan-outs of both."""

    def act(state: dict[str, Any]) -> Any:
        said = f" {interrupt(name)}" if asks else ""
        update = {"log": [f"{name}{state.get('number', '')}{said}"]}
        sent = [Send(end, {"number": n}) for end in ends for n in range(2)]
        goto: Any = {"Command": ends[-1:], "both": ends[-1:], "Commands": sent}.get(way)
        return Command(update=update, goto=goto) if goto else update

    return act


def draw(draws: Random) -> Any:
    """A graph of six nodes, in which every way leads on to later ones."""
    builder, names = StateGraph(State), list("abcdef")
    for n, name in enumerate(names):
        ends = sorted(draws.sample(names[n + 1 :], min(len(names) - n - 1, draws.choice((1, 2)))))
        way = draws.choice(("arrows", "router", "Command", "both", "fan-out", "Commands")) if ends else "end"
        builder.add_node(name, leave(name, way, ends, draws.random() < 0.3), destinations=(*ends,))
        if way == "router":
            builder.add_conditional_edges(name, lambda state, ends=ends: ends[len(state["log"]) % len(ends)], ends)
        elif way == "fan-out":
            builder.add_conditional_edges(name, lambda state, ends=ends: [Send(ends[0], {"number": n}) for n in (7, 8)], ends)
        elif way in ("arrows", "both"):
            for end in ends if way == "arrows" else ends[:1]:
                builder.add_edge(name, end)
    return builder.add_edge(START, "a")


def play(walk: Walk, depth: int) -> list[str]:
    """What the inner graph's nodes log until it ends; every question is answered by its node's name."""
    while walk.next and len(walk.inside) == depth:
        if walk._interrupts():
            walk.resume(dict.fromkeys(walk.questions, "yes") if len(walk.questions) > 1 else "yes")
        else:
            walk.step()
    return list(walk.state["log"])


@pytest.mark.parametrize("seed", quick(range(9), *range(3)))
@pytest.mark.parametrize("depth", [0, 1])
def test_an_edit_leads_on_as_the_run_did(seed: int, depth: int) -> None:
    graph: Any = draw(Random(seed))
    if depth:
        graph = StateGraph(State).add_node("inner", graph.compile()).add_edge(START, "inner")
    begin: Any = {"note": "", "log": []}
    walk = start(graph.compile(checkpointer=InMemorySaver()), begin)
    walk = walk.into("inner") if depth else walk
    expected = play(walk.fork(), depth)
    while walk.next and len(walk.inside) == depth:
        other = walk.fork().edit(note="other")
        assert (other.state["note"], sorted(other.next)) == ("other", sorted(walk.next)), walk
        assert play(other, depth) == expected, walk
        walk.resume(dict.fromkeys(walk.questions, "yes")) if walk._interrupts() else walk.step()
    if not depth:  # the studio's edit is the walk's
        session = WalkSession("", lambda number, input: start(graph.compile(checkpointer=InMemorySaver()), begin))
        session.start()
        branch = session.overview()["branches"][0]
        edited = session.act("edit", branch["id"], branch["place"], channel="note", value="other")["current"]
        assert play(session._find(edited).walk, 0) == expected


def test_an_edited_reply_of_a_tool_leads_on_to_the_model() -> None:
    def resolve(how: Literal["refund", "replace"]) -> str:
        """Resolve a complaint."""
        return how

    agent: Any = create_agent(HeedfulToolModel(seed=3), [resolve], checkpointer=InMemorySaver())
    walk = start(agent, {"messages": "my vase"}).until("tools").step()
    last = walk.state["messages"][-1]
    walk.edit(messages=[last.model_copy(update={"content": "lost"})])
    assert (walk.next, walk.state["messages"][-1].content) == (("model",), "lost")
    assert len(walk.finish().state["messages"]) == 4


def test_a_router_that_reads_the_edit_decides_anew_beside_a_command() -> None:
    builder = StateGraph(State).add_node("a", lambda state: Command(goto="c"), destinations=("c",)).add_edge(START, "a")
    for name in "bcd":
        builder.add_node(name, lambda state, name=name: {"log": [name]})
    builder.add_conditional_edges("a", lambda state: "b" if state["note"] else "d", ["b", "d"])
    walk = start(builder.compile(checkpointer=InMemorySaver()), {"note": "", "log": []}).step()
    assert sorted(walk.next) == ["c", "d"]
    assert sorted(walk.edit(note="other").next) == ["b", "c"]


class Given(TypedDict):
    words: str


class Found(TypedDict):
    docs: list[str]


class Whole(Given, Found):
    verdict: str
    gone: Annotated[str, UntrackedValue]
    read: Annotated[list[str], operator.add]


def find(state: Given) -> Found:
    return {"docs": state["words"].split()}


def route(state: Whole) -> Literal["good", "bad"]:
    return "good" if state.get("verdict") == "good" else "bad"


def walk_along(flow: str, routed: str = "") -> Walk:
    nodes: dict[str, Any] = {name: lambda state, name=name: {"read": [f"{name}{state.get('doc', '')}"]} for name in "bc"}
    nodes |= {
        "law": lambda state: {"verdict": interrupt("law")},
        "money": lambda state: {"docs": [interrupt("money")]},
        "find": find,
    }
    fan_outs: Any = {"find": lambda state: [{"doc": doc} for doc in state["docs"]]} if "find" in flow else {}
    nodes = {name: node for name, node in nodes.items() if f" {name} " in flow}
    builder = wire(StateGraph(Whole, input_schema=Given), flow, nodes, {routed: route} if routed else {}, fan_outs)
    return start(builder.compile(checkpointer=InMemorySaver()), {"words": "x y"})


def test_an_edit_at_the_first_moment_writes_what_no_input_holds_and_the_first_router_reads_it() -> None:
    walk = walk_along("flowchart LR; START -->|good| b --> END; START -->|bad| c --> END", "START")
    with pytest.raises(StepperError, match="`gone`, which is not in the state behind the edit: LangGraph's UntrackedValue"):
        walk.edit(gone="lost", words="c")
    assert (str(walk), walk.state, walk.branch) == ("moment 0, before c", {"words": "x y", "read": []}, None)
    assert walk.edit(verdict="good", read=["mine"]).next == ("b",)
    assert walk.finish().state == {"words": "x y", "verdict": "good", "read": ["mine", "b"]}


FORKS = {"law & money --> b --> END": "", "law -->|good| b --> END; law -->|bad| c --> END; money --> END": "law"}


@pytest.mark.parametrize("flow", FORKS)
def test_an_edit_between_parallel_nodes_writes_also_what_the_ended_one_wrote(flow: str) -> None:
    walk = walk_along(f"flowchart LR; START --> law & money ; {flow}", FORKS[flow]).finish().resume({"law": "bad"})
    for values in ({"verdict": "good"}, {"docs": ["d"], "read": ["mine"]}):
        assert walk.edit(**values).state.items() >= values.items()
    assert (walk.state["verdict"], walk.next, walk.step().question) == ("good", ("money",), "money")
    assert walk.resume("high").finish().state == {"words": "x y", "verdict": "good", "docs": ["high"], "read": ["mine", "b"]}
    again = walk.back(2).fork().resume("low").finish()  # to the edit: what the ended node wrote by then stays
    assert (again.state["verdict"], again.state["docs"], again.state["read"]) == ("good", ["low"], ["mine", "b"])
    assert walk.drop().state == {"words": "x y", "verdict": "bad", "read": []}


@pytest.mark.parametrize(("values", "read"), [({"docs": ["z"]}, ["bz"]), ({"verdict": "v", "words": "w"}, ["bx", "by"])])
def test_the_fan_out_of_a_typed_node_reads_an_edit(values: Any, read: list[str]) -> None:
    walk = walk_along("flowchart LR; START --> find -.-> b --> END").step()
    assert walk.edit(**values).next == ("b",) * len(read)
    assert walk.finish().state["read"] == read


class Plan(TypedDict):
    items: list[str]
    log: Annotated[list[str], operator.add]


def start_work(items: list[str], adds: bool = True) -> Walk:
    """A walk to where a fan-out over the items is half done: all but "a" ask."""

    def work(state: dict[str, str]) -> dict[str, Any]:
        item = state["item"]
        return {"log": [f"{item} {interrupt(item)}"] if item != "a" else Overwrite(["a"]) if not adds else ["a done"]}

    nodes: dict[str, Any] = {"plan": lambda state: {"log": []}, "work": work, "collect": lambda state: {"log": ["collected"]}}
    hand_out = {"plan": lambda state: [{"item": one} for one in state["items"]]}
    builder = wire(StateGraph(Plan), "flowchart LR; START --> plan -.-> work --> collect --> END", nodes, {}, hand_out)
    return start(builder.compile(checkpointer=InMemorySaver()), {"items": items}).step(2)


def test_work_that_is_done_is_known_by_its_input_where_an_edit_of_its_list_is_made() -> None:
    """By its place in the list, a piece of work was done twice and another never; where nothing was left, the run ended without a word."""
    walk = start_work(["a", "b", "c"])
    assert sorted((walk.question or {}).values()) == ["b", "c"]
    with pytest.raises(StepperError, match="all that would follow has been done already"):
        walk.edit(items=["a"])
    assert (walk.branch, walk.next, walk.state["items"]) == (None, ("work", "work"), ["a", "b", "c"])
    walk.edit(items=["d", "a", "a"]).resume("now").finish()  # of two equal pieces one was done
    assert sorted(walk.state["log"]) == ["a done", "a done", "collected", "d now"]


EDITS_OF_A_LIST = {
    "adds": (["mine"], ["a done", "mine"]),
    "replaces": (Overwrite(["mine"]), ["mine"]),
    "empties": (Overwrite([]), []),
}


@pytest.mark.parametrize("kind", EDITS_OF_A_LIST)
def test_an_edit_of_what_a_finished_piece_has_shown_holds_and_back_leads_to_where_one_stood(kind: str) -> None:
    """What the finished piece had added came behind the edit, so that it could be neither replaced nor taken away."""
    edit, shown = EDITS_OF_A_LIST[kind]
    walk = start_work(["a", "b"])
    assert walk.edit(log=edit).state["log"] == shown
    assert walk.fork().resume("now").finish().finish().state["log"] == [*shown, "b now", "collected"]
    assert (walk.back().state["log"], walk.next, walk.question) == (["a done"], ("work",), "b")
    for one in (walk.fork(), walk):
        assert one.resume("then").finish().state["log"] == ["a done", "b then", "collected"]
    assert walk.drop().state["log"] == ["a done"]


def test_at_a_question_drop_leads_back_to_the_thread_and_keep_replaces_nothing_that_went_on() -> None:
    """The thread stayed at the question, whose tool ran twice; and a kept what-if took the place of what the real run had answered."""
    for leave in (Walk.back, lambda walk: walk.edit(log=["mine"])):
        walk = start_work(["a", "b"])
        leave(walk).drop().resume("real").finish()
        assert start(walk.graph, thread="walk-1").state["log"] == ["a done", "b real", "collected"]
    walk = start_work(["a", "b", "c"])
    first, edited = walk.fork().resume(dict.fromkeys(walk.questions, "if")), walk.fork().edit(log=["mine"])
    walk.resume({next(iter(walk.questions)): "real"})  # one of two answers
    for other in (first, edited):
        assert str(other.keep()).startswith("moment 2, apart from its thread, before ")
        assert start(walk.graph, thread="walk-1").state["log"] == ["a done", "b real"]
    assert str(start_work(["a", "b"]).edit(log=["mine"]).keep().resume("real")) == "moment 3, before collect"


def test_the_moment_of_an_edit_shows_what_had_ended_beside_it_also_when_it_is_past() -> None:
    walk = start_work(["a", "b"])
    edited = walk.fork().edit(items=["a", "b", "d"]).step()
    assert (len(edited.questions), edited.path()[-1].values["log"]) == (2, ["a done"])
    edited.resume(dict.fromkeys(edited.questions, "now"))
    assert (edited.path()[-2].values["log"], edited.path()[-2].next) == (["a done"], ("work", "work"))


def test_an_edit_that_a_finished_piece_would_swallow_is_refused() -> None:
    walk = start_work(["a", "b"], adds=False)
    with pytest.raises(StepperError, match=r"has replaced `log`, to which nothing adds then: Overwrite\(value\) replaces it"):
        walk.edit(log=["mine"])
    with pytest.raises(StepperError, match=r"the channel 'log' holds list\[str\], got mine \(a str\)"):
        walk.edit(log=Overwrite("mine"))
    assert walk.edit(log=Overwrite(["mine"])).resume("now").finish().state["log"] == ["mine", "b now", "collected"]


def test_a_what_if_between_parallel_nodes_remembers_what_the_ended_one_wrote() -> None:
    builder = StateGraph(State).add_node("put", lambda state, *, store: store.put(("all",), "put", {}))
    builder.add_node("ask", lambda state: {"note": interrupt("?")})
    builder.add_node("count", lambda state, *, store: {"log": [one.key for one in store.search(("all",))]})
    builder.add_edge(START, "put").add_edge(START, "ask").add_edge(["put", "ask"], "count")
    begin: Any = {"note": "", "log": []}
    walk = start(builder.compile(checkpointer=InMemorySaver(), store=InMemoryStore()), begin).step()
    for other in (walk.fork(), walk.fork().edit(note="n"), walk.fork().fork(), walk.fork().edit(note="n").resume("b").back()):
        assert other.resume("a").finish().state["log"] == ["put"]
    assert walk.back(0).fork().back(0).resume("a").finish().state["log"] == ["put"]
