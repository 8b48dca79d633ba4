"""A drawing is checked before it runs: what nodes read is written before them, and a wrong input is a sentence."""

from __future__ import annotations

import asyncio
import re
from operator import add
from typing import Annotated, Any, Literal

import pytest
from langgraph.graph import StateGraph
from typing_extensions import TypedDict

from learngraph.graphs import adamem, claas, jitrl
from learngraph.graphs.arms import blueprint
from learngraph.graphs.methods import METHODS
from learngraph.graphs.wiring.flow import Finding, FlowError, InputError, check, compile_graph, rewire, to_mermaid, wire
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.nodes.act.choose import Choose
from learngraph.nodes.act.episode import Act
from learngraph.tools.environments.catalogue import open_environment

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
        (
            "judge --> ",
            "",
            4,
            "'remember' reads `rewards`, which no node before it writes; these nodes write it: ChangedRewards, EnvironmentJudge",
        ),
        ("choose --> ", "", 2, "'act' reads `action`, which no node before it writes; these nodes write it: Choose"),
        ("recall --> propose", "propose --> recall", 0, ""),
        (
            "propose --> augment --> advise",
            "augment --> advise --> propose",
            2,
            "'augment' reads `candidates`, which no node before it writes; these nodes write it: 'propose'",
        ),
        ("recall -->", "recal -->", 2, "; did you mean recall?"),
        ("|over|", "|ovr|", 4, "'act' has an arrow 'ovr', which its router cannot return; it returns ['next step', 'over']"),
        ("remember --> END", "remember --> recall", 2, "END cannot be reached from act, advise, augment, begin"),
        ("begin --> ", "", 2, "'recall' reads `observation`, which no node before it writes; these nodes write it: "),
    ],
)
def test_an_edited_drawing_is_checked(old: str, new: str, line: int, says: str) -> None:
    text = DRAWN.replace("next step| recall", "next step| propose") if "propose --> recall" in new else DRAWN
    edited = text.replace(old, new)
    found = check(edited, JITRL)
    if not says:
        assert found == []
        return
    fitting = [one for one in found if says in one.sentence]
    assert [one.line for one in fitting] == [line]
    with pytest.raises(FlowError, match=re.escape(says)):
        rewire(JITRL, edited)


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


def look(state: Answering) -> dict[str, Any]:
    return {"docs": [state["question"]]}


def draft(state: Answering) -> dict[str, Any]:
    return {"draft": " ".join(state["docs"]), "tries": state.get("tries", 0) + 1}


def shorten(state: Answering) -> dict[str, Any]:
    text = state["draft"][:10] if state["docs"] else ""
    return {"draft": text}


def sure(state: Answering) -> dict[str, Any]:
    return {"draft": clip(state)}


def clip(state: Answering) -> str:
    return state["draft"][:10]


def anything(state: Answering) -> dict[str, Any]:
    return dict(zip(state["docs"], state["docs"], strict=True))


def enough(state: Answering) -> Literal["yes", "no"]:
    return "yes" if state["tries"] > 1 else "no"


def findings(flow: str, routers: Any = None, **nodes: Any) -> list[str]:
    builder = StateGraph(Answering, input_schema=Question)
    return [one.sentence for one in check("flowchart LR\n" + flow, nodes, routers, builder=builder)]


def test_nodes_of_the_users_are_read_too() -> None:
    missing = "which no node before it writes; "
    # A channel with a reducer starts empty, and a key that is asked for with `get` may be missing.
    assert findings("START --> draft --> END", draft=draft) == []
    assert findings("START --> look --> sure --> END", look=look, sure=sure) == [
        f"'sure' reads `draft`, {missing}no node that is known writes it"
    ]
    assert findings("START --> sure --> draft --> END", draft=draft, sure=sure) == [
        f"'sure' reads `draft`, {missing}these nodes write it: 'draft' in this drawing, but later"
    ]
    # What may not be read at all is nobody's mistake, and a node whose names nobody knows may write anything.
    assert findings("START --> shorten --> END", shorten=shorten) == []
    assert findings("START --> any --> sure --> END", any=anything, sure=sure) == []
    assert findings("START --> look\n look -->|yes| END\n look -->|no| look", {"look": enough}, look=look) == [
        f"the router of 'look' reads `tries`, {missing}no node that is known writes it"
    ]


def test_where_the_input_is_the_whole_state_anything_may_be_given() -> None:
    nodes = {"sure": sure}
    wire(StateGraph(Answering), "flowchart LR\n START --> sure --> END", nodes)
    assert check("flowchart LR\n START --> sure --> END", nodes) == []


def test_a_state_without_the_channel() -> None:
    class Place(TypedDict):
        task: str

    nodes: dict[str, Any] = {
        "choose": Choose(),
        "act": Act(open_environment("toy"), MethodInputs(open_environment("toy")).journal),
    }
    found = check("flowchart LR\n START --> choose --> act --> END", nodes, builder=StateGraph(EpisodeOnly, input_schema=Place))
    assert any(
        "'act' reads `action`, which is no channel of the state; 'choose' writes it: add it to the state" in one.sentence
        for one in found
    )


class EpisodeOnly(TypedDict):
    task: str
    candidates: list[str]


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
        "`task` of the input is to be a Task, got a str ('task 0')": {**good, "task": "task 0"},
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
