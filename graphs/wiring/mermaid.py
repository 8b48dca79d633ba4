"""Mermaid flowcharts as text: `read_flow` reads one as editors and tools write it, `write_flow` writes one that people can edit.

A node's id is its name, and its text is only shown: `web["Web search"]` is the node `web`. The usual shapes of nodes are read, `&`,
arrows of any length (`-->` and `-.->`), labels in either place (`a -->|over| b`, `a -- over --> b`), nodes declared on lines of their
own, and subgraphs, whose frame is left out. Comments, front matter, a code fence, other classes than `deferred` and styles are skipped. What would be
lost (an arrow without a head or with two, an arrow to a subgraph) is refused, with its line, and so is the rest of Mermaid.

`b & c --> d` is a join, as in `StateGraph.add_edge(["b", "c"], "d")`: `d` runs once, when both are done. Two arrows `b --> d` and
`c --> d` are two edges, as in LangGraph: `d` runs each time that one of them is done. `d:::deferred` runs once, when nothing else is left
to run, as in `add_node(..., defer=True)`.

LangGraph's own drawings (`get_graph().draw_mermaid()`) show no joins, and are not read: `to_mermaid` draws any compiled graph.

The parsers to be had read less, or need more: `mermaid-parser-py` runs Mermaid's own JavaScript in Node, the ones written in Python
know no `&` and no escapes, and none says on which line an arrow stands. Hence this one: one regular expression for all tokens,
and one pass over them.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import NamedTuple, Self

from ...memory.errors import UserError, did_you_mean, type_of

__all__ = ["DrawnNode", "Edge", "Finding", "FlowError", "Flowchart", "read_flow"]


class Finding(NamedTuple):
    """A mistake in a drawing: its line, from 1 (0: of no single line), and a sentence about it."""

    line: int
    sentence: str


class FlowError(UserError, ValueError):
    """A drawing that cannot be read, or that does not fit its nodes and routers."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.findings = [Finding(line, message)]
        """All mistakes, each with its line."""

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Self:
        """The error that names several mistakes, one a line."""
        error = cls("\n".join(str(cls(said, line)) for line, said in findings))
        error.findings = [*findings]
        return error


@dataclass(frozen=True, order=True)
class Edge:
    """One arrow of a drawing."""

    source: str
    target: str
    label: str = ""
    dotted: bool = False
    join: tuple[str, ...] = ()
    """All nodes that the target waits for, of which `source` is one; empty where it waits for none but `source`."""
    line: int = field(default=0, compare=False)
    """The line of the text, from 1; 0 for an arrow that was not read from one."""


class DrawnNode(NamedTuple):
    """A node of a drawing: its name, the text that is shown (empty: its name), and the line where it stands first."""

    name: str
    text: str
    line: int


@dataclass(frozen=True)
class Flowchart:
    """A drawing that was read."""

    direction: str
    nodes: Mapping[str, DrawnNode]
    """By name, in the order of the text; START and END are among them."""
    edges: Sequence[Edge]
    """In the order of the text."""
    deferred: Collection[str] = ()
    """Names of the nodes that run when nothing else is left to run."""

    @property
    def lines(self) -> dict[str, int]:
        """Name of each node -> the line where it stands first."""
        return {name: drawn.line for name, drawn in self.nodes.items()}


