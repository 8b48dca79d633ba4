"""A run folder as its files tell it, also while another process writes to it. All that looks at played runs reads them here.

folder = RecordedFolder(Path("runs/mine"))
run = folder.run("jitrl-s0")
run.read_episodes()      the rows of its finished episodes, by number
run.rows(3)         the rows of the steps of episode 3, in order
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, NamedTuple

from ...memory.errors import CommandError, UserError
from .folder import read_sweep_settings, run_stem

__all__ = ["RecordedFolder", "RecordedRun", "RecordedStep", "read_rows"]

MAX_ACTION = 200
"""Most characters of an action that the index of a run holds."""


class RecordedFolder:
    """A folder that `learngraph run` has made, or one of the runs in it.

    Raises:
        UserError: there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._only = ""
        if not path.exists():
            raise UserError(f"{path} does not exist; give a folder that `learngraph run` has made, such as runs/NAME")
        if not path.is_dir():
            raise UserError(f"{path} is no folder; give one that `learngraph run` has made, such as runs/NAME")
        if rows_file(path / "steps.jsonl").exists() and not (path / "settings.json").exists():
            self._only, self.path = path.name, path.parent
        self._runs: dict[str, RecordedRun] = {}

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The options of the runs, with `methods` (name -> settings) and `seeds`.

        Raises:
            UserError: settings.json is missing or damaged.
        """
        return read_sweep_settings(self.path)

    def names(self) -> list[str]:
        """The names of the runs that have steps; a run that has just begun appears later."""
        found = sorted({one.parent.name for one in self.path.glob("*/steps.jsonl*")})
        return [name for name in found if not self._only or name == self._only]

    def run(self, name: str) -> RecordedRun:
        """A run of the folder by its name.

        Raises:
            UserError: there is none of this name.
        """
        if name not in self._runs:
            if name not in self.names():
                raise UserError(f"{self.path} has no run {name!r}; it has {', '.join(self.names()) or 'none with steps yet'}")
            self._runs[name] = RecordedRun(self.path / name, *self._origin(name))
        return self._runs[name]

    def find(self, method: str, seed: int | None = None) -> RecordedRun:
        """The run of a method on a seed, the first seed if not given. It need not have steps yet.

        Raises:
            UserError: the folder was not made for such runs; names those that it has.
        """
        self.check("method", method)
        seed = self.settings["seeds"][0] if seed is None else seed
        self.check("seed", seed)
        return RecordedRun(self.path / f"{run_stem(method)}-s{seed}", method, seed)

    def check(self, what: str, wanted: str | int) -> None:
        """Raise a UserError where the folder has no such `method` or `seed`."""
        known = list(self.settings[f"{what}s"])
        if wanted not in known:
            raise CommandError(f"{self.path} has no {what} {wanted}; it has {', '.join(map(str, known))}")

    def _origin(self, name: str) -> tuple[str, int | None]:
        """Method and seed of a run; the seed is None where no settings tell it."""
        try:
            settings = self.settings
        except UserError:
            settings = {"methods": {}, "seeds": ()}
        for method in settings["methods"]:
            for seed in settings["seeds"]:
                if f"{run_stem(method)}-s{seed}" == name:
                    return method, seed
        return name.rpartition("-s")[0], None


class RecordedStep(NamedTuple):
    """A step, and where its row stands in the file."""

    id: str
    parent: str
    episode: int
    action: str
    """Its beginning, where it is long."""
    reward: float | None
    over: bool
    offset: int


class RecordedRun:
    """One method's run on one seed: an index of its steps, whose rows are read when they are looked at. Not safe for threads.

    The file of the steps may be hundreds of megabytes; `refresh` reads only what is new. A line that cannot be read is counted and
    left out.
    """

    def __init__(self, path: Path, method: str, seed: int | None) -> None:
        self.path, self.method, self.seed = path, method, seed
        self._forget()

    def _forget(self) -> None:
        self.damaged = {"steps.jsonl": 0, "episodes.jsonl": 0}
        """File -> lines that could not be read."""
        self._steps: dict[str, RecordedStep] = {}
        self._last: dict[int, str] = {}  # episode -> id of its newest row
        self._heads: dict[int, str] = {}  # finished episode -> id of its last step
        self._read, self._packed = 0, 0  # bytes of the file, and when it was packed

    def refresh(self) -> None:
        """Read the steps that were written since. A file that has become shorter is read from its beginning.

        Raises:
            OSError: the file cannot be read.
        """
        path = rows_file(self.path / "steps.jsonl")
        written, packed = path.stat(), path.suffix == ".gz"
        if packed and self._packed == written.st_mtime_ns:
            return
        if not packed and written.st_size < self._read:
            self._forget()
        self._packed = written.st_mtime_ns if packed else 0
        with open_rows(self.path / "steps.jsonl") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # cut short by a crash, or being written
                    break
                offset, self._read = self._read, self._read + len(line)
                try:
                    self._add(json.loads(line), offset)
                except (ValueError, KeyError, TypeError, AttributeError):
                    self.damaged["steps.jsonl"] += bool(line.strip())
        self.read_episodes()

    def _add(self, row: Mapping[str, Any], offset: int) -> None:
        int(row["step"])
        step = RecordedStep(
            id=str(row["id"]),
            parent=str(row["parent"]),
            episode=int(row.get("episode", 0)),
            action=str(row["action"])[:MAX_ACTION],
            reward=row.get("reward"),
            over=bool(row.get("over")),
            offset=offset,
        )
        self._steps[step.id] = step
        self._last[step.episode] = step.id

    def read_episodes(self) -> dict[int, dict[str, Any]]:
        """Number -> row of each finished episode, as episodes.jsonl holds it now."""
        path, found, damaged = self.path / "episodes.jsonl", dict[int, dict[str, Any]](), 0
        for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
            try:
                row = json.loads(line)
                found[int(row["episode"])] = row
                self._heads[int(row["episode"])] = str(row.get("head", ""))
            except (ValueError, KeyError, TypeError, AttributeError):
                damaged += line.endswith(b"\n")
        self.damaged["episodes.jsonl"] = damaged
        return dict(sorted(found.items()))

    @property
    def is_finished(self) -> bool:
        """True if the run has played its last episode."""
        return (self.path / "result.json").is_file()

    def result(self) -> dict[str, Any]:
        """The content of result.json; empty while the run goes on."""
        found: dict[str, Any] = json.loads((self.path / "result.json").read_text(encoding="utf-8")) if self.is_finished else {}
        return found

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def episodes(self) -> list[int]:
        """The numbers of the episodes with steps, in order."""
        return sorted(self._last)

    def steps(self, episode: int) -> list[RecordedStep]:
        """The steps of an episode, in order; empty if there is none of this number.

        An episode that went back in a power cut has written steps twice: those count that lead to its last row.
        """
        head = self._heads.get(episode, "")
        id, found = head if head in self._steps else self._last.get(episode, ""), list[RecordedStep]()
        while id in self._steps and len(found) <= len(self._steps):
            found.append(self._steps[id])
            id = self._steps[id].parent
        return found[::-1]

    def row(self, step: RecordedStep) -> dict[str, Any]:
        """The whole row of a step.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file was changed since.
        """
        (row,) = self._rows([step])
        return row

    def _rows(self, steps: Iterable[RecordedStep]) -> list[dict[str, Any]]:
        found = []
        with open_rows(self.path / "steps.jsonl") as file:
            for step in steps:
                file.seek(step.offset)
                found.append(json.loads(file.readline()))
        return found

    def rows(self, episode: int, steps: int | None = None) -> list[dict[str, Any]]:
        """The rows of an episode's steps, in order; the first so many of them if `steps` is given."""
        return self._rows(self.steps(episode)[:steps])


