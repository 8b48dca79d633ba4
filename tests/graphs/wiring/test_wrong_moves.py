"""Wrong moves of somebody who composes for the first time: each is one sentence when the graph is wired, or where only the run shows it."""

import asyncio
import re
import types
from copy import deepcopy
from dataclasses import dataclass
from operator import add
from typing import Annotated, Any, Literal, cast

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send
from scripted_agent import ScriptedCalls
from typing_extensions import TypedDict

import learngraph
from learngraph.graphs import jitrl
from learngraph.graphs.arms import blueprint
from learngraph.graphs.methods import METHODS, find_method
from learngraph.graphs.wiring.flow import FlowError, InputError, check, rewire, to_mermaid, wire
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError, type_of
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.choose import Choose
from learngraph.nodes.act.episode import Begin
from learngraph.nodes.act.policies import LocalPolicy, RecentStepsPrompt
from learngraph.nodes.act.tabular import EpsilonGreedy
from learngraph.nodes.ask import Ask
from learngraph.nodes.state import PrecedentChannels, StrategyChannels
from learngraph.nodes.synthesize.strategy import StrategyPart, route_precedents
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.models.models import open_model


class Asked(TypedDict):
    question: str


class Drafted(Asked):
    draft: str
    answer: str
    notes: Annotated[list[str], add]


class Answered(TypedDict):
    answer: str


class Draft(TypedDict):
    draft: str


class Misspelt(TypedDict):
    answr: str


class Around(Asked):
    number: int


def write(state: Asked) -> Draft:
    return {"draft": state["question"]}


def answer(state: Draft) -> Answered:
    return {"answer": state["draft"]}


def guess(state: Asked) -> Answered:
    return {"answer": state["question"]}


class NumberedDraft(TypedDict):
    draft: int


def number(state: Asked) -> NumberedDraft:
    return {"draft": 1}


def guess_draft(state: Drafted) -> Answered:
    return {"answer": state["draft"]}


def misspell(state: Asked) -> Misspelt:
    return {"answr": state["question"]}


class Served(Answered, Misspelt):
    pass


def read_misspelt(state: Misspelt) -> Answered:
    return {"answer": state["answr"]}


class MisspeltOne(Misspelt):
    draft: str


def misspell_one(state: Asked) -> MisspeltOne:
    return {"answr": state["question"], "draft": ""}


def misspell_untyped(state: Asked) -> Any:
    return {"answr": state["question"]}


def misspell_typed(state: Asked) -> Answered:
    return cast(Answered, {"answr": state["question"]})


class MisspellingNode:
    def __call__(self, state: Asked) -> Answered:
        return misspell_typed(state)


async def misspell_later(state: Asked) -> Answered:
    return misspell_typed(state)


def command(state: Asked) -> Any:
    return Command(update={"answr": ""}, goto="__end__")


NONE: Any = None
MOVES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a class": ("START --> guess --> END", {"guess": Choose}, "line 2: 'guess' is the class Choose, and a node is an object of it: write"),
    "nothing": ("START --> guess --> END", {"guess": None}, "line 2: 'guess' is None, and a node is a function of the state, "),
    "a part of the wrong kind": ("START --> guess --> END", {"guess": Begin(cast(Any, Journal()))}, "Begin: environment is an Environment with observe; got Journal(0 steps)"),
    "a number as a text": ("START --> guess --> END", {"guess": EpsilonGreedy(cast(Any, "0.1"))}, "line 2: 'guess' is made wrongly: EpsilonGreedy: epsilon is a number from 0 to 1; got '0.1'"),
    "a share above 1": ("START --> guess --> END", {"guess": EpsilonGreedy(2)}, "EpsilonGreedy: epsilon is a number from 0 to 1; got 2"),
    "no dict": ("START --> guess --> END", {"guess": Begin(open_environment("toy"), cast(Any, 3))}, "Begin: initial_values is a mapping; got 3"),
    "a part within a part": ("START --> guess --> END", {"guess": LocalPolicy(NONE, RecentStepsPrompt(Journal(), -1), NONE)}, "RecentStepsPrompt: max_steps is a whole number of at least 0; got -1"),
    "a name for a model": ("START --> guess --> END", {"guess": Ask("guess", cast(Any, "gpt"), NONE, NONE, NONE)}, "Ask: model is a chat model (init_chat_model makes one of a name) or another Runnable; got 'gpt'"),
    "written for nobody": ("START --> write --> guess --> END", {"write": write, "guess": guess}, "line 2: 'write' writes `draft`, which no node reads"),
    "a misspelt channel": ("START --> misspell --> END", {"misspell": misspell}, "line 2: 'misspell' writes `answr`, which is no channel of the state; did you mean answer?"),
    "a misspelt channel beside another": ("START --> misspell --> answer --> END", {"misspell": misspell_one, "answer": answer}, "line 2: 'misspell' writes `answr`, which is no channel of the state; did you mean answer?"),
    "a misspelt channel that is read": ("START --> guess --> read --> END", {"guess": guess, "read": read_misspelt}, "line 2: 'read' reads `answr`, which no node before it writes; did you mean answer?"),
    "a channel of another type": ("START --> write --> guess --> END", {"write": number, "guess": guess_draft}, "line 2: 'write' takes `draft` for int, and the state holds str"),
    "three arguments": ("START --> guess --> END", {"guess": lambda state, runtime, tone, length: None}, "line 2: 'guess' is called with the state, and by name with config, previous, runtime, store, writer: missing a required argument: 'tone'"),
    "no arguments": ("START --> guess --> END", {"guess": lambda: None}, "'guess' is called with the state, and by name with"),
    "a loop onto itself": ("START --> guess\n guess --> guess\n guess --> END", {"guess": guess}, "line 3: the plain arrows from 'guess' onto itself are always taken: the graph would run for ever"),
    "a loop over another": ("START --> write --> answer\n answer --> write\n answer --> END", {"write": write, "answer": answer}, "line 2: the plain arrows from 'write' over 'answer' back to itself are always taken"),
    "no beginning": ("guess --> END", {"guess": guess}, "no arrow leaves START; draw where the graph begins, such as 'START --> guess'"),
}  # fmt: skip


