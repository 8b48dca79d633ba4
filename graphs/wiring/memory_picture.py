"""The picture of a memory: its states as boxes, and its remembered actions as arrows with their visits and mean returns.

picture_memory(memory)                shows itself in a notebook: SVG by Graphviz (`pip install pygraphviz`), else Mermaid text
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import count

from ...memory.display import short
from ...memory.records import Experience
from .picture import COLOURS, NotebookDrawing, new_drawing, svg_document

__all__ = ["MemoryPicture", "RememberedArrow", "picture_memory"]

END = "end"
"""Name of the box for the end of an episode."""


@dataclass(frozen=True, slots=True)
class RememberedArrow:
    """The visits to an action in a state that led to the same next state."""

    state: str
    action: str
    following: str
    """The next state; empty where the episode ended, or the next step is not remembered."""
    visits: int
    mean: float
    """Mean return G of these visits, in reward units."""


@dataclass(frozen=True)
class MemoryPicture(NotebookDrawing):
    """The graph of a memory, which shows itself in a notebook without asking any server.

    The more an action returned, the darker and thicker its arrow; the first line of a state is its name, with a number where
    several states have the same one.
    """

    states: tuple[str, ...]
    """In the order in which they were met first."""
    arrows: tuple[RememberedArrow, ...]
    """An action whose outcome varies has one arrow for each next state."""

    def names(self) -> Mapping[str, str]:
        """State -> the name of its box."""
        titles = {state: _first_sentence(state) for state in self.states}
        shared, numbers = Counter(titles.values()), {title: count(1) for title in titles.values()}
        return {state: f"{title} ({next(numbers[title])})" if shared[title] > 1 else title for state, title in titles.items()}

    def mermaid(self) -> str:
        """The picture as Mermaid text."""
        names, ids = self.names(), {state: f"s{n}" for n, state in enumerate(self.states)}
        boxes = [f'  {ids[state]}["{_plain(name)}"]' for state, name in names.items()]
        arrows = [f'  {ids[one.state]} -->|"{_plain(_label(one))}"| {ids.get(one.following, END)}' for one in self.arrows]
        return "\n".join(["flowchart TD", *boxes, *arrows]) + "\n"

    def svg(self) -> str:
        """The picture as an SVG document."""
        drawn = new_drawing("TD")
        drawn.node_attr.update(fillcolor=COLOURS["memory"])
        for state, name in self.names().items():
            drawn.add_node(state, label=escape(name), tooltip=escape(state))
        if any(one.following not in self.states for one in self.arrows):
            drawn.add_node(END, label=END, shape="plain", style="", fontcolor="#5c636b")
        top = max((one.mean for one in self.arrows), default=0.0)
        low = min((one.mean for one in self.arrows), default=0.0)
        for number, one in enumerate(self.arrows):
            share = (one.mean - low) / (top - low) if top > low else 1.0
            colour = _blend(share)
            to = one.following if one.following in self.states else END
            look = {"color": colour, "fontcolor": colour, "penwidth": f"{0.8 + 2 * share:.2f}"}
            drawn.add_edge(one.state, to, key=str(number), label=escape(f" {_label(one)} "), **look)
        return svg_document(drawn)


def picture_memory(experiences: Iterable[Experience]) -> MemoryPicture:
    """The picture of a whole memory (`Experiences`), or of some of its experiences.

    Args:
        experiences: those of an episode follow each other, in the order of its steps.
    """
    found: dict[tuple[str, str, str], list[float]] = {}
    steps = list(experiences)
    for one, following in zip(steps, [*steps[1:], None], strict=True):
        after = following.state if following is not None and _follows(one, following) else ""
        found.setdefault((one.state, one.action, after), []).append(one.value)
    arrows = tuple(
        RememberedArrow(state, action, after, len(values), sum(values) / len(values))
        for (state, action, after), values in found.items()
    )
    return MemoryPicture(tuple(dict.fromkeys(one.state for one in steps)), arrows)


def _follows(one: Experience, other: Experience) -> bool:
    (episode, _, step), (other_episode, _, other_step) = one.id.rpartition("/"), other.id.rpartition("/")
    return episode == other_episode and int(other_step) == int(step) + 1


def _label(arrow: RememberedArrow) -> str:
    return f"{arrow.action}: {arrow.visits} x, {arrow.mean:.2g}"


def _first_sentence(state: str, limit: int = 40) -> str:
    return short(next(iter(state.strip().splitlines()), "").partition(". ")[0].rstrip("."), limit)


def _plain(text: str) -> str:
    return text.replace('"', "'")


def _blend(share: float) -> str:
    """A colour from grey (share 0) to blue (1)."""
    grey, blue = (0xA9, 0xAF, 0xB7), (0x1F, 0x5F, 0xBF)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(grey, blue, strict=True))
