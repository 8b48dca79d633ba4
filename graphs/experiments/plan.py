"""The sweeps of a benchmark: one for each environment and model, and one for the methods that ask no model.

<folder>/settings.json                                 the benchmark's name: another one needs another folder
<folder>/<environment>/<model>/                        a sweep, with the layout of graphs/experiments/sweep.py
<folder>/<environment>/<model>/<method>-s<seed>/       a run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...memory.errors import CommandError
from ..arms import paper_temperature
from ..methods import find_method
from .folder_settings import read_settings
from .measures import RunPrices
from .options import RunOptions, RunSetup
from .run_folder import make_job, settings_record
from .spec import NO_MODEL, UNIFORM, Arm, BenchEnvironment, BenchModel, Spec, folder_name, seed_list
from .sweep import Job
from .training_free.options import LearningOptions

__all__ = ["Sweep", "plan_sweeps", "unplayed_notes"]


@dataclass(frozen=True)
class Sweep:
    """The runs of some methods on one environment with one model."""

    environment: BenchEnvironment
    model: BenchModel
    arms: Mapping[str, Arm]
    """The methods by their names in run folders."""
    setup: RunSetup
    folder: Path
    seeds: tuple[int, ...]
    chosen: frozenset[str]
    """Those of the methods that are to be played now."""

    @property
    def name(self) -> str:
        """Environment and model, for the reader."""
        return f"{self.environment.label}, {self.model.label}"

    def batches(self) -> list[list[Job]]:
        """The runs that are to be played, method by method."""
        return [[self.job(key, seed) for seed in self.seeds] for key in self.arms if key in self.chosen]

    def job(self, key: str, seed: int) -> Job:
        """The run of a method on a seed."""
        return make_job(self.setup, self.folder, key, seed)


def plan_sweeps(file: Spec, folder: Path, processes: int, only: Sequence[str] = ()) -> list[Sweep]:
    """The sweeps of a benchmark, in the order of the file.

    Args:
        file: the benchmark.
        folder: its folder.
        processes: number of worker processes.
        only: labels of the environments, models and methods to play; of a kind that it does not name, all are.

    Raises:
        CommandError: `only` names nothing in the file, or an option is out of range.
    """
    environments = _chosen([one.label for one in file.environments], only)
    models, methods = _chosen([one.label for one in file.models], only), _chosen([one.label for one in file.methods], only)
    if unknown := [name for name in only if name not in environments | models | methods]:
        entries: list[Any] = [*file.environments, *file.models, *file.methods]
        there = [one.label for one in entries]
        raise CommandError(f"--only {unknown[0]}: there is no such environment, model or method; there are {', '.join(there)}")
    sweeps = []
    for environment in file.environments:
        for model in (*file.models, BenchModel(UNIFORM, NO_MODEL)):
            arms = {arm.key: arm for arm in file.methods if _plays(arm, model)}
            if not arms or environment.label not in environments or (model.label not in models and model.label != NO_MODEL):
                continue
            chosen = frozenset(key for key, arm in arms.items() if arm.label in methods)
            sweeps.append(_make_sweep(file, environment, model, arms, folder, processes, chosen))
    return sweeps


def unplayed_notes(file: Spec, only: Sequence[str] = ()) -> list[str]:
    """A line for each method that is not played with some model, and why, of those that `only` names (see `plan_sweeps`)."""
    models, methods = _chosen([one.label for one in file.models], only), _chosen([one.label for one in file.methods], only)
    return [
        f"{arm.label} is not played with {model.label}: {reason}"
        for model in file.models
        for arm in file.methods
        if model.label in models and arm.label in methods and (reason := _missing(arm, model))
    ]


def _missing(arm: Arm, model: BenchModel) -> str:
    """Why the method cannot be played with this model; empty if it can."""
    method = find_method(arm.name)
    in_process = model.name != UNIFORM and not model.name.startswith("openai:")
    if method.trains_weights and not in_process:
        owner = "a uniform prior has none" if model.name == UNIFORM else "a model behind an API keeps its own"
        return f"the method trains a model's weights, and {owner}"
    if model.name == UNIFORM and method.needs_writer:
        return "a uniform prior writes no text, and the method needs a model that does"
    if method.needs_chat and in_process and model.options.get("policy", "auto") in ("auto", "local"):
        return "a model that scores actions writes no reasoning and no code, and the method needs a model that does"
    return ""


def _chosen(labels: Sequence[str], only: Sequence[str]) -> set[str]:
    return {label for label in labels if label in only} or set(labels)


def _plays(arm: Arm, model: BenchModel) -> bool:
    """True if the method is played with this model: one that asks none is played once."""
    method = find_method(arm.name)
    if not method.needs_model or model.label == NO_MODEL:
        return not method.needs_model and model.label == NO_MODEL
    return not _missing(arm, model)


def _make_sweep(
    file: Spec,
    environment: BenchEnvironment,
    model: BenchModel,
    arms: Mapping[str, Arm],
    folder: Path,
    processes: int,
    chosen: frozenset[str],
) -> Sweep:
    values: dict[str, Any] = {"seeds": file.seeds, "split": file.split, "episodes": file.episodes, "judge": file.judge}
    values |= {**file.options, **environment.options, **model.options}
    seeds = seed_list(values.pop("seeds"))
    if model.name == UNIFORM:  # it costs nothing
        values = {name: value for name, value in values.items() if name not in ("token_budget", "dollar_budget")}
    learns = any(arm.learns_first for arm in file.methods)
    form: type[RunOptions] = LearningOptions if learns else RunOptions
    if learns and not any(arm.learns_first for arm in arms.values()):
        raise CommandError(
            f"{', '.join(arms)}: asks no model, and the other methods learn before they play with one; leave it out"
        )
    names = {one.name for one in fields(form) if one.init}
    values = {name: value for name, value in values.items() if name in names or not hasattr(file, name)}
    if beyond := [name for name in values if name not in names]:
        kind = "while they play" if learns else "on other problems than they play, such as training-free-grpo"
        raise CommandError(f"{beyond[0]} is of methods that learn {kind}")
    if not learns:
        values["stop_at_full_score"] = False  # all methods of a table play the same number of episodes
    options = form(
        env=environment.name,
        model="pocket" if model.name == UNIFORM else model.name,
        prior="uniform" if model.name == UNIFORM else "model",
        seeds=",".join(map(str, seeds)) + ",",
        price_in=model.price_in,
        price_out=model.price_out,
        workers=processes,
        **values,
    )
    if options.episodes < 1:
        raise CommandError(f"{environment.label}: episodes is at least 1, got {options.episodes}")
    settings = {key: arm.method_settings() for key, arm in arms.items()}
    temperatures = {key: known for key, arm in arms.items() if (known := paper_temperature(arm.name)) is not None}
    place = folder / folder_name(environment.label) / folder_name(model.label)
    return Sweep(environment, model, arms, RunSetup(options, settings, temperatures), place, tuple(seeds), chosen)


def sweep_prices(sweep: Sweep) -> RunPrices:
    """The prices of the sweep's model."""
    return RunPrices(sweep.setup.options.price_in, sweep.setup.options.price_out)


def growing_record(sweep: Sweep) -> dict[str, Any]:
    """The settings of a sweep with the seeds and methods that its folder holds already: a command may ask for fewer of them."""
    record = settings_record(sweep.setup, sweep.seeds)
    path = sweep.folder / "settings.json"
    if not path.exists():
        return record
    try:
        there = read_settings(path)
        return record | {
            "seeds": sorted({*there["seeds"], *record["seeds"]}),
            "methods": {**there["methods"], **record["methods"]},
        }
    except (ValueError, KeyError, TypeError):
        return record  # refused when the folder is claimed, with a message
