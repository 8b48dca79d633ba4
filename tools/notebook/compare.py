"""Two walks side by side: where they part, and what they were before a node, in the subgraphs that they have left, too."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile, zip_longest
from typing import Any

from langgraph.types import PregelTask, StateSnapshot

from ...memory.errors import did_you_mean, type_of
from .moments import (
    checkpoint_id,
    differences,
    lines_of,
    nodes_of,
    place_of,
    read_history,
    thread_of,
    turns_to,
    without_replaced,
)
from .pauses import find_subgraph
from .tables import StepperError, Table
from .walk import Walk

__all__ = ["compare"]

Way = tuple[str, ...]
"""The nodes that lead to a graph within a graph, the outermost first."""
Pair = tuple[str, StateSnapshot, StateSnapshot]
"""The name of a place, and the moments of both runs there."""


def compare(one: Walk, other: Walk, before: str = "", show: Sequence[str] = ()) -> Table:
    """A table of two runs side by side; differences are highlighted.

    Where one walk stands in a subgraph in which the other does not, or `before` is a node around it, both are seen from the graph around it.

    Args:
        before: a node, also of a subgraph, at every pause before which the channels `show` stand in a line. None is named: a line holds a
            channel in which the runs differ, where they part, inside and outside the subgraph where that is, and where they stand now.
            Moments are matched by their turn of a chat, and their number in it without edits: `moment 2 | 3` where that differs.
        show: names of channels, such as `["action"]`; where none is named, of those that differ.

    Raises:
        StepperError: neither has such a node or channel.
    """
    if odd := [type_of(walk) for walk in (one, other) if not isinstance(walk, Walk)]:
        raise StepperError(f"compare takes two walks first, got {odd[0]}")
    show = [show] if isinstance(show, str) else show
    graphs = [dict(_graphs_in(walk.here)) for walk in (one, other)]
    is_around = before and not any(before in nodes_of(graph) for known in graphs for graph in known.values())
    if one.inside != other.inside or is_around:
        one, other = map(_come_out, (one, other))
        graphs = [dict(_graphs_in(walk.here)) for walk in (one, other)]
    ways = [min((way for way in known if before in nodes_of(known[way])), key=len, default=None) for known in graphs]
    if before and ways == [None, None]:
        nodes = dict.fromkeys(node for known in graphs for graph in known.values() for node in nodes_of(graph))
        raise StepperError(f"there is no node {before!r}{did_you_mean(before, nodes, 'there are')}")
    shown = [graph for known, way in zip(graphs, ways, strict=True) for at, graph in known.items() if not before or at == way]
    channels = dict.fromkeys(name for graph in shown for name in graph.builder.channels)
    if lacking := [name for name in show if name not in channels]:
        others = [node for graph in graphs[0].values() if lacking[0] in graph.builder.channels for node in nodes_of(graph)]
        hint = f" at {before!r}; {', '.join(others)} have it: before={others[0]!r}" if others else ""
        raise StepperError(f"there is no channel {lacking[0]!r}{hint or did_you_mean(lacking[0], channels, 'there are')}")
    turns = [[without_replaced(turn) for turn in walk._turns()] for walk in (one, other)]
    return (
        _table_before(before, (one, other), turns, ways, show, [*channels])
        if before
        else _table_parted((one, other), turns, show)
    )


def _come_out(walk: Walk) -> Walk:
    """The walk as it is seen from the graph around, without running anything."""
    if not walk.inside:
        return walk
    return (replace(walk) if walk._is_latest(walk.inside) else walk.fork())._stand(())


def _table_parted(walks: Sequence[Walk], turns: Sequence[Sequence[list[StateSnapshot]]], show: Sequence[str]) -> Table:
    most = max(map(len, turns))
    numbers = [{checkpoint_id(one.config): n for turn in walk._turns() for n, one in enumerate(turn)} for walk in walks]
    pairs = list[Pair]()
    for t, both in enumerate(zip(*turns, strict=False), 1):
        for pair in zip(*both, strict=False):
            n, m = (known[checkpoint_id(one.config)] for known, one in zip(numbers, pair, strict=True))
            pairs.append((place_of(most, t, n) + f" | {m}" * (n != m), *pair))
    found = [*_part(walks, pairs, show), *_differ("now", turns[0][-1][-1], turns[1][-1][-1], show)]
    title = f"where they part, and where they stand now{'' if found else ': no difference'}"
    return Table(("", "channel", "first run", "second run ′"), tuple(found), title=title)


def _part(walks: Sequence[Walk], pairs: Sequence[Pair], show: Sequence[str], inside: str = "") -> Iterator[tuple[str, ...]]:
    """The lines of the first moments that differ: in the subgraphs that ran at the last common one, and after it."""
    common = list(takewhile(lambda pair: _is_same(*pair[1:]), pairs))
    for (node, number), task in _invocations(common[-1][1]) if common else ():
        paths = [_read_inside(walk, moment, task) for walk, moment in zip(walks, common[-1][1:], strict=True)]
        way = f"{inside}{node}[{number}] > " if number else f"{inside}{node} > "
        inner = [(f"{way}moment {n}", a, b) for n, (a, b) in enumerate(zip(*paths, strict=False))]
        yield from _part(walks, inner, show, way)
    rest = (_differ(*pair, show) for pair in pairs[len(common) :] if not _is_same(*pair[1:]))
    yield from next(filter(None, rest), [])


def _differ(place: str, one: StateSnapshot, other: StateSnapshot, show: Sequence[str]) -> list[tuple[str, ...]]:
    return differences(place, one, other, show or [*{**one.values, **other.values}])


def _table_before(
    before: str,
    walks: Sequence[Walk],
    turns: Sequence[Sequence[list[StateSnapshot]]],
    ways: Sequence[Way | None],
    show: Sequence[str],
    channels: Sequence[str],
) -> Table:
    groups = dict[tuple[str, ...], list[list[Any]]]()
    for t, paths in enumerate(zip_longest(*turns, fillvalue=list[StateSnapshot]()), 1):
        found = [dict(_paths_along(*part)) for part in zip(walks, paths, ways, strict=True)]
        for place in sorted({**found[0], **found[1]}):
            both = [one.get(place, []) for one in found]
            after = [path[place[0][0] + 1 :] for path in paths] if place else [[], []]
            if all(after) and _is_same(after[0][0], after[1][0]):
                both = [both[0] or both[1]] * 2  # the same run: a fork copies no subgraph that has ended
            label = [f"turn {t}"] * (max(map(len, turns)) > 1)
            for number, node, invocation in place:
                label += [f"moment {number}"] + [f"{node}[{invocation}]"] * (invocation > 0)
            groups[*label] = [[one.values for one in path if before in one.next] for path in both]
    pairs = [
        (", ".join((*label, str(i)) if len(groups) > 1 else (str(i),)), *pair)
        for label, both in groups.items()
        for i, pair in enumerate(zip_longest(*both))
    ]
    show = show or [name for name in channels if any(a and b and len({*lines_of(a, b, name)}) > 1 for _, a, b in pairs)]
    rows = tuple((place, *(line for name in show for line in lines_of(a, b, name))) for place, a, b in pairs)
    marked = frozenset(i for i, row in enumerate(rows) if row[1::2] != row[2::2])
    first, second = (sum(len(both[i]) for both in groups.values()) for i in (0, 1))
    said = (
        f": {first} and {second} times" if first != second else "" if marked else ": no difference" if first else ": never yet"
    )
    head = ("", *(f"{name}{which}" for name in show for which in ("", " ′")))
    return Table(head, rows, marked, title=f"before {before}: first run | second run ′{said}")


def _paths_along(
    walk: Walk, path: Sequence[StateSnapshot], way: Way | None
) -> Iterator[tuple[tuple[tuple[int, str, int], ...], list[StateSnapshot]]]:
    """The moments in a graph within a graph, by the moments, nodes and numbers of the invocations that lead there."""
    if way == ():
        yield (), [*path]
    for n, moment in enumerate(path) if way else ():
        for (node, number), task in _invocations(moment):
            if way and node == way[0]:
                for place, found in _paths_along(walk, _read_inside(walk, moment, task), way[1:]):
                    yield ((n, node, number), *place), found


def _graphs_in(graph: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """A graph and the graphs within it, by the nodes that lead there."""
    yield way, graph
    for node in nodes_of(graph):
        inner = find_subgraph(graph, node)
        if hasattr(inner, "builder"):
            yield from _graphs_in(inner, (*way, node))


def _invocations(moment: StateSnapshot) -> Iterator[tuple[tuple[str, int], PregelTask]]:
    """The tasks of a moment with their nodes, and their numbers among those of the node."""
    names = list[str]()
    for task in sorted(moment.tasks, key=lambda task: str(task.path)):
        yield (task.name, names.count(task.name)), task
        names.append(task.name)


def _read_inside(walk: Walk, moment: StateSnapshot, task: PregelTask) -> list[StateSnapshot]:
    """The moments inside the subgraph that a task ran; none if it has no subgraph, or the record does not hold them."""
    if task.state is None:
        return []
    around = str(moment.config["configurable"].get("checkpoint_ns", ""))
    place = thread_of(walk.place)
    place["configurable"]["checkpoint_ns"] = f"{around}|{task.name}:{task.id}".lstrip("|")
    history = read_history(walk.graph, walk._in_loop, place)
    return without_replaced(turns_to(history[0], history, only_last=True)[-1]) if history else []


def _is_same(one: StateSnapshot, other: StateSnapshot) -> bool:
    return checkpoint_id(one.config) == checkpoint_id(other.config)
