"""A drawing cannot lie: what ran is a path of the drawing, whatever routers, Sends and Commands try."""

import asyncio
import re
from collections.abc import Callable
from operator import add
from random import Random
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from scripted_agent import ScriptedCalls
from typing_extensions import TypedDict

import learngraph
from learngraph.graphs.wiring.flow import FlowError, rewire, to_mermaid, wire

NAMES = "abcd"
ARROWS = {"plain": "-->", "router": "-->|{}|", "fan-out": "-.->", "command": "-.->", "subgraph": "-.->"}


class Walked(TypedDict):
    seen: Annotated[list[str], add]


class RandomAgent:
    """A random drawing, and nodes, routers and fan-outs that go along its arrows, and now and then past them."""

    def __init__(self, seed: int) -> None:
        self.random, self.lies, self.arrows = Random(seed), list[tuple[str, str]](), dict[str, list[str]]()
        self.kinds = {name: self.random.choice([*ARROWS]) for name in NAMES}
        lines = ["flowchart LR", "START --> a"]
        for name, after in zip(NAMES, [*NAMES[1:], "END"], strict=True):
            kind = self.kinds[name]
            others = [one for one in NAMES if one != after and kind != "plain"]
            targets = self.arrows[name] = [after, *self.random.sample(others, min(len(others), self.random.randint(0, 2)))]
            lines += [f"{name} {ARROWS[kind].format(one)} {one}" for one in targets]
        self.flow = "\n".join(lines)

    def wired(self) -> Any:
        def of(kind: str, make: Callable[[str], Any]) -> dict[str, Any]:
            return {name: make(name) for name in NAMES if self.kinds[name] == kind}

        leads = {
            name: [END if one == "END" else one for one in self.arrows[name]]
            for name in NAMES
            if ARROWS[self.kinds[name]] == "-.->" and self.kinds[name] != "fan-out"
        }
        nodes = {name: self.node(name) for name in NAMES}
        return wire(
            StateGraph(Walked), self.flow, nodes, of("router", self.router), of("fan-out", self.fan_out), destinations=leads
        ).compile()

    def pick(self, name: str) -> str:
        target = self.random.choice(self.arrows[name] if self.random.random() < 0.85 else [*NAMES, "END"])
        is_dropped = target == "END" and self.kinds[name] == "fan-out"  # a Send to the end is none
        self.lies += [(name, target)] if target not in self.arrows[name] and not is_dropped else []
        return END if target == "END" else target

    def send(self, target: str) -> Any:
        return Send(target, {"seen": []}) if target != END and self.random.random() < 0.5 else target

    def node(self, name: str) -> Any:
        def run(state: Walked) -> Any:
            return {"seen": [name]}

        def go(state: Walked) -> Any:
            return Command(update=run(state), goto=[self.send(self.pick(name)) for _ in range(self.random.randint(1, 2))])

        def hand_over(state: Walked) -> Any:
            return Command(update=run(state), goto=self.send(self.pick(name)), graph=Command.PARENT)

        if self.kinds[name] == "subgraph":
            return StateGraph(Walked).add_node("inner", hand_over).add_edge(START, "inner").compile()
        return go if self.kinds[name] == "command" else run

    def router(self, name: str) -> Any:
        def route(state: Walked) -> Any:
            target = self.pick(name)
            return "END" if target == END else self.send(target)

        route.__annotations__["return"] = Literal[tuple(self.arrows[name])]
        return route

    def fan_out(self, name: str) -> Any:
        def sends(state: Walked) -> list[Send]:
            picked = [self.pick(name) for _ in range(2)]
            return [Send(one, {"seen": []}) for one in picked if one != END]

        return sends


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_what_ran_is_a_path_of_the_drawing(seed: int) -> None:
    agent = RandomAgent(seed)
    ran, stopped = list[tuple[int, str]](), ""
    try:
        for event in agent.wired().stream({"seen": []}, {"recursion_limit": 12}, stream_mode="debug"):
            ran += [(event["step"], event["payload"]["name"])] if event["type"] == "task" else []
    except GraphRecursionError:
        pass
    except FlowError as error:
        stopped = str(error)
    assert stopped or not agent.lies
    told = re.search(
        r" of '(\w)' (?:leads to|returned) '(\w+)', but", stopped
    )  # of several in one super-step the first that is told
    assert told is None or told[2] == "END" or told.groups() in agent.lies
    for step, name in ran:
        before = {one for at, one in ran if at == step - 1}
        assert (name == "a" and step == 1) or any(name in agent.arrows[one] for one in before), agent.flow


