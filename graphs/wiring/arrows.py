"""The meaning of a drawing's arrows, given its nodes and routers, and the mistakes in them, each with its line.

| arrow | meaning |
|---|---|
| `a --> b` | an edge; two from one node start both |
| `b & c --> d` | a join: `d` runs once, when both are done |
| `a -->\\|over\\| b` | an outcome of the router of `a`, or, where `a` returns Commands, a place that they lead to |
| `a -.-> b` | a fan-out: one `b` for every piece of work that the fan-out function of `a` hands out; `a -.-> END` where it may hand out none |

Where `a` has no fan-out, a dotted arrow is an outcome of its router, as LangGraph draws it, and without a label that of its target's name.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph
from langgraph.graph._node import StateNodeSpec
from langgraph.types import Command, Send

from ...memory.errors import did_you_mean, type_of
from .mermaid import Edge, FlowError, shown_label
from .node_errors import work_pieces, wrong_arguments, wrong_parts

__all__ = ["Branching", "FanOutBranch", "Finding", "Wiring"]

Node = Callable[[Any], Any] | Runnable[Any, Any]
Router = Callable[[Any], str]
FanOut = Callable[[Any], Iterable[Mapping[str, Any] | Send]]

ENDS = {"START": START, "END": END}
"""The ends of a graph: their names in a drawing -> in LangGraph."""


class Finding(NamedTuple):
    """A mistake in a drawing: its line, from 1 (0: of no single line), and a sentence about it."""

    line: int
    sentence: str


@dataclass(frozen=True)
class Branching:
    """A router, and the labels that its outcomes have in a drawing."""

    path: Any
    """A function or Runnable from state to an outcome."""
    outcomes: Mapping[str, Hashable]
    """Label -> outcome."""
    is_complete: bool = True
    """True if it returns each of these outcomes; then each has to be drawn."""
    may_stop: bool = False
    """True if it may return none of them, such as an empty list of Sends; the graph then ends."""

    @classmethod
    def from_router(cls, source: str, router: Router) -> Self:
        """The branching of a function, whose return type is a `Literal` of its outcomes.

        Raises:
            FlowError: the return type is something else.
        """
        if not callable(router):
            raise FlowError(f"the router of '{source}' is {router!r:.40}, and a router is a function from the state to a label")
        returns = _return_type(router)
        if get_origin(returns) is not Literal:
            hint = ", such as -> Literal[True, False]" if returns is bool else ", such as -> Literal['again', 'over']"
            if returns_sends(router):
                hint = "; a function that returns Sends belongs to fan_outs, and its arrows are dotted"
            raise FlowError(f"the router of '{source}' must say its outcomes as a Literal return type, not {returns}{hint}")
        return cls(router, {shown_label(outcome): outcome for outcome in get_args(returns)})


@dataclass
class Wiring:
    """A drawing's arrows with what stands behind them."""

    nodes: dict[str, Any]
    """Name -> node, or the `StateNodeSpec` of a node that LangGraph knows already."""
    edges: list[Edge]
    routers: Mapping[str, Sequence[Branching]] = field(default_factory=dict)
    fan_outs: Mapping[str, Any] = field(default_factory=dict)
    destinations: Mapping[str, Collection[str]] = field(default_factory=dict)
    """For nodes that return Commands: where these lead."""
    others: Collection[str] = ()
    """Names of nodes that are there, but not drawn."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Name of each drawn node -> the line where it stands first."""

    @property
    def drawn_names(self) -> set[str]:
        """The names of all nodes that are drawn."""
        return {name for e in self.edges for name in (e.source, e.target)}.union(self.lines) - ENDS.keys()

    def kind(self, edge: Edge) -> Literal["plain", "outcome", "fan-out", "command", "unknown"]:
        """The meaning of an arrow."""
        if not edge.label and not edge.dotted:
            return "plain"
        if self.branching(edge) is not None:
            return "outcome"
        if edge.dotted and edge.source in self.fan_outs:
            return "fan-out"
        return "command" if edge.source in self.destinations and edge.source not in self.routers else "unknown"

    def branching(self, edge: Edge) -> Branching | None:
        """The router that an arrow is an outcome of; None if it is none."""
        if not edge.label and not edge.dotted:
            return None
        return next((one for one in self.routers.get(edge.source, ()) if arrow_label(edge) in one.outcomes), None)


