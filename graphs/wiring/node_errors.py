"""The parts, arguments and updates of a graph's nodes where they are wrong: in words, in place of an error from within LangGraph."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from functools import lru_cache
from inspect import signature
from traceback import walk_tb
from typing import Any

from langchain_core.runnables import ensure_config
from langgraph._internal._constants import CONFIG_KEY_READ, NS_SEP
from langgraph._internal._fields import get_cached_annotated_keys
from langgraph._internal._runnable import RunnableCallable
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END
from langgraph.graph._node import StateNodeSpec
from langgraph.pregel._algo import apply_writes
from langgraph.types import Command, Send

from ...memory.errors import UserError, did_you_mean, type_of
from ...memory.graph_input import InputError, check_names, explain_error, list_names, type_hints, type_name
from ...nodes.arguments import check_argument
from ...nodes.channels import NodeChannels, node_channels, node_types
from .mermaid import FlowError

__all__ = []


class ReadingNode(RunnableCallable):
    """A node as LangGraph calls it: where it reads what nothing has written, or writes what LangGraph leaves out, it says so."""

    builder: Any
    """Knows the state's channels, and all nodes."""
    typed: NodeChannels
    is_lent: bool
    """True for a node of a compiled graph, which may lead nowhere, as LangGraph has it."""
    runs_on: bool
    """True if more leads on than its Commands, or an arrow leads to END."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        """The update that the node returns."""
        with explain_key(f"'{self.name}'", lambda: input, self.builder, self.name):
            return self._checked(super().invoke(input, config, **kwargs), config)

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        """The update that the node returns."""
        with explain_key(f"'{self.name}'", lambda: input, self.builder, self.name):
            return self._checked(await super().ainvoke(input, config, **kwargs), config)

    def _checked(self, returned: Any, config: Any) -> Any:
        """The update that the node returned, if LangGraph takes all of it.

        Raises:
            FlowError: it is no update, or has a key that the node's return type lacks, or that is no channel; or it leads nowhere, or to
                a graph around that is not there.
        """
        channels = self.builder.channels.keys()
        parts = returned if isinstance(returned, list | tuple) else (returned,)
        if graphs := [one.graph for one in parts if isinstance(one, Command) and one.graph is not None]:  # of the graph around
            if Command.PARENT in graphs and NS_SEP not in ensure_config(config)["configurable"].get("checkpoint_ns", NS_SEP):
                said = "which only a graph that runs as a node of another can return: leave out graph=, or draw it into one"
                raise FlowError(f"'{self.name}' returned a Command with graph=Command.PARENT, {said}")
            return returned
        if not (self.runs_on or self.is_lent or any(isinstance(one, Command) and (one.goto or one.graph) for one in parts)):
            raise FlowError(f"'{self.name}' returned no Command that leads on, {ends_here(self.name)}")
        update = returned.update if isinstance(returned, Command) else returned
        if not isinstance(update, dict):
            parts = update if isinstance(update, list | tuple) else ()
            is_known = any(isinstance(one, Command) for one in parts) or get_cached_annotated_keys(type(update))
            if update is returned is not None and not is_known and "__root__" not in channels:
                came = f"{type_of(update)} ({update!r:.60})"
                said = f"and a node returns a dict of channels, such as {{{min(channels)!r}: ...}}, or None"
                raise FlowError(f"'{self.name}' returned {came}, {said}")
            return returned
        for name in update.keys() - self.typed.writes:
            if name in channels:
                if self.typed.is_open or self.is_lent:
                    continue
                declared, has = type_name(node_types(self.func or self.afunc)[1]), list_names(sorted(self.typed.writes))
                said = f"which its return type {declared} does not have: that has {has}; return what the type says, or add `{name}` to it"
                raise FlowError(f"'{self.name}' writes `{name}`, {said}")
            hint = did_you_mean(str(name), channels - update.keys())
            is_all = not any(one in channels for one in update)  # beside a channel LangGraph leaves others out
            if hint or is_all or not self.typed.is_open:
                hint = hint or f"; there are {', '.join(sorted(channels))}"
                raise FlowError(f"'{self.name}' writes `{name}`, which is no channel of the state{hint}")
        return returned


@contextmanager
def explain_key(reader: str, state: Callable[[], Any], builder: Any, node: str | None, own: Any = None) -> Iterator[None]:
    """A context in which a node or its router (`own`: its type) reads the state: an `InputError` for a KeyError where the state lacks the key."""
    try:
        yield
    except KeyError as error:
        key, given = error.args[0] if error.args else None, state()
        if not isinstance(key, str) or not isinstance(given, Mapping) or key in given:
            raise
        typed = {f"'{name}'": getattr(spec.runnable, "typed", NodeChannels()) for name, spec in builder.nodes.items()}
        silent = [name for name, one in typed.items() if key in one.writes and name != reader]
        type = own or getattr(builder.nodes.get(node), "input_schema", builder.state_schema)
        if key in builder.channels.keys() - builder.schemas.get(type, {key}) and (own or f"'{node}'" not in silent):
            whose = f"its type {type_name(type)}" if own or reader == f"'{node}'" else f"the type {type_name(type)} of '{node}'"
            said = f"which {whose} does not have, and so is not given: add `{key}` to {type_name(type)}"
        elif silent:
            whose = f"the return type of {' and '.join(silent)}, which did not run before, or did not return it"
            said = f"which nothing has written: it is in {whose}; return it there, let that run before, or give it in the input"
        elif key in builder.channels:
            said = "which nothing has written: give it in the input, or draw a node before that writes it"
        elif hint := did_you_mean(key, builder.channels):
            said = f"which is no channel of the state{hint}"
        else:
            raise
        raise InputError(f"{reader} reads `{key}`, {said}; it was given {list_names(given)}") from error


@contextmanager
def explaining(graph: Any, given: Any, config: Any) -> Iterator[None]:
    """A context in which a graph runs on an input: what is wrong with the input, or with what nodes side by side wrote, is a sentence."""
    if CONFIG_KEY_READ not in (config or {}).get("configurable", {}):  # as a node it is given all that the graph around has
        check_names(graph, given)
    try:
        yield
    except (InputError, KeyError, AttributeError, TypeError) as error:
        explain_error(graph, given, error)
        raise
    except InvalidUpdateError as error:
        calls = [frame.f_locals for frame, _ in walk_tb(error.__traceback__) if frame.f_code is apply_writes.__code__]
        if not calls or "chan" not in calls[-1]:
            raise
        channel = calls[-1]["chan"]
        wrote = [f"'{task.name}'" for task in calls[-1]["tasks"] for name in dict(task.writes) if name == channel]
        ran, order = "each wrote", f" or draw one behind the other, {' --> '.join(dict.fromkeys(wrote))}".replace("'", "")
        if len(set(wrote)) == 1:
            ran, wrote, order = "wrote each time", [f"{wrote[0]} {len(wrote)} times"], ""
        raise FlowError(
            f"{' and '.join(dict.fromkeys(wrote))} ran at the same time, and {ran} `{channel}`, which holds one value; give the channel a "
            f"reducer, such as {channel}: Annotated[list, operator.add],{order}".rstrip(",")
        ) from error


def work_pieces(returned: Any, targets: Sequence[str]) -> list[Any]:
    """The pieces of work that a fan-out function returned: inputs of the nodes that it starts, or Sends.

    Raises:
        FlowError: it returned neither.
    """
    if isinstance(returned, Send):
        return [returned]
    if not isinstance(returned, Iterable) or isinstance(returned, str | Mapping):
        a = next((one for one in targets if one != END), "END")
        came = "None" if returned is None else f"{type_of(returned)} ({returned!r:.60})"
        said = f"and it returns a list with an input of '{a}' for each start, such as [{{...}}, {{...}}], or a list of Sends"
        raise FlowError(f"the fan-out that starts '{a}' returned {came}, {said}")
    return list(returned)


def ends_here(source: str | None) -> str:
    """The end of a sentence about a node from which nothing has led on."""
    return f"so nothing would follow '{source}', and no arrow says so; draw '{source} -.-> END' if its way may end there"


def reading_node(given: Any, node: Any, builder: Any, runs_on: bool) -> Any:
    """The node of a builder as a `ReadingNode`, if it is a function or an object that is called; `given`: as the drawing was given it."""
    if not isinstance(node, RunnableCallable):
        return node
    reading: Any = copy(node)
    reading.__class__, reading.builder, reading.typed = ReadingNode, builder, node_channels(node.func or node.afunc)
    reading.is_lent, reading.runs_on = isinstance(given, StateNodeSpec) and getattr(node, "is_lent", True), runs_on
    return reading


_hints_of_class: Any = lru_cache(maxsize=512)(type_hints)
NODES = NodeChannels.__module__.rpartition(".")[0] + "."
KWARGS = ("config", "previous", "runtime", "store", "writer")
"""Names of the arguments that LangGraph gives a node beside the state."""


def wrong_arguments(node: Any) -> str:
    """The fault of the arguments that a node asks for, in words; empty where they are right."""
    try:
        asked = signature(node)
    except (TypeError, ValueError):  # it does not say them
        return ""
    try:
        asked.bind({}, **{name: None for name in [*asked.parameters][1:] if name in KWARGS})
    except TypeError as error:
        return f"is called with the state, and by name with {', '.join(KWARGS)}: {error}"
    return ""


def wrong_parts(node: Any) -> Iterator[str]:
    """The arguments of a node of ours, and of the parts in it, that are of another kind than its class says, each in words."""
    hints = _hints_of_class(type(node), True) if is_dataclass(node) and type(node).__module__.startswith(NODES) else {}
    for one in fields(node) if hints else ():
        value = getattr(node, one.name, None)
        try:
            check_argument(type(node).__name__, one.name, value, hints.get(one.name, Any) if one.init else Any)
        except UserError as error:
            yield str(error)
        yield from wrong_parts(value)
