"""45 drawings of one small agent, as people and editors write them: what each gives, or with which words it is refused."""

import re
from collections.abc import Mapping
from functools import partial
from operator import add
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from langgraph.graph import StateGraph
from typing_extensions import TypedDict

from learngraph.graphs.wiring.flow import FlowError, check, read_flow, to_mermaid, wire


class Writing(TypedDict, total=False):
    question: str
    docs: Annotated[list[str], add]
    draft: str
    tries: int
    answer: str


def retrieve(state: Writing) -> dict[str, Any]:
    return {"docs": [f"doc about {state['question']}"]}


def web(state: Writing) -> dict[str, Any]:
    return {"docs": [f"web about {state['question']}"]}


def write(state: Writing) -> dict[str, Any]:
    return {"draft": " & ".join(state["docs"]), "tries": state.get("tries", 0) + 1}


def grade(state: Writing) -> dict[str, Any]:
    return {}


def publish(state: Writing) -> dict[str, Any]:
    return {"answer": state["draft"].upper()}


def verdict(state: Writing) -> Literal["good", "bad"]:
    return "good" if state["tries"] >= 2 else "bad"


def verdict_of(state: Writing, judge: Any) -> Literal["good"] | Literal["bad"]:
    return judge(state)  # type: ignore[no-any-return]


def are_good(state: Writing) -> list[Literal["good", "bad"]]:
    return ["good", "bad"]


def is_good(state: Writing) -> bool:
    return True


def thrice(state: Writing) -> list[dict[str, Any]]:
    return [{"question": f"{state['question']}{n}"} for n in range(3)]


NODES: Mapping[str, Any] = {"retrieve": retrieve, "web": web, "write": write, "grade": grade, "publish": publish}
ROUTERS: Mapping[str, Any] = {"grade": verdict}
GOOD = """
flowchart TD
  START --> retrieve --> web --> write --> grade
  grade -->|bad| retrieve
  grade -->|good| publish --> END
"""
ENDING = "\n grade -->|bad| write\n grade -->|good| publish --> END"
TWICE = "DOC ABOUT CATS & WEB ABOUT CATS & DOC ABOUT CATS & WEB ABOUT CATS"
ONCE = "DOC ABOUT CATS & WEB ABOUT CATS"
THRICE = "DOC ABOUT CATS & WEB ABOUT CATS0 & WEB ABOUT CATS1 & WEB ABOUT CATS2"


def without(name: str, **more: Any) -> dict[str, Any]:
    return {key: node for key, node in NODES.items() if key != name} | more


class Drawing(NamedTuple):
    """A drawing, and its answer to the question about cats; or, in lower case, the words that refuse it."""

    flow: str
    gives: str
    nodes: Mapping[str, Any] = NODES
    routers: Mapping[str, Any] = ROUTERS
    fan_outs: Mapping[str, Any] = {}


