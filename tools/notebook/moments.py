"""A graph as a walk calls it, beside a loop where it must, and the moments and places that it gives back."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise, zip_longest
from threading import Thread
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.types import Command, StateSnapshot
from pydantic import BaseModel, ValidationError

from ...memory.errors import UserError, did_you_mean, plural, type_of
from ...memory.graph_input import InputError, list_names, needed_channels, type_name
from .pauses import Graph, Invocation, find_subgraph
from .tables import StepperError, channel_types, to_line, two_lines

__all__ = []


def names_of(nodes: Sequence[str]) -> str:
    """Nodes that run side by side, in words."""
    return " and ".join(f"{name} ({times} times)" if times > 1 else name for name, times in Counter(nodes).items())


def place_of(turns: int, turn: int, number: int) -> str:
    """The number of a moment, in words: `moment 3`; where there are several turns, `turn 2, moment 3`. Turns count from 1."""
    return f"turn {turn}, moment {number}" if turns > 1 else f"moment {number}"


def turns_to(now: StateSnapshot, history: Iterable[StateSnapshot], *, only_last: bool) -> list[list[StateSnapshot]]:
    """The moments that led to this one, a list for each turn of a chat.

    Args:
        now: the moment.
        history: the moments of its thread.
        only_last: whether to leave out the turns before.
    """
    made = {checkpoint_id(one.config): one for one in history}
    made[checkpoint_id(now.config)] = now  # which knows what has run already, of nodes side by side
    turns, here = [list[StateSnapshot]()], made.get(checkpoint_id(now.config))
    while here is not None and not (only_last and here.next == ("__start__",)):
        if here.next == ("__start__",):
            turns.append([])
        elif source_of(here) != "fork":  # a fork is LangGraph's copy of the moment before
            turns[-1].append(here)
        here = made.get(checkpoint_id(here.parent_config)) if here.parent_config else None
    if turns[0] and source_of(now) == "fork":  # the copy alone knows which nodes still ask
        turns[0][0] = turns[0][0]._replace(next=now.next, tasks=now.tasks)
    return [turn[::-1] for turn in turns[::-1] if turn] or [[]]


def passes_along(path: Sequence[StateSnapshot], graph: Graph) -> dict[tuple[str, str], int]:
    """How often each arrow of a graph was taken along the moments of a path: (from, to) -> number. A fan-out takes one as often as it sends."""
    builder, arrived = graph.builder, set[tuple[str, str]]()
    waits = {(a, b) for starts, b in builder.waiting_edges for a in starts}
    waits |= {(a, b) for a, b in builder.edges if b in builder.nodes and builder.nodes[b].defer}
    drawn = {(edge.source, edge.target) for edge in graph.get_graph().edges} - waits
    counted = Counter[tuple[str, str]]()
    moments = [("__start__",), *([task.name for task in one.tasks] for one in without_replaced(path))]
    for before, after in pairwise(moments):
        counted.update((a, b) for a in dict.fromkeys(before) for b in after or ("__end__",) if (a, b) in drawn)
        arrived |= {(a, b) for a, b in waits if a in before}
        counted.update(came := {(a, b) for a, b in arrived if b in (after or ("__end__",))})
        arrived -= came
    ends = {"__start__": "START", "__end__": "END"}
    return {(ends.get(a, a), ends.get(b, b)): times for (a, b), times in counted.items()}


def without_replaced(path: Sequence[StateSnapshot]) -> list[StateSnapshot]:
    """The moments of a path without those that an edit has replaced."""
    return [one for one, after in pairwise([*path, None]) if one and not (after and source_of(after) == "update")]


def is_asynchronous(graph: Any) -> bool:
    """True if a node of the graph, or of a graph within it, can only be awaited."""
    for name, spec in graph.builder.nodes.items():
        if getattr(spec.runnable, "afunc", None) is not None and getattr(spec.runnable, "func", None) is None:
            return True
        inner = find_subgraph(graph, name)
        if hasattr(inner, "builder") and is_asynchronous(inner):
            return True
    return False


def latest_moment(graph: Graph, in_loop: bool, place: RunnableConfig) -> StateSnapshot:
    """The latest moment of a thread, or the one that the place names.

    Raises:
        StepperError: the place names no thread, or one of which the checkpointer holds nothing.
    """
    if not isinstance(place, Mapping) or "thread_id" not in place.get("configurable", {}):
        said = "such as {'configurable': {'thread_id': 'walk-1'}}"
        raise StepperError(f"a walk takes a graph, and a place in a run of it, {said}; got {place!r:.80}")
    found = read_moment(graph, in_loop, place)
    if found.created_at is None:
        named = ", ".join(f"{key} {value!r}" for key, value in place["configurable"].items())
        raise StepperError(f"the checkpointer holds nothing of {named}; step(graph, input, thread=NAME) begins a run")
    return found


def read_moment(graph: Graph, in_loop: bool, place: RunnableConfig, subgraphs: bool = False) -> StateSnapshot:
    """The moment of a place, or the latest one of a thread.

    LangGraph shows the latest with what nodes side by side have written already. Where their writes exclude each other, it is shown
    without them, and without its subgraphs' moments.
    """
    try:
        found: StateSnapshot = call_graph(graph, in_loop, "get_state", place, subgraphs=subgraphs)
    except InvalidUpdateError:
        saved = call_graph(graph.checkpointer, in_loop, "get_tuple", place)
        found = call_graph(graph, in_loop, "get_state", saved.config)
    return found


def is_of_this_loop(saver: Any) -> bool:
    """True if a checkpointer belongs to the event loop that runs here: its synchronous calls would wait for that loop for ever.

    Raises:
        StepperError: the checkpointer's connections come from a pool that works in the loop that would wait here, so that its
            asynchronous calls would wait for ever, too.
    """
    try:
        is_here = getattr(saver, "loop", None) is asyncio.get_running_loop()
    except RuntimeError:
        return False
    if is_here and hasattr(getattr(saver, "conn", None), "getconn"):
        said = f"the pool of {type(saver).__name__} lends connections in the event loop that would wait here"
        raise StepperError(f"{said}: step in a thread, such as `await asyncio.to_thread(walk.step)`")
    return is_here


def read_history(graph: Graph, in_loop: bool, thread: RunnableConfig) -> list[StateSnapshot]:
    """The moments of a thread, or of a subgraph in it, the newest first."""

    async def read() -> list[StateSnapshot]:
        return [one async for one in graph.aget_state_history(thread)]

    if not in_loop:
        return list(graph.get_state_history(thread))
    return asyncio.run_coroutine_threadsafe(read(), loop_of_walks()).result()


def call_graph(graph: Any, in_loop: bool, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a graph or a checkpointer, in the loop of walks its asynchronous one."""
    if not in_loop:
        return getattr(graph, name)(*args, **kwargs)
    return asyncio.run_coroutine_threadsafe(getattr(graph, f"a{name}")(*args, **kwargs), loop_of_walks()).result()


