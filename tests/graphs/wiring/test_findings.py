"""What `check` tells at once: mistakes of several kinds in one drawing, and joins that would wait for ever."""

import asyncio
import re
from collections.abc import Sequence
from operator import add
from random import Random
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from learngraph.graphs.arms import blueprint
from learngraph.graphs.wiring import flow
from learngraph.graphs.wiring.flow import FlowError, check, rewire, to_mermaid, wire
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.tools.environments.catalogue import open_environment


class Question(TypedDict):
    question: str


class Draft(TypedDict):
    draft: str


class Answer(TypedDict):
    answer: str


class Verdict(TypedDict):
    verdict: str


class State(Question, Draft, Answer, Verdict):
    pass


def write(state: Question) -> Draft:
    return {"draft": state["question"]}


def answer(state: Draft) -> Answer:
    return {"answer": state["draft"]}


def grade(state: Verdict) -> Answer:
    return {"answer": state["verdict"]}


def good_enough(state: Answer) -> Literal["again", "over"]:
    return "over"


def decide(state: Answer) -> str:
    return "over"


class Decide:
    def __call__(self, state: Answer) -> Answer:
        return state


def builder() -> StateGraph[Any, Any, Any, Any]:
    return StateGraph(State, input_schema=Question, output_schema=Answer)


LOOP = "flowchart LR\n START --> write --> answer\n answer -->|again| write\n answer -->|over| grade\n grade --> END"
NODES: dict[str, Any] = {"write": write, "answer": answer, "grade": grade}
UNREAD = "line 4: 'grade' reads `verdict`, which no node before it writes; no node that is known writes it"
LABEL = (
    "line 4: 'answer' has an arrow 'ovr', which its router cannot return; it returns ['again', 'over']; did you mean over?",
    "line 3: the router of 'answer' can return 'over', but no arrow is labelled so; there are ['again', 'ovr']",
)
NAME = "line 2: the flow draws 'wirte', but there is no such node; there are ['answer', 'grade', 'write']; did you mean write?"


@pytest.mark.parametrize(
    ("flow", "nodes", "router", "told"),
    [
        (LOOP.replace("write", "wirte").replace("|over|", "|ovr|"), NODES, good_enough, [NAME, *LABEL, UNREAD]),
        (
            LOOP.replace("grade --> END", "grade --> grade\n grade --> END"),
            {**NODES, "write": Decide},
            decide,
            [
                "line 2: 'write' is the class Decide, and a node is an object of it: write Decide(...)",
                "the router of 'answer' must say its outcomes as a Literal return type, not <class 'str'>, such as -> Literal['again', 'over']",
                "line 5: the plain arrows from 'grade' onto itself are always taken: the graph would run for ever; label them, and give a router",
            ],
        ),
        (
            LOOP.replace("grade --> END", "").replace("|over|", "|ovr|"),
            {**NODES, "spare": write},
            good_enough,
            [
                "node 'spare' is not in the flow; it draws ['answer', 'grade', 'write']",
                *LABEL,
                "line 4: no arrow leaves 'grade'; draw 'grade --> END' if the graph ends there",
            ],
        ),
    ],
    ids=["a name, a label, a channel", "a class, a router, a loop", "a node too many, a label, no end"],
)  # fmt: skip
def test_mistakes_of_several_kinds_are_told_at_once(flow: str, nodes: dict[str, Any], router: Any, told: Sequence[str]) -> None:
    found = check(flow, nodes, {"answer": router}, builder=builder())
    assert sorted(f"line {line}: {said}" if line else said for line, said in found) == sorted(told)
    with pytest.raises(FlowError) as caught:
        wire(builder(), flow, nodes, {"answer": router})
    assert sorted(str(caught.value).split("\n")) == sorted(told)


def test_a_name_that_is_misspelt_once_is_not_told_of_as_lacking_arrows() -> None:
    found = check(LOOP.replace("--> answer", "--> anser"), NODES, {"answer": good_enough}, builder=builder())
    assert [one.sentence for one in found if one.sentence not in UNREAD] == [
        "the flow draws 'anser', but there is no such node; there are ['answer', 'grade', 'write']; did you mean answer?"
    ]
    graph = wire(builder(), LOOP.replace("over| grade\n grade", "over| END\n END").replace("END --> END", ""), {"write": write, "answer": answer}, {"answer": good_enough}).compile()  # fmt: skip
    drawn = "flowchart LR\n START --> wriet --> answer\n answer -->|again| wriet\n answer -->|ovr| END"
    assert [one.line for one in check(drawn, graph)] == [2, 3, 4]
    with pytest.raises(FlowError, match=r"(?s)did you mean write.*did you mean over"):
        rewire(graph, drawn)


JITRL = blueprint("jitrl")


