"""The file of a benchmark, in TOML: environments x models x methods x seeds.

    title = "JitRL against its baselines"
    environments = ["toy", { name = "twx:coin", horizon = 30 }]   # a table may set any option of `learngraph run`
    models = ["pocket", "uniform"]                                # uniform: every admissible action is equally likely
    methods = ["jitrl", "static", "jitrl:paper", { name = "jitrl", label = "k=4", settings = { k = 4 } }]
    against = "jitrl"                                             # the method that the others are compared with
    seeds = 10                                                    # or [0, 3, 7], or "20-39"
    episodes = 30

Methods that learn on other problems than they play, such as training-free-grpo, have their own options (`options = { test_problems =
20, test_rollouts = 5 }`, experiments/training_free/options.py) in the place of `episodes`, `split` and `judge`.

A file may hold several tables, as those of the papers do (graphs/papers): `[tables.NAME]` has the keys above, and the keys in front
of the tables hold for all of them. `--only NAME` plays that table.

Everything is checked when the file is read: a wrong key or value is an error that names its place and what would do. A spec becomes
sweeps, one for each environment and model, and one for the methods that ask no model:

    <folder>/settings.json                                 the benchmark's name: another one needs another folder
    <folder>/<environment>/<model>/                        a sweep, with the layout of graphs/experiments/folder.py
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from ...memory.errors import CommandError, UserError
from ..arms import Arm, check_value, make_arm, preset_names
from ..methods import split_name
from .folder import Sweep, parse_seeds
from .options import RunOptions
from .training_free.options import LearningOptions, learning_options

__all__ = ["Choice", "Spec", "plan_sweeps", "read_spec", "read_tables", "unplayed_notes"]

SHIPPED = Path(__file__).parents[1], Path(__file__).parent / "benchmarks"
"""The folders of the package in which a file is looked for that is not here: `papers/adamem.toml`, `toy.toml`."""

UNIFORM = "uniform"
"""The name of the model to which every admissible action is equally likely."""
NO_MODEL = "no model"
"""The label under which methods that ask no model are played, once for all models."""
HARNESS_OPTIONS = "env model prior compare out workers dry_run json memory checkpoints".split()  # noqa: SIM905
"""Options of `learngraph run` that a table cannot set: the file, the command or the model says them."""


@dataclass(frozen=True)
class Choice:
    """An environment or a model of a benchmark."""

    name: str
    """Its spec, as `--env` or `--model` takes it; a model may be `uniform`."""
    label: str = ""
    """Its name in tables; the spec if not given."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `learngraph run` that are not the file's, such as `horizon`, `episodes`, `max_tokens` or `price_in`."""