def builder() -> StateGraph[Any, Any, Any, Any]:
    return StateGraph(Drafted, input_schema=Asked, output_schema=Answered)


@pytest.mark.parametrize("move", MOVES)
def test_a_wrong_move_is_a_sentence(move: str) -> None:
    flow, nodes, says = MOVES[move]
    with pytest.raises(FlowError, match=re.escape(says)) as caught:
        wire(builder(), f"flowchart LR\n {flow}", nodes)
    found = check(f"flowchart LR\n {flow}", nodes, builder=builder())
    assert len(found) == 1
    assert found[0].sentence in str(caught.value)


class Inner(Asked):
    answer: str
    draf: str
    verdict: str


@pytest.mark.parametrize(
    ("given", "more"), [(StateGraph(Drafted), {"draft": "d"}), (builder(), {})], ids=["one state", "two schemas"]
)
def test_what_a_subgraph_writes_beside_the_state_is_its_own(given: Any, more: dict[str, str]) -> None:
    """LangGraph leaves a subgraph's further channels out: `structured_response` of each `create_agent`, or one much like ours."""

    def judge(state: Inner) -> Inner:
        return {"question": "", "answer": "yes", "draf": "", "verdict": "right"}

    flow = "flowchart LR\n START --> inner --> END"
    inner = StateGraph(Inner).add_node("judge", judge).add_edge(START, "judge").compile()
    drawn = wire(StateGraph(Inner), flow.replace("inner", "judge"), {"judge": judge}).compile()
    for node in (inner, drawn):
        assert check(flow, {"inner": node}, builder=deepcopy(given)) == []
        graph = wire(deepcopy(given), flow, {"inner": node}).compile()
        assert rewire(graph, to_mermaid(graph)).invoke({"question": "?", **more})["answer"] == "yes"
    with pytest.raises(InputError, match="`draft` is no channel of the input; did you mean draf"):
        drawn.invoke({"question": "?", "draft": ""})
    agent = create_agent(ScriptedCalls(calls=[]), [])
    graph = StateGraph(MessagesState).add_node("helper", agent).add_edge(START, "helper").compile()
    assert rewire(graph, to_mermaid(graph)).invoke({"messages": "hi"})["messages"][-1].type == "ai"


def test_a_subgraph_that_shares_no_channel_with_the_state_writes_for_nobody() -> None:
    inner = StateGraph(Misspelt).add_node("misspell", misspell).add_edge(START, "misspell").compile()
    says = "line 2: 'inner' writes `answr`, which is no channel of the state; did you mean answer?"
    with pytest.raises(FlowError, match=re.escape(says)):
        wire(builder(), "flowchart LR\n START --> inner --> END", {"inner": inner})


def both(state: Asked) -> Any:
    return Command(goto="b")


def both_typed(state: Asked) -> Command[Literal["b"]]:
    return Command(goto="b")


def first(state: Asked) -> Literal["a", "b"]:
    return "a"


def test_a_node_with_a_router_that_returns_a_command_is_refused_since_both_would_run() -> None:
    flow = "flowchart LR\n START --> guess -->|a| a --> END\n guess -->|b| b --> END"
    nodes: dict[str, Any] = {"guess": both, "a": lambda state: None, "b": lambda state: None}
    with pytest.raises(FlowError, match="a Command of 'guess' leads to 'b', and its router leads on as well: both would run"):
        wire(builder(), flow, nodes, {"guess": first}).compile().invoke({"question": "?"})
    with pytest.raises(FlowError, match=r"line 2: 'guess' has a router, and its Commands lead to \['b'\]: both would run"):
        wire(builder(), flow, {**nodes, "guess": both_typed}, {"guess": first})


def test_a_command_to_end_takes_a_drawn_arrow() -> None:
    flow = "flowchart LR\n START --> guess -->|a| a --> END\n guess -->|b| b --> END"
    nodes: dict[str, Any] = {"guess": lambda state: Command(goto=END), "a": lambda state: None, "b": lambda state: None}
    for drawn in (flow, flow.replace("-->|a| a", "--> a").replace(" guess -->|b| b --> END", "")):
        leads = {"guess": ["a", "b"]} if drawn == flow else {}
        some = nodes if leads else {name: nodes[name] for name in ("guess", "a")}
        with pytest.raises(FlowError, match=r"a Command of 'guess' leads to 'END', but no.* Draw 'guess -.-> END' if"):
            wire(builder(), drawn, some, destinations=leads).compile().invoke({"question": "?"})
    ended = wire(builder(), f"{flow}\n guess -.-> END", nodes, destinations={"guess": ["a", "b"]})
    assert ended.compile().invoke({"question": "?"}) is None, "nothing was written"
    lent = StateGraph(builder().state_schema).add_node("guess", nodes["guess"], destinations=("a",)).add_node("a", nodes["a"])
    graph = lent.add_edge(START, "guess").compile()
    rewire(graph, to_mermaid(graph)).invoke({"question": "?"})  # of a compiled graph, as LangGraph has it


