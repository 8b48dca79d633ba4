"""Snapshots of what is derived from the records of a store: numpy arrays in a folder beside it, mapped into memory when it is opened.

A snapshot is a cache: it may be missing, and whatever is wrong with it makes it missing. A manifest names its files, which are
named after the digests of their contents and are read and compared when it is opened. A new manifest replaces the old one when
all its files are there, so a process that is killed leaves the old snapshot or the new one. Nothing is pickled.

It lies in the folder of a `ChromaStore`, which belongs to one process. Chroma behind a server, and Postgres, have none: what is
derived from their records is worked out when they are opened.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128, xxh3_128_hexdigest

from ..errors import UserError

__all__ = ["Snapshots", "folder_name"]

Snapshot = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""The meta data of a snapshot, and its arrays by name, mapped into memory."""

FORMAT = 1
"""Version of the layout; a snapshot of another one counts as missing."""
MANIFEST = "manifest.json"
_PIECE = 1 << 24
_WRITING = threading.Lock()
"""Held while a snapshot is written: a folder belongs to one process, which may have several memories in it."""


def snapshots_of(store: Any, namespace: tuple[str, ...]) -> Snapshots | None:
    """The snapshots of a namespace; None where the store keeps none."""
    find = getattr(store, "snapshot_folder", None)
    folder = find(namespace) if find is not None else None
    return None if folder is None else Snapshots(store, namespace, folder)


class Snapshots:
    """The snapshots of one namespace, by name.

    Args:
        store: a `ChromaStore`, or one that passes on what it has.
        namespace: labels of the namespace.
        folder: where they lie.
    """

    def __init__(self, store: Any, namespace: tuple[str, ...], folder: Path) -> None:
        self.store, self.namespace, self.folder = store, namespace, folder

    def __repr__(self) -> str:
        return f"Snapshots({'/'.join(self.namespace)})"

    def versions(self) -> dict[str, tuple[str, str]] | None:
        """As `ChromaStore.versions`; None too if the store cannot be read: it will say so where it must be."""
        try:
            found: dict[str, tuple[str, str]] | None = self.store.versions(self.namespace)
        except UserError:
            return None
        return found

    def count_writes(self) -> int:
        """As `ChromaStore.count_writes`."""
        count: int = self.store.count_writes(self.namespace)
        return count

    def write(self, name: str, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Snapshot | None:
        """Replace a snapshot, and return it as `read` does; None if the disk does not take it, which then keeps the old one.

        Memories of other settings may write one of the same name: they take turns, and each is returned its own.

        Args:
            name: of the snapshot.
            meta: what else belongs to it (JSON values).
            arrays: its arrays by name. Those that were read from it are not written again.
        """
        folder = self.folder / name
        with _WRITING:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                files = {key: _write_array(folder, array) for key, array in arrays.items()}
                text = json.dumps({"format": FORMAT, "namespace": self.namespace, "meta": meta, "files": files})
                part = folder / (MANIFEST + ".part")
                part.write_text(xxh3_128_hexdigest(text.encode()) + "\n" + text, encoding="utf-8")
                part.replace(folder / MANIFEST)
            except OSError:
                return None
            finally:
                self._sweep(folder)
            return self.read(name)

    def _sweep(self, folder: Path) -> None:
        """Delete the files that the manifest does not name."""
        manifest = self._manifest(folder)
        kept = {MANIFEST, *(manifest["files"].values() if manifest else ())}
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _manifest(self, folder: Path) -> dict[str, Any] | None:
        try:
            digest, _, text = (folder / MANIFEST).read_text(encoding="utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return None
        if digest != xxh3_128_hexdigest(text.encode()):
            return None
        found: dict[str, Any] = json.loads(text)
        return found if found["format"] == FORMAT and tuple(found["namespace"]) == self.namespace else None

    def read(self, name: str) -> Snapshot | None:
        """A snapshot by its name; None if there is no sound one."""
        folder = self.folder / name
        manifest = self._manifest(folder)
        if manifest is None:
            return None
        try:
            arrays = {key: _read_array(folder / file) for key, file in manifest["files"].items()}
        except (OSError, ValueError):
            return None
        return manifest["meta"], arrays


def folder_name(labels: Sequence[str | None]) -> str:
    """A name for a folder, of any labels."""
    return hashlib.blake2b(json.dumps(labels).encode(), digest_size=10).hexdigest()


def _write_array(folder: Path, array: NDArray[Any]) -> str:
    """Write an array unless it is there, and return the name of its file."""
    file = getattr(array, "filename", None)  # of a mapped array
    if file is not None and Path(file).parent.absolute() == folder.absolute() and Path(file).exists():
        return Path(file).name
    part = folder / "array.part"
    with part.open("wb") as out:
        np.save(out, np.ascontiguousarray(array), allow_pickle=False)
    name = _digest(part) + ".npy"
    part.replace(folder / name)
    return name


def _read_array(path: Path) -> NDArray[Any]:
    """The array of a file, mapped into memory."""
    if _digest(path) != path.stem:
        raise ValueError(f"{path} is damaged")
    found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _digest(path: Path) -> str:
    digest = xxh3_128()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
