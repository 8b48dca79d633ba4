"""A graph is drawn as a Mermaid flowchart in the source, and the drawing is the wiring.

`wire` adds the nodes and edges of a drawing to a native LangGraph `StateGraph`; graphs/wiring/arrows.py says what each arrow means.
`to_mermaid` writes any compiled graph back as such a drawing, and `rewire` puts an edited one back onto the same nodes.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from inspect import signature
from types import MappingProxyType
from typing import Any, cast, get_type_hints

from langchain_core._api import suppress_langchain_beta_warning
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langchain_core.tools import BaseTool
from langgraph.graph import StateGraph
from langgraph.graph._node import StateNodeSpec
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict, is_typeddict

from ...memory.errors import UserError, did_you_mean, type_of
from ...memory.graph_input import InputError
from ...memory.storage.serializer import allow_records
from ...nodes.channels import node_schemas
from .arrows import (
    ENDS,
    Branching,
    Builder,
    FanOut,
    FanOutBranch,
    KnownFanOut,
    Node,
    Router,
    Wiring,
    arrow_label,
    command_targets,
    unwrap,
)
from .data_flow import is_misspelt
from .drawn import Graph, builder_behind, drawn_edges, read_wiring, to_mermaid, write_builder
from .guards import guard_arrows
from .joins import joins_to_watch, watch_joins
from .mermaid import Edge, Finding, FlowError, read_flow, shown_label
from .mistakes import find_mistakes, meant_names
from .node_errors import explaining, reading_node

__all__ = [
    "DrawnGraph",
    "Edge",
    "FanOut",
    "Finding",
    "FlowError",
    "Graph",
    "InputError",
    "Node",
    "Router",
    "check",
    "compile_graph",
    "drawn_edges",
    "read_flow",
    "rewire",
    "to_mermaid",
    "wire",
]

KEPT = ("checkpointer", "cache", "store", "debug", "name")
"""What an edited drawing keeps of its graph, beside pauses."""


def wire(
    builder: Builder,
    flow: str,
    nodes: Mapping[str, Node],
    routers: Mapping[str, Router] | None = None,
    fan_outs: Mapping[str, FanOut] | None = None,
    *,
    destinations: Mapping[str, Sequence[str]] | None = None,
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

    Raises:
        FlowError: a name without a node, a node that is not drawn, a label that the router cannot return or that is not
            drawn, a node that is not reached or from which END cannot be reached. It names all mistakes, one a line.
    """
    if not isinstance(builder, StateGraph):
        raise FlowError(
            f"wire takes a StateGraph first, and then the drawing; it got {type_of(builder)} first; rewire redraws a graph"
        )
    if isinstance(nodes, Mapping) and (known := [name for name in nodes if name in builder.nodes]):
        raise FlowError(f"the builder has a node '{known[0]}' already: give wire a new StateGraph; rewire redraws a graph")
    return _assemble(builder, _checked(_read_drawing(flow, nodes, routers, fan_outs, destinations), builder))


def _read_drawing(
    flow: str,
    nodes: Mapping[str, Node],
    routers: Mapping[str, Router] | None,
    fan_outs: Mapping[str, FanOut] | None,
    destinations: Mapping[str, Sequence[str]] | None,
) -> Wiring:
    if not isinstance(nodes, Mapping):
        raise FlowError(f"nodes are a dict of name -> node, such as {{'guess': guess}}, got {type_of(nodes)}")
    for name, given in (("routers", routers), ("fan_outs", fan_outs), ("destinations", destinations)):
        if not isinstance(given, Mapping | None):
            form = "['a', 'b']" if name == "destinations" else "choose"
            raise FlowError(f"{name} are a dict of node -> {name[:-1]}, such as {{'guess': {form}}}, got {type_of(given)}")
    chart = read_flow(flow)
    behind = _branchings(routers or {}, chart.edges), fan_outs or {}, _command_targets(nodes, destinations or {})
    return Wiring(dict(nodes), list(chart.edges), *behind, lines=chart.lines, deferred=chart.deferred)


