"""The file of a benchmark, in TOML: environments x models x methods x seeds.

    title = "JitRL against its baselines"
    environments = ["toy", { name = "twx:coin", horizon = 30 }]   # a table may set any option of `learngraph run`
    models = ["pocket", "uniform"]                                # uniform: every admissible action is equally likely
    methods = ["jitrl", "static", "jitrl:paper", { name = "jitrl", label = "k=4", settings = { k = 4 } }]
    against = "jitrl"                                             # the method that the others are compared with
    seeds = 10                                                    # or [0, 3, 7], or "20-39"
    episodes = 30

Everything is checked when the file is read: a wrong key or value is an error that names its place and what would do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from ...memory.errors import CommandError, UserError
from ..arms import check_value, method_settings, preset_names
from ..methods import find_method, split_name
from .run_folder import parse_seeds
from .training_free.options import LearningOptions

__all__ = ["Arm", "BenchEnvironment", "BenchModel", "Spec", "read_bench_file"]

UNIFORM = "uniform"
"""The name of the model to which every admissible action is equally likely."""
NO_MODEL = "no model"
"""The label under which methods that ask no model are played, once for all models."""
HARNESS_OPTIONS = (
    "env model prior seeds compare out workers dry_run json memory checkpoints stop_at_full_score price_in price_out".split()  # noqa: SIM905
)
"""Options of `learngraph run` that a table cannot set: the file, the command or the model says them."""


@dataclass(frozen=True)
class BenchEnvironment:
    """An environment of a benchmark."""

    name: str
    """Its spec, as `--env` takes it."""
    label: str = ""
    """Its name in tables; the spec if not given."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `learngraph run` that are not the file's, such as `horizon`, `episodes` or `judge`."""


@dataclass(frozen=True)
class BenchModel:
    """A model of a benchmark."""

    name: str
    """Its spec, as `--model` takes it, or `uniform`."""
    label: str = ""
    """Its name in tables; the spec if not given."""
    price_in: float = 0.0
    """Dollars per million tokens that it reads."""
    price_out: float = 0.0
    """Dollars per million tokens that it writes. Without a price no dollars are shown."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `learngraph run` that are not the file's, such as `base_url` or `max_tokens`."""


@dataclass(frozen=True)
class Arm:
    """A method of a benchmark, with its settings."""

    name: str
    """The method, perhaps with a preset or values: `jitrl`, `jitrl:paper`, `icrl?rewards=zero`."""
    label: str = ""
    """Its name in tables; the name if not given."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are not those of the preset."""

    @property
    def learns_first(self) -> bool:
        """True if the method learns on other problems than it plays."""
        return find_method(self.name).has_training_phase

    @property
    def key(self) -> str:
        """Its name in run folders: `jitrl:k=4` for the method jitrl with the label k=4."""
        return self.name if self.label in ("", self.name) else f"{split_name(self.name)[0]}:{self.label}"

    def method_settings(self) -> Any:
        """The settings that the method is built with."""
        return replace(method_settings(self.name), **self.settings)


@dataclass(frozen=True)
class Spec:
    """A benchmark: every method on every environment with every model and every seed."""

    environments: tuple[BenchEnvironment, ...]
    """The environments."""
    methods: tuple[Arm, ...]
    """The methods."""
    models: tuple[BenchModel, ...] = (BenchModel("pocket", "pocket"),)
    """The models. A method that asks none is played once, not once for each."""
    title: str = ""
    """A line on what is measured."""
    text: str = ""
    """What a reader of the tables should know."""
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


def read_bench_file(path: Path, metrics: Sequence[str]) -> Spec:
    """Read and check a benchmark file.

    Args:
        path: the file.
        metrics: the names of the columns that there are.

    Raises:
        CommandError: it cannot be read, or something in it is wrong; says where, and what would do.
    """
    try:
        there = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror or error}); give a benchmark file in TOML") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise CommandError(f"{path} is no TOML: {error}") from None
    try:
        return _bench_file(there, metrics)
    except UserError as error:
        raise CommandError(f"{path}: {error}") from None


