"""A graph is drawn as a Mermaid flowchart in the source, and the drawing is the wiring.

`wire` adds the nodes and edges of a drawing to a native LangGraph `StateGraph`; graphs/wiring/arrows.py says what each arrow means.
`to_mermaid` writes any compiled graph back as such a drawing, and `rewire` puts an edited one back onto the same nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.graph import END, START, StateGraph
from langgraph.graph._node import StateNodeSpec
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from .arrows import ENDS, Branching, FanOut, Node, Router, Wiring, arrow_label, command_targets, find_mistakes, returns_sends
from .chain import Chain, find_links
from .mermaid import Edge, FlowError, parse_flow, shown_label, write_flow

__all__ = [
    "Edge",
    "FanOut",
    "FanOutBranch",
    "FlowError",
    "Node",
    "Router",
    "UnboundedGraph",
    "compile_graph",
    "drawn_edges",
    "parse_flow",
    "rewire",
    "to_mermaid",
    "wire",
]

Builder = StateGraph[Any, Any, Any, Any]
Graph = CompiledStateGraph[Any, Any, Any, Any]


def wire(
    builder: Builder,
    flow: str,
    nodes: Mapping[str, Node],
    routers: Mapping[str, Router] | None = None,
    fan_outs: Mapping[str, FanOut] | None = None,
    *,
    destinations: Mapping[str, Sequence[str]] | None = None,
    chain: bool = False,
) -> Builder:
    """Add the drawing's nodes and edges to `builder`, and return it.

    Args:
        builder: a LangGraph builder that knows the state's schema.
        flow: the drawing.
        nodes: name in the drawing -> node.
        routers: for each node with labelled arrows, a function from state to a label, with a `Literal` return type.
        fan_outs: for each node with dotted arrows, a function from state to the inputs of the nodes to start, or to Sends.
        destinations: for each node that returns Commands, where they lead; not needed if its return type says so
            (`Command[Literal[...]]`).
        chain: run nodes that follow each other without a choice as one super-step (graphs/wiring/chain.py). Same results, one
            checkpoint per chain; the drawing of the compiled graph then shows the chains. Async functions, graphs and nodes
            that take more than the state run on their own.

    Raises:
        FlowError: a name without a node, a node that is not drawn, a label that the router cannot return or that is not
            drawn, a node that is not reached or from which END cannot be reached. It names all mistakes of one kind.
    """
    wiring = Wiring(
        dict(nodes),
        parse_flow(flow),
        {source: [Branching.from_router(source, router)] for source, router in (routers or {}).items()},
        fan_outs or {},
        _command_targets(nodes, destinations or {}),
    )
    return _assemble(builder, wiring, chain)


def _command_targets(nodes: Mapping[str, Any], given: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    places = {
        name: tuple(ENDS.get(to, to) for to in given.get(name, ())) or command_targets(node) for name, node in nodes.items()
    }
    return {name: targets for name, targets in places.items() if targets}


def _assemble(builder: Builder, wiring: Wiring, chain: bool) -> Builder:
    """Add a wiring to `builder` if there is no mistake in it."""
    if mistakes := find_mistakes(wiring):
        error = FlowError("\n".join(f"line {line}: {said}" if line else said for line, said in mistakes))
        error.line = mistakes[0].line
        raise error
    if chain:
        wiring = _merge_chains(wiring, builder)
    by_source: dict[str, list[Edge]] = {}
    for edge in wiring.edges:
        by_source.setdefault(edge.source, []).append(edge)
    for name, node in wiring.nodes.items():
        _add_node(builder, name, node, [e for e in by_source.get(name, ()) if wiring.kind(e) == "command"])
    joins = dict.fromkeys((edge.join, edge.target) for edge in wiring.edges if edge.join)
    for join, target in joins:
        builder.add_edge(list(join), target)
    for source, arrows in by_source.items():
        start = ENDS.get(source, source)
        for edge in arrows:
            if wiring.kind(edge) == "plain" and not edge.join:
                builder.add_edge(start, ENDS.get(edge.target, edge.target))
        for router in wiring.routers.get(source, ()):
            chosen = [edge for edge in arrows if wiring.branching(edge) is router]
            leads = {router.outcomes[arrow_label(edge)]: ENDS.get(edge.target, edge.target) for edge in chosen}
            if leads:
                builder.add_conditional_edges(start, router.path, leads)
        targets = tuple(ENDS.get(edge.target, edge.target) for edge in arrows if wiring.kind(edge) == "fan-out")
        if targets:
            fan_out = wiring.fan_outs[source]
            path = fan_out.path if isinstance(fan_out, Branching) else FanOutBranch(fan_out, targets)
            builder.add_conditional_edges(start, path, list(targets))
    return builder


def _add_node(builder: Builder, name: str, node: Any, commands: Sequence[Edge]) -> None:
    """Add a node; `commands` are the arrows of its Commands, whose labels are shown where they are not the target's name."""
    ends = {ENDS.get(e.target, e.target): arrow_label(e) for e in commands}
    is_named = all(label == shown_label("", target) for target, label in ends.items())
    if isinstance(node, StateNodeSpec):
        if commands:
            node = replace(node, ends=tuple(ends) if is_named else ends)
        builder.nodes[name] = node
    elif commands:
        builder.add_node(name, cast(Any, node), destinations=tuple(ends) if is_named else ends)
    else:
        builder.add_node(name, cast(Any, node))


