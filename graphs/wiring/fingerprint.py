"""Fingerprints of rollouts: texts that change whenever a rollout could come out differently, used in keys of the cache.

A rollout depends on its model, on the settings of every node of its graph, and on the text of every prompt that a node holds.
All of that is read from the graph itself, whoever built it, so two texts always give two keys. Text inside a function's body
cannot be seen from outside; whoever writes prompts there names a version of them (`RolloutGraphs.name`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import getclosurevars
from string import Template
from types import FunctionType, MethodType
from typing import Any

from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph

from ...memory.storage.cache import cache_key
from ...nodes.act.tool_use import Toolset
from ...nodes.cached_model import CachedChatModel, SpendingLimit
from ...nodes.extract.critic import Critic
from ...nodes.prompt import Prompt
from .flow import to_mermaid
from .parts import MethodInputs

__all__ = ["group_fingerprint", "model_fingerprint", "prompt_texts", "rollout_fingerprint"]

_DEPTH = 6
"""Levels of nested settings that a fingerprint holds; prompts are looked for twice as deep."""


def rollout_fingerprint(parts: MethodInputs, graph: Runnable[Any, Any], name: str = "") -> str:
    """A digest of all that rollouts of this graph depend on, beside the problem and the lessons.

    Args:
        parts: the model, its window, and what prompts show.
        graph: what plays a rollout: a compiled graph, with its drawing, its nodes and their prompts, or any other runnable, of
            which the prompts that can be found are read.
        name: what they depend on beside that, in words.
    """
    found: list[Any] = [name, model_fingerprint(parts.model), parts.window, parts.history_steps, parts.list_actions]
    found.append(prompt_texts(graph))
    if isinstance(graph, CompiledStateGraph):
        found += [graph.name, to_mermaid(graph)]
        found += [[title, getattr(node, "asks", ""), _settings(node)] for title, node in _nodes(graph)]
    return cache_key(*found)


def group_fingerprint(critic: Critic, model: Callable[[str], Any], settings: Mapping[str, Any]) -> str:
    """A digest of all that a group depends on, beside its problem, its rollouts and the library.

    Args:
        critic: the prompts that the group is compared with, and their limits.
        model: a stage's name -> the model that is asked in it.
        settings: those of the method that a group depends on.
    """
    models = [model_fingerprint(model(stage)) for stage in ("summarise", "contrast", "propose", "discriminate")]
    return cache_key(models, settings, critic.limits, critic.max_prompt_tokens, prompt_texts(critic.prompts))


def model_fingerprint(model: Any) -> str:
    """A model's name and settings, with the options bound to it, as text. The name of a `CachedChatModel` says all of that."""
    if isinstance(model, CachedChatModel):
        return f"{model.name} {cache_key(_settings(model.bound_options))}" if model.bound_options else model.name
    bound: dict[str, Any] = {}
    while isinstance(model, RunnableBinding):
        model, bound = model.bound, {**model.kwargs, **bound}
    if isinstance(model, CachedChatModel):
        return f"{model_fingerprint(model)} {cache_key(_settings(bound))}"
    names = ("model", "model_name", "temperature", "max_tokens", "seed", "base_url", "openai_api_base")
    values = [(name, getattr(model, name, None)) for name in names]
    shown = " ".join([type(model).__name__, *(f"{n}={v}" for n, v in values if isinstance(v, str | int | float))])
    identifying = getattr(model, "_identifying_params", {})
    langsmith = model._get_ls_params() if hasattr(model, "_get_ls_params") else {}
    return f"{shown} {cache_key(_settings([bound, identifying, langsmith]))}"


def _nodes(graph: CompiledStateGraph[Any, Any, Any, Any]) -> list[tuple[str, Any]]:
    """The names and nodes of a graph, by name."""
    specs = sorted(graph.builder.nodes.items())
    return [(title, getattr(spec.runnable, "func", None) or spec.runnable) for title, spec in specs]


def _is_model(value: Any) -> bool:
    return isinstance(value, CachedChatModel | RunnableBinding) or hasattr(value, "_identifying_params")