def arrow_label(edge: Edge) -> str:
    """The outcome that an arrow stands for, as text: its label, or without one its target's name."""
    return shown_label(edge.label, ENDS.get(edge.target, edge.target))


def _return_type(function: Any) -> Any:
    annotated = (
        function if hasattr(function, "__annotations__") and "return" in function.__annotations__ else type(function).__call__
    )
    try:
        return get_type_hints(annotated).get("return")
    except (NameError, TypeError):  # a name that only the type checker sees
        return None


def returns_literal(function: Any) -> bool:
    """True if a function says all that it may return."""
    return get_origin(_return_type(function)) is Literal


def returns_sends(function: Any) -> bool:
    """True if a function says that it returns Sends."""
    pending = [_return_type(function)]
    while pending:
        one = pending.pop()
        if one is Send:
            return True
        pending += get_args(one) if get_origin(one) is not Literal else ()
    return False


def command_targets(node: Any) -> tuple[str, ...]:
    """The nodes that a node's Commands may lead to, from its return type `Command[Literal[...]]`; empty if it does not say."""
    if isinstance(node, StateNodeSpec):
        return tuple(node.ends or ())
    returns = None if isinstance(node, Runnable) else _return_type(node)
    for one in get_args(returns) if get_origin(returns) in (Union, UnionType) else (returns,):
        if get_origin(one) is Command and get_args(one) and get_origin(get_args(one)[0]) is Literal:
            return get_args(get_args(one)[0])
    return ()


@dataclass(frozen=True)
class FanOutBranch:
    """The branch of dotted arrows: it starts its targets once for every piece of work. Sends are passed on as they are; END is no target of work."""

    fan_out: FanOut
    targets: tuple[str, ...]

    @property
    def __name__(self) -> str:  # LangGraph tells a node's branches apart by it
        return f"{getattr(self.fan_out, '__name__', 'fan_out')} to {' and '.join(self.targets)}"

    def __call__(self, state: Any) -> Sequence[Send]:
        pieces = work_pieces(self.fan_out(state), self.targets)
        sends = [piece for piece in pieces if isinstance(piece, Send)]
        works = [piece for piece in pieces if not isinstance(piece, Send)]
        return sends + [Send(target, work) for target in self.targets if target != END for work in works]


@dataclass(frozen=True)
class KnownFanOut:
    """The fan-out of a compiled graph: it names the nodes itself, and does not follow an arrow that is drawn elsewhere."""

    path: Any
    """A function or Runnable from state to Sends, or to an outcome."""
    leads: Mapping[Hashable, str]
    """Outcome -> the node that it leads to; empty if it does not say."""
    may_stop: ClassVar[bool] = True

    def places(self, drawn: Sequence[str]) -> dict[Hashable, str] | list[str]:
        """Where it leads, for LangGraph; END as well where that is drawn."""
        return {**self.leads, **({END: END} if END in drawn else {})} if self.leads else list(drawn)


# Mistakes


def find_mistakes(wiring: Wiring) -> list[Finding]:
    """The mistakes in a drawing: names first, then how its arrows hang together, then its labels; empty if there are none."""
    found = _names(wiring) or _kinds(wiring) or _connections(wiring) or [*_labels(wiring), *_commands(wiring)]
    found = found or _endless_loops(wiring) or _dead_arrows(wiring)
    return sorted(found, key=lambda one: one.line)


def _line(wiring: Wiring, name: str) -> int:
    return wiring.lines.get(name, 0)


