"""Pictures of graphs, drawn on this machine: SVG or PNG by Graphviz (`pip install pygraphviz`), else Mermaid text.

    picture(graph)                       shows itself in a notebook
    picture(walk)                        with the node lit at which a walk stands, and its passes on the arrows
    save(graph, Path("jitrl.svg"))       .svg, .png or .mmd

The colour of a box says what its node does: ask a model, touch the environment, use the memory, or just compute. The node's
settings stand under its name.
"""

import math
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from html import escape
from inspect import getclosurevars, isfunction
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.errors import UserError, type_of
from .arrows import unwrap
from .drawn import Graph, drawn_edges, to_mermaid

__all__ = ["NotebookDrawing", "Picture", "describe_node", "has_graphviz", "held_objects", "picture", "save"]

COLOURS = {"model": "#dbe7ff", "environment": "#dff3e0", "memory": "#fff0d1", "compute": "#f0f0f2", "graph": "#efe3fb"}
"""Role of a node -> the colour of its box; `graph` is a subgraph."""


CELL_WIDTH = 640
"""Points of a notebook's cell on a usual screen."""


class PictureError(UserError, ValueError):
    """A picture that cannot be drawn or written as asked."""


class Position(Protocol):
    """A place in a run, such as a walk's (tools/notebook/walk.py)."""

    @property
    def here(self) -> Graph:
        """The graph in which it is."""

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes about to run."""

    def passes(self) -> Mapping[tuple[str, str], int]:
        """(from, to) -> how often that arrow was taken; the ends are START and END."""


class NotebookDrawing(ABC):
    """A drawing that shows itself in a notebook: as SVG where Graphviz is installed, else as Mermaid text."""

    @abstractmethod
    def mermaid(self) -> str:
        """The drawing as Mermaid text."""

    @abstractmethod
    def svg(self) -> str:
        """The drawing as an SVG document."""

    def fitted_svg(self) -> str:
        """The SVG document, shrunk to the cell of a notebook where it is wider than one."""
        svg = self.svg()
        return re.sub(r' width="[^"]*" height="[^"]*"', "", svg, count=1) if _width(svg) > CELL_WIDTH else svg

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        if has_graphviz():
            return {"image/svg+xml": self.fitted_svg(), "text/plain": self.mermaid()}
        return {"text/markdown": f"```mermaid\n{self.mermaid()}```", "text/plain": self.mermaid()}


@dataclass(frozen=True)
class Picture(NotebookDrawing):
    """A graph that shows itself in a notebook, without asking any server."""

    graph: Graph
    direction: Literal["LR", "TD"] = "LR"
    lit: tuple[str, ...] = ()
    """The nodes about to run, which are lit."""
    passes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(from, to) -> how often that arrow was taken, which stands on it."""

    def __str__(self) -> str:
        return self.mermaid()

    def mermaid(self) -> str:
        """The drawing as Mermaid text, which `flow.wire` can read."""
        return to_mermaid(self.graph, self.direction)

    def svg(self) -> str:
        """The picture as an SVG document."""
        return svg_document(_draw(self))

    def fitted_svg(self) -> str:
        """The SVG document for a notebook: one that would be shrunk by more than a third goes from the top down instead."""
        is_wide = self.direction == "LR" and _width(self.svg()) > 1.5 * CELL_WIDTH
        return replace(self, direction="TD").fitted_svg() if is_wide else super().fitted_svg()

    def png(self) -> bytes:
        """The picture as a PNG file."""
        return _render(_draw(self, dpi=160), "png")


def picture(graph: Graph | Position, direction: Literal["LR", "TD"] = "LR") -> Picture:
    """The picture of any compiled graph, or of a walk: of the graph in which it stands, with its place and its way."""
    if isinstance(graph, CompiledStateGraph):
        return Picture(graph, direction)
    if not hasattr(graph, "here"):
        remedy = "; call its compile() first" if isinstance(graph, StateGraph) else ""
        raise UserError(f"picture takes a graph that build has made, or a walk; got {type_of(graph)}{remedy}")
    return Picture(graph.here, direction, graph.next, graph.passes())


def describe_node(name: str, runnable: Any) -> dict[str, Any]:
    """The content of a node's box, for other pictures than Graphviz's: its role (a key of `COLOURS`), settings and first sentence."""
    part = _node_object(runnable)
    about = _tooltip(name, part).removeprefix(name).removeprefix(": ")
    return {"role": _role(part), "settings": [f"{n} = {v}" for n, v in _settings(part)], "about": about}


def held_objects(runnable: Any) -> list[Any]:
    """The values of a node's fields: its memory, its world, its model, its settings."""
    return list(getattr(_node_object(runnable), "__dict__", {}).values())


def has_graphviz() -> bool:
    """True if Graphviz (pygraphviz) is installed."""
    from importlib.util import find_spec

    return find_spec("pygraphviz") is not None


