"""LangGraph agents that learn while they work.

    import learngraph

    world = ...                                             # a learngraph.Environment
    inputs = learngraph.MethodInputs(environment=world)      # a uniform policy, a memory in this process
    graph = learngraph.jitrl.build(inputs)                   # a LangGraph CompiledStateGraph
    learngraph.picture(graph)                               # its drawing, in a notebook

Importing this package takes milliseconds: each name below is loaded when it is used for the first time. `python -m learngraph` is
the command line.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself would be half of the import
if TYPE_CHECKING:
    from typing import Any

    from .graphs import adamem as adamem
    from .graphs import claas as claas
    from .graphs import icrl as icrl
    from .graphs import jitrl as jitrl
    from .graphs import training_free_grpo as training_free_grpo
    from .graphs.cli.background_server import start_server as serve
    from .graphs.experiments.explain import explain_step as explain
    from .graphs.experiments.replay import step_from as step_from
    from .graphs.studio.widget import studio_view as studio
    from .graphs.wiring import run as run
    from .graphs.wiring.flow import check as check
    from .graphs.wiring.flow import rewire as rewire
    from .graphs.wiring.flow import to_mermaid as to_mermaid
    from .graphs.wiring.flow import wire as wire
    from .graphs.wiring.inputs import MethodInputs as MethodInputs
    from .graphs.wiring.picture import picture as picture
    from .memory.errors import UserError as UserError
    from .memory.storage.chroma_store import ChromaStore as ChromaStore
    from .nodes.act.episode import Environment as Environment
    from .nodes.catalogue import catalogue as catalogue
    from .nodes.state import AttemptState as AttemptState
    from .nodes.state import EpisodeInput as EpisodeInput
    from .nodes.state import EpisodeResult as EpisodeResult
    from .tools.environments.catalogue import open_environment as open_environment
    from .tools.models.models import open_model as open_model
    from .tools.notebook.compare import compare as compare
    from .tools.notebook.walk import Walk as Walk
    from .tools.notebook.walk import start as step

    __version__: str

__all__ = [
    "AttemptState",
    "ChromaStore",
    "Environment",
    "EpisodeInput",
    "EpisodeResult",
    "MethodInputs",
    "UserError",
    "Walk",
    "__version__",
    "adamem",
    "catalogue",
    "check",
    "claas",
    "compare",
    "explain",
    "icrl",
    "jitrl",
    "open_environment",
    "open_model",
    "picture",
    "rewire",
    "run",
    "serve",
    "step",
    "step_from",
    "studio",
    "to_mermaid",
    "training_free_grpo",
    "wire",
]

_LOADED_ON_USE = {
    "AttemptState": (".nodes.state", "AttemptState"),
    "ChromaStore": (".memory.storage.chroma_store", "ChromaStore"),
    "Environment": (".nodes.act.episode", "Environment"),
    "EpisodeInput": (".nodes.state", "EpisodeInput"),
    "EpisodeResult": (".nodes.state", "EpisodeResult"),
    "MethodInputs": (".graphs.wiring.inputs", "MethodInputs"),
    "UserError": (".memory.errors", "UserError"),
    "Walk": (".tools.notebook.walk", "Walk"),
    "adamem": (".graphs.adamem", ""),
    "catalogue": (".nodes.catalogue", "catalogue"),
    "check": (".graphs.wiring.flow", "check"),
    "claas": (".graphs.claas", ""),
    "compare": (".tools.notebook.compare", "compare"),
    "explain": (".graphs.experiments.explain", "explain_step"),
    "icrl": (".graphs.icrl", ""),
    "jitrl": (".graphs.jitrl", ""),
    "open_environment": (".tools.environments.catalogue", "open_environment"),
    "open_model": (".tools.models.models", "open_model"),
    "picture": (".graphs.wiring.picture", "picture"),
    "rewire": (".graphs.wiring.flow", "rewire"),
    "run": (".graphs.wiring.run", ""),
    "serve": (".graphs.cli.background_server", "start_server"),
    "step": (".tools.notebook.walk", "start"),
    "step_from": (".graphs.experiments.replay", "step_from"),
    "studio": (".graphs.studio.widget", "studio_view"),
    "to_mermaid": (".graphs.wiring.flow", "to_mermaid"),
    "training_free_grpo": (".graphs.training_free_grpo", ""),
    "wire": (".graphs.wiring.flow", "wire"),
}
"""Name -> its module, and its name there; the module itself where that is empty."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("learngraph")
    elif name in _LOADED_ON_USE:
        from importlib import import_module

        module, attribute = _LOADED_ON_USE[name]
        value = import_module(module, __name__)
        if attribute:
            value = getattr(value, attribute)
    else:
        from .memory.errors import did_you_mean

        raise AttributeError(f"learngraph has no {name!r}{did_you_mean(name, __all__, 'it has')}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
