"""A check of what nodes read: each channel that a node cannot do without has to be written before the node runs for the first time.

It raises no false alarm on purpose: a node whose code does not say what it writes may write anything, and where the graph's input
is not told apart from its state, anything may be given to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph._node import StateNodeSpec
from langgraph.graph.state import CompiledStateGraph

from ...nodes.channels import NodeChannels, node_channels
from .arrows import Finding, Wiring, closure

__all__ = []


def find_missing(wiring: Wiring, builder: StateGraph[Any, Any, Any, Any]) -> list[Finding]:
    """The channels that nodes and routers read before anything can have written them, each with its line."""
    if builder.input_schema is builder.state_schema:
        return []
    known = {name: _channels(node) for name, node in wiring.nodes.items()}
    state = set(builder.channels).union(*(channels.declared for channels in known.values()))
    given = set(builder.schemas[builder.input_schema])
    given |= {name for name, channel in builder.channels.items() if channel.is_available()}  # a reducer starts empty
    arrows = [(edge.source, edge.target) for edge in wiring.edges]
    alone = {edge.target for edge in wiring.edges if wiring.kind(edge) == "fan-out"}  # these read a piece of work
    found = []
    for name, channels in known.items():
        before = closure("START", [arrow for arrow in arrows if arrow[0] != name]) - {name, "START", "END"}
        if name not in alone:
            found += _missing(wiring, f"'{name}'", name, channels.needs, known, before, given, state)
        found += _routers(wiring, name, known, before | {name}, given, state)
    return found + _routers(wiring, "START", known, set(), given, state)


def _routers(
    wiring: Wiring,
    name: str,
    known: Mapping[str, NodeChannels],
    before: Collection[str],
    given: Collection[str],
    state: Collection[str],
) -> list[Finding]:
    needs = [node_channels(unwrap(router.path)).needs for router in wiring.routers.get(name, ())]
    return [
        one for keys in needs for one in _missing(wiring, f"the router of '{name}'", name, keys, known, before, given, state)
    ]


def _missing(
    wiring: Wiring,
    reader: str,
    name: str,
    needs: Collection[str],
    known: Mapping[str, NodeChannels],
    before: Collection[str],
    given: Collection[str],
    state: Collection[str],
) -> list[Finding]:
    """The channels among `needs` that none of the nodes `before` writes."""
    line = wiring.lines.get(name, 0)
    found = []
    for channel in sorted(set(needs) - set(given)):
        writers = [node for node, channels in known.items() if channel in channels.writes and node != name]
        if channel not in state and not any(known[node].is_open for node in before):
            hint = f"; {_list(writers)} {'writes' if len(writers) == 1 else 'write'} it: add it to the state" if writers else ""
            found.append(Finding(line, f"{reader} reads `{channel}`, which is no channel of the state{hint}"))
        elif not any(channel in known[node].writes or known[node].is_open for node in before):
            places = [f"{_list(writers)} in this drawing, but later"] if writers else []
            places += [", ".join(writers_in_catalogue(channel))] if writers_in_catalogue(channel) else []
            hint = f"; these nodes write it: {'; '.join(places)}" if places else "; no node that is known writes it"
            found.append(Finding(line, f"{reader} reads `{channel}`, which no node before it writes{hint}"))
    return found


def _list(names: Collection[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


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