def joining(flow: str, **nodes: Any) -> Any:
    """A builder of a drawing in which nodes that are not given write their names."""

    def noting(name: str) -> Any:
        return lambda state: {"seen": [name]}

    more = {one: nodes.pop(one, None) for one in ("routers", "fan_outs")}
    names = dict.fromkeys(re.findall(r"\b[a-z]\b", re.sub(r"\|.*?\|", "", flow)))
    return wire(StateGraph(Walked), f"flowchart LR\n {flow}", {name: nodes.get(name) or noting(name) for name in names}, **more)


def left(state: Walked) -> Literal["left", "right"]:
    return "left"


def right(state: Walked) -> Literal["left", "right"]:
    return "right"


def pick_b(state: Walked) -> Command[Literal["b", "c"]]:
    return Command(goto="b", update={"seen": ["a"]})


DIAMOND = "START --> a --> b & c\n b & c --> d"
PARTED = "START --> a & b\n a -->|left| c\n a -->|right| d\n b -->|left| d\n b -->|right| c\n c & d --> e --> END"
STARVING: dict[str, tuple[Any, str]] = {
    "routers that disagree": (
        joining(PARTED, routers={"a": left, "b": right}),
        "'c & d --> e' waits: 'c' arrived, 'd' did not",
    ),
    "Sends to one member": (
        joining("START --> a\n a -.-> b\n a -.-> c\n b & c --> d --> END", fan_outs={"a": lambda state: [Send("b", {})]}),
        "'b & c --> d' waits: 'b' arrived, 'c' did not",
    ),
    "a Command to one member": (
        joining("START --> a\n a -->|b| b\n a -->|c| c\n b & c & e --> d --> END\n c --> e", a=pick_b),
        "'b & c & e --> d' waits: 'b' arrived, 'c' and 'e' did not",
    ),
    "a Command to one member of a deferred join": (
        joining("START --> a\n a -->|b| b\n a -->|c| c\n b & c --> d:::deferred --> e --> END", a=pick_b),
        "'b & c --> d' waits: 'b' arrived, 'c' did not",
    ),
}


@pytest.mark.parametrize("case", STARVING)
def test_a_run_does_not_end_at_a_join_that_waits(case: str) -> None:
    builder, says = STARVING[case]
    says = re.escape(
        f"the run would end while the join {says}, and no arrow to END was taken. Let what is missing run as well, or draw '"
    )
    kept, thread = builder.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "t"}}
    around = wire(StateGraph(Walked), "flowchart LR\n START --> inner --> END", {"inner": builder.compile()}).compile()
    for run in (
        lambda: builder.compile().invoke({"seen": []}),
        lambda: asyncio.run(builder.compile().ainvoke({"seen": []})),
        lambda: around.invoke({"seen": []}),
        lambda: kept.invoke({"seen": []}, thread),
        lambda: kept.invoke(None, thread),  # it stands before the step that was stopped
        lambda: learngraph.step(builder.compile(checkpointer=InMemorySaver()), {"seen": []}).finish(),
    ):
        with pytest.raises(FlowError, match=says):
            run()
    assert kept.get_state(thread).tasks, "a look at the state stops nothing"
    with pytest.raises(FlowError, match=says):
        rewire(kept, to_mermaid(kept)).invoke({"seen": []}, {"configurable": {"thread_id": "another"}})


@pytest.mark.parametrize("flow", ["START --> a & b & d\n a & b --> c --> END\n d --> END", f"{DIAMOND} --> END"])
def test_a_join_is_the_same_in_a_run_that_is_awaited(flow: str) -> None:
    graph = joining(flow).compile()
    assert asyncio.run(graph.ainvoke({"seen": []})) == graph.invoke({"seen": []})


@pytest.mark.parametrize(
    ("flow", "order"),
    [
        ("START --> a & b & c\n c --> e --> f --> END\n a & b --> d:::deferred --> END", "abcefd"),
        ("START --> a & b\n a --> c:::deferred\n b & c --> d --> END", "abcd"),
        ("START --> a & b & e\n e --> f --> END\n a & b --> c:::deferred\n b & c --> d:::deferred\n d --> END", "abefcd"),
    ],
)
def test_a_join_of_a_deferred_node_waits_until_nothing_else_is_left_in_each_run_of_a_thread(flow: str, order: str) -> None:
    graph, thread = joining(flow).compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "t"}}
    assert [graph.invoke({"seen": []}, thread)["seen"] for _ in range(2)] == [[*order], [*order * 2]]
    walk = learngraph.step(joining(flow).compile(checkpointer=InMemorySaver()), {"seen": []})
    while walk.next:
        walk.step()
    assert walk.state["seen"] == [*order]