@dataclass(frozen=True)
class FanOutBranch:
    """The branch of dotted arrows: it starts its targets once for every piece of work. Sends are passed on as they are."""

    fan_out: FanOut
    targets: tuple[str, ...]

    @property
    def __name__(self) -> str:  # LangGraph tells a node's branches apart by it
        return f"{getattr(self.fan_out, '__name__', 'fan_out')} to {' and '.join(self.targets)}"

    def __call__(self, state: Any) -> Sequence[Send]:
        pieces = list(self.fan_out(state))
        sends = [piece for piece in pieces if isinstance(piece, Send)]
        return sends + [Send(target, work) for target in self.targets for work in pieces if not isinstance(work, Send)]


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


def compile_graph(
    builder: Builder, *, flow: str | None = None, nodes: Mapping[str, Node] | None = None, **options: Any
) -> Graph:
    """Compile a graph that may take as many super-steps as an episode needs.

    The environment's step limit ends an episode. LangGraph's own limit would cut it short inside a tool or an app.

    Args:
        builder: the wired graph.
        flow: another drawing of it, with the same nodes or some of them; see `rewire`.
        nodes: further nodes for that drawing, or others in place of those of the same name.
        options: as for `StateGraph.compile`.

    Raises:
        FlowError: the drawing does not fit the nodes.
    """
    if flow is not None or nodes:
        builder = _redraw(builder, write_flow(_edges(builder)) if flow is None else flow, nodes or {})
    compiled = builder.compile(**options)
    parts = {name: value for name, value in vars(compiled).items() if name != "__orig_class__"}  # as `Pregel.copy` does
    return UnboundedGraph(**parts).with_config(recursion_limit=1_000_000)


# Chains


def _merge_chains(wiring: Wiring, builder: Builder) -> Wiring:
    out, into = Counter(e.source for e in wiring.edges), Counter(e.target for e in wiring.edges)
    many = {e.target for e in wiring.edges if wiring.kind(e) == "fan-out"}  # each runs many times, and what follows them once
    alone = many | wiring.destinations.keys()
    functions = {n: node for n, node in wiring.nodes.items() if n not in alone and not isinstance(node, StateNodeSpec)}
    links = find_links(functions, builder)
    follows = {
        e.source: e.target
        for e in wiring.edges
        if wiring.kind(e) == "plain" and {e.source, e.target} <= links.keys() and out[e.source] == into[e.target] == 1
    }
    heads = [name for name in wiring.nodes if name not in follows.values()]
    nodes: dict[str, Any] = {}
    first, last = {}, {}
    for head in heads:
        names = [head]
        while names[-1] in follows:
            names.append(follows[names[-1]])
        name = "+".join(names)
        first[head], last[names[-1]] = name, name
        nodes[name] = Chain(tuple(links[n] for n in names), builder.channels) if len(names) > 1 else wiring.nodes[head]
    edges = [
        replace(
            e,
            source=last.get(e.source, e.source),
            target=first.get(e.target, e.target),
            label=e.label or (arrow_label(e) if wiring.kind(e) == "outcome" else ""),
            join=tuple(last.get(one, one) for one in e.join),
        )
        for e in wiring.edges
        if follows.get(e.source) != e.target
    ]
    routers = {last.get(source, source): router for source, router in wiring.routers.items()}
    fan_outs = {last.get(source, source): fan_out for source, fan_out in wiring.fan_outs.items()}
    return Wiring(nodes, edges, routers, fan_outs, wiring.destinations)