@lru_cache(maxsize=1)
def loop_of_walks() -> asyncio.AbstractEventLoop:
    """The loop of all asynchronous walks: clients that a node keeps belong to one loop."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="walks", daemon=True).start()
    return loop


def descend(top: StateSnapshot, inside: Sequence[Invocation]) -> tuple[StateSnapshot, int]:
    """The moment inside these invocations, or as far inside as they have not ended; and how many of them that are."""
    for depth, one in enumerate(inside):
        states = [task.state for task in top.tasks if one.is_task(task.name, task.path)]
        if not states or not isinstance(states[0], StateSnapshot) or not states[0].next:
            return top, depth
        top = states[0]
    return top, len(inside)


def nodes_of(graph: Any) -> list[str]:
    return [name for name in graph.nodes if name != "__start__"] if graph is not None else []


FIELDS = {"approve": (), "edit": ("edited_action",), "reject": (), "respond": ("message",)}
"""Kind of a decision of LangChain's HumanInTheLoopMiddleware -> what it cannot do without."""


def tools_of(graph: Any) -> dict[str, Any]:
    """The tools that nodes of the graph, and of the graphs within it, call, by their names."""
    found: dict[str, Any] = {}
    for name, spec in graph.builder.nodes.items() if hasattr(graph, "builder") else ():
        found |= {**tools_of(find_subgraph(graph, name)), **getattr(spec.runnable, "tools_by_name", {})}
    return found


def _check_arguments(graph: Any, name: str, args: Mapping[str, Any]) -> None:
    """Refuse a tool that the graph does not have, and arguments that its tool does not take; where no node has tools, any are taken."""
    if (held := tools_of(graph)) and name not in held:
        raise StepperError(f"there is no tool {name!r}{did_you_mean(name, held, 'there are')}")
    schema = getattr(held.get(name), "tool_call_schema", None)
    if not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return
    known = {key for field, one in schema.model_fields.items() for key in (field, one.alias) if key}
    for key in args.keys() - known:
        raise StepperError(f"{name!r} takes no argument {key!r}{did_you_mean(key, known, 'it takes')}")
    try:
        schema.model_validate(dict(args))
    except ValidationError as error:
        first = error.errors()[0]
        place, given = ".".join(map(str, first["loc"])), first["input"]
        wrong = "is required" if first["type"] == "missing" or given is None else f"is {given!r:.60}: {first['msg']}"
        raise StepperError(f"the call of {name!r} is not made: {place} {wrong}") from error


