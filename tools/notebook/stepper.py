"""Walk through a run of any LangGraph graph that has a checkpointer: pause, look, edit, go back, fork, compare.

    walk = start(graph, {"task": task, "run": "demo", "episode": 0})
    walk.until("choose")                       run to the pause before that node
    walk.state["candidates"], walk.view()      look
    walk.edit(action="open door").step()       another future
    walk.back(3)                               an earlier moment; later ones stay on record
    other = walk.fork()                        two futures from here
    compare(walk, other, before="act", show=["action"])

Made for notebooks: the returned objects show themselves there and print as text elsewhere. A walk stops at the nodes of the
graph itself; to step inside a subgraph, start that subgraph. Going back and on again executes nodes again, with all their
effects on the outside world.

A forked or edited walk, and one that went back, is a what-if: the journal and the memories of this project keep what they hold of
the real run, and take nothing in (memory/what_if.py). Another store that a graph writes to knows nothing of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from html import escape
from io import BytesIO
from itertools import pairwise, zip_longest
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot
from matplotlib.figure import Figure

from ...memory.errors import UserError
from ...memory.what_if import WhatIf

__all__ = ["Bars", "StepperError", "Table", "Walk", "bars", "compare", "start", "table"]

Graph = CompiledStateGraph[Any, Any, Any, Any]


class StepperError(UserError, ValueError):
    """A step that the run cannot take, or a name that it does not have."""


@dataclass(frozen=True)
class Table:
    """A table of texts. It shows as HTML in a notebook; `str` gives aligned text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()
    """Numbers of the highlighted rows, from 0."""
    title: str = ""

    def __str__(self) -> str:
        lines = [("", *self.head)] + [("*" if i in self.marked else "", *row) for i, row in enumerate(self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head) + 1)]
        shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self.title, *shown] if self.title else shown)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = '<{0} style="text-align:left;vertical-align:top;padding:2px 12px 2px 4px;white-space:pre-wrap">{1}</{0}>'
        head = "".join(cell.format("th", escape(name)) for name in self.head)
        body = "".join(
            f'<tr style="{"background:#fff0d1;color:#222" if i in self.marked else ""}">'
            + "".join(cell.format("td", escape(text)) for text in row)
            + "</tr>"
            for i, row in enumerate(self.rows)
        )
        title = f"<p>{escape(self.title)}</p>" if self.title else ""
        return f"{title}<table><tr>{head}</tr>{body}</table>"


def table(records: Sequence[Any], show: Sequence[str] = ()) -> Table:
    """A table of records.

    Args:
        records: dataclasses of one type, or mappings.
        show: names of the columns, in order; empty: all.

    Raises:
        StepperError: there is no column of that name.
    """
    if not records:
        return Table(("nothing",), ())
    first = records[0]
    known = [one.name for one in fields(first)] if is_dataclass(first) else list(first)
    names = tuple(show or known)
    if unknown := [name for name in names if name not in known]:
        raise StepperError(f"there is no column {unknown[0]!r}; there are {', '.join(known)}")
    return Table(names, tuple(tuple(_shorten(one, name) for name in names) for one in records))


def _shorten(holder: Any, name: str, limit: int = 110) -> str:
    value = holder[name] if isinstance(holder, Mapping) else getattr(holder, name)
    match value:
        case str():
            text = value
        case float():
            text = f"{value:.3g}"
        case [first, _, *_]:
            text = f"{len(value)} of these: {first!r}"
        case _:
            text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


