"""A graph is drawn as a Mermaid flowchart in the source, and the drawing is the wiring.

`wire` adds the nodes and edges of a drawing to a native LangGraph `StateGraph`. `to_mermaid` writes any compiled graph back as such
a drawing. These parts of Mermaid are read: chains `a --> b --> c`, labels `a -->|over| b` that are the outcomes of a router function,
dotted edges `a -.-> b` for a fan-out (one `b` for every piece of work that a function hands out), and `%%` comments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from ...memory.errors import UserError
from .chain import Chain, find_links

Node = Callable[[Any], Any] | Runnable[Any, Any]
Router = Callable[[Any], str]
FanOut = Callable[[Any], Iterable[Mapping[str, Any]]]

_EDGE = re.compile(r"\s*(-->|-\.->)\s*(?:\|([^|]*)\|\s*)?")
_NAME = r"[^\W\d][\w+]*(?:[.-][\w+]+)*"
_NODE = re.compile(rf'({_NAME})(?:\["([^"]+)"\])?')
_ENDS = {"START": START, "END": END}


class FlowError(UserError, ValueError):
    """A drawing that cannot be read, or that does not fit its nodes and routers."""


class Edge(NamedTuple):
    """One arrow of a drawing."""

    source: str
    target: str
    label: str = ""
    dotted: bool = False


def parse_flow(flow: str) -> list[Edge]:
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
    doubled = [edge for edge, n in Counter(edges).items() if n > 1]
    if doubled:
        raise FlowError(f"this arrow is drawn twice: {tuple(doubled[0][:3])}")
    return edges


def _chain(line: str) -> list[Edge]:
    edges, at = [], 0
    node = _NODE.match(line)
    while node:
        source, at = _read(node), node.end()
        arrow = _EDGE.match(line, at)
        if not arrow:
            break
        at = arrow.end()
        node = _NODE.match(line, at)
        if node:
            label = (arrow.group(2) or "").strip()
            edges.append(Edge(source, _read(node), label, arrow.group(1) == "-.->"))
    if not edges or at < len(line) or node is None:
        raise FlowError(f"cannot read {line[at:] or line!r} in the line {line!r}; lines look like 'a --> b -->|label| c'")
    return edges


def _read(node: re.Match[str]) -> str:
    """A node's name: the text in quotes if there is one, in which #34; is the character of that number."""
    return re.sub(r"#(\d+);", lambda found: chr(int(found.group(1))), node.group(2)) if node.group(2) else node.group(1)


@dataclass
class Wiring:
    """A drawing that was checked against its nodes."""

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
        nodes: name in the drawing -> node.
        routers: for each node with labelled arrows, a function from state to a label, with a `Literal` return type.
        fan_outs: for each node with dotted arrows, a function from state to the inputs of the nodes to start.
        chain: run nodes that follow each other without a choice as one super-step (graphs/wiring/chain.py). Same results, one
            checkpoint per chain; the drawing of the compiled graph then shows the chains. Async functions, graphs and nodes
            that take more than the state run on their own.

    Raises:
        FlowError: a name without a node, a node that is not drawn, a label that the router cannot return or that is not
            drawn, an unreachable node.
    """
    edges = parse_flow(flow)
    routers = routers or {}
    fan_outs = fan_outs or {}
    _check(edges, nodes, routers, fan_outs)
    wiring = Wiring(dict(nodes), edges, routers, fan_outs)
    if chain:
        wiring = _merge_chains(wiring, builder)
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
                builder.add_conditional_edges(start, FanOutBranch(wiring.fan_outs[source], edge.target), [edge.target])
    return builder


class UnboundedGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled graph that may take as many super-steps as it needs, however it is called.

    `batch`, `|`, `astream_events`, `RunnableParallel` and `with_fallbacks` pass LangChain's default limit on as if the user had
    given it, and 25 super-steps are two moves of a game. So 25 counts as not given here; any other limit holds.
    """

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
        return super().stream(input, _without_default_limit(config), **options)

    def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:
        return super().astream(input, _without_default_limit(config), **options)


def _without_default_limit(config: RunnableConfig | None) -> RunnableConfig | None:
    if config is None or config.get("recursion_limit") != DEFAULT_RECURSION_LIMIT:
        return config
    return cast(RunnableConfig, {name: value for name, value in config.items() if name != "recursion_limit"})


