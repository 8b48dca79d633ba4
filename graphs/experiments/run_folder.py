"""The folder of a run: its name, the settings it holds, and where each job in it keeps what."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...memory.errors import CommandError
from ...memory.lessons.versions import find_library
from ...memory.storage.open_store import is_postgres
from ...memory.storage.postgres_store import without_password
from .folder_settings import first_digest, run_stem, settings_digest
from .options import COST_OPTIONS, DRAW_OPTIONS, REQUEST_OPTIONS, RunOptions, RunSetup
from .play import needs_model
from .sweep import Job

__all__ = ["memory_location", "parse_seeds", "run_folder_name", "settings_record"]


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


def settings_record(setup: RunSetup, seeds: Sequence[int]) -> dict[str, Any]:
    """The content of `settings.json`: every option and setting that the results depend on."""
    options = asdict(setup.options)
    # A run that stopped at the full score goes on if it is asked for all episodes.
    for name in (
        "out",
        "workers",
        "engine",
        "concurrency",
        "json",
        "compare",
        "stop_at_full_score",
        *REQUEST_OPTIONS,
        *COST_OPTIONS,
    ):
        options.pop(name, None)
    for name in DRAW_OPTIONS:  # a folder of an earlier version has none of them
        if options[name] is None:
            del options[name]
    if asked := {name: setup.temperatures[name] for name in setup.methods if setup.asks_at_paper_temperature(name)}:
        options["paper_temperatures"] = asked
    if setup.options.model.startswith("openai:"):
        options["base_url"] = _server(setup.options)
    for name in ("memory", "checkpoints", "base_url", "critic_base_url"):
        if options.get(name):
            options[name] = without_password(options[name])
    return {
        **{name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "seeds": list(seeds),
        "methods": {name: asdict(settings) | _file_digests(settings) for name, settings in setup.methods.items()},
    }


def _server(options: RunOptions) -> str | None:
    """The server behind `openai:MODEL`, as tools.models finds it."""
    return options.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or None


def _file_digests(settings: Any) -> dict[str, str]:
    """Digests of the files of bank and library, recorded beside their paths, so that another file of that name is not taken for it."""
    found = {}
    for name in ("bank", "library"):
        if path := getattr(settings, name, ""):
            try:
                file = find_library(path) if name == "library" else path
                stat = os.stat(file)
                found[f"{name}_digest"] = _file_digest(str(file), stat.st_mtime_ns, stat.st_size)
            except OSError as error:
                raise CommandError(f"--{name} {path}: cannot be read ({error.strerror or error})") from error
    return found


@lru_cache(maxsize=4)
def _file_digest(path: str, written: int, size: int) -> str:
    import hashlib

    return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()


def run_folder_name(setup: RunSetup, settings: Mapping[str, Any]) -> str:
    """The name of the run folder where the user gives none: other settings have another one."""
    thinks = any(needs_model(name, setup.options) for name in setup.methods)
    words = "-".join([next(iter(setup.methods)), setup.options.env, setup.options.model if thinks else "no-model"])
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', words).strip('-')}-{settings_digest(settings)}"


def make_job(setup: RunSetup, folder: Path, method: str, seed: int) -> Job:
    """One method on one seed, in a folder: where it keeps its memory and its checkpoints, and what its run is called."""
    from ..methods import find_method

    options = setup.options
    stem = run_stem(method)
    name = f"{stem}-s{seed}"
    # In a place that it shares with other runs, names must not meet.
    unique = f"{folder.resolve().name}-{name}"
    if options.memory or options.checkpoints:
        unique += f"-{first_digest(folder, settings_record(setup, parse_seeds(options.seeds)))}"
    where, namespace = run_memory(folder, options.memory, stem if shares_memory(setup, method) else name)
    checkpoints = str(folder / name / "checkpoints.sqlite")
    if options.checkpoints:
        url = "://" in options.checkpoints
        checkpoints = options.checkpoints if url else str(Path(options.checkpoints) / f"{name}.sqlite")
    return Job(
        method=method,
        seed=seed,
        episodes=options.episodes,
        folder=folder / name,
        run=unique if options.memory else name,
        thread=unique if options.memory or options.checkpoints else name,
        memory=where if find_method(method).has_memory else "",
        namespace=namespace,
        checkpoints=checkpoints,
        max_run_tokens=options.max_run_tokens,
        stops_at_full_score=_stops_at_full_score(setup, method),
        trains_weights=find_method(method).trains_weights,
    )


def run_memory(folder: Path, memory: str | None, name: str) -> tuple[str, tuple[str, ...]]:
    """Place and namespace of the memory of this name: in the run's folder, or where the option `--memory` says."""
    return memory_location(memory, name) if memory else memory_location(str(folder / name / "memory"))


def _stops_at_full_score(setup: RunSetup, method: str) -> bool:
    """True if the method's runs may end before their last episode. In a comparison all methods play the same number of them."""
    from ..methods import find_method

    is_alone, sees_score = len(setup.methods) == 1, set(setup.options.judge.split("+")) <= {"environment", "rule"}
    return setup.options.stop_at_full_score and is_alone and sees_score and find_method(method).stops_at_full_score


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


def shares_memory(setup: RunSetup, method: str) -> bool:
    """True if the method's runs share one memory: they are played one after the other, in the order of the seeds."""
    return bool(getattr(setup.methods[method], "cross_task", False))
