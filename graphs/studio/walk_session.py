"""Walks on the page: runs that really happen, and the what-ifs that were forked from them.

All tabs see one session. An action names the place that its tab had seen: where another tab was faster, nothing is run, and the page
says so. Going back makes a branch of its own, so that the way that was taken stays in the fork tree.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from threading import Event, Lock
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from ...memory.errors import UserError
from ...tools.notebook.pauses import find_subgraph
from ...tools.notebook.tables import to_line
from ...tools.notebook.walk import Walk
from ..wiring.flow import to_mermaid
from .shown_moments import describe_moment, names_of, show_writes, title_of
from .shown_values import show_graph

__all__ = ["StudioError", "WalkSession"]

MAX_TRACEBACK = 8_000


class StudioError(UserError):
    """An action that the page cannot do, with more for the page than its sentence."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


@dataclass
class _Branch:
    """A walk, and where it was forked."""

    id: str
    name: str
    walk: Walk
    parent: str = ""
    fork_at: int = 0
    """Number of the moment at which it left its parent."""
    level: int = 0
    """Number of graphs around the one in which it was forked."""
    path: list[StateSnapshot] = field(default_factory=list)
    end: RunnableConfig | None = None
    """The place up to which `path` was read: Python may have moved the walk on since."""

    def read(self) -> None:
        """Read the moments that led to its place, in the graph in which it stands."""
        self.path = self.walk.path()
        self.end = self.walk.place

    @property
    def here(self) -> int:
        return len(self.path) - 1

    @property
    def place(self) -> str:
        """A text that differs from place to place."""
        return f"{self.walk.place['configurable'].get('checkpoint_id', '')} {self.here} {len(self.walk.inside)}"

    @property
    def is_at_fork(self) -> bool:
        """True if it has taken no step of its own."""
        return bool(self.parent) and len(self.walk.inside) == self.level and self.here <= self.fork_at


