"""Command lines: flags become the fields of a dataclass, and a mistake becomes one sentence."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from ...memory.errors import UserError

__all__ = [
    "DRAW_OPTIONS",
    "REQUEST_OPTIONS",
    "CommandError",
    "ModelOptions",
    "SharedOptions",
    "parse_flags",
    "parse_options_and_settings",
    "run_subcommand",
]

Options = TypeVar("Options")
Settings = TypeVar("Settings")


class CommandError(UserError, ValueError):
    """The command line cannot be understood."""

    fails_again = True


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of every command that asks a model."""

    base_url: str | None = None
    """The server behind the model, for `openai:MODEL`."""
    request_timeout: float = 600.0
    """Seconds that one request to the model may take, for `openai:MODEL`."""
    retries: int = 4
    """Further tries of a request that was rate-limited, failed or timed out, for `openai:MODEL`."""
    model_temperature: float | None = None
    """The temperature at which a model that writes draws its words. If not given, the one of the method's preset, else the model's
    own. (--temperature is of the draw among actions whose logits are known.)"""
    max_tokens: int | None = None
    """Longest reply of a model that writes, in tokens; its own if not given."""
    model_seed: int | None = None
    """The seed of the model's own draws; none is sent if not given."""
    reasoning_effort: str | None = None
    """The effort of a model that reasons, for `openai:MODEL`: `minimal`, `low`, `medium`, `high`, or what the server knows."""
    extra_body: str | None = None
    """Further fields of every request, for `openai:MODEL`: a JSON object such as `{"top_k": 20}`."""

    def __post_init__(self) -> None:
        least: Mapping[str, float] = {"retries": 0, "model_temperature": 0, "max_tokens": 1}
        for name, low in least.items():
            given = getattr(self, name)
            if given is not None and not low <= given < math.inf:
                raise CommandError(f"--{name.replace('_', '-')} is at least {low:g}, got {given:g}")
        if not 0 < self.request_timeout < math.inf:
            raise CommandError(f"--request-timeout is more than 0 seconds, got {self.request_timeout:g}")
        self._extra_fields()

    def _extra_fields(self) -> dict[str, Any] | None:
        """The value of --extra-body."""
        if self.extra_body is None:
            return None
        try:
            found = json.loads(self.extra_body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise CommandError(f"""--extra-body is a JSON object such as '{{"top_k": 20}}', got {self.extra_body!r}""")
        return found

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of `tools.models.models.open_model`, by name."""
        return {
            "base_url": self.base_url,
            "timeout": self.request_timeout,
            "max_retries": self.retries,
            "temperature": self.model_temperature,
            "max_tokens": self.max_tokens,
            "seed": self.model_seed,
            "reasoning_effort": self.reasoning_effort,
            "extra_body": self._extra_fields(),
        }


REQUEST_OPTIONS = ("request_timeout", "retries")
"""Options of requests that change no result."""
COST_OPTIONS = ("token_budget", "dollar_budget", "price_in", "price_out", "dry_run")
"""Options of costs, which change no result."""
DRAW_OPTIONS = ("model_temperature", "max_tokens", "model_seed", "reasoning_effort", "extra_body")
"""Options of requests that results depend on."""


@dataclass(frozen=True)
class SharedOptions(ModelOptions):
    """The options of everything that `learngraph run` plays."""

    env: str = "twx:coin"
    """The environment: `toy`, `twx:GAME`, `jericho:GAME`, `math`, `reasoning:NAME` (see `learngraph list`)."""
    model: str = "pocket"
    """The model: `pocket`, `local:PATH_OR_NAME`, `openai:MODEL` (see `learngraph list`)."""
    seeds: str = "5"
    """Number of seeds, or a list of them: `5` means `0,1,2,3,4`; `7,` means seed 7 alone."""
    compare: tuple[str, ...] = ()
    """The methods that it is compared with: `METHOD`, or with a preset `METHOD:PRESET`."""
    horizon: int | None = None
    """Steps after which an episode ends; the environment's own limit if not given."""
    window: int | None = None
    """Tokens that the model can read at once; a local model knows its own limit, any other is taken to have 32768."""
    prompts: Path | None = None
    """A directory with prompt files. They replace those of the same name."""
    out: Path | None = None
    """The output: the run folder; made from the settings under `runs/` if not given. The same command continues it."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes that work at the same time."""
    engine: str = "processes"
    """Where they run: `processes` of this machine, `ray` (a Ray cluster on it, or $RAY_ADDRESS), or `ray://HOST:PORT`."""
    concurrency: int | None = None
    """Work that each process waits for at the same time: runs, or in training-free-grpo calls of a model. If not given, 16 for a model
    behind an API, and 1 for a model in this process, which can do one thing at a time."""
    token_budget: int = 0
    """Tokens that this folder may pay for, read and written, of all seeds and methods. Then the run stops with what it has; with a
    larger budget the same command goes on. It is asked before each call: up to --workers times --concurrency calls in flight may
    exceed it. 0: no limit."""
    dollar_budget: float = 0.0
    """The same in dollars. 0: no limit."""
    price_in: float = 0.0
    """Dollars per million tokens that the model reads."""
    price_out: float = 0.0
    """Dollars per million tokens that it writes."""
    dry_run: bool = False
    """Ask no model: say how many calls, tokens and dollars the run would take, and on what assumptions."""
    json: bool = False
    """Print JSON, one object a line, and nothing else."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("token_budget", "dollar_budget", "price_in", "price_out"):
            if not 0 <= (given := getattr(self, name)) < math.inf:
                raise CommandError(f"--{name.replace('_', '-')} is at least 0, got {given:g}")
        if self.dollar_budget and not self.has_prices:
            raise CommandError(
                f"--dollar-budget {self.dollar_budget:g} needs --price-in and --price-out, in dollars per million tokens"
            )

    @property
    def has_prices(self) -> bool:
        """True if a price of the model is known."""
        return bool(self.price_in or self.price_out)


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
    options: type[Options], settings: Settings, args: Sequence[str], prog: str, about: str, title: str
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

    Raises:
        CommandError: an argument is missing, unknown or of the wrong type.
    """
    if twice := {one.name for one in fields(cast(Any, options))} & {one.name for one in fields(cast(Any, settings))}:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(twice))
        raise CommandError(
            f"{type(settings).__name__} has fields of the names {flags}, which {prog} has too; rename the fields"
        )
    needed = any(one.default is one.default_factory for one in fields(cast(Any, options)))  # both MISSING
    hints = get_type_hints(type(settings))
    groups = [name for name, hint in hints.items() if is_dataclass(hint)]
    settings_type: Any = type(settings)
    options_type: Any = options
    titles = {"settings options": title, "options options": "options of the command"}
    if groups:  # names of groups are part of flags, then those of the two parts must be empty
        from tyro.conf import arg

        settings_type, options_type = Annotated[settings_type, arg(name="")], Annotated[options_type, arg(name="")]
        titles = {f"{name.replace('_', '-')} options": f"{title}, {name}" for name in groups}
    parts: list[Any] = [
        ("settings", settings_type, field(default_factory=lambda: settings)),
        ("options", options_type) if needed else ("options", options_type, field(default_factory=options)),
    ]
    form = make_dataclass("Form", parts, kw_only=True)
    parsed: Any = _parse(form, args, prog, about, titles, grouped=bool(groups))
    return parsed.options, parsed.settings


