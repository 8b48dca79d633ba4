"""Command lines: flags become the fields of a dataclass, and a mistake becomes one sentence."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import field, fields, is_dataclass, make_dataclass
from io import StringIO
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from ...memory.errors import CommandError, did_you_mean

__all__ = ["parse_flags"]

Options = TypeVar("Options")
Settings = TypeVar("Settings")


def parse_flags(form: type[Options], args: Sequence[str], prog: str, about: str = "") -> Options:
    """The dataclass that the arguments describe. `--help` prints the flags and ends the process.

    Args:
        form: the dataclass; its fields marked `tyro.conf.Positional` are arguments without a flag.
        args: the arguments.
        prog: the command, as errors and help call it.
        about: what the command does; help prints it first.

    Raises:
        CommandError: an argument is missing, unknown or of the wrong type.
    """
    return _parse(form, args, prog, about, {})


def parse_options_and_settings(
    options: type[Options],
    settings: Settings,
    args: Sequence[str],
    prog: str,
    about: str,
    title: str,
    headings: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Options, Settings]:
    """The options and the settings that the arguments describe; their flags lie side by side.

    A dataclass within the settings is a group, whose flags begin with its name: `--loss.learning-rate`.

    Args:
        options: the dataclass of the options.
        settings: the settings where no flag says something else. Help shows them first.
        args: the arguments.
        prog: the command, as errors and help call it.
        about: what the command does; help prints it first.
        title: what help calls the settings, such as `JitRL: settings of the method`.
        headings: heading -> names of the options under it in `--help-all`; `--help` shows those of the first alone, and names the
            settings. If not given, `--help` shows all.
    """
    if twice := {one.name for one in fields(cast(Any, options))} & {one.name for one in fields(cast(Any, settings))}:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(twice))
        raise CommandError(
            f"{type(settings).__name__} has fields of the names {flags}, which {prog} has too; rename the fields"
        )
    groups = [name for name, hint in get_type_hints(type(settings)).items() if is_dataclass(hint)]
    titles = {"settings options": title, "options options": "options of the command"}
    text = None if {"-h", "--help", "--help-all"} & {*args} else ""  # tyro searches help for a third of its time
    if groups:  # names of groups are part of flags, then those of the two parts must be empty
        titles = {f"{name.replace('_', '-')} options": f"{title}, {name}" for name in groups}
    from tyro.conf import arg

    mark = arg(name="" if groups else None, help=text)
    settings_type, options_type = Annotated[type(settings), mark], Annotated[options, mark]
    parts: list[Any] = [("settings", settings_type, field(default_factory=lambda: settings)), ("options", options_type)]
    form = make_dataclass("Form", parts, kw_only=True)
    parsed: Any = _parse(form, args, prog, about, titles, grouped=bool(groups), headings=headings)
    return parsed.options, parsed.settings


class _Capture(StringIO):
    """Holds what tyro prints. It draws boxes only where the encoding is this one."""

    encoding = "utf-8"


def _parse(
    form: type[Options],
    args: Sequence[str],
    prog: str,
    about: str,
    titles: Mapping[str, str],
    grouped: bool = False,
    headings: Mapping[str, Sequence[str]] | None = None,
) -> Options:
    import tyro

    shows_all = "--help-all" in args
    args = [
        "--help" if arg == "--help-all" else "None" if arg == "none" and before.endswith("temperature") else arg
        for before, arg in zip(["", *args], args, strict=False)
    ]
    shown, wrong = _Capture(), _Capture()
    try:
        with redirect_stdout(shown), redirect_stderr(wrong):
            parsed, unknown = tyro.cli(
                form,
                args=list(args),
                prog=prog,
                description=about or None,
                return_unknown_args=True,
                config=(tyro.conf.PositionalMetavarFromFieldName, *(() if grouped else (tyro.conf.OmitArgPrefixes,))),
            )
    except SystemExit as end:
        if not end.code:
            text = _retitle(shown.getvalue(), titles)
            sys.stdout.write(_under_headings(text, headings, shows_all) if headings else text)
            raise
        raise CommandError(_mistake(wrong.getvalue(), prog)) from None
    if unknown and not unknown[0].startswith("-"):
        raise CommandError(f"{prog} takes no further arguments, got {unknown[0]}")
    if unknown:
        known = _flags(form, grouped)
        raise CommandError(f"{prog}: there is no {unknown[0]}{did_you_mean(unknown[0], known, 'there are')}")
    if empty := next(_empty_flags(parsed, args), None):
        raise CommandError(f"{prog}: {empty} names nothing; give one or more, or leave it out")
    result: Options = parsed
    return result


def _empty_flags(parsed: Any, args: Sequence[str]) -> Iterator[str]:
    """The flags of several values that stand there with none, and so would say nothing."""
    for one in fields(parsed):
        value, flag = getattr(parsed, one.name), f"--{one.name.replace('_', '-')}"
        if is_dataclass(value):
            yield from _empty_flags(value, args)
        elif value == () == one.default and flag in args:
            yield flag


def _mistake(text: str, prog: str) -> str:
    """The first part of tyro's error message, which is a box, as one sentence."""
    lines = [line[2:-1].rstrip() for line in text.splitlines() if line.startswith("│")]
    lines = lines[: next((i for i, line in enumerate(lines) if line and not line.strip("─")), len(lines))]
    if not lines:
        return f"{prog}: {text}"
    if not lines[0].startswith("Missing from"):
        said = re.sub(r"^Error parsing [A-Z]\w*: (?:learngraph \S+ )?", "", " ".join(line.strip() for line in lines))
        said = re.sub(r"^Error parsing (--\S+): .*: ('.*')$", r"\1 takes a number, got \2", said)
        return f"{prog}: {said}"
    # Each missing argument stands in a line of its own, with its help indented below.
    told = "".join(f"; {line.strip()}:" if re.match(r" {4}\S", line) else f" {line.strip()}" for line in lines[1:])
    return f"{prog} needs {told.removeprefix('; ').replace(' (required)', '')}"


