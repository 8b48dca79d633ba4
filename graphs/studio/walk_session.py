"""Walks on the page: runs that really happen, and the what-ifs that were forked from them.

All tabs see one session. An action names the place that its tab had seen: where another tab was faster, nothing is run, and the page
says so. Going back makes a branch of its own, so that the way that was taken stays in the fork tree.
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from secrets import randbits
from threading import Event, Lock
from typing import Any

from ...memory.errors import UserError
from ...tools.notebook.compare import compare
from ...tools.notebook.moments import checkpoint_id, names_of
from ...tools.notebook.pauses import find_subgraph
from ...tools.notebook.walk import Walk
from ..wiring.flow import to_mermaid
from .forms import channel_form, read_answer, read_channel
from .running import Running
from .shown_moments import describe_moment, show_writes, title_of
from .shown_values import show_graph
from .walk_branch import StudioError, WalkBranch

__all__ = ["StudioError", "WalkSession"]


class WalkSession:
    """The walks of a graph. Safe for threads: one action at a time.

    Args:
        title: shown above them.
        begin: begins a run; given the number of the run and its input as JSON values, None for the usual one.
        form: the form of the input, {schema, value}; None where a run needs none.
        graph: shown while no run has begun.
        reload: returns the graph anew when its code has changed since, else None.
    """

    def __init__(
        self,
        title: str,
        begin: Callable[[int, Any], Walk],
        form: dict[str, Any] | None = None,
        graph: Any = None,
        reload: Callable[[], Any] = lambda: None,
    ) -> None:
        self.title, self.form = title, form
        self.settings: dict[str, Any] | None = None
        """The form of what a run is built with, {schema, value, title}; a run that begins with it as its input is built anew."""
        self.open_thread: Callable[[str], Walk] | None = None
        """Opens a thread that the graph's checkpointer has kept; None where none outlives the process."""
        self.list_threads: Callable[[], list[tuple[str, str]]] = list
        """The ids of the newest of those threads, each with its time."""
        self.is_redrawn: Callable[[], bool] = lambda: False
        """Tells whether the saved drawing is another than the one that is walked."""
        self._reload, self._note, self.begin = reload, "", begin
        self._first = {} if graph is None else {"": show_graph(to_mermaid(graph), graph)}
        self._branches: dict[str, WalkBranch] = {}
        self._graphs: dict[str, dict[str, Any]] = {}
        self._current, self._version = "", 0
        self._session = randbits(40)  # tells a page that another process answers at the same address
        self._runs = self._forks = 0
        self._ids = count()
        self._busy, self._stop, self._is_walking = Lock(), Event(), False
        self.running = Running(self._stop)
        self._breaks: set[tuple[str, str]] = set()

    def start(self, input: Any = None) -> None:
        """Begin a run and look at its first moment."""
        self.adopt(self.begin(self._runs, input))

    def adopt(self, walk: Walk, name: str = "") -> None:
        """Show a walk that was begun elsewhere."""
        self._runs += 1
        self._open(name or f"run {self._runs}", walk)

    def _open(self, *about: Any, **more: Any) -> WalkBranch:
        branch = WalkBranch(f"b{next(self._ids)}", *about, **more)
        self.running.watch(branch.walk)
        branch.read()
        self._branches[branch.id], self._current = branch, branch.id
        return branch

    # -- looking ----------------------------------------------------------------------------------------------------------

    @property
    def walks(self) -> dict[str, Walk]:
        """The walks by the names that the page shows."""
        return {one.name: one.walk for one in self._branches.values()}

    def _follow(self) -> None:
        """Read the walks that Python has moved on, unless one is running."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._renew()
            for branch in self._branches.values():
                if branch.stand != branch.end:
                    branch.read()
                    self._version += 1
        finally:
            self._busy.release()

    def _renew(self) -> None:
        """Let the walks go on in the graph's new code, where it has changed: they stand where they stood."""
        try:
            graph = self._reload()
        except Exception as error:  # the user is still typing
            note = f"The changed code cannot be loaded ({type(error).__name__}: {error}); the walks go on with the code before."
            graph, self._version = None, self._version + (note != self._note)
            self._note = note
        if graph is not None:
            self._note, self._version = "The code has changed: every next step runs the new one.", self._version + 1
            for branch in self._branches.values():
                same = graph.copy(update={"checkpointer": branch.walk.graph.checkpointer})
                branch.walk = replace(branch.walk, graph=same, _now=None)
                branch.read()

    def overview(self) -> dict[str, Any]:
        """All that the page shows of the walks but their moments."""
        self._follow()
        branches, running = list(self._branches.values()), self._is_walking
        real = [one for one in branches if one.walk.branch is None and not one.walk._is_apart]
        real.sort(key=lambda one: checkpoint_id(one.walk.place))  # ids are in the order of time
        records = {one.walk.place["configurable"]["thread_id"]: one.id for one in real}.values()
        is_redrawn = bool(branches) and self.is_redrawn()
        return {
            "title": self.title,
            "kind": "live",
            "state": "running" if running else "" if branches else "no run has begun",
            "problems": [self._note] if self._note else [],
            "graphs": {self._graph_of(one): self._graphs[self._graph_of(one)] for one in branches} or self._first,
            "branches": [self._about(one) | {"record": one.id in records} for one in branches],
            "current": self._current,
            "can": self._can(None),
            "form": self.form,
            "settings": self.settings,
            "breaks": sorted(self._breaks),
            "session": self._session,
            "is_redrawn": is_redrawn,
            "version": f"{self._session} {self._version} {running} {is_redrawn}",
        }

    def _about(self, branch: WalkBranch) -> dict[str, Any]:
        last, (questions, answered) = branch.path[-1], branch.read_questions()
        return {
            "id": branch.id,
            "name": branch.name,
            "parent": branch.parent,
            "fork_at": branch.fork_at,
            "is_turn": branch.is_turn,
            "count": len(branch.path),
            "place": branch.place,
            "state": "paused" if branch.walk.next else "at the end",
            "can": self._can(branch),
            "graph": self._graph_of(branch),
            "inside": [f"{one.node}, invocation {one.number + 1}" if one.number else one.node for one in branch.walk.inside],
            "what_if": branch.walk.branch is not None,
            "thread": branch.thread,
            "questions": questions,
            "answered": answered,
            "note": f"before {names_of(last.next)}" if last.next else "at the end",
        }

    def _graph_of(self, branch: WalkBranch) -> str:
        """The name of the graph in which a branch stands."""
        graph = branch.walk.here
        name = f"{id(graph.builder)}"  # the walks hold it, so that no other graph gets this number; what-ifs copy the graph
        if name not in self._graphs:
            self._graphs[name] = show_graph(to_mermaid(graph), graph)
        return name

    def _can(self, branch: WalkBranch | None) -> list[str]:
        begins = ["begin", *(["open"] if self.open_thread else [])]
        if branch is None:
            return [*begins, *(["say"] if self._is_chat else [])]
        can, walk = [*begins, "fork"], branch.walk
        if walk.next and not walk.questions:
            can += ["step", "round", "finish", "until"]
            can += ["into"] if any(find_subgraph(walk.here, name) is not None for name in walk.next) else []
        can += ["say"] if self._is_chat and not walk.next else []
        can += ["out"] if walk.inside else []
        if walk.branch is not None:  # what was kept is in the real memories, and is dropped no more
            can += ["keep", *(["drop"] if branch.parent and not branch.is_turn else [])]
        return [*can, "back"] if branch.here > 0 or branch.find_turn(self._branches) else can

    @property
    def _is_chat(self) -> bool:
        return "messages" in (self.form or {}).get("schema", {}).get("properties", {})

    def _find(self, id: str) -> WalkBranch:
        if id not in self._branches:
            raise StudioError(f"there is no branch {id!r}; there are {', '.join(self._branches) or 'none yet'}")
        return self._branches[id]

    def moments(self, branch: str, start: int, count: int) -> dict[str, Any]:
        """Lines about the moments of a branch."""
        path = self._find(branch).path
        numbers, cost = range(start, min(start + count, len(path))), self.running.cost
        rows = [title_of(path, n) | {"cost": cost(*path[n - 1 : n + 1]) if n else ""} for n in numbers]
        return {"start": start, "count": len(path), "rows": rows}

    def compare(self, branch: str, other: str) -> dict[str, Any]:
        """Two walks channel by channel, where they part and where they stand; refused while a walk runs, which stands nowhere."""
        if self._is_walking or not self._busy.acquire(timeout=10):
            raise StudioError("the walk is running: walks are compared when they rest")
        try:
            one, two = self._find(branch), self._find(other)
            found = compare(one.walk, two.walk)
        finally:
            self._busy.release()
        return {"title": found.title, "head": [*found.head[:2], one.name, two.name], "rows": found.rows}

    def edit_form(self, branch: str, channel: str, index: int | None = None) -> dict[str, Any]:
        """The form of a channel, or of a message in it, at the place where a branch stands."""
        walk = self._find(branch).walk
        return channel_form(walk.here, walk.state, channel, index)

    def moment(self, branch: str, number: int) -> dict[str, Any]:
        """A moment: its state, its decision, what memory was read, and the way through the graph up to it."""
        found = self._find(branch)
        if not 0 <= number < len(found.path):
            raise StudioError(f"there is no moment {number}; {found.name} has {len(found.path)}")
        memories = {box["name"] for box in self._graphs[self._graph_of(found)]["nodes"] if box.get("role") == "memory"}
        shown = describe_moment(found.walk, found.path[: number + 1], memories)
        shown["memory"]["written"] = show_writes(found.walk, found.path, number)
        shown["costs"] = self.running.costs(found.path[: number + 1])
        shown["unset"] = [name for name in found.walk.here.output_channels if name not in found.path[number].values]
        return shown

    # -- moving -----------------------------------------------------------------------------------------------------------

    def act(self, do: str, branch: str, expected: str, **more: Any) -> dict[str, Any]:
        """Do what a button asks for, and return the overview.

        Args:
            do: a case of `_move`, or `begin`, `open`, `break` or `stop`.
            branch: the branch on which.
            expected: the place of the branch that the page had seen.
            more: `node` for `until`, `at` for `fork`, `input` for `begin`, `thread` for `open`, `channel`, `index` and `value` for
                `edit`, `answers` (id -> answer) for `resume`, `replace` for `keep`, `text` for `say`, `node` and `when` (`before`,
                `after`) for `break`.

        Raises:
            StudioError: another tab was faster, or a node raised an error: then the moment before it is still there.
        """
        if do == "stop":
            self._stop.set()
            return self.overview()
        if do == "break":
            self._breaks ^= {(str(more.get("node")), str(more.get("when")))}
            self._version += 1
            return self.overview()
        if self._is_walking or not self._busy.acquire(timeout=10):  # a tab that only looks is soon done
            raise StudioError("the walk is running: wait until its node ends (another tab may have started it)")
        self._is_walking = True
        try:
            self._stop.clear()
            if do == "begin":
                self.start(more.get("input"))
            elif do == "open" and self.open_thread is not None:
                walk = self.open_thread(thread := str(more.get("thread")))
                self._runs = max(self._runs, len(walk._turns()))
                self._open(f"thread {thread}", walk, runs_on=self._is_chat)
            elif do == "say" and not self._branches:
                self.start({"messages": more.get("text")})
                self._move("finish", self._branches[self._current], more)
            else:
                found = self._find(branch)
                if expected != found.place:
                    raise StudioError("another tab has moved this walk on; this page shows it now, please try again")
                self._move(do, found, more)
        except UserError:
            raise
        except Exception as error:
            shown = traceback.format_exc()[-8_000:]  # its end tells most
            stands = f" The walk stands at {self._branches[self._current].walk}." if self._branches else ""
            raise StudioError(f"{type(error).__name__}: {error}.{stands}", traceback=shown) from error
        finally:
            self._version += 1
            self.running.forget_unfinished()
            self._is_walking = False
            self._busy.release()
        return self.overview()

    def _move(self, do: str, branch: WalkBranch, more: Mapping[str, Any]) -> None:
        self._current, walk = branch.id, branch.walk
        try:
            match do:
                case "step" | "into" | "out":
                    branch.runs_on = False
                    getattr(walk, do)()
                case "round":
                    walk.until(*walk.next, self._pauses(walk))
                case "until":
                    walk.until(str(more.get("node", "")), self._pauses(walk))
                case "finish" | "say":
                    branch = self._next_turn(branch, more.get("text")) if do == "say" else branch
                    branch.runs_on = True
                    branch.walk.until(self._pauses(branch.walk))
                case "resume":
                    answers = {id: read_answer(text) for id, text in dict(more.get("answers") or {}).items()}
                    if walk.questions and not answers.keys() <= {*walk.questions, *walk.answers}:
                        raise StudioError(f"{', '.join(answers)} is not asked here; open are {', '.join(walk.questions)}")
                    walk.resume(answers)
                    if branch.runs_on and walk.next and not walk.questions:
                        walk.until(self._pauses(walk))
                case "edit":
                    channel = str(more.get("channel", ""))
                    if channel not in walk.here.builder.channels:
                        raise StudioError(f"there is no channel {channel!r}; there are {', '.join(walk.here.builder.channels)}")
                    value = read_channel(walk.here, walk.state, channel, more.get("value"), more.get("index"))
                    edited = (walk.fork() if walk.branch is None else walk).edit(**{channel: value})
                    if edited is not walk:  # what really happened stays in the tree
                        branch = self._fork(branch, branch.here)
                        branch.walk = edited
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

    def _pauses(self, walk: Walk) -> Callable[[Any], bool]:
        """A test that is true when Stop was pressed, and at breakpoints; asked after every step."""
        ahead = set(walk.next)

        def is_pause(state: Any) -> bool:
            nonlocal ahead
            ran, ahead = ahead, set(walk.next)
            reached = {(name, "after") for name in ran} | {(name, "before") for name in ahead}
            return self._stop.is_set() or bool(reached & self._breaks)

        return is_pause

    def _next_turn(self, branch: WalkBranch, text: Any) -> WalkBranch:
        """The next turn of a chat, from the end of a branch."""
        self._runs += 1
        walk = replace(branch.walk).go_on({"messages": text})
        return self._open(f"turn {self._runs}", walk, branch.id, branch.here, is_turn=True)

    def _fork(self, branch: WalkBranch, at: int) -> WalkBranch:
        """A what-if from a moment of a branch."""
        if not isinstance(at, int) or not 0 <= at <= branch.here:
            raise StudioError(f"there is no moment {at}; {branch.name} has {len(branch.path)}")
        walk = branch.walk.fork()
        if at < branch.here:
            walk.back(branch.here - at)
        self._forks += 1
        name, asked = f"what-if {self._forks}", dict(branch.asked)
        return self._open(name, walk, branch.id, at, len(walk.inside), asked=asked)

    def _drop(self, branch: WalkBranch) -> WalkBranch:
        """Forget a what-if, with the turns that were said in it; returns the branch that it left."""
        if not branch.parent or branch.is_turn:
            raise StudioError(f"{branch.name} is no what-if: only what-ifs are dropped")
        for turn in [one for one in self._branches.values() if one.parent == branch.id and one.is_turn]:
            turn.is_turn = False
            self._drop(turn)
        for child in [one for one in self._branches.values() if one.parent == branch.id]:
            child.parent, child.fork_at = branch.parent, min(child.fork_at, branch.fork_at)
        if branch.walk.branch is not None:
            branch.walk.branch.drop()
        del self._branches[branch.id]
        self._current = branch.parent
        return self._branches[branch.parent]

    def _step_back(self, branch: WalkBranch) -> WalkBranch:
        """A branch at the moment before. One that has taken no step of its own moves; any other stays, and a what-if leaves it."""
        turn = branch.find_turn(self._branches)
        if branch.here == 0 and turn is None:
            around = "; Out leads to the graph around this one" if branch.walk.inside else ""
            raise StudioError(f"this is the first moment{around}")
        if not branch.is_at_fork and branch.here > 0:
            return self._fork(branch, branch.here - 1)
        if not branch.is_at_fork:
            branch = self._fork(branch, 0)
        branch.walk.back()
        if branch.here > 0:
            branch.fork_at = branch.here - 1
        elif turn is not None:  # past where the turn began, to the end of the one before
            branch.parent, branch.fork_at = turn.parent, turn.fork_at
        return branch