class _Capture(StringIO):
    """Holds what tyro prints. It draws boxes only where the encoding is this one."""

    encoding = "utf-8"


def _parse(
    form: type[Options], args: Sequence[str], prog: str, about: str, titles: Mapping[str, str], grouped: bool = False
) -> Options:
    import tyro

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
            sys.stdout.write(_retitle(shown.getvalue(), titles))
            raise
        raise CommandError(_mistake(wrong.getvalue(), prog)) from None
    if unknown and not unknown[0].startswith("-"):
        raise CommandError(f"{prog} takes no further arguments, got {unknown[0]}")
    if unknown:
        raise CommandError(f"{prog}: there is no {unknown[0]}; there are {', '.join(_flags(form, grouped))}")
    result: Options = parsed
    return result


def _mistake(text: str, prog: str) -> str:
    """The first part of tyro's error message, which is a box, as one sentence."""
    lines = [line[2:-1].rstrip() for line in text.splitlines() if line.startswith("│")]
    lines = lines[: next((i for i, line in enumerate(lines) if line and not line.strip("─")), len(lines))]
    if not lines:
        return f"{prog}: {text}"
    if not lines[0].startswith("Missing from"):
        return f"{prog}: {' '.join(line.strip() for line in lines)}"
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

    Args:
        commands: name -> what takes the arguments after it.
        args: the arguments, the name first.
        usage: the text of `--help`; its first line is part of the error.

    Raises:
        CommandError: no such command.
    """
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(f"{usage}\n")
        return 0
    if not args or args[0] not in commands:
        raise CommandError(f"{usage.partition(chr(10))[0]}; got {' '.join(args) or 'nothing'}")
    return commands[args[0]](args[1:])