class WalkSession:
    """The walks of a graph. Safe for threads: one action at a time.

    Args:
        title: shown above them.
        begin: begins a run; given the number of the run and its input as JSON values, None for the usual one.
        example: the usual input as JSON text, for the page to edit; empty where a run needs none.
    """

    def __init__(self, title: str, begin: Callable[[int, Any], Walk], example: str = "") -> None:
        self.title, self.example = title, example
        self._begin = begin
        self._branches: dict[str, _Branch] = {}
        self._graphs: dict[str, dict[str, Any]] = {}
        self._current = ""
        self._runs = self._forks = 0
        self._version = 0
        self._ids = count()
        self._busy = Lock()
        self._stop = Event()

    def start(self, input: Any = None) -> None:
        """Begin a run and look at its first moment."""
        walk = self._begin(self._runs, input)
        self._runs += 1
        self._open(_Branch(f"b{next(self._ids)}", f"run {self._runs}", walk))

    def adopt(self, walk: Walk) -> None:
        """Show a walk that was begun elsewhere."""
        self._runs += 1
        self._open(_Branch(f"b{next(self._ids)}", f"run {self._runs}", walk))

    def _open(self, branch: _Branch) -> None:
        branch.read()
        self._branches[branch.id] = branch
        self._current = branch.id

    # -- looking ----------------------------------------------------------------------------------------------------------

    @property
    def walks(self) -> dict[str, Walk]:
        """The walks by the names that the page shows: runs, and the what-ifs that were forked from them."""
        return {one.name: one.walk for one in self._branches.values()}

    def _follow(self) -> None:
        """Read the walks that Python has moved on, unless one is running."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            for branch in self._branches.values():
                if branch.walk.place != branch.end:
                    branch.read()
                    self._version += 1
        finally:
            self._busy.release()

    def overview(self) -> dict[str, Any]:
        """All that the page shows of the walks but their moments."""
        self._follow()
        branches = list(self._branches.values())
        running, branch = self._busy.locked(), self._branches.get(self._current)
        return {
            "name": "walk",
            "title": self.title,
            "kind": "live",
            "state": "running" if running else "paused",
            "problems": [] if branches else ["No run has begun: New run begins one."],
            "graphs": {self._graph_of(one): self._graphs[self._graph_of(one)] for one in branches},
            "branches": [self._about(one) for one in branches],
            "current": self._current,
            "can": self._can(branch),
            "example": self.example,
            "version": f"{self._version} {running}",
        }

    def _about(self, branch: _Branch) -> dict[str, Any]:
        last = branch.path[-1]
        return {
            "id": branch.id,
            "name": branch.name,
            "parent": branch.parent,
            "fork_at": branch.fork_at,
            "count": len(branch.path),
            "place": branch.place,
            "graph": self._graph_of(branch),
            "inside": [f"{one.node} {one.number}" for one in branch.walk.inside],
            "what_if": branch.walk.branch is not None,
            "question": to_line(branch.walk.question, 2_000) if branch.walk.question is not None else "",
            "note": f"before {names_of(last)}" if last.next else "at the end",
        }

    def _graph_of(self, branch: _Branch) -> str:
        """The name of the graph in which a branch stands."""
        graph = branch.walk.here
        name = f"{id(graph)}"  # the walks hold it, so that no other graph gets this number
        if name not in self._graphs:
            self._graphs[name] = show_graph(to_mermaid(graph), graph)
        return name

    def _can(self, branch: _Branch | None) -> list[str]:
        if branch is None:
            return ["begin"]
        can, walk = ["begin", "fork", "edit"], branch.walk
        if walk.question is not None:
            can.append("resume")
        elif walk.next:
            can += ["step", "round", "finish", "until"]
            can += ["into"] if any(find_subgraph(walk.here, name) is not None for name in walk.next) else []
            can += ["out"] if walk.inside else []
        can += ["keep"] if walk.branch is not None else []
        can += ["drop"] if branch.parent else []
        return [*can, "back"] if branch.here > 0 else can

    def _find(self, id: str) -> _Branch:
        if id not in self._branches:
            raise StudioError(f"there is no branch {id!r}; there are {', '.join(self._branches) or 'none yet'}")
        return self._branches[id]

    def moments(self, branch: str, start: int, count: int) -> dict[str, Any]:
        """Lines about the moments of a branch."""
        path = self._find(branch).path
        return {
            "start": start,
            "count": len(path),
            "rows": [title_of(path, n) for n in range(start, min(start + count, len(path)))],
        }

    def moment(self, branch: str, number: int) -> dict[str, Any]:
        """A moment: its state, its decision, what memory was read, and the way through the graph up to it."""
        found = self._find(branch)
        if not 0 <= number < len(found.path):
            raise StudioError(f"there is no moment {number}; {found.name} has {len(found.path)}")
        boxes = self._graphs[self._graph_of(found)]["nodes"]
        shown = describe_moment(found.path[: number + 1], {box["name"] for box in boxes if box.get("role") == "memory"})
        shown["memory"]["written"] = show_writes(found.walk, found.path, number)
        return shown

    # -- moving -----------------------------------------------------------------------------------------------------------

    def act(self, do: str, branch: str, expected: str, **more: Any) -> dict[str, Any]:
        """Do what a button asks for, and return the overview.

        Args:
            do: `step`, `round`, `into`, `out`, `back`, `fork`, `finish`, `until`, `resume`, `edit`, `keep`, `drop`, `begin` or `stop`.
            branch: the branch on which.
            expected: the place of the branch that the page had seen.
            more: `node` for `until`, `at` for `fork`, `input` for `begin`, `channels` for `edit`, `answer` for `resume`,
                `replace` for `keep`.

        Raises:
            StudioError: another tab was faster, or a node raised an error: then the moment before it is still there.
        """
        if do == "stop":
            self._stop.set()
            return self.overview()
        if not self._busy.acquire(blocking=False):
            raise StudioError("the walk is running: wait until its node ends (another tab may have started it)")
        try:
            self._stop.clear()
            if do == "begin":
                self.start(_read_json(more.get("input")))
            else:
                found = self._find(branch)
                if expected != found.place:
                    raise StudioError("another tab has moved this walk on; this page shows it now, please try again")
                self._move(do, found, more)
        except UserError:
            raise
        except Exception as error:
            shown = traceback.format_exc()[-MAX_TRACEBACK:]
            raise StudioError(f"{type(error).__name__}: {error}. The walk stands where it was.", traceback=shown) from error
        finally:
            self._version += 1
            self._busy.release()
        return self.overview()

    def _move(self, do: str, branch: _Branch, more: Mapping[str, Any]) -> None:
        self._current, walk = branch.id, branch.walk
        try:
            match do:
                case "step" | "into" | "out":
                    getattr(walk, do)()
                case "round":
                    walk.until(*walk.next, self._is_stopped)
                case "until":
                    walk.until(str(more.get("node", "")), self._is_stopped)
                case "finish":
                    walk.until(self._is_stopped)
                case "resume":
                    walk.resume(_read_answer(more.get("answer")))
                case "edit":
                    if walk.branch is None:  # what really happened stays in the tree
                        branch = self._fork(branch, branch.here)
                    branch.walk.edit(**_read_channels(more.get("channels")))
                case "keep":
                    walk.keep(replace=bool(more.get("replace")))
                case "drop":
                    branch = self._drop(branch)
                case "back":
                    branch = self._step_back(branch)
                case "fork":
                    branch = self._fork(branch, more.get("at", branch.here))
                case _:
                    raise StudioError(f"there is no button {do!r}")
        finally:
            branch.read()  # also after an error: nodes before it have run

    def _is_stopped(self, state: Mapping[str, Any]) -> bool:
        return self._stop.is_set()

    def _fork(self, branch: _Branch, at: int) -> _Branch:
        """A what-if from a moment of a branch."""
        if not isinstance(at, int) or not 0 <= at <= branch.here:
            raise StudioError(f"there is no moment {at}; {branch.name} has {len(branch.path)}")
        walk = branch.walk.fork()
        if at < branch.here:
            walk.back(branch.here - at)
        self._forks += 1
        made = _Branch(f"b{next(self._ids)}", f"what-if {self._forks}", walk, branch.id, at, len(walk.inside))
        self._open(made)
        return made

    def _drop(self, branch: _Branch) -> _Branch:
        """Forget a what-if; returns the branch that it left."""
        if not branch.parent:
            raise StudioError("this is what really happened: only what-ifs are dropped")
        for child in [one for one in self._branches.values() if one.parent == branch.id]:
            child.parent, child.fork_at = branch.parent, min(child.fork_at, branch.fork_at)
        if branch.walk.branch is not None:
            branch.walk.branch.drop()
        del self._branches[branch.id]
        self._current = branch.parent
        return self._branches[branch.parent]

    def _step_back(self, branch: _Branch) -> _Branch:
        """A branch at the moment before. One that has taken no step of its own moves; any other stays, and a what-if leaves it."""
        if branch.here == 0:
            raise StudioError(
                "this is the first moment" + ("; Out leads to the graph around this one" if branch.walk.inside else "")
            )
        if not branch.is_at_fork:
            return self._fork(branch, branch.here - 1)
        branch.walk.back()
        branch.fork_at = branch.here - 1
        return branch


def _read_json(text: Any) -> Any:
    if text is None or (isinstance(text, str) and not text.strip()):
        return None
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise StudioError(f'the input is JSON such as {{"messages": "Hello"}} ({error})') from error


def _read_answer(text: Any) -> Any:
    """An answer to a node's question: JSON if it is, else the words as they are."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _read_channels(text: Any) -> dict[str, Any]:
    """Channels and their new values, from a JSON object."""
    found = _read_json(text)
    if not isinstance(found, dict) or not found:
        raise StudioError('an edit is a JSON object of channels and values, such as {"action": "wait"}')
    return found
