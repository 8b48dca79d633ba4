"""From a compiled graph back to its drawing: `to_mermaid` writes it, `read_wiring` finds the nodes and routers behind it."""

from dataclasses import replace
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.errors import type_of
from .arrows import Branching, Builder, FanOutBranch, KnownFanOut, Wiring, returns_literal, returns_sends, unwrap
from .guards import drawn_branches
from .mermaid import Edge, FlowError, shown_label, write_flow

__all__ = ["to_mermaid"]

Graph = CompiledStateGraph[Any, Any, Any, Any]
"""LangGraph's compiled graph, whatever its state is."""


def to_mermaid(graph: Graph, direction: str = "LR") -> str:
    """The flowchart of any compiled graph, in the form that `read_flow` reads: from START on, what has no choice in one line.

    A branch without labels gets its target's name as label, a branch that does not say where it may lead leads everywhere,
    and a node that nothing leaves leads to END. A node's Commands are seen where its return type or `destinations` names their targets, a
    branch's Sends where its return type does (`-> list[Send]`); without it the branch is drawn as a router.
    """
    return write_builder(builder_behind(graph), direction)


def drawn_edges(graph: Graph) -> list[Edge]:
    """The arrows of any compiled graph, as `to_mermaid` draws them."""
    return builder_edges(builder_behind(graph))


def builder_behind(graph: Any) -> Builder:
    """The builder of a compiled graph.

    Raises:
        FlowError: it is no compiled graph.
    """
    if not isinstance(graph, CompiledStateGraph):
        hint = "; call its compile() first" if isinstance(graph, StateGraph) else ""
        raise FlowError(f"a compiled graph is asked for, got {type_of(graph)}{hint}")
    return graph.builder


def write_builder(builder: Builder, direction: str = "LR") -> str:
    """The flowchart of a builder."""
    return write_flow(builder_edges(builder), direction, deferred_nodes(builder))


def deferred_nodes(builder: Builder) -> set[str]:
    """The names of the nodes that run when nothing else is left to run."""
    return {name for name, spec in builder.nodes.items() if spec.defer}


def builder_edges(builder: Builder) -> list[Edge]:
    """The arrows of a builder."""
    names = {START: "START", END: "END"}
    nodes = [name for name, spec in builder.nodes.items() if not spec.is_error_handler]
    places = {name: n for n, name in enumerate([START, *nodes, END])}
    joins = [Edge(one, to, join=sources) for sources, to in sorted(builder.waiting_edges) for one in sources]
    edges = []
    for source in (START, *nodes):
        targets = [to for one, to in builder.edges if one == source]
        edges += [Edge(source, to) for to in sorted(targets, key=lambda to: places[to])]
        for branch in drawn_branches(builder, source):
            path = unwrap(branch.path)
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


def read_wiring(builder: Builder) -> Wiring:
    """The nodes and branches of a builder."""
    nodes = {name: spec for name, spec in builder.nodes.items() if not spec.is_error_handler}
    routers, fan_outs = dict[str, list[Branching]](), dict[str, Any]()
    for node in builder.branches:
        source = "START" if node == START else node
        for branch in drawn_branches(builder, node):
            path = unwrap(branch.path)
            if isinstance(path, FanOutBranch) or returns_sends(path):
                if source in fan_outs:
                    raise FlowError(f"'{source}' has two fan-outs: a drawing cannot tell them apart")
                fan_outs[source] = (
                    path.fan_out if isinstance(path, FanOutBranch) else KnownFanOut(branch.path, branch.ends or {})
                )
                continue
            leads = branch.ends or {name: name for name in (*builder.nodes, END)}
            outcomes = {shown_label(outcome, to): outcome for outcome, to in leads.items()}
            if len(outcomes) < len(leads):
                raise FlowError(f"the router of '{source}' has outcomes that look the same in a drawing: {list(leads)}")
            may_stop = not returns_literal(path)
            routers.setdefault(source, []).append(Branching(branch.path, outcomes, bool(branch.ends), may_stop))
    ends = {name: tuple(spec.ends or ()) for name, spec in nodes.items() if spec.ends}
    return Wiring(dict(nodes), builder_edges(builder), routers, fan_outs, ends, deferred=deferred_nodes(builder))
