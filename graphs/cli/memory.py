"""`learngraph memory show | export | import | prune | library`: the trajectories that agents remember, and their lessons."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tyro.conf import Positional

from ...memory.errors import CommandError, plural
from ..experiments.folder import memory_location
from ..experiments.progress import say
from .flags import parse_flags, run_subcommand
from .memory_import import find_memories, import_file

__all__ = ["memory"]

USAGE = """\
usage: learngraph memory show PATH | export PATH FILE | import FILE --into PATH | prune PATH --keep-last N | library --help

PATH is a memory, or (but for import) a folder or server with several. FILE for import holds trajectories, or conversations of
other tools (`import FILE|URL --from langsmith|langfuse|mlflow|otlp|openai`) that an agent learns from. A run with `--memory DIR` keeps them in
DIR/<method>-s<seed>, a run with `--memory http://host:port` in http://host:port/<method>-s<seed>, any other in its folder.
With `--memory postgresql://host/database` they are in postgresql://host/database/<method>-s<seed>."""


def memory(args: Sequence[str]) -> int:
    """Show, export, import or prune memories. Returns the exit status."""
    from .library import library

    commands = {"show": show, "export": export, "import": import_file, "prune": prune, "library": library}
    return run_subcommand(commands, args, USAGE)


@dataclass(frozen=True)
class MemoryShowOptions:
    """Options of `learngraph memory show`: the memories to show."""

    path: Positional[str]
    """A memory, or a folder or a server with several."""


def show(args: Sequence[str]) -> int:
    """Print a table: for each task and run, how many episodes are remembered, their steps and their mean score."""
    options = parse_flags(MemoryShowOptions, args, "learngraph memory show", "Show what is remembered of each task and run.")
    with open_memories(options.path) as memories:
        groups: dict[tuple[str, str, str], list[Any]] = {}
        for one in memories:
            for trajectory in one.all():
                groups.setdefault((trajectory.domain, trajectory.task.id, trajectory.run), []).append(trajectory)
    lines = [("domain", "task", "run", "episodes", "steps", "mean score")]
    for key, found in sorted(groups.items()):
        steps = sum(len(t.transitions) for t in found)
        lines.append((*key, str(len(found)), str(steps), f"{sum(t.score for t in found) / len(found):.3g}"))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


@dataclass(frozen=True)
class MemoryExportOptions:
    """Options of `learngraph memory export`: the memories and the file."""

    path: Positional[str]
    """A memory, or a folder or a server with several."""
    file: Positional[str]
    """The file to write, JSON, an episode a line; `-` is the standard output."""


def export(args: Sequence[str]) -> int:
    """Write all remembered episodes to a file."""
    from ...memory.storage.record_store import as_jsonl, write_jsonl

    options = parse_flags(MemoryExportOptions, args, "learngraph memory export", "Write what is remembered, an episode a line.")
    with open_memories(options.path) as memories:
        found = [trajectory for one in memories for trajectory in one.all()]
    if options.file == "-":
        sys.stdout.writelines(as_jsonl(found))
    else:
        write_jsonl(found, options.file)
    say(plural(len(found), "episode"))
    return 0


@dataclass(frozen=True)
class MemoryPruneOptions:
    """Options of `learngraph memory prune`: the memories and the number of episodes that stay."""

    path: Positional[str]
    """A memory, or a folder or a server with several."""
    keep_last: int
    """Number of each memory's last episodes that stay. The others are deleted for good."""

    def __post_init__(self) -> None:
        if self.keep_last < 0:
            raise CommandError(f"--keep-last is at least 0, got {self.keep_last}")


def prune(args: Sequence[str]) -> int:
    """Delete all but the last episodes of each memory."""
    from ...memory.returns.experiences import Experiences

    options = parse_flags(MemoryPruneOptions, args, "learngraph memory prune", "Delete all but the last episodes.")
    with open_memories(options.path) as memories:
        for one in memories:
            say(f"{one}: {Experiences(one).prune(keep_last=options.keep_last)} episodes deleted")
    return 0


@contextmanager
def open_memories(where: str) -> Iterator[list[Any]]:
    """The record stores of trajectories in a memory, a run folder, or a server, whatever a program has called their namespaces."""
    from ...memory.records import Trajectory
    from ...memory.storage.open_store import open_store
    from ...memory.storage.record_store import RecordStore

    place, prefix = memory_location(where)
    found = [place] if "://" in where else find_memories(where)
    if not found:
        raise CommandError(f"no memory of runs in {where}; give a run folder (of a middleware: its export(), its forget())")
    with ExitStack() as stack:
        stores = [stack.enter_context(open_store(path)) for path in found]
        spaces = [(store, space) for store in stores for space in store.list_namespaces(limit=100_000)]
        ours = prefix if "://" in where else ()
        held = [one for one in spaces if one[1][: len(ours)] == ours and _holds_trajectories(*one)]
        if not held:
            names = ", ".join(sorted({"/".join(space) for _, space in spaces}))
            raise CommandError(f"{where} holds no trajectories; it holds {names or 'nothing yet'}")
        yield [RecordStore(store, space, Trajectory) for store, space in held]


def _holds_trajectories(store: Any, space: tuple[str, ...]) -> bool:
    """True for the namespaces of runs, and for another whose first item reads as a trajectory."""
    first = store.search(space, limit=1)
    return space[0] == "trajectories" or any(
        one.namespace == space and {"task", "transitions"} <= {*one.value} for one in first
    )
