"""A graph as JSON for the page: boxes with what they do and are set to, and arrows."""

from __future__ import annotations

from typing import Any

from ..wiring.mermaid import read_flow
from ..wiring.picture import describe_node

__all__ = []


def show_graph(text: str, graph: Any = None) -> dict[str, Any]:
    """The boxes and arrows of a drawing.

    Args:
        text: the drawing.
        graph: a compiled graph whose nodes have the names of the drawing; None if there is none (yet).

    Raises:
        FlowError: the drawing cannot be read.
    """
    drawn = read_flow(text)
    specs = graph.builder.nodes if graph is not None else {}
    boxes = [
        {"name": name, "text": node.text, **(describe_node(name, specs[name].runnable) if name in specs else {})}
        for name, node in drawn.nodes.items()
    ]
    arrows = [
        {"source": e.source, "target": e.target, "label": e.label, "dotted": e.dotted, "join": bool(e.join)}
        for e in drawn.edges
    ]
    return {"nodes": boxes, "edges": arrows, "direction": drawn.direction}
