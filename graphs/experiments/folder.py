"""The folder of a run: its layout and its lock, the settings that it holds, and its jobs. All runs are kept, claimed and resumed here.

    <folder>/settings.json                     the settings; other ones need another folder
    <folder>/stages/                           what is made before the runs: banks, fine-tuned models (stages.py)
    <folder>/<method>-s<seed>/steps.jsonl      one row per step; packed when the run is finished (steps.jsonl.gz)
    <folder>/<method>-s<seed>/episodes.jsonl   one row per episode
    <folder>/<method>-s<seed>/replies.jsonl    what the model answered; packed as well
    <folder>/<method>-s<seed>/training.jsonl   attempts and trainings, of a method that trains weights
    <folder>/<method>-s<seed>/adapters/        the versions of its adapter that a resumed run needs
    <folder>/<method>-s<seed>/memory/          the method's memory, if it has one
    <folder>/<method>-s<seed>/checkpoints.sqlite   of a finished run, those between its episodes
    <folder>/<method>-s<seed>/result.json      written last: the run is finished

A run may be killed at any point. With the same settings it goes on from the last checkpoint. Every id and every random draw
comes from (run, episode, step), so the result is the same as without the interruption.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...memory.display import short
from ...memory.errors import CommandError, UserError, type_of
from ...memory.storage.open_store import is_postgres
from ...memory.storage.postgres_store import without_password
from ..arms import Arm
from .file_digests import option_digests, setting_digests
from .options import COST_OPTIONS, DRAW_OPTIONS, REQUEST_OPTIONS, ModelOptions, RunOptions
from .run_inputs import needs_model

__all__ = ["Job", "Sweep", "memory_location", "parse_seeds", "read_sweep_settings"]

MOVING = ("base_url", "critic_base_url")
"""Settings of a folder that may change: a server moves, and its answers stay the same."""
FIRST_DIGEST = "first_digest"
"""The name under which a folder keeps the digest of its first settings, once seeds or episodes were added."""
NOT_KEPT = ("out", "workers", "engine", "concurrency", "json", "compare", *REQUEST_OPTIONS, *COST_OPTIONS)
"""Options that no result depends on."""


@dataclass(frozen=True)
class Job:
    """A run to play: one method on one seed. It holds all that a worker process needs."""

    arm: Arm
    """The method with its settings."""
    options: RunOptions
    """The task, the model, and how often it plays."""
    seed: int
    """Number of the environment's task that is played."""
    folder: Path
    """Folder of the run's files."""
    run: str
    """Name of the run in ids and random draws."""
    thread: str
    """Name of the run's thread among the checkpoints."""
    memory: str
    """Directory or URL of the method's memory; empty if it has none."""
    namespace: tuple[str, ...]
    """Namespace of the records within the memory."""
    checkpoints: str
    """SQLite file or Postgres URL of the checkpoints."""
    attempts_at_once: int = 1
    """Episodes that are played at the same time; more than 1 only where none of them depends on another."""

    @property
    def key(self) -> tuple[Path, str, int]:
        """The run among those of all sweeps: folder of the sweep, method and seed."""
        return self.folder.parent, self.arm.name, self.seed

    @property
    def has_paper_temperature(self) -> bool:
        """True if the model is sampled as in the preset's paper: behind an API, where the user names no temperature."""
        given = self.options.model_temperature is not None
        return not given and self.arm.temperature is not None and self.options.model.startswith("openai:")

    def model_options(self) -> ModelOptions:
        """The options of the model that the method asks. The user's temperature goes before that of a preset's paper."""
        chosen = ModelOptions(**{one.name: getattr(self.options, one.name) for one in fields(ModelOptions)})
        return replace(chosen, model_temperature=self.arm.temperature) if self.has_paper_temperature else chosen


