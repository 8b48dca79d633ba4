"""The picture of a run: scores, paired differences, steps and the best score so far, episode by episode.

    score                what each method scores          first minus others   who is ahead, paired by seed, with 95 % intervals
    steps per episode    learning that a score of 1 hides best score so far    the running maximum of each seed
    judged return        only where a judge gave what was learned from

Each curve is a mean over seeds. Seeds are tasks, and tasks differ more than methods do: bands around the curves would overlap
although one method is better on every task. So the intervals are those of the paired differences, and a band is drawn where there
is a single method. Up to 14 episodes are shown as they are; longer runs as a moving average over 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...nodes.evaluate.statistics import PairedTest, interval, mean, paired_test
from .figures import COLOURS, LINE_STYLES, MARKERS, dress_axes, new_figure, save_figure
from .results import SeedResult, final_count, last_episodes, optimum_name

__all__ = ["draw_learning_curves"]

MOST_RAW_EPISODES = 14
"""Runs of at most so many episodes are drawn as they are, without a moving average."""

_LABELS = {"": "{}", "ahead": "ahead of\n{}", "behind": "behind\n{}", "not told apart": "not told apart\nfrom {}"}
"""Verdict on a paired difference -> the label of its row."""
_Methods = Sequence[Sequence[SeedResult]]
"""For each method its results, one per seed."""


def moving_average(numbers: Sequence[float], width: int = 3) -> list[float]:
    """The centred moving average over `width` (odd) neighbours, fewer at the ends."""
    half = width // 2
    return [mean(numbers[max(0, i - half) : i + half + 1]) for i in range(len(numbers))]


def draw_learning_curves(attempts: _Methods, title: str, paths: Sequence[Path]) -> None:
    """Draw the panels of a run; see the module.

    Args:
        attempts: for each method its results, one per seed. The first method is the one that the others are compared with.
        title: text above the picture.
        paths: files to write; the suffix gives the format (.png, .svg).
    """
    found = _leads(attempts)
    panels: list[Callable[[Any], None]] = [lambda axes: _draw_scores(axes, attempts)]
    if found:
        panels.append(lambda axes: _draw_leads(axes, found, attempts))
    panels.append(lambda axes: _draw_steps(axes, attempts))
    panels.append(lambda axes: _draw_best_so_far(axes, attempts))
    if any(a.judged for seeds in attempts for a in seeds):
        panels.append(lambda axes: _draw_judged(axes, attempts))
    rows = (len(panels) + 1) // 2
    figure = new_figure(11, 3.4 * rows + 0.6)
    for number, draw in enumerate(panels, 1):
        draw(figure.add_subplot(rows, 2, number))
    count = len(attempts[0])
    smooth = "" if _is_short(attempts) else "; curves: moving average over 3 episodes"
    figure.suptitle(
        f"{title}   ({f'mean of {count} seeds' if count > 1 else 'one seed'}{smooth})", x=0.01, ha="left", fontsize=12
    )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False)
    save_figure(figure, paths)


def _is_short(attempts: _Methods) -> bool:
    return max(len(a.scores) for seeds in attempts for a in seeds) <= MOST_RAW_EPISODES


def _draw_curves(axes: Any, attempts: _Methods, numbers: Callable[[SeedResult], Sequence[float]]) -> list[float]:
    """Draw a curve per method over its episodes: the mean over seeds of these numbers. Returns all heights that were drawn.

    Args:
        axes: matplotlib's, to draw on.
        attempts: the results.
        numbers: a result -> one number per episode; none at all leaves the seed out.
    """
    from matplotlib.ticker import MaxNLocator

    is_short, heights = _is_short(attempts), list[float]()
    for n, seeds in enumerate(attempts):
        columns = [values for a in seeds if (values := list(numbers(a)))]
        if not columns:
            continue
        shortest = min(map(len, columns))  # a budget of tokens may end some runs earlier
        kept = [values[:shortest] if is_short else moving_average(values[:shortest]) for values in columns]
        middles = [mean(values) for values in zip(*kept, strict=True)]
        colour = COLOURS[n % len(COLOURS)]
        aside = 0.04 * (n - (len(attempts) - 1) / 2) if is_short else 0.0  # equal points stand side by side
        episodes = [e + aside for e in range(1, shortest + 1)]
        axes.plot(
            episodes,
            middles,
            color=colour,
            lw=2.6 if n == 0 else 1.8,
            ls=LINE_STYLES[n % len(LINE_STYLES)],
            marker=MARKERS[n % len(MARKERS)] if is_short else "",
            ms=8 if n == 0 else 5,
            mfc=colour if n == 0 else "white",
            label=seeds[0].method,
        )
        heights += middles
        bands = [interval(values) for values in zip(*kept, strict=True)]
        if len(attempts) == 1 and None not in bands:
            # The interval is Student's; its ends may lie where no seed can score, and are cut there.
            least, most = min(map(min, kept)), max(map(max, kept))
            low, high = zip(*((max(band[0], least), min(band[1], most)) for band in bands if band), strict=True)
            axes.fill_between(episodes, low, high, color=colour, alpha=0.12, lw=0)
            heights += [*low, *high]
    axes.set_xlim(0.8, max(2, *(len(a.scores) for seeds in attempts for a in seeds)) + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("episode")
    return heights


def _set_heights(axes: Any, heights: Sequence[float]) -> None:
    """Let the y axis show these heights and 0, with a margin; also where all are 0."""
    low, high = min([0.0, *heights]), max([0.0, *heights])
    margin = 0.06 * (high - low) or 0.5
    axes.set_ylim(low - margin if low < 0 else -margin / 3, high + margin)


def _draw_scores(axes: Any, attempts: _Methods) -> None:
    dress_axes(axes, "score")
    heights = _draw_curves(axes, attempts, lambda a: a.scores)
    _draw_optimum(axes, attempts, heights)


def _draw_optimum(axes: Any, attempts: _Methods, heights: Sequence[float]) -> None:
    optimum = mean([a.optimum for a in attempts[0]])
    axes.axhline(optimum, color="#444444", ls="--", lw=1, label=optimum_name(attempts[0]))
    _set_heights(axes, [*heights, optimum])


def _draw_best_so_far(axes: Any, attempts: _Methods) -> None:
    """The highest score up to each episode: what is reached if the best attempt may be kept."""
    dress_axes(axes, "best score so far")
    heights = _draw_curves(axes, attempts, lambda a: list(accumulate(a.scores, max)))
    _draw_optimum(axes, attempts, heights)


def _draw_steps(axes: Any, attempts: _Methods) -> None:
    dress_axes(axes, "steps per episode")
    _set_heights(axes, _draw_curves(axes, attempts, lambda a: a.steps))


def _draw_judged(axes: Any, attempts: _Methods) -> None:
    """The judge's return of each episode; a seed with a missing one is drawn up to it, and the others with it."""
    dress_axes(axes, "judged return, which was learned from")

    def known(result: SeedResult) -> list[float]:
        values = list[float]()
        for value in result.judged:
            if value is None:
                break
            values.append(value)
        return values

    _set_heights(axes, _draw_curves(axes, attempts, known))


def _leads(attempts: _Methods) -> dict[str, tuple[PairedTest, PairedTest]]:
    """Other method -> the first method's lead over it, over all episodes and over the last ones."""
    found = {}
    for theirs in attempts[1:]:
        avg, last = (
            paired_test(*({a.seed: of(a) for a in seeds} for seeds in (attempts[0], theirs)))
            for of in (_mean_score, _last_score)
        )
        if avg is not None and last is not None:
            found[theirs[0].method] = (avg, last)
    return found


def _mean_score(result: SeedResult) -> float:
    return mean(result.scores)


def _last_score(result: SeedResult) -> float:
    return mean(result.scores[-final_count(len(result.scores)) :])


def _draw_leads(axes: Any, found: Mapping[str, tuple[PairedTest, PairedTest]], attempts: _Methods) -> None:
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
