"""A drawing is checked before it runs: what nodes read is written before them, and a wrong input is a sentence."""

import asyncio
import re
from dataclasses import replace
from operator import add
from typing import Annotated, Any, Literal, NotRequired

import pytest
from langgraph.errors import GraphRecursionError
from langgraph.graph import StateGraph
from typing_extensions import TypedDict

from learngraph.graphs import adamem, claas, jitrl
from learngraph.graphs.arms import blueprint, method_settings
from learngraph.graphs.methods import METHODS, find_method
from learngraph.graphs.wiring.flow import Finding, FlowError, InputError, check, compile_graph, rewire, to_mermaid, wire
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.choose import Choose
from learngraph.nodes.ask import Ask
from learngraph.nodes.channels import node_channels
from learngraph.nodes.evaluate.judge import self_judge
from learngraph.nodes.state import AttemptState, EpisodeInput
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.models.models import open_model

JITRL = blueprint("jitrl")
DRAWN = to_mermaid(JITRL)


@pytest.mark.parametrize("name", [*METHODS, *(f"adamem?mode={mode}" for mode in adamem.MODES)])
def test_no_method_is_found_fault_with(name: str) -> None:
    graph = blueprint(name)
    assert check(to_mermaid(graph), graph) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        (" --> propose", "", 2, "'augment' reads `candidates`, which no node before it writes; these nodes write it: "),
        ("judge --> ", "", 4, "'remember' reads `rewards`, which no node before it writes; these nodes write it: Changed"),
        ("choose --> ", "", 2, "'act' reads `action`, which no node before it writes; these nodes write it: Choose"),
        ("modulate --> choose", "choose --> modulate", 2, "what 'modulate' writes (`candidates` and `prior`) is lost: "),
        ("recall --> propose", "propose --> recall", 0, ""),
        ("propose --> augment -->", "augment --> propose -->", 2, "before it writes; these nodes write it: 'propose'"),
        ("recall -->", "recal -->", 2, "; did you mean recall?"),
        ("|over|", "|ovr|", 4, "'act' has an arrow 'ovr', which its router cannot return; it returns ['next step', 'over']"),
        ("remember --> END", "remember --> recall", 2, "END cannot be reached from act, advise, augment, begin"),
        ("act -->|over|", "begin --> choose\n  act -->|over|", 2, "'choose' runs before `candidates` is written: an arrow leads"),
        ("act -->|over|", "begin --> propose\n  act -->|over|", 2, "'propose' run at the same time, and both write `candidates`"),
        ("begin --> ", "", 2, "`; Begin writes it: draw it before"),
    ],
)  # fmt: skip
def test_an_edited_drawing_is_checked(old: str, new: str, line: int, says: str) -> None:
    text = DRAWN.replace("next step| recall", "next step| propose") if "propose --> recall" in new else DRAWN
    edited = text.replace(old, new)
    found = check(edited, JITRL)
    if not says:
        assert found == []
        return
    fitting = [one for one in found if says in one.sentence]
    assert [one.line for one in fitting] == [line]
    assert "Begin" not in says or len(found) == 1, "all that it would write is told together"
    with pytest.raises(FlowError, match=re.escape(says)):
        rewire(JITRL, edited)


@pytest.mark.parametrize(
    ("name", "old", "new", "both"),
    [
        ("Begin", "START --> begin", "START --> begin & more\n  more --> recall\n  begin", "'begin' and 'more'"),
        ("Act", "choose --> act", "choose --> act & more\n  more --> END", "'act' and 'more'"),
    ],
)
def test_two_nodes_of_the_project_that_write_the_same_at_once_are_found(name: str, old: str, new: str, both: str) -> None:
    more = MethodInputs(open_environment("toy")).node(name)
    (found,) = check(DRAWN.replace(old, new), JITRL, more=more)
    assert found.sentence.startswith(f"{both} run at the same time, and both write `best`; ")


@pytest.mark.parametrize("name", ["jitrl", "icrl", "memory", "prompt-update", "synapse"])
def test_a_method_is_built_on_a_uniform_prior_which_reads_no_prompt(name: str) -> None:
    graph = find_method(name).build(MethodInputs(open_environment("toy")))
    assert check(to_mermaid(graph), graph) == []


