"""The picture of a memory: its states as boxes, and its remembered actions as arrows with their visits and mean returns.

picture_memory(memory)                shows itself in a notebook: SVG by Graphviz (`pip install pygraphviz`), else Mermaid text
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import count

from ...memory.records import Experience
from ...memory.returns.transition_graph import RememberedArrow, TransitionGraph, transition_graph
from .picture import has_graphviz, quiet

__all__ = ["picture_memory"]

END = "end"
"""Name of the box for the end of an episode."""


@dataclass(frozen=True)
class MemoryPicture:
    """The graph of a memory, which shows itself in a notebook without asking any server.

    The more an action returned, the darker and thicker its arrow; the first line of a state is its name, with a number where
    several states have the same one.
    """

    graph: TransitionGraph

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        if has_graphviz():
            return {"image/svg+xml": self.svg(), "text/plain": self.mermaid()}
        return {"text/markdown": f"```mermaid\n{self.mermaid()}```", "text/plain": self.mermaid()}

    def names(self) -> Mapping[str, str]:
        """State -> the name of its box."""
        titles = {state: _first_sentence(state) for state in self.graph.states}
        shared, numbers = Counter(titles.values()), {title: count(1) for title in titles.values()}
        return {state: f"{title} ({next(numbers[title])})" if shared[title] > 1 else title for state, title in titles.items()}

    def mermaid(self) -> str:
        """The picture as Mermaid text."""
        names, ids = self.names(), {state: f"s{n}" for n, state in enumerate(self.graph.states)}
        boxes = [f'  {ids[state]}["{_plain(name)}"]' for state, name in names.items()]
        arrows = [f'  {ids[one.state]} -->|"{_plain(_label(one))}"| {ids.get(one.following, END)}' for one in self.graph.arrows]
        return "\n".join(["flowchart TD", *boxes, *arrows]) + "\n"

    def svg(self) -> str:
        """The picture as an SVG document."""
        import pygraphviz  # type: ignore[import-untyped]

        drawn = pygraphviz.AGraph(directed=True, strict=False, rankdir="TB", bgcolor="transparent", pad=0.1)
        drawn.graph_attr.update(fontname="Helvetica", nodesep=0.35, ranksep=0.35, dpi=72)
        drawn.node_attr.update(
            shape="box", style="rounded,filled", color="#9aa0a8", fillcolor="#fff0d1", fontname="Helvetica", fontsize=11
        )
        drawn.edge_attr.update(fontname="Helvetica", fontsize=9, arrowsize=0.7)
        for state, name in self.names().items():
            drawn.add_node(state, label=escape(name), tooltip=escape(state))
        if any(one.following not in self.graph.states for one in self.graph.arrows):
            drawn.add_node(END, label=END, shape="plain", style="", fontcolor="#5c636b")
        top = max((one.mean for one in self.graph.arrows), default=0.0)
        low = min((one.mean for one in self.graph.arrows), default=0.0)
        for number, one in enumerate(self.graph.arrows):
            share = (one.mean - low) / (top - low) if top > low else 1.0
            colour = _blend(share)
            to = one.following if one.following in self.graph.states else END
            look = {"color": colour, "fontcolor": colour, "penwidth": f"{0.8 + 2 * share:.2f}"}
            drawn.add_edge(one.state, to, key=str(number), label=escape(f" {_label(one)} "), **look)
        with quiet():
            text: str = drawn.draw(format="svg", prog="dot").decode()
        return text[text.index("<svg") :]


def picture_memory(experiences: Iterable[Experience], least_visits: int = 1) -> MemoryPicture:
    """The picture of a memory (`Experiences`), or of some of its experiences.

    Args:
        experiences: as for `memory.returns.transition_graph.transition_graph`.
        least_visits: leave out what was done less often.
    """
    return MemoryPicture(transition_graph(experiences, least_visits))


def _label(arrow: RememberedArrow) -> str:
    return f"{arrow.action}: {arrow.visits} x, {arrow.mean:.2g}"


def _first_sentence(state: str, limit: int = 40) -> str:
    line = next(iter(state.strip().splitlines()), "").partition(". ")[0].rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _plain(text: str) -> str:
    return text.replace('"', "'")


def _blend(share: float) -> str:
    """A colour from grey (share 0) to blue (1)."""
    grey, blue = (0xA9, 0xAF, 0xB7), (0x1F, 0x5F, 0xBF)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(grey, blue, strict=True))
