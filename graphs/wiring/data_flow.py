"""A check of what nodes read and write: each channel that a node cannot do without has to be written before the node runs for the first
time, and somebody has to read what a node writes.

It raises no false alarm on purpose: a node whose types do not say what it writes may write anything, one whose type is the graph's
whole state says nothing, and where the graph's input is not told apart from its state, anything may be given to it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

from langgraph.graph._node import StateNodeSpec
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import is_typeddict

from ...memory.errors import did_you_mean, nearest
from ...memory.graph_input import are_alike, classes_of, type_hints, type_name
from ...nodes import state as states
from ...nodes.act.episode import START_VALUES
from ...nodes.channels import NodeChannels, node_channels, node_schemas, schema_channels
from ...nodes.state import AttemptState
from .arrows import Builder, Wiring, closure, unwrap
from .mermaid import Finding
from .node_order import MEMORIES, find_at_once, find_untimely, has_reducer

__all__ = []

FILLED_BY: Mapping[str, tuple[str, ...]] = {
    "LookUpQValues": ("UpdateQTable",),
    "Recall": ("Remember", "ReferenceRemember"),
    "RecallVisits": ("Remember", "ReferenceRemember"),
    "ReferenceRecall": ("ReferenceRemember", "Remember"),
    "Recollect": ("Push",),
    "Compose": ("Push",),
    "Consult": ("AddLessons",),
}
"""Node that looks something up in a memory -> the nodes that store it there."""
PACKAGE = __name__.partition(".")[0] + "."


def find_missing(wiring: Wiring, builder: Builder, origin: Builder | None = None, *, is_whole: bool = True) -> list[Finding]:
    """The channels that nodes write for nobody, take for another type, or read before anything can have written them, with their lines.

    The nodes of `origin`, the graph that was redrawn, write no channel that further nodes have brought. When nodes run is looked at if
    the drawing is whole.
    """
    known = _known_channels(wiring)
    found = [*(unread := _unread(wiring, builder, known)), *_mistyped(wiring, builder), *_unfilled(wiring)]
    if not is_whole or (unread and not unread[0].line):  # the state lacks channels
        return found
    found += find_at_once(wiring, builder, known)
    odd = frozenset[str]().union(*(one.writes for one in known.values() if unread)) - builder.channels.keys()
    given = set(builder.schemas[builder.input_schema])
    lent = set(builder.channels) - set(origin.channels) if origin else set()
    own = {id(spec) for spec in origin.nodes.values()} if origin else set()
    given |= {name for name, channel in builder.channels.items() if channel.is_available()}  # a reducer starts empty
    arrows = [(edge.source, edge.target) for edge in wiring.edges]
    alone = {edge.target for edge in wiring.edges if wiring.kind(edge) == "fan-out"}  # these read a piece of work
    lacks, starts = list[_Lack](), START_VALUES.keys() & frozenset().union(*(one.writes for one in known.values()))

    def look(reader: str, name: str, channels: NodeChannels, before: Collection[str]) -> None:
        if channels.reads >= set(builder.schemas[builder.state_schema]):
            return
        for channel in sorted(channels.needs - given):
            may = [
                node for node in before if known[node].is_open and (channel not in lent or id(wiring.nodes[node]) not in own)
            ]
            if not may and not any(channel in known[node].writes for node in before) and not nearest(channel, odd - {channel}):
                later = [f"'{node}'" for node in known if channel in known[node].writes and node != name]
                near = did_you_mean(channel, sorted(given.union(*(known[node].writes for node in before))))
                listed = ("Begin",) if channel in starts else writers_in_catalogue(channel)
                listed = () if near and not _is_ours(wiring.nodes.get(name)) else listed
                lacks.append(_Lack(wiring.lines.get(name, 0), reader, channel, later, listed, near))

    for name in ("START", *known):
        before = closure("START", [arrow for arrow in arrows if arrow[0] != name]) - {name, "START", "END"}
        if name in known and name not in alone:
            look(f"'{name}'", name, known[name], before)
        for router in wiring.routers.get(name, ()):
            channels = node_channels(unwrap(router.path))
            look(f"the router of '{name}'", name, channels, before | {name} if name in known else set())
    return found + _sum_up(lacks, starts) + find_untimely(wiring, builder, known, given, {one.channel for one in lacks})


class _Lack(NamedTuple):
    """A channel that is read before it is written: where, by whom, and who writes it later, could write it, or writes one like it."""

    line: int
    reader: str
    channel: str
    later: Sequence[str]
    listed: Sequence[str]
    near: str


def _sum_up(lacks: Sequence[_Lack], starts: Collection[str]) -> list[Finding]:
    """A sentence about all that one node would write, if it is much, and one about each further channel."""
    counts = Counter(writer for one in lacks for writer in (*one.later, *one.listed))
    cause, times = max(counts.items(), key=lambda item: item[1], default=("", 0))
    found = list[Finding]()
    if times > 2:
        caused = [one for one in lacks if cause in (*one.later, *one.listed)]
        readers, channels = (
            list(dict.fromkeys(all)) for all in zip(*((one.reader, f"`{one.channel}`") for one in caused), strict=True)
        )
        said = f"{', '.join(readers)} read{'s' * (len(readers) == 1)} what no node before writes: {', '.join(channels)}"
        found.append(Finding(min(one.line for one in caused), f"{said}; {cause} writes it: draw it before"))
        lacks = [one for one in lacks if one not in caused]
    for line, reader, channel, later, listed, near in lacks:
        places = [f"{' and '.join(later)} in this drawing, but later"] if later else []
        places += [", ".join(listed)] if listed else []
        hint = f"; these nodes write it: {'; '.join(places)}" if places else near or "; no node that is known writes it"
        if channel in starts:
            start = f'initial_values={{"{channel}": {START_VALUES[channel]!r}}}'
            hint = f"; inputs.node('Begin') does, and so does inputs.node('Begin', {start})"
        found.append(Finding(line, f"{reader} reads `{channel}`, which no node before it writes{hint}"))
    return found


def _unread(wiring: Wiring, builder: Builder, known: Mapping[str, NodeChannels]) -> list[Finding]:
    """The nodes that write for nobody: no node or router reads any of their channels, and the graph does not give them out; or what a
    node of ours writes for a prompt is in none."""
    from ...nodes.retrieve.attempts import PromptPart, channels_of_part  # an agent of LangChain has no attempts

    routers = [node_channels(unwrap(one.path)) for branchings in wiring.routers.values() for one in branchings]
    given = set(builder.schemas[builder.output_schema]).union(*(one.reads for one in routers))
    may_read_more = any(one.may_read_more for one in [*known.values(), *routers]) or any(wiring.fan_outs)
    prompts = [one for one in map(unwrap, wiring.nodes.values()) if getattr(getattr(one, "view", None), "shown_channels", None)]
    shown = schema_channels(list(map(channels_of_part, PromptPart.__subclasses__()))).reads
    given |= frozenset() if prompts else shown  # a uniform prior may stand in place of a model, which would read them
    clearing = {name for name in known if hasattr(unwrap(wiring.nodes[name]), "further_channels")}  # or recording
    read, state, found = given.union(*(one.reads for one in known.values())), {*builder.channels}, []
    for name, one in known.items():
        writes = one.writes
        if isinstance(unwrap(wiring.nodes[name]), CompiledStateGraph):  # LangGraph leaves out channels that only this graph has
            writes = writes & state or writes
        plain = [channel for channel in sorted(writes) if not has_reducer(builder, channel)]
        lost = [channel for channel in plain if channel not in state or (channel not in read and not may_read_more)]
        hints = {channel: did_you_mean(channel, state - one.writes) for channel in lost}
        is_ours = _is_ours(wiring.nodes[name])
        misspelt = [channel for channel in lost if hints[channel] and channel not in state and not is_ours]
        prompted = sorted(one.writes & shown) if is_ours and not may_read_more and name not in clearing else []
        if not given.union(*(known[other].reads for other in known.keys() - clearing - {name})).isdisjoint(prompted):
            prompted = []
        if said := misspelt or (lost if lost == plain and not one.is_open else prompted):
            if not misspelt and any(channel not in state and channel in read for channel in said):
                return [_wrong_state(builder, known, read, clearing)]
            words = " and ".join(f"`{channel}`" for channel in said)
            is_lacking = all(channel not in state for channel in said)
            fault = "no other node reads" if prompted else "no node reads"
            fault = "is no channel of the state" if misspelt else "the state lacks: add it there" if is_lacking else fault
            hint = next(filter(None, map(hints.get, said)), "; lend the node that proposes with it, too" if prompted else "")
            found.append(Finding(wiring.lines.get(name, 0), f"'{name}' writes {words}, which {fault}{hint}"))
    return found


def _unfilled(wiring: Wiring) -> list[Finding]:
    """The nodes that look up what no node of the drawing stores, in a memory that is empty. A node of the user's may store anything."""
    nodes = {name: unwrap(node) for name, node in wiring.nodes.items()}
    if any(isinstance(node, CompiledStateGraph) or not _is_ours(node) for node in nodes.values()):
        return []
    held = {name: [getattr(node, part) for part in MEMORIES if hasattr(node, part)] for name, node in nodes.items()}
    held = {name: [inner for one in all for inner in getattr(one, "memories", (one,))] for name, all in held.items()}
    found = list[Finding]()
    for name, node in nodes.items():
        writers = FILLED_BY.get(type(node).__name__, ())
        if not writers or not held[name] or len(memory := held[name][0]):
            continue
        drawn = [other for other, one in nodes.items() if type(one).__name__ in writers]
        stored = [one for other in drawn for one in held[other] if type(one) is type(memory)]
        if (stored or not drawn) and not any(one is memory for one in stored):
            said = f"'{name}' looks up what no node stores: draw {' or '.join(writers)} too, made from the same inputs"
            if drawn:
                fill = f"{' and '.join(map(repr, drawn))} fill{'s' * (len(drawn) == 1)}"
                said = f"'{name}' looks up another memory than {fill}; make them from the same inputs"
            found.append(Finding(wiring.lines.get(name, 0), f"{said}, or give it a memory that holds something"))
    return found