@dataclass(frozen=True)
class Sweep:
    """The runs of some methods on one environment with one model: what a run folder holds."""

    options: RunOptions
    arms: Mapping[str, Arm]
    """The methods by their names in run folders."""
    folder: Path
    seeds: tuple[int, ...]
    world: str = ""
    """The environment's name in tables."""
    model: str = ""
    """The model's name in tables."""
    chosen: frozenset[str] | None = None
    """The methods that are to be played now; None for all."""

    @property
    def name(self) -> str:
        """Environment and model, for the reader."""
        return f"{self.world}, {self.model}"

    def batches(self) -> list[list[Job]]:
        """The runs that are to be played, method by method."""
        chosen = self.arms if self.chosen is None else [name for name in self.arms if name in self.chosen]
        return [[self.job(name, seed) for seed in self.seeds] for name in chosen]

    def job(self, method: str, seed: int) -> Job:
        """The run of a method on a seed: where it keeps its memory and its checkpoints, and what it is called there."""
        arm, options = resolve_stages(self.arms[method], self.options, self.folder)
        stem = run_stem(method)
        name = f"{stem}-s{seed}"
        # In a place that it shares with other runs, names must not meet.
        unique = f"{self.folder.resolve().name}-{name}"
        if options.memory or options.checkpoints:
            unique += f"-{_first_digest(self.folder, settings_record(self))}"
        where, namespace = run_memory(self.folder, options.memory, stem if arm.shares_memory else name)
        checkpoints = str(self.folder / name / "checkpoints.sqlite")
        if options.checkpoints:
            url = "://" in options.checkpoints
            checkpoints = options.checkpoints if url else str(Path(options.checkpoints) / f"{name}.sqlite")
        return Job(
            arm,
            options,
            seed,
            folder=self.folder / name,
            run=unique if options.memory else name,
            thread=unique if options.memory or options.checkpoints else name,
            memory=where if arm.method.has_memory else "",
            namespace=namespace,
            checkpoints=checkpoints,
        )


def resolve_stages(arm: Arm, options: RunOptions, folder: Path) -> tuple[Arm, RunOptions]:
    """An arm and its options with the files that the stages of its sweep make (stages.py) in the place of their recipes."""
    settings, bank = arm.settings, getattr(arm.settings, "bank", "")
    if getattr(settings, "tuned", ""):
        options = replace(options, model=f"local:{stage_folder(folder, settings) / 'model'}")
    if is_recipe(bank):
        arm = replace(arm, settings=replace(settings, bank=str(stage_folder(folder, bank) / "bank.jsonl")))
    return arm, options


def is_recipe(bank: str) -> bool:
    """True if a bank is no file, but is made before the first episode."""
    return "@" in bank or (bank != "" and Path(bank).is_dir())


def stage_folder(folder: Path, recipe: Any) -> Path:
    """The folder of a stage, by a bank's recipe or the settings of a method whose model is fine-tuned."""
    name, values = (recipe, recipe) if isinstance(recipe, str) else (recipe.tuned, asdict(recipe))
    return folder / "stages" / f"{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')[-40:]}-{settings_digest({'': values})}"


def parse_seeds(text: str) -> list[int]:
    """The seeds that `--seeds` names: `3` is 0, 1, 2; `0,7` is 0 and 7; `20-22` is 20, 21, 22.

    Raises:
        CommandError: it names none.
    """
    found = set[int]()
    try:
        for part in filter(None, map(str.strip, text.split(","))):
            low, dash, high = part.partition("-")
            found |= set(range(int(low), int(high) + 1)) if dash else {int(low)}
    except ValueError:
        found = set()
    if not found or (found == {0} and "," not in text and "-" not in text):
        raise CommandError(f"--seeds is a number like 5, a list like 0,3,7, or a range like 20-39; got {text!r}")
    return sorted(found) if "," in text or "-" in text else list(range(*found))


