"""Flags into a dataclass: how commands read their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from io import StringIO
from typing import Any, get_type_hints

from ...memory.errors import UserError

__all__ = ["CommandError", "parse_flags", "split_positional"]


class CommandError(UserError, ValueError):
    """The command line cannot be understood."""


def parse_flags(form: Any, args: Sequence[str], prog: str, about: str = "", group_prefixes: bool = False) -> Any:
    """Flags into a dataclass; mistakes become one line.

    `group_prefixes`: flags of dataclasses within the form's fields begin with the name of their group: `--loss.learning-rate`.
    """
    import tyro

    said = StringIO()
    try:
        with redirect_stderr(said):
            parsed, unknown = tyro.cli(
                form,
                args=list(args),
                prog=prog,
                description=about or None,
                return_unknown_args=True,
                config=() if group_prefixes else (tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as end:
        if not end.code:
            raise
        inside = [line.strip("│ ").strip() for line in said.getvalue().splitlines() if line.startswith("│")]
        upto = next((i for i, line in enumerate(inside) if not line.strip("─")), len(inside))
        raise CommandError(f"{prog}: {' '.join(inside[:upto]) or said.getvalue()}") from None
    if unknown:
        raise CommandError(f"{prog}: there is no {unknown[0]}; there are {', '.join(_flags(form, group_prefixes))}")
    return parsed


def split_positional(args: Sequence[str], prog: str) -> tuple[str, Sequence[str]]:
    """The first argument, which is no flag, and the others.

    Raises:
        CommandError: there is none.
    """
    if not args or args[0].startswith("-"):
        raise CommandError(f"usage: {prog}; got {' '.join(args) or 'nothing'}")
    return args[0], args[1:]


def _flags(form: Any, group_prefixes: bool, prefix: str = "", level: int = 0) -> list[str]:
    hints = get_type_hints(form)
    flags = []
    for one in fields(form):
        name = f"{prefix}{one.name.replace('_', '-')}"
        if is_dataclass(hint := hints[one.name]):
            flags += _flags(hint, group_prefixes, f"{name}." if group_prefixes and level else "", level + 1)
        else:
            flags.append(f"--{name}")
    return flags
