"""The moves of a walk, also on graphs whose nodes are asynchronous: those run on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from threading import Thread
from typing import Any

from ...tools.notebook.pauses import find_subgraph
from ...tools.notebook.walk import Walk, astart, start

__all__ = []


def is_asynchronous(graph: Any) -> bool:
    """True if a node of the graph, or of a graph within it, can only be awaited."""
    for name, spec in graph.builder.nodes.items():
        if getattr(spec.runnable, "afunc", None) is not None and getattr(spec.runnable, "func", None) is None:
            return True
        inner = find_subgraph(graph, name)
        if hasattr(inner, "builder") and is_asynchronous(inner):
            return True
    return False


def begin_walk(graph: Any, input: Any, thread: str) -> Walk:
    """A walk at the beginning of a run."""
    if is_asynchronous(graph):
        walk: Walk = _wait(astart(graph, input, thread))
        return walk
    return start(graph, input, thread)


def move(walk: Walk, name: str, *args: Any, **kwargs: Any) -> None:
    """Make a move of a walk by its name, such as `step` or `until`."""
    if is_asynchronous(walk.graph):
        _wait(getattr(walk, f"a{name}")(*args, **kwargs))
    else:
        getattr(walk, name)(*args, **kwargs)


def _wait(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all asynchronous walks: clients that a node keeps belong to one loop."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="studio walks", daemon=True).start()
    return loop