def save(graph: Graph, path: Path) -> None:
    """Write the picture of a graph to a file; the suffix gives the format.

    Raises:
        PictureError: the suffix is none of .svg, .png, .mmd, or Graphviz is needed and missing, or the file cannot be written.
    """
    if path.suffix not in (".svg", ".png", ".mmd"):
        raise PictureError(f"a picture is a .svg, .png or .mmd file, not {path.name}")
    if path.suffix != ".mmd" and not has_graphviz():
        raise PictureError(f"{path.suffix} needs Graphviz: pip install pygraphviz; .mmd needs nothing")
    shown = Picture(graph)
    data = shown.png() if path.suffix == ".png" else (shown.svg() if path.suffix == ".svg" else shown.mermaid()).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise PictureError(f"cannot write {path}: {error.strerror or error}") from error


def new_drawing(direction: Literal["LR", "TD"], dpi: int = 72) -> Any:
    """An empty drawing of Graphviz's, with the boxes and arrows of all our pictures."""
    import pygraphviz  # type: ignore[import-untyped]

    drawn = pygraphviz.AGraph(
        directed=True, strict=False, rankdir="TB" if direction == "TD" else direction, bgcolor="transparent", pad=0.1
    )
    drawn.graph_attr.update(fontname="Helvetica", nodesep=0.35, ranksep=0.2 if direction == "TD" else 0.4, dpi=dpi)
    drawn.node_attr.update(
        shape="box", style="rounded,filled", color="#9aa0a8", penwidth=1, fontname="Helvetica", fontsize=11, margin="0.14,0.08"
    )
    drawn.edge_attr.update(color="#5c636b", fontcolor="#3c4148", fontname="Helvetica", fontsize=9, arrowsize=0.7)
    return drawn


def svg_document(drawn: Any) -> str:
    """A drawing of Graphviz's as an SVG document."""
    text = _render(drawn, "svg").decode()
    return text[text.index("<svg") :]


def _width(svg: str) -> float:
    """The width of an SVG document, in points."""
    found = re.search(r'<svg width="([\d.]+)pt"', svg)
    return float(found[1]) if found else 0.0


def _render(drawn: Any, form: str) -> bytes:
    with _quiet():
        return cast(bytes, drawn.draw(format=form, prog="dot"))


def _draw(picture: Picture, dpi: int = 72) -> Any:
    graph, left = picture.graph, dict(picture.passes)
    drawn = new_drawing(picture.direction, dpi)
    for end in ("START", "END"):
        drawn.add_node(end, label=end.lower(), shape="plain", style="", fontcolor="#5c636b", fontsize=10)
    for name, node in graph.builder.nodes.items():
        part = _node_object(node.runnable)
        look: dict[str, Any] = {"color": "#d1490a", "penwidth": 3} if name in picture.lit else {}
        look |= {"style": "rounded,filled,dashed"} if node.defer else {}
        drawn.add_node(
            name,
            label=_label(name, part, picture.direction),
            fillcolor=COLOURS[_role(part)],
            tooltip=_tooltip(name, part),
            **look,
        )
    for edge in drawn_edges(graph):
        times = left.pop((edge.source, edge.target), 0)  # arrows between the same nodes: the first one has the number
        told = " ".join(filter(None, [edge.label, f"×{times}" if times else ""]))
        look = {"label": f" {told} "} if told else {}
        look |= {"color": "#d1490a", "fontcolor": "#d1490a"} if times else {}
        look |= {"style": "dashed"} if edge.dotted else {}
        drawn.add_edge(edge.source, edge.target, key=edge.label or None, **look)
    return drawn


@contextmanager
def _quiet() -> Iterator[None]:
    """A context in which C code prints nothing: the bundled Fontconfig complains about the settings of a newer one."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _node_object(runnable: Any) -> Any:
    """The node inside the Runnable that LangGraph wraps around a function."""
    part = unwrap(runnable)
    return part.func if isinstance(part, partial) else part


def _role(part: Any) -> str:
    if isinstance(part, CompiledStateGraph):
        return "graph"
    is_tools = hasattr(getattr(part, "__self__", None), "tools_by_name")  # LangGraph's ToolNode
    role = "environment" if is_tools else getattr(part, "role", "compute")
    if isfunction(part) and any(hasattr(one, "bind_tools") for names in getclosurevars(part)[:2] for one in names.values()):
        role = "model"  # it refers to a chat model
    return role if role in COLOURS else "compute"


def _settings(part: Any) -> Iterator[tuple[str, str]]:
    """The fields of a node that are numbers, strings or booleans, with their values as text; models and memories are no settings."""
    for one in fields(part) if is_dataclass(part) else ():
        value = getattr(part, one.name)
        if one.repr and isinstance(value, bool | int | float | str) and value not in ("", math.inf):
            yield one.name, f"{value:g}" if isinstance(value, float) else str(value)


def _label(name: str, part: Any, direction: str) -> str:
    """The text of a box. From the top down, where height is scarce, up to three settings share a line."""
    said, several = [escape(f"{n} = {v}") for n, v in _settings(part)], 3 if direction == "TD" else 1
    rows = [", ".join(said[i : i + several]) for i in range(0, len(said), several)]
    below = "".join(f'<BR/><FONT POINT-SIZE="9" COLOR="#5c636b">{row}</FONT>' for row in rows)
    return f"<<B>{escape(name)}</B>{below}>"


def _tooltip(name: str, part: Any) -> str:
    about = (getattr(part, "__doc__", None) or "").strip().splitlines()
    return f"{name}: {about[0]}" if about else name
