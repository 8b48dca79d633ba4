"""The studio: it answers the page's questions with a drawing, a walk and recorded runs, whichever of them are open."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from ...memory.errors import UserError
from ...tools.notebook.walk import Walk
from .drawing import Drawing
from .run_view import FolderView, RunView
from .walk_session import WalkSession

__all__ = ["Studio"]

MAX_LINES = 500
"""Most moments in one answer."""


@dataclass
class Studio:
    """The drawing, the walk and the run folders that are open on the page."""

    title: str
    drawing: Drawing | None = None
    walk: WalkSession | None = None
    folders: Sequence[FolderView] = field(default_factory=list)
    opens: str = ""
    """The part that is shown first; the first one there is if not given."""

    def __post_init__(self) -> None:
        if self.drawing is not None and self.walk is not None:
            self.walk.is_redrawn = self.drawing.is_redrawn

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to a question of the page, as JSON values.

        Raises:
            UserError: it cannot be answered.
            LookupError: there is no such question.
        """
        questions: Mapping[str, Callable[..., Any]] = {
            "about": self._about,
            "runs": self._runs,
            "drawing": lambda: self._open_drawing().read(),
            "check": lambda text: self._open_drawing().check(str(text)),
            "save": lambda text, version: self._open_drawing().save(str(text), str(version)),
            "nodes": lambda: self._open_drawing().palette(),
            "node": lambda text, name: self._open_drawing().node_form(str(text), str(name)),
            "python": lambda: self._open_drawing().write_python(),
            "overview": self._overview,
            "moments": lambda view, branch, start, count: self._view(view).moments(
                str(branch), max(0, _whole(start)), min(_whole(count), MAX_LINES)
            ),
            "moment": lambda view, branch, number: self._view(view).moment(str(branch), _whole(number)),
            "act": lambda view, do, branch, expected, **more: self._open_walk().act(
                str(do), str(branch), str(expected), **more
            ),
            "explain": lambda view, branch, number: self._recorded(view).explain(str(branch), _whole(number)),
            "walk_from": self._walk_from,
            "form": lambda branch, channel, index=None: self._open_walk().edit_form(str(branch), str(channel), index),
            "compare": lambda branch, other: self._open_walk().compare(str(branch), str(other)),
            "threads": lambda: self._open_walk().list_threads(),
            "live": lambda: self._open_walk().running.now(),
        }
        if name not in questions:
            raise LookupError(f"there are {', '.join(questions)}")
        try:
            signature(questions[name]).bind(**arguments)
        except TypeError as error:
            raise UserError(f"{name}: the question cannot be read ({error})") from error
        return questions[name](**arguments)

    def _about(self) -> dict[str, Any]:
        parts = {"drawing": ("Drawing", self.drawing), "walk": ("Walk", self.walk), "runs": ("Runs", self.folders)}
        tabs = [[name, text] for name, (text, part) in parts.items() if part]
        return {"title": self.title, "tabs": tabs, "opens": self.opens or (tabs[0][0] if tabs else "runs")}

    def _runs(self) -> list[dict[str, Any]]:
        return [{"number": number, **folder.list_runs()} for number, folder in enumerate(self.folders)]

    def _open_drawing(self) -> Drawing:
        if self.drawing is None:
            raise UserError("no drawing is open; give a method or MODULE:GRAPH to `learngraph studio`")
        return self.drawing

    def _view(self, view: str) -> WalkSession | RunView:
        kind, _, rest = str(view).partition("/")
        if kind == "walk" and self.walk is not None:
            return self.walk
        number, _, name = rest.partition("/")
        if kind == "run" and number.isdecimal() and int(number) < len(self.folders):
            return self.folders[int(number)].run(name)
        raise UserError(f"nothing of the name {view!r} is open")

    def _open_walk(self) -> WalkSession:
        if self.walk is None:
            raise UserError("no walk is open")
        return self.walk

    def _overview(self, view: str, version: str | None = None) -> dict[str, Any]:
        found = self._view(view).overview()
        return {"same": True} if found["version"] == version else found

    def _recorded(self, view: str) -> RunView:
        run = self._view(view)
        if not isinstance(run, RunView):
            raise UserError("only steps of a recorded run are explained and walked from")
        return run

    def _walk_from(self, view: str, branch: str, number: int) -> dict[str, Any]:
        """Open a live walk that stands where a recorded step was decided."""
        run = self._recorded(view)

        def begin(*_: Any) -> Walk:
            return run.walk_from(str(branch), _whole(number))

        walk, place = begin(), f"{run.name}, episode {branch}, step {number}"
        if self.walk is None:
            self.walk = WalkSession("", begin)
        self.walk.adopt(walk, place)
        self.walk.title, self.walk.begin = f"{run.title}, walked on from episode {branch}, step {number}", begin
        return self._about()


def _whole(number: Any) -> int:
    if not isinstance(number, int):
        raise UserError(f"asked for a whole number, got {number!r:.80}")
    return number
