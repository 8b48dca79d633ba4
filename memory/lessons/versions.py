"""Versions of a library of lessons: none is ever lost, one is the current version; and the libraries that a path names."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any

from ..display import ShownAsTable, Table, make_table
from ..records import Edit, Lesson, Ruling
from ..storage.branches import branching
from ..storage.rows import Rows
from ..storage.stored_rows import StoredRows
from .library import Library, LibraryError, file_fields, plain_value

__all__ = ["LibraryVersions", "find_library", "open_library"]


@branching("put", "move", "rollback", "erase", but=("sync", "close", "refresh"))
class LibraryVersions(ShownAsTable):
    """Named versions of a library, none of which is ever lost, and the current one: in memory, or in a JSONL file.

    The head is the version that `move` named last; before any move it is the first one. No id is used twice in a history, also
    where it branches (a rejected version, a rollback): `at` tells the library which ids are free. A version without a parent
    begins a history of its own, such as a control whose ids name other lessons. Safe to use from several threads; one process
    writes to a file, others may `read` it. With the rows of a store (`StoredRows`) several processes may write.
    """

    def __init__(self, path: Path | str | None = None, *, rows: StoredRows | None = None) -> None:
        self._rows: Rows | StoredRows = Rows(path) if rows is None else rows
        self._lock = Lock()
        self._made: dict[
            str, tuple[Mapping[str, Any], Library]
        ] = {}  # name -> its row and library: every rollout asks for its own

    replaces = False
    """A version that is there is not replaced."""

    def as_of(self, moment: str) -> LibraryVersions:
        """A copy of the versions and moves as they were at a moment (memory/storage/branches.py), in memory."""
        made = LibraryVersions()
        made._rows = self._rows.as_of(moment)
        return made

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """Name -> version, of those put since a moment."""
        found = self._rows.writes_since(moment)
        return {row["name"]: row for row in found.values() if isinstance(row, Mapping) and "name" in row}

    @classmethod
    def read(cls, path: Path | str) -> LibraryVersions:
        """The versions of a file as it is now, in memory; another process may be writing to it.

        Raises:
            LibraryError: the file cannot be read.
        """
        versions = cls()
        try:
            *lines, _ = Path(path).read_bytes().split(b"\n")  # a last line without an end is still being written
        except OSError as error:
            raise LibraryError(f"cannot read {path}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                versions._rows.append(json.loads(line))
            except (ValueError, KeyError, TypeError):
                raise LibraryError(f"{path}, line {number}: expected a version of a library, got {line[:60]!r}") from None
        return versions

    def put(self, name: str, library: Library, *, parent: str = "", why: str = "", rulings: Sequence[Ruling] = ()) -> str:
        """Keep a library under a name, and return the name; the same library under the same name is kept once.

        Args:
            name: the version's name.
            library: the library.
            parent: name of the version that it was made from; empty: none.
            why: the reason for making it.
            rulings: the rulings of the edits that made it.

        Raises:
            LibraryError: the name is that of another library; there is no such parent; or an id that is new in the parent's
                history names another lesson elsewhere.
        """
        row = {
            "id": f"version {name}",
            "name": name,
            "next": library.next,
            "lessons": [dict(file_fields(lesson)) for lesson in library.lessons],
            "parent": parent,
            "why": why,
            "rulings": [asdict(ruling) for ruling in rulings],
        }
        row |= {"written_by": library.written_by} if library.written_by else {}
        row |= {"tested_with": library.tested_with} if library.tested_with else {}
        row = json.loads(json.dumps(plain_value(row)))
        with self._lock:
            there = self._rows.get(f"version {name}")
            if there is None:
                if not name:
                    raise LibraryError("a version needs a name")
                self._check(library, parent)
                self._rows.append(row)
            elif (there["lessons"], there["next"]) != (row["lessons"], row["next"]):
                raise LibraryError(f"version {name!r} is another library already; give this one another name")
        return name

    def _check(self, library: Library, parent: str) -> None:
        if not parent:
            return
        line: set[str] = set()
        while parent and parent not in line:
            row = self._row(parent)
            line.add(parent)
            parent = row["parent"]
        own = {lesson["id"] for name in line for lesson in self._row(name)["lessons"]}
        for row in self._versions():
            for lesson in row["lessons"]:
                if lesson["id"] not in own and any(x.id == lesson["id"] for x in library.lessons):
                    raise LibraryError(
                        f"{lesson['id']} names another lesson in version {row['name']!r}; a new lesson needs a new id: "
                        f"use L{max(row['next'] for row in self._versions())}"
                    )

    def _versions(self) -> list[Mapping[str, Any]]:
        return [row for row in self._rows.values() if "name" in row]

    def _row(self, name: str) -> Mapping[str, Any]:
        row = self._rows.get(f"version {name}")
        if row is None:
            there = ", ".join(self.names()) or "none"
            raise LibraryError(f"there is no version {name!r}; there are {there}")
        return row

    def at(self, name: str, before: str = "") -> Library:
        """The library of this name as it was put; its `free_from` says which ids are free.

        Args:
            name: the version's name.
            before: name of the version that is to be made from it. If that version exists already (the run is being resumed), the
                ids that were free at that time are free again, so that it is made with the same ids.

        Raises:
            LibraryError: there is no such version; names the existing ones.
        """
        row, taken, tested = self._row(name), 0, self._tested_with(name)
        for other in self._versions():
            if before and other["name"] == before:
                break
            taken = max(taken, other["next"])
        known, made = self._made.get(name, (None, Library()))
        if known is not row or (made.free_from, made.tested_with) != (
            taken,
            tested,
        ):  # in a branch the name may be another row's
            lessons = tuple(Lesson(**lesson) for lesson in row["lessons"])
            made = Library(lessons, row["next"], taken, row.get("written_by", ""), tested)
            self._made[name] = row, made
        return made

    def _tested_with(self, name: str) -> str:
        """The model with which this version passed its accept test, by its own row or by a later move."""
        moves = (
            row["tested_with"] for row in reversed(self._rows.values()) if row.get("head") == name and "tested_with" in row
        )
        return str(next(moves, None) or self._row(name).get("tested_with", ""))

    def names(self) -> list[str]:
        """The names of all versions, the oldest first."""
        return [row["name"] for row in self._versions()]

    def rulings(self, name: str) -> tuple[Ruling, ...]:
        """The rulings of the edits that made this version."""
        return tuple(Ruling(**{**ruling, "edit": Edit(**ruling["edit"])}) for ruling in self._row(name)["rulings"])

    def parent(self, name: str) -> str:
        """The name of the version that this one was made from; empty if there is none."""
        return str(self._row(name)["parent"])

    def why(self, name: str) -> str:
        """The reason for making this version."""
        return str(self._row(name)["why"])

    @property
    def head(self) -> str:
        """The name of the current version; empty without versions."""
        rows = self._rows.values()
        moves = (row["head"] for row in reversed(rows) if "head" in row)
        return next(moves, None) or next((row["name"] for row in rows if "name" in row), "")

    def move(self, name: str, why: str = "", tested_with: str = "") -> None:
        """Make this version the current one. The move is recorded, and no version is lost.

        Args:
            name: the version's name.
            why: the reason.
            tested_with: name of the model with which it passed its accept test; empty: no test.

        Raises:
            LibraryError: there is no such version.
        """
        self._row(name)
        tested = {"tested_with": plain_value(tested_with)} if tested_with else {}
        with self._lock:
            if self.head != name:
                number = sum("head" in row for row in self._rows.values())
                self._rows.append({"id": f"head {number}", "head": name, "why": plain_value(why), **tested})

    def rollback(self, name: str) -> None:
        """Go back to an earlier version; the later ones stay."""
        self.move(name, "rollback")

    def moves(self) -> list[tuple[str, str]]:
        """Every move as (version, reason), the oldest first."""
        return [(row["head"], row["why"]) for row in self._rows.values() if "head" in row]

    def sync(self) -> None:
        """Flush the file to disk, so that it survives a power failure."""
        self._rows.sync()

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def refresh(self) -> None:
        """See what other processes have written, where the versions are in a store."""
        if isinstance(self._rows, StoredRows):
            self._rows.refresh()

    def erase(self, names: Collection[str]) -> int:
        """Take the lessons that these versions brought in or changed out of all versions, for data that must not be kept.

        Returns:
            The number of lessons that are gone.

        Raises:
            LibraryError: the versions are in a file, which is append-only.
        """
        if not isinstance(self._rows, StoredRows):
            raise LibraryError("a file of versions is append-only; delete the file, or keep versions in a store")
        gone = set[str]()
        for name in set(names) & set(self.names()):
            row = self._row(name)
            before = {one["id"]: one["text"] for one in (self._row(row["parent"])["lessons"] if row["parent"] else ())}
            gone |= {one["id"] for one in row["lessons"] if before.get(one["id"]) != one["text"]}

        def without(row: Mapping[str, Any]) -> Mapping[str, Any]:
            if "name" not in row:
                return row
            rulings = [] if row["name"] in names else row["rulings"]
            return {**row, "lessons": [one for one in row["lessons"] if one["id"] not in gone], "rulings": rulings}

        self._rows.rewrite(without)
        self._made.clear()
        return len(gone)

    def table(self) -> Table:
        """A table of the versions, the newest first; the current one is highlighted."""
        names, head = self.names()[::-1], self.head
        rows = (
            (name, len(self.at(name).lessons), self.parent(name), self.why(name), self._tested_with(name)) for name in names
        )
        made = make_table(repr(self), ("version", "lessons", "made from", "why", "tested with"), rows, len(names))
        return replace(made, marked=frozenset({names.index(head)} if head in names else ()))

    def __repr__(self) -> str:
        there = f" in {self._rows.path}" if self._rows.path else ""
        return f"LibraryVersions({len(self.names())} versions{there})"


# Paths of libraries


def find_library(path: Path | str) -> Path:
    """The library file of a path: the file itself, or the `library.jsonl` in a run folder.

    Raises:
        LibraryError: there is no such file, or several; names them.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise LibraryError(f"there is no library at {path}: give a YAML file, a file of versions (.jsonl) or a run folder")
        return path
    found = sorted(path.rglob("library.jsonl"))
    if len(found) != 1:
        there = f"there are {', '.join(map(str, found))}; name one of them" if found else "it holds no library.jsonl"
        raise LibraryError(f"{path} is a folder, and {there}")
    return found[0]


def open_library(path: Path | str) -> LibraryVersions | Library:
    """The library at a path (`find_library`): all versions of a `.jsonl` file, read-only; of any other file the library as YAML.

    Args:
        path: a file, or a run folder.

    Raises:
        LibraryError: the file cannot be read.
    """
    path = find_library(path)
    if path.suffix == ".jsonl":
        return LibraryVersions.read(path)
    try:
        return Library.from_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise LibraryError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LibraryError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
