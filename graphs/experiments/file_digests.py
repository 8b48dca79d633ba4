"""Digests of the files that a run reads, kept in its folder's settings, so that other contents under the same name are not taken for
them: the numbers of two files would stand in one table."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...memory.errors import CommandError
from ...memory.lessons.versions import find_library

__all__ = []

_SMALL = 64 * 2**20
"""Bytes of a file up to which its contents are read; a larger one, of a model's weights, is known by its size and time."""


def option_digests(options: Mapping[str, Any]) -> dict[str, str]:
    """Digests by option: of the prompts and passages, of the files that a world's spec names, and of a local model's folder.

    Raises:
        CommandError: one of them is there and cannot be read.
    """
    found = {name: _read_digest(name, path) for name, path in _option_paths(options) if path.exists()}
    specs = {name: options.get(name) or "" for name in ("model", "critic")}
    return found | {name: weights_digest(spec) for name, spec in specs.items() if spec.startswith("local:")}


def setting_digests(settings: Any) -> dict[str, str]:
    """Digests of a method's bank and library, as `bank_digest` and `library_digest`; of a bank to be made (`react@40`) none.

    Raises:
        CommandError: one of them cannot be read.
    """
    given = {name: getattr(settings, name, "") for name in ("bank", "library")}
    paths = {name: path for name, path in given.items() if path and "@" not in path}
    return {f"{name}_digest": _read_digest(name, path) for name, path in paths.items()}


def weights_digest(model: str) -> str:
    """The digest of a local model's folder, its page left out; a name on a hub as it is."""
    from ...tools.models.models import POCKET

    place = POCKET if model == "pocket" else Path(model.partition(":")[2]).expanduser()
    return path_digest(place) if place.is_dir() else model


def path_digest(path: Path) -> str:
    """Sixteen hexadecimal digits that stand for a file, or for all files of a folder but the README.md that describes it.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return _file_digest(path, path.stat().st_mtime_ns, path.stat().st_size)
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name != "README.md")
    parts = [f"{file.relative_to(path).as_posix()} {path_digest(file)}" for file in files]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _option_paths(options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    for name in ("prompts", "corpus"):
        if options.get(name):
            yield name, Path(options[name])
    for name in ("env", "test_env"):
        for setting in (options.get(name) or "").partition("?")[2].split(","):
            if setting.startswith("file="):
                yield name, Path(setting.removeprefix("file="))


def _read_digest(name: str, path: str | Path) -> str:
    try:
        return path_digest(Path(find_library(str(path)) if name == "library" else path))
    except OSError as error:
        raise CommandError(f"--{name} {path}: cannot be read ({error.strerror or error})") from error


@lru_cache(maxsize=64)
def _file_digest(path: Path, changed: int, size: int) -> str:
    if size > _SMALL:
        return f"{size:x}-{changed:x}"
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
