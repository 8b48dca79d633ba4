"""A check of what nodes read and write: each channel that a node cannot do without has to be written before the node runs for the first
time, and somebody has to read what a node writes.

It raises no false alarm on purpose: a node whose types do not say what it writes may write anything, one whose type is the graph's
whole state says nothing, and where the graph's input is not told apart from its state, anything may be given to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph._node import StateNodeSpec
from langgraph.graph.state import CompiledStateGraph

from ...memory.errors import did_you_mean
from ...nodes.channels import NodeChannels, node_channels
from .arrows import Finding, Wiring, closure

__all__ = []

PACKAGE = __name__.partition(".")[0] + "."


def find_missing(wiring: Wiring, builder: StateGraph[Any, Any, Any, Any]) -> list[Finding]:
    """The channels that nodes and routers read before anything can have written them, each with its line."""
    known = {name: _channels(node) for name, node in wiring.nodes.items()}
    unread = _unread(wiring, builder, known)
    if unread or builder.input_schema is builder.state_schema:
        return unread
    given = set(builder.schemas[builder.input_schema])
    given |= {name for name, channel in builder.channels.items() if channel.is_available()}  # a reducer starts empty
    arrows = [(edge.source, edge.target) for edge in wiring.edges]
    alone = {edge.target for edge in wiring.edges if wiring.kind(edge) == "fan-out"}  # these read a piece of work
    found = []

    def look(reader: str, name: str, channels: NodeChannels, before: Collection[str]) -> None:
        if channels.reads >= set(builder.schemas[builder.state_schema]) or any(known[node].is_open for node in before):
            return
        for channel in sorted(channels.needs - given):
            if not any(channel in known[node].writes for node in before):
                later = [f"'{node}'" for node in known if channel in known[node].writes and node != name]
                places = [f"{' and '.join(later)} in this drawing, but later"] if later else []
                places += [", ".join(writers_in_catalogue(channel))] if writers_in_catalogue(channel) else []
                hint = f"; these nodes write it: {'; '.join(places)}" if places else "; no node that is known writes it"
                line = wiring.lines.get(name, 0)
                found.append(Finding(line, f"{reader} reads `{channel}`, which no node before it writes{hint}"))

    for name in ("START", *known):
        before = closure("START", [arrow for arrow in arrows if arrow[0] != name]) - {name, "START", "END"}
        if name in known and name not in alone:
            look(f"'{name}'", name, known[name], before)
        for router in wiring.routers.get(name, ()):
            channels = node_channels(unwrap(router.path))
            look(f"the router of '{name}'", name, channels, before | {name} if name in known else set())
    return found


def _unread(wiring: Wiring, builder: StateGraph[Any, Any, Any, Any], known: Mapping[str, NodeChannels]) -> list[Finding]:
    """The nodes that write for nobody: no node or router reads any of their channels, and the graph does not give them out."""
    routers = [node_channels(unwrap(one.path)) for branchings in wiring.routers.values() for one in branchings]
    readers = [*known.values(), *routers]
    read = set(builder.schemas[builder.output_schema]).union(*(one.reads for one in readers))
    may_read_more = any(one.may_read_more for one in readers) or any(wiring.fan_outs)
    found, state = [], {*builder.channels}
    for name, one in known.items():
        plain = [channel for channel in sorted(one.writes) if not _starts_empty(builder, channel)]
        lost = [channel for channel in plain if channel not in state or (channel not in read and not may_read_more)]
        hints = {channel: did_you_mean(channel, state - one.writes) for channel in lost}
        is_ours = getattr(unwrap(wiring.nodes[name]), "__module__", "").startswith(PACKAGE)  # such are for states of many kinds
        misspelt = [channel for channel in lost if hints[channel] and channel not in state and not is_ours]
        if said := misspelt or (lost if lost == plain and not one.is_open else []):
            words = f"{' and '.join(f'`{channel}`' for channel in said)}, which {'is no channel of the state' if misspelt else 'no node reads'}"
            hint = next(filter(None, map(hints.get, said)), "")
            found.append(Finding(wiring.lines.get(name, 0), f"'{name}' writes {words}{hint}"))
    return found


def _starts_empty(builder: StateGraph[Any, Any, Any, Any], channel: str) -> bool:
    """True for a channel with a reducer, which adds up what many nodes write."""
    return channel in builder.channels and builder.channels[channel].is_available()


def _channels(node: Any) -> NodeChannels:
    node = unwrap(node)
    if isinstance(node, CompiledStateGraph):
        return NodeChannels(writes=frozenset(node.builder.schemas[node.builder.output_schema]))
    return node_channels(node)


def unwrap(node: Any) -> Any:
    """The node or router inside what LangGraph wraps around a function."""
    if isinstance(node, StateNodeSpec):
        node = node.runnable
    return getattr(node, "func", None) or getattr(node, "afunc", None) or node


@lru_cache(maxsize=256)
def writers_in_catalogue(channel: str) -> tuple[str, ...]:
    """Names of the project's own nodes that write a channel."""
    from ...nodes.catalogue import catalogue

    return tuple(entry.name for entry in catalogue() if channel in entry.writes and channel not in entry.reads)