def test_a_text_that_cannot_be_read_is_one_finding() -> None:
    assert check("flowchart LR\n START --> a -->", JITRL) == [
        Finding(2, "cannot read 'START --> a -->' in the line 'START --> a -->'; lines look like 'a --> b -->|label| c'")
    ]


class Question(TypedDict):
    question: str


class Answering(Question):
    docs: Annotated[list[str], add]
    draft: str
    tries: int


class Docs(TypedDict):
    docs: Annotated[list[str], add]


class Draft(TypedDict):
    draft: str


class Tries(TypedDict):
    tries: int


class DocsAndTries(Docs):
    tries: NotRequired[int]


class DraftAndTries(Draft, Tries):
    pass


def look(state: Question) -> Docs:
    return {"docs": [state["question"]]}


def draft(state: DocsAndTries) -> DraftAndTries:
    return {"draft": " ".join(state["docs"]), "tries": state.get("tries", 0) + 1}


def sure(state: Draft) -> Draft:
    return {"draft": state["draft"][:10]}


def whole(state: Answering) -> Draft:
    return {"draft": state["question"]}


def anything(state: Docs) -> dict[str, Any]:
    return dict(zip(state["docs"], state["docs"], strict=True))


def enough(state: Tries) -> Literal["yes", "no"]:
    return "yes" if state["tries"] > 1 else "no"


def findings(flow: str, routers: Any = None, **nodes: Any) -> list[str]:
    builder = StateGraph(Answering, input_schema=Question)
    return [one.sentence for one in check("flowchart LR\n" + flow, nodes, routers, builder=builder)]


def test_nodes_of_the_users_are_read_too() -> None:
    missing = "which no node before it writes; "
    # A channel with a reducer starts empty, and one that is not required may be missing.
    assert findings("START --> draft --> END", draft=draft) == []
    assert findings("START --> look --> sure --> END", look=look, sure=sure) == [
        f"'sure' reads `draft`, {missing}no node that is known writes it"
    ]
    assert findings("START --> sure --> draft --> END", draft=draft, sure=sure) == [
        f"'sure' reads `draft`, {missing}these nodes write it: 'draft' in this drawing, but later"
    ]
    # A node that is given the whole state says nothing, and one without types may write anything.
    assert findings("START --> whole --> END", whole=whole) == []
    assert findings("START --> any --> sure --> END", any=anything, sure=sure) == []
    assert findings("START --> look\n look -->|yes| END\n look -->|no| look", {"look": enough}, look=look) == [
        f"the router of 'look' reads `tries`, {missing}no node that is known writes it"
    ]


class Doc(TypedDict):
    doc: str


def test_what_two_nodes_add_to_a_channel_with_a_reducer_is_not_lost_and_what_is_written_anew_is() -> None:
    def tell(state: Draft) -> None: ...

    def cite(state: Docs) -> None: ...

    def quote(state: Doc) -> None: ...

    def begin(state: Question) -> Draft:
        return {"draft": ""}

    assert findings("START --> look --> more --> cite --> END", look=look, more=look, cite=cite) == []
    assert findings("START --> first --> again --> tell --> END", first=begin, again=begin, tell=tell) == [
        "what 'first' writes (`draft`) is lost: 'again' writes it anew first; draw it right before 'tell', or leave one out"
    ]
    assert findings("START --> look --> quote --> END", look=look, quote=quote) == [
        "'quote' reads `doc`, which no node before it writes; did you mean docs?"
    ]


class Longest(Question):
    found: Annotated[str | None, lambda one, other: max(one or "", other or "", key=len)]


class Found(TypedDict):
    found: str | None


def test_a_reducer_counts_as_one_also_where_its_channel_has_no_value_to_begin_with() -> None:
    def find(state: Question) -> Found:
        return {"found": state["question"]}

    def tell(state: Found) -> Question:
        return {"question": f"{state['found']}!"}

    for flow in ("START --> a & b\n a & b --> c --> END", "START --> a --> b --> c --> END"):
        graph = wire(StateGraph(Longest), f"flowchart LR\n {flow}", {"a": find, "b": find, "c": tell}).compile()
        assert graph.invoke({"question": "ha"})["question"] == "ha!"


def short(state: Question) -> Literal["yes", "no"]:
    return "yes" if len(state["question"]) < 5 else "no"


def count(state: Question) -> Tries:
    return {"tries": 1}