def test_the_text_end_is_no_end_and_the_sentence_names_what_is() -> None:
    flow = "flowchart LR\n START --> guess -.-> END"
    nodes = {"guess": lambda state: Command(goto="END")}
    with pytest.raises(FlowError, match=r"a Command of 'guess' leads to the text 'END'.*: from langgraph.graph import END"):
        wire(builder(), flow, nodes, destinations={"guess": ["END"]}).compile().invoke({"question": "?"})


def test_a_text_as_input_a_router_as_a_node_and_a_builder_that_is_wired_already_are_told() -> None:
    flow, wired = "flowchart LR\n START --> guess --> END", builder()
    graph = wire(wired, flow, {"guess": guess}).compile()
    with pytest.raises(InputError, match=r"the input is a dict of channels, such as \{'question': ...\}, got 'hi' \(a str\)"):
        graph.invoke(cast(Any, "hi"))
    with pytest.raises(FlowError, match="the builder has a node 'guess' already: give wire a new StateGraph"):
        wire(wired, flow, {"guess": guess})
    with pytest.raises(FlowError, match=r"routers are a dict of node -> router, such as \{'guess': choose\}, got a list"):
        wire(builder(), flow, {"guess": guess}, cast(Any, ["guess"]))
    with pytest.raises(FlowError, match=r"fan_outs are a dict .*, got a function"):
        wire(builder(), flow, {"guess": guess}, fan_outs=cast(Any, guess))
    with pytest.raises(FlowError, match="'guess' is a router, which returns a label, and a node returns channels"):
        wire(builder(), flow, {"guess": first})


def test_what_a_stray_command_is_told_to_draw_and_say_lets_it_lead_there() -> None:
    flow = "flowchart LR\n START --> guess --> a --> END\n START --> b --> END"
    nodes: dict[str, Any] = {"a": lambda state: None, "b": lambda state: {"answer": "x"}}
    with pytest.raises(FlowError) as told:
        wire(builder(), flow, {**nodes, "guess": both}).compile().invoke({"question": "?"})
    draws, says = re.findall(r"Draw '(.*?)'.*? or (destinations=.*) of wire", str(told.value))[0]
    for node, more in ((both, eval(f"dict({says})")), (both_typed, {})):
        graph = wire(builder(), f"{flow}\n {draws}", {**nodes, "guess": node}, **more).compile()
        assert graph.invoke({"question": "?"})["answer"] == "x"


def to_b(state: Asked) -> Command[Literal["b"]]:
    return Command() if state["question"] else Command(goto="b")


@pytest.mark.parametrize("kind", ["a fan-out of nothing", "a node without a Command"])
def test_a_run_ends_where_nothing_leads_on_if_an_arrow_to_the_end_says_so(kind: str) -> None:
    nodes: dict[str, Any] = {"a": to_b if "Command" in kind else lambda state: None, "b": lambda state: {"answer": "x"}}
    fan: Any = {"fan_outs": {"a": lambda state: [] if state["question"] else [state]}} if "fan" in kind else {}
    flow = "flowchart LR\n START --> a -.-> b --> END"
    said = "so nothing would follow 'a', and no arrow says so; draw 'a -.-> END' if its way may end there"
    silent, drawn = (wire(builder(), text, nodes, **fan).compile() for text in (flow, f"{flow}\n a -.-> END"))
    for graph in (silent, rewire(silent, to_mermaid(silent))):
        assert graph.invoke({"question": ""})["answer"] == "x"
        with pytest.raises(FlowError, match=said):
            graph.invoke({"question": "?"})
    for graph in (drawn, rewire(drawn, to_mermaid(drawn)), rewire(silent, f"{flow}\n a -.-> END")):
        assert graph.invoke({"question": ""})["answer"] == "x"
        assert not graph.invoke({"question": "?"})
        assert "a -.-> END" in to_mermaid(graph).replace("-->|end|", "-.->")


@pytest.mark.parametrize("fan_outs", [{}, {"a": lambda state: [{}, {}]}])
def test_what_nodes_without_types_write_at_the_same_time_is_told_when_it_happens(fan_outs: Any) -> None:
    flow = f"flowchart LR\n START --> a {'-.->' if fan_outs else '&'} b --> END"
    said = (
        "'b' 2 times ran at the same time, and wrote each time"
        if fan_outs
        else "'a' and 'b' ran at the same time, and each wrote"
    )
    said += " `answer`, which holds one value; give"
    graph = wire(builder(), flow, dict.fromkeys("ab", lambda state: {"answer": "x"}), {}, fan_outs).compile()
    with pytest.raises(FlowError, match=said):
        graph.invoke({"question": "?"})
    with pytest.raises(FlowError, match=r"reducer, such as answer: Annotated\[list, operator.add\]"):
        asyncio.run(graph.ainvoke({"question": "?"}))


def fan_out_none(state: Asked) -> list[Send]:
    return []


