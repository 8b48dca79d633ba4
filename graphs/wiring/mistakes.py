"""The mistakes in a drawing, each with its line: all that can be told at once.

A mistake that follows from another is not told: names that are typed wrong are read as they were meant, and what depends on all arrows
is looked at if these hang together.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.runnables import Runnable
from langgraph.graph import END, StateGraph
from langgraph.graph._node import StateNodeSpec

from ...memory.errors import did_you_mean, nearest, type_of
from .arrows import ENDS, KnownFanOut, Wiring, arrow_label, closure, returns_literal
from .data_flow import find_missing
from .dead_ends import find_dead_ends
from .mermaid import Edge, Finding
from .node_errors import wrong_arguments, wrong_parts

__all__ = []

_ANY_NODE: Any = repr
"""What stands for a node that is not known, or no node: a function that says nothing about its channels."""


def find_mistakes(wiring: Wiring, builder: StateGraph[Any, Any, Any, Any] | None, origin: Any = None) -> list[Finding]:
    """The mistakes in a drawing, by their lines; empty if there are none.

    Args:
        wiring: the drawing with what stands behind it.
        builder: knows the state's and the input's schema; without it nothing is said about what nodes read and write.
        origin: the builder of the graph that was redrawn.
    """
    guess, kinds = _as_meant(wiring), _kinds(wiring)
    labels, commands = _labels(guess or wiring), _commands(guess or wiring)
    found = [*_names(wiring, guess), *kinds.values(), *labels, *commands]
    if guess:
        stuck = _stuck(guess)
        hanging = [*_connections(guess), *(stuck or _endless_loops(guess) or _dead_arrows(guess))]
        found += hanging
        routers = {source: [one for one in all if not one.fault] for source, all in guess.routers.items()}
        known = replace(guess, nodes=guess.nodes | dict.fromkeys(kinds.keys() & guess.nodes.keys(), _ANY_NODE), routers=routers)
        if not (hanging or labels or commands):
            found += find_dead_ends(known)
        if builder and guess.nodes.keys() <= guess.drawn_names:
            found += find_missing(known, builder, origin, is_whole=not (hanging or commands or _lacks_arrows(guess)))
    return sorted(found, key=lambda one: one.line)


def _as_meant(wiring: Wiring) -> Wiring | None:
    """The wiring with known names in place of those that are typed wrong, and `_ANY_NODE` behind unknown ones.

    None where it is unclear how the arrows hang together: a name may mean two nodes, or an arrow leaves END or enters START.
    """
    guess = meant_names(wiring.edges, wiring.drawn_names, {*wiring.nodes, *wiring.others})
    if guess is None:
        return None

    def called(name: str) -> str:
        return guess.get(name, name)

    edges = [
        replace(e, source=called(e.source), target=called(e.target), join=tuple(map(called, e.join))) for e in wiring.edges
    ]
    if any(e.source == "END" or e.target == "START" for e in edges):
        return None
    nodes = dict.fromkeys(set(guess.values()) - ENDS.keys(), _ANY_NODE) | wiring.nodes
    return replace(wiring, nodes=nodes, edges=edges, lines={called(name): line for name, line in wiring.lines.items()})


def meant_names(edges: Collection[Edge], drawn: Collection[str], known: Collection[str]) -> dict[str, str] | None:
    """Unknown name in a drawing -> the one that is meant, or itself.

    None where it is unclear: the name that is like it is drawn too, and arrows lead to and from both, or from one to the other.
    """
    guess = dict[str, str]()
    for name in sorted({*drawn} - {*known}):
        end = name.upper().strip("_")
        near = end if end in ENDS else nearest(name, ({*known} - set(guess.values())) | {*ENDS})
        places = [(e.source, e.target) for e in edges]
        both_whole = all(one in ends for one in (name, near) for ends in zip(*places, strict=True))
        if ":" in name or (near in drawn and (both_whole or {(name, near), (near, name)} & {*places})):
            return None
        guess[name] = near or name
    return guess


def _lacks_arrows(wiring: Wiring) -> bool:
    """True if an outcome has no arrow, or an arrow's kind is not known: what nodes read and write is then not all known, either."""
    for source, routers in wiring.routers.items():
        labelled = [e for e in wiring.edges if e.source == source and wiring.kind(e) in ("outcome", "unknown")]
        if len(labelled) < len({label for one in routers if one.is_complete for label in one.outcomes}):
            return True
    return any(e.dotted and wiring.kind(e) == "unknown" for e in wiring.edges)


def _line(wiring: Wiring, name: str) -> int:
    return wiring.lines.get(name, 0)


