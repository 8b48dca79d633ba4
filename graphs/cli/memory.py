"""`learngraph memory show | export | import | prune | library`: what runs and learning middlewares remember, and their lessons."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from tyro.conf import Positional

from ...memory.display import short
from ...memory.errors import CommandError, plural
from ..agents.reward_sources import rating_text
from ..agents.scope_values import ROOT, scope_of
from ..experiments.folder import memory_location
from ..experiments.progress import say
from .flags import parse_flags, run_subcommand
from .memory_import import find_memories, import_file

__all__ = ["memory"]

USAGE = """\
usage: learngraph memory show PATH | export PATH FILE | import FILE --into PATH | prune PATH --keep-last N | library --help

PATH is a memory, of a run or (for show and export) of a learning middleware; or (but for import) a folder or server with several. FILE
for import holds trajectories, or conversations of other tools (`import FILE|URL --from langsmith|langfuse|mlflow|otlp|openai`) that an
agent learns from. A run with `--memory DIR` keeps them in
DIR/<method>-s<seed>, a run with `--memory http://host:port` in http://host:port/<method>-s<seed>, any other in its folder.
With `--memory postgresql://host/database` they are in postgresql://host/database/<method>-s<seed>."""


def memory(args: Sequence[str]) -> int:
    """Show, export, import or prune memories. Returns the exit status."""
    from .library import library

    commands = {"show": show, "export": export, "import": import_file, "prune": prune, "library": library}
    return run_subcommand(commands, args, USAGE)


MOST_LINE_CHARS = 200


@dataclass(frozen=True)
class MemoryShowOptions:
    """Options of `learngraph memory show`: the memories to show."""

    path: Positional[str]
    """A memory, or a folder or a server with several."""


def show(args: Sequence[str]) -> int:
    """Print what agents keep; of runs a table: for each task and run, how many episodes are remembered, their steps and their mean score."""
    options = parse_flags(MemoryShowOptions, args, "learngraph memory show", "Show what is remembered of each task and run.")
    with open_memories(options.path) as (memories, agents):
        for one in agents:
            print(*(short(" ".join(line.split("\n")), MOST_LINE_CHARS) for line in agent_lines(one)), sep="\n")
        groups: dict[tuple[str, str, str], list[Any]] = {}
        for one in memories:
            for trajectory in one.all():
                groups.setdefault((trajectory.domain, trajectory.task.id, trajectory.run), []).append(trajectory)
    lines = [("domain", "task", "run", "episodes", "steps", "mean score")] if groups else []
    for key, found in sorted(groups.items()):
        steps = sum(len(t.transitions) for t in found)
        lines.append((*key, str(len(found)), str(steps), f"{sum(t.score for t in found) / len(found):.3g}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def agent_lines(kept: Any) -> Iterator[str]:
    """An account of what an agent keeps of a scope: its conversations with their ratings, and the lessons."""
    from ...memory.lessons.versions import LibraryVersions
    from ...memory.storage.stored_rows import StoredRows

    whose, talks = scope_of(kept.scope), kept.turns.all()
    ratings = {one.id: one.ratings for one in kept.feedback.all()}
    values = "".join(f" {name}={value}" for name, value in whose["scope"].items())
    yield f"{whose['agent']}{values}: {plural(len(talks), 'conversation')}, {len(ratings)} rated"
    held = {one.id: f"{'a part of ' * bool(one.of)}it: {one.reason}" for one in kept.open_quarantines()}
    for talk in talks:
        yield f"  {talk.id}, {plural(len(talk.turns), 'turn')}: {talk.task.instruction}"
        yield from (f"    {rating_text(one)}" for one in ratings.get(talk.id, ()))
        yield from [f"    nothing is learned from {held[talk.id]}"] if talk.id in held else []
    for one in kept.reflections.all():
        texts = [one.note] * (not one.id.startswith("lessons/")) + [lesson.text for lesson in one.lessons]
        yield from (f"  lesson from {one.id}: {text}" for text in texts if text)
    library = LibraryVersions(rows=StoredRows(kept.store, (*kept.scope, "library")))
    yield from (f"  lesson {one.id}: {one.text}" for one in (library.at(library.head).lessons if library.head else ()))


@dataclass(frozen=True)
class MemoryExportOptions:
    """Options of `learngraph memory export`: the memories and the file."""

    path: Positional[str]
    """A memory, or a folder or a server with several."""
    file: Positional[str]
    """The file to write, JSON, an episode a line; `-` is the standard output."""


def export(args: Sequence[str]) -> int:
    """Write all remembered episodes, or an agent's conversations, to a file."""
    from ...memory.storage.record_store import as_jsonl, write_jsonl

    options = parse_flags(MemoryExportOptions, args, "learngraph memory export", "Write what is remembered, an episode a line.")
    with open_memories(options.path) as (memories, agents):
        found = [row for one in memories for row in one.all()] + [
            row | scope_of(one.scope) for one in agents for row in one.export()
        ]
    if options.file == "-":
        sys.stdout.writelines(as_jsonl(found))
    else:
        write_jsonl(found, options.file)
    say(plural(len(found), "episode" if memories else "conversation"))
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
    with open_memories(options.path) as (memories, agents):
        if agents and not memories:
            raise CommandError(f"{options.path} holds conversations of agents: their middlewares' forget() deletes them")
        for one in memories:
            say(f"{one}: {Experiences(one).prune(keep_last=options.keep_last)} episodes deleted")
    return 0


@contextmanager
def open_memories(where: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """The record stores of trajectories in a memory, a run folder, or a server, whatever a program has called their namespaces; and the
    conversations of agents there, a store for each scope."""
    from ...memory.conversations.store import ConversationStore
    from ...memory.records import Trajectory
    from ...memory.storage.open_store import open_agent_store
    from ...memory.storage.record_store import RecordStore

    place, prefix = memory_location(where)
    found = [place] if "://" in where else find_memories(where)
    if not found:
        raise CommandError(f"no memory in {where}; give the folder of a run, or that of a learning middleware")
    with ExitStack() as stack:
        stores: list[Any] = [stack.enter_context(cast(Any, open_agent_store(path))) for path in found]
        spaces = [(store, space) for store in stores for space in store.list_namespaces(limit=100_000)]
        ours = prefix if "://" in where else ()
        of_agents = [one for one in spaces if one[1][0] == ROOT]
        held = [one for one in spaces if one[1][: len(ours)] == ours and one not in of_agents and _holds_trajectories(*one)]
        talks = [one for one in of_agents if one[1][-1] == "turns" and ours[1:] == ()]
        if not held and not talks:
            names = ", ".join(sorted({"/".join(space) for _, space in spaces}))
            raise CommandError(f"{where} holds no trajectories; it holds {names or 'nothing yet'}")
        yield (
            [RecordStore(store, space, Trajectory) for store, space in held],
            [ConversationStore(store, space[:-1]) for store, space in talks],
        )


def _holds_trajectories(store: Any, space: tuple[str, ...]) -> bool:
    """True for the namespaces of runs, and for another whose first item reads as a trajectory."""
    first = store.search(space, limit=1)
    return space[0] == "trajectories" or any(
        one.namespace == space and {"task", "transitions"} <= {*one.value} for one in first
    )
