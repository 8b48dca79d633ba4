"""`learngraph draw METHOD`: the drawing of a method's graph, without a model or an environment, or of any graph of the user's."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ...memory.errors import CommandError
from ..arms import SERVED_GRAPHS, load_graph
from .flags import parse_flags

__all__ = ["draw"]


@dataclass(frozen=True)
class DrawOptions:
    """Options of `learngraph draw`: the graph and the picture."""

    graph: Positional[str]
    """A method, with a preset if it is not the default (`jitrl`, `adamem?mode=high`, `claas-serving`), or a graph of yours: `MODULE:NAME`
    or `FILE.py:NAME`, where NAME is a graph, a builder, a method or a function that returns one."""
    out: Path | None = None
    """The output: a picture (.svg, .png), or Mermaid text (.mmd). Mermaid text is printed if not given."""
    run: bool = False
    """Draw the graph of a whole run; that of one episode if not given."""


def draw(args: Sequence[str]) -> int:
    """Draw a graph. Returns the exit status."""
    from ..methods import METHODS
    from ..wiring import flow, picture

    if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
        raise CommandError(
            f"learngraph draw METHOD --out FILE: which method? there are {', '.join([*METHODS, *SERVED_GRAPHS])}; "
            "or MODULE:NAME for a graph of your own"
        )
    options = parse_flags(
        DrawOptions,
        ["--out" if arg == "-o" else arg for arg in args],
        "learngraph draw",
        "Draw the graph of a method, without loading a model or an environment, or any graph of yours.",
    )
    graph = load_graph(options.graph, run=options.run)
    if options.out is None:
        print(flow.to_mermaid(graph), end="")
    else:
        picture.save(graph, options.out)
        print(options.out)
    return 0