def test_what_a_compiled_graph_may_leave_unsaid_it_may_leave_unsaid_when_it_is_redrawn() -> None:
    asking = StateGraph(Drafted).add_node("a", to_b).add_node("b", lambda state: {"answer": "x"}).add_edge(START, "a")
    hand = StateGraph(Drafted).add_sequence([("a", lambda state: None)]).add_node("b", lambda state: None).add_edge(START, "a")
    for graph in (asking.compile(), hand.add_conditional_edges("a", fan_out_none, ["b"]).compile()):
        again = rewire(graph, to_mermaid(graph))
        assert rewire(again, to_mermaid(again)).invoke({"question": "?"}) == graph.invoke({"question": "?"})


UP: Any = Command(graph=Command.PARENT, goto="b")


@pytest.mark.parametrize("up", [UP, [UP]])  # LangGraph's ToolNode returns a list
def test_a_command_for_a_graph_around_that_is_not_there_is_told(up: Any) -> None:
    flow = "flowchart LR\n START --> up --> END"
    with pytest.raises(FlowError, match=r"'up' returned a Command with graph=Command\.PARENT, which only a graph"):
        wire(builder(), flow, {"up": lambda state: up}).compile().invoke({"question": "?"})


def test_a_plain_arrow_to_the_end_beside_another_does_nothing_and_is_told_so() -> None:
    nodes = dict.fromkeys("ab", lambda state: None)
    with pytest.raises(FlowError, match="line 3: the arrow 'a --> END' does nothing, for 'a --> b' is taken as well"):
        wire(builder(), "flowchart LR\n START --> a --> b --> END\n a --> END", nodes)
    drawn = StateGraph(Asked).add_sequence([("a", nodes["a"]), ("b", nodes["b"])]).add_edge(START, "a").add_edge("a", END)
    assert rewire(drawn.compile(), to_mermaid(drawn.compile())).invoke({"question": "?"}), "LangGraph lets others have them"
    with pytest.raises(FlowError, match="the router of 'a' is 'route', and a router is a function"):
        wire(builder(), "flowchart LR\n START --> a -->|b| b --> END", nodes, {"a": cast(Any, "route")})
    with pytest.raises(FlowError, match=r"the fan-out of 'a' is \['b'\], and a fan-out is a function from the state"):
        wire(builder(), "flowchart LR\n START --> a -.-> b --> END", nodes, fan_outs={"a": cast(Any, ["b"])})


def test_what_a_node_without_types_writes_to_no_channel_at_all_is_told_and_what_is_for_the_graph_around_is_not() -> None:
    said = "'guess' writes `number`, which is no channel of the state; there are answer, .*question"
    with pytest.raises(FlowError, match=said):
        run(lambda state: {"number": 3})
    assert run(lambda state: {"answer": "x", "number": 3}) == {"answer": "x"}, "as a graph inside returns it"
    up = wire(
        builder(),
        "flowchart LR\n START --> up --> END",
        {"up": lambda state: Command(graph=Command.PARENT, update={"number": 3})},
    )
    around = StateGraph(Around).add_node("inner", up.compile()).add_edge(START, "inner").compile()
    assert around.invoke({"question": "?"})["number"] == 3


def run(node: Any) -> Any:
    graph = wire(builder(), "flowchart LR\n START --> guess --> END", {"guess": node}).compile()
    return asyncio.run(graph.ainvoke({"question": "why?"}))


@pytest.mark.parametrize("node", [misspell_untyped, misspell_typed, MisspellingNode(), misspell_later, command])
def test_a_misspelt_channel_is_told_when_it_is_written(node: Any) -> None:
    with pytest.raises(FlowError, match="'guess' writes `answr`, which is no channel of the state; did you mean answer"):
        run(node)


def lie(state: Asked) -> Draft:
    return cast(Draft, {"answer": state["question"]})


def say_nothing(state: Asked) -> Draft:
    return cast(Draft, {})


class Lying:
    async def __call__(self, state: Asked) -> Draft | None:
        return lie(state)


@pytest.mark.parametrize(("node", "declared"), [(lie, "Draft"), (Lying(), r"Draft \| None")])
def test_a_node_that_writes_another_channel_than_its_type_says_is_named(node: Any, declared: str) -> None:
    flow = "flowchart LR\n START --> lie --> answer --> END"
    graph = wire(builder(), flow, {"lie": node, "answer": answer}).compile()
    with pytest.raises(FlowError, match=f"'lie' writes `answer`, which its return type {declared} does not have: that has"):
        asyncio.run(graph.ainvoke({"question": "?"}))
    lent = StateGraph(Drafted).add_node("lie", lie).add_edge(START, "lie").compile()
    assert rewire(lent, to_mermaid(lent)).invoke({"question": "?"})["answer"] == "?", "LangGraph lets it"


@pytest.mark.parametrize("reader", ["'answer'", "the router of 'lie'"])
def test_who_reads_what_a_node_should_have_returned_is_told_of_that_node(reader: str) -> None:
    def route(state: Draft) -> Literal["a"]:
        return cast(Any, state["draft"])

    flow = "flowchart LR\n START --> lie -->|a| answer --> END"
    nodes, routers = {"lie": say_nothing, "answer": answer}, {"lie": route}
    if "router" not in reader:
        flow, routers = flow.replace("|a|", ""), {}
    says = f"{reader} reads `draft`, which nothing has written: it is in the return type of 'lie', which did not run before, or did not return it"
    with pytest.raises(InputError, match=says):
        wire(builder(), flow, nodes, routers).compile().invoke({"question": "?"})


def read_notes(state: Draft) -> None:
    cast(Any, state)["notes"]


