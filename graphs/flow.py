"""A graph is drawn as a Mermaid flowchart in the source, and the drawing is the wiring.

`wire` adds the nodes and edges of a drawing to a native LangGraph `StateGraph`; `draw` writes any compiled graph back as such
a drawing. The subset: chains `a --> b --> c`, labels `a -->|over| b` that are the outcomes of a router function, dotted edges
`a -.-> b` for a fan-out (one `b` for every piece of work that a function hands out), and `%%` comments.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction, signature
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import Send

from ..memory.records import UserError

Node = Callable[[Any], Any] | Runnable[Any, Any]
Router = Callable[[Any], str]
FanOut = Callable[[Any], Iterable[Mapping[str, Any]]]

_EDGE = re.compile(r"\s*(-->|-\.->)\s*(?:\|([^|]*)\|\s*)?")
_NAME = re.compile(r"[A-Za-z_][\w+]*")
_ENDS = {"START": START, "END": END}


class FlowError(UserError, ValueError):
    """The drawing cannot be read, or does not fit the nodes and routers that came with it."""


class Edge(NamedTuple):
    """One arrow."""

    source: str
    target: str
    label: str = ""
    dotted: bool = False


def parse(flow: str) -> list[Edge]:
    """The arrows of a Mermaid flowchart, in the order of the text.

    Raises:
        FlowError: naming the line that is not understood.
    """
    lines = [line for raw in flow.splitlines() if (line := raw.split("%%")[0].strip().rstrip(";"))]
    if not lines or not re.fullmatch(r"(flowchart|graph) +(LR|RL|TD|TB|BT)", lines[0]):
        raise FlowError(f"a flow begins with 'flowchart LR' or 'flowchart TD', not with {lines[0] if lines else '(nothing)'!r}")
    edges: list[Edge] = []
    for line in lines[1:]:
        edges += _chain(line)
    doubled = [edge for edge, n in Counter((e.source, e.target, e.label) for e in edges).items() if n > 1]
    if doubled:
        raise FlowError(f"this arrow is drawn twice: {doubled[0]}")
    return edges


def _chain(line: str) -> list[Edge]:
    edges, at = [], 0
    name = _NAME.match(line)
    while name:
        source, at = name.group(), name.end()
        arrow = _EDGE.match(line, at)
        if not arrow:
            break
        at = arrow.end()
        name = _NAME.match(line, at)
        if name:
            label = (arrow.group(2) or "").strip()
            edges.append(Edge(source, name.group(), label, arrow.group(1) == "-.->"))
    if not edges or at < len(line) or name is None:
        raise FlowError(f"cannot read {line[at:] or line!r} in the line {line!r}; lines look like 'a --> b -->|label| c'")
    return edges


@dataclass(frozen=True)
class Chain(Runnable[Any, Any]):
    """Nodes that follow each other without a choice, run as one super-step.

    LangGraph writes a checkpoint after every super-step, so a chain costs one checkpoint instead of one per node, and gives
    up pausing and resuming between its parts. Channels with a reducer add up as they would in separate super-steps.
    """

    parts: tuple[Node, ...]
    reducers: Mapping[str, Callable[[Any, Any], Any]]

    def _merge(self, state: dict[str, Any], out: dict[str, Any], update: Mapping[str, Any]) -> None:
        for key, value in update.items():
            reduce = self.reducers.get(key)
            state[key] = reduce(state[key], value) if reduce and key in state else value
            out[key] = reduce(out[key], value) if reduce and key in out else value

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        local, out = dict(input), dict[str, Any]()
        for part in self.parts:
            self._merge(local, out, part.invoke(local, config) if isinstance(part, Runnable) else part(local))
        return out

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        local, out = dict(input), dict[str, Any]()
        for part in self.parts:
            if isinstance(part, Runnable):
                update = await part.ainvoke(local, config)
            else:  # in a thread, as LangGraph runs a sync node
                update = await asyncio.to_thread(part, local)
            self._merge(local, out, update)
        return out


def _chainable(node: Node) -> bool:
    """Whether a node can be a link: it takes the state alone, or is a Runnable that is not itself a graph."""
    if isinstance(node, Runnable):
        return not isinstance(node, Pregel)
    return not iscoroutinefunction(node) and len(signature(node).parameters) == 1


@dataclass
class Wiring:
    """A drawing checked against its nodes: what `wire` adds to the builder."""

    nodes: dict[str, Node]
    edges: list[Edge]
    routers: Mapping[str, Router] = field(default_factory=dict)
    fan_outs: Mapping[str, FanOut] = field(default_factory=dict)


def wire(
    builder: StateGraph[Any, Any, Any, Any],
    flow: str,
    nodes: Mapping[str, Node],
    routers: Mapping[str, Router] | None = None,
    fan_outs: Mapping[str, FanOut] | None = None,
    *,
    chain: bool = False,
) -> StateGraph[Any, Any, Any, Any]:
    """Add the drawing's nodes and edges to `builder`, and return it.

    Args:
        builder: a LangGraph builder that knows the state's schema.
        flow: the drawing.
        nodes: what stands behind each name in it.
        routers: for each node with labelled arrows, a function from state to a label, with a `Literal` return type.
        fan_outs: for each node with dotted arrows, a function from state to the inputs of the nodes to start.
        chain: run nodes that follow each other without a choice as one super-step (see `Chain`). Same results, one
            checkpoint per chain; the drawing of the compiled graph then shows the chains.

    Raises:
        FlowError: a name without a node, a node that is not drawn, a label that the router cannot return or that is not
            drawn, an unreachable node.
    """
    edges, routers, fan_outs = parse(flow), routers or {}, fan_outs or {}
    _check(edges, nodes, routers, fan_outs)
    wiring = Wiring(dict(nodes), edges, routers, fan_outs)
    if chain:
        wiring = _chained(wiring, builder)
    for name, node in wiring.nodes.items():
        builder.add_node(name, cast(Any, node))
    by_source: dict[str, list[Edge]] = {}
    for edge in wiring.edges:
        by_source.setdefault(edge.source, []).append(edge)
    for source, arrows in by_source.items():
        start = _ENDS.get(source, source)
        for edge in arrows:
            if not edge.label and not edge.dotted:
                builder.add_edge(start, _ENDS.get(edge.target, edge.target))
        labels: dict[Hashable, str] = {e.label: _ENDS.get(e.target, e.target) for e in arrows if e.label and not e.dotted}
        if labels:
            builder.add_conditional_edges(start, wiring.routers[source], labels)
        for edge in arrows:
            if edge.dotted:
                builder.add_conditional_edges(start, _sends(wiring.fan_outs[source], edge.target), [edge.target])
    return builder


def compiled(builder: StateGraph[Any, Any, Any, Any], **options: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Compile (options as for `StateGraph.compile`) a graph that may take as many super-steps as an episode needs.

    The environment's step limit ends an episode. LangGraph's own limit would cut it short inside a tool or an app, where
    LangChain passes on its default of 25.
    """
    graph: CompiledStateGraph[Any, Any, Any, Any] = builder.compile(**options).with_config(recursion_limit=1_000_000)
    return graph