DRAWINGS: dict[str, Drawing] = {
    "a node is missing": Drawing(GOOD, "line 3: the flow draws 'web', but there is no such node", without("web")),
    "a typo in a name": Drawing(GOOD.replace("retrieve --> web", "retreive --> web"), "; did you mean retrieve?"),
    "a decision in braces": Drawing(GOOD.replace("--> grade\n", "--> grade{is it good?}\n"), TWICE),
    "a round shape": Drawing(GOOD.replace("--> web -->", "--> web(Web search) -->"), TWICE),
    "a stadium": Drawing(GOOD.replace("--> web -->", "--> web([Web search]) -->"), TWICE),
    "a text without quotes": Drawing(GOOD.replace("--> web -->", "--> web[Web search] -->"), TWICE),
    "a text in quotes": Drawing(GOOD.replace("--> web -->", '--> web["Web search"] -->'), TWICE),
    "a node that is called as its text": Drawing(
        GOOD.replace("--> web -->", '--> w["Web search"] -->'),
        "the flow draws 'w', but there is no such node; there are ['Web search'",
        without("web", **{"Web search": web}),
    ),
    "a cycle without exit, and a node beside it": Drawing(
        "flowchart LR\n START --> retrieve --> web --> write --> grade --> retrieve\n publish --> END",
        "line 3: no arrow leads from START to 'publish'",
    ),
    "a cycle without exit": Drawing(
        "flowchart LR\n START --> retrieve --> web --> write --> retrieve\n",
        "END cannot be reached from retrieve, web and write",
        {name: NODES[name] for name in ("retrieve", "web", "write")},
        {},
    ),
    "a subgraph": Drawing(
        "flowchart LR\n START --> retrieve\n subgraph loop\n retrieve --> web --> write --> grade\n grade -->|bad| retrieve\n end\n"
        " grade -->|good| publish --> END",
        TWICE,
    ),
    "classes": Drawing(GOOD + "  classDef hot fill:#f96\n  class grade hot\n", TWICE),
    "a class at a node": Drawing(GOOD.replace("--> grade\n", "--> grade:::hot\n"), TWICE),
    "a style": Drawing(GOOD + "  style grade fill:#f96\n", TWICE),
    "a style of an arrow": Drawing(GOOD + "  linkStyle 0 stroke:#f00\n", TWICE),
    "comments": Drawing(
        GOOD.replace("flowchart TD", "%% my agent\nflowchart TD").replace("grade\n", "grade %% loop\n", 1), TWICE
    ),
    "front matter": Drawing("---\ntitle: x\nconfig:\n  theme: dark\n---" + GOOD, TWICE),
    "a directive": Drawing("%%{init: {'theme':'dark'}}%%" + GOOD, TWICE),
    "a label in quotes": Drawing(GOOD.replace("|good|", '|"good"|'), TWICE),
    "a label within the arrow": Drawing(GOOD.replace("-->|good|", "-- good -->"), TWICE),
    "a space before a label": Drawing(GOOD.replace("-->|good|", "--> |good|"), TWICE),
    "parallel branches": Drawing(
        "flowchart LR\n START --> retrieve --> write\n START --> web --> write --> grade" + ENDING, ONCE
    ),
    "parallel branches that are joined": Drawing("flowchart LR\n START --> retrieve & web --> write --> grade" + ENDING, ONCE),
    "a fan-out without a function": Drawing(
        "flowchart LR\n START --> retrieve -.-> web --> write --> grade" + ENDING, "a dotted arrow, but no fan-out function"
    ),
    "a fan-out": Drawing(
        "flowchart LR\n START --> retrieve -.-> web --> write --> grade" + ENDING, THRICE, fan_outs={"retrieve": thrice}
    ),
    "a fan-out with a label": Drawing(
        "flowchart LR\n START --> retrieve -.->|each| web --> write --> grade" + ENDING, THRICE, fan_outs={"retrieve": thrice}
    ),
    "a router without a Literal": Drawing(GOOD, "as a Literal return type, not none", routers={"grade": lambda state: "good"}),
    "no router": Drawing(GOOD, "line 4: 'grade' has the labelled arrows ['bad', 'good'], but no router decides", routers={}),
    "a typo in a label": Drawing(
        GOOD.replace("|good|", "|goood|"), "line 5: 'grade' has an arrow 'goood', which its router cannot return; it returns"
    ),
    "a node that is not reached": Drawing(
        GOOD + "  publish2 --> END\n", "line 6: no arrow leads from START to 'publish2'", {**NODES, "publish2": publish}
    ),
    "ends in small letters": Drawing(
        GOOD.replace("START", "start").replace("END", "end"), "START and END are written in capitals"
    ),
    "the ends as LangGraph calls them": Drawing(
        GOOD.replace("START", "__start__").replace("END", "__end__"), "START and END are written in capitals"
    ),
    "semicolons": Drawing(GOOD.replace("\n", ";\n").lstrip(";\n"), TWICE),
    "a long arrow": Drawing(GOOD.replace("web --> write", "web ----> write"), TWICE),
    "an arrow twice": Drawing(GOOD + "  retrieve --> web\n", "line 6: this arrow is drawn twice: ('retrieve', 'web', '')"),
    "nothing": Drawing("", "a flow begins with 'flowchart LR' or 'flowchart TD', not with '(nothing)'"),
    "no header": Drawing("START --> retrieve", "a flow begins with 'flowchart LR'"),
    "the older header": Drawing(GOOD.replace("flowchart TD", "graph TD;"), TWICE),
    "a node on a line of its own": Drawing(GOOD.replace("flowchart TD\n", 'flowchart TD\n  retrieve["retrieve"]\n'), TWICE),
    "another kind of diagram": Drawing("stateDiagram-v2\n [*] --> retrieve", "not with 'stateDiagram-v2'"),
    "a code fence": Drawing("```mermaid" + GOOD + "```", TWICE),
    "letters of other alphabets": Drawing(GOOD.replace("web", "wéb"), TWICE, without("web", wéb=web)),
    "a node called end": Drawing(GOOD.replace("publish", "end"), TWICE, without("publish", end=publish)),
    "a router with an argument given": Drawing(GOOD, TWICE, routers={"grade": partial(verdict_of, judge=verdict)}),
    "a router that returns a bool": Drawing(
        GOOD, "not <class 'bool'>, such as -> Literal[True, False]", routers={"grade": is_good}
    ),
    "a router that does not say what it returns": Drawing(
        GOOD, "as a Literal return type, not none, such as -> Literal['bad', 'good']", routers={"grade": lambda state: ["good"]}
    ),
    "a router that returns a list": Drawing(
        GOOD, "it chooses one. To start several, let the node 'grade' return Command(goto=[...])", routers={"grade": are_good}
    ),
    "a name of several words": Drawing(
        GOOD.replace("web", "web & search"), "call the node 'web & search' web_search", without("web", **{"web & search": web})
    ),
}


