"""`learngraph memory library show | diff | export | rollback`: look at the lessons that were learned, take them elsewhere, go back.

    learngraph memory library show runs/learned
    learngraph memory library export runs/learned lessons.yaml
    learngraph memory library export runs/learned skills/order-tickets/SKILL.md
    learngraph memory library rollback runs/learned NAME

PATH is a YAML file, a file of versions (`.jsonl`), or the folder of a run of training-free-grpo. A person edits lessons in YAML:
`run training-free-grpo --library lessons.yaml` begins with them.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ...memory.errors import CommandError, plural
from ...memory.lessons.library import Library, LibraryError, diff
from ...memory.lessons.pages import agents_page, skill_page
from ...memory.lessons.versions import LibraryVersions, find_library, open_library
from .flags import parse_flags, run_subcommand

__all__ = ["library"]

USAGE = """\
usage: learngraph memory library show PATH [VERSION] | diff PATH [OLD NEW] | export PATH FILE [--version V] | rollback PATH VERSION

PATH is a YAML file, a file of versions (.jsonl), or the folder of one arm and seed of a run of training-free-grpo.

show      prints the lessons of a version (the current one, if none is named), the edits that made it, and all versions
diff      prints the changes between two versions; without names, those from the parent of the current version to it
export    writes a version as YAML that a person can read and edit, as SKILL.md, or as a section of AGENTS.md
rollback  makes an earlier version the current one; the later ones stay
Each with --help."""


def library(args: Sequence[str]) -> int:
    """Show, compare, export or roll back a learned library. Returns the exit status."""
    commands = {"show": show, "diff": show_diff, "export": export, "rollback": rollback}
    return run_subcommand(commands, args, USAGE)


@dataclass(frozen=True)
class LibraryShowOptions:
    """Options of `learngraph memory library show`: the version to show."""

    path: Positional[str]
    """A YAML file, a file of versions, or a run folder."""
    version: Positional[str] = ""
    """The name of the version; the current one if not given."""


def show(args: Sequence[str]) -> int:
    """Print the lessons of a version, the edits that made it, and the names of all versions."""
    options = parse_flags(LibraryShowOptions, args, "learngraph memory library show", "Show the lessons of a version.")
    source = open_library(options.path)
    held, name = _version(source, options.version, options.path)
    if isinstance(source, Library):
        print(_lessons_text(held))
        return 0
    made = f", made from {source.parent(name)}" if source.parent(name) else ""
    why = f": {source.why(name)}" if source.why(name) else ""
    print(f"{name}{' (holds)' if name == source.head else ''}{made}{why}\n{_lessons_text(held)}")
    if rulings := source.rulings(name):
        print(f"\nEdits that made it, {sum(r.accepted for r in rulings)} of {len(rulings)} accepted:")
    for ruling in source.rulings(name):
        about = ", ".join(map(str, ruling.edit.lessons)) or ruling.lesson
        reason = f": {ruling.reason}" if ruling.reason else ""
        print(f"  {'yes' if ruling.accepted else 'no '} {ruling.edit.op or 'unreadable'} {about} {ruling.edit.text}{reason}")
    print("\nVersions:")
    for one in source.names():
        print(f"  {one}: {plural(len(source.at(one).lessons), 'lesson')}{' (holds)' if one == source.head else ''}")
    return 0


def _version(source: Library | LibraryVersions, name: str, place: str) -> tuple[Library, str]:
    """A version and its name; the current version where none is named."""
    if isinstance(source, Library):
        if name:
            raise LibraryError(
                f"{place} is one library and has no version {name!r}; a .jsonl file or a run folder has versions"
            )
        return source, place
    if not source.names():
        raise LibraryError(f"{place} holds no version yet")
    return source.at(name or source.head), name or source.head


def _lessons_text(held: Library) -> str:
    told = [f"Written by {held.written_by}."] * bool(held.written_by)
    told += [f"The accept test was passed with {held.tested_with}."] * bool(held.tested_with)
    lines = [" ".join(told)] * bool(told)
    for lesson in held.lessons:
        learned = f"learned on {', '.join(lesson.problems[:3])}{' …' * (len(lesson.problems) > 3)}; " if lesson.problems else ""
        lines += [
            f"[{lesson.id}] {lesson.text}",
            f"     {learned}+{lesson.helpful} -{lesson.harmful}, shown {lesson.shown} times",
        ]
    return "\n".join(lines) if held.lessons else "no lessons"


@dataclass(frozen=True)
class LibraryDiffOptions:
    """Options of `learngraph memory library diff`: the versions to compare."""

    path: Positional[str]
    """A file of versions, or a run folder."""
    old: Positional[str] = ""
    """The name of the older version; the parent of the newer one if not given."""
    new: Positional[str] = ""
    """The name of the newer version; the current one if not given."""


def show_diff(args: Sequence[str]) -> int:
    """Print the changes between two versions."""
    options = parse_flags(LibraryDiffOptions, args, "learngraph memory library diff", "Show the changes between two versions.")
    source = open_library(options.path)
    if isinstance(source, Library):
        raise LibraryError(f"{options.path} is one library, with nothing to compare it with; a run folder has versions")
    new = options.new or source.head
    old = options.old or (source.parent(new) if new else "")
    if not old:
        raise LibraryError(
            f"{new or options.path} was made from no other version; name two of {', '.join(source.names()) or 'none'}"
        )
    changes = diff(source.at(old), source.at(new))
    print(f"from {old} to {new}:\n{changes}".rstrip("\n") if changes else f"{old} and {new} are the same")
    return 0


@dataclass(frozen=True)
class LibraryExportOptions:
    """Options of `learngraph memory library export`: the version and the file."""

    path: Positional[str]
    """A YAML file, a file of versions, or a run folder."""
    file: Positional[Path]
    """The file to write: FOLDER/SKILL.md is a skill with the folder's name, in AGENTS.md a section is replaced, .yaml is for people."""
    version: str = ""
    """The name of the version; the current one if not given."""
    description: str = ""
    """What a skill is and when to read it; from the lessons' tasks if not given."""