def _sends(fan_out: FanOut, target: str) -> Callable[[Any], Sequence[Send]]:
    def hand_out(state: Any) -> Sequence[Send]:
        return [Send(target, work) for work in fan_out(state)]

    hand_out.__name__ = getattr(fan_out, "__name__", "fan_out")
    return hand_out


def _check(
    edges: Sequence[Edge], nodes: Mapping[str, Node], routers: Mapping[str, Router], fan_outs: Mapping[str, FanOut]
) -> None:
    drawn = {name for e in edges for name in (e.source, e.target)} - _ENDS.keys()
    for name in sorted(drawn - nodes.keys()):
        raise FlowError(f"the flow draws '{name}', but there is no such node; there are {sorted(nodes)}")
    for name in sorted(nodes.keys() - drawn):
        raise FlowError(f"node '{name}' is not in the flow; it draws {sorted(drawn)}")
    if any(e.source == "END" or e.target == "START" for e in edges):
        raise FlowError("nothing leaves END and nothing enters START")
    reached, frontier = {"START"}, ["START"]
    while frontier:
        here = frontier.pop()
        new = {e.target for e in edges if e.source == here} - reached
        reached |= new
        frontier += new
    for name in sorted(drawn - reached):
        raise FlowError(f"no arrow leads from START to '{name}'")
    for name in sorted(drawn - {e.source for e in edges}):
        raise FlowError(f"no arrow leaves '{name}'; draw '{name} --> END' if the graph ends there")
    labelled: dict[str, list[str]] = {}
    for edge in edges:
        if edge.label and not edge.dotted:
            labelled.setdefault(edge.source, []).append(edge.label)
    for source, labels in labelled.items():
        if source not in routers:
            raise FlowError(f"'{source}' has the labelled arrows {labels}, but no router decides among them")
        _check_labels(source, labels, routers[source])
        if any(e.source == source and not e.label and not e.dotted for e in edges):
            raise FlowError(f"'{source}' has labelled and plain arrows: which one is taken would be unclear")
    for source in sorted(routers.keys() - labelled.keys()):
        raise FlowError(f"there is a router for '{source}', but no labelled arrow leaves it")
    dotted = {e.source for e in edges if e.dotted}
    for source in sorted(dotted ^ fan_outs.keys()):
        has = "a dotted arrow, but no fan-out function" if source in dotted else "a fan-out function, but no dotted arrow"
        raise FlowError(f"'{source}' has {has}")


