"""All that matplotlib draws of runs: curves by episode, and what others need to draw theirs.

The picture of a run (`draw_learning_curves`) has these panels, episode by episode:

    score                what each method scores          first minus others   who is ahead, paired by seed, with 95 % intervals
    steps per episode    learning that a score of 1 hides best score so far    the running maximum of each seed
    judged return        only where a judge gave what was learned from

Each curve is a mean over seeds. Seeds are tasks, and tasks differ more than methods do: bands around the curves would overlap
although one method is better on every task. So the intervals are those of the paired differences, and a band is drawn where there
is a single method. Up to 14 episodes are shown as they are; longer runs as a moving average over 3.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...nodes.cached_model import Prices
from ...nodes.evaluate.statistics import PairedTest, interval, mean, paired_test
from .equal_cost import Methods
from .measures import METRICS
from .results import SeedResult, last_episodes, optimum_name
from .tables import ResultTable

__all__ = ["draw_figures", "draw_learning_curves"]

COLOURS = ("#1f5fbf", "#d1495b", "#8a8f98", "#2e8b57", "#9467bd", "#e08e0b", "#17a2b8", "#7f4f24")
"""Line colours, one per method, in the order of the command."""
LINE_STYLES = ("-", (0, (5, 2.5)), (0, (1.2, 1.6)), (0, (7, 2, 1.5, 2)))
"""Line styles, one per method: where curves are equal, the lower one shows through the gaps of the upper ones."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Marks of single points, one per method."""
MOST_RAW_EPISODES = 14
"""Runs of at most so many episodes are drawn as they are, without a moving average."""
_LABELS = {"": "{}", "ahead": "ahead of\n{}", "behind": "behind\n{}", "not told apart": "not told apart\nfrom {}"}
"""Verdict on a paired difference -> the label of its row."""


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size in inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress_axes(axes: Any, title: str, *, counts: bool = False) -> None:
    """Give matplotlib axes their title and the grid and frame of all our figures; ticks at whole numbers if it `counts`."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    if counts:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def score_axes(title: str, xlabel: str, ylabel: str) -> tuple[Any, Any]:
    """A new matplotlib figure and its axes, for scores over whole steps or episodes."""
    figure = new_figure(7.6, 4.2)
    axes = figure.add_subplot()
    dress_axes(axes, title, counts=True)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


def draw_curve(
    axes: Any, number: int, label: str, places: Sequence[float], columns: Sequence[Sequence[float]], *, band: bool, **look: Any
) -> list[float]:
    """Draw a method's curve: the mean over seeds at each place, and its 95 % interval (Student's t) if `band`.

    Args:
        axes: matplotlib's, to draw on.
        number: the method's, which gives colour and style.
        label: its name.
        places: where it has numbers.
        columns: at each place, a number for each seed.
        band: whether the interval is drawn. Its ends may lie where no seed can score, and are cut there.
        look: arguments of matplotlib's `plot`.

    Returns:
        All heights that were drawn.
    """
    heights = [mean(column) for column in columns]
    colour, style = COLOURS[number % len(COLOURS)], LINE_STYLES[number % len(LINE_STYLES)]
    axes.plot(places, heights, color=colour, ls=style, lw=1.8 if number else 2.6, label=label, **look)
    spans = [span for column in columns if (span := interval(column))]
    if band and spans and len(spans) == len(columns):
        least, most = min(map(min, columns)), max(map(max, columns))
        low, high = zip(*((max(a, least), min(b, most)) for a, b in spans), strict=True)
        axes.fill_between(places, low, high, color=colour, alpha=0.12, lw=0)
        heights += [*low, *high]
    return heights


def save_figure(figure: Any, paths: Sequence[Path]) -> None:
    """Write a figure to files. Each file appears only once it is complete."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"part-{path.name}")
        figure.savefig(part, metadata={"Date": None} if path.suffix == ".svg" else None)
        part.replace(path)


def _finish(figure: Any, title: str, attempts: Methods, more: str, columns: int, paths: Sequence[Path]) -> None:
    """Give a figure of several panels its title and one legend, and write it."""
    count = len(attempts[0])
    seeds = f"mean of {count} seeds" if count > 1 else "one seed"
    figure.suptitle(f"{title}   ({seeds}{more})", x=0.01, ha="left", fontsize=12)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), frameon=False)
    save_figure(figure, paths)


# The pictures of a table


def draw_figures(table: ResultTable, folder: Path) -> list[Path]:
    """Draw learning curves as SVG and PNG. Returns the SVG file.

    As many methods are drawn as have a colour of their own: `against`, and the best of the others.
    """
    from matplotlib import rc_context

    first = [table.against] if table.against in table.runs else []
    others = [arm for arm in table.runs if arm not in first]
    ranked = sorted(others, key=lambda arm: -(table.estimates["avg"][arm].mean or 0.0))
    kept = [arm for arm in others if arm in ranked[: len(COLOURS) - len(first)]]
    title = f"{table.environment}, {table.model}"
    if len(kept) < len(others):
        title += f": {' and '.join([*first, f'the best {len(kept)} of {len(others)} others'])}"
    attempts = [table.runs[arm] for arm in (*first, *kept)]
    name = f"curves {table.environment} {table.model}"
    path = folder / f"{re.sub('[^A-Za-z0-9._=]+', '-', name)}.svg"
    # Text stays text, and ids of one picture are not those of another on the same page.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        draw_learning_curves(attempts, title, [path, path.with_suffix(".png")])
    return [path]


# Episode by episode


def moving_average(numbers: Sequence[float]) -> list[float]:
    """The mean of each number and of those before and behind it."""
    return [mean(numbers[max(0, i - 1) : i + 2]) for i in range(len(numbers))]