_SHAPES = (
    ("((", "))"),
    ("([", "])"),
    ("(", ")"),
    ("[[", "]]"),
    ("[(", ")]"),
    ("[/", "/]"),
    ("[", "]"),
    ("{{", "}}"),
    ("{", "}"),
)
_TEXT = r'(?:"[^"]*"|[^\n"])*?'
_SHAPE = "|".join(rf"{re.escape(a)}{_TEXT}{re.escape(b)}(?=\s|$|[;&<=-]|:::)" for a, b in _SHAPES)
_DEFERRED = ":::deferred"
_NAME = r"(?:[\w\\+./!?*'$]|-(?![->.]))+"
_WORDS = r'(?:"[^"\n]*"|(?!--|==|\.-)[^\n])+?'
_TOKEN = re.compile(
    rf"""(?P<blank>[ \t\r\f]+|%%\{{.*?\}}%%|%%[^\n]*|```[^\n]*)
    |(?P<mark>:::[\w-]+)
    |(?P<stop>[\n;])
    |(?P<arrow>(?:-{{2,}}>|-\.+->
        |--(?![->xo])[ \t]*(?P<solid>{_WORDS})[ \t]*-{{2,}}>
        |-\.(?![-.>])[ \t]*(?P<dots>{_WORDS})[ \t]*\.+->)
        (?:[ \t]*\|(?P<label>"[^"\n]*"|[^|\n]*)\|)?)
    |(?P<link><?(?:-{{2,}}|={{2,}}|-\.+-?)[-=>xo]?)
    |(?P<join>&)
    |(?P<node>(?P<id>{_NAME})[ \t]*(?P<shape>{_SHAPE})?)""",
    re.VERBOSE | re.DOTALL,
)
_PREAMBLE = re.compile(r"\s+|%%\{.*?\}%%|%%[^\n]*|```\w*(?=\s)|---[ \t]*\n.*?\n[ \t]*---[ \t]*(?=\n)", re.DOTALL)
_BETWEEN = re.compile(r"[\s;]+|%%\{.*?\}%%|%%[^\n]*|```[^\n]*", re.DOTALL)
_HEADER = re.compile(r"(?:flowchart|graph)(?:[ \t]+(LR|RL|TD|TB|BT))?[ \t]*(?=$|\n|\r|;|%%)")
_ARROW_AHEAD = r"(?![ \t]*(?:-->|-\.|--|&))"
_MARKED = re.compile(r"class[ \t]+(?P<ids>[^\n]*?)[ \t]+deferred[ \t]*;?(?=\n|$)")
_SKIPPED = re.compile(rf"(?:classDef|class|style|linkStyle|direction)\b{_ARROW_AHEAD}[ \t][^\n]*")
_SUBGRAPH = re.compile(rf"subgraph\b{_ARROW_AHEAD}[ \t]*(?P<id>{_NAME})?(?P<more>[^\n;]*)")
_END_OF_SUBGRAPH = re.compile(r"end[ \t]*(?=$|\n|\r|;|%%)")


def read_flow(flow: str) -> Flowchart:
    """The nodes and arrows of a Mermaid flowchart.

    Raises:
        FlowError: naming the lines that are not understood.
    """
    if not isinstance(flow, str):
        raise FlowError(f"a drawing is a text, such as to_mermaid(graph) writes, got {type_of(flow)}")
    return _Reader(flow).read()