def name_hint(name: str, known: Collection[str]) -> str:
    """A guess at what was meant by a name, as the end of a sentence; empty without a good one."""
    if name.lower().strip("_") in ("start", "end"):
        return f"; did you mean {name.upper().strip('_')}? START and END are written in capitals"
    if ":" in name and name.partition(":")[0] in known:
        return f"; a drawing with xray shows the inside of '{name.partition(':')[0]}', which is one node"
    near = nearest(name, known) or next((one for one in known if name in one.split()), name)  # `a & b` is drawn as two names
    plain = re.sub(r"\W+", "_", near)
    return (
        did_you_mean(name, known)
        if near.split() == [near]
        else f"; call the node '{near}' {plain}: a name in a drawing is one word"
    )


def _names(wiring: Wiring, guess: Wiring | None) -> list[Finding]:
    """Names without a node, and where it is clear what is meant by these, nodes and routers that are not drawn."""
    from ...nodes.catalogue import catalogue

    known = {*wiring.nodes, *wiring.others}
    unknown = "the flow draws '{}', but there is no such node; there are {}{}"
    absent = sorted(wiring.drawn_names - wiring.nodes.keys())
    parts = {one.name for one in catalogue() if one.kind == "part"} if absent else ()
    shown = "; it is a part of a prompt, which a policy shows: inputs.make_policy(inputs.episode_prompt(inputs.node({!r})))"
    hints = {name: shown.format(name) if name in parts else name_hint(name, {*known, *ENDS}) for name in absent}
    found = [Finding(_line(wiring, name), unknown.format(name, sorted(known), hint)) for name, hint in hints.items()]
    wrong = [e for e in wiring.edges if e.source == "END" or e.target == "START"]
    found += [Finding(e.line, "nothing leaves END and nothing enters START") for e in wrong[:1]]
    if guess is None and absent:
        return found
    drawn = (guess or wiring).drawn_names
    undrawn = sorted(wiring.nodes.keys() - drawn)
    found += [Finding(0, f"node '{name}' is not in the flow; it draws {sorted(drawn)}") for name in undrawn]
    given = {**dict.fromkeys(wiring.fan_outs, "fan-out function"), **dict.fromkeys(wiring.routers, "router")}
    said = "there is a {} for '{}', which is not drawn{}"
    undrawn = sorted(given.keys() - drawn - {"START", *undrawn})
    return found + [Finding(0, said.format(given[name], name, name_hint(name, drawn))) for name in undrawn]


def _kinds(wiring: Wiring) -> dict[str, Finding]:
    """Name -> what is wrong with a node that is none (a class in place of an object, what cannot be called), or with a router."""
    found = {}
    for name, node in wiring.nodes.items():
        if isinstance(node, type):
            said = f"is the class {node.__name__}, and a node is an object of it: write {node.__name__}(...)"
        elif isinstance(node, StateGraph):
            said = f"is {type_of(node)}, and a node is a compiled graph: call its compile() first"
        elif not callable(node) and not isinstance(node, Runnable | StateNodeSpec):
            said = f"is {node!r:.40}, and a node is a function of the state, an object that is called, or a Runnable"
        elif not isinstance(node, Runnable | StateNodeSpec) and returns_literal(node):
            said = f"is a router, which returns a label, and a node returns channels: give it in routers={{'{name}': ...}}"
        else:
            said = next((f"is made wrongly: {wrong}" for wrong in wrong_parts(node)), "")
            said = said or ("" if isinstance(node, Runnable | StateNodeSpec) else wrong_arguments(node))
        if said:
            found[name] = Finding(_line(wiring, name), f"'{name}' {said}")
    faults = {f"router of {source}": one.fault for source, all in wiring.routers.items() for one in all if one.fault}
    return found | {name: Finding(0, fault) for name, fault in faults.items()}


def _connections(wiring: Wiring) -> list[Finding]:
    """Nodes that START does not reach, that nothing leaves, or from which END cannot be reached."""
    edges, drawn, found = wiring.edges, wiring.drawn_names, list[Finding]()
    if all(e.source != "START" for e in edges):
        return [
            Finding(0, f"no arrow leaves START; draw where the graph begins, such as 'START --> {min(drawn, default='first')}'")
        ]
    reached = closure("START", [(e.source, e.target) for e in edges])
    leaving = {e.source for e in edges} | {name for name in wiring.destinations if "END" in _shown(wiring.destinations[name])}
    for name in sorted(drawn - reached):
        found.append(Finding(_line(wiring, name), f"no arrow leads from START to '{name}'"))
    for name in sorted(drawn - leaving):
        found.append(Finding(_line(wiring, name), f"no arrow leaves '{name}'; draw '{name} --> END' if the graph ends there"))
    return found


