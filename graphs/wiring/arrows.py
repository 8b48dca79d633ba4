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
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph
from langgraph.graph._node import StateNodeSpec
from langgraph.types import Command, Send

from .mermaid import Edge, shown_label
from .node_errors import work_pieces

__all__ = ["Branching", "FanOutBranch", "Wiring"]

Builder = StateGraph[Any, Any, Any, Any]
Node = Callable[[Any], Any] | Runnable[Any, Any]
Router = Callable[[Any], str]
FanOut = Callable[[Any], Iterable[Mapping[str, Any] | Send]]

ENDS = {"START": START, "END": END}
"""The ends of a graph: their names in a drawing -> in LangGraph."""


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

    fault: str = ""
    """What is wrong with the function, in words; empty if nothing is."""

    @classmethod
    def from_router(cls, source: str, router: Router, edges: Sequence[Edge]) -> Self:
        """The branching of a function, whose return type is a `Literal` of its outcomes, in a drawing with these arrows."""
        if not callable(router):
            return cls(
                router,
                {},
                fault=f"the router of '{source}' is {router!r:.40}, and a router is a function from the state to a label",
            )
        returns = _return_type(router)
        if outcomes := _outcomes(returns):
            return cls(router, {shown_label(outcome): outcome for outcome in outcomes})
        labels = [edge.label for edge in edges if edge.source == source and edge.label]
        hint = ", such as -> Literal[True, False]" if returns is bool else f", such as -> Literal{labels or ['again', 'over']}"
        if returns_sends(router):
            hint = "; a function that returns Sends belongs to fan_outs, and its arrows are dotted"
        elif get_origin(returns) in (list, tuple, set, Sequence):
            hint = f": it chooses one. To start several, let the node '{source}' return Command(goto=[...]), or give a fan-out of Sends"
        fault = f"the router of '{source}' must say its outcomes as a Literal return type, not {returns or 'none'}{hint}"
        return cls(router, {}, fault=fault)


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
    deferred: Collection[str] = ()
    """Names of the nodes that run when nothing else is left to run."""
    replaced: Mapping[str, StateNodeSpec[Any, Any]] = field(default_factory=dict)
    """Name of a node -> the one of a compiled graph in whose place it stands, whose policies it takes over."""

    def policies(self, name: str) -> dict[str, Any]:
        """The fields of a `StateNodeSpec` that the drawing says, and those that a node takes over."""
        kept = ("retry_policy", "cache_policy", "error_handler_node", "timeout", "trace_policy")
        taken = {policy: getattr(self.replaced[name], policy) for policy in kept if name in self.replaced}
        return {"defer": name in self.deferred, **taken}

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
    while inner := getattr(function, "func", None) or getattr(function, "afunc", None):  # of a partial, or a Runnable
        function = inner
    annotated = (
        function if hasattr(function, "__annotations__") and "return" in function.__annotations__ else type(function).__call__
    )
    try:
        return get_type_hints(annotated).get("return")
    except (NameError, TypeError):  # a name that only the type checker sees
        return None


def _outcomes(returns: Any) -> tuple[Hashable, ...]:
    """The values of a `Literal`, or of a union of such; none where a type is anything else."""
    parts = get_args(returns) if get_origin(returns) in (Union, UnionType) else (returns,)
    are_literals = all(get_origin(part) is Literal for part in parts)
    return tuple(value for part in parts for value in get_args(part)) if are_literals else ()


def returns_literal(function: Any) -> bool:
    """True if a function says all that it may return."""
    return bool(_outcomes(_return_type(function)))


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


def closure(start: str, arrows: Collection[tuple[str, str]]) -> set[str]:
    """All names that arrows lead to from `start`, and `start` itself."""
    reached, frontier = {start}, [start]
    while frontier:
        here = frontier.pop()
        new = {target for source, target in arrows if source == here} - reached
        reached |= new
        frontier += new
    return reached


def unwrap(node: Any) -> Any:
    """The node or router inside what LangGraph wraps around a function."""
    if isinstance(node, StateNodeSpec):
        node = node.runnable
    return getattr(node, "func", None) or getattr(node, "afunc", None) or node