def _settings(value: Any, depth: int = _DEPTH) -> Any:
    """Settings as JSON: values, records and nodes with their parts, models and tools. Anything else is given by its name."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if not depth:
        return type(value).__name__
    if _is_model(value):
        return model_fingerprint(value)
    if isinstance(value, BaseTool):
        return [value.name, value.description, _settings(value.args, depth - 1)]
    if isinstance(value, Toolset):
        return [_settings(value.factory, depth - 1), _settings(value.list_tools(), depth - 1)]
    if isinstance(value, Mapping):
        return {str(name): _settings(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_settings(item, depth - 1) for item in value]
    if is_dataclass(value) and not isinstance(value, type | SpendingLimit):
        names = (item.name for item in fields(value) if item.init and not item.name.startswith("_"))
        return [type(value).__name__, {name: _settings(getattr(value, name), depth - 1) for name in names}]
    return getattr(value, "__qualname__", type(value).__name__)


def prompt_texts(value: Any) -> list[str]:
    """The texts of all prompts that can be reached from a value, sorted, each once."""
    return sorted(set(_prompt_texts(value)))


def _prompt_texts(value: Any, depth: int = 2 * _DEPTH, seen: dict[int, Any] | None = None) -> Iterator[str]:
    """The text of every prompt that a node can reach: in its fields, its closures, its module's constants, its subgraphs."""
    seen = {} if seen is None else seen
    if not depth or id(value) in seen or value is None or isinstance(value, str | int | float | type) or _is_model(value):
        return
    seen[id(value)] = value  # kept, so that no other object gets its id
    if isinstance(value, Prompt):
        yield "\n".join([value.name, *(f"{role}: {template.template}" for role, template in value.parts)])
    elif isinstance(value, Template):
        yield value.template
    elif _is_langchain_prompt(value):
        yield f"{value!r}"
    else:
        if isinstance(value, FunctionType):
            yield from _texts_of_function(value)
        for item in _contents(value):
            yield from _prompt_texts(item, depth - 1, seen)


def _texts_of_function(function: FunctionType) -> Iterator[str]:
    """Values from around a function that are texts or may hold one: plain values, and the fields of dataclasses."""
    nonlocals, constants = _variables(function)
    for name, value in (*nonlocals.items(), *((n, v) for n, v in constants.items() if isinstance(v, str))):
        plain = isinstance(value, str | int | float) or (is_dataclass(value) and not isinstance(value, type))
        if plain and not name.startswith("__") and not _is_model(value):
            yield f"{name}: {_settings(value)}"


def _variables(function: FunctionType) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The variables of a function's closure, and the names of its module that it uses."""
    try:
        found = getclosurevars(function)
    except ValueError:  # a variable that has no value yet
        return {}, {}
    return found.nonlocals, found.globals


def _contents(value: Any) -> list[Any]:
    """Parts of a value in which prompts may be."""
    if isinstance(value, CompiledStateGraph):
        return [node for _, node in _nodes(value)]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        nonlocals, constants = _variables(value)
        own = [item for item in constants.values() if _is_prompt(item) or getattr(item, "__module__", "") == value.__module__]
        return [*nonlocals.values(), *own, *(value.__defaults__ or ())]
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if is_dataclass(value):
        return [*(getattr(value, item.name, None) for item in fields(value)), *_own_methods(value)]
    if isinstance(value, Runnable) or callable(value):
        return [*getattr(value, "__dict__", {}).values(), *_own_methods(value)]
    return []


def _own_methods(node: Any) -> list[FunctionType]:
    """The functions that a node of somebody's own class runs."""
    if type(node).__module__.startswith(("langchain", "langgraph")):
        return []
    found = [getattr(type(node), name, None) for name in ("__call__", "invoke", "ainvoke")]
    return [function for function in found if isinstance(function, FunctionType)]


def _is_prompt(value: Any) -> bool:
    return isinstance(value, Prompt | Template) or _is_langchain_prompt(value)


def _is_langchain_prompt(value: Any) -> bool:
    return hasattr(type(value), "format_prompt")  # importing their base class would load YAML