def run_stem(method: str) -> str:
    """The name of a method's runs in a folder, without the seed: `jitrl-paper` for `jitrl:paper`."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", method)


def run_folder_name(sweep: Sweep) -> str:
    """The name of the run folder where the user gives none: other settings have another one."""
    thinks = any(needs_model(arm, sweep.options) for arm in sweep.arms.values())
    words = "-".join([next(iter(sweep.arms)), sweep.options.env, sweep.options.model if thinks else "no-model"])
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', words).strip('-')}-{settings_digest(settings_record(sweep))}"


def run_memory(folder: Path, memory: str | None, name: str) -> tuple[str, tuple[str, ...]]:
    """Place and namespace of the memory of this name: in the run's folder, or where the option `--memory` says."""
    return memory_location(memory, name) if memory else memory_location(str(folder / name / "memory"))


def memory_location(memory: str, name: str = "") -> tuple[str, tuple[str, ...]]:
    """Place of a memory, and the namespace of its records. `name` is a folder in a directory, a path on a server.

    In the URL of a Postgres database the first part of the path is the database.
    """
    if "://" not in memory:
        return str(Path(memory) / name), ("trajectories",)
    from urllib.parse import urlsplit

    url = urlsplit(memory)
    path = [*filter(None, [*url.path.split("/"), name])]
    if not is_postgres(memory):
        return f"{url.scheme}://{url.netloc}", ("trajectories", *path)
    database, *labels = path or [""]
    query = f"?{url.query}" if url.query else ""
    return f"{url.scheme}://{url.netloc}/{database}{query}", ("trajectories", *labels)


# The settings


def settings_record(sweep: Sweep) -> dict[str, Any]:
    """The content of `settings.json`: every option and setting that the results depend on."""
    asked, arms = sweep.options, sweep.arms
    options = {name: value for name, value in asdict(asked).items() if name not in NOT_KEPT}
    for name in DRAW_OPTIONS:
        if options[name] is None:
            del options[name]
    if asked.model.startswith("openai:"):
        if asked.model_temperature is None and (
            known := {n: a.temperature for n, a in arms.items() if a.temperature is not None}
        ):
            options["paper_temperatures"] = known
        # The server, as tools.models finds it.
        options["base_url"] = asked.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or None
    for name in ("memory", "checkpoints", "base_url", "critic_base_url"):
        if options.get(name):
            options[name] = without_password(options[name])
    digests = option_digests(options)
    return {
        **{name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        **({"digests": digests} if digests else {}),
        "seeds": list(sweep.seeds),
        "methods": {name: asdict(arm.settings) | setting_digests(arm.settings) for name, arm in arms.items()},
    }


def growing_record(sweep: Sweep) -> dict[str, Any]:
    """The settings of a sweep with the seeds and methods that its folder holds already: a command may ask for fewer of them."""
    record, path = settings_record(sweep), sweep.folder / "settings.json"
    if not path.exists():
        return record
    try:
        there = read_settings(path)
        seeds, methods = sorted({*there["seeds"], *record["seeds"]}), {**there["methods"], **record["methods"]}
        return record | {"seeds": seeds, "methods": methods}
    except (ValueError, KeyError, TypeError):
        return record  # refused when the folder is claimed, with a message


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Six hexadecimal digits that stand for the settings; the same in all versions."""
    import hashlib

    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=3).hexdigest()


def _first_digest(folder: Path, settings: Mapping[str, Any]) -> str:
    """The digest of the settings that a folder began with, or of these if it is new: runs in shared places are named by it."""
    path = folder / "settings.json"
    there = read_settings(path) if path.exists() else settings
    return str(there.get(FIRST_DIGEST) or settings_digest(there))


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a `settings.json`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON object.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object is needed, and this is {type_of(found)}")
    return found


def read_sweep_settings(folder: Path) -> dict[str, Any]:
    """The settings of a sweep, with its `methods` and `seeds`.

    Raises:
        UserError: the folder is not one that `learngraph run` has made.
    """
    try:
        settings = read_settings(folder / "settings.json")
        if "bench" in settings:
            sweeps = sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("*/*/settings.json"))
            raise UserError(f"{folder} holds a benchmark; give one of its sweeps: {', '.join(sweeps)}")
        return settings | {"methods": dict(settings["methods"]), "seeds": list(settings["seeds"])}
    except OSError:
        there = "has no settings.json" if folder.is_dir() else "does not exist" if not folder.exists() else "is a file"
        raise UserError(f"{folder} {there}; give a folder that `learngraph run` has made") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}/settings.json is damaged ({error}); give another run folder") from None


def check_settings(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Check that a folder is free, or holds a run with these settings (JSON values).

    The run may be asked for more episodes, seeds and methods, and at a server of another address.

    Returns:
        The record to write into its settings.json; None if the one there is right.

    Raises:
        UserError: it holds a run with other settings; names up to three of those that differ.
    """
    path, wanted = folder / "settings.json", json.loads(json.dumps(settings))
    if not path.exists():
        return dict(wanted)
    try:
        there = read_settings(path)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); give another --out, or remove the folder") from error
    first = there.pop(FIRST_DIGEST, None)
    same = {name: there[name] for name in there if name in MOVING or _has_grown(there[name], wanted.get(name), name)}
    if differing := sorted(_differences({**there, **{name: wanted.get(name) for name in same}}, wanted)):
        more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise UserError(f"{folder} holds a run with other settings: {'; '.join(differing[:3])}{more}; give another --out")
    if all(wanted.get(name) == value for name, value in same.items()):
        return None
    return {**wanted, FIRST_DIGEST: first or settings_digest(there)}