def _wrong_state(
    builder: Builder, known: Mapping[str, NodeChannels], read: Collection[str], clearing: Collection[str]
) -> Finding:
    """A sentence about a state that lacks what nodes write and nodes read, and the types that have it."""
    wanted = (
        set[str]().union(*(one.writes - START_VALUES.keys() | one.reads for one in known.values())) - builder.channels.keys()
    )
    lacking = {channel: [name for name in known if channel in known[name].writes] for channel in read - builder.channels.keys()}
    lacking = {channel: names for channel, names in sorted(lacking.items()) if names}
    state, of_episode = builder.state_schema, type_hints(AttemptState).keys()
    if wanted <= of_episode:
        is_part = builder.schemas[state].keys() <= of_episode
        made = (
            "StateGraph(learngraph.AttemptState, ...)" if is_part else f"class Mine({state.__name__}, learngraph.AttemptState)"
        )
        remedy = f"{made} has them"
    elif bases := _types_with(lacking):
        remedy = (
            f"class Mine({', '.join([state.__name__, *bases])}) has them; from learngraph.nodes.state import {', '.join(bases)}"
        )
    else:
        remedy = "add them to it"
    writers = dict.fromkeys(f"'{max(names, key=lambda name: name not in clearing)}'" for names in lacking.values())
    does = f"{' and '.join(writers)} write{'s' if len(writers) == 1 else ''}"
    words = " and ".join(f"`{channel}`" for channel in lacking)
    return Finding(0, f"the state {state.__name__} has no {words}, which {does} and a node reads; {remedy}")


