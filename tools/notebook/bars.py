"""A picture of one decision: each candidate's logit and probability, with and without memory."""

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from matplotlib.figure import Figure

__all__ = ["Bars", "bars"]


class Bars(Figure):
    """A figure that shows itself in a notebook, with or without matplotlib's inline mode."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def bars(state: Mapping[str, Any]) -> Bars:
    """A picture of a decision: each candidate's logit and probability, without and with memory.

    Args:
        state: the channels `candidates` (with logits in nats) and optionally `prior` (their logits without memory) and `action`.
    """
    found, chosen = state["candidates"], state.get("action")
    after = [c.logit for c in found]
    before = list(state.get("prior") or after)
    if len(before) != len(after):  # the next step has proposed, and not updated yet
        before = after
    order = sorted(range(len(found)), key=lambda i: after[i])
    places = range(len(order))
    figure = Bars(figsize=(9.5, 0.9 + 0.36 * len(order)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, old, new, title in (
        (panels[0], before, after, "logit, nats"),
        (panels[1], _softmax(before), _softmax(after), "probability"),
    ):
        axes.barh([p + 0.19 for p in places], [old[i] for i in order], 0.36, color="#b9bfc7", label="policy alone")
        axes.barh([p - 0.19 for p in places], [new[i] for i in order], 0.36, color="#1f5fbf", label="with memory")
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.axvline(0, color="#444444", lw=0.8)
        axes.grid(axis="x", color="#e6e6e6", lw=0.8)
        axes.set_axisbelow(True)
    panels[0].set_yticks(list(places), [found[i].action for i in order])
    for label, i in zip(panels[0].get_yticklabels(), order, strict=True):
        label.set_fontweight("bold" if found[i].action == chosen else "normal")
    panels[1].set_xlim(0, 1)
    panels[1].tick_params(left=False)
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    return figure


def _softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(z - max(logits)) for z in logits]
    return [w / sum(weights) for w in weights]