def _has_grown(old: Any, new: Any, name: str) -> bool:
    """True if a setting that may grow holds all that it held before."""
    if name == "episodes":
        return isinstance(new, int) and new >= old
    if name == "seeds":
        return isinstance(new, list) and set(old) <= set(new)
    return name == "methods" and isinstance(new, dict) and all(new.get(method) == held for method, held in old.items())


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        fewer = " (a folder takes more of them, not fewer)" if name == "episodes" else ""
        there, asked = (short(json.dumps(one), 60) for one in (old, new))
        yield f"{name} is {there} there, {asked} was asked for{fewer}"


# The lock


@contextmanager
def claim_folder(folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Lock a run folder while the context lasts, and make it if it is missing. An error before anything is played leaves none.

    Raises:
        UserError: another process works in the folder, or the folder belongs to runs with other settings.
    """
    from filelock import FileLock, Timeout

    owner, made = folder / "owner.pid", [one for one in (folder, *folder.parents) if not one.exists()]
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder / "owner.lock", timeout=0))
        except Timeout:
            pid = owner.read_text().strip() if owner.exists() else "?"
            raise UserError(f"process {pid} is at work in {folder}; wait until it ends, or give another --out") from None
        except OSError as error:
            raise UserError(f"cannot work in {folder}: {error.strerror or error}; --out names a folder to write to") from error
        owner.write_text(f"{os.getpid()}\n")
        stack.callback(owner.unlink, missing_ok=True)
        if (record := check_settings(folder, settings)) is not None:
            write_json(folder / "settings.json", record)
        try:
            yield
        except BaseException:
            _remove_unplayed(made)
            raise
        if (folder / "failures.json").exists():
            _remove_unplayed(made)


def has_begun(folder: Path) -> bool:
    """True if a run in the folder has played a step: a reply alone may be one that failed."""
    return any(path.stat().st_size for path in folder.rglob("*.jsonl*") if not path.name.startswith("replies"))


def _remove_unplayed(made: Sequence[Path]) -> None:
    """Remove a folder that holds nothing but its settings and its lock, or runs that all failed before the first step and reply, with
    the parents that were made for it."""
    with suppress(OSError):  # it is gone, or another process has come
        if not made or has_begun(made[0]) or any(path.read_bytes().count(b"\n") > 1 for path in made[0].rglob("replies*")):
            return
        names = {path.name for path in made[0].iterdir()}
        if "failures.json" in names or names <= {"settings.json", "owner.pid", "owner.lock"}:
            shutil.rmtree(made[0])
            for one in made[1:]:
                one.rmdir()


def write_json(path: Path, value: Any) -> None:
    """Write JSON to a file. A reader sees either the whole new file or the old one."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave an empty file of that name
        part.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; finished runs are kept") from error
