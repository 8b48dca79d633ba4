"""`learngraph list`: the methods, environments and models, and what each still needs here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING

from ...memory.errors import CommandError, did_you_mean
from ..arms import SERVED_GRAPHS
from .flags import parse_flags

if TYPE_CHECKING:
    from ..methods import Method

__all__ = []


@dataclass(frozen=True)
class ListOptions:
    """The list has no options."""


def list_all(args: Sequence[str]) -> int:
    """Print the methods, environments and models, or the nodes. Returns the exit status."""
    if args[:1] == ["nodes"]:
        from .nodes import list_nodes

        return list_nodes(args[1:])
    from ...tools.environments.catalogue import FAMILIES
    from ...tools.models.models import MODELS
    from ..methods import METHODS

    if args and not args[0].startswith("-"):
        raise CommandError(f"learngraph list takes nodes or nothing, got {args[0]}{did_you_mean(args[0], ['nodes'])}")
    parse_flags(
        ListOptions,
        args,
        "learngraph list",
        "List the methods, environments and models, with what each needs installed; `learngraph list nodes` lists the nodes.",
    )
    key = "" if "OPENAI_API_KEY" in os.environ else "$OPENAI_API_KEY"
    sections: Mapping[str, Iterable[tuple[str, str, str]]] = {
        "methods": [(name, method.summary, _method_needs(method)) for name, method in METHODS.items()],
        "served": [(name, text, "") for name, text in SERVED_GRAPHS.items()],
        "environments": [(family.pattern(name), family.description(), family.missing()) for name, family in FAMILIES.items()],
        "models": [
            (name, f"{model.summary}; needs {model.needs}", key if name == "openai" else "") for name, model in MODELS.items()
        ],
    }
    width = max(60, get_terminal_size().columns) if sys.stdout.isatty() else 10_000  # a row stays a line for `grep`
    for title, rows in sections.items():
        print(title)
        for name, text, missing in rows:
            said = f"  {name:<20} {text}" + (f"  [not here: {missing}]" if missing else "")
            print(*wrap(said, width, subsequent_indent=" " * 23, break_long_words=False, break_on_hyphens=False), sep="\n")
    return 0


def _method_needs(method: Method) -> str:
    """The command that installs the packages a method still needs; empty if it needs none."""
    lacks = method.trains_weights and not (find_spec("trl") and find_spec("peft"))
    return "pip install 'learngraph[train]'" if lacks else ""
