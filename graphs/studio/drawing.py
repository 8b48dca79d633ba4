"""A drawing that is edited on the page: its text in a `.mmd` file, the check of it, and the nodes to draw with."""

import hashlib
import json
import math
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import TypeAdapter

from ...memory.errors import UserError, did_you_mean
from ...memory.graph_input import type_hints
from ...nodes.catalogue import VERBS, catalogue
from ...nodes.channels import node_channels
from ..wiring.drawn import read_wiring
from ..wiring.flow import FlowError, check, rewire, to_mermaid
from ..wiring.inputs import MethodInputs
from ..wiring.mermaid import read_flow
from ..wiring.node_parts import LacksParts, drawn_from_catalogue
from ..wiring.picture import describe_node
from .shown_values import show_graph
from .walk_branch import StudioError

__all__ = ["Drawing", "PythonSource"]


BY_STUDIO = "written by `learngraph studio` (version "
"""The words in the first line of a Python file that the studio wrote, before the version of the other lines."""


@dataclass(frozen=True)
class PythonSource:
    """The Python that makes what a drawing is drawn onto."""

    imports: str
    """Lines with the imports."""
    inputs: str
    """Lines that make `inputs`, from which nodes are made by name."""
    base: str
    """Lines that make the graph `base`."""
    run: str
    """Lines that run the finished `graph`."""


