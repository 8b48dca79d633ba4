"""Edits of a run's state: they lead on as the nodes before them did, except where a router reads what they change."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send, StateUpdate

from .moments import call_graph
from .pauses import Graph, Invocation, innermost
from .record_copy import copy_record

__all__ = []


def write_edit(
    graph: Graph,
    place: RunnableConfig,
    channels: Mapping[str, Any],
    *,
    inside: Sequence[Invocation],
    in_loop: bool,
    nodes: Sequence[str],
    ended: Collection[str],
) -> tuple[Graph, RunnableConfig]:
    """The graph with a record of its own that ends with an edit of a place, and the edit's place.

    LangGraph writes values as if by nodes: their routers run anew, their Commands do not. Where other tasks follow than before, an edit
    of nothing tells why. If it leads to the same tasks, no router reads the change, and the old tasks follow. Otherwise the routers'
    tasks follow, beside the old ones to which no router leads.

    Args:
        inside: the invocations in which the place is.
        in_loop: whether the graph is called in the loop of walks.
        nodes: the nodes that ran before the place; none at the first.
        ended: ids of the place's tasks that have ended already, beside one that asks: they are not run again.
    """
    here: Any = innermost(graph, inside)

    def write(update: Any, by: Sequence[str | None], writer: Any = None) -> tuple[Graph, RunnableConfig, list[Send | str]]:
        saver, at = copy_record(graph.checkpointer, in_loop, place, anew=False), place
        copy = graph.copy({"checkpointer": saver})
        if writer:
            at = RunnableConfig(configurable={**place["configurable"], "__pregel_checkpointer": saver})
        updates = [StateUpdate({} if n else update, node) for n, node in enumerate(by)]
        made = call_graph(writer or copy, in_loop, "bulk_update_state", at, [updates])
        return copy, made, _tasks(copy, in_loop, made)

    before = _tasks(graph, in_loop, place)
    copy, made, tasks = write(dict(channels), nodes or [None])
    if _comparable(graph, tasks) != _comparable(graph, before):
        plain = write({}, nodes or [None])[2]
        if _comparable(graph, plain) == _comparable(graph, tasks):
            tasks = before
        else:
            drawn = Counter(map(_node, plain))
            for task in before:
                drawn[_node(task)] -= 1
                tasks += [task] * (drawn[_node(task)] < 0)
        first = next(name for name in here.nodes if name != "__start__")
        bare = here.nodes[first].copy({"writers": here.nodes[first].writers[:1]})  # without its arrows and routers
        writer = here.copy({"nodes": {**here.nodes, first: bare}, "interrupt_before_nodes": ()})
        copy, made, _ = write(Command(update=dict(channels), goto=tasks), [first], writer)
    written = call_graph(graph.checkpointer, in_loop, "get_tuple", place).pending_writes or []
    old, new = (call_graph(one, in_loop, "get_state", at).tasks for one, at in ((graph, place), (copy, made)))
    ids = {(task.name, task.path): task.id for task in new}
    for task in old:
        if task.id in ended and (task.name, task.path) in ids:
            left = [(channel, value) for id, channel, value in written if id == task.id]
            memory: Any = copy.checkpointer
            memory.put_writes(made, left, ids[task.name, task.path])
    return copy, made


def _tasks(graph: Graph, in_loop: bool, place: RunnableConfig) -> list[Send | str]:
    """The tasks about to run at a place: nodes' names, and what is sent to nodes."""
    names = [task.name for task in call_graph(graph, in_loop, "get_state", place).tasks if task.path[0] == "__pregel_pull"]
    saved = call_graph(graph.checkpointer, in_loop, "get_tuple", place)
    return [*names, *saved.checkpoint["channel_values"].get("__pregel_tasks", ())]


def _node(task: Send | str) -> str:
    return task if isinstance(task, str) else task.node


def _comparable(graph: Any, tasks: Sequence[Send | str]) -> list[Any]:
    """Tasks in a form to compare: the values that are sent may have no `==` of their own."""
    return [graph.checkpointer.serde.dumps_typed(task) for task in tasks]