@dataclass(frozen=True)
class Spec:
    """A benchmark: every method on every environment with every model and every seed."""

    environments: tuple[Choice, ...]
    """The environments."""
    methods: tuple[Arm, ...]
    """The methods."""
    models: tuple[Choice, ...] = (Choice("pocket", "pocket"),)
    """The models. A method that asks none is played once, not once for each."""
    title: str = ""
    """A line on what is measured."""
    text: str = ""
    """What a reader of the tables should know."""
    needs: str = ""
    """What it takes to play them beyond this package: servers, data, a key. Said before they are played."""
    against: str = ""
    """The label of the method that every other one is compared with; the first if not given."""
    seeds: int | str | list[int] = 10
    """A number of seeds, a list of them, or a range like "20-39"."""
    split: Literal["train", "dev", "test"] = "test"
    """The fold of the environments' tasks."""
    episodes: int = 30
    """Episodes of each run."""
    judge: str = "environment"
    """The judge, as `--judge` takes it."""
    metrics: tuple[str, ...] = ()
    """The columns of the tables; the usual ones if not given."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `learngraph run`, for all environments and models."""


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a file by their names, each with its keys; a file of one table has it under the name "".

    Args:
        path: the file, or its path below one of the package's folders (`papers/adamem.toml`).

    Raises:
        CommandError: it cannot be read; says why.
    """
    place = next((one for one in (path, *(folder / path for folder in SHIPPED)) if one.is_file()), path)
    try:
        there = tomllib.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror or error}); give a benchmark file in TOML") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise CommandError(f"{path} is no TOML: {error}") from None
    tables = there.pop("tables", {"": {}})
    if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
        raise CommandError(f"{path}: a table of several is written [tables.NAME], with the keys of a benchmark below it")
    return {name: there | table for name, table in tables.items()}


def read_spec(table: Mapping[str, Any], metrics: Sequence[str], place: str) -> Spec:
    """Check a table of a file.

    Args:
        table: its keys, see `read_tables`.
        metrics: the names of the columns that there are.
        place: what errors begin with: the file, and the table's name if it has several.

    Raises:
        CommandError: something in it is wrong; says where, and what would do.
    """
    try:
        return _spec(table, metrics)
    except UserError as error:
        raise CommandError(f"{place}: {error}") from None


def _spec(there: Mapping[str, Any], metrics: Sequence[str]) -> Spec:
    known = {one.name for one in fields(Spec)}
    _check_keys(there, known, "the file")
    for name in ("environments", "methods"):
        if not there.get(name):
            raise CommandError(f"{name} is missing; list at least one, as in {name} = [{_EXAMPLES[name]}]")
    hints = get_type_hints(Spec)
    plain = {name: hints[name] for name in known - {"environments", "models", "methods", "options"}}
    values = {name: check_value(there[name], hint, name) for name, hint in plain.items() if name in there}
    spec = Spec(
        environments=_labelled(_choices(there["environments"], "environments"), "environments"),
        methods=_labelled(_methods(there["methods"]), "methods"),
        models=_labelled(_choices(there.get("models", ["pocket"]), "models"), "models"),
        options=_run_options(there.get("options", {}), "options"),
        **values,
    )
    options = [spec.options, *(one.options for one in spec.environments), *(one.options for one in spec.models)]
    for seeds in (spec.seeds, *(some["seeds"] for some in options if "seeds" in some)):
        seed_list(seeds)
    labels = [arm.label for arm in spec.methods]
    if spec.against not in ("", *labels):
        raise CommandError(
            f"against names the method that the others are compared with; got {spec.against!r}, there are {', '.join(labels)}"
        )
    if unknown := [name for name in spec.metrics if name not in metrics]:
        raise CommandError(f"metrics: there is no {unknown[0]!r}; there are {', '.join(metrics)}")
    if NO_MODEL in (model.label for model in spec.models):
        raise CommandError(f"models: {NO_MODEL!r} is where methods without a model are shown; give another label")
    if spec.episodes < 1:
        raise CommandError(f"episodes is at least 1, got {spec.episodes}")
    return replace(spec, against=spec.against or labels[0])


_EXAMPLES = {"environments": '"toy"', "methods": '"jitrl", "static"'}


def _methods(there: Any) -> list[Arm]:
    """The methods, each checked against its settings."""
    found = []
    for number, table in enumerate(_tables(there, "methods", {"name": str, "label": str, "settings": Mapping[str, Any]})):
        name, label, given = table["name"], table.get("label", ""), table.get("settings", {})
        place = f"methods[{number}] ({name})"
        arm = make_arm(name)
        hints = get_type_hints(type(arm.settings))
        _check_keys(given, [one.name for one in fields(arm.settings)], f"{place}.settings")
        checked = {key: check_value(value, hints[key], f"{place}.settings.{key}") for key, value in given.items()}
        if given and not label:
            example = " ".join(f"{key}={value}" for key, value in checked.items())
            raise CommandError(f'{place} has settings of its own; give it a name for tables, as in label = "{example}"')
        key = name if label in ("", name) else f"{split_name(name)[0]}:{label}"
        if key != name and label in preset_names(type(arm.settings)):
            raise CommandError(f"{place}: label {label!r} is the name of a preset; give another label, or name = {key!r}")
        # A value out of range says so.
        found.append(replace(arm, name=key, label=label or name, settings=replace(arm.settings, **checked)))
    return found


def _choices(there: Any, place: str) -> list[Choice]:
    """The environments or models: names, or tables in which further keys are options of a run."""
    more = ("price_in", "price_out") if place == "models" else ()
    found = []
    for number, one in enumerate(_tables(there, place, {"name": str, "label": str}, [*_run_hints(more)])):
        options = {name: value for name, value in one.items() if name not in ("name", "label")}
        checked = _run_options(options, f"{place}[{number}]", more)
        found.append(Choice(one["name"], one.get("label", ""), checked))
    return found


def _tables(there: Any, place: str, hints: Mapping[str, Any], more: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The entries of a list as tables; a text is the name alone."""
    if not isinstance(there, list):
        raise CommandError(f"{place} is a list of names or tables, got {there!r}")
    found = []
    for number, one in enumerate(there):
        table = {"name": one} if isinstance(one, str) else one
        at = f"{place}[{number}]"
        if not isinstance(table, dict) or not table.get("name"):
            raise CommandError(f'{at} is a name, or a table with one, as in {{ name = "…" }}; got {one!r}')
        _check_keys(table, [*hints, *more], at)
        found.append(
            {key: check_value(value, hints[key], f"{at}.{key}") if key in hints else value for key, value in table.items()}
        )
    return found