def _types_with(channels: Collection[str]) -> list[str]:
    """The names of the TypedDicts of nodes/state.py that have these channels together; none if there are no such."""
    keys = {name: type_hints(one).keys() for name, one in vars(states).items() if is_typeddict(one)}
    left, bases = {*channels}, list[str]()
    while left:
        best = max(keys, key=lambda name: (len(left & keys[name]), -len(keys[name])))
        if left.isdisjoint(keys[best]):
            return []
        left -= keys[best]
        bases.append(best)
    return bases


def is_misspelt(channel: str, lent: Iterable[Any], own: Mapping[str, Any]) -> bool:
    """True if functions of the user's write a channel that none of them reads, and that a graph has under a name much like it."""
    nodes = [node_channels(node) for node in lent if not isinstance(node, StateNodeSpec) and not _is_ours(node)]
    written, read = (frozenset[str]().union(*(getattr(one, does) for one in nodes)) for does in ("writes", "reads"))
    return channel in written - read - own.keys() and bool(get_close_matches(channel, own, cutoff=0.8))


def _is_ours(node: Any) -> bool:
    """True for a node of the project: such are made for states of many kinds."""
    return str(getattr(unwrap(node), "__module__", "")).startswith(PACKAGE)


def _known_channels(wiring: Wiring) -> dict[str, NodeChannels]:
    """Name of a node -> its channels. A Begin that is made by its name writes the start of what another node of the drawing writes."""
    known = {name: _channels(node) for name, node in wiring.nodes.items()}
    begins = {name for name, node in wiring.nodes.items() if getattr(unwrap(node), "initial_values", None) is START_VALUES}
    alone = START_VALUES.keys() - frozenset().union(*(known[name].writes for name in known.keys() - begins))
    return {name: replace(one, writes=one.writes - alone) if name in begins else one for name, one in known.items()}


def _channels(node: Any) -> NodeChannels:
    node = unwrap(node)
    if isinstance(node, CompiledStateGraph):
        return NodeChannels(writes=frozenset(node.builder.schemas[node.builder.output_schema]))
    return node_channels(node)


@lru_cache(maxsize=256)
def writers_in_catalogue(channel: str) -> tuple[str, ...]:
    """Names of the project's own nodes that write a channel."""
    from ...nodes.catalogue import catalogue

    return tuple(entry.name for entry in catalogue() if channel in {*entry.writes} - ({*entry.reads} - START_VALUES.keys()))


def _mistyped(wiring: Wiring, builder: Builder) -> list[Finding]:
    """The channels whose type a node says to be one, and the state another that shares no value with it."""
    state, found = type_hints(builder.state_schema), list[Finding]()
    alone = {edge.target for edge in wiring.edges if wiring.kind(edge) == "fan-out"}
    for name in wiring.nodes.keys() - alone:
        for schema in node_schemas(unwrap(wiring.nodes[name])):
            for channel, hint in type_hints(schema).items():
                held = state.get(channel, Any)
                if not has_reducer(builder, channel) and not are_alike(classes_of(hint), classes_of(held)):
                    told = f"'{name}' takes `{channel}` for {type_name(hint)}, and the state holds {type_name(held)}"
                    found.append(Finding(wiring.lines.get(name, 0), told))
    return list(dict.fromkeys(found))  # what a node reads and writes stands in two schemas
