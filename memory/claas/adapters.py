"""Versions of a tenant's LoRA adapter: immutable folders named by their contents, and a log of their states.

    ROOT/<tenant>/<adapter>/versions/<000017-3f9c2ab1d4e0>/   the learner's files, and manifest.json
    ROOT/<tenant>/<adapter>/states.jsonl                      candidate -> canary -> live -> retired | dropped, with reasons

The optimizer's moments (`optimizer.safetensors`, twice the adapter's size), if any, are kept of versions that the next step may start from:
the newest, its parent, the live one and the canary. They are not synced; where they are gone or damaged, learning goes on with new ones.

A version's name is the gradient step and the SHA-256 of its files' digests: equal contents have equal names, and a changed file shows.
A label is `<tenant>/<adapter>@<name>`; the empty label is the base model.

Kill -9 at any point leaves only whole versions. A change of state is one line of the log, synced to disk; the log alone says which version
is live, and without one the base model answers.
"""

import json
import logging
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from ..errors import AdapterConflict, AdapterError, UnknownVersion
from .replay_file import NAME, json_safe
from .sealed_files import MANIFEST, file_digest, plain_files, remove, require_plain_file, seal, sync, version_name
from .version_log import VERSION_NAME, VersionLog, VersionStates, split_label

__all__ = ["AdapterVersion", "Adapters", "list_adapters", "split_label"]


LOG = logging.getLogger(__name__)
PRIVATE_PREFIXES = ("optimizer", "teacher", "learner", "critic")
"""Files whose names begin so belong to the learner, and are not exported."""
MOMENTS_FILE = "optimizer.safetensors"
"""The file that a version may lack."""
LOCK_TIMEOUT = 10.0
"""Seconds to wait for another process that changes the same adapter."""


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """One version of an adapter."""

    name: str
    """Step and digest."""
    label: str
    """`<tenant>/<adapter>@<name>`."""
    step: int
    """Number of gradient steps from the base model."""
    parent: str
    """Label of the version that the step started from; empty: the base model."""
    base: str
    """Fingerprint of the base model, to be compared on loading."""
    state: str
    """`candidate`, `canary`, `live`, `retired`, `dropped`; `corrupt` if its manifest cannot be read."""
    tainted: bool
    """True if it learned from a record that was deleted since."""
    created: float
    """Unix time in seconds."""
    about: dict[str, Any]
    """Losses, minibatch, gate results: given when it was written and when its state changed."""
    digests: dict[str, str]
    """File -> SHA-256, in hex."""


def list_adapters(root: Path | str) -> list[tuple[str, str]]:
    """(tenant, adapter) of every adapter that has a folder."""
    found = []
    for tenant in _folders(Path(root)):
        with suppress(PermissionError):  # one tenant's folder stops no other tenant
            found += [(tenant.name, adapter.name) for adapter in _folders(tenant)]
    return sorted(found)