def _labelled(found: Sequence[Any], place: str) -> tuple[Any, ...]:
    """The entries with their labels, which differ from each other, in the names of folders, too."""
    named = [replace(one, label=one.label or one.name) for one in found]
    seen: dict[str, str] = {}
    for one in named:
        slug = folder_name(one.label)
        if slug in seen:
            other = "twice" if seen[slug] == one.label else f"and {seen[slug]!r}, whose folders would have one name"
            raise CommandError(f"{place}: there is {one.label!r} {other}; give one of them another label")
        seen[slug] = one.label
    return tuple(named)


def folder_name(label: str) -> str:
    """The name of a folder for a label: `twx-coin` for `twx:coin`."""
    return re.sub(r"[^A-Za-z0-9._=]+", "-", label).strip("-.") or "-"


def seed_list(seeds: int | str | Sequence[int]) -> list[int]:
    """The seeds that a file or a flag names: a number of them, a list, or a text that `--seeds` takes."""
    try:
        return parse_seeds(str(seeds) if isinstance(seeds, int | str) else ",".join(map(str, seeds)) + ",")
    except CommandError:
        raise CommandError(f'seeds is a number like 5, a list like [0, 3, 7] or a range like "20-39", got {seeds!r}') from None


def _run_hints(more: Collection[str] = ()) -> dict[str, Any]:
    """The options of a run that a table may set, with their types; prices only where `more` names them."""
    without = {*HARNESS_OPTIONS, "price_in", "price_out"}.difference(more)
    hints = {name: hint for name, hint in get_type_hints(LearningOptions).items() if name not in without}
    return hints | {"seeds": int | str | list[int]}


def _run_options(there: Any, place: str, more: Collection[str] = ()) -> dict[str, Any]:
    hints = _run_hints(more)
    if not isinstance(there, dict):
        raise CommandError(f"{place} is a table of options of learngraph run, got {there!r}")
    _check_keys(there, hints, place)
    return {name: check_value(value, hints[name], f"{place}.{name}") for name, value in there.items()}


