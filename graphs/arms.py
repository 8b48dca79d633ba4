"""The settings of a method by name: `jitrl`, `jitrl:paper` (a preset), `icrl:zero-reward` (an ablation), `my_package.rest:METHOD`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ..memory.errors import CommandError

__all__ = [
    "ablation_names",
    "blueprint",
    "method_settings",
    "paper_temperature",
    "preset_names",
    "shared_settings",
    "take_preset",
]


def take_preset(args: Sequence[str]) -> tuple[str, list[str]]:
    """The value of `--preset`, `default` if not given, and the other arguments.

    It is taken out before the rest is read, since it decides the defaults that `--help` shows. tyro's own presets are subcommands
    (`run jitrl paper`), and would change the commands that people have.
    """
    rest, preset = list(args), "default"
    for i, arg in enumerate(args):
        if arg == "--preset" or arg.startswith("--preset="):
            preset = arg.partition("=")[2] or (args[i + 1] if i + 1 < len(args) else "")
            del rest[i : i + (1 if "=" in arg else 2)]
            break
    return preset, rest


def preset_names(settings: type) -> list[str]:
    """The names of a settings class's presets: its class methods."""
    return ["default", *(name.replace("_", "-") for name, made in vars(settings).items() if isinstance(made, classmethod))]


def ablation_names(settings: type) -> list[str]:
    """The names of what can be taken away from settings, one at a time."""
    return [name.replace("_", "-") for name in getattr(settings, "ablations", ())]


def method_settings(
    name: str, preset: str = "default", main: tuple[str, Any] | None = None, shared: Mapping[str, Any] | None = None
) -> Any:
    """The settings of a method.

    Args:
        name: `METHOD`, `METHOD:PRESET` or `METHOD:ABLATION`.
        preset: the preset or ablation, if the name has none.
        main: name and settings of the method that others are compared with. Its own ablations change its settings; those of another
            method change that method's defaults.
        shared: what all compared methods have in common, see `shared_settings`.

    Raises:
        UserError: there is no such method, preset or ablation; says which there are.
    """
    from .methods import find_method, shared_fields, split_name

    method, named = split_name(name)
    made, preset = find_method(method).settings, named or preset
    if main is not None and type(main[1]) is not made:  # a field of another method is the same only where both are marked
        shared = {field: value for field, value in (shared or {}).items() if field in shared_fields(made)}
    if preset not in (known := [*preset_names(made), *ablation_names(made)]):
        raise CommandError(f"{method} has no preset '{preset}'; it has {', '.join(known)}")
    if preset in ablation_names(made):
        own = main is not None and split_name(main[0])[0] == method
        base = main[1] if main is not None and own else _apply_shared(made(), shared or {})
        return getattr(base, preset.replace("-", "_"))()
    chosen = made() if preset == "default" else getattr(made, preset.replace("-", "_"))()
    return _apply_shared(chosen, shared or {})


def paper_temperature(name: str, preset: str = "default") -> float | None:
    """The temperature at which the paper of a method samples its model, if the preset (or the one in the name) says so."""
    from .methods import find_method, split_name

    method, named = split_name(name)
    known: Mapping[str, float] = getattr(find_method(method).settings, "preset_temperatures", {})
    return known.get(named or preset)


def shared_settings(settings: Any, args: Sequence[str]) -> dict[str, Any]:
    """Those of a method's settings that also hold for the methods that it is compared with: given by a flag, or not the default.

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
        method: its name, with a preset or an ablation if wanted.
        settings: its settings; those that the name stands for if not given.
        build: as for the method's own `build`: `chain`, `flow`, `nodes`, and the options of `StateGraph.compile`.
    """
    from ..memory.storage.journal import Journal
    from ..nodes.act.policies import LocalPolicy, act_policy
    from ..nodes.prompt import Prompt
    from .methods import find_method
    from .wiring.parts import MethodInputs

    settings = method_settings(method) if settings is None else settings
    # Files change nothing in the picture, and may not be here.
    settings = replace(settings, **{name: "" for name in ("bank", "embedder") if hasattr(settings, name)})
    absent: Any = None
    prompt = Prompt.load("act/score")
    inputs = MethodInputs(
        absent,
        Journal(),
        make_policy=lambda seen: LocalPolicy(absent, seen, prompt),
        model=cast(Any, object()),  # never asked
        make_writing_policy=lambda seen, style: act_policy(absent, seen),
    )
    return find_method(method).build(inputs, settings, **build)
