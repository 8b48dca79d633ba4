"""Two ways to spend less time in LangGraph's engine, with the same results: transforms of a compiled graph.

`merge_steps(graph)` runs nodes that follow each other without a choice as one super-step. LangGraph writes a checkpoint after every
super-step, so merged nodes cost one checkpoint where they cost one each, and a run cannot pause or resume between them. A step of
JitRL, seven nodes, then takes 0.46 ms of LangGraph's own CPU time, and 0.95 ms with durable checkpoints
(tests/performance/bench_engine.py); unmerged, each node takes 0.2 to 0.5 ms.

`UncheckpointedGraph(graph)` plays the graph as a plain loop over its nodes, for many rollouts at once: a super-step takes 0.01 ms.
A rollout of one model call is three to five super-steps, and 100 of them at once against a server that answers within 50 ms leave one
process 0.5 ms for each. The loop reaches .36 to .43 of the ideal there (tests/performance/bench_rollouts.py); the
engine alone would use up more than the time there is.
"""

import asyncio
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any, NamedTuple, cast

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.channels import BinaryOperatorAggregate, LastValue
from langgraph.graph import END, START
from langgraph.graph._node import StateNodeSpec
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Overwrite
from typing_extensions import is_typeddict

from ...memory.errors import UserError, type_of
from ...nodes.drive import adrive, drive
from .arrows import FanOutBranch, Node, Wiring, arrow_label, unwrap
from .drawn import Graph, read_wiring
from .flow import recompile
from .guards import drawn_branches
from .mermaid import FlowError

__all__ = ["MergeError", "UncheckpointedGraph", "merge_steps"]


class MergeError(UserError, ValueError):
    """A merged node returned an update that only LangGraph itself can carry out."""