def _folders(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [path for path in place.iterdir() if NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]


class Adapters:
    """The versions of one adapter. Safe for threads; processes take turns at changes.

    Args:
        root: folder of all tenants' adapters.
        tenant: the tenant's name.
        adapter: the adapter's name.
        keep_versions: versions that `prune` leaves of those that were live, and of the others, beside those in use.
        clock: Unix time in seconds.

    Raises:
        AdapterError: an invalid name, a symbolic link in the path, or a log that cannot be read.
    """

    def __init__(
        self,
        root: Path | str,
        tenant: str,
        adapter: str = "default",
        keep_versions: int = 10,
        clock: Callable[[], float] = time.time,
    ) -> None:
        from filelock import FileLock

        for name, what in ((tenant, "tenant"), (adapter, "adapter")):
            if not NAME.fullmatch(name):
                raise AdapterError(f"{what} {name[:80]!r} is no name: use small letters, digits, - and _, at most 63")
        self.tenant, self.adapter, self.keep_versions = tenant, adapter, keep_versions
        self.scope = f"{tenant}/{adapter}"
        self.place = Path(root) / tenant / adapter
        self._versions = self.place / "versions"
        self._clock = clock
        self._log = VersionLog(self.place, self.scope, clock)
        self._seen: dict[str, dict[str, tuple[int, int, int]]] = {}
        self._manifests: dict[str, dict[str, Any]] = {}
        self._threads = RLock()
        with self._user_errors("open"):
            for path in (self.place.parent, self.place, self._versions):
                path.mkdir(0o700, parents=True, exist_ok=True)
                if path.is_symlink():
                    raise AdapterError(f"adapter {self.scope}: {path} is a symbolic link; put the folder itself there")
        self._owner = FileLock(self.place / "lock", thread_local=False)
        shutil.rmtree(self.place.with_name(f".gone-{adapter}"), ignore_errors=True)  # of a removal that was killed
        with self._changing() as book:
            self.has_lost_log = not book.lines and any(self._versions.iterdir())
            """True if `states.jsonl` was gone, and versions were there."""
            self.has_lost_line = self._log.is_end_garbage
            """True if the last line of `states.jsonl` was garbage, and was taken back."""
            for path in self._versions.iterdir():
                if path.name.startswith("."):  # of a write or a deletion that was killed
                    remove(path)
            for label, state in self._log.states.states.items():
                if state == "deleted":
                    remove(self._versions / split_label(label)[2])

    # -- the log ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _user_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AdapterError(
                f"adapter {self.scope}: cannot {doing} {error.filename or self.place}: {error.strerror or error}; make room or give "
                "the rights, and try again: what was there before is kept"
            ) from error

    @contextmanager
    def _changing(self) -> Iterator[VersionStates]:
        """Exclusive access for a change, after finishing one that a crash interrupted."""
        from filelock import Timeout

        with self._threads, self._user_errors("change"):
            try:
                self._owner.acquire(timeout=LOCK_TIMEOUT)
            except Timeout:
                raise AdapterError(
                    f"adapter {self.scope}: another process has been changing it for {LOCK_TIMEOUT:g} s"
                ) from None
            try:
                book = self._log.read()
                self._log.cut_half_line()
                yield book
            finally:
                self._owner.release()

    def _read(self) -> VersionStates:
        with self._threads:
            return self._log.read()

    @property
    def current(self) -> str:
        """Label of the live version; empty: the base model."""
        return self._read().live

    @property
    def is_frozen(self) -> bool:
        """True if the adapter learns no more, until it is thawed."""
        return (self.place / "frozen").exists()

    def freeze(self, is_frozen: bool) -> None:
        """Learn no more from now on, or go on."""
        with self._user_errors("freeze"):
            if is_frozen:
                (self.place / "frozen").touch(0o600)
            else:
                (self.place / "frozen").unlink(missing_ok=True)

    @property
    def canary(self) -> str:
        """Label of the version that answers a share of the requests; empty: none."""
        return self._read().canary

    @property
    def drops_in_a_row(self) -> int:
        """Number of versions that were dropped since one last became live or the canary."""
        return self._read().drops

    @property
    def last_rollback(self) -> float:
        """Unix time of the last rollback; minus infinity: there was none."""
        return self._read().last_rollback

    @property
    def last_fall(self) -> float:
        """Unix time of the last rollback for rewards that fell; minus infinity: there was none."""
        return self._read().last_fall

    def states(self) -> dict[str, str]:
        """Label -> state, also of versions that were deleted since (`deleted`)."""
        with self._threads:
            return dict(self._read().states)

    def log(self) -> list[dict[str, Any]]:
        """The changes of state, oldest first: `time`, `label`, `state`, `why`, and what they came with."""
        with self._threads:
            return [dict(line) for line in self._read().lines]

    # -- versions ---------------------------------------------------------------------------------------------------------

    def write(self, folder: Path | str, step: int, parent: str, base: str, about: Mapping[str, Any] | None = None) -> str:
        """Adopt a finished folder as a candidate; the folder is moved. The same contents again change nothing.

        Args:
            folder: plain files only, no folders or links.
            step: number of gradient steps from the base model.
            parent: label of the version that the step started from; empty: the base model.
            base: fingerprint of the base model.
            about: losses, times and so on for its manifest; they do not change its name.

        Returns:
            Its label.

        Raises:
            AdapterError: the folder is empty or has something else than files; or the disk is full.
            AdapterConflict: the same contents have another parent or base.
        """
        folder = Path(folder)
        if not 0 <= step < 10**9:
            raise AdapterError(f"adapter {self.scope}: a version has from 0 to 10^9 steps behind it, got {step}")
        if parent:
            self._own(parent)
        with self._changing() as book:
            files = plain_files(folder, f"adapter {self.scope}")
            if not files:
                raise AdapterError(f"adapter {self.scope}: there are no files in {folder}")
            contents = {path.name: {"sha256": file_digest(path), "bytes": path.stat().st_size} for path in files}
            name = version_name(step, contents)
            label, place, is_new = f"{self.scope}@{name}", self._versions / name, True
            if self._has_intact(label, parent, base):
                if not (place / MOMENTS_FILE).exists() and MOMENTS_FILE in contents:
                    os.replace(folder / MOMENTS_FILE, place / MOMENTS_FILE)
                is_new = book.states.get(label, "deleted") == "deleted"
            else:
                origin = {"name": name, "step": step, "parent": parent, "base": base, "created": self._clock()}
                self._adopt(folder, place, {**origin, "about": json_safe(about or {}), "files": contents})
            if is_new:
                self._log.append("candidate", label, "written", step=step, parent=parent)
            remove(folder)
            stay = {label, parent, book.live, book.canary}  # the next step may start from these
            for path in self._versions.glob(f"*/{MOMENTS_FILE}"):
                if f"{self.scope}@{path.parent.name}" not in stay and VERSION_NAME.fullmatch(path.parent.name):
                    path.unlink(missing_ok=True)
            return label

    def _has_intact(self, label: str, parent: str, base: str) -> bool:
        """True if a version is there and undamaged; a damaged one is discarded, to be written again.

        Raises:
            AdapterConflict: it has another parent or base.
        """
        place = self._versions / self._own(label)
        if not (place.exists() or place.is_symlink()):
            return False
        try:
            self._check(label)
            kept = self._manifest(label)
        except AdapterError:
            self._discard(label)
            return False
        if (kept["parent"], kept["base"]) != (parent, base):
            raise AdapterConflict(
                f"{label} is there already, with parent {kept['parent']!r} and base {kept['base']!r}, and cannot have "
                f"{parent!r} and {base!r}, too"
            )
        return True

    def _adopt(self, folder: Path, place: Path, manifest: dict[str, Any]) -> None:
        """Move a folder to its place among the versions, with a manifest and on disk. After an error it is where it was."""
        staging = place.with_name(f".new-{place.name}")
        remove(staging)
        try:
            os.rename(folder, staging)
        except OSError:  # from another file system
            shutil.copytree(folder, staging)
        try:
            (staging / MANIFEST).unlink(missing_ok=True)
            (staging / MANIFEST).write_text(json.dumps({**manifest, "seal": seal(manifest)}, indent=1), encoding="utf-8")
            for name in sorted({*manifest["files"], MANIFEST} - {MOMENTS_FILE}):
                sync(staging / name)
            sync(staging)
        except OSError:
            if not folder.exists():
                os.rename(staging, folder)
            raise
        os.rename(staging, place)
        sync(self._versions)

    def folder(self, label: str) -> Path:
        """The folder of a version, after comparing every file with its digest (once, until a file changes).

        Raises:
            UnknownVersion: there is no version of this label.
            AdapterError: a file is damaged, missing or unexpected; the message names it.
        """
        with self._threads, self._user_errors("read"):
            return self._check(label)

    def _own(self, label: str) -> str:
        """The name in a label of this adapter."""
        tenant, adapter, name = split_label(label)
        if (tenant, adapter) != (self.tenant, self.adapter):
            raise UnknownVersion(f"adapter {self.scope} has no version {label}")
        return name

    def _existing_folder(self, label: str) -> Path:
        place = self._versions / self._own(label)
        if place.is_symlink():
            raise AdapterError(f"{label} is corrupt: {place} is a symbolic link")
        if not place.is_dir():
            state = self._read().states.get(label)
            raise UnknownVersion(
                f"adapter {self.scope} has no version {label}{': it was deleted' if state == 'deleted' else ''}"
            )
        return place

    def _manifest(self, label: str) -> dict[str, Any]:
        path = self._existing_folder(label) / MANIFEST
        if label not in self._manifests:
            try:
                found = json.loads(require_plain_file(path).read_text(encoding="utf-8"))
                sealed, name = found.pop("seal"), version_name(found["step"], found["files"])
                whole = sealed == seal(found) and found["name"] == name == self._own(label)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise AdapterError(f"{label} is corrupt: {path} cannot be read ({error}); roll back, and delete it") from error
            if not whole:
                raise AdapterError(f"{label} is corrupt: {path} was changed; roll back, and delete it")
            self._manifests[label] = found
        return self._manifests[label]

    def _check(self, label: str) -> Path:
        place = self._existing_folder(label)
        expected = self._manifest(label)["files"]
        there = {path.name for path in plain_files(place, label)}
        for name in sorted((there ^ set(expected)) - ({MOMENTS_FILE} - there)):
            raise AdapterError(
                f"{label} is corrupt: {place / name} is {'too many' if name in there else 'missing'}; roll back, and delete it"
            )
        seen = self._seen.setdefault(label, {})
        for name in sorted(set(expected) - ({MOMENTS_FILE} - there)):
            found = (place / name).stat()
            mark = (found.st_size, found.st_mtime_ns, found.st_ino)
            if seen.get(name) == mark:
                continue
            if found.st_size != expected[name]["bytes"] or file_digest(place / name) != expected[name]["sha256"]:
                if name == MOMENTS_FILE:  # the machine went down before it was on disk
                    LOG.warning("%s: %s is not what was written; learning goes on with new moments", label, place / name)
                    (place / name).unlink(missing_ok=True)
                    continue
                raise AdapterError(f"{label} is corrupt: {place / name} is not what was written; roll back, and delete it")
            seen[name] = mark
        return place

    def version(self, label: str) -> AdapterVersion:
        """A version's manifest and state; its other files are not read.

        Raises:
            UnknownVersion: there is no version of this label.
            AdapterError: its manifest is damaged.
        """
        with self._threads, self._user_errors("read"):
            kept, book = self._manifest(label), self._read()
            return AdapterVersion(
                *(kept["name"], label, kept["step"], kept["parent"], kept["base"]),
                state=book.states.get(label, "candidate"),
                tainted=label in book.tainted,
                created=kept["created"],
                about={**kept["about"], **book.about.get(label, {})},
                digests={name: each["sha256"] for name, each in kept["files"].items()},
            )

    def versions(self) -> list[AdapterVersion]:
        """All versions on disk, newest first."""
        found = []
        with self._threads, self._user_errors("read"):
            names = sorted(
                (path.name for path in self._versions.iterdir() if VERSION_NAME.fullmatch(path.name)), key=_newest, reverse=True
            )
            for name in names:
                label = f"{self.scope}@{name}"
                try:
                    found.append(self.version(label))
                except AdapterError as error:
                    about = {"error": str(error)}
                    found.append(AdapterVersion(name, label, int(name.split("-")[0]), "", "", "corrupt", False, 0.0, about, {}))
        return found

    def lineage(self, label: str) -> Iterator[str]:
        """Labels of a version, its parent, and so on to the base model (""); pruned versions are included, since the log has them."""
        with self._threads, self._user_errors("read"):
            parents = dict(self._read().parents)
        yield label
        while label:
            if label not in parents:  # written, but killed before the log had it
                try:
                    label = self.version(label).parent
                except AdapterError:
                    return
            else:
                label = parents[label]
            yield label

    def is_live_descendant(self, label: str) -> bool:
        """True if a version is on disk and descends from the live one, or is it.

        No version in between may have been live before or dropped, or have learned from a deleted record if the live one did not. The
        empty label descends from the base model.
        """
        with self._threads:
            book = self._read()
            try:
                if label:
                    self._existing_folder(label)
            except AdapterError:
                return False
            for one in self.lineage(label):
                if one == book.live:
                    return True
                if one in book.ended or (one in book.tainted and book.live not in book.tainted):
                    return False
            return False

    # -- states -----------------------------------------------------------------------------------------------------------

    def make_canary(
        self, label: str, why: str, about: Mapping[str, Any] | None = None, require_descendant: bool = False
    ) -> None:
        """Make a version the canary, which answers a share of the requests. Another canary is dropped; arguments as for `promote`."""
        with self._changing() as book:
            self._usable(label, "a canary", require_descendant)
            if label == book.live:
                raise AdapterConflict(f"{label} is live: it answers already")
            if label != book.canary:
                self._log.append("canary", label, why, about)

    def promote(self, label: str, why: str, about: Mapping[str, Any] | None = None, require_descendant: bool = False) -> None:
        """Make a version the live one; the one before retires. On return this is on disk.

        Args:
            label: the version.
            why: the reason, for the log.
            about: more facts for the log.
            require_descendant: only if `is_live_descendant` holds; check and change are one, so that no rollback comes in between.

        Raises:
            AdapterConflict: it was dropped, is no descendant, or learned from a deleted record while the live one did not. (Descendants
                of a live version that did are marked, but may go live.)
            AdapterError: it is corrupt.
        """
        with self._changing() as book:
            self._usable(label, "live", require_descendant)
            if label != book.live:
                self._log.append("live", label, why, about, was=book.live)

    def _usable(self, label: str, what: str, require_descendant: bool = False) -> None:
        self._check(label)
        book = self._log.states
        if book.states.get(label) == "dropped":
            raise AdapterConflict(f"{label} cannot be {what}: it was dropped")
        if label in book.tainted and not (
            book.live in book.tainted and (book.live in self.lineage(label) or label in self.lineage(book.live))
        ):
            raise AdapterConflict(f"{label} cannot be {what}: it learned from a record that was deleted")
        if require_descendant and not self.is_live_descendant(label):
            raise AdapterConflict(f"{label} cannot be {what}: it was made from a version that was withdrawn since")

    def drop(self, label: str, why: str, about: Mapping[str, Any] | None = None) -> None:
        """Mark a version as failed: it is never used again. Its files stay until `prune`."""
        with self._changing() as book:
            self._existing_folder(label)
            if label == book.live:
                raise AdapterConflict(f"{label} is live: roll back first")
            if book.states.get(label) != "dropped":
                self._log.append("dropped", label, why, about)

    def roll_back(self, to: str | None = None, why: str = "", *, rewards_fell: bool = False) -> str:
        """Make an earlier live version live again; the live version retires.

        Args:
            to: a label, or "" for the base model; None: the last live version before this one that is whole and neither dropped nor
                tainted, or else the base model.
            why: the reason, for the log.
            rewards_fell: the reason is live feedback, which `last_fall` remembers.

        Returns:
            Label of the live version.

        Raises:
            UnknownVersion, AdapterConflict, AdapterError: `to` was never live, was dropped, is tainted or corrupt.
        """
        with self._changing() as book:
            if to is None:
                to = next((label for label in reversed(book.before) if self._healthy(label)), "")
            elif to:
                self._usable(to, "live")
                if to != book.live and not any(line["state"] == "live" and line["label"] == to for line in book.lines):
                    raise AdapterConflict(f"{to} was never live: promote it instead")
            if to != book.live:
                self._log.append("live", to, why, was=book.live, back=True, fell=rewards_fell)
            return to

    def _healthy(self, label: str) -> bool:
        """True if a rollback without a target may choose this version."""
        if not label:
            return True
        try:
            self._usable(label, "live")
        except AdapterError:
            return False
        return label not in self._log.states.tainted

    def rollback_target(self, to: str) -> str:
        """`to`, or its nearest ancestor that a rollback may choose; "" is the base model."""
        with self._threads, self._user_errors("read"):
            book = self._read()
            return next((one for one in self.lineage(to) if not one or (one in book.ended and self._healthy(one))), "")

    def taint(self, labels: Iterable[str], why: str) -> tuple[str, ...]:
        """Mark versions that learned from deleted records. They cannot become live, unless they descend from a marked live version.

        Returns:
            Those of `labels` that belong to this adapter; others are ignored.
        """
        mine = tuple(sorted({label for label in labels if label and split_label(label)[:2] == (self.tenant, self.adapter)}))
        with self._changing() as book:
            new = [label for label in mine if label not in book.tainted]
            if new:
                self._log.append("tainted", "", why, labels=new)
        return mine

    # -- what goes --------------------------------------------------------------------------------------------------------

    def delete(self, label: str, why: str = "deleted") -> None:
        """Delete a version's files; its lines in the log stay.

        Raises:
            AdapterConflict: it is live or the canary.
        """
        with self._changing() as book:
            self._existing_folder(label)
            if label in (book.live, book.canary):
                raise AdapterConflict(
                    f"{label} is {'live' if label == book.live else 'the canary'}: roll back or drop it first"
                )
            self._log.append("deleted", label, why)
            self._discard(label)

    def _discard(self, label: str) -> None:
        """Remove a version's files, the name first, so that no half of it is ever visible. After a crash, opening finishes this."""
        name = self._own(label)
        gone = self._versions / f".gone-{name}"
        remove(gone)
        os.rename(self._versions / name, gone)
        remove(gone)
        self._seen.pop(label, None)
        self._manifests.pop(label, None)

    def prune(self, protect: Sequence[str] = ()) -> tuple[str, ...]:
        """Delete old versions. Those that can answer again (that were live, and learned from nothing that was deleted) and all others
        (candidates, dropped ones) are counted apart: the newest `keep_versions` of either kind stay, so that failed versions push
        out none that passed the gate. The live one, the one before it, the canary and `protect` stay, too.

        Args:
            protect: labels in use elsewhere: the replay buffer's heads, parents of unfinished minibatches, versions that engines hold.

        Returns:
            Labels of the deleted versions.
        """
        with self._changing() as book:
            back = next((label for label in reversed(book.before) if self._healthy(label)), "")
            stay = {book.live, book.canary, back, *protect}
            kinds: dict[bool, list[str]] = {True: [], False: []}
            for version in self.versions():  # newest first
                kinds[version.state in ("live", "retired") and not version.tainted].append(version.label)
            old = [label for labels in kinds.values() for label in labels[self.keep_versions :] if label not in stay]
            if old:
                self._log.append("deleted", old, "pruned")
            for label in old:
                self._discard(label)
        return tuple(old)

    def remove(self) -> None:
        """Delete the adapter with all its versions and its log."""
        with self._changing():
            gone = self.place.with_name(f".gone-{self.adapter}")
            remove(gone)
            os.rename(self.place, gone)
            sync(self.place.parent)
            remove(gone)
            self._log, self._seen, self._manifests = VersionLog(self.place, self.scope, self._clock), {}, {}

    def export(self, label: str, path: Path | str) -> Path:
        """Write a version as a zip file that PEFT opens once unpacked, without the learner's own files. Equal versions give equal bytes.

        Args:
            label: the version.
            path: of the zip file, or a folder for `<tenant>-<adapter>-<name>.zip`.

        Returns:
            Path of the zip file.
        """
        path = Path(path)
        with self._threads, self._user_errors("export"):
            place = self._check(label)
            if path.is_dir():
                path /= f"{self.tenant}-{self.adapter}-{place.name}.zip"
            new = path.with_name(f".{path.name}.new")
            try:
                with zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as file:
                    for each in sorted(place.iterdir()):
                        if each.name != MANIFEST and not each.name.startswith(PRIVATE_PREFIXES):
                            file.writestr(zipfile.ZipInfo(each.name), each.read_bytes())
                os.replace(new, path)
            finally:
                new.unlink(missing_ok=True)
        return path

    def __repr__(self) -> str:
        return f"Adapters({self.scope})"


def _newest(name: str) -> tuple[int, str]:
    step, digest = name.split("-")
    return int(step), digest
