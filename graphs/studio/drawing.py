"""A drawing that is edited on the page: its text in a `.mmd` file, the check of it, and the nodes to draw with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import Any

from ...memory.errors import UserError
from ...nodes.catalogue import VERBS, catalogue
from ...nodes.channels import node_channels
from ..wiring.arrows import Finding
from ..wiring.flow import FlowError, check, to_mermaid
from ..wiring.picture import describe_node
from .shown_values import show_graph
from .walk_session import StudioError

__all__ = ["Drawing"]


class Drawing:
    """A drawing and its file.

    Args:
        title: shown above it.
        path: the `.mmd` file; it need not exist.
        text: the text while there is no file.
        graph: a compiled graph with the nodes that may be drawn; None: only the text is checked.
        on_save: called with the text after it was saved.

    Raises:
        UserError: the file cannot be read.
    """

    def __init__(
        self, title: str, path: Path, text: str, graph: Any = None, on_save: Callable[[str], None] = lambda text: None
    ) -> None:
        self.title, self.path = title, path
        self._first, self._graph, self._on_save = text, graph, on_save
        self._saving = Lock()
        self.read()

    def renew(self, graph: Any) -> None:
        """Take a graph whose code has changed: its nodes may be drawn from now on."""
        self._graph = graph
        self._first = to_mermaid(graph)

    def read(self) -> dict[str, Any]:
        """The text, and a version that says which text it was."""
        text, exists = self._text()
        return {"title": self.title, "path": str(self.path), "exists": exists, "text": text, "version": _version(text, exists)}

    def _text(self) -> tuple[str, bool]:
        try:
            return self.path.read_text(encoding="utf-8"), True
        except FileNotFoundError:
            return self._first, False
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path} cannot be read ({error}); give a text file of that name, or none") from error

    def check(self, text: str) -> dict[str, Any]:
        """The picture of a text, None where it cannot be read, and what is wrong with it."""
        try:
            shown = show_graph(text, self._graph)
        except FlowError as error:
            return {"graph": None, "findings": [_show(Finding(error.line, error.sentence))]}
        return {"graph": shown, "findings": [_show(one) for one in check(text, self._graph)] if self._graph is not None else []}

    def save(self, text: str, version: str) -> dict[str, Any]:
        """Write the text, if the file still holds the version that it was made from.

        Raises:
            StudioError: the file was changed since, by another tab or another program; what it holds now goes along.
        """
        with self._saving:
            theirs, exists = self._text()
            if (now := _version(theirs, exists)) != version:
                raise StudioError(
                    f"{self.path} was changed since this page read it, in another tab or by another program; nothing was saved",
                    text=theirs,
                    version=now,
                )
            part = self.path.with_name(self.path.name + ".part")
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                part.write_text(text, encoding="utf-8")
                os.replace(part, self.path)
            except OSError as error:
                raise StudioError(f"{self.path} cannot be written: {error.strerror or error}") from error
        self._on_save(text)
        return {"version": _version(text, True), "message": f"Saved to {self.path}."}

    def palette(self) -> list[dict[str, Any]]:
        """The nodes in groups: those of this graph first, which can be drawn as they are, then the catalogue's by what they do."""
        specs = self._graph.builder.nodes if self._graph is not None else {}
        own = []
        for name, spec in specs.items():
            channels = node_channels(getattr(spec.runnable, "func", None) or spec.runnable)
            about = describe_node(name, spec.runnable)["about"]
            own.append(_entry(name, about, channels.reads, channels.writes))
        groups = [{"name": "of this graph", "own": True, "nodes": own}] if own else []
        for verb, about in VERBS.items():
            entries = [_entry(one.name, one.summary, one.reads, one.writes, one.module) for one in catalogue(verb)]
            groups.append({"name": f"{verb}: {about}", "own": False, "nodes": entries})
        return groups


def _entry(name: str, about: str, reads: Iterable[str], writes: Iterable[str], module: str = "") -> dict[str, str]:
    return {
        "name": name,
        "about": about,
        "module": module,
        "reads": ", ".join(sorted(reads)),
        "writes": ", ".join(sorted(writes)),
    }


def _show(finding: Finding) -> dict[str, Any]:
    return {"line": finding.line, "severity": "error", "message": finding.sentence}


def _version(text: str, exists: bool) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if exists else "none"
