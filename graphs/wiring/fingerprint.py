"""Fingerprints of rollouts and groups: texts that change with the settings on which a result depends, for keys of the cache.

A fingerprint holds the model, the drawing of the graph, the plain settings of its nodes, and the prompt files. Whatever else a
graph of your own depends on, such as texts in its code, has a version in `RolloutGraphs.name`, which you change with the texts.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph

from ...memory.storage.cache import cache_key
from ...nodes.act.tool_use import Toolset
from ...nodes.cached_model import CachedChatModel, SpendingLimit
from ...nodes.extract.critic import Critic
from ...nodes.prompt import PROMPTS_DIR
from .flow import to_mermaid
from .inputs import MethodInputs

__all__ = ["group_fingerprint"]

_DEPTH = 6
"""Levels of nested settings that a fingerprint holds."""


def rollout_fingerprint(inputs: MethodInputs, graph: Runnable[Any, Any], name: str = "") -> str:
    """A digest of the model, the window, the prompt files, the graph that plays, and its `name`; not of problem and lessons."""
    found: list[Any] = [
        name,
        model_fingerprint(inputs.model),
        inputs.prompting.window,
        inputs.prompting.history_steps,
        inputs.prompting.list_actions,
    ]
    found.append(_prompt_files(inputs.prompting.prompts))
    if isinstance(graph, CompiledStateGraph):
        nodes = [(title, getattr(spec.runnable, "func", None) or spec.runnable) for title, spec in graph.builder.nodes.items()]
        found += [graph.name, to_mermaid(graph), sorted([title, _settings(node)] for title, node in nodes)]
    return cache_key(*found)


def group_fingerprint(critic: Critic, model: Callable[[str], Any], settings: Mapping[str, Any]) -> str:
    """A digest of the critic's models, limits and prompts, and of the settings of the comparison; not of rollouts and library."""
    models = [model_fingerprint(model(stage)) for stage in ("summarise", "contrast", "propose", "extract")]
    prompts = {name: _settings(prompt) for name, prompt in critic.prompts.items()}
    return cache_key(models, settings, critic.limits, critic.max_prompt_tokens, prompts)


def model_fingerprint(model: Any) -> str:
    """A model's name and settings, with the options bound to it, as text. The name of a `CachedChatModel` says all of that."""
    bound: dict[str, Any] = {}
    while isinstance(model, RunnableBinding):
        model, bound = model.bound, {**model.kwargs, **bound}
    if isinstance(model, CachedChatModel):
        options = {**(model.bound_options or {}), **bound}
        return f"{model.name} {cache_key(_settings(options))}" if options else model.name
    names = ("model", "model_name", "temperature", "max_tokens", "seed", "base_url", "openai_api_base")
    values = [(name, getattr(model, name, None)) for name in names]
    shown = " ".join([type(model).__name__, *(f"{n}={v}" for n, v in values if isinstance(v, str | int | float))])
    return f"{shown} {cache_key(_settings([bound, getattr(model, '_identifying_params', {})]))}"


def _prompt_files(overrides: Path | None) -> str:
    """A digest of the package's prompt files, those of the same name in the folder `overrides` in their place."""
    texts = _package_prompts().copy()
    for name in texts if overrides else ():
        if (own := Path(str(overrides), name)).is_file():
            texts[name] = own.read_text(encoding="utf-8")
    return cache_key(sorted(texts.items()))


@cache
def _package_prompts() -> dict[str, str]:
    return {str(path.relative_to(PROMPTS_DIR)): path.read_text(encoding="utf-8") for path in PROMPTS_DIR.rglob("[a-z]*.md")}


def _settings(value: Any, depth: int = _DEPTH) -> Any:
    """Settings as JSON: values, records with their fields, models, tools and templates. Anything else is given by its name."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if not depth:
        return type(value).__name__
    if isinstance(value, CachedChatModel | RunnableBinding) or hasattr(value, "_identifying_params"):
        return model_fingerprint(value)
    if isinstance(value, Template):
        return value.template
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