@dataclass
class Walk:
    """A place in a run: the moment before the nodes in `next`. Moving changes the place and never deletes from the run's record."""

    graph: Graph
    place: RunnableConfig
    """The checkpoint of the present place. A walk made with a thread begins at the thread's latest checkpoint."""
    what_if: WhatIf | None = field(default=None, repr=False)
    """The what-if that it has become by `edit`, `back` or `fork`; None while it is the real run."""

    def __post_init__(self) -> None:
        if not self.graph.checkpointer:
            raise StepperError("a walk needs checkpoints: compile the graph with checkpointer=InMemorySaver()")
        self.place = self._snapshot().config

    def _snapshot(self) -> StateSnapshot:
        return self.graph.get_state(self.place)

    @property
    def state(self) -> dict[str, Any]:
        """The values of the channels at this moment."""
        return dict(self._snapshot().values)

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes about to run: one, several after a fan-out, none at the end of the run."""
        return self._snapshot().next

    def step(self, times: int = 1) -> Self:
        """Run the next node."""
        for _ in range(times):
            self._run_until("*")
        return self

    def until(self, *nodes: str) -> Self:
        """Run to the next pause before one of these nodes, or to the end."""
        known = [name for name in self.graph.nodes if name != "__start__"]
        if unknown := [name for name in nodes if name not in known]:
            raise StepperError(f"there is no node {unknown[0]!r}; there are {', '.join(known)}")
        self._run_until(list(nodes))
        return self

    def finish(self) -> Self:
        """Run to the end."""
        return self.until()

    def edit(self, **channels: Any) -> Self:
        """Write values into channels as if the last node had; a channel with a reducer adds. The old values stay on record.

        The walk is a what-if from here on: memory keeps nothing of it.
        """
        known = self.graph.builder.channels
        if unknown := [name for name in channels if name not in known]:
            raise StepperError(f"there is no channel {unknown[0]!r}; there are {', '.join(known)}")
        self.what_if = self.what_if or WhatIf()
        self.place = self.graph.update_state(self.place, channels)
        return self

    def back(self, times: int = 1) -> Self:
        """Go back `times` steps (or edits). The walk is a what-if from here on: memory keeps nothing of it."""
        path = self.path()
        if times >= len(path):
            raise StepperError(f"cannot go back {times} steps: this is step {len(path) - 1} of the run")
        self.what_if = self.what_if or WhatIf()
        self.place = path[-1 - times].config
        return self

    def fork(self) -> Self:
        """A what-if from this place, of which memory keeps nothing; the two walks are independent."""
        return replace(self, what_if=self.what_if.copy() if self.what_if else WhatIf())

    def path(self) -> list[StateSnapshot]:
        """The moments that led here, from the first pause to this one."""
        made = {_checkpoint_id(one.config): one for one in self.graph.get_state_history(_thread(self.place))}
        path, here = list[StateSnapshot](), made.get(_checkpoint_id(self.place))
        while here is not None and here.next != ("__start__",):
            if _source(here) != "fork":  # LangGraph's copy of the moment before, made when it forks
                path.append(here)
            here = made.get(_checkpoint_id(here.parent_config)) if here.parent_config else None
        return path[::-1]

    def view(self, *channels: str) -> Table:
        """A table of the channels (or only these) at this moment; those that the last step changed are highlighted."""
        path = self.path()
        now, before = path[-1].values, path[-2].values if len(path) > 1 else {}
        names = channels or tuple(now)
        changed = frozenset(i for i, name in enumerate(names) if now.get(name) != before.get(name))
        rows = tuple((name, _shorten(now, name)) for name in names if name in now)
        return Table(("channel", "value"), rows, changed, title=str(self))

    def __str__(self) -> str:
        now = self._snapshot()
        number = len(self.path()) - 1
        return f"step {number}, before {' and '.join(now.next)}" if now.next else f"step {number}, the end"

    __repr__ = __str__

    def _run_until(self, pause: Any) -> None:
        if not self.next:
            raise StepperError("the run has ended: back(n) goes to an earlier moment")
        thread = _thread(self.place)
        latest = self.graph.get_state(thread).config
        # A checkpoint named by its id is replayed, which first copies it; the latest one is therefore named by its thread.
        place = thread if _checkpoint_id(latest) == _checkpoint_id(self.place) else self.place
        with self.what_if.play() if self.what_if else nullcontext():
            self.graph.invoke(None, place, interrupt_before=pause)
        self.place = self.graph.get_state(thread).config


def _checkpoint_id(config: RunnableConfig) -> str:
    return str(config["configurable"]["checkpoint_id"])


def _thread(config: RunnableConfig) -> RunnableConfig:
    kept = {k: v for k, v in config["configurable"].items() if k not in ("checkpoint_id", "checkpoint_map")}
    return {"configurable": kept}


def start(graph: Graph, input: Any, thread: str = "1") -> Walk:
    """Begin a run and pause before its first node.

    Args:
        graph: compiled with a checkpointer.
        input: the input, as for `graph.invoke`.
        thread: name of the run for the checkpointer. Use one name per run: a second run of the same name begins with the
            channels of the first.
    """
    config: RunnableConfig = {"configurable": {"thread_id": thread}}
    if graph.checkpointer:
        graph.invoke(input, config, interrupt_before="*")
    return Walk(graph, config)


def compare(one: Walk, other: Walk, before: str, show: Sequence[str]) -> Table:
    """A table of two runs side by side: the channels `show` at every pause before the node `before`; differences are highlighted."""
    pairs = list(zip_longest(_states_before(one, before), _states_before(other, before)))
    rows = tuple(
        (str(i), *(_shorten(values, name) if values and name in values else "–" for name in show for values in pair))
        for i, pair in enumerate(pairs)
    )
    marked = frozenset(i for i, row in enumerate(rows) if row[1::2] != row[2::2])
    head = ("", *(f"{name}{which}" for name in show for which in ("", " ′")))
    return Table(head, rows, marked, title=f"before {before}: first run | second run ′")


def _states_before(walk: Walk, node: str) -> Iterator[dict[str, Any]]:
    for moment, after in pairwise([*walk.path(), None]):
        edited = after is not None and _source(after) == "update"  # then the next moment replaces this one
        if moment is not None and node in moment.next and not edited:
            yield moment.values


def _source(moment: StateSnapshot) -> str:
    return (moment.metadata or {}).get("source", "")


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
