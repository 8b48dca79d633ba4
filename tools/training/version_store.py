"""A place by which versions of adapters travel between machines: a folder that they share, or an object store.

    store = VersionStore("s3://bucket/adapters")            # a folder, or any URL that fsspec knows
    store.put("acme/default@000017-3f2a77c0b1d2", folder)
    store.get("acme/default@000017-3f2a77c0b1d2", another_folder)

The place holds copies. The service keeps the versions themselves in its `--out`, so whatever is missing here is put here again. A
version's files are named in `files.json`, which is written last: half a copy is none, and a damaged one is noticed by its digests.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]

from ...memory.errors import UserError

__all__ = ["FetchedVersions", "SharedVersions", "VersionStore"]

log = logging.getLogger(__name__)

INDEX = "files.json"
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
"""A part of a label, or a file's name: no way up, no hidden file."""


class VersionStore:
    """Copies of versions by label. Safe for threads. Several processes may use one place if they write different labels.

    Args:
        url: a folder, or a URL of fsspec (`s3://bucket/prefix`, `gs://…`, `abfs://…`); some need a package of their own (`s3fs`).

    Raises:
        UserError: the URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UserError(f"--hand-over {url}: {error}") from error
        self._root = str(root).rstrip("/")
        self._lock = threading.Lock()

    def put(self, label: str, folder: Path) -> None:
        """Copy a version's folder here. A second call does nothing.

        Raises:
            OSError: the place cannot be written, or the folder not be read.
        """
        with self._lock, _machine_errors(f"hand over {label}"):
            if label in self:
                return
            place = self._place(label)
            self._files.makedirs(place, exist_ok=True)
            index = {}
            for path in sorted(folder.iterdir()):
                if path.is_file() and path.name != INDEX:
                    self._files.put_file(str(path), f"{place}/{path.name}")
                    index[path.name] = _digest(path)
            self._files.pipe_file(f"{place}/{INDEX}", json.dumps(index).encode())

    def get(self, label: str, folder: Path) -> None:
        """Copy a version into an empty folder of this machine, and compare its digests.

        Raises:
            OSError: it is not here, is damaged, or the place does not answer.
        """
        with _machine_errors(f"fetch {label}"):
            place = self._place(label)
            index = json.loads(self._files.cat_file(f"{place}/{INDEX}"))
            for name, digest in index.items():
                if not NAME_PATTERN.fullmatch(name):
                    raise OSError(errno.EINVAL, f"the handed-over {label} names a file {name!r}")
                self._files.get_file(f"{place}/{name}", str(folder / name))
                if _digest(folder / name) != digest:
                    raise OSError(errno.EIO, f"the handed-over {label} is damaged: {name} is not what was written")

    def __contains__(self, label: str) -> bool:
        self._files.invalidate_cache()
        return bool(self._files.exists(f"{self._place(label)}/{INDEX}"))

    def labels(self, scope: str) -> list[str]:
        """Labels of the versions here of one adapter, `<tenant>/<adapter>`, or of a folder of others."""
        with _machine_errors(f"list the versions of {scope} that were handed over"):
            self._files.invalidate_cache()
            tenant, _, adapter = scope.partition("/")
            place = self._place(tenant)
            if not self._files.exists(place):
                return []
            names = [str(path).rstrip("/").rpartition("/")[2] for path in self._files.ls(place, detail=False)]
            return sorted(f"{tenant}/{name}" for name in names if name.startswith(f"{adapter}@"))

    def remove(self, label: str) -> None:
        """Delete a copy; one that is not here is ignored."""
        with self._lock, _machine_errors(f"delete the handed-over {label}"):
            place = self._place(label)
            self._files.invalidate_cache()
            if self._files.exists(f"{place}/{INDEX}"):
                self._files.rm_file(f"{place}/{INDEX}")  # first: from here on there is no version
            if self._files.exists(place):
                self._files.rm(place, recursive=True)

    def _place(self, label: str) -> str:
        if not all(NAME_PATTERN.fullmatch(part) for part in label.split("/")):
            raise OSError(errno.EINVAL, f"a version cannot be called {label!r}")
        return f"{self._root}/{label}"


class SharedVersions:
    """The versions of a service, as others see them: in a store, which gets what it lacks and loses what the service has deleted.

    Args:
        store: where they are put.
        folder: label -> its folder on this machine; raises `UserError` for a version that was deleted.
    """

    def __init__(self, store: VersionStore, folder: Callable[[str], Path]) -> None:
        self.store = store
        self._folder = folder

    def publish(self, label: str) -> None:
        """Put a version into the store, and delete those of its adapter that the service has no more.

        Raises:
            UserError: there is no such version, or it is damaged.
            OSError: the store does not take it.
        """
        if label in self.store:
            return
        self.store.put(label, self._folder(label))
        for other in self.store.labels(label.rpartition("@")[0]):
            if other != label and not self._exists(other):
                self.store.remove(other)

    def _exists(self, label: str) -> bool:
        try:
            return self._folder(label).is_dir()
        except UserError:
            return False


class FetchedVersions:
    """Versions of a store in a folder of this machine: fetched when they are asked for, the newest few are kept.

    Args:
        store: where they come from.
        root: the folder.
        most: versions that are kept.
    """

    def __init__(self, store: VersionStore, root: Path, most: int = 4) -> None:
        self._store = store
        self._root = root
        self._most = most

    def folder(self, label: str) -> Path:
        """A version's folder here.

        Raises:
            OSError: it cannot be fetched.
        """
        found = self._root / label
        if found.is_dir():
            return found
        new = self._root / f"{label}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        self._store.get(label, new)
        for old in sorted(self._root.glob("*/*@*"), key=lambda path: path.stat().st_mtime)[: -self._most]:
            shutil.rmtree(old, ignore_errors=True)
        new.rename(found)
        return found


@contextmanager
def _machine_errors(doing: str) -> Iterator[None]:
    """Errors of a store's client as OSErrors: the machine or the network failed, and it may be tried again. Tenants may read them."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # each object store's client has classes of its own
        log.warning("cannot %s: %s", doing, error)
        raise OSError(errno.EIO, f"cannot {doing}") from error


def _digest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