def check(
    flow: str,
    nodes: Mapping[str, Node] | Graph,
    routers: Mapping[str, Router] | None = None,
    fan_outs: Mapping[str, FanOut] | None = None,
    *,
    destinations: Mapping[str, Sequence[str]] | None = None,
    builder: Builder | None = None,
    **further: Any,
) -> list[Finding]:
    """The mistakes of a drawing, each with its line: names, kinds, arrows, labels and channels, all that can be told at once.

    Args:
        flow: the drawing.
        nodes: name in the drawing -> node; or a compiled graph, whose nodes, routers and schemas then stand behind the drawing, as
            in `rewire`.
        routers: as in `wire`.
        fan_outs: as in `wire`.
        destinations: as in `wire`.
        builder: knows the state's and the input's schema; without it nothing is said about what nodes read.
        further: further nodes, or others in place of those of the same name, as in `rewire`.

    Raises:
        FlowError: the arguments are of the wrong kinds.
    """
    if not isinstance(flow, str):
        raise FlowError(f"check takes the drawing first, and then its nodes or graph; it got {type_of(flow)} first")
    try:
        if isinstance(nodes, CompiledStateGraph):
            wiring = _redrawn_wiring(nodes.builder, flow, further, routers or {}, fan_outs or {})
            builder = _bare(nodes.builder, further)
        else:
            nodes = {**nodes, **further} if isinstance(nodes, Mapping) else nodes
            wiring = _read_drawing(flow, nodes, routers, fan_outs, destinations)
    except FlowError as error:
        return error.findings
    return find_mistakes(wiring, builder, getattr(nodes, "builder", None))


def _branchings(routers: Mapping[str, Router], edges: Sequence[Edge]) -> dict[str, list[Branching]]:
    return {source: [Branching.from_router(source, router, edges)] for source, router in routers.items()}


