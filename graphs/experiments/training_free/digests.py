"""The settings record of a run: all that its numbers depend on, with digests of files.

Part of the command line: it joins tools to graphs. Slow imports stand inside the functions that need them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from ....memory.errors import CommandError
from ..folder import ADDED_SEED
from ..options import DRAW_OPTIONS, REQUEST_OPTIONS
from .setup import ProblemSplit, TrainingFreeOptions, TrainingFreeSetup, shared_world

__all__ = ["folder_name", "run_settings"]

# fmt: off
RESULT_NEUTRAL_OPTIONS = (
    "out", "workers", "engine", "concurrency", "json", "dry_run", "compare", "token_budget", "dollar_budget",
    "price_in", "price_out", "critic_price_in", "critic_price_out",
)
# fmt: on
"""Options that change no number in the results."""


def run_settings(setup: TrainingFreeSetup, splits: Mapping[int, ProblemSplit]) -> dict[str, Any]:
    """The settings of a run, with digests of the files that it reads. A run with other settings needs another folder."""
    from importlib.metadata import version

    from ....memory.lessons.versions import find_library
    from ....nodes.prompt import PROMPTS_DIR

    options = {name: value for name, value in asdict(setup.options).items() if name not in RESULT_NEUTRAL_OPTIONS}
    options = {
        name: value
        for name, value in options.items()
        if name not in REQUEST_OPTIONS and (value is not None or name not in DRAW_OPTIONS or name == "max_tokens")
    }
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    server = setup.options.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    used = (setup.options.model, setup.options.critic_model)
    return {
        **plain,
        "base_url": public_url(server) if any(model.startswith("openai:") for model in used) else None,
        "critic_base_url": public_url(setup.options.critic_base_url),
        "seeds": list(setup.seeds),
        "arms": {arm.name: asdict(arm.settings) for arm in setup.arms},
        "digests": {
            **{f"{ADDED_SEED}{seed}": digest(_problem_contents(setup.options, splits[seed])) for seed in splits},
            **{f"model {model}": weights_digest(model) for model in dict.fromkeys(used) if not model.startswith("openai:")},
            **{f"library {path}": file_digest(find_library(path), "--library") for path in initial_libraries(setup)},
            **{
                name: _files_digest(path, f"--{name}")
                for name, path in (("corpus", setup.options.corpus), ("prompts", setup.options.prompts))
                if path
            },
            "prompts of the package": _files_digest(PROMPTS_DIR),
        },
        "version": version("learngraph"),
    }


def _problem_contents(options: TrainingFreeOptions, split: ProblemSplit) -> list[Any]:
    """The problems of a seed with their answers, where there is one."""
    tested = shared_world(options.test_env or options.env, options.horizon)
    worlds = ((split.train + split.held_out, shared_world(options.env, options.horizon)), (split.test, tested))
    return [
        [asdict(task), list(world.gold(task)) if hasattr(world, "answer") and hasattr(world, "gold") else []]
        for tasks, world in worlds
        for task in tasks
    ]


def public_url(url: str | None) -> str | None:
    """A server's address without user name, password and query; None without an address."""
    from urllib.parse import urlsplit, urlunsplit

    if not url:
        return None
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def initial_libraries(setup: TrainingFreeSetup) -> list[str]:
    """The paths of libraries that arms start from, as the user gave them."""
    return list(dict.fromkeys(filter(None, (getattr(arm.settings, "library", "") for arm in setup.arms))))


@lru_cache(maxsize=8)
def weights_digest(model: str) -> str:
    """A digest of a local model: of the names, sizes and times of its files, which may be large. A name on a hub is returned
    as it is."""
    from ....tools.models.models import POCKET

    place = POCKET if model == "pocket" else Path(model.partition(":")[2]).expanduser()
    if not place.is_dir():
        return model
    files = sorted(file for file in place.iterdir() if file.is_file())
    if model == "pocket":  # small, and its times say when it was installed; its card is prose
        return digest([(file.name, file_digest(file)) for file in files if file.suffix != ".md"])
    return digest([(file.name, (found := file.stat()).st_size, found.st_mtime_ns) for file in files])


def digest(value: Any) -> str:
    """A digest of a JSON value: 16 hexadecimal digits."""
    import hashlib

    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def file_digest(path: Path, flag: str = "") -> str:
    """A digest of a file's content: 16 hexadecimal digits.

    Raises:
        CommandError: the file cannot be read; names the `flag` that it was given with.
    """
    import hashlib

    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError as error:
        raise CommandError(f"{flag} {path}: cannot be read ({error.strerror or error})".strip()) from error


def _files_digest(path: Path, flag: str = "") -> str:
    """A digest of a file, or of all files in a directory."""
    if path.is_dir():
        files = (file for file in sorted(path.rglob("*")) if file.is_file())
        return digest({str(file.relative_to(path)): file_digest(file, flag) for file in files})
    return file_digest(path, flag)


def folder_name(setup: TrainingFreeSetup, settings: Mapping[str, Any]) -> str:
    """The name of the run's folder if the user gives none. It ends with a digest of the settings."""
    words = "-".join([setup.arms[0].name, setup.options.env, setup.options.model])
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', words).strip('-')}-{digest(settings)[:6]}"