def _retitle(text: str, titles: Mapping[str, str]) -> str:
    """A help text whose boxes bear other titles: tyro makes them of field names."""
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        if (box := re.match(r"╭─ (.+?) ─+╮", line)) and box[1] in titles:
            lines[i] = f"╭─ {titles[box[1]]} ".ljust(box.end() - 1, "─") + "╮\n"
    return "".join(lines)


def _under_headings(text: str, headings: Mapping[str, Sequence[str]], shows_all: bool) -> str:
    """A help text whose options of the command stand under headings; else those of the first heading, and the settings' names."""
    top, *boxes = re.split(r"(?=^╭─ )", text, flags=re.MULTILINE)
    # Beside groups of settings, tyro lists the options of the command with its own, in a box of that title.
    options = max((box for box in boxes if box.startswith("╭─ options ")), key=len)
    first, *lines = options.rstrip().splitlines()[:-1]
    entries: dict[str, list[str]] = {}
    for line in lines:
        if named := re.match(r"│ (?:--\S+, )*--(?:no-)?([\w-]+)", line):
            entries[named[1].replace("-", "_")] = []
        if entries:
            entries[[*entries][-1]].append(line)
    others = [name for name in entries if not any(name in names for names in headings.values())]
    chosen = [(title, names) for title, names in headings.items()] + ([("more", others)] if others else [])
    found = []
    for title, names in chosen if shows_all else chosen[:1]:
        rows = [line for name in names for line in entries.get(name, ())]
        found.append(
            "\n".join([f"╭─ {title} ".ljust(len(first) - 1, "─") + "╮", *rows, "╰" + "─" * (len(first) - 2) + "╯", ""])
        )
    settings = [box for box in boxes if box is not options and not box.startswith("╭─ options ")]
    if shows_all:
        return "".join([top, *settings, *found])
    flags = [flag for box in settings for flag in re.findall(r"^│ --([\w.-]+)", box, flags=re.MULTILINE)]
    names_of = dict.fromkeys(re.sub(r"\..*", ".*", flag) for flag in flags)  # of a group, its name alone
    count = sum(map(len, headings.values())) + len(others) - len(chosen[0][1])
    told = f"settings of the method: {', '.join(names_of) or 'none'}\n\n--help-all tells these, and {count} more options.\n"
    return "".join([top, *found, "\n", told])


def _flags(form: Any, grouped: bool, prefix: str = "", level: int = 0) -> list[str]:
    """The flags of a dataclass; `grouped`: those of groups at level 1 and below begin with the group's name."""
    from tyro.conf import Positional

    hints = get_type_hints(form, include_extras=True)
    flags = []
    for one in fields(form):
        name = f"{prefix}{one.name.replace('_', '-')}"
        hint, *markers = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else [hints[one.name]]
        if is_dataclass(hint):
            flags += _flags(hint, grouped, f"{name}." if grouped and level else "", level + 1)
        elif Positional not in markers:
            flags.append(f"--{name}")
    return flags


def run_subcommand(commands: Mapping[str, Callable[[Sequence[str]], int]], args: Sequence[str], usage: str) -> int:
    """The exit status of the command that the first argument names. `--help` prints the usage.

    Commands are looked up by hand, since tyro's subcommands would have to import all of them to show one.
    """
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(f"{usage}\n")
        return 0
    if not args or args[0] not in commands:
        raise CommandError(f"{usage.partition(chr(10))[0]}; got {' '.join(args) or 'nothing'}")
    return commands[args[0]](args[1:])
