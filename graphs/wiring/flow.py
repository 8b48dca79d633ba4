"""A graph is drawn as a Mermaid flowchart in the source, and the drawing is the wiring.

`wire` adds the nodes and edges of a drawing to a native LangGraph `StateGraph`; `draw` writes any compiled graph back as such
a drawing. The subset: chains `a --> b --> c`, labels `a -->|over| b` that are the outcomes of a router function, dotted edges
`a -.-> b` for a fan-out (one `b` for every piece of work that a function hands out), and `%%` comments.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, LastValue
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Overwrite, Send
from typing_extensions import is_typeddict

from ...memory.errors import UserError

Node = Callable[[Any], Any] | Runnable[Any, Any]
Router = Callable[[Any], str]
FanOut = Callable[[Any], Iterable[Mapping[str, Any]]]

_EDGE = re.compile(r"\s*(-->|-\.->)\s*(?:\|([^|]*)\|\s*)?")
_NAME = r"[^\W\d][\w+]*(?:[.-][\w+]+)*"
_NODE = re.compile(rf'({_NAME})(?:\["([^"]+)"\])?')
_ENDS = {"START": START, "END": END}


class FlowError(UserError, ValueError):
    """The drawing cannot be read, or does not fit the nodes and routers that came with it."""


class Edge(NamedTuple):
    """One arrow."""

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


class ChainLink(NamedTuple):
    """A node of a chain."""

    name: str
    node: Node
    reads: tuple[str, ...]
    """The channels that it sees: those of the schema it names, or all of the state's."""

    def invoke(self, state: Mapping[str, Any], config: RunnableConfig | None) -> Any:
        """Its update."""
        seen = {key: state[key] for key in self.reads if key in state}
        if isinstance(self.node, PlainLoop):
            return self.node.play(seen, config)
        return self.node.invoke(seen, config) if isinstance(self.node, Runnable) else self.node(seen)

    async def ainvoke(self, state: Mapping[str, Any], config: RunnableConfig | None) -> Any:
        """Its update; a function that may wait is called in a thread, as LangGraph calls all of them."""
        seen = {key: state[key] for key in self.reads if key in state}
        if isinstance(self.node, PlainLoop):
            return await self.node.aplay(seen, config)
        if isinstance(self.node, Runnable):
            return await self.node.ainvoke(seen, config)
        return await asyncio.to_thread(self.node, seen) if is_blocking(self.node) else self.node(seen)


def is_blocking(node: Any) -> bool:
    """Whether a node may keep others of its event loop waiting: for a world, a disk, a model in this process.

    It says so itself by its attribute `waits`. Without one, a node whose `role` is `compute` does not wait, and any other may.
    A call in a thread costs 0.1 ms and more, and a quick node takes less than that.
    """
    return bool(getattr(node, "is_blocking", getattr(node, "role", "") != "compute"))


@dataclass(frozen=True)
class Chain(Runnable[Any, Any]):
    """Nodes that follow each other without a choice, run as one super-step.

    LangGraph writes a checkpoint after every super-step, so a chain costs one checkpoint instead of one per node, and gives
    up pausing and resuming between its parts. Channels with a reducer add up as they would in separate super-steps.

    Raises:
        FlowError: a node returned something else than a dict or None; only LangGraph itself can carry out a Command.
    """

    links: tuple[ChainLink, ...]
    channels: Mapping[str, Any]
    """The builder's: name -> LangGraph channel, whose reducer says what an update does."""

    def _merge(self, link: ChainLink, state: dict[str, Any], updates: dict[str, list[Any]], update: Any) -> None:
        if not isinstance(update, dict | None):
            raise FlowError(
                f"node '{link.name}' is part of a chain and returned a {type(update).__name__}; a chained node returns a dict "
                "or None. Without chain=True it may return whatever LangGraph takes; so it may if its return type says "
                "Command[Literal[...]], which keeps it out of chains"
            )
        for key, value in (update or {}).items():
            channel = self.channels.get(key)
            if channel is None:
                continue  # as in LangGraph
            state[key] = _apply_update(channel, state, key, value)
            if type(channel) is LastValue:
                updates[key] = [value]
                continue
            # A reducer gets the updates one by one, since it need not be associative; after an Overwrite, the result.
            earlier = updates.get(key, [])
            doubled = earlier and any(map(_overwrites, (*earlier, value)))
            updates[key] = [Overwrite(state[key])] if doubled else [*earlier, value]

    def _out(self, updates: Mapping[str, Sequence[Any]]) -> Any:
        often = max(map(len, updates.values()), default=1)
        rounds = [{key: values[n] for key, values in updates.items() if n < len(values)} for n in range(often)]
        return rounds[0] if often == 1 else [Command(update=update) for update in rounds]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        state, updates = dict(input), dict[str, list[Any]]()
        for link in self.links:
            self._merge(link, state, updates, link.invoke(state, config))
        return self._out(updates)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        state, updates = dict(input), dict[str, list[Any]]()
        for link in self.links:
            self._merge(link, state, updates, await link.ainvoke(state, config))
        return self._out(updates)


