"""Graphs by name: a method's, CLaaS's two, or the user's own `MODULE:NAME`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ..memory.errors import UserError, did_you_mean
from .arms import blueprint

__all__ = ["SERVED_GRAPHS", "find_user_object", "load_graph"]

SERVED_GRAPHS: Mapping[str, str] = {
    "claas-serving": "a chat turn that waits for feedback; what learngraph serve answers with",
    "claas-learning": "a gradient step on what was said, with a gate; what learngraph serve learns with",
}
"""Graphs that are served, not run on an environment."""


def load_graph(name: str, *, run: bool = False) -> Any:
    """The graph of this name: a method's, built without a model or an environment, or the user's own.

    Args:
        name: `jitrl`, `adamem?mode=high`, `claas-serving`, `my_package.rest:METHOD`, `my_app:graph`, `./my_app.py:graph`.
        run: of a method's episode, the graph of a whole run.

    Raises:
        UserError: there is none of that name; says which there are.
    """
    from . import claas
    from .methods import METHODS, Method, find_method, split_name
    from .wiring import run as runs

    if name in SERVED_GRAPHS:
        return claas.blueprint(name)
    first, _, attribute = name.partition(":")
    if first not in METHODS and attribute:
        found = find_user_object(*split_name(name)[0].rsplit(":", 1))
        if not isinstance(found, Method):
            return _as_graph(found, name)
    graph = blueprint(name)
    # The graph of a method with a training phase is a run's already.
    return runs.build(graph) if run and not find_method(name).has_training_phase else graph


def find_user_object(place: str, attribute: str) -> Any:
    """The object that a module or a file of the user's calls `attribute`.

    Raises:
        UserError: it cannot be imported, or has nothing of that name.
    """
    from .methods import import_user_module

    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            if spec is None or spec.loader is None or not Path(place).exists():
                raise ImportError(f"there is no file {place}")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = import_user_module(place)
    except ImportError as error:
        raise UserError(
            f"'{place}:{attribute}' asks for {attribute} of the module {place}, which cannot be imported ({error}). A module is a "
            "file or package in the current directory or an installed one, or the path of a file that ends with .py"
        ) from error
    if not hasattr(module, attribute):
        raise UserError(f"{place} has nothing called '{attribute}'{did_you_mean(attribute, vars(module))}")
    return getattr(module, attribute)


def _as_graph(found: Any, name: str) -> Any:
    """A compiled graph, from one, from a builder, or from a function that returns one."""
    if callable(found) and not isinstance(found, Runnable | type):
        found = found()
    if isinstance(found, StateGraph):
        found = found.compile()
    if not isinstance(found, CompiledStateGraph):
        raise UserError(
            f"'{name}' is a {type(found).__name__}, and no graph: give a compiled LangGraph graph, a StateGraph, a Method, or a "
            "function without arguments that returns one of the first two"
        )
    return found
