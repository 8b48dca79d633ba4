"""Pauses inside one invocation of a subgraph, while other invocations of the same moment run to their ends.

LangGraph's `interrupt_before` is a setting of a graph, so it pauses every invocation of a subgraph, or none. Here it is a question
that the subgraph asks at each node: the answer depends on the invocation, and on the walk that runs it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables.config import ensure_config
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import PregelTask

__all__ = ["find_subgraph"]

Graph = CompiledStateGraph[Any, Any, Any, Any]


@dataclass(frozen=True)
class Invocation:
    """One of the invocations of a node's subgraph that belong to the same moment of the graph around it."""

    node: str
    number: int
    """Its number among those of the node, from 0."""
    path: tuple[Any, ...]
    """LangGraph's address of the task within its graph."""

    def is_task(self, node: str, path: Sequence[Any]) -> bool:
        """True if a task of this name and address is this invocation."""
        return node == self.node and tuple(path[:3]) == self.path


@dataclass(frozen=True)
class _Wish:
    """The pauses that a walk wants: by depth, the invocation and the nodes."""

    inside: tuple[Invocation, ...]
    nodes: Any
    around: Any

    def is_pause(self, graph: Any, graphs: Sequence[Any], node: str) -> bool:
        for depth, one in enumerate(self.inside):
            nodes = self.nodes if depth == len(self.inside) - 1 else self.around
            if graphs[depth] is graph and (nodes == "*" or node in nodes):
                task = ensure_config().get("metadata", {})
                here = str(task.get("langgraph_checkpoint_ns", "")).count("|") == depth
                if here and one.is_task(task.get("langgraph_node", ""), task.get("langgraph_path", ())):
                    return True
        return False


_wish: ContextVar[tuple[_Wish, list[Any]] | None] = ContextVar("pauses", default=None)


class _Pauses:
    """The `interrupt_before` of a subgraph: what it was compiled with, and the pauses of the walk that runs it."""

    def __init__(self, graph: Any) -> None:
        self.graph, self.compiled = graph, graph.interrupt_before_nodes

    def __bool__(self) -> bool:
        return bool(self.compiled) or _wish.get() is not None

    def __contains__(self, node: str) -> bool:
        if node == "__start__" or self.compiled == "*" or node in self.compiled:
            return node != "__start__"
        wanted = _wish.get()
        return wanted is not None and wanted[0].is_pause(self.graph, wanted[1], node)


@contextmanager
def pause_in(graph: Graph, inside: Sequence[Invocation], nodes: Any, around: Any) -> Iterator[None]:
    """A context in which the subgraphs pause: the innermost invocation before `nodes`, those around it before `around`."""
    if not inside:
        yield
        return
    graphs: list[Any] = [innermost(graph, inside[: depth + 1]) for depth in range(len(inside))]
    for one in graphs:
        if not isinstance(one.interrupt_before_nodes, _Pauses):
            one.interrupt_before_nodes = _Pauses(one)
    token = _wish.set((_Wish(tuple(inside), nodes, around), graphs))
    try:
        yield
    finally:
        _wish.reset(token)


def find_subgraph(graph: Any, node: str) -> Any:
    """The graph that a node runs; None if there is none.

    LangGraph finds it in functions, not in objects: a graph that a node's object holds in a field is made known to it here.
    """
    if graph is None or node not in graph.nodes:
        return None
    part = graph.nodes[node]
    if not part.subgraphs:
        object = getattr(part.bound, "func", None) or part.bound
        held = [one for one in vars(getattr(object, "__self__", object)).values() if isinstance(one, Pregel)]
        part.subgraphs = held[:1]
    return part.subgraphs[0] if part.subgraphs and isinstance(part.subgraphs[0], Pregel) else None


def innermost(graph: Graph, inside: Sequence[Invocation]) -> Graph:
    """The graph that runs in the innermost of these invocations."""
    for one in inside:
        graph = find_subgraph(graph, one.node)
    return graph


def name_questions(tasks: Sequence[PregelTask]) -> dict[Any, str]:
    """Name of a node that asks -> the id of its question; empty if two questions have the same name."""
    asked = [(task.name, one.id) for task in tasks for one in task.interrupts]
    names = dict(asked)
    return names if len(names) == len(asked) else {}