class _Reader:
    """One pass over the tokens of a drawing."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.ids: dict[str, tuple[str, int]] = {}
        """Id -> the text shown, and the line where it stands first."""
        self.arrows: list[Edge] = []
        """Between ids."""
        self.frames: list[int] = []
        """Lines of the subgraphs that are open."""
        self.subgraphs: set[str] = set()
        self.deferred: dict[str, int] = {}
        """Ids of the nodes with the mark of deferred ones, and the lines where it stands."""

    def read(self) -> Flowchart:
        direction, wrong = self._header(), list[Finding]()
        while self.at < len(self.text):
            if found := _BETWEEN.match(self.text, self.at):
                self._move(found)
                continue
            try:
                if not self._skip_statement():
                    self._statement()
            except FlowError as error:  # the next line may have another mistake
                wrong += error.findings
                self.at = (f"{self.text}\n").index("\n", self.at)
        wrong += [
            Finding(line, f"'{id}' is deferred here, and not drawn") for id, line in self.deferred.items() if id not in self.ids
        ]
        if wrong:
            raise FlowError.of(wrong)
        if self.frames:
            raise FlowError("this subgraph has no end", self.frames[-1])
        names = {id: (_plain(text) or id) if "\\" in id else id for id, (text, _) in self.ids.items()}
        edges = [self._named(arrow, names) for arrow in self.arrows]
        doubled = [edge for edge, n in Counter(edges).items() if n > 1]
        if doubled:
            again = [edge for edge in edges if edge == doubled[0]][1]
            raise FlowError(f"this arrow is drawn twice: {(again.source, again.target, again.label)}", again.line)
        nodes = {names[id]: DrawnNode(names[id], _plain(text), line) for id, (text, line) in self.ids.items()}
        return Flowchart(direction, nodes, edges, {names[id] for id in self.deferred})

    def _header(self) -> str:
        while found := _PREAMBLE.match(self.text, self.at):
            self._move(found)
        header = _HEADER.match(self.text, self.at)
        if not header:
            line = self.text[self.at :].partition("\n")[0].strip()
            raise FlowError(
                f"a flow begins with 'flowchart LR' or 'flowchart TD', not with {line if line else '(nothing)'!r}", self.line
            )
        self._move(header)
        return header.group(1) or "TD"

    def _skip_statement(self) -> bool:
        """Skip decoration and the frames of subgraphs, which stand at the beginning of a statement; False if there is none."""
        if found := _MARKED.match(self.text, self.at):
            self.deferred |= dict.fromkeys(re.split(r"[\s,]+", found.group("ids")), self.line)
            self._move(found)
        elif found := _SKIPPED.match(self.text, self.at):
            self._move(found)
        elif found := _SUBGRAPH.match(self.text, self.at):
            if found.group("id") and (not found.group("more").strip() or found.group("more").strip()[0] in "[({"):
                self.subgraphs.add(found.group("id"))
            self.frames.append(self.line)
            self._move(found)
        elif self.frames and (found := _END_OF_SUBGRAPH.match(self.text, self.at)):
            self.frames.pop()
            self._move(found)
        else:
            return False
        return True

    def _statement(self) -> None:
        """Read up to the end of a line or a semicolon: nodes with arrows between them."""
        begin, before, nodes = self.at, list[str](), list[str]()
        arrow: re.Match[str] | None = None
        wants_node = False
        while self.at < len(self.text):
            token = _TOKEN.match(self.text, self.at)
            kind = token.lastgroup if token else None
            misplaced = {"node": bool(nodes) and not wants_node, "stop": wants_node, "join": not nodes or wants_node}
            misplaced |= dict.fromkeys(("arrow", "link", "mark"), not nodes or wants_node)
            if token is None or misplaced.get(str(kind), False):
                raise self._unreadable(begin)
            if kind == "link":
                raise FlowError(
                    f"the line {token.group().strip()!r} does not say where it leads; arrows are --> and -.->, "
                    "with a space before a label",
                    self.line,
                )
            if kind == "node":
                nodes.append(self._node(token))
                wants_node = False
            elif kind == "join":
                wants_node = True
            elif token.group() == _DEFERRED:
                self.deferred[nodes[-1]] = self.line
            elif kind == "mark" and (meant := did_you_mean(token.group(), [_DEFERRED])):
                raise FlowError(f"the mark {token.group()!r} means nothing{meant}", self.line)
            elif kind in ("arrow", "stop"):
                self._connect(before, arrow, nodes)
                before, nodes, arrow = nodes, [], token if kind == "arrow" else None
                wants_node = kind != "stop"
            self._move(token)
            if kind == "stop":
                return
        if wants_node:
            raise self._unreadable(begin)
        self._connect(before, arrow, nodes)

    def _node(self, token: re.Match[str]) -> str:
        id, shape = token.group("id"), token.group("shape") or ""
        text, line = self.ids.get(id, ("", self.line))
        inside = next(
            (shape[len(a) : len(shape) - len(b)] for a, b in _SHAPES if shape.startswith(a) and shape.endswith(b)), ""
        )
        self.ids[id] = (inside.strip() or text, line)
        return id

    def _connect(self, sources: Sequence[str], arrow: re.Match[str] | None, targets: Sequence[str]) -> None:
        if arrow is None:
            return
        words = next((word for word in arrow.group("label", "solid", "dots") if word), "")
        dotted = arrow.group().startswith("-.")
        for target in targets:
            waits = len(sources) > 1 and not words.strip() and not dotted and target != "END"
            join = tuple(sources) if waits else ()
            self.arrows += [Edge(source, target, _plain(words), dotted, join, self.line) for source in sources]

    def _named(self, arrow: Edge, names: Mapping[str, str]) -> Edge:
        """The arrow between names in place of ids."""
        for id in (arrow.source, arrow.target):
            if id in self.subgraphs:
                raise FlowError(
                    f"'{id}' is a subgraph of the drawing; let the arrow begin or end at one of its nodes", arrow.line
                )
        source, target, join = names[arrow.source], names[arrow.target], tuple(names[one] for one in arrow.join)
        if "START" in join:
            raise FlowError(f"START cannot be waited for; draw 'START --> {target}' as an arrow of its own", arrow.line)
        return Edge(source, target, arrow.label, arrow.dotted, join, arrow.line)

    def _move(self, token: re.Match[str]) -> None:
        self.line += self.text.count("\n", self.at, token.end())
        self.at = token.end()

    def _unreadable(self, begin: int) -> FlowError:
        line = self.text[begin:].partition("\n")[0].strip()
        rest = self.text[self.at :].partition("\n")[0].strip() or line
        return FlowError(f"cannot read {rest!r} in the line {line!r}; lines look like 'a --> b -->|label| c'", self.line)


def _plain(text: str) -> str:
    """A label or a text as it is shown: without quotes, tags and entities."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    text = re.sub(r"<[a-z/][^<>]*>", " ", text)
    text = re.sub(
        r"#(\w+);", lambda found: unescape(f"&#{found[1]};" if found[1].isdigit() else f"&{found[1]};"), unescape(text)
    )
    return " ".join(text.split())