@pytest.mark.parametrize(
    ("right", "wrong", "meant"),
    [("augment", "augmnt", "augment"), ("recall --> propose", "recal --> propose", "recall"), ("act", "atc", "act"), ("END", "EDN", "END")],
)  # fmt: skip
def test_a_misspelt_name_hides_no_second_mistake(right: str, wrong: str, meant: str) -> None:
    """It is read as it was meant: with the node behind it, what that writes, and its router."""
    drawn = to_mermaid(JITRL).replace(right, wrong)
    assert [one.sentence.endswith(f"did you mean {meant}?") for one in check(drawn, JITRL)] == [True]
    found = [one.sentence.partition(", ")[0] for one in check(drawn.replace("choose --> ", ""), JITRL)]
    assert sorted(found, reverse=True) == [f"the flow draws '{wrong.partition(' ')[0]}'", "'act' reads `action`"]


def test_a_further_node_that_is_like_another_is_not_taken_for_it() -> None:
    drawn = to_mermaid(JITRL).replace("choose --> act", "choose --> choose2 --> act")
    assert len(check(drawn, JITRL)) == 1, "an arrow leads from one to the other"


def anything(state: Any) -> Any:
    return None


def told_of(
    flow: str, routers: dict[str, Any] | None = None, fan_outs: dict[str, Any] | None = None, **nodes: Any
) -> list[str]:
    """What is found in a drawing of nodes with names of one letter, which may read and write anything."""
    names = {*re.findall(r"\b[a-z]\b", re.sub(r"\|.*?\|", "", flow))}
    return [one.sentence for one in check(f"flowchart LR\n {flow}", dict.fromkeys(names, anything) | nodes, routers, fan_outs)]


GUARDED = "START --> a --> b & c\n b -->|again| d\n b -->|over| e\n c & d --> f --> END\n "


@pytest.mark.parametrize(
    ("flow", "says"),
    [
        (f"{GUARDED} e --> g\n c & d --> g --> END", ""),
        (f"{GUARDED} e & d --> g --> END", "'g' waits for 'e' and 'd', and no run brings all of them"),
        (f"{GUARDED} e --> c", "where 'b' leads by 'over', the join 'c & d --> f' waits for ever: 'c' came, 'd' cannot come"),
        (f"{GUARDED} e --> END", ""),
        ("START --> b\n b -->|again| d --> b\n b -->|over| c\n c & d --> f --> END", ""),
        (f"{GUARDED} e & c --> h --> END\n d & e --> h", "'h' waits for 'd' and 'e', and no run brings all of them"),
        ("START --> a --> c\n c & e --> b\n b -->|again| e\n b -->|over| END", "'b' waits for 'c' and 'e', and no run brings all of them"),
        ("START --> a --> c & d\n c & d --> b\n b -->|again| c\n b -->|over| END", "where 'b' leads by 'again', the join 'c & d --> b' waits for ever: 'c' came, 'd' cannot come; let 'd' run there"),
        ("START --> a --> c & d\n c & d --> b\n b -->|again| a\n b -->|over| END", ""),
        ("START --> a --> b\n b -->|again| a\n b -->|over| c --> a & d\n d --> END", "whatever is decided, the run would go on for ever, over 'a', 'b', 'c', 'd'"),
        ("START --> a --> b\n b -->|again| c --> e & d\n e --> a\n d --> a\n b -->|over| END", ""),
        ("START --> a & d\n d --> END\n a --> b\n b -->|again| c --> e & f --> b\n b -->|over| d", ""),
    ],
)  # fmt: skip
def test_a_join_that_would_wait_for_ever_is_told_before_it_runs(flow: str, says: str) -> None:
    told = told_of(flow, {"b": good_enough} if "over" in flow else {})
    assert len(told) == bool(says)
    assert told == [] or told[0].startswith(says)


def test_a_part_of_a_prompt_that_is_drawn_is_told_with_its_place() -> None:
    told = check("flowchart LR\n START --> b --> NotesPart --> END", {"b": anything})
    place = (
        "it is a part of a prompt, which a policy shows: inputs.make_policy(inputs.episode_prompt(inputs.node('NotesPart')))"
    )
    assert told == [(2, f"the flow draws 'NotesPart', but there is no such node; there are ['b']; {place}")]


def test_one_label_to_two_nodes_is_told_with_what_to_draw() -> None:
    told = check(
        "flowchart LR\n START --> b\n b -->|again| b\n b -->|over| c & d\n c & d --> END",
        dict.fromkeys("bcd", anything),
        {"b": good_enough},
    )
    assert told == [(4, "'b' has two arrows with one label: ['again', 'over', 'over']; a label leads to one node, which may start several: draw one more node behind it, which returns {}: 'b -->|over| both --> c & d'")]  # fmt: skip