def _command_targets(nodes: Mapping[str, Any], given: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    places = {
        name: tuple(ENDS.get(to, to) for to in given.get(name, ())) or command_targets(node) for name, node in nodes.items()
    }
    return {name: targets for name, targets in places.items() if targets}


def _checked(wiring: Wiring, builder: Builder, origin: Builder | None = None) -> Wiring:
    """The wiring, if there is no mistake in it."""
    if mistakes := find_mistakes(wiring, builder, origin):
        raise FlowError.of(mistakes)
    return wiring


def _assemble(builder: Builder, wiring: Wiring) -> Builder:
    """Add a wiring to `builder`, which is drawn from here on."""
    builder.__class__ = DrawnBuilder
    by_source: dict[str, list[Edge]] = {}
    for edge in wiring.edges:
        by_source.setdefault(edge.source, []).append(edge)
    for name, node in wiring.nodes.items():
        _add_node(builder, name, node, by_source.get(name, []), wiring)
    for join, target in dict.fromkeys((edge.join, edge.target) for edge in wiring.edges if edge.join):
        builder.add_edge(list(join), target)
    watched = cast(DrawnBuilder, builder).joins = joins_to_watch(builder, wiring)
    for source, arrows in by_source.items():
        start = ENDS.get(source, source)
        for edge in arrows:
            if wiring.kind(edge) == "plain" and not edge.join:
                builder.add_edge(start, ENDS.get(edge.target, edge.target))
        for router in wiring.routers.get(source, ()):
            chosen = [edge for edge in arrows if wiring.kind(edge) == "outcome" and arrow_label(edge) in router.outcomes]
            leads = {router.outcomes[arrow_label(edge)]: ENDS.get(edge.target, edge.target) for edge in chosen}
            if leads:
                builder.add_conditional_edges(start, router.path, leads)
        targets = tuple(ENDS.get(edge.target, edge.target) for edge in arrows if wiring.kind(edge) == "fan-out")
        if targets:
            fan_out = wiring.fan_outs[source]
            known = fan_out if isinstance(fan_out, KnownFanOut) else KnownFanOut(FanOutBranch(fan_out, targets), {})
            builder.add_conditional_edges(start, known.path, known.places(targets))
        guard_arrows(builder, wiring, source, watched)
    return builder


def _add_node(builder: Builder, name: str, node: Any, arrows: Sequence[Edge], wiring: Wiring) -> None:
    """Add a node that these arrows leave. The labels of those of its Commands are shown where they are not the target's name."""
    commands = [edge for edge in arrows if wiring.kind(edge) == "command"]
    ends = {ENDS.get(e.target, e.target): arrow_label(e) for e in commands}
    is_named = all(label == shown_label("", target) for target, label in ends.items())
    if isinstance(node, StateNodeSpec):
        node = replace(node, ends=tuple(ends) if is_named else ends) if commands else node
        builder.add_node(name, node.runnable, input_schema=node.input_schema)  # so that its channels are known here too
        builder.nodes[name] = node
    else:
        builder.add_node(name, cast(Any, node), destinations=(tuple(ends) if is_named else ends) or None)
    runs_on = len(commands) < len(arrows) or any(edge.target == "END" for edge in commands)
    runnable = reading_node(node, builder.nodes[name].runnable, builder, runs_on)
    builder.nodes[name] = replace(builder.nodes[name], runnable=runnable, **wiring.policies(name))


class DrawnGraph(Graph):
    """A graph that was drawn, compiled: LangGraph's limit of super-steps holds, however it is called.

    `batch`, `|`, `astream_events`, `RunnableParallel` and `with_fallbacks` pass LangChain's default limit on as if the user had
    given it, and 25 super-steps are two moves of a game. So 25 counts as not given here; any other limit holds.

    An input that misspells something is an `InputError`, and one on which a node fails, since it lacks something or has it of another type.
    In a notebook the graph shows its picture, drawn on this machine; LangGraph's own would ask a server for it.
    """

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
        with explaining(self, input, config):
            yield from super().stream(input, _without_default_limit(config), **options)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:
        with explaining(self, input, config):
            stream = cast(AsyncGenerator[Any, None], super().astream(input, _without_default_limit(config), **options))
            async with aclosing(stream) as inputs:
                async for part in inputs:
                    yield part

    def as_tool(self, *args: Any, **named: Any) -> BaseTool:
        """The graph as a tool, without LangChain's warning that this method is a beta."""
        with suppress_langchain_beta_warning():
            return super().as_tool(*args, **named)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        from .picture import picture

        return picture(self)._repr_mimebundle_()


class DrawnBuilder(Builder):
    """A builder that was drawn. Its graphs are an `DrawnGraph` each: they check their input, and show their picture."""

    joins: Sequence[str] = ()  # channels of the joins that may not wait for ever

    def compile(self, *args: Any, **options: Any) -> Graph:
        """The graph; arguments as for `StateGraph.compile`."""
        allow_records()
        compiled = super().compile(*args, **options)
        watch_joins(compiled.channels, self.joins)
        inputs = {name: value for name, value in vars(compiled).items() if name != "__orig_class__"}  # as `Pregel.copy` does
        return DrawnGraph(**inputs)


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
        UserError: there is no such option.
    """
    known = list(signature(StateGraph.compile).parameters)[1:]
    if wrong := next((name for name in options if name not in known), None):
        near = did_you_mean(wrong, known) or "; settings go into an object, such as build(inputs, JitRL(beta=3))"
        raise UserError(f"build has no option {wrong!r}{near}")
    if flow is not None or nodes:
        drawing = write_builder(builder) if flow is None else flow
        wiring, builder = _redrawn_wiring(builder, drawing, nodes or {}, {}, {}), _bare(builder, nodes or {})
        builder = _assemble(builder, _checked(wiring, builder))
    return builder.compile(**options).with_config(recursion_limit=1_000_000)


# An edited drawing


def rewire(
    graph: Graph,
    flow: str,
    routers: Mapping[str, Router] | None = None,
    fan_outs: Mapping[str, FanOut] | None = None,
    **replaced: Node | StateNodeSpec[Any],
) -> Graph:
    """The graph of an edited drawing, on the same nodes, routers, schemas, policies and checkpointer as those of `graph`.

    Nodes that are not drawn any more are left out, with their routers. The drawing says which nodes are deferred: `d:::deferred`.

    Args:
        graph: any compiled graph.
        flow: the drawing: that of `to_mermaid(graph)`, edited.
        routers: for nodes that decide anew: functions as in `wire`.
        fan_outs: the same for dotted arrows.
        replaced: further nodes, or others in place of those of the same name, which keep its policies. They bring the channels with
            them that their types name, those of another graph's `builder.nodes` that graph's.

    Raises:
        FlowError: the drawing does not fit the nodes.
    """
    wiring = _redrawn_wiring(builder_behind(graph), flow, replaced, routers or {}, fan_outs or {})
    for name in replaced.keys() - wiring.lines:
        if name in KEPT:
            raise FlowError(
                f"'{name}' is no node of the drawing: rewire keeps that of the graph; another one goes into a copy, "
                f"rewire(graph, flow).copy({{'{name}': ...}})"
            )
    builder = _bare(graph.builder, replaced)
    return recompile(graph, _checked(wiring, builder, graph.builder), builder)


def recompile(graph: Graph, wiring: Wiring, builder: Builder | None = None) -> Graph:
    """The graph of another wiring, with the schemas (or those of an empty builder), policies and checkpointer of `graph`."""
    builder = _assemble(builder or _bare(graph.builder), wiring)
    options = {name: getattr(graph, name) for name in KEPT}
    for when in ("interrupt_before", "interrupt_after"):
        pauses = getattr(graph, f"{when}_nodes")
        options[when] = pauses if isinstance(pauses, str) else [name for name in pauses if name in builder.nodes]
    compiled = builder.compile(**options)
    return compiled.with_config(graph.config) if graph.config else compiled


def _bare(builder: Builder, lent: Mapping[str, Any] = MappingProxyType({})) -> Builder:
    """A copy of `builder` without nodes and arrows, whose state has the channels of the nodes that are lent to it, too."""
    fresh = copy(builder)
    fresh.nodes = {name: spec for name, spec in builder.nodes.items() if spec.is_error_handler}
    fresh.edges, fresh.waiting_edges, fresh.branches, fresh.compiled = set(), set(), defaultdict(dict), False
    fresh.schemas, fresh.channels, fresh.managed = dict(builder.schemas), dict(builder.channels), dict(builder.managed)
    if lent and is_typeddict(builder.state_schema):
        specs = [node.input_schema for node in lent.values() if isinstance(node, StateNodeSpec)]  # these know the reducers
        given = [*specs, *(schema for node in lent.values() for schema in node_schemas(unwrap(node)))]
        known = {name: hint for schema in reversed(given) for name, hint in get_type_hints(schema, include_extras=True).items()}
        own = get_type_hints(builder.state_schema, include_extras=True)
        known = {name: hint for name, hint in known.items() if not is_misspelt(name, lent.values(), own)}
        fresh.state_schema = TypedDict("State", {**known, **own})  # type: ignore[misc]
        fresh.state_schema.extends = builder.state_schema  # an input of that schema is one of the whole state still
        fresh._add_schema(fresh.state_schema)
    return fresh


def _redrawn_wiring(
    builder: Builder,
    flow: str,
    replaced: Mapping[str, Node | StateNodeSpec[Any]],
    routers: Mapping[str, Router],
    fan_outs: Mapping[str, FanOut],
) -> Wiring:
    """The wiring of another drawing on the nodes of `builder`."""
    if wrong := [name for name, node in replaced.items() if isinstance(node, Mapping | list | tuple)]:
        raise FlowError(f"further nodes are given by their names, such as x=node; got {wrong[0]}={type_of(replaced[wrong[0]])}")
    known, chart = read_wiring(builder), read_flow(flow)
    meant = meant_names(chart.edges, chart.lines.keys(), {*known.nodes, *replaced, *ENDS}) or {}
    labelled = {meant.get(edge.source, edge.source) for edge in chart.edges if edge.label or edge.dotted}
    dotted = {meant.get(edge.source, edge.source) for edge in chart.edges if edge.dotted}
    drawn = {*chart.nodes, *meant.values()}
    nodes: dict[str, Any] = {name: known.nodes[name] for name in known.nodes if name in drawn} | dict(replaced)
    places = {name: known.destinations[name] for name in known.destinations.keys() & nodes.keys() - replaced.keys()}
    return Wiring(
        nodes,
        list(chart.edges),
        {source: known.routers[source] for source in known.routers if source in labelled} | _branchings(routers, chart.edges),
        {source: fan_out for source, fan_out in known.fan_outs.items() if source in dotted - routers.keys()} | dict(fan_outs),
        places | _command_targets(replaced, {}),
        known.nodes.keys() - nodes.keys(),
        chart.lines,
        chart.deferred,
        {name: known.nodes[name] for name in known.nodes.keys() & replaced if not isinstance(replaced[name], StateNodeSpec)},
    )