def drawn(flow: str, *choosing: str) -> list[str]:
    """What is found in a drawing of these nodes, of which `look` chooses, or others do."""
    nodes = {name: node for name, node in {"look": look, "count": count, "draft": draft, "sure": sure}.items() if name in flow}
    return findings(flow, {name: short for name in choosing or ("look",) if f"{name} -->|" in flow}, **nodes)


def test_what_one_choice_leads_past_is_found_and_what_may_be_known_better_is_not() -> None:
    said = (
        "'sure' reads `draft`, which nothing has written where 'look' leads by 'no'; "
        "write it there too, or make it NotRequired in the type of 'sure'"
    )
    one_side = "START --> look\n look -->|yes| draft --> sure --> END\n look -->|no| sure"
    assert drawn(one_side) == [said]
    both = "START --> look\n look -->|yes| draft --> sure --> END\n look -->|no| count --> sure"
    assert drawn(both) == [said]
    assert drawn(one_side.replace("|no| sure", "|no| END")) == []
    # The second choice may know of the first; a node that runs beside has written it; in a loop it was there before.
    twice = (
        "START --> look\n look -->|yes| draft --> count\n look -->|no| count\n count -->|yes| sure --> END\n count -->|no| END"
    )
    assert drawn(twice, "look", "count") == []
    beside = "START --> look & draft\n draft --> END\n look -->|yes| sure --> END\n look -->|no| sure"
    assert drawn(beside) == []
    loop = "START --> look\n look -->|yes| draft --> look\n look -->|no| sure --> END"
    assert drawn(loop) == []


def test_nodes_of_other_inputs_and_pieces_without_a_reducer_are_refused() -> None:
    one, other = (MethodInputs(open_environment("toy")) for _ in range(2))
    nodes = {name: one.node(name) for name in ("Begin", "EpsilonGreedy", "Act", "UpdateQTable")}
    flow = (
        "flowchart LR\n START --> Begin --> LookUpQValues --> EpsilonGreedy --> Act\n Act -->|next step| LookUpQValues\n"
        " Act -->|over| UpdateQTable --> END"
    )
    builder, routes = StateGraph(AttemptState, input_schema=EpisodeInput), {"Act": one.node("route_episode_end")}
    wire(builder, flow, {**nodes, "LookUpQValues": one.node("LookUpQValues")}, routes)
    builder = StateGraph(AttemptState, input_schema=EpisodeInput)
    said = "'LookUpQValues' looks up another memory than 'UpdateQTable' fills; make them from the same inputs"
    with pytest.raises(FlowError, match=said):
        wire(builder, flow, {**nodes, "LookUpQValues": other.node("LookUpQValues")}, routes)
    fan: Any = {"look": lambda state: [{"docs": []}]}
    pieces = check(
        "flowchart LR\n START --> look -.-> draft --> END",
        {"look": look, "draft": draft},
        fan_outs=fan,
        builder=StateGraph(Answering, input_schema=Question),
    )
    said = "'draft' runs once for every piece of work of 'look', and writes `draft`; give the channel a reducer"
    assert [one.sentence for one in pieces] == [said]


def never(state: Tries) -> Literal["go", "stop"]:
    return "go"


def test_langgraphs_own_limit_holds_for_a_graph_of_ones_own_and_a_world_ends_a_methods() -> None:
    builder = StateGraph(Answering, input_schema=Question)
    flow = "flowchart LR\n START --> count\n count -->|go| count\n count -->|stop| END"
    graph = wire(builder, flow, {"count": count}, {"count": never}).compile()
    assert "recursion_limit" not in (graph.config or {})
    with pytest.raises(GraphRecursionError, match="Recursion limit of 9 reached"):
        graph.invoke({"question": "?"}, {"recursion_limit": 9})
    assert (blueprint("jitrl").config or {})["recursion_limit"] == 1_000_000


def test_where_the_input_is_the_whole_state_anything_may_be_given() -> None:
    nodes = {"sure": sure}
    wire(StateGraph(Answering), "flowchart LR\n START --> sure --> END", nodes)
    assert check("flowchart LR\n START --> sure --> END", nodes) == []