def rounds(state: Any) -> Literal["again"]:
    return "again"


@pytest.mark.parametrize("kind", ["a router", "a fan-out", "Commands"])
def test_a_loop_from_which_no_arrow_leads_to_the_end_is_told(kind: str) -> None:
    """A fan-out of no work and a node without a Command end nothing: without an arrow to END the run is stopped there."""

    def go(state: Any) -> Command[Literal["d"]]:
        return Command()

    leads: dict[str, Any] = {
        "a router": ("c -->|again| d", {"routers": {"c": rounds, "b": good_enough}}),
        "a fan-out": ("c -.-> d", {"routers": {"b": good_enough}, "fan_outs": {"c": lambda state: []}}),
        "Commands": ("c -->|d| d", {"routers": {"b": good_enough}, "c": go}),
    }
    arrow, more = leads[kind]
    flow = f"START --> b\n b -->|over| END\n b -->|again| c\n d --> c\n {arrow}"
    assert told_of(flow, **more) == ["END cannot be reached from c and d: the graph would run for ever"]


class Counted(TypedDict):
    seen: Annotated[list[str], add]


class RandomJoins:
    """A random drawing of six nodes, with joins, routers and fan-outs, that a random run goes through."""

    def __init__(self, seed: int) -> None:
        self.random, names = Random(seed), "abcdef"
        self.routers, self.fan_outs, lines = dict[str, Any](), dict[str, Any](), ["START --> a"]
        self.taken = set[tuple[str, str]]()
        """Node and label of each decision of the last run."""
        join, meeting = sorted(self.random.sample("abcde", 2)), self.random.choice("def")
        for place, name in enumerate(names[:-1]):
            later = [one for one in names[place + 1 :] if one != meeting] or ["f"]
            back = [one for one in names[1:] if one != name]
            kind = self.random.choice(["plain", "both"] if name in join else ["both", "router", "router", "fan-out"])
            targets = list(dict.fromkeys([later[0], self.random.choice(back if kind == "router" else later)]))
            if kind in ("plain", "both"):
                lines += [f"{name} --> {one}" for one in targets[: 1 + (kind == "both")]]
            elif kind == "router":
                lines += [f"{name} -->|{one}| {one}" for one in targets]
                self.routers[name] = self.router(name, targets)
            else:
                lines += [f"{name} -.-> {one}" for one in targets]
                self.fan_outs[name] = self.fan_out(targets)
        self.flow = "\n ".join(["flowchart LR", *lines, f"{' & '.join(join)} --> {meeting}", "f --> END"])
        self.nodes = {name: self.node(name) for name in names}

    def node(self, name: str) -> Any:
        return lambda state: {"seen": [name]}

    def router(self, name: str, targets: list[str]) -> Any:
        def route(state: Any) -> Any:
            target = self.random.choice(targets)
            self.taken.add((name, target))
            return target

        route.__annotations__["return"] = Literal[tuple(targets)]
        return route

    def fan_out(self, targets: list[str]) -> Any:
        return lambda state: [Send(one, {}) for one in self.random.sample(targets, self.random.choice([0, 1, 1, len(targets)]))]

    def ran(self) -> set[str]:
        """The names of the nodes of a run of its unchecked graph; empty if it does not come to its end."""
        self.taken.clear()
        read = flow._read_drawing(self.flow, self.nodes, self.routers, self.fan_outs, {})
        graph = flow._assemble(StateGraph(Counted), read).compile()
        try:
            return {*graph.invoke({"seen": []}, {"recursion_limit": 12})["seen"]}
        except (FlowError, GraphRecursionError):
            return set()


FORETOLD = r"where '\w' leads|whatever is decided|'\w' waits for .*, and no run"


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_no_run_ends_after_a_decision_that_is_told_to_starve_a_join(seed: int) -> None:
    drawn = RandomJoins(seed)
    told = check(drawn.flow, drawn.nodes, drawn.routers, drawn.fan_outs)
    joins = [one.sentence for one in told if re.match(FORETOLD, one.sentence)]
    if len(joins) < len(told):  # another mistake
        return
    decisions = {found.groups() for one in joins if (found := re.match(r"where '(\w)' leads by '(\w)'", one))}
    is_sure = any(one.startswith("whatever is decided") for one in joins)
    starved = [set(re.findall(r"'(\w)'", one)[1:]) for one in joins if "no run brings all of them" in one]
    for _ in range(6):
        ran = drawn.ran()
        assert not (ran and (drawn.taken & decisions or is_sure or any(ran >= all for all in starved))), (drawn.flow, joins)


class Extra(TypedDict):
    zz: str


def choose_by_extra(state: Extra) -> Literal["again", "over"]:
    return "over" if state["zz"] else "again"