@pytest.mark.parametrize("title", DRAWINGS)
def test_a_drawing_gives_an_agent_or_a_sentence(title: str) -> None:
    drawing = DRAWINGS[title]
    builder = StateGraph(Writing)
    if drawing.gives.isupper():
        graph = wire(builder, drawing.flow, drawing.nodes, drawing.routers, drawing.fan_outs).compile()
        assert graph.invoke({"question": "cats"}, {"recursion_limit": 30})["answer"] == drawing.gives
        again = wire(StateGraph(Writing), to_mermaid(graph), drawing.nodes, drawing.routers, drawing.fan_outs).compile()
        assert again.invoke({"question": "cats"})["answer"] == drawing.gives
        assert not check(drawing.flow, drawing.nodes, drawing.routers, drawing.fan_outs)
    else:
        with pytest.raises(FlowError, match=re.escape(drawing.gives)) as caught:
            wire(builder, drawing.flow, drawing.nodes, drawing.routers, drawing.fan_outs)
        found = check(drawing.flow, drawing.nodes, drawing.routers, drawing.fan_outs)
        assert caught.value.findings[0].line == found[0].line
        assert all(sentence in str(caught.value) for _, sentence in found)


def edges(flow: str) -> list[tuple[str, str, str, tuple[str, ...], int]]:
    return [(e.source, e.target, e.label, e.join, e.line) for e in read_flow("flowchart LR\n" + flow).edges]


@pytest.mark.parametrize(
    ("flow", "read"),
    [
        ("b & c --> d", [("b", "d", "", ("b", "c"), 2), ("c", "d", "", ("b", "c"), 2)]),
        ("b --> d\nc --> d", [("b", "d", "", (), 2), ("c", "d", "", (), 3)]),
        ("b & c --> END", [("b", "END", "", (), 2), ("c", "END", "", (), 2)]),
        ("b & c -->|x| d", [("b", "d", "x", (), 2), ("c", "d", "x", (), 2)]),
        ('a["x --> y; z"] --> b{{"(q)"}}', [("a", "b", "", (), 2)]),
        (
            "a{choice} --> b[/slanted/] --> c((round)) --> d[(store)]",
            [("a", "b", "", (), 2), ("b", "c", "", (), 2), ("c", "d", "", (), 2)],
        ),
        ('a -. "x y" .-> b\n\na -- z --> c', [("a", "b", "x y", (), 2), ("a", "c", "z", (), 4)]),
        ("a -->|a #124; b &amp; #quot;c#quot;| b", [("a", "b", 'a | b & "c"', (), 2)]),
        ('a -. &nbsp;x|"y"&nbsp; .-> b\na -- so "be it --> b', [("a", "b", 'x|"y"', (), 2), ("a", "b", 'so "be it', (), 3)]),
        ("style --> class --> direction", [("style", "class", "", (), 2), ("class", "direction", "", (), 2)]),
        ("classDef x fill:#fff\nclass a x\nstyle b fill:#000\na:::x --> b", [("a", "b", "", (), 5)]),
    ],
)
def test_parts_of_mermaid(flow: str, read: list[Any]) -> None:
    assert edges(flow) == read


@pytest.mark.parametrize(
    ("flow", "line", "words"),
    [
        ("a --> b\nb --- c", 3, "does not say where it leads"),
        ("a <--> b", 2, "'<-->' does not say where it leads"),
        ("a --x b", 2, "does not say where it leads"),
        ("a ==> b", 2, "arrows are --> and -.->"),
        ("a ~~~ b", 2, "cannot read '~~~ b'"),
        ("a --> b\nclick a callback", 3, "cannot read 'a callback'"),
        ("START & a --> b", 2, "START cannot be waited for"),
        ("subgraph x\na --> b\nend\nb --> x", 5, "'x' is a subgraph of the drawing"),
        ("subgraph x\na --> b", 2, "this subgraph has no end"),
        ("a --> b\na[Web --> c\nd --> e]", 3, "cannot read '[Web --> c'"),
        ("a --> b c", 2, "cannot read 'c' in the line 'a --> b c'"),
        ("a &\nb --> c", 2, "cannot read"),
        ("a --> b\nclass b,c deferred", 3, "'c' is deferred here, and not drawn"),
        ("a --> b:::defered", 2, "the mark ':::defered' means nothing; did you mean :::deferred?"),
    ],
)
def test_what_would_be_lost_is_refused_with_its_line(flow: str, line: int, words: str) -> None:
    with pytest.raises(FlowError, match=re.escape(words)) as caught:
        read_flow("flowchart LR\n" + flow)
    assert caught.value.findings[0].line == line


def test_all_lines_that_cannot_be_read_are_told_at_once() -> None:
    found = check("flowchart LR\n START --> a ==> b\n a --> b\n a -> b\n b --> --> END", {"a": web, "b": publish})
    assert [one.line for one in found] == [2, 4, 5]
    assert "cannot read '-> b'" in found[1].sentence


def test_a_class_marks_deferred_nodes_too() -> None:
    assert read_flow("flowchart LR\n class a,b deferred\n a --> b --> c\n class c blue").deferred == {"a", "b"}


def test_a_node_without_arrows_is_refused_too() -> None:
    flow = "flowchart LR\n START --> a --> END\n b[Publish it]"
    with pytest.raises(FlowError, match="line 3: no arrow leads from START to 'b'"):
        wire(StateGraph(Writing), flow, {"a": web, "b": publish})
    with pytest.raises(FlowError, match="line 3: the flow draws 'b', but there is no such node"):
        wire(StateGraph(Writing), flow, {"a": web})
