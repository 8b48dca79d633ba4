"""One flag name means one thing in every command: one type, and in the options of commands also the same first words of help."""

import ast
import inspect
import re
import textwrap
from collections import defaultdict
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import pytest
from tyro.conf import Positional

from learngraph.graphs.cli.draw import DrawOptions
from learngraph.graphs.cli.explain import ExplainOptions
from learngraph.graphs.cli.library import LibraryExportOptions
from learngraph.graphs.cli.mcp import McpOptions
from learngraph.graphs.cli.memory import MemoryPruneOptions
from learngraph.graphs.cli.nodes import NodesOptions
from learngraph.graphs.cli.serve import ServeOptions
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.training_free.options import LearningOptions
from learngraph.graphs.methods import METHODS
from learngraph.nodes.arguments import Range

COMMANDS: dict[str, tuple[type, ...]] = {
    "run": (RunOptions,),
    **{f"run {name}": (method.settings,) for name, method in METHODS.items()},
    "run training-free-grpo (options)": (LearningOptions,),
    "serve": (ServeOptions,),
    "explain": (ExplainOptions,),
    "draw": (DrawOptions,),
    "list nodes": (NodesOptions,),
    "mcp": (McpOptions,),
    "memory prune": (MemoryPruneOptions,),
    "library export": (LibraryExportOptions,),
}


SETTINGS = {method.settings for method in METHODS.values()}
"""Settings of a method. Their names are terms of the field: `k` and `gamma` mean what the method's paper says."""


class Flag(NamedTuple):
    """A flag of a command."""

    command: str
    kind: str
    meaning: str


@cache
def documents(form: type) -> dict[str, str]:
    """Field -> the text below it, in the class that declares it last."""
    found: dict[str, str] = {}
    for owner in reversed([c for c in form.__mro__ if is_dataclass(c)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
                found[statement.target.id] = " ".join(str(text).split())
    return found


def kind(hint: Any) -> str:
    """A type without None and its range, and without the choices of a Literal: those belong to the command."""
    parts = [part for part in get_args(hint) if part is not type(None) and not isinstance(part, Range)]
    if 1 == len(parts) < len(get_args(hint)):
        return kind(parts[0])
    return "Literal" if str(get_origin(hint)) == "typing.Literal" else str(hint)


def main_clause(text: str) -> str:
    """The text up to the first full stop, semicolon, colon or comma."""
    return re.split(r"[.;:,](?:\s|$)", text)[0]


def flags(command: str, form: type) -> dict[str, Flag]:
    found = {}
    hints = get_type_hints(form, include_extras=True)
    for one in (one for one in fields(form) if one.init):
        if is_dataclass(hints[one.name]):
            found |= flags(command, hints[one.name])
        elif Positional not in get_args(hints[one.name]):
            found[one.name] = Flag(command, kind(hints[one.name]), main_clause(documents(form)[one.name]))
    return found


def table(settings: bool) -> dict[str, list[Flag]]:
    """Flag -> what it is in every command that has it; with `settings` those of methods, too."""
    found: dict[str, list[Flag]] = defaultdict(list)
    for command, forms in COMMANDS.items():
        for form in forms:
            if form in SETTINGS and not settings:
                continue
            for name, flag in flags(command, form).items():
                found[f"--{name.replace('_', '-')}"].append(flag)
    return {name: held for name, held in found.items() if len(held) > 1}


@pytest.mark.parametrize("name", sorted(table(settings=True)))
def test_a_flag_has_one_type_in_every_command(name: str) -> None:
    found = table(settings=True)[name]
    assert len({flag.kind for flag in found}) == 1, found


@pytest.mark.parametrize("name", sorted(table(settings=False)))
def test_an_option_means_one_thing_in_every_command(name: str) -> None:
    found = table(settings=False)[name]
    assert len({flag.meaning for flag in found}) == 1, found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_says_what_it_is(command: str) -> None:
    for form in COMMANDS[command]:
        for name, flag in flags(command, form).items():
            assert flag.meaning, f"{form.__name__}.{name}"