def choose_both(state: Any) -> Literal["again", "over"]:
    return ["again", "over"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("router", "says"),
    [
        (choose_by_extra, r"the router of 'answer' reads `zz`, which nothing has written: .*; it was given"),
        (choose_both, r"the router of 'answer' returned \['again', 'over'\], and a router chooses one label. To start several"),
    ],
)
def test_what_a_router_does_wrong_is_a_sentence_when_it_runs(router: Any, says: str) -> None:
    text = "flowchart LR\n START --> answer\n answer -->|again| answer\n answer -->|over| END"
    graph = wire(builder(), text, {"answer": lambda state: {"answer": "x"}}, {"answer": router}).compile()
    for run in (lambda: graph.invoke({"question": "?"}), lambda: asyncio.run(graph.ainvoke({"question": "?"}))):
        with pytest.raises(UserError, match=says):
            run()


def ask(state: Question) -> Any:
    return {"draft": "x"}


@pytest.mark.parametrize(("label", "ran"), [("x", ["p", "a", "b", "d"]), ("y", ["q", "c", "e", "d"])])
def test_two_joins_lead_to_one_node_from_either_side_of_a_router(label: str, ran: list[str]) -> None:
    text = "START --> r\n r -->|x| p --> a & b\n r -->|y| q --> c & e\n a & b --> d\n c & e --> d --> END"
    nodes: dict[str, Any] = {name: lambda state, name=name: {"seen": [name]} for name in "pqabced"}
    nodes["r"] = anything

    def x_or_y(state: Any) -> Literal["x", "y"]:
        return "x" if label == "x" else "y"

    assert told_of(text, {"r": x_or_y}) == []
    graph = wire(StateGraph(Counted), f"flowchart LR\n {text}", nodes, {"r": x_or_y}).compile()
    assert graph.invoke({"seen": []}) == {"seen": ran}
    assert rewire(graph, to_mermaid(graph)).invoke({"seen": []}) == {"seen": ran}


@pytest.mark.parametrize(
    ("node", "key", "is_told"), [(ask, "qestion", True), (ask, "other", False), (anything, "qestion", False)]
)
def test_a_misspelt_channel_of_a_piece_of_work_is_told(node: Any, key: str, is_told: bool) -> None:
    """A node without types may read anything."""
    text, spread = "flowchart LR\n START --> spread -.-> ask --> END", [{key: "x"}]
    graph = wire(
        StateGraph(State), text, {"spread": anything, "ask": node}, fan_outs={"spread": lambda state: spread}
    ).compile()
    if is_told:
        says = "the fan-out of 'spread' hands 'ask' `qestion`, which it does not read; did you mean question"
        with pytest.raises(FlowError, match=re.escape(says)):
            graph.invoke({"question": "?"})
    else:
        graph.invoke({"question": "?"})


class Asked(TypedDict):
    questions: list[str]
    answers: Annotated[list[str], add]


class Work(TypedDict):
    question: str
    answer: str


def work(piece: Work) -> Any:
    return {"answers": [piece["question"]]}


def test_a_piece_of_work_may_hold_the_whole_state() -> None:
    """`answers` is a channel of the state, although the node reads an `answer`."""
    text = "flowchart LR\n START --> spread -.-> ask --> END"
    fan_outs: dict[str, Any] = {"spread": lambda state: [Send("ask", {**state, "question": q}) for q in state["questions"]]}
    graph = wire(StateGraph(Asked), text, {"spread": anything, "ask": work}, fan_outs=fan_outs).compile()
    assert graph.invoke({"questions": ["a", "b"], "answers": []})["answers"] == ["a", "b"]


def b_or_c(state: Any) -> Literal["b", "c"]:
    return "b"


def c_or_end(state: Any) -> Literal["c", "__end__"]:
    return "c"


def test_two_routers_of_one_node_survive_their_drawing() -> None:
    native = StateGraph(Counted)
    for name in "abc":
        native.add_node(name, lambda state, name=name: {"seen": [name]})
    native.add_edge(START, "a").add_conditional_edges("a", b_or_c).add_conditional_edges("a", c_or_end)
    graph = native.add_edge("b", END).add_edge("c", END).compile()
    assert check(to_mermaid(graph), graph) == []
    assert rewire(graph, to_mermaid(graph)).invoke({"seen": []}) == graph.invoke({"seen": []}) == {"seen": ["a", "b", "c"]}


def test_a_part_of_a_prompt_is_given_once() -> None:
    inputs = MethodInputs(open_environment("toy"))
    part = inputs.node("AttemptsPart")
    with pytest.raises(UserError, match="the prompt would show AttemptsPart twice; give each part once"):
        inputs.episode_prompt(part, inputs.node("StrategyPart"), part)