def test_a_join_may_wait_where_an_arrow_leads_to_the_end() -> None:
    """A guard beside the work may end the run, and LangGraph's own graph is run as LangGraph runs it."""
    answers = iter(["bad", "ok", "bad", "ok"])

    def route(state: Walked) -> Literal["ok", "bad"]:
        return next(answers)

    flow = "START --> a --> b & c\n b -->|ok| d\n b -->|bad| END\n c & d --> e --> END"
    graph = joining(flow, routers={"b": route}).compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "t"}}
    for seen in ("abc", "abcde"):
        assert "".join(graph.invoke({"seen": []}, thread)["seen"]).endswith(seen)
    says_end = (
        ("START --> a --> b & c\n b -.-> d\n b -.-> END\n c & d --> e --> END", {"fan_outs": {"b": lambda state: []}}),
        ("START --> a --> b & c\n b -->|d| d\n b -->|END| END\n c & d --> e --> END", {"b": end_here}),
        ("START --> a --> b & c\n b -->|d| d\n b -->|END| END\n c & d --> e --> END", {"b": lead_nowhere}),
        ("START --> a --> b & c\n b -->|ok| d\n b -->|bad| f --> END\n c & d --> e --> END", {"routers": {"b": route}}),
    )
    for drawn, nodes in says_end:
        assert "e" not in joining(drawn, **nodes).compile().invoke({"seen": []})["seen"]
    lent = StateGraph(Walked).add_node("a", pick_b).add_edge(START, "a")
    for name in "bcd":
        lent.add_node(name, lambda state: {"seen": ["x"]})
    native = lent.add_edge(["b", "c"], "d").compile()
    assert rewire(native, to_mermaid(native)).invoke({"seen": []}) == native.invoke({"seen": []}) == {"seen": ["a", "x"]}


def end_here(state: Walked) -> Command[Literal["d", "__end__"]]:
    return Command(goto=END)


def lead_nowhere(state: Walked) -> Command[Literal["d", "__end__"]]:
    return Command(update={"seen": ["b"]})


def test_a_pause_is_no_end_and_what_is_sent_is_still_to_come() -> None:
    def ask(state: Walked) -> Any:
        return {"seen": [interrupt("c?")]}

    thread: Any = {"configurable": {"thread_id": "t"}}
    graph = joining(f"{DIAMOND} --> END", c=ask).compile(checkpointer=InMemorySaver())
    assert graph.invoke({"seen": []}, thread)["__interrupt__"]
    assert graph.invoke(Command(resume="c"), thread)["seen"] == [*"abcd"]
    for when in ("interrupt_before", "interrupt_after"):
        paused = joining("START --> a --> b & c\n c --> e\n b & e --> d --> END")
        graph = paused.compile(checkpointer=InMemorySaver(), **{when: ["b", "e"]})
        graph.invoke({"seen": []}, thread)
        while graph.get_state(thread).next:
            graph.invoke(None, thread)
        assert graph.get_state(thread).values["seen"] == [*"abced"]
    by_hand = graph.update_state(thread, {"seen": ["b"]}, as_node="b")
    assert graph.get_state(by_hand).next == (), "who edits the state may let b alone arrive"
    sent = joining("START --> a --> b & c\n c -.-> e\n b & e --> d --> END", fan_outs={"c": lambda state: [Send("e", {})]})
    assert sent.compile().invoke({"seen": []})["seen"] == [*"abced"]
    with pytest.raises(GraphRecursionError):
        joining(f"{DIAMOND} --> END").compile().invoke({"seen": []}, {"recursion_limit": 2})


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from("bcd"), min_size=1), st.sampled_from(["b & c", "b & d", "c & d", "b & c & d"]), st.booleans())
def test_a_run_ends_normally_if_no_join_waits(started: set[str], join: str, may_end: bool) -> None:
    """Sends start some of three nodes, of which some stand in a join."""
    arrows = "".join(f"\n a -.-> {name}" for name in "bcd") + "".join(f"\n {name} --> f" for name in "bcd" if name not in join)
    end = "\n a --> g --> END" if may_end else ""
    flow = f"START --> a{arrows}{end}\n {join} --> e --> f --> END"
    graph = joining(flow, fan_outs={"a": lambda state: [Send(name, {}) for name in sorted(started)]}).compile()
    members = {*join.split(" & ")}
    waits = bool(members & started) and not members <= started
    if waits and not may_end and not started - members:
        with pytest.raises(FlowError, match=f"the join '{join} --> e' waits"):
            graph.invoke({"seen": []})
    else:
        assert ("e" in graph.invoke({"seen": []})["seen"]) == (members <= started)


def send_all(state: Walked) -> list[Send]:
    return [Send("b", {"seen": []})]


def command_all(state: Walked) -> Any:
    return Command(goto=send_all(state))


def wired_twice(flow: str, a: Any, **more: Any) -> Any:
    nodes: dict[str, Any] = {"a": a, "b": lambda state: {"seen": ["b"]}, "c": lambda state: {"seen": ["c"]}}
    nodes = {name: nodes[name] for name in nodes if name in flow}
    return wire(StateGraph(Walked), f"flowchart LR\n START --> a\n {flow}\n b --> END", nodes, **more).compile()


