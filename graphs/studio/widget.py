"""The run view of the studio in a notebook: `learngraph.studio(walk)`, or `learngraph.studio("runs/mine")` for a recorded run.

It follows the walk when Python moves it; what-ifs that are made with the mouse are `view.walks["what-if 1"]` in Python.

It is the page's own front end as a widget (anywidget, of the extra `[notebook]`). Where widgets do not run (a notebook on a code host, an
export, a kernel without anywidget) a still picture of the graph is shown in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError, type_of
from ...tools.serving.page_files import read_page

if TYPE_CHECKING:
    from ...tools.notebook.walk import Walk
    from .studio import Studio

__all__ = ["StudioView", "studio_view"]

MODULES = ("list", "graph", "help", "values", "form", "markdown", "chat", "run_view", "widget")
"""The page's modules that the widget is made of, each before those that import it."""
NO_KERNEL = "the kernel has no anywidget: %pip install anywidget in a cell, and restart it"
NO_FRONT = (
    "no widget runs here, though the kernel has anywidget: pip install anywidget where Jupyter runs, and load its page again"
)


class StudioView:
    """A walk or a recorded run that shows itself in a notebook."""

    def __init__(self, studio: Studio, view: str, still: Any) -> None:
        self.studio, self.view = studio, view
        self._still = still

    @property
    def walks(self) -> dict[str, Walk]:
        """The walks that it shows, by name: `run 1`, and each what-if made here as `what-if 1`, ...; empty for a recorded run."""
        return self.studio.walk.walks if self.studio.walk is not None else {}

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a message of the front end: {number, name, args} -> {number, found}, or {number, error, details}."""
        number = message.get("number")
        try:
            return {"number": number, "found": self.studio.answer(str(message["name"]), message.get("args") or {})}
        except (UserError, LookupError) as error:
            return {"number": number, "error": str(error), "details": getattr(error, "details", {})}
        except Exception as error:  # without an answer the widget would wait for ever
            return {"number": number, "error": f"{type(error).__name__}: {error}", "details": {}}

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        still: dict[str, Any] = dict(self._still._repr_mimebundle_()) if self._still is not None else {}
        picture, bundle, missing = still.pop("image/svg+xml", ""), None, NO_FRONT  # the page shows it in a widget's place
        try:
            bundle = self.widget()._repr_mimebundle_() or {}
        except ImportError:
            missing = NO_KERNEL
        told = f"{self.studio.title}, a still picture, since {missing}; then the mouse walks."
        still["text/plain"] = f"{told}\n{still.get('text/plain', '')}"
        still["text/html"] = f"<p>{escape(told)}</p>{picture}"  # the richest that is shown without a widget
        return {**((bundle[0] if isinstance(bundle, tuple) else bundle) or {}), **still}

    def widget(self) -> Any:
        """A widget, to be laid out beside others.

        Raises:
            ImportError: anywidget is not installed.
        """
        import anywidget
        import traitlets

        owner = self

        class RunWidget(anywidget.AnyWidget):
            """The widget. Its class is made here, since anywidget is loaded only where it is used."""

            _esm, _css = widget_module(), read_page("style.css")
            view = traitlets.Unicode(owner.view).tag(sync=True)

            def __init__(self) -> None:
                super().__init__()
                self.on_msg(lambda widget, content, buffers: widget.send(owner.answer(content)))

        return RunWidget()


def studio_view(target: Walk | Path | str) -> StudioView:
    """The run view of a walk, or of a run folder (its first run, or the one that the path names).

    Raises:
        UserError: there is no such folder, or it holds no steps.
    """
    from ...tools.notebook.walk import Walk, start
    from ..wiring.picture import picture
    from .forms import channel_form, input_form, read_graph_input
    from .run_view import FolderView
    from .studio import Studio
    from .walk_session import WalkSession

    if isinstance(target, str | Path):
        folder = FolderView(Path(target))
        names = folder.folder.names()
        if not names:
            raise UserError(f"{target} holds no steps yet")
        return StudioView(Studio(str(target), folders=[folder]), f"run/0/{names[0]}", folder.run(names[0]).picture)
    if not isinstance(walk := target, Walk):
        raise UserError(f"studio takes a walk, such as learngraph.step(graph, input), or a run's folder; got {type_of(walk)}")

    graph, first = walk.graph, walk.path()[0].values
    form = input_form(graph)
    for name in form["schema"].get("properties", {}).keys() & first.keys() - {"messages"}:
        with suppress(UserError):  # it is no JSON, and the form begins without it
            form["value"][name] = channel_form(graph, first, name)["value"]

    def begin(number: int, input: Any) -> Walk:
        return start(graph, read_graph_input(graph, input), config=walk.config)

    session = WalkSession(str(graph.name or "walk"), begin, form)
    session.adopt(walk)
    return StudioView(Studio(session.title, walk=session), "walk", picture(walk))


@lru_cache(maxsize=1)
def widget_module() -> str:
    """The front end as one JavaScript module: anywidget takes no second file.

    Each module becomes a function of its own, so that their names do not meet, and its imports become look-ups.
    """
    parts = [read_page("library/view.js"), "const modules = {};"]
    for name in MODULES:
        text = re.sub(
            r'^import (\{.*?\}) from "\./(\w+)\.js";$', r"const \1 = modules.\2;", read_page(f"{name}.js"), flags=re.MULTILINE
        )
        exports = re.findall(r"^export (?:function|const) (\w+)", text, re.MULTILINE)
        body = re.sub(r"^export (?=function|const)", "", text, flags=re.MULTILINE)
        parts.append(f"modules.{name} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();")
    return "\n".join([*parts, "export default modules.widget.widget;\n"])