def check_answer(question: Any, answer: Any, graph: Any) -> None:
    """Refuse an answer to a question of LangChain's HumanInTheLoopMiddleware that it could not read, or a tool of the graph not take, with
    a `StepperError` that shows a right answer."""
    calls = question.get("action_requests") if isinstance(question, Mapping) else None
    if not isinstance(calls, list):
        return
    given = answer.get("decisions") if isinstance(answer, Mapping) else None
    decisions = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    is_whole = all(one.keys() >= {*FIELDS.get(str(one.get("type")), ("type",))} and "type" in one for one in decisions)
    if len(decisions) == len(calls) and is_whole:
        for one, asked in zip(decisions, question.get("review_configs") or (), strict=False):
            if one["type"] not in asked["allowed_decisions"]:
                near = did_you_mean(str(one["type"]), asked["allowed_decisions"], "it can be")
                raise StepperError(f"{one['type']!r} is no decision on a call of {asked['action_name']!r}{near}")
            if (
                one["type"] == "edit"
                and isinstance(edited := one["edited_action"], Mapping)
                and edited.keys() >= {"name", "args"}
            ):
                _check_arguments(graph, edited["name"], edited["args"])
        return
    form = ", ".join(["{'type': 'approve'}"] * len(calls))
    raise StepperError(
        f"LangChain's HumanInTheLoopMiddleware asks: resume({{'decisions': [{form}]}}) answers, with one decision for each of "
        f"{plural(len(calls), 'call')}; others are {{'type': 'reject', 'message': ...}}, {{'type': 'respond', 'message': ...}} and "
        f"{{'type': 'edit', 'edited_action': {{'name': ..., 'args': ...}}}}; got {answer!r:.60}"
    )


@contextmanager
def explaining(graph: Graph, latest: Callable[[], Any]) -> Iterator[None]:
    """Raise a sentence in place of a KeyError where a node reads a channel that nothing has written; `latest` gives the run's values."""
    try:
        yield
    except KeyError as error:
        values, key, known = latest(), next(iter(error.args), None), graph.builder.channels
        if not isinstance(values, Mapping) or key not in known.keys() - values:
            raise
        form = f"step(graph, {{{key!r}: ...}}) with a {type_name(channel_types(graph.builder).get(key, 'value'))}"
        said = f"a node reads `{key}`, which nothing has written: give it in the input, such as {form}"
        raise InputError(f"{said}; so far there is {list_names(values)}") from error


def checkpoint_id(config: RunnableConfig) -> str:
    return str(config["configurable"].get("checkpoint_id", ""))


def thread_of(config: RunnableConfig, ns: bool = False) -> RunnableConfig:
    """The latest checkpoint of the run; with `ns`, that of the subgraph in which the place is."""
    given = config["configurable"]
    kept = {k: v for k, v in given.items() if k not in ("checkpoint_id", "checkpoint_map", "checkpoint_ns")}
    return {"configurable": {**kept, "checkpoint_ns": given.get("checkpoint_ns", "") if ns else ""}}


def merge(config: RunnableConfig, place: RunnableConfig) -> RunnableConfig:
    return {**config, "configurable": {**config.get("configurable", {}), **place["configurable"]}}


def source_of(moment: StateSnapshot) -> str:
    return (moment.metadata or {}).get("source", "")


def differences(place: str, one: StateSnapshot, other: StateSnapshot, names: Sequence[str]) -> list[tuple[str, ...]]:
    """The lines of two moments that differ: place, channel, and both; `next` is what is about to run."""
    told = [{"next": names_of(moment.next) or "the end", **moment.values} for moment in (one, other)]
    found = list[tuple[str, ...]]()
    for name in ("next", *names):
        parts: list[Any] = [values.get(name) for values in told]
        if all(isinstance(part, list) and part and isinstance(part[0], BaseMessage) for part in parts):  # message by message
            pairs = [two_lines(*pair) for pair in zip_longest(*parts)]
        else:
            pairs = [lines_of(told[0], told[1], name)]
        found += [(place, name, a, b) for a, b in pairs if a != b]
    return found


def lines_of(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, name: str) -> tuple[str, str]:
    """A channel of two states in a line each; a dash where there is no state, or no value."""
    if one and other and name in one and name in other:
        return two_lines(one[name], other[name])
    first, second = (to_line(values[name]) if values and name in values else "–" for values in (one, other))
    return first, second


def try_input(graph: Graph, in_loop: bool, input: Any, place: RunnableConfig) -> None:
    """Refuse an input that the graph's channels do not take, by trying it in an empty record: in its own LangGraph would keep it, and
    raise the error again at each look at the thread.

    Raises:
        InputError: a reducer or a schema does not take it.
    """
    if not isinstance(input, Mapping):
        return
    trial, thread = graph.copy({"checkpointer": InMemorySaver(serde=graph.checkpointer.serde)}), thread_of(place)  # type: ignore[union-attr]
    try:
        call_graph(trial, in_loop, "invoke", input, thread, interrupt_before="*")
    except UserError:
        raise
    except (NotImplementedError, TypeError, ValueError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"the channels {list_names(input)} do not take this input: {said}") from error


def check_kind(graph: Graph, input: Any, said: str) -> None:
    """Refuse an input that names no channels, such as a text."""
    names = needed_channels(graph.builder) or [next(iter(graph.builder.schemas[graph.builder.input_schema]))]
    if names != ["__root__"] and not isinstance(input, Mapping | Command) and not hasattr(type(input), "__annotations__"):
        got = "" if input is None else f", got {to_line(input, 60)} ({type_of(input)})"
        form = ", ".join(f"{name!r}: ..." for name in names)
        raise StepperError(f"{said}, such as {{{form}}}{got}")