def compile_graph(builder: StateGraph[Any, Any, Any, Any], **options: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Compile (options as for `StateGraph.compile`) a graph that may take as many super-steps as an episode needs.

    The environment's step limit ends an episode. LangGraph's own limit would cut it short inside a tool or an app.
    """
    compiled = builder.compile(**options)
    parts = {name: value for name, value in vars(compiled).items() if name != "__orig_class__"}  # as `Pregel.copy` does
    return UnboundedGraph(**parts).with_config(recursion_limit=1_000_000)


@dataclass(frozen=True)
class FanOutBranch:
    """The branch of a dotted arrow: it starts `target` once for every piece of work."""

    fan_out: FanOut
    target: str

    @property
    def __name__(self) -> str:  # LangGraph tells a node's branches apart by it
        return f"{getattr(self.fan_out, '__name__', 'fan_out')} to {self.target}"

    def __call__(self, state: Any) -> Sequence[Send]:
        return [Send(self.target, work) for work in self.fan_out(state)]


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


def _merge_chains(wiring: Wiring, builder: StateGraph[Any, Any, Any, Any]) -> Wiring:
    out, into = Counter(e.source for e in wiring.edges), Counter(e.target for e in wiring.edges)
    many = {e.target for e in wiring.edges if e.dotted}  # each runs many times at once, and what follows them once
    links = find_links({name: node for name, node in wiring.nodes.items() if name not in many}, builder)
    follows = {
        e.source: e.target
        for e in wiring.edges
        if not e.label and not e.dotted and {e.source, e.target} <= links.keys() and out[e.source] == into[e.target] == 1
    }
    heads = [name for name in wiring.nodes if name not in follows.values()]
    nodes: dict[str, Node] = {}
    first, last = {}, {}
    for head in heads:
        names = [head]
        while names[-1] in follows:
            names.append(follows[names[-1]])
        name = "+".join(names)
        first[head], last[names[-1]] = name, name
        nodes[name] = Chain(tuple(links[n] for n in names), builder.channels) if len(names) > 1 else wiring.nodes[head]
    edges = [
        Edge(last.get(e.source, e.source), first.get(e.target, e.target), e.label, e.dotted)
        for e in wiring.edges
        if follows.get(e.source) != e.target
    ]
    routers = {last.get(source, source): router for source, router in wiring.routers.items()}
    fan_outs = {last.get(source, source): fan_out for source, fan_out in wiring.fan_outs.items()}
    return Wiring(nodes, edges, routers, fan_outs)


def to_mermaid(graph: CompiledStateGraph[Any, Any, Any, Any], direction: str = "LR") -> str:
    """The flowchart of any compiled graph, in the form that `parse_flow` reads.

    A branch without labels gets its target's name as label, a branch that does not say where it may lead leads everywhere,
    and a node that nothing leaves leads to END.
    """
    builder, ends = graph.builder, {START: "START", END: "END"}
    edges = {Edge(source, target) for source, target in builder.edges}
    edges |= {Edge(source, target) for sources, target in builder.waiting_edges for source in sources}
    for source, branches in builder.branches.items():
        for branch in branches.values():
            dotted = isinstance(getattr(branch.path, "func", None), FanOutBranch)
            leads = branch.ends or {name: name for name in (END, *builder.nodes) if name != source}
            edges |= {Edge(source, to, "" if dotted else _label(label, to), dotted) for label, to in leads.items()}
    for source, spec in builder.nodes.items():  # the targets of a node's Commands
        named = spec.ends.items() if isinstance(spec.ends, dict) else ((to, to) for to in spec.ends or ())
        edges |= {Edge(source, to, _label(label, to)) for to, label in named}
    left = {edge.target for edge in edges} - {edge.source for edge in edges} - {END}
    edges |= {Edge(name, END) for name in left}

    def place(edge: Edge) -> tuple[Any, ...]:  # START first, plain arrows to END last
        return (edge.target == END and not edge.label, edge.source != START, edge)

    lines = [f"flowchart {direction}"]
    for edge in sorted(edges, key=place):
        arrow = "-.->" if edge.dotted else f"-->|{edge.label}|" if edge.label else "-->"
        source, target = (ends.get(name) or _mermaid_name(name) for name in (edge.source, edge.target))
        lines.append(f"  {source} {arrow} {target}")
    return "\n".join(lines) + "\n"


def _label(label: Any, target: str) -> str:
    """A label that may stand between two bars; the target's name if there is none."""
    words = target.strip("_") if label in ("", target) else str(label)
    return re.sub("%+", "%", " ".join(words.replace("|", "/").split())) or "_"


def _mermaid_name(name: str) -> str:
    """A node's name as Mermaid takes it; any other than a plain one as an identifier with a text, `_my_node["my node"]`."""
    if re.fullmatch(_NAME, name) and name not in _ENDS:
        return name
    text = re.sub(r"[^\w .,()\[\]<>/+-]", lambda found: f"#{ord(found.group())};", name)
    plain = re.sub(r"\W+", "_", name)
    return f'_{plain}["{text}"]'
