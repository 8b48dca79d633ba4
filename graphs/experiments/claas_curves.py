"""Curves of `learngraph claas study`: what happens while a stream is learned from, as in figures 6 and 7 of arXiv:2606.05559."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...memory.claas.replay import Replay
from ...nodes.evaluate.statistics import mean
from .continual import Trial
from .figures import COLOURS, LINE_STYLES, dress_axes, new_figure, save_figure

__all__ = ["STEP_CURVES", "draw_curves", "running_mean", "step_curves"]

STEP_CURVES = {"loss": "loss", "norm": "gradient norm", "entropy": "entropy, nats a token", "seconds": "seconds a step"}
"""Curves over gradient steps: name in a trial -> label in the picture."""
SCORE_WINDOW = 20
"""Scenarios in the running mean of the score."""


def step_curves(replay: Replay, tenant: str, adapter: str) -> dict[str, tuple[float, ...]]:
    """The columns of `STEP_CURVES`, and `time`, a step's end as the buffer's clock has it, for every gradient step in order."""
    rows = replay.updates(tenant, adapter, limit=10**6)[::-1]
    return {name: tuple(round(float(row[name]), 5) for row in rows) for name in (*STEP_CURVES, "time")}


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and those before it, at most `window` together."""
    return [mean(values[max(0, n - window) : n]) for n in range(1, len(values) + 1)]


def draw_curves(arms: Mapping[str, Sequence[Trial]], paths: Sequence[Path]) -> None:
    """Draw each arm's score, losses, entropy and step times, its buffer's level, and when it played and learned.

    Lines are means over trials, as far as all of them go. The last panel shows one trial: scenarios above, gradient steps below, in
    seconds; only arms that were played through a service have it.

    Args:
        arms: name of the arm -> its trials. Arms without gradient steps have a score only.
        paths: files to write; the suffix gives the format (.png, .svg).
    """
    panels = ["score", *STEP_CURVES, "buffer"]
    timed = next((trials[0] for trials in arms.values() if trials[0].curves.get("began")), None)
    figure = new_figure(12.0, 6.4 if timed is None else 8.6)
    grid = figure.add_gridspec(2 if timed is None else 3, 3)
    places = dict(zip(panels, (figure.add_subplot(grid[n // 3, n % 3]) for n in range(6)), strict=True))
    labels = {
        "score": f"scenarios won, mean of the last {SCORE_WINDOW}",
        "buffer": "exchanges ready to be learned from",
        **STEP_CURVES,
    }
    for name, place in places.items():
        dress_axes(place, labels[name])
        place.set_xlabel("gradient step" if name in STEP_CURVES else "scenario")
    for n, (arm, trials) in enumerate(arms.items()):
        style = {"color": COLOURS[n % len(COLOURS)], "ls": LINE_STYLES[n % len(LINE_STYLES)], "lw": 1.6}
        for name, place in places.items():
            if name == "score":
                columns = [running_mean(trial.online, SCORE_WINDOW) for trial in trials]
            else:
                columns = [list(trial.curves.get(name, ())) for trial in trials]
            values = [mean(column) for column in zip(*columns, strict=False)]
            if values:
                place.plot(range(1, len(values) + 1), values, label=arm if name == "score" else None, **style)
    if timed is not None:
        _draw_timeline(figure.add_subplot(grid[2, :]), timed)
    figure.legend(loc="outside upper center", ncols=min(len(arms), 6), frameon=False, fontsize=9)
    save_figure(figure, paths)


def _draw_timeline(place: Any, trial: Trial) -> None:
    """Bars over seconds: a trial's scenarios from begin to end, and its gradient steps."""
    curves = trial.curves
    dress_axes(place, f"{trial.arm}, one trial: the learner works while the next scenarios are played")
    place.broken_barh([(a, b - a) for a, b in zip(curves["began"], curves["ended"], strict=True)], (1.1, 0.8), color=COLOURS[0])
    spans = [(end - long, long) for end, long in zip(curves["time"], curves["seconds"], strict=True)]
    place.broken_barh(spans, (0.1, 0.8), color=COLOURS[1])
    place.set_yticks([0.5, 1.5], ["gradient steps", "scenarios"])
    place.set_ylim(0, 2)
    place.set_xlabel("seconds since the stream began")