# Files of rows: a finished run's steps and replies are packed, which takes a tenth


PACKED = ("steps.jsonl", "replies.jsonl")
"""Files of rows that are packed with gzip when their run is finished: `steps.jsonl.gz`."""


def rows_file(path: Path) -> Path:
    """The file of rows, or the packed one in its place."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if not path.exists() and packed.exists() else path


def open_rows(path: Path) -> IO[bytes]:
    """A file of rows, packed or not, to be read."""
    found = rows_file(path)
    return gzip.open(found) if found.suffix == ".gz" else found.open("rb")  # type: ignore[return-value]


def pack_rows(path: Path) -> None:
    """Pack a file of rows. Killed at any moment, it leaves the whole file: as it was, packed, or both."""
    packed = path.with_name(f"{path.name}.gz")
    if path.exists():
        part = packed.with_suffix(".part")
        with path.open("rb") as rows, gzip.open(part, "wb", compresslevel=6) as file:
            copyfileobj(rows, file)
        _put_whole(part, packed)
        path.unlink()


def unpack_rows(path: Path) -> None:
    """Unpack a file of rows, so that more can be written to it. Where both are there, the packed one has nothing more."""
    packed = path.with_name(f"{path.name}.gz")
    if packed.exists() and not path.exists():
        part = path.with_suffix(".part")
        with gzip.open(packed) as rows, part.open("wb") as file:
            copyfileobj(rows, file)
        _put_whole(part, path)
    packed.unlink(missing_ok=True)


def _put_whole(part: Path, path: Path) -> None:
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


# Rows, and the steps of a finished run in short


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a JSONL file, packed or not, that another process may be writing to; none if there is no such file.

    Raises:
        UserError: a row is no JSON.
    """
    rows = []
    try:
        with open_rows(path) as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{rows_file(path)} is damaged ({error}); remove {path.parent} to play that run from its start"
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # cut short by a crash, and its writer will write it again; or being written just now
            break
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(
                f"{path}, line {number}, is damaged ({error}); remove {path.parent} to play that run from its start"
            ) from error
    return rows