def test_a_node_that_a_plain_arrow_starts_is_sent_nothing_more() -> None:
    """LangGraph runs it once for the arrow and once for each Send, where a picture shows one arrow."""
    says = "line 4: 'a --> b' always starts 'b', and 'a -.-> b' starts it again for every piece of work; leave one of them out"
    with pytest.raises(FlowError, match=re.escape(says)):
        wired_twice("a --> b\n a -.-> b", lambda state: None, fan_outs={"a": send_all})
    says = "a Send of 'a' leads to 'b', and so does its plain arrow: it would run once for each. Draw 'a -.-> b' in place of 'a --> b'"
    for flow, node, more in (
        ("a --> b", command_all, {}),
        ("a --> b\n a -.-> c --> END", lambda state: None, {"fan_outs": {"a": send_all}}),
    ):
        with pytest.raises(FlowError, match=re.escape(says)):
            wired_twice(flow, node, **more).invoke({"seen": []})
    assert wired_twice("a -.-> b", lambda state: None, fan_outs={"a": send_all}).invoke({"seen": []}) == {"seen": ["b"]}
    lent = StateGraph(Walked).add_node("a", command_all, destinations=("b",)).add_node("b", lambda state: {"seen": ["b"]})
    graph = lent.add_edge(START, "a").add_edge("a", "b").compile()
    assert rewire(graph, to_mermaid(graph)).invoke({"seen": []}) == graph.invoke({"seen": []}) == {"seen": ["b", "b"]}


@pytest.mark.parametrize(("returned", "came"), [(None, "None"), ("b", "a str ('b')"), ({"seen": []}, "a dict ({'seen': []})")])
def test_a_fan_out_returns_a_list_of_work(returned: Any, came: str) -> None:
    says = f"the fan-out that starts 'b' returned {came}, and it returns a list with an input of 'b' for each start, such as"
    with pytest.raises(FlowError, match=re.escape(says)):
        wired_twice("a -.-> b", lambda state: None, fan_outs={"a": lambda state: returned}).invoke({"seen": []})
    with pytest.raises(FlowError, match="there is a fan-out function for 'bb', which is not drawn; did you mean b"):
        wired_twice("a --> c --> b", lambda state: None, fan_outs={"bb": send_all})
    one = wired_twice("a -.-> b", lambda state: None, fan_outs={"a": lambda state: send_all(state)[0]})
    assert one.invoke({"seen": []}) == {"seen": ["b"]}, "one Send is taken as LangGraph takes it"


def audited_agent(arrows: str, **routes: Any) -> Any:
    """An agent that calls `resolve` once, with a node `audit` that is drawn in place of the arrow from the model to its tools."""

    def resolve(how: str) -> str:
        """Resolve the issue."""
        return how

    def audit(state: Any) -> dict[str, Any]:
        return {"messages": [SystemMessage("audited")]}

    agent = create_agent(ScriptedCalls(calls=[("resolve", {"how": "refund"})]), [resolve])
    drawn = to_mermaid(agent)
    assert "  model -.-> tools\n  model -.-> END\n" in drawn
    return rewire(agent, drawn.replace("  model -.-> tools\n  model -.-> END\n", arrows), **routes, audit=audit)


@pytest.mark.parametrize(
    ("arrows", "line", "leads"),
    [
        ("model -.-> audit --> tools\n model -.-> END\n", 3, "END or audit"),
        ("model -.-> tools\n model -.-> audit --> END\n", 4, "audit or tools"),
        ("model -.-> tools --> audit\n audit --> END\n", 3, "tools"),
    ],
)
def test_an_agents_own_sends_are_not_drawn_elsewhere(arrows: str, line: int, leads: str) -> None:
    says = f"line {line}: the fan-out of 'model' starts END or tools by itself, and the drawing says {leads}; draw its own arrows, or give "
    with pytest.raises(FlowError, match=re.escape(says + "fan_outs={'model': ")):
        audited_agent(arrows)


def test_with_a_router_the_audit_stands_before_the_tools() -> None:
    def calls_tool(state: Any) -> Literal["audit", "END"]:
        return "audit" if state["messages"][-1].tool_calls else "END"

    def calls(state: Any) -> list[Send]:
        called = next(one for one in reversed(state["messages"]) if isinstance(one, AIMessage))
        return [
            Send("tools", {"__type": "tool_call_with_context", "tool_call": call, "state": state}) for call in called.tool_calls
        ]

    arrows = "model -->|audit| audit -.-> tools\n model -->|END| END\n"
    agent = audited_agent(arrows, routers={"model": calls_tool}, fan_outs={"audit": calls})
    types = [one.type for one in asyncio.run(agent.ainvoke({"messages": "broken"}))["messages"]]
    assert types == ["human", "ai", "system", "tool", "ai"]