# From a graph back to a drawing, and on


def to_mermaid(graph: Graph, direction: str = "LR") -> str:
    """The flowchart of any compiled graph, in the form that `parse_flow` reads: from START on, what has no choice in one line.

    A branch without labels gets its target's name as label, a branch that does not say where it may lead leads everywhere,
    and a node that nothing leaves leads to END.
    """
    return write_flow(_edges(graph.builder), direction)


def drawn_edges(graph: Graph) -> list[Edge]:
    """The arrows of any compiled graph, as `to_mermaid` draws them."""
    return _edges(graph.builder)


def _edges(builder: Builder) -> list[Edge]:
    names = {START: "START", END: "END"}
    nodes = [name for name, spec in builder.nodes.items() if not spec.is_error_handler]
    places = {name: n for n, name in enumerate([START, *nodes, END])}
    joins = [Edge(one, to, join=sources) for sources, to in sorted(builder.waiting_edges) for one in sources]
    edges = []
    for source in (START, *nodes):
        targets = [to for one, to in builder.edges if one == source]
        edges += [Edge(source, to) for to in sorted(targets, key=lambda to: places[to])]
        for branch in builder.branches.get(source, {}).values():
            path = _path_function(branch.path)
            dotted = isinstance(path, FanOutBranch) or returns_sends(path)
            leads = branch.ends or {name: name for name in (*nodes, END) if name != source}
            edges += [Edge(source, to, "" if dotted else shown_label(label, to), dotted) for label, to in leads.items()]
        ends = builder.nodes[source].ends if source in builder.nodes else ()  # the targets of a node's Commands
        named = ends.items() if isinstance(ends, dict) else ((to, to) for to in ends or ())
        edges += [Edge(source, to, shown_label(label, to)) for to, label in named]
        edges += [edge for edge in joins if edge.source == source and edge.target != END]
        edges += [Edge(source, END) for join in joins if join.source == source and join.target == END]
        if not any(edge.source == source for edge in edges) and source != START:
            edges.append(Edge(source, END))
    found = [
        replace(edge, source=names.get(edge.source, edge.source), target=names.get(edge.target, edge.target)) for edge in edges
    ]
    return list(dict.fromkeys(found))


def _path_function(path: Any) -> Any:
    """The function of a branch, without the Runnable that LangGraph wraps around it."""
    return getattr(path, "func", None) or getattr(path, "afunc", None) or path


def rewire(
    graph: Graph,
    flow: str,
    routers: Mapping[str, Router] | None = None,
    fan_outs: Mapping[str, FanOut] | None = None,
    **replaced: Node,
) -> Graph:
    """The graph of an edited drawing, on the same nodes, routers, schemas, policies and checkpointer as those of `graph`.

    Nodes that are not drawn any more are left out, with their routers. Chained nodes (`chain=True`) are drawn one by one.
    LangGraph's own drawings do not show joins: in one of those, two arrows of a join of `graph` stay one.

    Args:
        graph: any compiled graph.
        flow: the drawing: that of `to_mermaid(graph)`, edited.
        routers: for nodes that decide anew: functions as in `wire`.
        fan_outs: the same for dotted arrows.
        replaced: further nodes, or others in place of those of the same name.

    Raises:
        FlowError: the drawing does not fit the nodes.
    """
    builder = _redraw(graph.builder, flow, replaced, routers or {}, fan_outs or {})
    names = ("checkpointer", "cache", "store", "debug", "name")
    options = {name: getattr(graph, name) for name in names}
    for when in ("interrupt_before", "interrupt_after"):
        pauses = getattr(graph, f"{when}_nodes")
        options[when] = pauses if isinstance(pauses, str) else [name for name in pauses if name in builder.nodes]
    compiled = compile_graph(builder, **options) if isinstance(graph, UnboundedGraph) else builder.compile(**options)
    return compiled.with_config(graph.config) if graph.config else compiled


