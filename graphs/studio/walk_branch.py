"""A walk of the studio, and where it was forked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import StateSnapshot
from pydantic_core import to_jsonable_python

from ...memory.errors import UserError
from ...tools.notebook.edits import sent_at
from ...tools.notebook.tables import StepperError, to_line
from ...tools.notebook.walk import Walk
from .forms import answer_form, question_parts, question_text
from .shown_values import show_state

__all__ = []


class StudioError(UserError):
    """An action that the page cannot do, with more for the page than its sentence."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


@dataclass
class WalkBranch:
    """A walk, and where it was forked."""

    id: str
    name: str
    walk: Walk
    parent: str = ""
    fork_at: int = 0
    """Number of the moment at which it left its parent."""
    level: int = 0
    """Number of graphs around the one in which it was forked."""
    is_turn: bool = False
    """True of the next turn of a chat: it began where its parent had ended, and its moments count from there."""
    runs_on: bool = False
    """True if it was to run to its end: after an answer to a question it goes on."""
    path: list[StateSnapshot] = field(default_factory=list)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The questions that the page has shown, by their ids."""
    end: tuple[Any, ...] | None = None
    """Where the walk stood when `path` was read: Python may have moved it on since."""

    def read(self) -> None:
        """Read the moments that led to its place, in the graph in which it stands."""
        self.path = self.walk.path()
        self.end = self.stand

    def read_questions(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The open questions with their forms, as shown before where a node asks anew; and those whose answers may change."""
        tasks = self.path[-1].tasks
        sent = sent_at(self.walk._in_loop, (self.walk.graph, self.walk.place)) if self.walk.questions else {}
        names = {task.id: f"{task.name} ({sent[task.id]})" if task.id in sent else task.name for task in tasks}
        askers = {one.id: (names[task.id], f"{task.path} {n}") for task in tasks for n, one in enumerate(task.interrupts)}
        questions: list[dict[str, Any]] = [
            dict(zip(("node", "place"), askers[id], strict=True), id=id, text=question_text(asked))
            | {"form": answer_form(asked, self.walk.here), "parts": show_state(question_parts(asked))}
            for id, asked in self.walk.questions.items()
        ]
        self.asked |= {one["id"]: one for one in questions}
        if self.walk._has_asked:
            waiting = {str(task.path) for task in tasks if task.result is None}
            last = {one["place"]: one for one in self.asked.values() if one["place"].rpartition(" ")[0] in waiting}
            questions = [one | {"asks_anew": True} for one in last.values()]
        given = [(self.asked[id], said) for id, said in self.walk.answers.items() if id in self.asked]
        shown = [one | {"answer": to_jsonable_python(said, fallback=str), "line": to_line(said)} for one, said in given]
        return questions, shown

    @property
    def stand(self) -> tuple[Any, ...]:
        """The walk's place, the nodes about to run, the ids of what they ask (a node that asks leaves the place), and if it is real."""
        return self.walk.place, self.walk.next, [*self.walk.questions], self.walk.branch is None

    @property
    def here(self) -> int:
        return len(self.path) - 1

    @property
    def place(self) -> str:
        """A text that differs from place to place."""
        return f"{self.walk.place['configurable'].get('checkpoint_id', '')} {self.here} {len(self.walk.inside)}"

    @property
    def thread(self) -> str:
        """Name of the run's thread; empty where only this process's memory holds it."""
        in_memory = isinstance(self.walk.graph.checkpointer, InMemorySaver)
        return "" if in_memory else str(self.walk.place["configurable"]["thread_id"])

    @property
    def is_at_fork(self) -> bool:
        """True if it has taken no step of its own."""
        return bool(self.parent) and not self.is_turn and len(self.walk.inside) == self.level and self.here <= self.fork_at

    def find_turn(self, branches: Mapping[str, WalkBranch]) -> WalkBranch | None:
        """The turn of a chat that this is or left; None where no turn was before it, and inside a subgraph."""
        found = self
        while found.parent and not found.is_turn:
            found = branches[found.parent]
        return found if found.is_turn and not self.walk.inside else None


def open_thread(graph: Any, thread: str) -> Walk:
    """A walk at the last moment of a thread that the graph's checkpointer has kept."""
    try:
        return Walk(graph, {"configurable": {"thread_id": thread}})
    except StepperError as error:
        raise StudioError(str(error).partition("; step(")[0]) from error  # what follows is for Python


def newest_threads(saver: Any) -> list[tuple[str, str]]:
    """The ids of the threads that have a checkpointer's latest 200 checkpoints, each with the time of its last, the newest first."""
    found: dict[str, str] = {}
    with suppress(NotImplementedError):  # not every checkpointer can list; one of an event loop might wait for that for ever
        for one in () if hasattr(saver, "loop") else saver.list(None, limit=200):
            found.setdefault(str(one.config["configurable"]["thread_id"]), one.checkpoint["ts"])
    return list(found.items())