def route_notes(state: Draft) -> Literal["a"]:
    return cast(Any, state)["notes"]


@pytest.mark.parametrize("reader", ["'tell'", "the router of 'tell'", "the fan-out of 'write'"])
def test_who_reads_what_its_type_leaves_out_is_told_to_add_it_there(reader: str) -> None:
    flow, nodes = "flowchart LR\n START --> write -.-> tell -->|a| END", {"write": write, "tell": lambda state: None}
    hungry: Any = read_notes if reader == "'tell'" else route_notes
    fan_outs = {"write": hungry if "fan-out" in reader else lambda state: [{"draft": "d"}]}
    graph = wire(
        builder(), flow, nodes | ({"tell": hungry} if reader == "'tell'" else {}), {"tell": route_notes}, fan_outs
    ).compile()
    whose, schema = ("the type Asked of 'write'", "Asked") if "write" in reader else ("its type Draft", "Draft")
    says = f"{reader} reads `notes`, which {whose} does not have, and so is not given: add `notes` to {schema}; it was given `"
    with pytest.raises(InputError, match=says):
        graph.invoke({"question": "?"})


def command_typed(state: Asked) -> Answered | Command[Literal["__end__"]]:
    return Command(update={"draft": "d"}, goto=END)


def no_update(state: Asked) -> Draft | None:
    return None


@pytest.mark.parametrize("node", [lambda state: {"draft": "d"}, no_update, say_nothing, command_typed])
def test_what_a_type_leaves_open_is_written_and_what_it_says_may_be_left_out(node: Any) -> None:
    wire(StateGraph(Drafted), GUESS, {"guess": node}).compile().invoke({"question": "?"})


def test_a_node_of_the_project_may_write_what_the_state_lacks_if_its_type_says_so() -> None:
    written: dict[str, Any] = {"answer": "why", "answr": ""}

    def serve(state: Asked) -> Served:
        return cast(Served, written)

    serve.__module__ = Choose.__module__
    assert run(serve) == {"answer": "why"}
    written["number"] = 3
    with pytest.raises(FlowError, match="'guess' writes `number`, which is no channel of the state; there are answer, draft"):
        run(serve)


@pytest.mark.parametrize("returned", [["why"], [{"answer": "why"}], "why", 3, ("answer", "why")])
def test_a_node_that_returns_no_dict_is_named(returned: Any) -> None:
    said = re.escape(f"'guess' returned {type_of(returned)} ({returned!r}), and a node returns a dict of channels, such as")
    with pytest.raises(FlowError, match=said + " {'answer': ...}, or None"):
        run(lambda state: returned)


def test_what_langgraph_takes_beside_dicts_is_taken() -> None:
    @dataclass
    class Reply:
        answer: str

    for returned in ({"answer": "a"}, Command(update={"answer": "a"}), Reply("a"), [Command(update={"answer": "a"})]):
        assert run(lambda state, it=returned: it)["answer"] == "a"
    assert run(lambda state: None) is None
    numbers = StateGraph(list[int])
    wire(numbers, "flowchart LR\n START --> double --> END", {"double": lambda state: [2 * n for n in state]})
    assert numbers.compile().invoke([1, 2]) == [2, 4]


async def read_later(state: Any) -> Any:
    return {"answer": state["question"]}


RUNS: dict[str, tuple[Any, str]] = {
    "a missing key": (guess, "the input lacks `question`; it has nothing, and is to be {question: str}"),
    "in a coroutine": (read_later, "the input lacks `question`"),
    "a misspelt key": (lambda state: {"answer": state["anser"]}, "reads `anser`, which is no channel of the state; did you mean answer"),
}  # fmt: skip


@pytest.mark.parametrize("move", RUNS)
def test_a_key_that_the_state_lacks_is_a_sentence(move: str) -> None:
    node, says = RUNS[move]
    graph = wire(builder(), "flowchart LR\n START --> guess --> END", {"guess": node}).compile()
    with pytest.raises(InputError, match=says):
        asyncio.run(graph.ainvoke({}))


def test_an_error_of_a_dictionary_of_the_nodes_own_stays() -> None:
    graph = wire(builder(), "flowchart LR\n START --> guess --> END", {"guess": lambda state: {}["zebra"]}).compile()
    with pytest.raises(KeyError, match="zebra"):
        graph.invoke({"question": "why?"})


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_built_from_inputs_and_its_own_settings(method: str) -> None:
    build = find_method(method).build
    for given, got in (((Journal(),), "a Journal"), ((), "nothing")):
        with pytest.raises(UserError, match=f"build takes MethodInputs first, got {got}; write build"):
            build(*given)
    with pytest.raises(UserError, match=r"build takes settings of the class \w+ second, got a Journal"):
        build(MethodInputs(cast(Any, None)), Journal())


