"""`learngraph list nodes`: the nodes that an agent can be put together from, by what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tyro.conf import Positional

from ...memory.errors import UserError, did_you_mean
from .flags import parse_flags

if TYPE_CHECKING:
    from ...nodes.catalogue import NodeEntry

__all__ = []


@dataclass(frozen=True)
class NodesOptions:
    """Options of `learngraph list nodes`: which nodes are shown."""

    which: Positional[str] = ""
    """A verb (act, evaluate, retrieve, synthesize, extract, update, learn), or the name of one node; all nodes if not given."""
    reads: str = ""
    """Only nodes that read this channel."""
    writes: str = ""
    """Only nodes that write this channel."""


def list_nodes(args: Sequence[str]) -> int:
    """Print the catalogue of nodes. Returns the exit status."""
    from ...nodes.catalogue import VERBS, catalogue

    options = parse_flags(
        NodesOptions,
        args,
        "learngraph list nodes",
        "List the nodes that an agent can be put together from: what each does, what it reads and writes, and its settings.",
    )
    entries: Sequence[NodeEntry] = catalogue()
    if options.which:
        entries = tuple(entry for entry in entries if options.which in (entry.verb, entry.name))
        if not entries:
            known = [*VERBS, *(entry.name for entry in catalogue())]
            hint = did_you_mean(options.which, known) or f"; the verbs are {', '.join(VERBS)}"
            raise UserError(f"there is no node and no verb '{options.which}'{hint}")
    chosen = [entry for entry in entries if _fits(options.reads, entry.reads) and _fits(options.writes, entry.writes)]
    for verb, about in VERBS.items():
        filed = [entry for entry in chosen if entry.verb == verb]
        if filed:
            print(f"{verb}: {about}")
            print("\n".join(line for entry in filed for line in _lines(entry)) + "\n")
    if not chosen:
        asked = {verb: name for verb, name in (("reads", options.reads), ("writes", options.writes)) if name}
        hint = next(
            filter(None, (did_you_mean(n, {c for e in catalogue() for c in getattr(e, v)}) for v, n in asked.items())), ""
        )
        raise UserError(f"no node {' and '.join(f'{verb} `{name}`' for verb, name in asked.items())}{hint}")
    return 0


def _fits(channel: str, channels: Sequence[str]) -> bool:
    return not channel or channel in channels


def _lines(entry: NodeEntry) -> list[str]:
    """An entry as lines: the name with its module, what it does, and what goes in and out."""
    from ..wiring.data_flow import FILLED_BY

    writes = [*entry.writes, *(["others, by its parts"] if entry.is_open else [])]
    rows = {
        "reads": entry.reads,
        "writes": writes,
        "returns": [f"'{label}'" for label in entry.outcomes],
        "settings": [f"{name}: {text}" for name, text in entry.settings.items()],
        "made from": entry.parts,
        "filled by": FILLED_BY.get(entry.name, ()),
    }
    head = f"  {entry.name}  ({entry.module})"
    return [head, f"    {entry.summary}", *(f"      {title:<9} {', '.join(row)}" for title, row in rows.items() if row)]