def steps_to(steps: Mapping[str, Mapping[str, Any]], head: str) -> list[Mapping[str, Any]] | None:
    """The rows of the steps that lead to a head, oldest first; None if one is missing.

    Args:
        steps: id -> row of a step.
        head: the id of the last step, or of the start of an episode, which holds a `/`.
    """
    found: list[Mapping[str, Any]] = []
    while "/" not in head:
        if head not in steps:
            return None
        found.append(steps[head])
        head = str(steps[head]["parent"])
    return found[::-1]


class LookUps(NamedTuple):
    """The look-ups in a run's episodes after its first, in which there is nothing to find."""

    steps: int = 0
    """Steps that looked something up."""
    empty: int = 0
    """Those that found nothing."""
    nearest_miss: float | None = None
    """The greatest similarity among what was not similar enough for them, where the method notes it."""
    hits: int = 0
    """Remembered visits that they found, where the method notes it."""
    hits_elsewhere: int = 0
    """Those that were made in other tasks."""


class RunSteps(NamedTuple):
    """A run's steps.jsonl in short."""

    look_ups: LookUps
    lost: int | None
    """The first episode whose steps are not all there; None if there is no such episode."""


def read_steps(run: Path, episodes: Iterable[Mapping[str, Any]]) -> RunSteps:
    """The steps of a run in short. A file that was read before, and has not changed since, is not read again."""
    path = run / "steps.jsonl"
    heads = sorted((int(row["episode"]), str(row.get("head", ""))) for row in episodes)
    there = rows_file(path)
    written = there.stat() if there.exists() else None
    return _read_steps(path, tuple(heads), written and (written.st_mtime_ns, written.st_size))


@lru_cache(maxsize=10_000)
def _read_steps(path: Path, heads: Sequence[tuple[int, str]], written: tuple[int, int] | None) -> RunSteps:
    rows = read_rows(path)
    by_id = {str(row["id"]): row for row in rows}
    lost = next((episode for episode, head in heads if steps_to(by_id, head) is None), None)
    return RunSteps(_count_look_ups(rows), lost)


def _count_look_ups(rows: Sequence[Mapping[str, Any]]) -> LookUps:
    """The look-ups, for a method that notes at every step what it found (jitrl, adamem)."""
    found = [(row, _found_nothing(row)) for row in rows if row.get("episode", 0) > 0]
    misses = [row["nearest_similarity"] for row, empty in found if empty and "nearest_similarity" in row]
    hits, elsewhere = (sum(row["hits"][n] for row in rows if row.get("hits")) for n in (0, 1))
    empty = sum(bool(empty) for _, empty in found)
    return LookUps(sum(empty is not None for _, empty in found), empty, max(misses, default=None), hits, elsewhere)


def _found_nothing(row: Mapping[str, Any]) -> bool | None:
    """True if a step found nothing in memory; None if it looked nothing up."""
    if row.get("nearest_similarity") is not None:
        return not row.get("precedents")
    estimates = row.get("estimates")
    return not any(estimate.get("count") for estimate in estimates) if estimates else None
