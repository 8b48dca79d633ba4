"""A step of a walk as a test: the file that is saved, and what it calls.

The file holds the whole state before the step, as the checkpointer wrote it, and as text what the step changed. The test plays the
step on that state in a branch of memory, so that it writes nothing.
"""

from __future__ import annotations

import asyncio
import base64
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from ...memory.storage.branches import Branch
from ...memory.storage.checkpoints import serializer
from .tables import StepperError

__all__ = []

FILE = '''\
"""{about}, saved from a walk. The graph is {graph}; CHANGED is what the step did to the state."""

from learngraph.tools.notebook.saved_steps import play_step

BEFORE = """
{before}
"""
CHANGED = {{
{changed}
}}


def test_{name}() -> None:
    assert play_step({graph!r}, BEFORE) == CHANGED
'''


def write_test(graph: Any, before: StateSnapshot, after: StateSnapshot, number: int, path: Path, name: str | None) -> Path:
    """Write a step as a pytest file.

    Args:
        graph: the graph of the walk.
        before: the moment before the step.
        after: the moment after it.
        number: the step's number, for the file's title.
        path: the file.
        name: `module:name` of the graph, or of a function that makes it; None: a loaded module that holds it is looked for.

    Raises:
        StepperError: no module holds the graph, or the file cannot be written.
    """
    name = name or _find_name(graph)
    saver = graph.checkpointer
    kind, data = saver.serde.dumps_typed({"checkpoint": saver.get_tuple(before.config).checkpoint, "metadata": before.metadata})
    blob = base64.b64encode(f"{kind}\n".encode() + data).decode()
    nodes = list(dict.fromkeys(before.next))
    text = FILE.format(
        about=f"Step {number}, {' and '.join(nodes)}",
        graph=name,
        before="\n".join(textwrap.wrap(blob, 120)),
        changed="\n".join(f"    {key!r}: {value!r}," for key, value in _changes(before.values, after).items()),
        name=re.sub(r"\W+", "_", "_".join(nodes)).strip("_").lower() or "step",
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StepperError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def play_step(graph: str, before: str) -> dict[str, str]:
    """Play one step of a graph on a saved state, without writing into memory.

    Args:
        graph: `module:name` of the graph, or of a function without arguments that makes it.
        before: the state, as `write_test` saved it.

    Returns:
        The channels that the step changed, as text, and under "next" the nodes after it.

    Raises:
        StepperError: there is no such graph, or the state is damaged.
    """
    found = _load(graph)
    serde = found.checkpointer.serde if getattr(found.checkpointer, "serde", None) is not None else serializer()
    try:
        kind, _, data = base64.b64decode("".join(before.split()), validate=True).partition(b"\n")
        saved = serde.loads_typed((kind.decode(), data))
        checkpoint, metadata = saved["checkpoint"], saved["metadata"]
    except Exception as error:
        raise StepperError(f"the saved state cannot be read ({error}): save the step again") from error
    saver = InMemorySaver(serde=serde)
    place: Any = {"configurable": {"thread_id": "saved", "checkpoint_ns": ""}}
    saver.put(place, checkpoint, metadata, checkpoint["channel_versions"])
    played = found.copy({"checkpointer": saver})
    values = played.get_state(place).values
    with Branch().play():
        try:
            played.invoke(None, place, interrupt_before="*")
        except TypeError as error:
            if "ainvoke" not in str(error) and "async" not in str(error).lower():
                raise
            asyncio.run(played.ainvoke(None, place, interrupt_before="*"))
    return _changes(values, played.get_state(place))


def _changes(before: dict[str, Any], after: StateSnapshot) -> dict[str, str]:
    found = {
        name: repr(value) for name, value in after.values.items() if name not in before or repr(before[name]) != repr(value)
    }
    return {**found, "next": ", ".join(after.next)}


def _find_name(graph: Any) -> str:
    """`module:name` of a loaded module's variable that holds the graph."""
    for module, held in list(sys.modules.items()):
        if module != "__main__" and not module.startswith("learngraph."):
            for name, value in list(vars(held).items()) if hasattr(held, "__dict__") else ():
                is_graph = issubclass(
                    type(value), CompiledStateGraph
                )  # isinstance would ask the value, and SWIG's globals raise
                if is_graph and value.builder is graph.builder and not name.startswith("_"):
                    return f"{module}:{name}"
    raise StepperError(
        "a test has to import the graph, and no module holds this one: name it with graph='my_module:name', where name is the "
        "compiled graph, or a function without arguments that makes it"
    )


def _load(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    try:
        if not colon:
            raise ValueError("it has no colon")
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise StepperError(f"asked for the graph {name!r}, and {error}: give module:name") from error
    graph = found() if callable(found) and not hasattr(found, "builder") else found
    if not hasattr(graph, "builder") or not hasattr(graph, "checkpointer"):
        raise StepperError(f"{name} is a {type(graph).__name__}, not a compiled graph or a function that makes one")
    return graph
