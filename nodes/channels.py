"""The channels that a node reads and writes, from its code: for the catalogue of nodes, and for the check of a drawing.

Read is what the node's function, and the functions that it hands its state to, take from the state by name: `state["candidates"]`.
Written is what its return type says, if that is a TypedDict; else the names in the dicts that it returns. A node whose names are
known only when it is made says them in a property `further_channels`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any, get_type_hints

from langchain_core.runnables import Runnable
from typing_extensions import is_typeddict

__all__ = ["NodeChannels", "maker_channels", "node_channels"]

_DEPTH = 5
"""Functions that a state is followed through."""


@dataclass(frozen=True)
class NodeChannels:
    """The channels of a node."""

    reads: frozenset[str] = frozenset()
    """All channels that it takes from the state, also those that it can do without."""
    needs: frozenset[str] = frozenset()
    """Channels without which the node fails with a KeyError, whatever else the state holds."""
    writes: frozenset[str] = frozenset()
    is_open: bool = False
    """True if it may write others, too: its code does not say which."""
    declared: frozenset[str] = frozenset()
    """Channels of the type of its state, which LangGraph adds to those of the graph."""


def node_channels(node: Any) -> NodeChannels:
    """The channels of a node: a function, an object that is called, a class of such objects, or a Runnable."""
    shape = _shape(node), getattr(node, "further_channels", None) if not isinstance(node, type) else None
    if shape not in _KNOWN:
        if len(_KNOWN) >= 4096:
            _KNOWN.clear()
        _KNOWN[shape] = _read_node(node)
    return _KNOWN[shape]


_KNOWN: dict[Any, NodeChannels] = {}
"""Channels by a node's shape. Reading one takes some milliseconds, and a graph is built again and again."""


def _shape(value: Any, depth: int = 4) -> Any:
    """The code and the types that a node is made of; the channels depend on nothing else. It keeps no object alive."""
    parts: Sequence[Any] = ()
    kind: Any = value if isinstance(value, type) else type(value)
    if isinstance(value, partial):
        return _shape(value.func, depth)
    if isinstance(value, MethodType):
        kind, parts = value.__func__.__code__, (value.__self__,)
    elif isinstance(value, FunctionType):
        kind, parts = value.__code__, [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, one.name, None) for one in fields(value)]
    elif isinstance(value, Runnable):
        parts = [getattr(value, name, None) for name in ("func", "afunc")]
    return kind, *(_shape(part, depth - 1) for part in parts if depth)


def _is_filled(cell: Any) -> bool:
    with suppress(ValueError):
        return bool([cell.cell_contents])
    return False


def _read_node(node: Any) -> NodeChannels:
    uses, written = _Uses(), _Written()
    further = getattr(node, "further_channels", None) if not isinstance(node, type) else None
    for function, position in _entries(node):
        _follow(function, position, node, uses)
    for function in _results(node):
        _collect(function, written, node)
    if further is not None:
        written.names |= set(further)
        written.is_open = False
    if not written.found:
        written.is_open = True
    if _asks(node):
        written.names.add("usage")
    declared = frozenset().union(*(_declared(function) for function, position in _entries(node) if position == 0))
    return NodeChannels(frozenset(uses.reads), frozenset(uses.needs), frozenset(written.names), written.is_open, declared)


def maker_channels(function: Callable[..., Any]) -> NodeChannels:
    """The channels of the node that a function makes, from the functions `messages` and `read` within it (nodes/ask.py)."""
    plain, uses, written = _plain_function(function), _Uses(), _Written(names={"usage"})
    tree = _tree(plain.__code__) if plain else None
    if plain is None or tree is None:
        return NodeChannels(is_open=True)
    for inner in ast.walk(tree):
        if isinstance(inner, ast.FunctionDef) and inner is not tree:
            names = [argument.arg for argument in inner.args.args]
            if "state" in names:
                _Reader(plain, "state", "", None, uses, _DEPTH).block(inner.body, True)
            if inner.name == "read":
                _Results(plain, None, written, _DEPTH).add(inner)
    written.is_open = written.is_open or not written.found
    return NodeChannels(frozenset(uses.reads), frozenset(), frozenset(written.names), written.is_open)


def _asks(node: Any) -> bool:
    """True for a node that asks a model (nodes/ask.py)."""
    return not isinstance(node, type) and callable(getattr(node, "messages", None)) and callable(getattr(node, "read", None))