def export(args: Sequence[str]) -> int:
    """Write a version as YAML, or as a page that coding agents read."""
    about = "Write a version as YAML that a person can read and edit, as SKILL.md, or as a section of AGENTS.md."
    options = parse_flags(LibraryExportOptions, args, "learngraph memory library export", about)
    held, name = _version(open_library(options.path), options.version, options.path)
    file = options.file
    if options.description and file.name != "SKILL.md":
        raise CommandError(f"--description is of a skill, and {file} is none: its name is to be SKILL.md")
    if file.name == "SKILL.md":
        text = skill_page(held, file.resolve().parent.name, options.description)
    elif file.name == "AGENTS.md":
        text = agents_page(held, file.read_text(encoding="utf-8") if file.exists() else "")
    elif file.suffix in (".yaml", ".yml"):
        text = held.to_yaml()
    else:
        raise CommandError(f"{file} is to be SKILL.md, AGENTS.md, or a file whose name ends in .yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)  # in one piece, since an agent may be reading it
    print(f"{name}: {plural(len(held.lessons), 'lesson')} written to {file}")
    return 0


@dataclass(frozen=True)
class LibraryRollbackOptions:
    """Options of `learngraph memory library rollback`: the version that becomes the current one."""

    path: Positional[str]
    """A file of versions, or the folder of one arm and seed of a run."""
    version: Positional[str]
    """The name of the version."""


def rollback(args: Sequence[str]) -> int:
    """Make an earlier version the current one."""
    from filelock import FileLock, Timeout

    about = "Make an earlier version the current one; the later ones stay."
    options = parse_flags(LibraryRollbackOptions, args, "learngraph memory library rollback", about)
    path = find_library(options.path)
    _version(open_library(path), options.version, options.path)
    lock = FileLock(path.parent / "owner.lock")
    try:
        with lock.acquire(timeout=0), closing(LibraryVersions(path)) as versions:
            was = versions.head
            versions.rollback(options.version)
            versions.sync()
            changes = diff(versions.at(was), versions.at(options.version))
    except Timeout:
        raise LibraryError(f"{path} is being written to by a run; try again when it has ended or was stopped") from None
    print(f"{options.version} holds now, {was} did before\n{changes}".rstrip("\n"))
    return 0
