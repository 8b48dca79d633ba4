"""The channels that a node reads and writes, as its types say: for the catalogue of nodes, and for the check of a drawing.

    def advise(state: Recalled) -> Advice: ...

`Recalled` and `Advice` are TypedDicts. LangGraph gives the node the channels of `Recalled` and no others; `NotRequired` marks what
it can do without. `Recalled | State` says that it reads further channels, by how the node is made; LangGraph then gives it all.
A node that sets such channels names them in a property `further_channels`, and those that it only records in `journal_channels`; one
around another node has that as `inner_node`, and a policy's `view` says what its prompt shows (`shown_channels`).
A node without types may read and write anything.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import UnionType
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints

from langchain_core.runnables import Runnable
from typing_extensions import is_typeddict

from ..memory.graph_input import type_hints

__all__ = ["NodeChannels", "maker_channels", "node_channels", "node_schemas", "schema_channels"]


@dataclass(frozen=True)
class NodeChannels:
    """The channels of a node."""

    reads: frozenset[str] = frozenset()
    """Channels that it takes from the state, also those that it can do without."""
    needs: frozenset[str] = frozenset()
    """Channels without which it fails."""
    writes: frozenset[str] = frozenset()
    is_open: bool = False
    """True if it may write others, too: its types do not say which."""
    may_read_more: bool = False
    """True if it is given the whole state, since its types do not say all that it reads."""
    must_write: frozenset[str] = frozenset()
    """Channels that every run of the node writes."""


def node_channels(node: Any) -> NodeChannels:
    """The channels of a node or router: a function, an object that is called, a class of such objects, or a Runnable."""
    channels = _of_types(*node_types(node), *(["usage"] if _asks(node) else []))
    if isinstance(node, type):
        return channels
    if (inner := getattr(node, "inner_node", None)) is not None:
        found = node_channels(inner)
        reads, needs, writes = channels.reads | found.reads, channels.needs | found.needs, channels.writes | found.writes
        return replace(found, reads=reads, needs=needs, writes=writes)
    further, shown = getattr(node, "further_channels", None), getattr(getattr(node, "view", None), "shown_channels", None)
    if shown is not None:
        more = schema_channels(shown)
        channels = replace(channels, reads=channels.reads | more.reads, needs=channels.needs | more.needs, may_read_more=False)
    if further is None:
        return channels
    reads, writes = channels.reads | set(getattr(node, "journal_channels", ())), channels.writes | set(further)
    # A node that returns `StepResult | dict[str, Any]` writes all of the StepResult; the dict stands for the further channels.
    closed = [one for one in _members(node_types(node)[1]) if is_typeddict(one)]
    sure = _of_types(None, closed[0]).must_write if len(closed) == 1 else channels.must_write
    return replace(channels, reads=reads, writes=writes, is_open=False, may_read_more=False, must_write=sure)


def node_schemas(node: Any) -> list[Any]:
    """The TypedDicts that say what a node reads, shows in a prompt and writes."""
    hints = [schema for hint in node_types(node) for schema in _members(hint) if is_typeddict(schema)]
    shown = getattr(getattr(node, "view", None), "shown_channels", None) or ()
    inner = getattr(node, "inner_node", None)
    return [*hints, *shown, *(node_schemas(inner) if inner is not None else [])]


def node_types(node: Any) -> tuple[Any, Any]:
    """The types of what a node reads and of what it returns."""
    if _asks(node):
        return _first_type(node.messages), type_hints(node.read).get("return")
    run = node if inspect.isroutine(node) else getattr(node, "invoke" if _is_runnable(node) else "__call__", node)
    return _first_type(run), type_hints(run).get("return")


def _asks(node: Any) -> bool:
    """True for the nodes of nodes/ask.py."""
    return isinstance(node, Runnable) and hasattr(node, "messages") and hasattr(node, "read")


def schema_channels(schemas: Sequence[type]) -> NodeChannels:
    """The channels that something reads which is described by these TypedDicts."""
    keys = [_keys(schema) for schema in schemas]
    return NodeChannels(frozenset().union(*(one[0] for one in keys)), frozenset().union(*(one[1] for one in keys)))


def maker_channels(maker: Callable[..., Any]) -> NodeChannels:
    """The channels of the node that a function makes, by its return type, such as `Ask[Finished, Note]` (nodes/ask.py)."""
    returned = type_hints(maker).get("return")
    return _of_types(*get_args(returned), "usage") if get_args(returned) else node_channels(returned)


def is_required(schema: Any, name: str) -> bool:
    """True if a TypedDict cannot be without this key, also where its annotations are strings."""
    return name in schema.__required_keys__ and get_origin(get_type_hints(schema, include_extras=True)[name]) is not NotRequired


def _is_runnable(node: Any) -> bool:
    return issubclass(node, Runnable) if isinstance(node, type) else isinstance(node, Runnable)


def _first_type(function: Any) -> Any:
    """The type of the first argument that is not `self`."""
    if not inspect.isroutine(function):
        function = getattr(function, "__call__", function)  # noqa: B004
    try:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
    except (TypeError, ValueError):
        return None
    return type_hints(function).get(names[0]) if names else None


def _of_types(read: Any, written: Any, *more: str) -> NodeChannels:
    reads, needs, may_read_more = _keys(read)
    writes, always, is_open = _keys(written)
    must_write = always if len(_members(written)) == 1 else frozenset[str]()  # of several types it returns one
    return NodeChannels(reads, needs, writes | set(more), is_open, may_read_more, must_write)


@lru_cache(maxsize=1024)
def _keys(hint: Any) -> tuple[frozenset[str], frozenset[str], bool]:
    """The keys of a type, those that are required, and whether there may be others."""
    schemas = _members(hint)
    known = [(schema, name) for schema in schemas if is_typeddict(schema) for name in get_type_hints(schema)]
    required = (name for schema, name in known if is_required(schema, name))
    is_open = not all(is_typeddict(schema) or schema is type(None) for schema in schemas)
    return frozenset(name for _, name in known), frozenset(required), is_open


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
