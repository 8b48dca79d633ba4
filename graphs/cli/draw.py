"""`learngraph draw METHOD --out FILE`: the picture of a method's graph, without a model or an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tyro.conf import Positional

from ..wiring.flags import CommandError, parse_flags
from .method_settings import method_settings

__all__ = ["SERVED_GRAPHS", "blueprint", "draw"]

SERVED_GRAPHS: Mapping[str, str] = {
    "claas-serving": "a chat turn that waits for feedback; what learngraph serve answers with",
    "claas-learning": "a gradient step on what was said, with a gate; what learngraph serve learns with",
}
"""Graphs that are served, not run on an environment."""


@dataclass(frozen=True)
class DrawOptions:
    """Options of `learngraph draw`: the graph and the picture."""

    method: Positional[str]
    """The method, with a preset if it is not the default: `jitrl`, `adamem:high`, `claas-serving`."""
    out: Path
    """The output: a picture (.svg, .png), or Mermaid text (.mmd)."""
    run: bool = False
    """Draw the graph of a whole run; that of one episode if not given."""


def draw(args: Sequence[str]) -> int:
    """Draw the graph of a method. Returns the exit status."""
    from .. import claas
    from ..methods import METHODS, find_method
    from ..wiring import picture
    from ..wiring import run as runs

    if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
        raise CommandError(
            f"learngraph draw METHOD --out FILE: which method? there are {', '.join([*METHODS, *SERVED_GRAPHS])}"
        )
    options = parse_flags(
        DrawOptions,
        ["--out" if arg == "-o" else arg for arg in args],
        "learngraph draw",
        "Draw the graph of a method, without loading a model or an environment.",
    )
    if options.method in SERVED_GRAPHS:
        graph = claas.blueprint(options.method)
    else:
        graph = blueprint(options.method)
        if options.run and not find_method(options.method).has_training_phase:  # its graph is a run's already
            graph = runs.build(graph)
    picture.save(graph, options.out)
    print(options.out)
    return 0


def blueprint(method: str, settings: Any = None) -> Any:
    """The graph of a method's episode, built without a model, an environment or a bank: to look at.

    Args:
        method: its name, with a preset or an ablation if wanted.
        settings: its settings; those that the name stands for if not given.
    """
    from ...memory.storage.journal import Journal
    from ...nodes.act.policies import LocalPolicy, act_policy
    from ...nodes.prompt import Prompt
    from ..methods import find_method
    from ..wiring.parts import MethodInputs

    settings = method_settings(method) if settings is None else settings
    # Files change nothing in the picture, and may not be here.
    settings = replace(settings, **{name: "" for name in ("bank", "embedder") if hasattr(settings, name)})
    absent: Any = None
    prompt = Prompt.load("act/score")
    inputs = MethodInputs(
        absent,
        Journal(),
        make_policy=lambda seen: LocalPolicy(absent, seen, prompt),
        model=cast(Any, object()),  # never asked
        make_writing_policy=lambda seen, style: act_policy(absent, seen),
    )
    return find_method(method).build(inputs, settings)