def _declared(function: Any) -> frozenset[str]:
    """The channels of the type that a function says its first argument has."""
    plain = _plain_function(function)
    hints = [hint for name, hint in _hints(plain).items() if name != "return"] if plain else []
    return frozenset(get_type_hints(hints[0])) if hints and is_typeddict(hints[0]) else frozenset()


@dataclass
class _Uses:
    reads: set[str] = field(default_factory=set)
    needs: set[str] = field(default_factory=set)


@dataclass
class _Written:
    names: set[str] = field(default_factory=set)
    is_open: bool = False
    found: bool = False


def _entries(node: Any) -> Iterator[tuple[Any, int]]:
    """The functions that a node is run by, each with the position of its state among the arguments (without `self`)."""
    if _asks(node):
        yield node.messages, 0
        yield node.read, 1
    elif isinstance(node, Runnable):
        function = getattr(node, "func", None) or getattr(node, "afunc", None)
        if function is not None:
            yield function, 0
        elif type(node).__module__.startswith("learngraph."):
            yield type(node).invoke, 0
    elif isinstance(node, type):
        yield node.invoke if issubclass(node, Runnable) else node.__call__, 0
    else:
        yield node, 0


def _results(node: Any) -> Iterator[Any]:
    """The functions whose results are a node's updates."""
    entries = [function for function, _ in _entries(node)]
    if len(entries) == 2:
        yield entries[1]
        if node.on_bad_reply is not None:
            yield node.on_bad_reply
    else:
        yield from entries


def _plain_function(function: Any) -> FunctionType | None:
    """The Python function behind a callable; None if there is none to read."""
    if isinstance(function, partial):
        function = function.func
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType) and not isinstance(function, type):
        function = type(function).__call__ if callable(function) else None
    return inspect.unwrap(function) if isinstance(function, FunctionType) else None


