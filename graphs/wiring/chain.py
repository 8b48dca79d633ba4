"""Chains: nodes that follow each other without a choice, run as one super-step of LangGraph (`wire(..., chain=True)`).

LangGraph writes a checkpoint after every super-step. A chain costs one checkpoint where its nodes cost one each, and gives up
pausing and resuming between them. Results are the same. A step of JitRL, seven nodes, then takes 0.46 ms of LangGraph's own CPU
time, and 0.95 ms with durable checkpoints (tests/performance/bench_engine.py); unchained, each node takes 0.2 to 0.5 ms.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any, NamedTuple, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, LastValue
from langgraph.graph import StateGraph
from langgraph.graph._node import StateNodeSpec
from langgraph.pregel import Pregel
from langgraph.types import Command, Overwrite
from typing_extensions import is_typeddict

from ...memory.errors import UserError
from .arrows import Node, Wiring, arrow_label


class ChainError(UserError, ValueError):
    """A chained node returned an update that only LangGraph itself can carry out."""


class ChainLink(NamedTuple):
    """A node of a chain, with the channels that it reads."""

    name: str
    node: Node
    reads: tuple[str, ...]
    """The channels of the schema that its function names, or all of the state's."""

    def invoke(self, state: Mapping[str, Any], config: RunnableConfig | None) -> Any:
        """The node's update of the state."""
        visible = self.visible(state)
        return self.node.invoke(visible, config) if isinstance(self.node, Runnable) else self.node(visible)

    async def ainvoke(self, state: Mapping[str, Any], config: RunnableConfig | None) -> Any:
        """The node's update; a function that may block is called in a thread, as LangGraph calls all of them."""
        visible = self.visible(state)
        if isinstance(self.node, Runnable):
            return await self.node.ainvoke(visible, config)
        return await asyncio.to_thread(self.node, visible) if is_blocking(self.node) else self.node(visible)

    def visible(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the state that the node reads."""
        return {key: state[key] for key in self.reads if key in state}


def is_blocking(node: Any) -> bool:
    """True if a node may block its event loop: by a world, a disk, a model in this process.

    A node says so by its attribute `is_blocking`. Without one, a node whose `role` is `compute` does not block, and any other may.
    A call in a thread costs 0.1 ms and more; a quick node takes less than that.
    """
    return bool(getattr(node, "is_blocking", getattr(node, "role", "") != "compute"))


@dataclass(frozen=True)
class Chain(Runnable[Any, Any]):
    """Nodes that run one after the other in one super-step. Channels with a reducer add up as in separate super-steps.

    Raises:
        ChainError: a node returned something else than a dict or None; only LangGraph itself can carry out a Command.
    """

    links: tuple[ChainLink, ...]
    channels: Mapping[str, Any]
    """Name -> LangGraph channel of the builder, whose reducer applies updates."""

    def _merge(self, link: ChainLink, state: dict[str, Any], updates: dict[str, list[Any]], update: Any) -> None:
        if not isinstance(update, dict | None):
            raise ChainError(
                f"node '{link.name}' is part of a chain and returned a {type(update).__name__}; a chained node returns a dict "
                "or None. Without chain=True it may return whatever LangGraph takes; so it may if its return type says "
                "Command[Literal[...]], which keeps it out of chains"
            )
        for key, value in (update or {}).items():
            channel = self.channels.get(key)
            if channel is None:
                continue  # as in LangGraph
            state[key] = apply_update(channel, state, key, value)
            if type(channel) is LastValue:
                updates[key] = [value]
                continue
            # A reducer gets the updates one by one, since it need not be associative; after an Overwrite, the result.
            earlier = updates.get(key, [])
            doubled = earlier and any(map(_is_overwrite, (*earlier, value)))
            updates[key] = [Overwrite(state[key])] if doubled else [*earlier, value]

    def _out(self, updates: Mapping[str, Sequence[Any]]) -> Any:
        often = max(map(len, updates.values()), default=1)
        rounds = [{key: values[n] for key, values in updates.items() if n < len(values)} for n in range(often)]
        return rounds[0] if often == 1 else [Command(update=update) for update in rounds]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        state, updates = dict(input), dict[str, list[Any]]()
        for link in self.links:
            self._merge(link, state, updates, link.invoke(state, config))
        return self._out(updates)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        state, updates = dict(input), dict[str, list[Any]]()
        for link in self.links:
            self._merge(link, state, updates, await link.ainvoke(state, config))
        return self._out(updates)


def apply_update(channel: Any, state: Mapping[str, Any], key: str, value: Any) -> Any:
    """The value of a channel after `value` was written to it."""
    if type(channel) is LastValue:
        return value
    now = channel.from_checkpoint(state[key]) if key in state else channel.copy()
    now.update([value])
    return now.get()


def _is_overwrite(value: Any) -> bool:
    tag = "__overwrite__"
    return isinstance(value, Overwrite) or (isinstance(value, dict) and (tag in value or value.get("type") == tag))


def find_links(nodes: Mapping[str, Node], builder: StateGraph[Any, Any, Any, Any]) -> dict[str, ChainLink]:
    """The nodes that can be links of a chain, by name; the others run on their own, with the same results.

    A link is a sync function of the state alone, or a Runnable that is no graph. Its return type names no Command. It reads channels
    of the state only, and all channels of the state are plain values or have a reducer.
    """
    simple = all(type(channel) in (LastValue, BinaryOperatorAggregate) for channel in builder.channels.values())
    if builder.managed or not simple or not is_typeddict(builder.state_schema):
        return {}
    trial = StateGraph(builder.state_schema)  # shows the spec that LangGraph makes of a node, without adding it to `builder`
    found = {}
    for name, node in nodes.items():
        trial.add_node(name, cast(Any, node))
        spec = trial.nodes[name]
        reads = tuple(trial.schemas[spec.input_schema])
        whole = is_typeddict(spec.input_schema) and set(reads) <= trial.schemas[builder.state_schema].keys()
        if whole and not spec.ends and is_chainable(node):
            found[name] = ChainLink(name, node, reads)
    return found


def is_chainable(node: Node) -> bool:
    """True for a sync function of one argument, and for a Runnable that is no graph."""
    if isinstance(node, Runnable):
        return not isinstance(node, Pregel)
    for function in (node, type(node).__call__):
        if iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function):
            return False
    try:
        return len(signature(node).parameters) == 1
    except (TypeError, ValueError):  # written in C, or no function: LangGraph may know what to do with it
        return False


def merge_chains(wiring: Wiring, builder: StateGraph[Any, Any, Any, Any]) -> Wiring:
    """The wiring in which nodes that follow each other without a choice are one node, a `Chain`."""
    out, into = Counter(e.source for e in wiring.edges), Counter(e.target for e in wiring.edges)
    many = {e.target for e in wiring.edges if wiring.kind(e) == "fan-out"}  # each runs many times, and what follows them once
    alone = many | wiring.destinations.keys()
    functions = {n: node for n, node in wiring.nodes.items() if n not in alone and not isinstance(node, StateNodeSpec)}
    links = find_links(functions, builder)
    follows = {
        e.source: e.target
        for e in wiring.edges
        if wiring.kind(e) == "plain" and {e.source, e.target} <= links.keys() and out[e.source] == into[e.target] == 1
    }
    heads = [name for name in wiring.nodes if name not in follows.values()]
    nodes: dict[str, Any] = {}
    first, last = {}, {}
    for head in heads:
        names = [head]
        while names[-1] in follows:
            names.append(follows[names[-1]])
        name = "+".join(names)
        first[head], last[names[-1]] = name, name
        nodes[name] = Chain(tuple(links[n] for n in names), builder.channels) if len(names) > 1 else wiring.nodes[head]
    edges = [
        replace(
            e,
            source=last.get(e.source, e.source),
            target=first.get(e.target, e.target),
            label=e.label or (arrow_label(e) if wiring.kind(e) == "outcome" else ""),
            join=tuple(last.get(one, one) for one in e.join),
        )
        for e in wiring.edges
        if follows.get(e.source) != e.target
    ]
    routers = {last.get(source, source): router for source, router in wiring.routers.items()}
    fan_outs = {last.get(source, source): fan_out for source, fan_out in wiring.fan_outs.items()}
    return Wiring(nodes, edges, routers, fan_outs, wiring.destinations)