def _bench_file(there: Mapping[str, Any], metrics: Sequence[str]) -> Spec:
    known = {one.name for one in fields(Spec)}
    _check_keys(there, known, "the file")
    for name in ("environments", "methods"):
        if not there.get(name):
            raise CommandError(f"{name} is missing; list at least one, as in {name} = [{_EXAMPLES[name]}]")
    hints = get_type_hints(Spec)
    plain = {name: hints[name] for name in known - {"environments", "models", "methods", "options"}}
    values = {name: check_value(there[name], hint, name) for name, hint in plain.items() if name in there}
    file = Spec(
        environments=_labelled(_named_tables(BenchEnvironment, there["environments"], "environments"), "environments"),
        methods=_labelled(_methods(there["methods"]), "methods"),
        models=_labelled(_named_tables(BenchModel, there.get("models", ["pocket"]), "models"), "models"),
        options=_run_options(there.get("options", {}), "options"),
        **values,
    )
    options = [file.options, *(one.options for one in file.environments), *(one.options for one in file.models)]
    for seeds in (file.seeds, *(some["seeds"] for some in options if "seeds" in some)):
        seed_list(seeds)
    labels = [arm.label for arm in file.methods]
    if file.against not in ("", *labels):
        raise CommandError(
            f"against names the method that the others are compared with; got {file.against!r}, there are {', '.join(labels)}"
        )
    if unknown := [name for name in file.metrics if name not in metrics]:
        raise CommandError(f"metrics: there is no {unknown[0]!r}; there are {', '.join(metrics)}")
    if NO_MODEL in (model.label for model in file.models):
        raise CommandError(f"models: {NO_MODEL!r} is where methods without a model are shown; give another label")
    if file.episodes < 1:
        raise CommandError(f"episodes is at least 1, got {file.episodes}")
    return replace(file, against=file.against or labels[0])


_EXAMPLES = {"environments": '"toy"', "methods": '"jitrl", "static"'}


def _methods(there: Any) -> list[Arm]:
    """The methods, each checked against its settings."""
    found = [Arm(**one) for one in _tables(there, "methods", {"name": str, "label": str, "settings": Mapping[str, Any]})]
    for number, arm in enumerate(found):
        place = f"methods[{number}] ({arm.name})"
        usual = method_settings(arm.name)
        hints = get_type_hints(type(usual))
        names = [one.name for one in fields(usual)]
        _check_keys(arm.settings, names, f"{place}.settings")
        checked = {key: check_value(value, hints[key], f"{place}.settings.{key}") for key, value in arm.settings.items()}
        found[number] = replace(arm, settings=checked)
        if arm.settings and not arm.label:
            raise CommandError(
                f'{place} has settings of its own; give it a name for tables, as in label = "{_some_label(checked)}"'
            )
        taken = preset_names(type(usual))
        if arm.key != arm.name and arm.label in taken:
            raise CommandError(
                f"{place}: label {arm.label!r} is the name of a preset; give another label, or name = {arm.key!r}"
            )
        found[number].method_settings()  # a value out of range says so
    return found


def _some_label(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _named_tables(form: type[Any], there: Any, place: str) -> list[Any]:
    """The environments or models: names, or tables in which further keys are options of a run."""
    hints = {name: hint for name, hint in get_type_hints(form).items() if name != "options"}
    run = [name for name in _run_hints() if name not in hints]
    found = []
    for number, one in enumerate(_tables(there, place, hints, run)):
        own = {name: value for name, value in one.items() if name in hints}
        options = _run_options({name: value for name, value in one.items() if name not in hints}, f"{place}[{number}]")
        found.append(form(**own, options=options))
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
    import re

    return re.sub(r"[^A-Za-z0-9._=]+", "-", label).strip("-.") or "-"


def seed_list(seeds: int | str | Sequence[int]) -> list[int]:
    """The seeds that a file or a flag names: a number of them, a list, or a text that `--seeds` takes.

    Raises:
        CommandError: there are none.
    """
    try:
        return parse_seeds(str(seeds) if isinstance(seeds, int | str) else ",".join(map(str, seeds)) + ",")
    except CommandError:
        raise CommandError(f'seeds is a number like 5, a list like [0, 3, 7] or a range like "20-39", got {seeds!r}') from None


def _run_hints() -> dict[str, Any]:
    """The options of a run that a table may set, with their types."""
    return {name: hint for name, hint in get_type_hints(LearningOptions).items() if name not in HARNESS_OPTIONS} | {
        "seeds": int | str | list[int]
    }


def _run_options(there: Any, place: str) -> dict[str, Any]:
    hints = _run_hints()
    if not isinstance(there, dict):
        raise CommandError(f"{place} is a table of options of learngraph run, got {there!r}")
    _check_keys(there, hints, place)
    return {name: check_value(value, hints[name], f"{place}.{name}") for name, value in there.items()}


def _check_keys(there: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    if wrong := [key for key in there if key not in known]:
        raise CommandError(f"{place} has no key {wrong[0]!r}; there are {', '.join(sorted(known))}")