def _stuck(wiring: Wiring) -> list[Finding]:
    """Nodes from which END cannot be reached. A node that nothing leaves is told of already, and one of a compiled graph may lead nowhere,
    as LangGraph has it."""
    stopping = {name for name, one in wiring.fan_outs.items() if isinstance(one, KnownFanOut) or name in wiring.destinations}
    stopping |= {name for name, places in wiring.destinations.items() if "END" in _shown(places)}
    stopping |= {name for name in wiring.destinations if isinstance(wiring.nodes.get(name), Runnable | StateNodeSpec)}
    stopping |= {name for name, routers in wiring.routers.items() if any(one.may_stop for one in routers)}
    stopping |= wiring.drawn_names - {e.source for e in wiring.edges}
    ending = [(e.target, e.source) for e in wiring.edges] + [("END", name) for name in stopping]
    stuck = sorted(wiring.drawn_names - closure("END", ending))
    if not stuck:
        return []
    names = stuck[0] if len(stuck) == 1 else f"{', '.join(stuck[:-1])} and {stuck[-1]}"
    return [Finding(_line(wiring, stuck[0]), f"END cannot be reached from {names}: the graph would run for ever")]


def _endless_loops(wiring: Wiring) -> list[Finding]:
    """The first loop of plain arrows: they are always taken, also where another arrow leads out of it."""
    edges = [e for e in wiring.edges if wiring.kind(e) == "plain" and not e.join]
    plain = [(e.source, e.target) for e in edges]
    for e in edges:
        if e.source in closure(e.target, plain):
            loop = f"'{e.source}' onto itself" if e.source == e.target else f"'{e.source}' over '{e.target}' back to itself"
            said = f"the plain arrows from {loop} are always taken: the graph would run for ever; label them, and give a router"
            return [Finding(e.line, said)]
    return []


def _dead_arrows(wiring: Wiring) -> list[Finding]:
    """Plain arrows to END beside others, which end nothing, and beside dotted ones to the same node, which would run for each of the two.
    The nodes of a compiled graph may have them: LangGraph lets them."""
    ours = [e for e in wiring.edges if not e.join and callable(wiring.nodes.get(e.source))]
    plain = {(e.source, e.target): e for e in ours if wiring.kind(e) == "plain"}
    on = {source: target for source, target in plain if target != "END"}
    said = "the arrow '{0} --> END' does nothing, for '{0} --> {1}' is taken as well; leave it out, or label both and give a router"
    found = [Finding(e.line, said.format(a, on[a])) for (a, b), e in plain.items() if b == "END" and a in on]
    twice = (
        "'{0} --> {1}' always starts '{1}', and '{0} -.-> {1}' starts it again for every piece of work; leave one of them out"
    )
    doubled = [e for e in ours if e.dotted and e.target != "END" and (e.source, e.target) in plain]
    return found + [Finding(e.line, twice.format(e.source, e.target)) for e in doubled]


def _shown(targets: Iterable[str]) -> set[str]:
    return {"END" if target == END else target for target in targets}


def _labels(wiring: Wiring) -> list[Finding]:
    edges, found = wiring.edges, list[Finding]()
    for source in dict.fromkeys(e.source for e in edges):
        arrows = [e for e in edges if e.source == source]
        solid = [e for e in arrows if e.label and not e.dotted]
        if source != "START" and wiring.nodes.get(source, _ANY_NODE) is _ANY_NODE:
            continue  # it is not known how it decides
        if source in wiring.routers:
            found += _outcomes(wiring, source, arrows)
        elif solid and source not in wiring.destinations:
            said = f"'{source}' has the labelled arrows {[e.label for e in solid]}, but no router decides among them: give routers="
            said += f"{{'{source}': a function}}; a node that returns Commands says where they lead: -> Command[Literal[...]]"
            found.append(Finding(solid[0].line, said))
        dotted = [e for e in arrows if e.dotted and wiring.kind(e) == "unknown"]
        if dotted and source not in wiring.routers:
            given = f"fan_outs={{'{source}': a function that returns an input for each start of '{dotted[0].target}'}}"
            found.append(Finding(dotted[0].line, f"'{source}' has a dotted arrow, but no fan-out function: give {given}"))
    leaving = {e.source for e in edges}
    for source in sorted((wiring.routers.keys() & leaving) - {e.source for e in edges if e.label or e.dotted}):
        found.append(Finding(_line(wiring, source), f"there is a router for '{source}', but no labelled arrow leaves it"))
    for source in sorted((wiring.fan_outs.keys() & leaving) - {e.source for e in edges if wiring.kind(e) == "fan-out"}):
        found.append(Finding(_line(wiring, source), f"'{source}' has a fan-out function, but no dotted arrow"))
    for source, given in wiring.fan_outs.items():
        if not callable(given) and not isinstance(given, Runnable | KnownFanOut):
            returns = "a function from the state to the inputs of the nodes to start"
            found.append(
                Finding(_line(wiring, source), f"the fan-out of '{source}' is {given!r:.40}, and a fan-out is {returns}")
            )
    return found + [one for source in wiring.fan_outs for one in _known_fan_out(wiring, source)]