@lru_cache(maxsize=4096)
def _tree(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The syntax tree of a function; None where its source is not to be had, and for a lambda."""
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, SyntaxError, TypeError, IndexError):
        return None
    return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else None


# What is read


def _follow(function: Any, position: int, owner: Any, uses: _Uses, *, certain: bool = True, depth: int = _DEPTH) -> None:
    """Add what a function takes from the argument at this position (not counting `self`), which is the state."""
    plain = _plain_function(function)
    tree = _tree(plain.__code__) if plain else None
    if plain is None or tree is None or not depth:
        return
    names = [argument.arg for argument in (*tree.args.posonlyargs, *tree.args.args)]
    itself = names.pop(0) if names and names[0] in ("self", "cls") else ""
    if position >= len(names):
        return
    if not isinstance(function, FunctionType | MethodType | partial):
        owner = function
    elif isinstance(function, MethodType):
        owner = function.__self__
    _Reader(plain, names[position], itself, owner, uses, depth).block(tree.body, certain)


@dataclass
class _Reader:
    """Reads a function's statements in order, and knows which of them are always run."""

    function: FunctionType
    state: str
    itself: str
    owner: Any
    uses: _Uses
    depth: int

    def block(self, statements: list[ast.stmt], certain: bool) -> None:
        for statement in statements:
            self.visit(statement, certain)
            if any(isinstance(one, ast.Return | ast.Raise | ast.Continue | ast.Break) for one in ast.walk(statement)):
                certain = False  # what follows may be left out

    def visit(self, node: ast.AST, certain: bool) -> None:
        match node:
            case ast.Subscript(value=ast.Name(id=self.state), slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                self.uses.reads.add(key)
                if certain:
                    self.uses.needs.add(key)
            case ast.Call():
                self.call(node, certain)
            case ast.If(test=first) | ast.While(test=first) | ast.IfExp(test=first) | ast.For(iter=first):
                self.parts(node, first, certain)
            case ast.BoolOp(values=[first, *_]):
                self.parts(node, first, certain)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self.parts(node, node.generators[0].iter, certain)
            case ast.Try() | ast.Match() | ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef():
                self.parts(node, None, certain)
            case _:
                for child in ast.iter_child_nodes(node):
                    self.visit(child, certain)

    def parts(self, node: ast.AST, first: ast.AST | None, certain: bool) -> None:
        """Visit what is always run, and the rest as what may not be."""
        if first is not None:
            self.visit(first, certain)
        for child in ast.iter_child_nodes(node):
            if child is first:
                continue
            if isinstance(child, ast.comprehension):
                for part in (*child.ifs, *([] if child.iter is first else [child.iter])):
                    self.visit(part, False)
            else:
                self.visit(child, False)

    def call(self, node: ast.Call, certain: bool) -> None:
        match node.func:
            case ast.Attribute(value=ast.Name(id=self.state), attr="get") if node.args:
                if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                    self.uses.reads.add(node.args[0].value)
        for position, argument in enumerate(node.args):
            if isinstance(argument, ast.Name) and argument.id == self.state:
                target = _called(node.func, self.function, self.itself, self.owner)
                if target is not None and not isinstance(target, type):
                    _follow(target, position, self.owner, self.uses, certain=certain, depth=self.depth - 1)
        for child in ast.iter_child_nodes(node):
            self.visit(child, certain)


def _called(node: ast.expr, function: FunctionType, itself: str, owner: Any) -> Any:
    """The function that an expression names: of the module, of what encloses the function, or of the object itself.

    A parameter stands for the class that it says it is of.
    """
    match node:
        case ast.Name(id=name) if name == itself:
            return owner
        case ast.Name(id=name):
            with suppress(ValueError):  # an empty cell
                inside = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
                if name in inside:
                    return inside[name].cell_contents
            return function.__globals__.get(name) or _hints(function).get(name)
        case ast.Attribute(value=inner, attr=attribute) if isinstance(inner, ast.Name | ast.Attribute):
            return getattr(_called(inner, function, itself, owner), attribute, None)
    return None


# What is written


def _collect(function: Any, written: _Written, owner: Any = None, depth: int = _DEPTH) -> None:
    """Add the names that a function's results have."""
    plain = _plain_function(function)
    if plain is None or not depth:
        return
    returns = _hints(plain).get("return")
    if is_typeddict(returns):
        written.names |= get_type_hints(returns).keys()
        written.found = True
        return
    tree = _tree(plain.__code__)
    if tree is None:
        return
    if not isinstance(function, FunctionType | partial):
        owner = function.__self__ if isinstance(function, MethodType) else function
    _Results(plain, owner, written, depth).add(tree)


@dataclass
class _Results:
    """Reads what a function returns."""

    function: FunctionType
    owner: Any
    written: _Written
    depth: int
    tree: ast.AST = field(default_factory=ast.Pass)

    def add(self, tree: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Read all that the function itself returns."""
        self.tree, self.written.found = tree, True
        scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        inner = {id(part) for one in ast.walk(tree) if one is not tree and isinstance(one, scopes) for part in ast.walk(one)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Return) and id(node) not in inner and node.value is not None:
                self.result(node.value)
            elif isinstance(node, ast.Yield | ast.YieldFrom) and id(node) not in inner:
                self.written.is_open = True

    def result(self, value: ast.expr) -> None:
        match value:
            case ast.Constant(value=None):
                pass
            case ast.Dict(keys=keys, values=values):
                for key, part in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        self.written.names.add(key.value)
                    elif key is None:
                        self.result(part)
                    else:
                        self.written.is_open = True
            case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, op=ast.BitOr(), right=right):
                self.result(left)
                self.result(right)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(one.arg for one in keywords):
                self.written.names |= {str(one.arg) for one in keywords}
            case ast.Call(func=ast.Name(id="Command"), args=[], keywords=keywords):
                for one in keywords:
                    if one.arg == "update":
                        self.result(one.value)
            case ast.Name(id=name):
                self.variable(name)
            case ast.Call(func=called):
                deeper = _Written()
                _collect(_called(called, self.function, "self", self.owner), deeper, depth=self.depth - 1)
                self.written.names |= deeper.names
                self.written.is_open |= deeper.is_open or not deeper.found
            case _:
                self.written.is_open = True

    def variable(self, name: str) -> None:
        """Read what a local variable was set to: once as a whole, and then name by name."""
        found = False
        for node in ast.walk(self.tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=to)], value=value) | ast.AnnAssign(target=ast.Name(id=to), value=value):
                    if to == name and value is not None and not (isinstance(value, ast.Name) and value.id == name):
                        found = True
                        self.result(value)
                case ast.Subscript(value=ast.Name(id=to), slice=ast.Constant(value=str(key)), ctx=ast.Store()) if to == name:
                    self.written.names.add(key)
                case ast.AugAssign(target=ast.Name(id=to), value=value) if to == name:
                    self.result(value)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=to), attr="update")) if to == name:
                    self.written.is_open = True
        self.written.is_open |= not found


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}
