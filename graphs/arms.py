"""Methods with their settings, and graphs, by name: `jitrl`, `jitrl:paper` (a preset), `jitrl:paper?beta=3&k=5`, `my_app:graph`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from ..memory.errors import CommandError, UserError, did_you_mean, type_of

if TYPE_CHECKING:
    from .methods import Method

__all__ = [
    "SERVED_GRAPHS",
    "Arm",
    "blueprint",
    "check_value",
    "find_user_object",
    "load_graph",
    "make_arm",
    "method_settings",
    "preset_names",
    "shared_settings",
]


@dataclass(frozen=True)
class Arm:
    """A method with its settings: a row of a comparison."""

    name: str
    """Its name in commands and run folders: `jitrl`, `jitrl:paper`, `icrl?rewards=zero`, `jitrl:k=4` for the label k=4."""
    settings: Any
    """The settings that the method is built with."""
    label: str
    """Its name in tables."""
    temperature: float | None = None
    """The temperature at which its paper samples the model, if its preset says so."""

    @property
    def method(self) -> Method:
        """The method itself."""
        from .methods import find_method

        return find_method(self.name)

    @property
    def needs_chat(self) -> bool:
        """True if only a model that writes freely can play it with these settings."""
        return self.method.needs_chat or bool(getattr(self.settings, "needs_writer", False))

    @property
    def shares_memory(self) -> bool:
        """True if the runs of all seeds share one memory: they are played one after the other, in the order of the seeds."""
        return bool(getattr(self.settings, "cross_task", False))


def make_arm(name: str, settings: Any = None) -> Arm:
    """The method of this name, with these settings, or those that the name stands for if not given."""
    from .methods import find_method, split_name

    method, preset = split_name(name)
    settings = method_settings(name) if settings is None else settings
    remark = getattr(settings, "remark", "")
    temperatures: Mapping[str, float] = getattr(find_method(method).settings, "preset_temperatures", {})
    return Arm(name, settings, f"{name} ({remark})" if remark else name, temperatures.get(preset))


def preset_names(settings: type) -> list[str]:
    """The names of a settings class's presets: its class methods."""
    made = [name for name, value in vars(settings).items() if isinstance(value, classmethod)]
    return [name.replace("_", "-") for name in ("default", *made)]


def method_settings(name: str, main: tuple[str, Any] | None = None, shared: Mapping[str, Any] | None = None) -> Any:
    """The settings of a method.

    Args:
        name: `METHOD`, `METHOD:PRESET`, `METHOD?SETTING=VALUE&SETTING=VALUE`, or both: `jitrl:paper?beta=3`.
        main: name and settings of the method that others are compared with. Where it is the same method, the values of a name without
            a preset change these settings, and else the defaults.
        shared: what all compared methods have in common, see `shared_settings`.

    Raises:
        UserError: there is no such method, preset or setting, or a value does not fit; says which there are.
    """
    from .methods import find_method, shared_fields, split_name

    plain, _, values = name.partition("?")
    method, preset = split_name(plain)
    made = find_method(method).settings
    if main is not None and type(main[1]) is not made:  # a field of another method is the same only where both are marked
        shared = {field: value for field, value in (shared or {}).items() if field in shared_fields(made)}
    if preset and preset not in (known := preset_names(made)):
        others = f"; it has {', '.join(known)}, and {method}?SETTING=VALUE changes a setting"
        raise CommandError(f"{method} has no preset '{preset}'{did_you_mean(preset, known) or others}")
    own = main is not None and split_name(main[0].partition("?")[0])[0] == method
    if preset in ("", "default"):
        chosen = main[1] if main is not None and own and values and not preset else _apply_shared(made(), shared or {})
    else:
        chosen = _apply_shared(getattr(made, preset.replace("-", "_"))(), shared or {})
    return _with_values(chosen, values, method) if values else chosen


def _with_values(settings: Any, text: str, method: str) -> Any:
    """The settings with the values of a text like `beta=3&k=5`; a setting of a group is called `loss.learning_rate`."""
    for part in text.split("&"):
        key, equals, value = part.partition("=")
        if not equals:
            raise CommandError(f"{method}?{part}: a setting and its value are needed, as in {method}?{_example(settings)}")
        settings = _with_value(settings, key.strip().replace("-", "_"), value.strip(), method)
    return settings


def _with_value(settings: Any, key: str, text: str, place: str) -> Any:
    first, _, rest = key.partition(".")
    known = [one.name for one in fields(settings)]
    if first not in known:
        raise CommandError(f"{place} has no setting {first!r}{did_you_mean(first, known, 'it has')}")
    if rest and is_dataclass(getattr(settings, first)):
        return replace(settings, **{first: _with_value(getattr(settings, first), rest, text, f"{place}, {first}")})
    try:
        given = json.loads(text)
    except ValueError:
        given = {"none": None, "None": None, "True": True, "False": False}.get(text, text)
    value = check_value(given, get_type_hints(type(settings))[first], f"{place}?{first}", text)
    try:
        return replace(settings, **{first: value})
    except UserError:
        raise
    except ValueError as error:
        raise CommandError(f"{place}?{first}={text}: {error}") from error