class Drawing:
    """A drawing and its file.

    Args:
        title: shown above it.
        path: the `.mmd` file; it need not exist.
        text: the text while there is no file.
        graph: a compiled graph with the nodes that may be drawn.
        inputs: makes the inputs of further nodes, which are drawn by their names in the catalogue; None: only those of the graph.
        source: the Python that makes the graph; None: it has its file.

    Raises:
        UserError: the file cannot be read.
    """

    def __init__(
        self,
        title: str,
        path: Path,
        text: str,
        graph: Any,
        inputs: Callable[[], MethodInputs] | None = None,
        source: PythonSource | None = None,
    ) -> None:
        self.title, self.path = title, path
        self._first, self._graph, self._source = text, graph, source
        self._inputs: Any = inputs
        self._saving, self._renewals, self._walked = Lock(), 0, ""
        self.read()

    def renew(self, graph: Any, source: PythonSource | None = None) -> None:
        """Take a graph whose code or settings have changed: its nodes may be drawn from now on."""
        self._graph, self._source, self._renewals = graph, source or self._source, self._renewals + 1
        self._first = to_mermaid(graph)

    def read(self) -> dict[str, Any]:
        """The text, a version that says which text it was, and a number that changes with the graph whose nodes it draws."""
        text, exists = self._text()
        about = {"title": self.title, "path": str(self.path), "exists": exists, "graph": self._renewals}
        return about | {"text": text, "version": _version(text, exists)}

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
            drawn, wiring = read_flow(text), read_wiring(self._graph.builder)
        except FlowError as error:
            return {"graph": None, "findings": [_show(*one) for one in error.findings]}
        nodes, routers, lacking = self._further(text)
        found = [_show(drawn.nodes[name].line, str(error)) for name, error in lacking.items()]
        unknown = [n for n in drawn.nodes if n not in {*nodes, *lacking, *self._graph.builder.nodes, "START", "END"}]
        if unknown and self.title.endswith(".mmd"):  # a file of a drawing alone
            names, known = ", ".join(map(repr, unknown)), [*self._graph.builder.nodes, *(one.name for one in catalogue())]
            hint = next(filter(None, (did_you_mean(name, known) for name in unknown)), ".")
            said = f"Only the arrows can be checked: no node stands behind {names}, neither here nor in the catalogue{hint}"
            found.append(_show(0, said))
        found = found or [_show(*one) for one in check(text, self._graph, routers, **nodes)]
        shown = show_graph(text, self._graph, nodes)
        for arrow, edge in zip(shown["edges"], drawn.edges, strict=True):
            arrow["bound"] = wiring.kind(edge) in ("fan-out", "command")  # its node says where it leads
        return {"graph": shown, "findings": found}

    def _further(self, text: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, UserError]]:
        """The nodes and routers of a text that are made by their names in the catalogue, and errors for those that cannot be made."""
        wanted, routers = drawn_from_catalogue(text, self._graph.builder.nodes) if self._inputs else ({}, {})
        nodes, lacking = dict[str, Any](), dict[str, UserError]()
        for name, kind in wanted.items():
            try:
                nodes[name] = self._inputs().node(kind, **settings_in_text(text, name))
            except UserError as error:
                lacking[name] = error
        return nodes, {name: self._inputs().node(kind) for name, kind in routers.items()}, lacking

    def node_form(self, text: str, name: str) -> dict[str, Any] | None:
        """The form of the settings of a node that is made by its name; None for another, and for one without settings.

        Changed settings stand in the text, as `%% EpsilonGreedy {"epsilon": 0.2}`, which Mermaid takes for a comment.
        """
        nodes, _, _ = self._further(text)
        wanted, _ = drawn_from_catalogue(text, self._graph.builder.nodes)
        if name not in nodes or not (given := _settings_of(wanted[name], nodes[name])):
            return None
        usual = _settings_of(wanted[name], self._inputs().node(wanted[name]))
        hints = type_hints(type(nodes[name]), True)
        parts = {one: TypeAdapter(hints.get(one, type(given[one]))).json_schema() | {"default": usual[one]} for one in given}
        return {"title": f"Settings of {name}", "schema": {"type": "object", "properties": parts}, "value": given}

    def wire_onto(self, graph: Any) -> Any:
        """A graph with the same nodes as ours, as the saved drawing wires it; as it is while nothing is saved."""
        text, exists = self._text()
        if exists:
            nodes, routers, lacking = self._further(text)
            for error in lacking.values():
                raise error
            try:
                graph = rewire(graph, text, routers, **nodes)
            except FlowError as error:
                raise FlowError(f"{self.path} as it is saved, {error}") from error
        self._walked = _version(text, exists)
        return graph

    def is_redrawn(self) -> bool:
        """True if the saved text is another than the one that was last wired onto a graph."""
        return _version(*self._text()) != self._walked

    def write_python(self) -> dict[str, Any]:
        """Write the Python file that the saved drawing lacks, beside it.

        Raises:
            StudioError: nothing is saved, the nodes are a program's, or somebody has written or changed the file.
        """
        text, exists = self._text()
        path = self.path.with_suffix(".py")
        if not exists or not self._source:
            raise StudioError("save the drawing first" if self._source else "this graph has its Python file already")
        if path.exists() and not is_as_written(path.read_text(encoding="utf-8")):
            raise StudioError(
                f"{path} has lines that are not the studio's, and was left as it is; move it away to have it written anew"
            )
        nodes, _, lacking = self._further(text)
        dots = {name: error.call for name, error in lacking.items() if isinstance(error, LacksParts)}
        if len(dots) == len(lacking) == 0 and (faults := self.check(text)["findings"]):
            raise StudioError(f"its graph could not be made: {faults[0]['message']}; mend the drawing first")
        wanted, routers = drawn_from_catalogue(text, self._graph.builder.nodes)
        calls = dots | {name: _call_of(wanted[name], node) for name, node in nodes.items()}
        lines = python_text(self._source, wanted, routers, calls)
        head = f'"""The graph of {self.path.name}, {BY_STUDIO}{_version(lines, True)})."""\n'
        path.write_text(head + lines, encoding="utf-8")
        asked = f" Fill in the dots of {', '.join(dots)} first." if dots else ""
        return {"message": f"Wrote {path}, whose `graph` is the graph of {self.path.name}.{asked}"}

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
        said, faults = f"Saved to {self.path}", self.check(text)["findings"]
        if faults:
            where = f"line {faults[0]['line']}: " if faults[0]["line"] else ""
            said += f"; it cannot run yet, for {len(faults)} fault{'s' * (len(faults) > 1)}. {where}{faults[0]['message'].rstrip('.')}"
        return {"version": _version(text, True), "message": f"{said}.", "runs": not faults}

    def palette(self) -> list[dict[str, Any]]:
        """The nodes in groups: those of this graph first, which can be drawn as they are, then the catalogue's by what they do."""
        own = []
        for name, spec in self._graph.builder.nodes.items():
            channels = node_channels(getattr(spec.runnable, "func", None) or spec.runnable)
            about = describe_node(name, spec.runnable)["about"]
            own.append(_entry(name, about, channels.reads, channels.writes))
        groups = [{"name": "of this graph", "own": True, "nodes": own}]
        names = Counter(one.name for one in catalogue())
        for verb, about in VERBS.items():
            drawn = [one for one in catalogue(verb) if one.is_drawn]
            called = [f"{verb}.{one.name}" if names[one.name] > 1 else one.name for one in drawn]
            entries = [
                _entry(name, one.summary, one.reads, one.writes, one.module)
                | {"settings": ", ".join(f"{setting}: {kind}" for setting, kind in one.settings.items())}
                for name, one in zip(called, drawn, strict=True)
            ]
            groups.append({"name": f"{verb}: {about}", "own": False, "nodes": entries})
        return groups