def _redraw(
    builder: Builder,
    flow: str,
    replaced: Mapping[str, Node],
    routers: Mapping[str, Router] | None = None,
    fan_outs: Mapping[str, FanOut] | None = None,
) -> Builder:
    """A copy of `builder` that is wired by another drawing."""
    known, chained = _read_wiring(builder)
    edges = parse_flow(flow)
    if "__start__" in flow:
        edges = [replace(e, join=_join_of(e, edges, known.edges)) if not e.label and not e.dotted else e for e in edges]
    drawn = {name for edge in edges for name in (edge.source, edge.target)}
    labelled = {edge.source for edge in edges if edge.label or edge.dotted}
    deciding = {source: known.routers[source] for source in known.routers if source in labelled}
    deciding |= {source: [Branching.from_router(source, router)] for source, router in (routers or {}).items()}
    dotted = {edge.source for edge in edges if edge.dotted}
    nodes = {name: node for name, node in known.nodes.items() if name in drawn} | dict(replaced)
    places = {name: known.destinations[name] for name in known.destinations.keys() & nodes.keys() - replaced.keys()}
    wiring = Wiring(
        nodes,
        edges,
        deciding,
        {source: fan_out for source, fan_out in known.fan_outs.items() if source in dotted} | dict(fan_outs or {}),
        places | _command_targets(replaced, {}),
    )
    fresh = copy(builder)
    fresh.nodes = {name: spec for name, spec in builder.nodes.items() if spec.is_error_handler}
    fresh.edges, fresh.waiting_edges, fresh.branches, fresh.compiled = set(), set(), defaultdict(dict), False
    fresh.schemas, fresh.channels, fresh.managed = dict(builder.schemas), dict(builder.channels), dict(builder.managed)
    return _assemble(fresh, wiring, chained)


def _join_of(edge: Edge, edges: Sequence[Edge], known: Sequence[Edge]) -> tuple[str, ...]:
    """The join that a plain arrow is part of: one of the graph, all of whose arrows are drawn."""
    sources = {one.source for one in edges if one.target == edge.target and not one.label and not one.dotted}
    fitting = (one.join for one in known if (one.source, one.target) == (edge.source, edge.target))
    return next((join for join in fitting if join and sources.issuperset(join)), edge.join)


def _read_wiring(builder: Builder) -> tuple[Wiring, bool]:
    """The nodes and branches of a builder, with chains taken apart; and whether there are chains."""
    nodes: dict[str, Any] = {}
    last, routers, fan_outs = {}, dict[str, list[Branching]](), dict[str, Any]()
    for name, spec in builder.nodes.items():
        if isinstance(spec.runnable, Chain):
            nodes |= {link.name: link.node for link in spec.runnable.links}
            last[name] = spec.runnable.links[-1].name
        elif not spec.is_error_handler:
            nodes[name] = spec
    for node, branches in builder.branches.items():
        source = "START" if node == START else last.get(node, node)
        for branch in branches.values():
            path = _path_function(branch.path)
            if isinstance(path, FanOutBranch) or returns_sends(path):
                if source in fan_outs:
                    raise FlowError(f"'{source}' has two fan-outs: a drawing cannot tell them apart")
                fan_outs[source] = path.fan_out if isinstance(path, FanOutBranch) else Branching(branch.path, {})
                continue
            leads = branch.ends or {name: name for name in (*builder.nodes, END)}
            outcomes = {shown_label(outcome, to): outcome for outcome, to in leads.items()}
            if len(outcomes) < len(leads):
                raise FlowError(f"the router of '{source}' has outcomes that look the same in a drawing: {list(leads)}")
            routers.setdefault(source, []).append(Branching(branch.path, outcomes, is_complete=bool(branch.ends)))
    ends = {name: tuple(spec.ends or ()) for name, spec in nodes.items() if isinstance(spec, StateNodeSpec) and spec.ends}
    return Wiring(nodes, _edges(builder), routers, fan_outs, ends), bool(last)