def test_a_name_is_no_world_and_no_model_and_a_store_no_records() -> None:
    with pytest.raises(UserError, match=r"such as RecordStore\(store, .* over any LangGraph store; got an InMemoryStore"):
        MethodInputs(open_environment("toy"), records=cast(Any, InMemoryStore()))
    inputs = MethodInputs(environment=open_environment("toy"))
    for option, said in (("beta", "settings go into an object, such as"), ("checkpointr", "did you mean checkpointer?")):
        with pytest.raises(UserError, match=f"build has no option '{option}'; {said}"):
            jitrl.build(inputs, **{option: 3})
    with pytest.raises(UserError, match="'toy' has no observe and no abstract"):
        MethodInputs(cast(Any, "toy"))
    given: list[tuple[dict[str, Any], str]] = [
        ({"journal": 3}, r"MethodInputs: journal is Journal\(...\); got 3"),
        ({"model": "gpt"}, "model is to be open, got the name 'gpt'"),
        ({"recrods": None}, "MethodInputs has no option 'recrods'; did you mean records"),
        ({"history_steps": 3}, r"did you mean prompting=Prompting\(history_steps=...\)"),
    ]
    for options, says in given:
        with pytest.raises(UserError, match=says):
            MethodInputs(open_environment("toy"), **options)
    with pytest.raises(UserError, match="a Journal has no score; with_chat_model takes a model that writes"):
        MethodInputs.with_scoring_model(open_environment("toy"), Journal(), cast(Any, Journal()))
    with pytest.raises(UserError, match="got the name 'gpt'; learngraph"):
        MethodInputs.with_scoring_model(open_environment("toy"), Journal(), cast(Any, "gpt"))


def test_a_wrong_part_of_a_prompt_a_wrong_style_and_a_misspelt_input_are_told() -> None:
    inputs = MethodInputs(open_environment("toy"))
    for part, came in ((StrategyPart, r"the class StrategyPart; write StrategyPart\(...\)"), ("strategy", "'strategy'")):
        with pytest.raises(UserError, match=f"a prompt shows parts, which are objects .*; got {came}"):
            inputs.episode_prompt(cast(Any, part))
    with pytest.raises(UserError, match=r"acting_policy takes a WritingStyle second, .*; got 'think'"):
        inputs.acting_policy(inputs.episode_prompt(), cast(Any, "think"))
    agent, given = jitrl.build(inputs), {"task": open_environment("toy").task(0), "run": "m", "episode": 0}
    for name, near in {"epsode": "episode", "epsodes": "episodes"}.items():  # which has a default
        with pytest.raises(InputError, match=f"jitrl: `{name}` is no channel of the input; did you mean {near}"):
            agent.invoke({key: value for key, value in given.items() if key != near} | {name: 1})
    assert agent.invoke({**given, "zebra": 1, "score": 2.0})["score"] >= 0, "LangGraph leaves it out"


def write_answer(state: dict[str, Any]) -> Any:
    return {"answer": state["question"].upper()}