# Names as ids


def _written_id(name: str) -> str:
    """A node's name as an id. Of a name that Mermaid would read as something else, some characters stand as a backslash and their number, and
    the name follows as the node's text, which tells it when it is read."""
    if name not in _RESERVED and re.fullmatch(r"[^\W\d][\w+]*(?:[.-][\w+]+)*", name):
        return name
    first, *rest = (one if re.fullmatch(r"[A-Za-z0-9_-]", one) else f"\\{ord(one):x}" for one in name)
    id = f"\\{ord(first):x}" if name in _RESERVED else first
    return f'{"".join([id, *rest])}["{_entities(name)}"]'


_RESERVED = frozenset(
    ["end", "subgraph", "graph", "flowchart", "class", "classDef", "style", "linkStyle", "click", "direction", "default"]
)
"""Words that Mermaid reads as something else where a node may stand."""


def _entities(text: str) -> str:
    return re.sub(r"[^\w .,()\[\]/+'!?=:-]|%(?=%)", lambda found: f"#{ord(found.group())};", text)


def shown_label(outcome: object, target: str = "") -> str:
    """The label of an outcome in a drawing: the outcome itself as text, and for the target END `end`.

    An arrow without a label stands for the outcome of its target's name.
    """
    return " ".join(str(target if outcome == "" else outcome).split()).strip("_") or "_"


# Writing


def write_flow(edges: Iterable[Edge], direction: str = "LR", deferred: Collection[str] = ()) -> str:
    """A flowchart with these arrows, in the order in which they are walked from START; what follows without a choice is one line.

    The nodes whose names are in `deferred` have the mark of nodes that run when nothing else is left to run.
    """
    edges = list(edges)
    left = dict.fromkeys(edges)
    lines, order, met, named = [f"flowchart {direction}"], ["START"], {"START"}, set[str]()

    def name(node: str) -> str:
        first = node not in named
        named.add(node)
        if node in ("START", "END"):
            return node
        written = _written_id(node)
        return written + _DEFERRED * (node in deferred) if first else written.partition("[")[0]

    def arrow(edge: Edge) -> str:
        kind = "-.->" if edge.dotted else "-->"
        if not edge.label:
            return kind
        shown = _entities(edge.label)
        return f"{kind}|{shown}|" if shown == edge.label else f'{kind}|"{shown}"|'

    def draw(edge: Edge) -> None:
        sources = edge.join or (edge.source,)
        line = f"  {' & '.join(map(name, sources))}"
        while True:
            for one in edges:
                if (one.target, one.join) == (edge.target, edge.join) and one in left and (one.join or one == edge):
                    del left[one]
            line += f" {arrow(edge)} {name(edge.target)}"
            follows = [one for one in edges if one.source == edge.target]
            if edge.target in met or len(follows) != 1 or follows[0].label or follows[0].join or follows[0] not in left:
                break
            met.add(edge.target)
            edge = follows[0]
        if edge.target not in met and edge.target != "END":
            met.add(edge.target)
            order.append(edge.target)
        lines.append(line)

    for node in order:  # grows while it is walked
        for edge in [one for one in edges if one.source == node or node in one.join]:
            if edge in left and met.issuperset(edge.join):
                draw(edge)
    while left:  # joins whose nodes were met within a line, and what START does not reach
        draw(next(iter(left)))
    return "\n".join(lines) + "\n"
