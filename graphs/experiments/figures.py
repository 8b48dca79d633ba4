"""Matplotlib figures shared by the studies: axes for scores over time, and files that appear in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = []

COLOURS = ("#1f5fbf", "#d1495b", "#8a8f98", "#2e8b57", "#9467bd", "#e08e0b", "#17a2b8", "#7f4f24")
"""Line colours, one per method, in the order of the command."""
LINE_STYLES = ("-", (0, (5, 2.5)), (0, (1.2, 1.6)), (0, (7, 2, 1.5, 2)))
"""Line styles, one per method: where curves are equal, the lower one shows through the gaps of the upper ones."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Marks of single points, one per method."""


def score_axes(title: str, xlabel: str, ylabel: str) -> tuple[Any, Any]:
    """A new matplotlib figure and its axes, for scores over whole steps or episodes.

    Args:
        title: text above the axes.
        xlabel: text below them; its ticks are whole numbers.
        ylabel: text beside them.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(7.6, 4.2)
    axes = figure.add_subplot()
    dress_axes(axes, title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size in inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress_axes(axes: Any, title: str) -> None:
    """Give matplotlib axes their title and the grid and frame of all our figures."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)


def save_figure(figure: Any, paths: Sequence[Path]) -> None:
    """Write a figure to files. Each file appears only once it is complete.

    Args:
        figure: a matplotlib figure.
        paths: files to write; the suffix gives the format (.png, .svg). Missing folders are made.
    """
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"part-{path.name}")
        figure.savefig(part, metadata={"Date": None} if path.suffix == ".svg" else None)
        part.replace(path)