def _apply_update(channel: Any, state: Mapping[str, Any], key: str, value: Any) -> Any:
    """What a channel holds after `value` was written to it."""
    if type(channel) is LastValue:
        return value
    now = channel.from_checkpoint(state[key]) if key in state else channel.copy()
    now.update([value])
    return now.get()


class PlainLoop(Runnable[Any, Any]):
    """A compiled graph played as a plain loop over its nodes, graphs within it too: for many rollouts at once.

    Same results, without what LangGraph's engine is for: checkpoints, streams, pauses, parallel branches, and the context that
    it gives to functions (config, store, stream writer). A super-step costs 0.2 to 0.5 ms there and 0.01 here.

    Raises:
        FlowError: the graph needs the engine; says what for.
    """

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
        builder = graph.builder
        self.name = graph.name
        self.channels = builder.channels
        self.plain_channels = {key for key, channel in self.channels.items() if type(channel) is LastValue}
        self.inputs = tuple(builder.schemas[builder.input_schema])
        self.outputs = tuple(builder.schemas[builder.output_schema])
        needs = [
            ("managed values", builder.managed),
            (
                "channels of other kinds",
                [c for c in self.channels.values() if type(c) not in (LastValue, BinaryOperatorAggregate)],
            ),
            ("joined branches", builder.waiting_edges),
            ("pauses", graph.interrupt_before_nodes or graph.interrupt_after_nodes),
        ]
        if wanted := [what for what, found in needs if found]:
            raise FlowError(f"{graph.name} cannot be played as a plain loop: it has {' and '.join(wanted)}")
        self.links = {name: self._links(name, spec, builder.schemas[spec.input_schema]) for name, spec in builder.nodes.items()}
        self.routes = {name: self._follows(graph, name) for name in (START, *builder.nodes)}

    def _links(self, name: str, spec: Any, schema: Iterable[str]) -> tuple[ChainLink, ...]:
        part, reads = spec.runnable, tuple(schema)
        if isinstance(part, Chain):
            return part.links
        if spec.ends or spec.retry_policy or spec.cache_policy:
            raise FlowError(
                f"node '{name}' cannot be played in a plain loop: it returns Commands, or has a retry or cache policy"
            )
        function = getattr(part, "func", None)
        if isinstance(part, CompiledStateGraph):
            return (ChainLink(name, PlainLoop(part), reads),)
        return (ChainLink(name, function if function is not None and _chainable(function) else part, reads),)

    def _follows(self, graph: CompiledStateGraph[Any, Any, Any, Any], name: str) -> tuple[Any, Mapping[Any, str]]:
        """The router after a node (None for a plain arrow), and where each of its outcomes leads."""
        targets = [target for source, target in graph.builder.edges if source == name]
        branches = [*graph.builder.branches.get(name, {}).values()]
        path = getattr(branches[0].path, "func", None) if len(branches) == 1 else None
        if len(targets) == 1 and not branches:
            return None, {None: targets[0]}
        if targets or path is None or isinstance(path, FanOutBranch):
            raise FlowError(
                f"{graph.name} cannot be played as a plain loop: more than one node, or a fan-out, may follow '{name}'"
            )
        return path, branches[0].ends or {target: target for target in (END, *graph.builder.nodes)}

    def _moves(self, input: Any) -> Generator[tuple[ChainLink, dict[str, Any]], Any, dict[str, Any]]:
        """Yields the next node with the state, is sent its update, returns the output."""
        state: dict[str, Any] = {}
        for key, channel in self.channels.items():
            if type(channel) is BinaryOperatorAggregate and channel.is_available():
                state[key] = channel.get()
        self._write({key: input[key] for key in self.inputs if key in input}, state)
        at = START
        while True:
            router, leads = self.routes[at]
            outcome = router(state) if router else None
            at = leads[outcome]
            if at == END:
                return {key: state[key] for key in self.outputs if key in state}
            for link in self.links[at]:
                update = yield link, state
                if not isinstance(update, dict | None):
                    raise FlowError(f"node '{link.name}' returned a {type(update).__name__}: a plain loop takes a dict or None")
                self._write(update or {}, state)

    def _write(self, update: Mapping[str, Any], state: dict[str, Any]) -> None:
        for key, value in update.items():
            if key in self.plain_channels:
                state[key] = value
            elif key in self.channels:
                state[key] = _apply_update(self.channels[key], state, key, value)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._call_with_config(cast(Any, self.play), input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._acall_with_config(cast(Any, self.aplay), input, config, **kwargs)

    def play(self, input: Any, config: RunnableConfig | None) -> Any:
        """Without a run of its own in traces."""
        moves = self._moves(input)
        update: Any = None
        while True:
            try:
                link, state = moves.send(update)
            except StopIteration as done:
                return done.value
            update = link.invoke(state, config)

    async def aplay(self, input: Any, config: RunnableConfig | None) -> Any:
        """The same; functions that may wait (`waits`) run in threads."""
        moves = self._moves(input)
        update: Any = None
        while True:
            try:
                link, state = moves.send(update)
            except StopIteration as done:
                return done.value
            update = await link.ainvoke(state, config)


def _overwrites(value: Any) -> bool:
    tag = "__overwrite__"
    return isinstance(value, Overwrite) or (isinstance(value, dict) and (tag in value or value.get("type") == tag))


def _links(nodes: Mapping[str, Node], builder: StateGraph[Any, Any, Any, Any]) -> dict[str, ChainLink]:
    """The nodes that can be links of a chain; the others run on their own, with the same results.

    A link is a sync function of the state alone or a Runnable that is not itself a graph, says of no Command what it may
    lead to, and reads nothing but channels of the state, which all must be plain values or have a reducer.
    """
    simple = all(type(channel) in (LastValue, BinaryOperatorAggregate) for channel in builder.channels.values())
    if builder.managed or not simple or not is_typeddict(builder.state_schema):
        return {}
    trial = StateGraph(builder.state_schema)  # what LangGraph makes of a node, found out without adding it
    found = {}
    for name, node in nodes.items():
        trial.add_node(name, cast(Any, node))
        spec = trial.nodes[name]
        reads = tuple(trial.schemas[spec.input_schema])
        whole = is_typeddict(spec.input_schema) and set(reads) <= trial.schemas[builder.state_schema].keys()
        if whole and not spec.ends and _chainable(node):
            found[name] = ChainLink(name, node, reads)
    return found


def _chainable(node: Node) -> bool:
    if isinstance(node, Runnable):
        return not isinstance(node, Pregel)
    for function in (node, type(node).__call__):
        if iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function):
            return False
    try:
        return len(signature(node).parameters) == 1
    except (TypeError, ValueError):  # written in C, or no function: LangGraph may know what to do with it
        return False


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
            checkpoint per chain; the drawing of the compiled graph then shows the chains. Async functions, graphs and nodes
            that take more than the state run on their own.

    Raises:
        FlowError: a name without a node, a node that is not drawn, a label that the router cannot return or that is not
            drawn, an unreachable node.
    """
    edges, routers, fan_outs = parse_flow(flow), routers or {}, fan_outs or {}
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


def compile_graph(builder: StateGraph[Any, Any, Any, Any], **options: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Compile (options as for `StateGraph.compile`) a graph that may take as many super-steps as an episode needs.

    The environment's step limit ends an episode. LangGraph's own limit would cut it short inside a tool or an app, where
    LangChain passes on its default of 25.
    """
    graph: CompiledStateGraph[Any, Any, Any, Any] = builder.compile(**options).with_config(recursion_limit=1_000_000)
    return graph


@dataclass(frozen=True)
class FanOutBranch:
    """What a dotted arrow is for LangGraph: a branch that starts `target` once for every piece of work."""

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
    links = _links({name: node for name, node in wiring.nodes.items() if name not in many}, builder)
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
    """Any compiled graph as a flowchart that `parse` reads.

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
    for source, spec in builder.nodes.items():  # where a node's Commands may lead
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
    """What may stand between two bars: the label, or the target's name if there is none."""
    words = target.strip("_") if label in ("", target) else str(label)
    return re.sub("%+", "%", " ".join(words.replace("|", "/").split())) or "_"


def _mermaid_name(name: str) -> str:
    """A node's name as Mermaid takes it; any other than a plain one as an identifier with a text, `_my_node["my node"]`."""
    if re.fullmatch(_NAME, name) and name not in _ENDS:
        return name
    text = re.sub(r"[^\w .,()\[\]<>/+-]", lambda found: f"#{ord(found.group())};", name)
    plain = re.sub(r"\W+", "_", name)
    return f'_{plain}["{text}"]'
