"""Folders of plain files whose contents are known by digests: what an adapter's version is."""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import AdapterError

__all__ = []

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")
"""Pattern of a file's name in a version: no folders, no hidden files."""
MANIFEST = "manifest.json"
"""The file with a version's parent, base and digests."""


def version_name(step: int, files: Mapping[str, Mapping[str, Any]]) -> str:
    """Step, and a digest of the names and the digests (`sha256`) of files."""
    text = "".join(f"{files[name]['sha256']}  {name}\n" for name in sorted(files))
    return f"{step:06d}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def seal(manifest: Mapping[str, Any]) -> str:
    """A digest of a manifest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_plain_file(path: Path) -> Path:
    """The path, if it is a file and no link; raises OSError if it is not."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(f"{path} is no plain file")
    return path


def plain_files(folder: Path, whose: str) -> list[Path]:
    """The plain files in a folder, without its manifest.

    Raises:
        AdapterError: there is anything else than plain files.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise AdapterError(f"{whose}: {folder} is no folder")
    found = sorted(folder.iterdir())
    for path in found:
        if not FILE_NAME.fullmatch(path.name) or not stat.S_ISREG(path.lstat().st_mode):
            raise AdapterError(
                f"{whose} is corrupt: {path} is no plain file with a plain name; links and folders are not followed"
            )
    return [path for path in found if path.name != MANIFEST]


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def sync(path: Path) -> None:
    """Write a file or a folder through to the disk (fsync)."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
