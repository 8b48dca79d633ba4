"""The catalogue of nodes: what an agent can be put together from, by what it does. It is read from the code, not kept by hand.

for entry in catalogue("retrieve"):
    print(entry.name, entry.reads, entry.writes)
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, get_args, get_origin

from langchain_core.runnables import Runnable

from ..memory.display import make_table
from ..memory.errors import UserError
from ..memory.graph_input import type_hints
from .arguments import is_setting
from .ask import Ask
from .channels import NodeChannels, maker_channels, node_channels, schema_channels
from .retrieve.attempts import PromptPart, channels_of_part

__all__ = ["VERBS", "NodeEntry", "catalogue"]

VERBS: Mapping[str, str] = {
    "act": "propose actions, choose one, take it",
    "evaluate": "reward the steps of an episode",
    "retrieve": "look up earlier experience, and store the finished episode",
    "synthesize": "write strategies, notes and lessons",
    "extract": "compare attempts in words",
    "update": "change the library of lessons",
    "learn": "serve a model, and train it on feedback",
}
"""Folder of nodes/ -> what its nodes do, in the order of the learning loop."""


@dataclass(frozen=True)
class NodeEntry:
    """A node of the catalogue: a class of nodes, a function that makes one, or a router."""

    name: str
    verb: str
    """The folder of nodes/ that it is in."""
    kind: Literal["node", "maker", "router", "part"]
    """`node`: a class whose objects are nodes; `maker`: a function that returns a node that asks a model; `router`: a function from
    state to a label; `part`: a class of what a prompt may show (`EpisodePrompt.show`)."""
    module: str
    """The module to import it from."""
    summary: str
    """What it does, in one line."""
    reads: tuple[str, ...]
    """Channels that it takes from the state."""
    writes: tuple[str, ...]
    is_open: bool
    """True if it may write further channels: which, is known only when it is made."""
    settings: Mapping[str, str]
    """Name -> type and default, of what is a number, a word or a switch."""
    parts: tuple[str, ...]
    """What else it is made from: a memory, the world, a model."""
    outcomes: tuple[str, ...] = ()
    """Labels that a router returns."""

    @property
    def is_drawn(self) -> bool:
        """True for what stands in a box of a drawing; routers are its labels, and parts stand within a prompt."""
        return self.kind in ("node", "maker")


class Catalogue(tuple[NodeEntry, ...]):
    """Nodes of the catalogue; in a notebook a table with a search box."""

    def _repr_html_(self) -> str:
        rows = ((one.name, one.kind, one.verb, one.summary, ", ".join(one.reads), ", ".join(one.writes)) for one in self)
        head = ("name", "kind", "verb", "what it does", "reads", "writes")
        return make_table("inputs.node(NAME) makes a node", head, rows, len(self))._repr_html_()


def catalogue(verb: str | None = None) -> Catalogue:
    """All nodes, makers and routers, or those of one verb, in the order of the learning loop.

    Raises:
        UserError: there is no such verb.
    """
    if verb is not None and verb not in VERBS:
        raise UserError(f"no nodes are filed under '{verb}'; there are {', '.join(VERBS)}")
    return Catalogue(entry for entry in _entries() if verb in (None, entry.verb))


@lru_cache(maxsize=1)
def _entries() -> tuple[NodeEntry, ...]:
    package = __name__.rpartition(".")[0]
    found = []
    for verb in VERBS:
        for file in sorted((Path(__file__).parent / verb).glob("*.py")):
            if file.stem != "__init__":
                found += list(_of_module(import_module(f"{package}.{verb}.{file.stem}"), verb))
    return tuple(found)


def _of_module(module: ModuleType, verb: str) -> Iterator[NodeEntry]:
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if isinstance(value, type):
            runs = "__call__" in dir(value) or issubclass(value, Runnable)
            if issubclass(value, PromptPart) and value is not PromptPart:
                yield _entry(value, verb, "part", schema_channels([channels_of_part(value)]))
            elif hasattr(value, "role") and runs and not issubclass(value, Ask):
                yield _entry(value, verb, "node", node_channels(value))
        elif isinstance(value, FunctionType):
            returns = type_hints(value).get("return")
            if get_origin(returns) is Literal and name.startswith("route_"):
                yield _entry(value, verb, "router", node_channels(value), tuple(map(str, get_args(returns))))
            elif isinstance(made := get_origin(returns) or returns, type) and issubclass(made, Runnable):
                yield _entry(value, verb, "maker", maker_channels(value))


def _entry(value: Any, verb: str, kind: Any, channels: NodeChannels, outcomes: tuple[str, ...] = ()) -> NodeEntry:
    arguments = {} if kind == "router" else dict(_arguments(value))
    return NodeEntry(
        value.__name__,
        verb,
        kind,
        value.__module__,
        (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " "),
        tuple(sorted(channels.reads)),
        () if kind == "router" else tuple(sorted(channels.writes)),
        kind != "router" and channels.is_open,
        {name: text for name, text in arguments.items() if text},
        tuple(name for name, text in arguments.items() if not text),
        outcomes,
    )


def _arguments(value: Any) -> Iterator[tuple[str, str]]:
    """The names of what a node is made from, with type and default as text; an empty text for what is no setting."""
    hints = type_hints(value)
    if is_dataclass(value):
        given = [(one.name, one.default) for one in fields(value) if one.init and not one.name.startswith("_")]
    else:
        hints = hints | type_hints(getattr(value, "__init__", None) if isinstance(value, type) else value)
        parameters = list(inspect.signature(value).parameters.values())
        given = [
            (one.name, MISSING if one.default is one.empty else one.default)
            for one in parameters
            if one.kind <= one.KEYWORD_ONLY
        ]
    for name, default in given:
        hint = hints.get(name)
        text = _type_text(hint) if hint is not None and is_setting(hint) else ""
        yield name, text if not text or default is MISSING else f"{text} = {default!r}"


def _type_text(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(repr, get_args(hint)))
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("NoneType", "None")
