"""`learngraph library show | diff | export | import | rollback`: look at what was learned, edit it, go back.

    learngraph library show runs/learned
    learngraph library export runs/learned lessons.yaml
    learngraph library export runs/learned skills/order-tickets/SKILL.md
    learngraph library import lessons.yaml runs/learned
    learngraph library rollback runs/learned NAME

PATH is a YAML file, a file of versions (`.jsonl`), or the folder of a run of training-free-grpo.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from ...memory.errors import CommandError, plural
from ...memory.lessons.library import Library, LibraryError, LibraryVersions, diff, find_library, open_library
from ...memory.lessons.pages import agents_page, skill_page
from ..experiments.folder_settings import read_settings, run_stem
from .flags import parse_flags, run_subcommand

__all__ = ["LibraryExportOptions", "library"]

USAGE = """\
usage: learngraph library show PATH [VERSION] | diff PATH [OLD NEW] | export PATH FILE [--version V]
                          | import FILE.yaml PATH | rollback PATH VERSION

PATH is a YAML file, a file of versions (.jsonl), the folder of a run of training-free-grpo, or the folder of one arm and seed in
it. Of a whole run, show, diff and export take the first arm's first seed; import and rollback need the folder of one seed.

show      prints the lessons of a version (the current one, if none is named), and the names of all versions
diff      prints the changes between two versions; without names, those from the parent of the current version to it
export    writes a version as a YAML file that a person can read and edit, as SKILL.md, or as a section of AGENTS.md
import    makes such a file the current version; the earlier ones stay
rollback  makes an earlier version the current one; the later ones stay
Each with --help."""


def library(args: Sequence[str]) -> int:
    """Show, compare, edit or roll back a learned library. Returns the exit status."""
    commands = {"show": show, "diff": show_diff, "export": export, "import": import_library, "rollback": rollback}
    return run_subcommand(commands, args, USAGE)


def _first_library(place: str) -> str:
    """The path of the first arm's first seed, if `place` is the folder of a whole run; else `place`."""
    settings = Path(place, "settings.json")
    if not settings.is_file() or Path(place, "library.jsonl").exists():
        return place
    try:
        found = read_settings(settings)
        arm, seed = next(iter(found["arms"])), found["seeds"][0]
        first = Path(place, f"{run_stem(arm)}-s{seed}", "library.jsonl")
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return place  # it belongs to another kind of run, or is damaged
    if not first.exists():
        return place
    others = [str(path.parent) for path in sorted(Path(place).glob("*/library.jsonl")) if path != first]
    if others:
        sys.stderr.write(f"{first.parent}; there are also {_shorten_list(others)}\n")
    return str(first)


def _shorten_list(names: Sequence[object], limit: int = 3) -> str:
    """The first names, and how many more there are."""
    text = ", ".join(map(str, names[:limit]))
    return f"{text} and {more} more" if (more := len(names) - limit) > 0 else text


@dataclass(frozen=True)
class LibraryShowOptions:
    """Options of `learngraph library show`: the version to show."""

    path: Positional[str]
    """A YAML file, a file of versions, or a run folder."""
    version: Positional[str] = ""
    """The name of the version; the current one if not given."""


def show(args: Sequence[str]) -> int:
    """Print the lessons of a version, and the edits that made it."""
    options = parse_flags(LibraryShowOptions, args, "learngraph library show", "Show the lessons of a version.")
    place = _first_library(options.path)
    source = open_library(place)
    if isinstance(source, Library):
        if options.version:
            raise _no_versions_error(place, options.version)
        print(_lessons_text(source))
        return 0
    if not source.names():
        print(f"{find_library(place)} holds no version yet")
        return 0
    name = options.version or source.head
    held = source.at(name)
    made = f", made from {source.parent(name)}" if source.parent(name) else ""
    print(f"{name}{' (holds)' if name == source.head else ''}{made}{_reason_suffix(source.why(name))}\n{_lessons_text(held)}")
    if rulings := source.rulings(name):
        print(f"\nEdits that made it, {sum(r.accepted for r in rulings)} of {len(rulings)} accepted:")
        for ruling in rulings:
            about = ", ".join(map(str, ruling.edit.lessons)) or ruling.lesson
            reason = f": {ruling.reason}" if ruling.reason else ""
            print(
                f"  {'yes' if ruling.accepted else 'no '} {ruling.edit.op or 'unreadable'} {about} {ruling.edit.text}{reason}"
            )
    if not options.version:
        print("\nVersions:")
        for one in source.names():
            print(f"  {one}: {plural(len(source.at(one).lessons), 'lesson')}{' (holds)' if one == source.head else ''}")
    return 0


