"""`learngraph library show | diff | export | import | rollback`: look at what was learned, edit it, go back.

    learngraph library show runs/learned
    learngraph library export runs/learned lessons.yaml
    learngraph library import lessons.yaml runs/learned
    learngraph library rollback runs/learned NAME

PATH is a YAML file, a file of versions (`.jsonl`), or the folder of a run of training-free-grpo.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...memory.library import Library, LibraryError, LibraryVersions, diff, find_library, open_library
from ..wiring.flags import CommandError, parse_flags

__all__ = ["library"]

USAGE = """\
usage: learngraph library show PATH [VERSION] | diff PATH [OLD NEW] | export PATH FILE.yaml [--version V]
                          | import FILE.yaml PATH | rollback PATH VERSION

PATH is a YAML file, a file of versions (.jsonl), or the folder of a run of training-free-grpo or of one arm and seed in it: of
a whole run, show, diff and export take the first arm's first seed, and the others want it named.
show      the lessons of a version (the one that holds, if none is named), and which versions there are
diff      what changed between two versions; without names, between the one that holds and the one it was made from
export    a version as a YAML file that a person can read and edit
import    such a file as the version that holds from now on; the earlier ones stay
rollback  an earlier version holds again; the later ones stay"""


def library(args: Sequence[str]) -> int:
    """show, compare, edit or roll back a learned library: learngraph library show|diff|export|import|rollback"""
    commands: Mapping[str, Callable[[Sequence[str]], int]] = {
        "show": show,
        "diff": show_diff,
        "export": export,
        "import": import_library,
        "rollback": rollback,
    }
    if args and (args[0] in ("-h", "--help") or (args[0] in commands and {"-h", "--help"} & {*args[1:]})):
        _tell(USAGE)
        return 0
    if not args or args[0] not in commands:
        raise CommandError(f"learngraph library {' | '.join(commands)}: got {' '.join(args) or 'nothing'}")
    return commands[args[0]](args[1:])


def _positional_args(args: Sequence[str], form: str, *counts: int) -> Sequence[str]:
    """The arguments of a command, none of which is a flag."""
    flags = [arg for arg in args if arg.startswith("-")]
    if flags or len(args) not in counts:
        raise CommandError(f"usage: learngraph library {form}; got {' '.join(args) or 'nothing'}")
    return args


def _first_library(place: str) -> str:
    """What is looked at when the folder of a whole run is named, with libraries of several arms and seeds: the first of them."""
    settings = Path(place, "settings.json")
    if not settings.is_file() or Path(place, "library.jsonl").exists():
        return place
    try:
        asked = json.loads(settings.read_text(encoding="utf-8"))
        first = Path(place, f"{next(iter(asked['arms'])).replace(':', '-')}-s{asked['seeds'][0]}", "library.jsonl")
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return place  # of another kind, or damaged
    if not first.exists():
        return place
    others = [str(path.parent) for path in sorted(Path(place).glob("*/library.jsonl")) if path != first]
    if others:
        sys.stderr.write(f"{first.parent}; there are also {_shorten_list(others)}\n")
    return str(first)


def _shorten_list(names: Sequence[object], limit: int = 3) -> str:
    """The first ones, and how many more there are."""
    told = ", ".join(map(str, names[:limit]))
    return f"{told} and {more} more" if (more := len(names) - limit) > 0 else told


def show(args: Sequence[str]) -> int:
    """the lessons of a version"""
    place, *named = _positional_args(args, "show PATH [VERSION]", 1, 2)
    place = _first_library(place)
    source = open_library(place)
    if isinstance(source, Library):
        if named:
            raise _no_versions_error(place, named[0])
        _tell(_lessons_text(source))
        return 0
    if not source.names():
        _tell(f"{find_library(place)} holds no version yet")
        return 0
    name = named[0] if named else source.head
    held = source.at(name)
    made = f", made from {source.parent(name)}" if source.parent(name) else ""
    _tell(f"{name}{' (holds)' if name == source.head else ''}{made}{_reason_suffix(source.why(name))}\n{_lessons_text(held)}")
    if rulings := source.rulings(name):
        _tell(f"\nEdits that made it, {sum(r.accepted for r in rulings)} of {len(rulings)} accepted:")
        for ruling in rulings:
            about = ", ".join(map(str, ruling.edit.lessons)) or ruling.lesson
            reason = f": {ruling.reason}" if ruling.reason else ""
            _tell(
                f"  {'yes' if ruling.accepted else 'no '} {ruling.edit.op or 'unreadable'} {about} {ruling.edit.text}{reason}"
            )
    if not named:
        _tell("\nVersions:")
        for one in source.names():
            _tell(f"  {one}: {len(source.at(one).lessons)} lessons{' (holds)' if one == source.head else ''}")
    return 0


def _reason_suffix(why: str) -> str:
    return f": {why}" if why else ""


def _lessons_text(held: Library) -> str:
    if not held.lessons:
        return "no lessons"
    told = ""
    for lesson in held.lessons:
        learned = f"learned on {_shorten_list(lesson.problems)}; " if lesson.problems else ""
        votes = f"+{lesson.helpful} -{lesson.harmful}, shown {lesson.shown} times"
        told += f"[{lesson.id}] {lesson.text}\n     {learned}{votes}\n"
    return told.rstrip("\n")


def _no_versions_error(place: str, name: str) -> LibraryError:
    return LibraryError(f"{place} is one library and has no version {name!r}; a .jsonl file or a run folder has versions")


def show_diff(args: Sequence[str]) -> int:
    """what changed between two versions"""
    place, *named = _positional_args(args, "diff PATH [OLD NEW]", 1, 3)
    place = _first_library(place)
    source = open_library(place)
    if isinstance(source, Library):
        raise LibraryError(
            f"{place} is one library, with nothing to compare it with; a .jsonl file or a run folder has versions"
        )
    new = named[1] if named else source.head
    old = named[0] if named else source.parent(new) if new else ""
    if not old:
        raise LibraryError(f"{new or place} was made from no other version; name two of {', '.join(source.names()) or 'none'}")
    told = diff(source.at(old), source.at(new))
    _tell(f"from {old} to {new}:\n{told}".rstrip("\n") if told else f"{old} and {new} are the same")
    return 0


@dataclass(frozen=True)
class LibraryExportOptions:
    """Which version."""

    version: str = ""
    """Its name; the one that holds if not given."""


def export(args: Sequence[str]) -> int:
    """a version as YAML"""
    form = "export PATH FILE.yaml [--version V]"
    place, file = _positional_args(args[:2], form, 2)
    options: LibraryExportOptions = parse_flags(ExportOptions, args[2:], f"learngraph library {form}")
    place = _first_library(place)
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
    _write_library(Path(file), held)
    _tell(f"{name}: {len(held.lessons)} lessons written to {file}")
    return 0


def _write_library(file: Path, held: Library) -> None:
    """Whole or not at all: an agent may be reading it."""
    if file.suffix not in (".yaml", ".yml"):
        raise CommandError(f"{file} is to be a YAML file: its name ends in .yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_text(held.to_yaml(), encoding="utf-8")
    part.replace(file)


def import_library(args: Sequence[str]) -> int:
    """a YAML file as the version that holds"""
    file, place = _positional_args(args, "import FILE.yaml PATH", 2)
    if not Path(file).is_file() or Path(file).suffix == ".jsonl":
        raise LibraryError(f"{file} is not a YAML file; 'learngraph library export' makes one")
    target = Path(place)
    if target.suffix in (".yaml", ".yml"):
        held = _read_library(file)
        _write_library(target, held)
        _tell(f"{len(held.lessons)} lessons written to {place}")
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
            _tell(f"{file} says what {head} says; nothing was changed")
            return 0
        number = sum(name.startswith("edited/") for name in versions.names())
        name = versions.put(f"edited/{number}", held, parent=head, why=f"imported from {Path(file).name}")
        versions.move(name, "import")
        versions.sync()
    _tell(f"{name} holds now: {len(held.lessons)} lessons\n{diff(before, held)}".rstrip("\n"))
    return 0


@contextmanager
def _open_for_writing(path: Path) -> Iterator[LibraryVersions]:
    """The versions of a file, for this process alone: no learner may be at work on them."""
    from filelock import FileLock, Timeout

    with ExitStack() as stack:
        if path.name == "library.jsonl":
            try:
                stack.enter_context(FileLock(path.parent / "owner.lock", timeout=0))
            except Timeout:
                raise LibraryError(f"{path} is being written to by a run; try again when it has ended or was stopped") from None
        yield stack.enter_context(closing(LibraryVersions(path)))


def _read_library(file: str, taken: int = 0) -> Library:
    """What a person wrote."""
    held = open_library(file, taken)
    assert isinstance(held, Library)
    return held


def rollback(args: Sequence[str]) -> int:
    """an earlier version holds again"""
    place, name = _positional_args(args, "rollback PATH VERSION", 2)
    path = find_library(place)
    if path.suffix != ".jsonl":
        raise _no_versions_error(place, name)
    with _open_for_writing(path) as versions:
        was = versions.head
        versions.rollback(name)
        versions.sync()
        told = diff(versions.at(was), versions.at(name))
    _tell(f"{name} holds now, {was} did before\n{told}".rstrip("\n"))
    return 0


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
