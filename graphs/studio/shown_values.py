"""A graph and the values of its state as JSON for the page: boxes and arrows; short texts, tables and trees of bounded size."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from ...nodes.act.choose import softmax
from ...tools.notebook.tables import call_lines, is_same, to_line
from ..wiring.mermaid import read_flow
from ..wiring.picture import describe_node

__all__ = []

MAX_TEXT = 20_000
MAX_ROWS = 200
MAX_DEPTH = 5


def show_graph(text: str, graph: Any, further: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The boxes and arrows of a drawing.

    Args:
        text: the drawing.
        graph: a compiled graph whose nodes have the names of the drawing.
        further: further nodes by their names.
    """
    drawn = read_flow(text)
    known = {name: spec.runnable for name, spec in graph.builder.nodes.items()} | dict(further)
    boxes = [
        {"name": name, "text": node.text, **(describe_node(name, known[name]) if name in known else {})}
        for name, node in drawn.nodes.items()
    ]
    arrows = [
        {"source": e.source, "target": e.target, "label": e.label, "dotted": e.dotted, "join": bool(e.join)}
        for e in drawn.edges
    ]
    return {"nodes": boxes, "edges": arrows, "direction": drawn.direction}


def show_state(values: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The channels of a state; `changed` marks those that differ from the state before."""
    return [
        {
            "name": name,
            "changed": before is not None and not (name in before and is_same(before[name], value)),
            **show_value(value),
        }
        for name, value in values.items()
    ]


def show_value(value: Any, depth: int = 0) -> dict[str, Any]:
    """A value as `line` (a short text) and, where there is more to see, one of `text`, `table` and `items`."""
    shown: dict[str, Any] = {"line": to_line(value)}
    if isinstance(value, BaseMessage):
        said = {"from": value.type, "text": str(value.text)[:MAX_TEXT], "images": _images(value)}
        shown["message"] = said | {"calls": [call[:MAX_TEXT] for call in call_lines(value)]}
    if isinstance(value, str):
        if shown["line"] != value:
            shown["text"] = value[:MAX_TEXT] + (f"… (of {len(value):,} characters)" if len(value) > MAX_TEXT else "")
        return shown
    members = _members(value)
    if members is not None:
        if depth < MAX_DEPTH and members:
            shown["items"] = [{"name": name, **show_value(one, depth + 1)} for name, one in list(members.items())[:MAX_ROWS]]
    elif isinstance(value, Sequence | Set) and not isinstance(value, bytes) and len(value):
        rows = list(value)
        kinds = {type(one).__name__ for one in rows}
        if isinstance(rows[0], BaseMessage):
            shown["open"] = shown["messages"] = True  # a conversation is what its reader looks for
        elif len(rows) > 1:
            shown["line"] = f"{len(rows):,} × {kinds.pop() if len(kinds) == 1 else 'values'}"
        if depth < MAX_DEPTH:
            shown |= _rows(rows, depth)
        if len(rows) > MAX_ROWS:
            shown["more"] = len(rows) - MAX_ROWS
    return shown


def _images(message: BaseMessage) -> list[str]:
    """The pictures that a message holds, as addresses that ask nobody: `data:...`."""
    found = [one for one in message.content_blocks if one["type"] == "image" and one.get("base64")]
    return [f"data:{one.get('mime_type', 'image/png')};base64,{one['base64']}" for one in found]


def _rows(rows: Sequence[Any], depth: int) -> dict[str, Any]:
    """A table of records of one type; a numbered tree of anything else."""
    first = _members(rows[0])
    if first and all(type(one) is type(rows[0]) for one in rows) and not isinstance(rows[0], BaseModel):
        head = list(first)
        cells = [[to_line((_members(one) or {}).get(name)) for name in head] for one in rows[:MAX_ROWS]]
        return {"table": {"head": head, "rows": cells}}
    return {"items": [{"name": str(i), **show_value(one, depth + 1)} for i, one in enumerate(rows[:MAX_ROWS])]}


def _members(value: Any) -> dict[str, Any] | None:
    """The named parts of a record or mapping; None for any other value."""
    if isinstance(value, BaseModel):  # messages of LangChain have many empty fields
        return {name: part for name in type(value).model_fields if (part := getattr(value, name)) not in (None, "", [], {})}
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    return None


def decision_bars(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The candidates of a decision with logits and probabilities, without and with memory; None where there are none.

    Args:
        state: the channels `candidates` and perhaps `prior` (logits without memory), `estimates` and `action`.
    """
    found = [one if isinstance(one, Mapping) else _members(one) for one in state.get("candidates") or ()]
    rows = [one for one in found if one and isinstance(one.get("action"), str) and _is_number(one.get("logit"))]
    if not rows or len(rows) != len(found):
        return None
    after = [float(one["logit"]) for one in rows]
    prior = state.get("prior") or ()
    has_prior = len(prior) == len(after) and all(map(_is_number, prior))
    before = [float(z) for z in prior] if has_prior else after
    old, new = softmax(before), softmax(after)
    bars = [
        {"action": row["action"], "source": row.get("source", ""), "logit": z, "prior": z0, "chance": p, "prior_chance": p0}
        for row, z, z0, p, p0 in zip(rows, after, before, new, old, strict=True)
    ]
    order = sorted(range(len(bars)), key=lambda i: -after[i])
    return {"bars": [bars[i] for i in order[:MAX_ROWS]], "chosen": state.get("action"), "has_prior": has_prior}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