def _reason_suffix(why: str) -> str:
    return f": {why}" if why else ""


def _lessons_text(held: Library) -> str:
    if not held.lessons:
        return "no lessons"
    text = f"Written by {held.written_by}. " if held.written_by else ""
    text += f"The accept test was passed with {held.tested_with}." if held.tested_with else ""
    text = f"{text.rstrip()}\n" if text else ""
    for lesson in held.lessons:
        learned = f"learned on {_shorten_list(lesson.problems)}; " if lesson.problems else ""
        votes = f"+{lesson.helpful} -{lesson.harmful}, shown {lesson.shown} times"
        text += f"[{lesson.id}] {lesson.text}\n     {learned}{votes}\n"
    return text.rstrip("\n")


def _no_versions_error(place: str, name: str) -> LibraryError:
    return LibraryError(f"{place} is one library and has no version {name!r}; a .jsonl file or a run folder has versions")


@dataclass(frozen=True)
class LibraryDiffOptions:
    """Options of `learngraph library diff`: the versions to compare."""

    path: Positional[str]
    """A file of versions, or a run folder."""
    old: Positional[str] = ""
    """The name of the older version; the parent of the current one if not given."""
    new: Positional[str] = ""
    """The name of the newer version; the current one if not given."""

    def __post_init__(self) -> None:
        if bool(self.old) != bool(self.new):
            raise CommandError(f"learngraph library diff compares two versions, or none are named; got {self.old}")


def show_diff(args: Sequence[str]) -> int:
    """Print the changes between two versions."""
    options = parse_flags(LibraryDiffOptions, args, "learngraph library diff", "Show the changes between two versions.")
    place = _first_library(options.path)
    source = open_library(place)
    if isinstance(source, Library):
        raise LibraryError(
            f"{place} is one library, with nothing to compare it with; a .jsonl file or a run folder has versions"
        )
    new = options.new or source.head
    old = options.old or (source.parent(new) if new else "")
    if not old:
        raise LibraryError(f"{new or place} was made from no other version; name two of {', '.join(source.names()) or 'none'}")
    changes = diff(source.at(old), source.at(new))
    print(f"from {old} to {new}:\n{changes}".rstrip("\n") if changes else f"{old} and {new} are the same")
    return 0


@dataclass(frozen=True)
class LibraryExportOptions:
    """Options of `learngraph library export`: the version and the file."""

    path: Positional[str]
    """A file of versions, or a run folder."""
    file: Positional[Path]
    """The file to write."""
    version: str = ""
    """The name of the version; the current one if not given."""
    format: Literal["yaml", "skill", "agents", "by name"] = "by name"
    """yaml: for people to edit, and to import. skill: a SKILL.md of Agent Skills, whose name is its folder's. agents: a section of an
    AGENTS.md, whose other text stays. By name: SKILL.md and AGENTS.md are what they are called, other files are YAML."""
    description: str = ""
    """What a skill is and when to read it; from the lessons' tasks if not given."""


def export(args: Sequence[str]) -> int:
    """Write a version as YAML, or as a page that coding agents read."""
    about = "Write a version as YAML that a person can read and edit, as SKILL.md, or as a section of AGENTS.md."
    options = parse_flags(LibraryExportOptions, args, "learngraph library export", about)
    place = _first_library(options.path)
    source = open_library(place)
    if isinstance(source, Library):
        if options.version:
            raise _no_versions_error(place, options.version)
        held, name = source, place
    else:
        name = options.version or source.head
        if not name:
            raise LibraryError(f"{place} holds no version yet")
        held = source.at(name)
    file = options.file
    kind = (
        {"SKILL.md": "skill", "AGENTS.md": "agents"}.get(file.name, "yaml") if options.format == "by name" else options.format
    )
    if options.description and kind != "skill":
        raise CommandError(f"--description is of a skill, and {file} is to be {kind}: add --format skill")
    if kind == "skill":
        _write_page(file, skill_page(held, file.resolve().parent.name, options.description))
    elif kind == "agents":
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        _write_page(file, agents_page(held, before))
    else:
        _write_library(file, held)
    print(f"{name}: {plural(len(held.lessons), 'lesson')} written to {file}")
    return 0