def name_hint(name: str, known: Collection[str]) -> str:
    """A guess at what was meant by a name, as the end of a sentence; empty without a good one."""
    if name.lower().strip("_") in ("start", "end"):
        return f"; did you mean {name.upper().strip('_')}? START and END are written in capitals"
    if ":" in name and name.partition(":")[0] in known:
        return f"; a drawing with xray shows the inside of '{name.partition(':')[0]}', which is one node"
    return did_you_mean(name, known)


def _names(wiring: Wiring) -> list[Finding]:
    edges, nodes = wiring.edges, wiring.nodes
    drawn = wiring.drawn_names
    known = {*nodes, *wiring.others}
    unknown = "the flow draws '{}', but there is no such node; there are {}{}"
    absent = sorted(drawn - nodes.keys())
    found = [Finding(_line(wiring, name), unknown.format(name, sorted(known), name_hint(name, known))) for name in absent]
    if found:
        return found
    found += [
        Finding(0, f"node '{name}' is not in the flow; it draws {sorted(drawn)}") for name in sorted(nodes.keys() - drawn)
    ]
    given = {**dict.fromkeys(wiring.fan_outs, "fan-out function"), **dict.fromkeys(wiring.routers, "router")}
    said = "there is a {} for '{}', which is not drawn{}"
    undrawn = sorted(given.keys() - drawn - {"START"})
    found += [Finding(0, said.format(given[name], name, name_hint(name, drawn))) for name in undrawn]
    wrong = [e for e in edges if e.source == "END" or e.target == "START"]
    return found + [Finding(e.line, "nothing leaves END and nothing enters START") for e in wrong[:1]]


def _kinds(wiring: Wiring) -> list[Finding]:
    """Nodes that are none: classes in place of objects, and what cannot be called."""
    found = []
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
        found += [Finding(_line(wiring, name), f"'{name}' {said}")] if said else []
    return found


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
    stopping = {e.source for e in edges if wiring.kind(e) == "fan-out"} | wiring.destinations.keys()  # they may start nothing
    stopping |= {name for name, routers in wiring.routers.items() if any(one.may_stop for one in routers)}
    ending = [(e.target, e.source) for e in edges] + [("END", name) for name in stopping]
    stuck = sorted(drawn - closure("END", ending)) if not found else []
    if stuck:
        names = stuck[0] if len(stuck) == 1 else f"{', '.join(stuck[:-1])} and {stuck[-1]}"
        found.append(Finding(_line(wiring, stuck[0]), f"END cannot be reached from {names}: the graph would run for ever"))
    return found


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


def closure(start: str, arrows: Collection[tuple[str, str]]) -> set[str]:
    """All names that arrows lead to from `start`, and `start` itself."""
    reached, frontier = {start}, [start]
    while frontier:
        here = frontier.pop()
        new = {target for source, target in arrows if source == here} - reached
        reached |= new
        frontier += new
    return reached


def _shown(targets: Iterable[str]) -> set[str]:
    return {"END" if target == END else target for target in targets}


def _labels(wiring: Wiring) -> list[Finding]:
    edges, found = wiring.edges, list[Finding]()
    for source in dict.fromkeys(e.source for e in edges):
        arrows = [e for e in edges if e.source == source]
        solid = [e for e in arrows if e.label and not e.dotted]
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
    for source in sorted(wiring.routers.keys() - {e.source for e in edges if e.label or e.dotted}):
        found.append(Finding(_line(wiring, source), f"there is a router for '{source}', but no labelled arrow leaves it"))
    for source in sorted(wiring.fan_outs.keys() - {e.source for e in edges if wiring.kind(e) == "fan-out"}):
        found.append(Finding(_line(wiring, source), f"'{source}' has a fan-out function, but no dotted arrow"))
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
    routers, found = wiring.routers[source], list[Finding]()
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
    if len(labels) != len(set(labels)):
        found.append(Finding(labelled[0].line, f"'{source}' has two arrows with one label: {sorted(labels)}"))
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


def unwrap(node: Any) -> Any:
    """The node or router inside what LangGraph wraps around a function."""
    if isinstance(node, StateNodeSpec):
        node = node.runnable
    return getattr(node, "func", None) or getattr(node, "afunc", None) or node