INPUTS: dict[str, tuple[Any, str]] = {
    "a misspelt name": ({"qestion": "why?"}, "`qestion` is no channel of the input; did you mean question"),
    "a misspelt name beside a right one": ({"question": "why?", "answr": "so"}, "`answr` is no channel of the input; did you mean answer"),
    "another type": ({"question": 7}, r"`question` of the input is to be of type str, got an int \(7\)"),
    "no name of a channel": ({"zebra": 7}, "`zebra` is no channel of the input, which has `question`, .*`answer`"),
    "nothing": ({}, "reads `question`, which nothing has written: give it in the input"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", INPUTS)
def test_a_wrong_input_is_told_by_graphs_that_were_drawn_and_by_walks_of_any(wrong: str) -> None:
    given, says = INPUTS[wrong]
    drawn = wire(StateGraph(Drafted), "flowchart LR\n START --> guess --> END", {"guess": write_answer})
    plain = StateGraph(Drafted).add_node("guess", write_answer).add_edge("__start__", "guess")
    for builder in (drawn, plain):
        graph = builder.compile(checkpointer=InMemorySaver())
        moves = {"walk": lambda it=graph: learngraph.step(it, given).finish().state}
        if builder is drawn:
            moves["call"] = lambda it=graph: it.invoke(given, {"configurable": {"thread_id": "mine"}})
        for move in moves.values():
            with pytest.raises(InputError, match=says):
                move()


def test_a_name_that_only_a_node_within_reads_is_no_name_of_the_input() -> None:
    piece, plan = TypedDict("piece", {"topic": str}), TypedDict("plan", {"topics": list[str]})  # type: ignore[misc]  # of a fan-out
    graph = StateGraph(plan).add_node("work", write_answer, input_schema=piece).add_edge("__start__", "work")
    with pytest.raises(InputError, match="`topic` is no channel of the input; did you mean topics"):
        learngraph.step(graph.compile(checkpointer=InMemorySaver()), {"topic": ["a"]})


def test_an_input_that_a_reducer_refuses_is_told_and_stands_in_no_later_walks_way() -> None:
    """LangGraph keeps it under its thread, and raised the reducer's error again whenever the next walk looked for a free one."""
    agent = create_agent(ScriptedCalls(calls=[]), [], checkpointer=InMemorySaver())
    for _ in range(2):
        with pytest.raises(InputError, match="the channels `messages` do not take this input: Unsupported message type"):
            learngraph.step(agent, {"messages": 5})
    walk = learngraph.step(agent, {"messages": "hi"})
    assert walk.next == ("model",)
    with pytest.raises(InputError, match="the channels `messages` do not take this input: Unsupported message type"):
        walk.finish().go_on({"messages": 5})  # after which the walk could go nowhere
    assert str(walk.go_on({"messages": "again"})) == "turn 2, moment 0, before model"
    drawn = wire(StateGraph(Drafted), "flowchart LR\n START --> guess --> END", {"guess": write_answer})
    with pytest.raises(InputError, match=r"^`qestion` is no channel of the input"):
        learngraph.step(drawn.compile(checkpointer=InMemorySaver()), {"qestion": "why?"}, thread="mine")


def test_an_input_says_what_it_is_to_be() -> None:
    graph = StateGraph(Drafted, input_schema=Asked).add_node("guess", write_answer).add_edge("__start__", "guess")
    says = "the input lacks `question`; it has `zebra`, and is to be {question: str}"
    with pytest.raises(InputError, match=says):
        learngraph.step(graph.compile(checkpointer=InMemorySaver()), {"zebra": 1})


def test_a_run_repeats_the_graph_of_an_episode() -> None:
    answers = wire(builder(), GUESS, {"guess": guess}).compile()
    with pytest.raises(UserError, match=r"run.build repeats the graph of an episode, and this one gives out no `best`"):
        learngraph.run.build(answers)


GUESS = "flowchart LR\n START --> guess --> END"
CALLS: dict[str, tuple[Any, str]] = {
    "a builder drawn": (lambda graph: to_mermaid(builder()), "a compiled graph is asked for, got a StateGraph; call its compile"),
    "a builder rewired": (lambda graph: rewire(builder(), GUESS), "a compiled graph is asked for, got a StateGraph; call its compile"),
    "a drawing rewired": (lambda graph: rewire(GUESS, graph), "a compiled graph is asked for, got a str"),
    "a drawing wired": (lambda graph: wire(GUESS, builder(), {}), "wire takes a StateGraph first, and then the drawing; it got a str first"),
    "a state wired": (lambda graph: wire(Drafted, GUESS, {"guess": guess}), "it got the class Drafted first; rewire"),
    "a number drawn": (lambda graph: rewire(graph, 3), "a drawing is a text, such as to_mermaid(graph) writes, got an int"),
    "a builder repeated": (lambda graph: learngraph.run.build(cast(Any, builder())), "'episode' is a StateGraph, and a node is a compiled graph: call its compile() first"),
    "a saver rewired": (lambda graph: rewire(graph, GUESS, checkpointer=cast(Any, InMemorySaver())), "rewire keeps that of the graph; another one goes into a copy"),
    "nodes of an episode in another state": (lambda graph: wire(StateGraph(MessagesState), "flowchart LR\n START --> begin --> choose --> END", {"begin": Begin(open_environment("toy")), "choose": EpsilonGreedy(0.1)}), "which 'begin' writes and a node reads; class Mine(MessagesState, learngraph.AttemptState) has them"),
    "a list of nodes": (lambda graph: wire(builder(), GUESS, [guess]), "nodes are a dict of name -> node, such as {'guess': guess}, got a list"),
    "a dict of further nodes checked": (lambda graph: rewire(graph, GUESS, further=cast(Any, {"look": guess})), "further nodes are given by their names, such as x=node; got further=a dict"),
    "a graph checked": (lambda graph: check(graph, GUESS), "check takes the drawing first, and then its nodes or graph; it got a DrawnGraph first"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_arguments_of_the_wrong_kind_are_a_sentence(call: str) -> None:
    act, says = CALLS[call]
    with pytest.raises(FlowError, match=re.escape(says)):
        act(wire(builder(), GUESS, {"guess": guess}).compile())


def test_a_misspelt_channel_of_a_further_node_is_told() -> None:
    graph = wire(builder(), GUESS, {"guess": read_later}).compile()  # it may read anything
    with pytest.raises(FlowError, match="'look' writes `answr`, which is no channel of the state; did you mean answer"):
        rewire(graph, "flowchart LR\n START --> look --> guess --> END", look=misspell)


def test_a_strategy_that_no_prompt_shows_is_told() -> None:
    method = blueprint("adamem?mode=max")
    flow, lent = to_mermaid(method).replace("remember", "keep"), {**method.builder.nodes}
    propose, lent["keep"] = lent.pop("propose"), lent.pop("remember")
    assert [one.sentence for one in check(flow, blueprint("jitrl"), {"recollect": route_precedents}, **lent)] == [
        "'synthesize' writes `strategy`, which no other node reads; lend the node that proposes with it, too"
    ]
    assert check(flow, blueprint("jitrl"), {"recollect": route_precedents}, **lent, propose=propose) == []


class Verdict(TypedDict):
    answer: str
    notes: Annotated[list[str], add]


class NoChannel(TypedDict):
    drft: str


def judge(state: Asked) -> Verdict:
    return {"answer": "a", "notes": []}


def judge_or_not(state: Asked) -> Verdict | None:
    return None


def all_of_it(state: Drafted) -> Drafted:
    return {**state, "notes": []}


def read_no_channel(state: NoChannel) -> Verdict:
    return {"answer": state["drft"], "notes": []}


def left_or_right(state: Asked) -> Literal["left", "right"]:
    return "left"


@pytest.mark.parametrize(
    ("flow", "nodes", "says"),
    [
        ("START --> a & b --> END", (judge, judge), "'a' and 'b' run at the same time, and both write `answer`"),
        ("START --> a & b --> END", (judge, judge_or_not), ""),
        ("START --> a & b --> END", (all_of_it, all_of_it), ""),
        ("START --> c\n  c -->|left| a --> END\n  c -->|right| b --> END", (judge, judge, judge), ""),
        (
            "START --> c\n  c -->|left| d --> a & b --> END\n  c -->|right| END",
            (judge,) * 4,
            "'a' and 'b' run at the same time",
        ),
        ("START --> a --> END", (read_no_channel,), "'a' reads `drft`, which no node before it writes; did you mean draft?"),
    ],
)
def test_nodes_side_by_side_write_no_plain_channel_and_what_is_read_is_a_channel(
    flow: str, nodes: tuple[Any, ...], says: str
) -> None:
    named = dict(zip("abcd", nodes, strict=False))
    found = check(f"flowchart LR\n  {flow}", named, {"c": left_or_right} if "c" in named else {}, builder=StateGraph(Drafted))
    assert len(found) == bool(says)
    assert says in "".join(one.sentence for one in found)


BOTH = """flowchart LR
  START --> Begin --> Compose --> Recollect
  Recollect -->|precedents| RecallStrategy --> propose
  Recollect -->|nothing alike| propose --> Choose --> Act
  Act -->|next step| Recollect
  Act -->|over| EnvironmentJudge --> Push --> END"""


@pytest.mark.parametrize(
    ("flow", "bases", "begin", "says"),
    [
        (BOTH, (PrecedentChannels, StrategyChannels), {}, []),
        (
            BOTH,
            (),
            {},
            [
                "the state Mine has no `declined` and `precedents` and `strategy` and `used`, which 'RecallStrategy' and 'Recollect' write "
                "and a node reads; class Mine(Mine, PrecedentChannels, StrategyChannels) has them; "
                "from learngraph.nodes.state import PrecedentChannels, StrategyChannels"
            ],
        ),
        (
            BOTH,
            (PrecedentChannels, StrategyChannels),
            {"initial_values": {}},
            [
                "'Recollect' reads `used`, which no node before it writes; inputs.node('Begin') does, "
                "and so does inputs.node('Begin', initial_values={\"used\": []})"
            ],
        ),
        (
            BOTH.replace(" RecallStrategy -->", ""),
            (PrecedentChannels, StrategyChannels),
            {},
            ["'propose' reads `strategy`, which no node before it writes; these nodes write it: synthesize, RecallStrategy"],
        ),
    ],
)
def test_the_advice_of_two_methods_is_put_together_by_name(
    flow: str, bases: tuple[type, ...], begin: dict[str, Any], says: list[str]
) -> None:
    world = open_environment("toy")
    inputs = MethodInputs.with_scoring_model(world, Journal(), open_model("pocket", threads=1))
    view = inputs.episode_prompt(inputs.node("AttemptsPart"), inputs.node("StrategyPart"))
    names = [
        name for name in ("Compose", "Recollect", "RecallStrategy", "Choose", "Act", "EnvironmentJudge", "Push") if name in flow
    ]
    nodes = {name: inputs.node(name) for name in names} | {"Begin": inputs.node("Begin", **begin)}
    nodes["propose"] = inputs.make_policy(view)
    routers = {"Recollect": inputs.node("route_precedents"), "Act": inputs.node("route_episode_end")}
    state = StateGraph(types.new_class("Mine", (learngraph.AttemptState, *bases)), input_schema=learngraph.EpisodeInput)
    assert [one.sentence for one in check(flow, nodes, routers, builder=state)] == says
    if says:
        return
    graph, shown = wire(state, flow, nodes, routers).compile(), []
    for episode in range(2):
        for now in graph.stream({"task": world.task(0), "run": "mine", "episode": episode}, stream_mode="values"):
            shown += [view(now)["steps"]] if now.get("strategy") else []
    assert any("Attempt 1:" in one and "Strategy: " in one for one in shown)


def test_a_drawing_is_checked_with_the_nodes_that_rewire_takes() -> None:
    graph = wire(builder(), "flowchart LR\n START --> guess --> END", {"guess": guess}).compile()
    drawn = to_mermaid(graph).replace("START --> guess", "START --> write --> answer")
    assert len(check(drawn, graph)) == 2
    assert check(drawn, graph, write=write, answer=answer) == []
    assert rewire(graph, drawn, write=write, answer=answer).invoke({"question": "why?"}) == {"answer": "why?"}


def test_a_memory_that_no_node_fills_is_told_unless_it_holds_something() -> None:
    world = open_environment("toy")
    inputs = MethodInputs(world)
    flow = "flowchart LR\n START --> begin --> look_up --> choose --> act\n act -->|next step| look_up\n act -->|over| END"
    listed = {"begin": "Begin", "look_up": "LookUpQValues", "choose": "EpsilonGreedy", "act": "Act", "learn": "UpdateQTable"}
    nodes: dict[str, Any] = {name: inputs.node(of) for name, of in listed.items()}
    learn = nodes.pop("learn")

    def wired(drawing: str, **more: Any) -> Any:
        state = StateGraph(
            learngraph.AttemptState, input_schema=learngraph.EpisodeInput, output_schema=learngraph.EpisodeResult
        )
        return wire(state, drawing, {**nodes, **more}, {"act": inputs.node("route_episode_end")})

    with pytest.raises(FlowError, match="line 2: 'look_up' looks up what no node stores: draw UpdateQTable too"):
        wired(flow)
    wired(flow.replace("over| END", "over| mine --> END"), mine=lambda state: None)  # which may store anything
    agent = wired(flow.replace("over| END", "over| learn --> END"), learn=learn).compile()
    agent.invoke({"task": world.task(0), "run": "m", "episode": 0})
    assert wired(flow), "filled from outside"
    graph = jitrl.build(inputs)
    with pytest.raises(FlowError, match="'recall' looks up what no node stores: draw Remember or ReferenceRemember too"):
        rewire(graph, to_mermaid(graph).replace("--> remember --> END", "--> END"))