def _check_keys(there: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    if wrong := [key for key in there if key not in known]:
        raise CommandError(f"{place} has no key {wrong[0]!r}; there are {', '.join(sorted(known))}")


# The sweeps


def plan_sweeps(spec: Spec, folder: Path, processes: int, only: Sequence[str] = ()) -> list[Sweep]:
    """The sweeps of a benchmark, in the order of the file.

    Args:
        spec: the benchmark.
        folder: its folder.
        processes: number of worker processes.
        only: labels of the environments, models and methods to play; of a kind that it does not name, all are.

    Raises:
        CommandError: `only` names nothing in the file, or an option is out of range.
    """
    environments, models, methods = (_chosen(kind, only) for kind in (spec.environments, spec.models, spec.methods))
    if unknown := [name for name in only if name not in environments | models | methods]:
        there = [one.label for kind in (spec.environments, spec.models, spec.methods) for one in kind]
        raise CommandError(f"--only {unknown[0]}: there is no such environment, model or method; there are {', '.join(there)}")
    sweeps = []
    for environment in spec.environments:
        for model in (*spec.models, Choice(UNIFORM, NO_MODEL)):
            arms = {arm.name: arm for arm in spec.methods if _plays(arm, model)}
            if not arms or environment.label not in environments or model.label not in models | {NO_MODEL}:
                continue
            options, seeds = _sweep_options(spec, environment, model, processes)
            place = folder / folder_name(environment.label) / folder_name(model.label)
            if isinstance(options, LearningOptions):
                options = learning_options(options, arms)
            chosen = frozenset(name for name, arm in arms.items() if arm.label in methods)
            sweeps.append(Sweep(options, arms, place, tuple(seeds), environment.label, model.label, chosen))
    return sweeps


def _sweep_options(spec: Spec, environment: Choice, model: Choice, processes: int) -> tuple[RunOptions, list[int]]:
    values: dict[str, Any] = {"seeds": spec.seeds, "split": spec.split, "episodes": spec.episodes, "judge": spec.judge}
    values |= {**spec.options, **environment.options, **model.options}
    seeds, is_uniform = seed_list(values.pop("seeds")), model.name == UNIFORM
    if is_uniform:  # it costs nothing
        values = {name: value for name, value in values.items() if name not in ("token_budget", "dollar_budget")}
    learns = any(arm.method.has_training_phase for arm in spec.methods)
    form: type[RunOptions] = LearningOptions if learns else RunOptions
    known = {one.name for one in fields(form) if one.init}
    values = {name: value for name, value in values.items() if name in known or not hasattr(spec, name)}
    if beyond := [name for name in values if name not in known]:
        kind = "while they play" if learns else "on other problems than they play, such as training-free-grpo"
        raise CommandError(f"{beyond[0]} is of methods that learn {kind}")
    options = form(
        env=environment.name,
        model="pocket" if is_uniform else model.name,
        prior="uniform" if is_uniform else "model",
        seeds=",".join(map(str, seeds)) + ",",
        workers=processes,
        **values,
    )
    if options.episodes < 1:
        raise CommandError(f"{environment.label}: episodes is at least 1, got {options.episodes}")
    return options, seeds


def unplayed_notes(spec: Spec, only: Sequence[str] = ()) -> list[str]:
    """A line for each method that is not played with some model, and why, of those that `only` names (see `plan_sweeps`)."""
    models, methods = _chosen(spec.models, only), _chosen(spec.methods, only)
    return [
        f"{arm.label} is not played with {model.label}: {reason}"
        for model in spec.models
        for arm in spec.methods
        if model.label in models and arm.label in methods and (reason := _missing(arm, model))
    ]


def _chosen(kind: Sequence[Choice | Arm], only: Sequence[str]) -> set[str]:
    labels = {one.label for one in kind}
    return labels.intersection(only) or labels


def _plays(arm: Arm, model: Choice) -> bool:
    """True if the method is played with this model: one that asks none is played once."""
    if not arm.method.needs_model or model.label == NO_MODEL:
        return not arm.method.needs_model and model.label == NO_MODEL
    return not _missing(arm, model)


def _missing(arm: Arm, model: Choice) -> str:
    """Why the method cannot be played with this model; empty if it can."""
    method = arm.method
    in_process = model.name != UNIFORM and not model.name.startswith("openai:")
    if method.trains_weights and not in_process:
        owner = "a uniform prior has none" if model.name == UNIFORM else "a model behind an API keeps its own"
        return f"the method trains a model's weights, and {owner}"
    if model.name == UNIFORM and (method.needs_writer or arm.needs_chat):
        return "a uniform prior writes no text, and the method needs a model that does"
    if arm.needs_chat and in_process and model.options.get("policy", "auto") in ("auto", "local"):
        return "a model that scores actions writes no reasoning and no code, and the method needs a model that does"
    return ""
