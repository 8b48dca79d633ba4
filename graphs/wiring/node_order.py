"""A check of when nodes run: too early, at the same time as another that writes the same, for nothing, or never.

It knows what each node reads and writes (nodes/channels.py), and follows the arrows of the drawing, as a run would.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from langgraph.channels import BinaryOperatorAggregate

from ...nodes.channels import NodeChannels, node_channels
from .arrows import Builder, Wiring, arrow_label, closure, unwrap
from .mermaid import Edge, Finding

__all__ = []

MEMORIES = "experiences", "buffer", "memory", "table", "library"
"""Names of the parts of nodes that are memories."""


def find_untimely(
    wiring: Wiring, builder: Builder, known: Mapping[str, NodeChannels], given: Collection[str], missing: Collection[str]
) -> list[Finding]:
    """The mistakes in the order of a drawing's nodes.

    Args:
        wiring: the drawing with what stands behind it.
        builder: knows the state's schema.
        known: name of a node -> its channels.
        given: the channels that the input has, or that a reducer starts.
        missing: the channels that nothing writes, as findings say already.
    """
    given = {*given, *missing}
    found = _early(wiring, builder, known, given) or _one_sided(wiring, builder, known, given)
    return found if found or missing else _overwritten(wiring, builder, known)


def has_reducer(builder: Builder, channel: str) -> bool:
    """True for a channel that adds up what many nodes write, also where it has no value to begin with."""
    found = builder.channels.get(channel)
    return isinstance(found, BinaryOperatorAggregate) or (found is not None and found.is_available())


def find_at_once(wiring: Wiring, builder: Builder, known: Mapping[str, NodeChannels]) -> list[Finding]:
    """The nodes that plain arrows lead to within one superstep, and that write the same channel each time: one without a reducer."""
    plain, state = [edge for edge in wiring.edges if wiring.kind(edge) == "plain"], set(builder.schemas[builder.state_schema])
    written = {
        name: {one for one in channels.must_write & state if not has_reducer(builder, one)}
        for name, channels in known.items()
        if not channels.must_write >= state  # a node whose type is the whole state says nothing
    }
    pieces = {(edge.source, edge.target) for edge in wiring.edges if wiring.kind(edge) == "fan-out"}
    said = "'{}' runs once for every piece of work of '{}', and writes `{}`; give the channel a reducer"
    many = [(wiring.lines.get(b, 0), said.format(b, a, min(written[b]))) for a, b in sorted(pieces) if written.get(b)]
    if many:
        return [Finding(*one) for one in many]
    found = set[tuple[str, str, str]]()
    for start in ("START", *known):
        for active in _supersteps(start, plain, known):
            pairs = ((one, two) for one in active & written.keys() for two in active & written.keys() if one < two)
            found |= {(one, two, min(both)) for one, two in pairs if (both := written[one] & written[two])}
    remedy = "draw one behind the other, or give the channel a reducer"
    return [
        Finding(wiring.lines.get(one, 0), f"'{one}' and '{two}' run at the same time, and both write `{both}`; {remedy}")
        for one, two, both in sorted(found)
    ]


def _early(wiring: Wiring, builder: Builder, known: Mapping[str, NodeChannels], given: Collection[str]) -> list[Finding]:
    """The nodes that run too early: in the supersteps from START up to the first choice, which no run can avoid."""
    plain = [edge for edge in wiring.edges if wiring.kind(edge) == "plain"]
    chooses = {edge.source for edge in wiring.edges if edge not in plain}.union(
        wiring.routers, wiring.fan_outs, wiring.destinations
    )
    written, found = set(given), list[Finding]()
    for active in _supersteps("START", plain, known):
        for name in sorted(active - {"START"}):
            line = wiring.lines.get(name, 0)
            if known[name].reads < set(builder.schemas[builder.state_schema]):
                found += [
                    Finding(line, f"'{name}' runs before `{channel}` is written: an arrow leads to it too early")
                    for channel in sorted(known[name].needs - written)
                ]
        if found or active & chooses or any(known[one].is_open for one in active - {"START"}):
            return found
        written |= set[str]().union(*(known[one].writes for one in active - {"START"}))
    return found


def _supersteps(start: str, plain: Collection[Edge], known: Collection[str]) -> Iterator[set[str]]:
    """The names of the nodes that run at the same time, superstep by superstep, where plain arrows lead on from one of them."""
    active, done, seen = {start}, {start}, set[frozenset[str]]()
    while active and frozenset(active) not in seen:
        seen.add(frozenset(active))
        yield active
        ready = [edge for edge in plain if edge.source in active and done.issuperset(edge.join)]
        active = {edge.target for edge in ready}.intersection(known)
        done |= active


def _one_sided(wiring: Wiring, builder: Builder, known: Mapping[str, NodeChannels], given: Collection[str]) -> list[Finding]:
    """The nodes to which one choice leads past all nodes that write what they cannot do without. With two choices on the way, the second
    may know of the first; a loop may have been there before."""
    arrows = [(edge.source, edge.target) for edge in wiring.edges]
    after = {name: closure(name, arrows) for name in ("START", *known)}
    loops = {name for name in known if any(name in after.get(target, ()) for source, target in arrows if source == name)}
    alone = {edge.target for edge in wiring.edges if wiring.kind(edge) == "fan-out"}

    def choice_past(writers: Collection[str], reader: str) -> Edge | None:
        pending, seen = list[tuple[str, Edge | None]]([("START", None)]), set[Any]()
        while pending:
            name, choice = here = pending.pop()
            if here in seen or name in loops:
                continue
            seen.add(here)
            out = [edge for edge in wiring.edges if edge.source == name]
            for edge in out:
                kind, beside = wiring.kind(edge), [one.target for one in out if one is not edge and wiring.kind(one) == "plain"]
                leads_past = edge.target not in writers and not edge.join
                if kind == "plain" and any(not after.get(one, set()).isdisjoint(writers) for one in beside):
                    leads_past = False  # a writer runs at the same time
                if leads_past and (kind == "plain" or (kind == "outcome" and choice is None)):
                    made = edge if kind == "outcome" else choice
                    if edge.target == reader and made is not None:
                        return made
                    if edge.target in known:
                        pending.append((edge.target, made))
        return None

    found = list[Finding]()
    for name in known.keys() - alone:
        if known[name].reads >= set(builder.schemas[builder.state_schema]):
            continue
        for channel in sorted(known[name].needs.difference(given)):
            writers = {node for node in known.keys() - {name} if known[node].is_open or channel in known[node].writes}
            if writers and (made := choice_past(writers, name)) is not None:
                where = f"nothing has written where '{made.source}' leads by '{arrow_label(made)}'"
                remedy = f"write it there too, or make it NotRequired in the type of '{name}'"
                found.append(Finding(wiring.lines.get(name, 0), f"'{name}' reads `{channel}`, which {where}; {remedy}"))
    return found


def _overwritten(wiring: Wiring, builder: Builder, known: Mapping[str, NodeChannels]) -> list[Finding]:
    """The nodes whose work is lost: on every way, all that they write is written anew before a node reads it, or nobody reads it.

    These are the live variables of compilers; the next run on a thread finds what the last one left. What is only recorded is not read.
    Nothing is said where nodes run at the same time.
    """
    routers = {name: [node_channels(unwrap(one.path)) for one in found] for name, found in wiring.routers.items()}
    is_open = any(one.may_read_more for found in routers.values() for one in found)
    is_open |= any(one.may_read_more or one.is_open for one in known.values())
    plain = [edge.source for edge in wiring.edges if wiring.kind(edge) == "plain"]
    is_other = any(wiring.kind(edge) not in ("plain", "outcome") for edge in wiring.edges)
    if is_open or is_other or len(plain) > len(set(plain)):
        return []
    nodes = {name: unwrap(wiring.nodes[name]) for name in known}
    reads = {
        name: one.needs | one.reads.difference(getattr(nodes[name], "journal_channels", ())) for name, one in known.items()
    }
    adding = {name for name in builder.channels if has_reducer(builder, name)}
    sure = {name: one.must_write.union(getattr(nodes[name], "further_channels", ())) - adding for name, one in known.items()}
    after = {name: [edge.target for edge in wiring.edges if edge.source == name] for name in ("START", *known)}
    live = {"END": set(builder.schemas[builder.output_schema]), **{name: set[str]() for name in known}}

    def live_after(name: str) -> set[str]:
        return set[str]().union(*(live[one] for one in after[name]), *(one.reads for one in routers.get(name, ())))

    for _ in range(2 * len(known)):  # the longest way through two runs
        ended = live["END"] | live_after("START")
        live = {"END": ended, **{name: {*reads[name]} | (live_after(name) - sure[name]) for name in known}}
    found = list[Finding]()
    for name, one in known.items():
        readers = [f"'{other}'" for other in known if other != name and not reads[other].isdisjoint(one.writes)]
        keeps = any(hasattr(nodes[name], part) for part in MEMORIES)  # its work is what it stores
        if readers and one.must_write and one.writes.isdisjoint(live_after(name)) and not keeps:
            words = " and ".join(f"`{channel}`" for channel in sorted(one.writes))
            again = [f"'{other}'" for other in known if other != name and not sure[other].isdisjoint(one.writes)]
            lost = f"{' or '.join(again)} writes it anew first" if again else "no node after it reads it"
            remedy = f"draw it right before {' or '.join(readers)}, or leave one out"
            found.append(Finding(wiring.lines.get(name, 0), f"what '{name}' writes ({words}) is lost: {lost}; {remedy}"))
    return found
