"""The settings that a run folder holds: what another command for the same folder may change, and what it may not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...memory.errors import UserError

__all__ = ["read_settings", "read_sweep_settings", "run_stem"]

GROWING = ("episodes", "seeds", "methods")
"""Settings of a folder that may grow from one command to the next."""
MOVING = ("base_url", "critic_base_url")
"""Settings of a folder that may change: a server moves, and its answers stay the same."""
FIRST_DIGEST = "first_digest"
"""The name under which a folder keeps the digest of its first settings, once seeds or episodes were added."""


def run_stem(method: str) -> str:
    """The name of a method's runs in a folder, without the seed: `jitrl-paper` for `jitrl:paper`."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", method)


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a `settings.json`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON object.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object is needed, and this is a {type(found).__name__}")
    return found


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


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Six hexadecimal digits that stand for the settings; the same in all versions."""
    import hashlib

    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=3).hexdigest()


def first_digest(folder: Path, settings: Mapping[str, Any]) -> str:
    """The digest of the settings that a folder began with, or of these if it is new: runs in shared places are named by it."""
    path = folder / "settings.json"
    if not path.exists():
        return settings_digest(settings)
    there = read_settings(path)
    return str(there.get(FIRST_DIGEST) or settings_digest(there))


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
        yield f"{name} is {_shorten(old)} there, {_shorten(new)} was asked for{fewer}"


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"