def _known_fan_out(wiring: Wiring, source: str) -> list[Finding]:
    """The arrows of a compiled graph's own fan-out that are drawn to where it does not lead, or are missing."""
    fan_out, arrows = wiring.fan_outs[source], [e for e in wiring.edges if e.source == source and wiring.kind(e) == "fan-out"]
    drawn = {e.target for e in arrows}
    leads = sorted(_shown(fan_out.leads.values())) if isinstance(fan_out, KnownFanOut) else []
    if not arrows or not leads or {*leads} <= drawn <= {*leads, "END"}:
        return []
    line = next((e.line for e in arrows if e.target not in leads), arrows[0].line)
    said = f"the fan-out of '{source}' starts {' or '.join(leads)} by itself, and the drawing says {' or '.join(sorted(drawn))}"
    remedy = f"fan_outs={{'{source}': a function that returns Sends}} or routers={{'{source}': one that returns labels}}"
    return [Finding(line, f"{said}; draw its own arrows, or give {remedy}")]


def _outcomes(wiring: Wiring, source: str, arrows: Sequence[Edge]) -> list[Finding]:
    """Labels that a router cannot return, outcomes that are not drawn, and arrows beside them."""
    routers, found = [one for one in wiring.routers[source] if not one.fault], list[Finding]()
    if not routers:
        return []
    labelled = [e for e in arrows if wiring.kind(e) in ("outcome", "unknown")]
    labels, outcomes = [arrow_label(e) for e in labelled], {label for one in routers for label in one.outcomes}
    if not labels:
        return found
    for edge, label in zip(labelled, labels, strict=True):
        if label not in outcomes:
            hint = did_you_mean(label, outcomes)
            said = f"'{source}' has an arrow '{label}', which its router cannot return; it returns {sorted(outcomes)}{hint}"
            found.append(Finding(edge.line, said))
    for outcome in sorted({label for one in routers if one.is_complete for label in one.outcomes} - set(labels)):
        said = f"the router of '{source}' can return '{outcome}', but no arrow is labelled so; there are {sorted(labels)}"
        found.append(Finding(labelled[0].line, said))
    if doubled := next((e for e, label in zip(labelled, labels, strict=True) if labels.count(label) > 1), None):
        said = f"'{source}' has two arrows with one label: {sorted(labels)}; a label leads to one node, which may start several"
        way = " & ".join(dict.fromkeys(e.target for e in labelled if arrow_label(e) == arrow_label(doubled)))
        way = f"draw one more node behind it, which returns {{}}: '{source} -->|{arrow_label(doubled)}| both --> {way}'"
        found.append(Finding(doubled.line, f"{said}: {way}"))
    plain = [e for e in arrows if wiring.kind(e) == "plain"]
    if plain:
        said = f"'{source}' has labelled and plain arrows: which one is taken would be unclear; label '{source} --> {plain[0].target}' "
        found.append(Finding(plain[0].line, f"{said}as well, and let the router return that label, or leave it out"))
    return found


def _commands(wiring: Wiring) -> list[Finding]:
    """Arrows of a node's Commands that these cannot take, and destinations that are not drawn (END needs no arrow)."""
    found = []
    for source, targets in wiring.destinations.items():
        places = _shown(targets)
        if source in wiring.routers and places != {"END"}:
            said = f"'{source}' has a router, and its Commands lead to {sorted(places)}: both would run. Let one of them decide"
            found.append(Finding(_line(wiring, source), said))
            continue
        arrows = [e for e in wiring.edges if e.source == source]
        for edge in arrows:
            if wiring.kind(edge) == "command" and edge.target not in {*places, "END"}:
                found.append(
                    Finding(edge.line, f"'{source}' has an arrow to '{edge.target}', but its Commands lead to {sorted(places)}")
                )
        for target in sorted(places - {e.target for e in arrows} - {"END"}):
            said = f"a Command of '{source}' may lead to '{target}', but no arrow does; draw '{source} -.-> {target}'"
            found.append(Finding(_line(wiring, source), said))
    return found