class _Link(NamedTuple):
    """A node that is called here and not by LangGraph, with the channels that it reads."""

    name: str
    node: Node
    reads: tuple[str, ...]

    def invoke(self, state: Mapping[str, Any], config: RunnableConfig | None) -> Any:
        """The node's update of the state."""
        visible = self.visible(state)
        return self.node.invoke(visible, config) if isinstance(self.node, Runnable) else self.node(visible)

    async def ainvoke(self, state: Mapping[str, Any], config: RunnableConfig | None) -> Any:
        """The node's update; a function that may block is called in a thread, as LangGraph calls all functions."""
        visible = self.visible(state)
        if isinstance(self.node, Runnable):
            return await self.node.ainvoke(visible, config)
        return await asyncio.to_thread(self.node, visible) if is_blocking(self.node) else self.node(visible)

    def visible(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the state that the node reads."""
        return {key: state[key] for key in self.reads if key in state}


def is_blocking(node: Any) -> bool:
    """True if a node may block its event loop: by a world, a disk, a model in this process.

    A node says so by its attribute `is_blocking`. Without one, a node whose `role` is `compute` does not block, and any other may.
    A call in a thread costs 0.1 ms and more; a quick node takes less than that.
    """
    return bool(getattr(node, "is_blocking", getattr(node, "role", "") != "compute"))


def _is_plain(node: Node) -> bool:
    """True for a sync function of one argument, and for a Runnable that is no graph."""
    if isinstance(node, Runnable):
        return not isinstance(node, Pregel)
    for function in (node, type(node).__call__):
        if iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function):
            return False
    try:
        return len(signature(node).parameters) == 1
    except (TypeError, ValueError):  # written in C, or no function: LangGraph may know what to do with it
        return False


def _apply_update(channel: Any, state: Mapping[str, Any], key: str, value: Any) -> Any:
    """The value of a channel after `value` was written to it."""
    if type(channel) is LastValue:
        return value
    now = channel.from_checkpoint(state[key]) if key in state else channel.copy()
    now.update([value])
    return now.get()


# Merged nodes


def merge_steps(graph: Graph) -> Graph:
    """The same graph with fewer super-steps: nodes in a row without a choice are merged, as `recall+propose`.

    Async functions, graphs, nodes with a pause, and nodes that take more than the state or return Commands run on their own. The
    nodes' names are joined in the picture, and an edited drawing belongs onto the graph before it is merged.
    """
    wiring, links = read_wiring(graph.builder), _links(graph)
    out, into = Counter(e.source for e in wiring.edges), Counter(e.target for e in wiring.edges)
    many = {e.target for e in wiring.edges if wiring.kind(e) == "fan-out"}  # each runs many times, and what follows them once
    many |= {*wiring.deferred}
    follows = {
        e.source: e.target
        for e in wiring.edges
        if wiring.kind(e) == "plain" and {e.source, e.target} <= links.keys() - many and out[e.source] == into[e.target] == 1
    }
    nodes: dict[str, Any] = {}
    first, last = {}, {}
    for head in (name for name in wiring.nodes if name not in follows.values()):
        names = [head]
        while names[-1] in follows:
            names.append(follows[names[-1]])
        name = "+".join(names)
        first[head], last[names[-1]] = name, name
        merged = _MergedNodes(tuple(links[n] for n in names), graph.builder.channels) if len(names) > 1 else wiring.nodes[head]
        nodes[name] = merged
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
    return recompile(graph, Wiring(nodes, edges, routers, fan_outs, wiring.destinations, deferred=wiring.deferred))


def _links(graph: Graph) -> dict[str, _Link]:
    """The nodes that can be merged, by name: they read channels of the state only, which are plain values or have a reducer."""
    builder = graph.builder
    simple = all(type(channel) in (LastValue, BinaryOperatorAggregate) for channel in builder.channels.values())
    if builder.managed or not simple or not is_typeddict(builder.state_schema):
        return {}
    state, pauses = builder.schemas[builder.state_schema].keys(), (graph.interrupt_before_nodes, graph.interrupt_after_nodes)
    found = {}
    for name, spec in builder.nodes.items():
        reads, node = tuple(builder.schemas[spec.input_schema]), _function(spec)
        alone = spec.ends or spec.is_error_handler or _has_policy(spec) or any(name in one or one == "*" for one in pauses)
        if not alone and is_typeddict(spec.input_schema) and set(reads) <= state and _is_plain(node):
            found[name] = _Link(name, node, reads)
    return found


def _function(spec: StateNodeSpec[Any, Any]) -> Any:
    """The function that a node calls, without what LangGraph wraps around it; a Runnable is itself."""
    return spec.runnable if isinstance(spec.runnable, RunnableLambda) else unwrap(spec)


def _has_policy(spec: StateNodeSpec[Any, Any]) -> bool:
    """True if LangGraph repeats the node or caches what it returns."""
    return bool(spec.retry_policy or spec.cache_policy)


@dataclass(frozen=True)
class _MergedNodes(Runnable[Any, Any]):
    """Nodes that run in turn within a super-step. Channels with a reducer add up as in separate super-steps."""

    links: tuple[_Link, ...]
    channels: Mapping[str, Any]
    """Name -> LangGraph channel of the builder, whose reducer applies updates."""

    def _merge(self, link: _Link, state: dict[str, Any], updates: dict[str, list[Any]], update: Any) -> None:
        if not isinstance(update, dict | None):
            raise MergeError(
                f"node '{link.name}' is merged with others and returned {type_of(update)}; a merged node returns a dict "
                "or None. Without merge_steps it may return whatever LangGraph takes; so it may if its return type says "
                "Command[Literal[...]], which keeps it on its own"
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
            doubled = earlier and any(map(_is_overwrite, (*earlier, value)))
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


def _is_overwrite(value: Any) -> bool:
    tag = "__overwrite__"
    return isinstance(value, Overwrite) or (isinstance(value, dict) and (tag in value or value.get("type") == tag))


# A graph without checkpoints


class _Loop(Runnable[Any, Any]):
    """A compiled graph, and the graphs within it, as a plain loop over its nodes, without an entry of its own in traces."""

    def __init__(self, graph: Graph) -> None:
        builder = graph.builder
        self.name = graph.name
        self.channels = builder.channels
        self.plain_channels = {key for key, channel in self.channels.items() if type(channel) is LastValue}
        self.inputs = tuple(builder.schemas[builder.input_schema])
        self.outputs = tuple(builder.schemas[builder.output_schema])
        others = [key for key, one in self.channels.items() if type(one) not in (LastValue, BinaryOperatorAggregate)]
        needs = {
            "managed values": builder.managed,
            "channels of other kinds": others,
            "joined branches": builder.waiting_edges,
            "pauses": graph.interrupt_before_nodes or graph.interrupt_after_nodes,
        }
        if wanted := [what for what, found in needs.items() if found]:
            raise FlowError(f"{graph.name} cannot be played without checkpoints: it has {' and '.join(wanted)}")
        self.links = {name: self._link(name, spec, builder.schemas[spec.input_schema]) for name, spec in builder.nodes.items()}
        self.routes = {name: self._route(graph, name) for name in (START, *builder.nodes)}

    def _link(self, name: str, spec: StateNodeSpec[Any, Any], schema: Iterable[str]) -> _Link:
        if spec.ends or _has_policy(spec) or isinstance(spec.runnable, _MergedNodes):
            raise FlowError(
                f"node '{name}' cannot be played without checkpoints: it returns Commands, has a retry or cache policy, or is made by "
                "merge_steps"
            )
        if isinstance(spec.runnable, CompiledStateGraph):
            return _Link(name, _Loop(spec.runnable), tuple(schema))
        function = _function(spec)
        return _Link(name, function if _is_plain(function) else cast(Node, spec.runnable), tuple(schema))

    def _route(self, graph: Graph, name: str) -> tuple[Any, Mapping[Any, str]]:
        """The router after a node (None for a plain arrow), and where each of its outcomes leads."""
        targets = [target for source, target in graph.builder.edges if source == name]
        branches = drawn_branches(graph.builder, name)
        path = getattr(branches[0].path, "func", None) if len(branches) == 1 else None
        if len(targets) == 1 and not branches:
            return None, {None: targets[0]}
        if targets or path is None or isinstance(path, FanOutBranch):
            raise FlowError(
                f"{graph.name} cannot be played without checkpoints: more than one node, or a fan-out, may follow '{name}'"
            )
        return path, branches[0].ends or {target: target for target in (END, *graph.builder.nodes)}

    def _moves(self, input: Any) -> Generator[tuple[_Link, dict[str, Any]], Any, dict[str, Any]]:
        """Generator of the nodes to run with the state before each; it is sent their updates, and returns the output."""
        state: dict[str, Any] = {}
        for key, channel in self.channels.items():
            if type(channel) is BinaryOperatorAggregate and channel.is_available():
                state[key] = channel.get()
        self._write({key: input[key] for key in self.inputs if key in input}, state)
        at = START
        while True:
            router, leads = self.routes[at]
            at = leads[router(state) if router else None]
            if at == END:
                return {key: state[key] for key in self.outputs if key in state}
            update = yield self.links[at], state
            if not isinstance(update, dict | None):
                raise FlowError(f"node '{at}' returned {type_of(update)}: without checkpoints a node returns a dict or None")
            self._write(update or {}, state)

    def _write(self, update: Mapping[str, Any], state: dict[str, Any]) -> None:
        for key, value in update.items():
            if key in self.plain_channels:
                state[key] = value
            elif key in self.channels:
                state[key] = _apply_update(self.channels[key], state, key, value)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return drive(self._moves(input), lambda link, state: link.invoke(state, config))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await adrive(self._moves(input), lambda link, state: link.ainvoke(state, config))


class UncheckpointedGraph(_Loop):
    """A compiled graph, and the graphs within it, as a plain loop over its nodes with the same results.

    It does without checkpoints, streams, pauses and parallel branches, and without the context that LangGraph gives to functions
    (config, store, stream writer).

    Raises:
        FlowError: the graph needs one of these; says which.
    """

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._call_with_config(super().invoke, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._acall_with_config(super().ainvoke, input, config, **kwargs)