def _example(settings: Any) -> str:
    one = fields(settings)[0].name
    return f"{one}={getattr(settings, one)}"


def check_value(value: Any, hint: Any, place: str, text: str = "") -> Any:
    """The value as its type; a number in quotes and the like are refused. `text` is what the user wrote."""
    from pydantic import TypeAdapter, ValidationError

    for one in (value, text) if text else (value,):  # `1` may be the text of a setting that is a text
        try:
            return TypeAdapter(hint).validate_json(json.dumps(one, default=str), strict=True)
        except ValidationError as error:
            wrong = error
    wanted = " or ".join(
        dict.fromkeys(
            one["msg"]
            .removeprefix("Input should be ")
            .replace("a valid i", "an i")
            .replace("a valid a", "an a")
            .replace("a valid ", "a ")
            for one in wrong.errors()
        )
    )
    raise CommandError(f"{place} is to be {wanted}, got {text or repr(value)}")


def shared_settings(settings: Any, args: Sequence[str]) -> dict[str, Any]:
    """Settings of a method that its rivals in a comparison share: given by a flag, or not the default.

    Flags are read from the arguments, since tyro does not say whether a value was given or is the default.
    """
    from .methods import shared_fields

    flags = {arg.partition("=")[0][2:].removeprefix("no-").replace("-", "_") for arg in args if arg.startswith("--")}
    usual = type(settings)()
    here = {name: getattr(settings, name) for name in shared_fields(type(settings))}
    return {name: value for name, value in here.items() if name in flags or value != getattr(usual, name)}


def _apply_shared(settings: Any, shared: Mapping[str, Any]) -> Any:
    """Settings with what all methods share, but for fields that these do not have, or that a preset has changed."""
    usual = type(settings)()
    fits = {
        name: value
        for name, value in shared.items()
        if hasattr(settings, name) and getattr(settings, name) == getattr(usual, name)
    }
    return replace(settings, **fits)


def blueprint(method: str, settings: Any = None, **build: Any) -> Any:
    """The graph of a method's episode, built without a model, an environment or a bank: to look at.

    Args:
        method: its name, with a preset and values if wanted.
        settings: its settings; those that the name stands for if not given.
        build: as for the method's own `build`: `chain`, `flow`, `nodes`, and the options of `StateGraph.compile`.
    """
    from ..memory.storage.journal import Journal
    from ..nodes.act.policies import LocalPolicy, act_policy
    from ..nodes.prompt import Prompt
    from .methods import find_method
    from .wiring.inputs import MethodInputs, Prompting

    settings = method_settings(method) if settings is None else settings
    # Files change nothing in the picture, and may not be here.
    absent_files = {name: "" for name in ("bank", "embedder") if hasattr(settings, name)}
    by_rule = {"state_key": "hierarchy"} if getattr(settings, "state_key", "") == "embedding" else {}
    settings = replace(settings, **absent_files, **by_rule)
    absent: Any = None
    prompt = Prompt.load("act/score")
    inputs = MethodInputs(
        absent,
        Journal(),
        make_policy=lambda seen: LocalPolicy(absent, seen, prompt),
        model=cast(Any, object()),  # never asked
        make_writing_policy=lambda seen, style: act_policy(absent, seen, style.action_prompt),
        prompting=Prompting(window=cast(Any, float("inf"))),  # a model's, and no picture shows one that is not known
    )
    return find_method(method).build(inputs, settings, **build)


# Graphs by name: a method's, CLaaS's two, or the user's own `MODULE:NAME`

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

    module = import_user_module(place, f"'{place}:{attribute}' asks for {attribute} of the module {place}")
    if not hasattr(module, attribute):
        raise UserError(f"{place} has nothing called '{attribute}'{did_you_mean(attribute, vars(module))}")
    return getattr(module, attribute)


def _as_graph(found: Any, name: str) -> Any:
    """A compiled graph, from one, from a builder, or from a function that returns one."""
    from langchain_core.runnables import Runnable
    from langgraph.graph import StateGraph
    from langgraph.graph.state import CompiledStateGraph

    if callable(found) and not isinstance(found, Runnable | type):
        starred = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
        needed = [
            one.name for one in signature(found).parameters.values() if one.default is one.empty and one.kind not in starred
        ]
        if needed:
            raise UserError(f"'{name}' takes {', '.join(needed)}: give a function without arguments that returns a graph")
        found = found()
    if isinstance(found, StateGraph):
        found = found.compile()
    if not isinstance(found, CompiledStateGraph):
        raise UserError(
            f"'{name}' is {type_of(found)}, and no graph: give a compiled LangGraph graph, a StateGraph, a Method, or a "
            "function without arguments that returns one of the first two"
        )
    return found