def draw_learning_curves(attempts: Methods, title: str, paths: Sequence[Path]) -> None:
    """Draw the panels of a run; see the module.

    Args:
        attempts: for each method its results, one per seed. The first method is the one that the others are compared with.
        title: text above the picture.
        paths: files to write; the suffix gives the format (.png, .svg).
    """
    leads, optimum = _leads(attempts), mean([a.optimum for a in attempts[0]])
    panels: list[Callable[[Any], None]] = [
        lambda axes: _draw_panel(axes, "score", attempts, lambda a: a.scores, optimum),
        lambda axes: _draw_panel(axes, "steps per episode", attempts, lambda a: a.steps),
        lambda axes: _draw_panel(axes, "best score so far", attempts, lambda a: [*accumulate(a.scores, max)], optimum),
    ]
    if leads:
        panels.insert(1, lambda axes: _draw_leads(axes, leads, attempts))
    if any(a.judged for seeds in attempts for a in seeds):
        panels.append(lambda axes: _draw_panel(axes, "judged return, which was learned from", attempts, _known_returns))
    rows = (len(panels) + 1) // 2
    figure = new_figure(11, 3.4 * rows + 0.6)
    for number, draw in enumerate(panels, 1):
        draw(figure.add_subplot(rows, 2, number))
    _finish(figure, title, attempts, "" if _is_short(attempts) else "; curves: moving average over 3 episodes", 5, paths)


def _is_short(attempts: Methods) -> bool:
    return max(len(a.scores) for seeds in attempts for a in seeds) <= MOST_RAW_EPISODES


def _known_returns(result: SeedResult) -> list[float]:
    """The judge's returns up to the first missing one."""
    missing = result.judged.index(None) if None in result.judged else len(result.judged)
    return [value for value in result.judged[:missing] if value is not None]


def _draw_panel(
    axes: Any, title: str, attempts: Methods, numbers: Callable[[SeedResult], Sequence[float]], optimum: float | None = None
) -> None:
    """Draw a curve per method over its episodes, and the optimum if given. A result without numbers leaves its seed out."""
    dress_axes(axes, title, counts=True)
    is_short, heights = _is_short(attempts), [0.0]
    for n, seeds in enumerate(attempts):
        rows = [values for a in seeds if (values := list(numbers(a)))]
        if not rows:
            continue
        shortest = min(map(len, rows))  # a budget of tokens may end some runs earlier
        kept = [values[:shortest] if is_short else moving_average(values[:shortest]) for values in rows]
        aside = 0.04 * (n - (len(attempts) - 1) / 2) if is_short else 0.0  # equal points stand side by side
        look = {"marker": MARKERS[n % len(MARKERS)] if is_short else "", "ms": 5 if n else 8}
        places = [e + aside for e in range(1, shortest + 1)]
        columns = list(zip(*kept, strict=True))
        heights += draw_curve(
            axes, n, seeds[0].method, places, columns, band=len(attempts) == 1, mfc="white" if n else COLOURS[0], **look
        )
    axes.set_xlim(0.8, max(2, *(len(a.scores) for seeds in attempts for a in seeds)) + 0.2)
    axes.set_xlabel("episode")
    if optimum is not None:
        axes.axhline(optimum, color="#444444", ls="--", lw=1, label=optimum_name(attempts[0]))
        heights.append(optimum)
    low, high = min(heights), max(heights)
    margin = 0.06 * (high - low) or 0.5
    axes.set_ylim(low - margin if low < 0 else -margin / 3, high + margin)


def _leads(attempts: Methods) -> dict[str, tuple[PairedTest, PairedTest]]:
    """Other method -> the first method's lead over it, over all episodes and over the last ones."""
    found = {}
    for theirs in attempts[1:]:
        avg, last = (
            paired_test(*({a.seed: METRICS[name].of(a, Prices()) for a in seeds} for seeds in (attempts[0], theirs)))
            for name in ("avg", "last")
        )
        if avg is not None and last is not None:
            found[theirs[0].method] = (avg, last)
    return found


def _draw_leads(axes: Any, found: Mapping[str, tuple[PairedTest, PairedTest]], attempts: Methods) -> None:
    """The first method's lead over each other one, with its 95 % interval: over all episodes, and over the last ones."""
    names = [seeds[0].method for seeds in attempts]
    many = max(len(avg.differences) for avg, _ in found.values())
    dress_axes(axes, f"{names[0]} minus …, paired by seed" + (", 95 % interval" if many > 1 else ""))
    last = last_episodes(max(len(a.scores) for seeds in attempts for a in seeds))
    for row, (over, (avg, final)) in enumerate(found.items()):
        number = names.index(over)
        for part, shift, is_filled in ((avg, -0.14, True), (final, 0.14, False)):
            colour, band = COLOURS[number % len(COLOURS)], part.by_t
            axes.errorbar(
                part.mean,
                row + shift,
                xerr=[[part.mean - band[0]], [band[1] - part.mean]] if band else None,
                color=colour,
                fmt=MARKERS[number % len(MARKERS)],
                mfc=colour if is_filled else "white",
                ms=8,
                lw=2.2 if is_filled else 1.4,
                capsize=3,
            )
    axes.axvline(0, color="#444444", lw=1)
    axes.set_yticks(range(len(found)), [_LABELS[avg.verdict()].format(over) for over, (avg, _) in found.items()])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#e6e6e6", lw=0.8)
    axes.set_xlabel(f"difference in score: behind  ← 0 →  ahead\nfilled: all episodes; open: {last}")
    if not any(x for pair in found.values() for part in pair for x in (part.mean, *(part.by_t or ()))):
        axes.set_xlim(-1, 1)  # matplotlib would make the axis 0.1 wide