def _check_labels(source: str, labels: Sequence[str], router: Router) -> None:
    function = router if hasattr(router, "__annotations__") and "return" in router.__annotations__ else type(router).__call__
    returns = get_type_hints(function).get("return")
    if get_origin(returns) is not Literal:
        raise FlowError(f"the router of '{source}' must say its outcomes as a Literal return type, not {returns}")
    outcomes = set(get_args(returns))
    for label in labels:
        if label not in outcomes:
            raise FlowError(f"'{source}' has an arrow '{label}', which its router cannot return; it returns {sorted(outcomes)}")
    for outcome in sorted(outcomes - set(labels)):
        raise FlowError(
            f"the router of '{source}' can return '{outcome}', but no arrow is labelled so; there are {sorted(labels)}"
        )
    if len(labels) != len(set(labels)):
        raise FlowError(f"'{source}' has two arrows with one label: {sorted(labels)}")


def _chained(wiring: Wiring, builder: StateGraph[Any, Any, Any, Any]) -> Wiring:
    out, into = Counter(e.source for e in wiring.edges), Counter(e.target for e in wiring.edges)
    links = {name for name, node in wiring.nodes.items() if _chainable(node)}
    follows = {
        e.source: e.target
        for e in wiring.edges
        if not e.label and not e.dotted and {e.source, e.target} <= links and out[e.source] == into[e.target] == 1
    }
    heads = [name for name in wiring.nodes if name not in follows.values()]
    reducers = _reducers(builder.state_schema)
    nodes: dict[str, Node] = {}
    first, last = {}, {}
    for head in heads:
        names = [head]
        while names[-1] in follows:
            names.append(follows[names[-1]])
        name = "+".join(names)
        first[head], last[names[-1]] = name, name
        nodes[name] = Chain(tuple(wiring.nodes[n] for n in names), reducers) if len(names) > 1 else wiring.nodes[head]
    edges = [
        Edge(last.get(e.source, e.source), first.get(e.target, e.target), e.label, e.dotted)
        for e in wiring.edges
        if follows.get(e.source) != e.target
    ]
    routers = {last[source]: router for source, router in wiring.routers.items()}
    fan_outs = {last.get(source, source): fan_out for source, fan_out in wiring.fan_outs.items()}
    return Wiring(nodes, edges, routers, fan_outs)


def _reducers(schema: type) -> dict[str, Callable[[Any, Any], Any]]:
    hints = get_type_hints(schema, include_extras=True)
    return {
        key: get_args(hint)[-1] for key, hint in hints.items() if get_origin(hint) is Annotated and callable(get_args(hint)[-1])
    }


def draw(graph: CompiledStateGraph[Any, Any, Any, Any], direction: str = "LR") -> str:
    """Any compiled graph as a flowchart that `parse` reads; a branch without labels gets its target's name as label."""
    drawn = graph.get_graph()
    ends = {START: "START", END: "END"}
    lines = [f"flowchart {direction}"]
    for source, target, data, conditional in drawn.edges:
        label = str(data) if data is not None else (target.strip("_") if conditional else "")
        arrow = f"-->|{label}|" if conditional else "-->"
        lines.append(f"  {ends.get(source, source)} {arrow} {ends.get(target, target)}")
    return "\n".join(lines) + "\n"
