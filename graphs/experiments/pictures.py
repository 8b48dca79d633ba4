"""The pictures of a benchmark: learning curves with their panels, and heat maps, as SVG for a page and as files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...nodes.evaluate.statistics import mean
from .figures import COLOURS, draw_cost_curves, draw_learning_curves, new_figure, save_figure
from .results import SeedResult
from .tables import ResultTable

__all__ = ["RunsPicture"]

MOST_CURVES = len(COLOURS)
"""Curves that can be told apart; of more methods the best are drawn, and all of them in the heat map."""


@dataclass(frozen=True)
class RunsPicture:
    """A picture and the runs that it shows."""

    path: Path
    """The SVG file."""
    shows: Mapping[int, Sequence[str]]
    """Number of a table -> labels of the methods in it whose runs are drawn."""


def draw_figures(tables: Sequence[ResultTable], folder: Path) -> dict[str, RunsPicture]:
    """Draw all pictures as SVG files.

    Args:
        tables: those with runs.
        folder: the folder of the files.

    Returns:
        `overview`, and for each table by its number `0 curves`, `0 costs` (where tokens were counted) and `0 episodes`: the picture.
    """
    from matplotlib import rc_context

    found: dict[str, RunsPicture] = {}

    def draw(key: str, name: str, part: Callable[[Path], None], shows: Mapping[int, Sequence[str]]) -> None:
        path = folder / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.svg"
        if any(path == other.path for other in found.values()):  # labels like `h=1` and `h.1`
            path = path.with_stem(f"{path.stem}-{len(found)}")
        found[key] = RunsPicture(path, shows)
        # Text stays text, and ids of one picture are not those of another on the same page.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
            part(found[key].path)

    for number, table in enumerate(tables):
        name = f"{table.environment} {table.model}"
        title, arms = _curves(table)
        attempts = [table.runs[arm] for arm in arms]
        draw(f"{number} curves", f"curves {name}", partial(_draw_to, draw_learning_curves, attempts, title), {number: arms})
        if any(run.tokens for run in table.all_runs):
            draw(f"{number} costs", f"costs {name}", partial(_draw_to, draw_cost_curves, attempts, title), {number: arms})
        draw(f"{number} episodes", f"episodes {name}", partial(_draw_episodes, table), {number: [*table.runs]})
    if len(tables) > 1:
        draw("overview", "overview", partial(_draw_overview, tables), {n: [*table.runs] for n, table in enumerate(tables)})
    return found


def _draw_to(draw: Callable[..., None], attempts: Sequence[Sequence[SeedResult]], title: str, path: Path) -> None:
    draw(attempts, title, [path, path.with_suffix(".png")])


def _curves(table: ResultTable) -> tuple[str, list[str]]:
    """The title and the methods whose curves are drawn, `against` first."""
    first = [table.against] if table.against in table.runs else []
    others = [arm for arm in table.runs if arm not in first]
    kept = others
    if len(table.runs) > MOST_CURVES:
        avg = table.estimates["avg"]
        best = sorted(others, key=lambda arm: -(avg[arm].mean or 0.0))[: MOST_CURVES - len(first)]
        kept = [arm for arm in others if arm in best]
    title = f"{table.environment}, {table.model}"
    if len(kept) < len(others):
        title += f": {' and '.join([*first, f'the best {len(kept)} of {len(others)} others'])}"
    return title, [*first, *kept]


def _draw_overview(tables: Sequence[ResultTable], path: Path) -> None:
    """Mean score as a share of the optimum: a row for each method, a column for each table."""
    arms = list(dict.fromkeys(arm for table in tables for arm in table.runs))
    cells = [[_share(table, arm) for table in tables] for arm in arms]
    texts = [["" if (one := _avg(table, arm)) is None else f"{one:.3g}" for table in tables] for arm in arms]
    names = [f"{table.environment}\n{table.model}" for table in tables]
    figure = new_figure(2.6 + 1.25 * len(names), 1.5 + 0.32 * len(arms))
    axes = figure.add_subplot()
    _draw_cells(figure, axes, cells, "mean score as a share of the optimum; the numbers are mean scores")
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks(range(len(arms)), arms, fontsize=8)
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            share = cells[row][column]
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if (share or 0) < 0.6 else "black")
    save_figure(figure, [path])


def _draw_episodes(table: ResultTable, path: Path) -> None:
    """The mean score of each episode as a share of the optimum: a row for each method, a column for each episode."""
    cells = []
    for runs in table.runs.values():
        length = min(len(run.scores) for run in runs)
        cells.append([_of_optimum(mean([run.scores[n] for run in runs]), table) for n in range(length)])
    figure = new_figure(11, 1.3 + 0.3 * len(cells))
    axes = figure.add_subplot()
    _draw_cells(
        figure,
        axes,
        cells,
        f"{table.environment}, {table.model}: score of each episode as a share of the optimum, mean over seeds",
    )
    axes.set_yticks(range(len(cells)), list(table.runs), fontsize=8)
    count = max(map(len, cells))
    step = max(1, count // 15)
    axes.set_xticks(range(0, count, step), [str(n + 1) for n in range(0, count, step)], fontsize=8)
    axes.set_xlabel("episode")
    save_figure(figure, [path])


def _draw_cells(figure: Any, axes: Any, cells: Sequence[Sequence[float | None]], title: str) -> None:
    import numpy as np

    width = max(map(len, cells))
    padded = [
        [float("nan") if value is None else value for value in line] + [float("nan")] * (width - len(line)) for line in cells
    ]
    # Below 0 as 0: points that were lost look as bad as none.
    image = axes.pcolormesh(
        np.arange(width + 1) - 0.5, np.arange(len(cells) + 1) - 0.5, np.array(padded), cmap="viridis", vmin=0, vmax=1
    )
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01)


def _avg(table: ResultTable, arm: str) -> float | None:
    return table.estimates["avg"][arm].mean if table.runs.get(arm) else None


def _share(table: ResultTable, arm: str) -> float | None:
    found = _avg(table, arm)
    return None if found is None else _of_optimum(found, table)


def _of_optimum(score: float, table: ResultTable) -> float:
    return score / table.optimum if table.optimum > 0 else score


def svg_text(picture: RunsPicture) -> str:
    """The picture as an element of a page, without the XML header."""
    text = picture.path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]