def _write_library(file: Path, held: Library) -> None:
    """Write a library to a YAML file."""
    if file.suffix not in (".yaml", ".yml"):
        raise CommandError(f"{file} is to be a YAML file: its name ends in .yaml; --format writes other files")
    _write_page(file, held.to_yaml())


def _write_page(file: Path, text: str) -> None:
    """Write a file in one piece, since an agent may be reading it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


@dataclass(frozen=True)
class LibraryImportOptions:
    """Options of `learngraph library import`: the file and the library."""

    file: Positional[Path]
    """The YAML file to read."""
    path: Positional[str]
    """A YAML file, a file of versions, or a run folder."""


def import_library(args: Sequence[str]) -> int:
    """Make a YAML file the current version."""
    about = "Make a YAML file the current version; the earlier ones stay."
    options = parse_flags(LibraryImportOptions, args, "learngraph library import", about)
    file, place = options.file, options.path
    if not file.is_file() or file.suffix == ".jsonl":
        raise LibraryError(f"{file} is not a YAML file; 'learngraph library export' makes one")
    target = Path(place)
    if target.suffix in (".yaml", ".yml"):
        held = _read_library(file)
        _write_library(target, held)
        print(f"{plural(len(held.lessons), 'lesson')} written to {place}")
        return 0
    if target.exists():
        target = find_library(target)
    elif target.suffix != ".jsonl":
        raise LibraryError(f"there is no run folder {place}; a file of versions ends in .jsonl, and need not be there yet")
    with _open_for_writing(target) as versions:
        head = versions.head
        before = versions.at(head) if head else Library()
        held = _read_library(file, before.free_from)
        if head and held == before:
            print(f"{file} says what {head} says; nothing was changed")
            return 0
        number = sum(name.startswith("edited/") for name in versions.names())
        name = versions.put(f"edited/{number}", held, parent=head, why=f"imported from {file.name}")
        versions.move(name, "import")
        versions.sync()
    print(f"{name} holds now: {plural(len(held.lessons), 'lesson')}\n{diff(before, held)}".rstrip("\n"))
    return 0


@contextmanager
def _open_for_writing(path: Path) -> Iterator[LibraryVersions]:
    """The versions in a file, opened to write.

    Raises:
        LibraryError: a run is writing to them.
    """
    from filelock import FileLock, Timeout

    with ExitStack() as stack:
        if path.name == "library.jsonl":
            try:
                stack.enter_context(FileLock(path.parent / "owner.lock", timeout=0))
            except Timeout:
                raise LibraryError(f"{path} is being written to by a run; try again when it has ended or was stopped") from None
        yield stack.enter_context(closing(LibraryVersions(path)))


def _read_library(file: Path, free_from: int = 0) -> Library:
    """The library in a YAML file. Lessons without an id get ids from number `free_from` on."""
    held = open_library(file, free_from)
    assert isinstance(held, Library)
    return held


@dataclass(frozen=True)
class LibraryRollbackOptions:
    """Options of `learngraph library rollback`: the version that becomes the current one."""

    path: Positional[str]
    """A file of versions, or the folder of one arm and seed of a run."""
    version: Positional[str]
    """The name of the version."""


def rollback(args: Sequence[str]) -> int:
    """Make an earlier version the current one."""
    about = "Make an earlier version the current one; the later ones stay."
    options = parse_flags(LibraryRollbackOptions, args, "learngraph library rollback", about)
    name, path = options.version, find_library(options.path)
    if path.suffix != ".jsonl":
        raise _no_versions_error(options.path, name)
    with _open_for_writing(path) as versions:
        was = versions.head
        versions.rollback(name)
        versions.sync()
        changes = diff(versions.at(was), versions.at(name))
    print(f"{name} holds now, {was} did before\n{changes}".rstrip("\n"))
    return 0
