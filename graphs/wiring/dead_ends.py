"""A check of ends: the joins that wait for ever, and the decisions after which no run ends, as the drawing alone shows.

It goes through all super-steps that a run may take, as LangGraph takes them, whatever routers, fan-outs and Commands decide. A decision is
told if no run comes to its end after it, however all others are made: so routers that know of each other raise no false alarm. A join is
told if no run brings all that it waits for.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import chain, combinations, islice, product
from typing import Any, NamedTuple

from .arrows import Wiring, arrow_label
from .joins import are_watched, join_names
from .mermaid import Edge, Finding

__all__ = []

MOST_STEPS, MOST_MOVES = 5_000, 64
"""Drawings with more steps between states of a run, or with more ways to go on from one of them, are not looked at."""


class _State(NamedTuple):
    """A moment between two super-steps."""

    active: frozenset[str]
    """Names of the nodes that run next."""
    arrived: frozenset[Edge] = frozenset()
    """The arrows of joins whose nodes have run."""
    may_end: bool = False
    """True if an arrow to END was taken."""


Move = frozenset[Edge]
"""The arrows that are taken together; those of a join once all its nodes have come."""
Steps = Mapping[_State, Collection[tuple[Move, _State]]]
"""Each state of a run, from its first -> what may be decided there, and the state after it."""


def find_dead_ends(wiring: Wiring) -> list[Finding]:
    """The joins that wait for ever, and the decisions after which no run comes to its end.

    Of the nodes of a compiled graph, which may lead nowhere, as LangGraph has it, only joins that no run fills are told.
    """
    if not (steps := _steps(wiring)):
        return []
    taken = frozenset[Edge]().union(*(move for ways in steps.values() for move, _ in ways))
    said = "'{}' waits for {}, and no run brings all of them; draw an arrow from each, without `&`, or let all of them run"
    empty = {(edge.target, edge.join): edge.line for edge in wiring.edges if edge.join and edge not in taken}
    if empty or not are_watched(wiring):
        return [Finding(line, said.format(target, join_names(join))) for (target, join), line in empty.items()]
    good, after = _ending(steps), defaultdict[Edge, list[_State]](list)
    start = next(iter(steps))
    if start not in good:
        return [Finding(0, f"whatever is decided, {_fault([start], steps)}")]
    for move, state in (step for before in good for step in steps[before]):
        for edge in (edge for edge in move if not edge.join):
            after[edge].append(state)
    dead = [edge for edge in sorted(after) if good.isdisjoint(after[edge])]
    return [
        Finding(edge.line, f"where '{edge.source}' leads by '{arrow_label(edge)}', {_fault(after[edge], steps)}")
        for edge in dead
    ]


def _fault(states: Collection[_State], steps: Steps) -> str:
    """The reason why no run comes to its end from these states, in words."""
    pending, seen = [*states], set[_State]()
    while pending:
        if (state := pending.pop()) in seen:
            continue
        if not state.active:
            first = min(state.arrived)
            came = sorted(one.source for one in state.arrived if (one.join, one.target) == (first.join, first.target))
            lacks = join_names([name for name in first.join if name not in came])
            said = f"the join '{' & '.join(first.join)} --> {first.target}' waits for ever: {join_names(came)} came, {lacks} cannot come"
            return f"{said}; let {lacks} run there, too, or draw an arrow from each, without `&`"
        seen.add(state)
        pending += [after for _, after in steps[state]]
    names = ", ".join(f"'{name}'" for name in sorted(frozenset[str]().union(*(state.active for state in seen)) - {"START"}))
    return f"the run would go on for ever, over {names}; let a label lead out of there"


def _steps(wiring: Wiring) -> Steps:
    """All states of a run; none if they are too many."""
    moves = {name: _moves(wiring, name) for name in ("START", *wiring.nodes)}
    joins = defaultdict[tuple[tuple[str, ...], str], set[Edge]](set)
    for edge in (edge for edge in wiring.edges if edge.join):
        joins[edge.join, edge.target].add(edge)
    steps, pending, count = dict[_State, list[tuple[Move, _State]]](), [_State(frozenset({"START"}))], 0
    while pending:
        if (state := pending.pop()) in steps:
            continue
        ways = 1
        for name in state.active:
            ways *= len(moves[name])
        if (count := count + ways) > MOST_STEPS or ways > MOST_MOVES:
            return {}
        steps[state] = []
        for chosen in product(*(moves[name] for name in sorted(state.active))) if state.active else ():
            move = frozenset(chain.from_iterable(chosen))
            joining = {edge for edge in wiring.edges if edge.join and edge.source in state.active}
            active, arrived = {edge.target for edge in move}, state.arrived | joining
            full = [(target, arrows) for (_, target), arrows in joins.items() if arrows <= arrived]
            active.update(target for target, _ in full)
            arrived = arrived.difference(*(arrows for _, arrows in full))
            after = _State(frozenset(active - {"END"}), arrived, state.may_end or "END" in active)
            steps[state].append((move.union(*(arrows for _, arrows in full)), after))
            pending.append(after)
    return steps


def _moves(wiring: Wiring, name: str) -> list[Move]:
    """The decisions of a node: a label of its router, any of the nodes that its Commands and its fan-out lead to, and its plain arrows always."""
    arrows = [edge for edge in wiring.edges if edge.source == name and not edge.join]
    plain = [edge for edge in arrows if wiring.kind(edge) == "plain"]
    leads = [(one, [edge for edge in arrows if wiring.branching(edge) is one]) for one in wiring.routers.get(name, ())]
    routed = [_subsets(drawn) if one.may_stop else [(edge,) for edge in drawn] for one, drawn in leads]  # several, or none
    free = [edge for edge in arrows if wiring.kind(edge) in ("fan-out", "command")]
    ends = [Edge(name, "END", "end")] if {"END", "__end__"} & {*wiring.destinations.get(name, ())} else []
    some = _subsets([*free, *ends]) if free or ends else [()]
    once = [frozenset([*plain, *chain(*chosen), *more]) for chosen in product(*filter(None, routed)) for more in some]
    if not any(edge.target == name and wiring.kind(edge) in ("fan-out", "command") for edge in wiring.edges):
        return once
    return [frozenset[Edge]().union(*several) for several in _subsets(once) if several]  # it may run many times at once


def _subsets(all: Collection[Any]) -> list[tuple[Any, ...]]:
    """The subsets, or as many as are too many."""
    return [*islice(chain.from_iterable(combinations(all, size) for size in range(len(all) + 1)), MOST_MOVES + 1)]


def _ending(steps: Steps) -> set[_State]:
    """The states from which a run may come to its end, and be let."""
    before, good = defaultdict[_State, list[_State]](list), list[_State]()
    for state, ways in steps.items():
        good += [state] if not state.active and (state.may_end or not state.arrived) else []
        for _, after in ways:
            before[after].append(state)
    found = set(good)
    while good:
        new = {state for state in before[good.pop()] if state not in found}
        found |= new
        good += new
    return found