def is_as_written(text: str) -> bool:
    """True if a Python file is as the studio wrote it, whose first line has the version of the others."""
    head, _, lines = text.partition("\n")
    return head.endswith(f'{BY_STUDIO}{_version(lines, True)})."""')


def python_text(source: PythonSource, nodes: Mapping[str, str], routers: Mapping[str, str], calls: Mapping[str, str]) -> str:
    """The lines of a Python file that wires a drawing beside it: nodes by these calls, or as routers by their names in the catalogue."""
    made, given = "", ["base", "drawing"]
    for kind, named, known in (("routers", routers, dict[str, str]()), ("nodes", nodes, calls)):
        if named:
            entries = (f"    {name!r}: {known.get(name, f'inputs.node({wanted!r})')},\n" for name, wanted in named.items())
            made += f"{kind} = {{\n{''.join(entries)}}}\n"
            given.append("**nodes" if kind == "nodes" else "routers")
    inputs = source.inputs if made or "inputs" in source.base else ""
    drawing = 'drawing = Path(__file__).with_suffix(".mmd").read_text(encoding="utf-8")\n'
    graph = f"graph = learngraph.rewire({', '.join(given)})\n"
    run = f'\nif __name__ == "__main__":\n{textwrap.indent(source.run, "    ")}'
    return (
        f"\nfrom pathlib import Path\n\nimport learngraph\n{source.imports}\n{inputs}{source.base}{made}{drawing}{graph}{run}"
    )


def settings_in_text(text: str, name: str) -> dict[str, Any]:
    """The settings of a node that a drawing's text has.

    Raises:
        UserError: its line is no JSON object.
    """
    line = re.search(rf"^\s*%% {re.escape(name)} (\{{.*)$", text, re.MULTILINE)
    try:
        return dict(json.loads(line[1])) if line else {}
    except ValueError as error:
        raise UserError(
            f'the settings of {name} are a JSON object, as %% {name} {{"k": 3}}; got {line and line[1]} ({error})'
        ) from error


def _settings_of(name: str, node: Any) -> dict[str, Any]:
    """The settings of a node of the catalogue that are plain values."""
    known = next(one.settings for one in catalogue() if name in (one.name, f"{one.verb}.{one.name}"))
    given = {one: value for one in known if isinstance(value := getattr(node, one, None), bool | int | float | str)}
    return {one: value for one, value in given.items() if value != math.inf}


def _call_of(name: str, node: Any) -> str:
    """The call that makes a node of the catalogue, with its settings: who reads the file sees them, and may change them."""
    return f"inputs.node({name!r}{''.join(f', {one}={value!r}' for one, value in _settings_of(name, node).items())})"


def _entry(name: str, about: str, reads: Iterable[str], writes: Iterable[str], module: str = "") -> dict[str, str]:
    channels = {"reads": ", ".join(sorted(reads)), "writes": ", ".join(sorted(writes))}
    return {"name": name, "about": about, "module": module, **channels}


def _show(line: int, sentence: str) -> dict[str, Any]:
    return {"line": line, "severity": "error", "message": sentence}


def _version(text: str, exists: bool) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if exists else "none"