@pytest.mark.slow
def test_nodes_that_ask_read_no_more_than_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """LangGraph itself gives a function only the channels of its type; a node that asks gets the whole state, as its seed needs more."""
    plain, asked = Ask._dialogue, set[str]()

    def narrow(self: Any, state: Any) -> Any:
        channels = node_channels(self)
        asked.update([] if channels.may_read_more else [self.asks])
        return plain(self, state if channels.may_read_more else {key: state[key] for key in channels.reads & state.keys()})

    monkeypatch.setattr(Ask, "_dialogue", narrow)
    world, pocket = open_environment("toy"), open_model("pocket", threads=1)
    for name in ("adamem", "awm?variant=rewrite", "reasoning-bank", "reflexion", "self-refine"):
        journal = Journal()
        inputs = MethodInputs.with_scoring_model(world, journal, pocket)  # type: ignore[arg-type]
        if name == "reflexion":
            inputs = replace(inputs, judge=self_judge(inputs.require_chat_model(name), journal))
        graph = find_method(name.partition("?")[0]).build(inputs, method_settings(name))
        for episode in range(2):
            graph.invoke({"task": world.task(0), "run": "r", "episode": episode})
    assert asked >= {"adamem/line", "awm/line", "judge/self", "reflexion/reflect"}


# Drawings of the user's own for the methods


def test_every_method_takes_a_drawing() -> None:
    edited = DRAWN.replace(" --> augment", "")
    graph = blueprint("jitrl", flow=edited)
    assert to_mermaid(graph) == to_mermaid(rewire(blueprint("jitrl"), edited))
    assert "augment" not in to_mermaid(graph)
    assert "recall+propose+advise" in to_mermaid(merge_steps(graph))
    for name in ("icrl", "adamem", "training-free-grpo"):
        drawn = to_mermaid(blueprint(name))
        other = drawn.replace("flowchart LR\n", "flowchart TD\n  %% mine\n")
        assert to_mermaid(blueprint(name, flow=other)) == drawn
    served = claas.blueprint("claas-serving")
    assert to_mermaid(rewire(served, "flowchart LR\n START --> respond --> record --> END")).count("-->") == 3


def test_a_method_with_a_node_of_the_users_plays() -> None:
    world = open_environment("toy")

    class Log:
        lines: list[str]

        def __init__(self) -> None:
            self.lines = []

        def __call__(self, state: Any) -> dict[str, Any]:
            self.lines.append(state["action"])
            return {}

    log = Log()
    flow = DRAWN.replace("choose --> act", "choose --> log --> act")
    graph = jitrl.build(MethodInputs(world), jitrl.JitRL(), flow=flow, nodes={"log": log})
    result = graph.invoke({"task": world.task(0), "run": "r", "episode": 0})
    assert len(log.lines) == result["step"] > 0
    greedy = jitrl.build(MethodInputs(world), nodes={"choose": Choose(temperature=0)})
    assert to_mermaid(greedy) == DRAWN
    assert greedy.builder.nodes["choose"].runnable.func == Choose(temperature=0)  # type: ignore[union-attr]


# Inputs


def test_a_wrong_input_is_a_sentence() -> None:
    world = open_environment("toy")
    graph = jitrl.build(MethodInputs(world))
    good = {"task": world.task(0), "run": "r", "episode": 0}
    wrong = {
        "jitrl: the input lacks `episode`; it has `task`, `run`, and is to be {task: Task, run: str, episode: int}": {
            key: good[key] for key in ("task", "run")
        },
        "`task` of the input is to be of type Task, got a str ('task 0')": {**good, "task": "task 0"},
        "the input lacks `task` and `run` and `episode`; it has nothing": {"other": 1},
    }
    for says, given in wrong.items():
        words = re.escape(says.replace("it has nothing", "it has `other`"))
        with pytest.raises(InputError, match=words):
            graph.invoke(given)
        with pytest.raises(InputError, match=words):
            asyncio.run(graph.ainvoke(given))
    assert graph.invoke(good)["step"] > 0


def test_a_fault_of_a_node_is_not_blamed_on_the_input() -> None:
    def broken(state: Answering) -> dict[str, Any]:
        return {"draft": {}["question"]}

    builder = StateGraph(Answering, input_schema=Question)
    graph = compile_graph(wire(builder, "flowchart LR\n START --> a --> END", {"a": broken}))
    with pytest.raises(KeyError, match="question"):
        graph.invoke({"question": "why?"})
