"""A moment of a walk as JSON for the page."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import StateSnapshot

from ...tools.notebook.moments import names_of, passes_along, source_of
from ...tools.notebook.tables import to_line
from ...tools.notebook.walk import Walk
from ..wiring.picture import held_objects
from .shown_values import decision_bars, show_state, show_value

__all__ = []


def describe_moment(walk: Walk, path: Sequence[StateSnapshot], memory_nodes: Collection[str]) -> dict[str, Any]:
    """The last moment of a path: its state, its decision, what memory was read, and the way through the graph up to it."""
    here, before = path[-1], path[-2] if len(path) > 1 else None
    number = len(path) - 1
    return {
        "title": f"{number}: before {names_of(here.next)}" if here.next else f"{number}: the end",
        "lit": list(here.next) or ["END"],
        "passes": [(*arrow, times) for arrow, times in passes_along(path, walk.here).items()],
        "state": show_state(here.values, before.values if before else None),
        "decision": _decision(path),
        "memory": _memory(path, memory_nodes),
    }


def title_of(path: Sequence[StateSnapshot], number: int) -> dict[str, str]:
    """A line about a moment: what ran to reach it, and what that wrote."""
    if number == 0:
        return {"title": "start", "text": f"before {names_of(path[0].next)}"}
    before = path[number - 1]
    if source_of(path[number]) == "update":
        return {"title": "edit", "text": "values written by hand"}
    wrote = {name: value for node in dict.fromkeys(before.next) for name, value in _result(before, node).items()}
    return {"title": names_of(before.next), "text": ", ".join(_brief(name, value) for name, value in wrote.items())}


def _brief(name: str, value: Any) -> str:
    """A channel that was written, in a few words: a number or a text with its value, of messages the last one."""
    last = value[-1] if isinstance(value, list) and value else value
    if isinstance(last, BaseMessage):
        return to_line(last, 120)
    return f"{name} {to_line(value, 24)}" if isinstance(value, str | int | float) else name


def _result(moment: StateSnapshot, node: str) -> Mapping[str, Any]:
    """The channels that a node wrote when it ran after this moment."""
    found = next((task.result for task in moment.tasks if task.name == node), None)
    return found if isinstance(found, Mapping) else {}


def _decision(path: Sequence[StateSnapshot]) -> dict[str, Any] | None:
    """The candidates of the present step. The action of the step before is not chosen among them."""
    writes = (name for before in reversed(path[:-1]) for node in before.next for name in _result(before, node))
    newest = next((name for name in writes if name in ("action", "candidates")), "action")
    values = path[-1].values
    return decision_bars(values if newest == "action" or not isinstance(values, Mapping) else {**values, "action": None})


def _memory(path: Sequence[StateSnapshot], nodes: Collection[str]) -> dict[str, Any]:
    """The newest results of the nodes that work on memory: what they read of it."""
    newest: dict[str, Mapping[str, Any]] = {}
    for moment in path[:-1]:
        newest |= {name: _result(moment, name) for name in moment.next if name in nodes}
    read = [{**shown, "name": f"{name}: {shown['name']}"} for name, found in newest.items() for shown in show_state(found)]
    return {"read": read, "written": []}


def show_writes(walk: Walk, path: Sequence[StateSnapshot], number: int) -> list[dict[str, Any]]:
    """The records that a walk has written into the memories of its nodes, up to one of its moments.

    Args:
        walk: the walk; of a what-if the writes of its branch are shown, which memory has not kept yet.
        path: its moments.
        number: the moment, from 0.
    """
    first, here = (str(one.config["configurable"]["checkpoint_id"]) for one in (path[0], path[number]))
    first = "" if walk.branch else first
    shown = []
    for memory in _memories(walk.here):
        seen = walk.branch.copy(memory) if walk.branch else memory
        later = seen.writes_since(here) if number < len(path) - 1 else {}
        for key, value in seen.writes_since(first).items():
            if key not in later:
                shown.append({**show_value(value), "name": f"{type(memory).__name__}: {key}"})
    return shown


def _memories(graph: Any) -> list[Any]:
    """The memories that the nodes of a graph hold, each once."""
    held = [one for spec in graph.builder.nodes.values() for one in held_objects(spec.runnable)]
    return list({id(one): one for one in held if hasattr(one, "writes_since") and hasattr(one, "as_of")}.values())
