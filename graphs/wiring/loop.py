"""A compiled graph played as a plain loop over its nodes, for many rollouts at once. It takes the place of LangGraph's engine.

The reason is measured: a super-step takes 0.2 to 0.5 ms in the engine and 0.01 ms here. A rollout of one model call is three to five
super-steps, and 100 of them at once against a server that answers within 50 ms leave one process 0.5 ms for each. The loop reaches
.36 to .43 of the ideal there (tests/performance/bench_rollouts.py, bench_icrl.py); the engine alone would use up more than the time
there is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, LastValue
from langgraph.graph import END, START
from langgraph.graph.state import CompiledStateGraph

from .arrows import FanOutBranch
from .chain import Chain, ChainLink, apply_update, is_chainable
from .mermaid import FlowError


class PlainLoop(Runnable[Any, Any]):
    """A compiled graph, and the graphs within it, as a plain loop with the same results.

    It does without checkpoints, streams, pauses and parallel branches, and without the context that LangGraph gives to functions
    (config, store, stream writer).

    Raises:
        FlowError: the graph needs one of these; says which.
    """

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
        builder = graph.builder
        self.name = graph.name
        self.channels = builder.channels
        self.plain_channels = {key for key, channel in self.channels.items() if type(channel) is LastValue}
        self.inputs = tuple(builder.schemas[builder.input_schema])
        self.outputs = tuple(builder.schemas[builder.output_schema])
        needs = [
            ("managed values", builder.managed),
            (
                "channels of other kinds",
                [c for c in self.channels.values() if type(c) not in (LastValue, BinaryOperatorAggregate)],
            ),
            ("joined branches", builder.waiting_edges),
            ("pauses", graph.interrupt_before_nodes or graph.interrupt_after_nodes),
        ]
        if wanted := [what for what, found in needs if found]:
            raise FlowError(f"{graph.name} cannot be played as a plain loop: it has {' and '.join(wanted)}")
        self.links = {name: self._links(name, spec, builder.schemas[spec.input_schema]) for name, spec in builder.nodes.items()}
        self.routes = {name: self._route(graph, name) for name in (START, *builder.nodes)}

    def _links(self, name: str, spec: Any, schema: Iterable[str]) -> tuple[ChainLink, ...]:
        part, reads = spec.runnable, tuple(schema)
        if isinstance(part, Chain):
            return part.links
        if spec.ends or spec.retry_policy or spec.cache_policy:
            raise FlowError(
                f"node '{name}' cannot be played in a plain loop: it returns Commands, or has a retry or cache policy"
            )
        function = getattr(part, "func", None)
        if isinstance(part, CompiledStateGraph):
            return (_GraphLink(name, PlainLoop(part), reads),)
        return (ChainLink(name, function if function is not None and is_chainable(function) else part, reads),)

    def _route(self, graph: CompiledStateGraph[Any, Any, Any, Any], name: str) -> tuple[Any, Mapping[Any, str]]:
        """The router after a node (None for a plain arrow), and where each of its outcomes leads."""
        targets = [target for source, target in graph.builder.edges if source == name]
        branches = [*graph.builder.branches.get(name, {}).values()]
        path = getattr(branches[0].path, "func", None) if len(branches) == 1 else None
        if len(targets) == 1 and not branches:
            return None, {None: targets[0]}
        if targets or path is None or isinstance(path, FanOutBranch):
            raise FlowError(
                f"{graph.name} cannot be played as a plain loop: more than one node, or a fan-out, may follow '{name}'"
            )
        return path, branches[0].ends or {target: target for target in (END, *graph.builder.nodes)}

    def _moves(self, input: Any) -> Generator[tuple[ChainLink, dict[str, Any]], Any, dict[str, Any]]:
        """Generator of the nodes to run with the state before each; it is sent their updates, and returns the output."""
        state: dict[str, Any] = {}
        for key, channel in self.channels.items():
            if type(channel) is BinaryOperatorAggregate and channel.is_available():
                state[key] = channel.get()
        self._write({key: input[key] for key in self.inputs if key in input}, state)
        at = START
        while True:
            router, leads = self.routes[at]
            outcome = router(state) if router else None
            at = leads[outcome]
            if at == END:
                return {key: state[key] for key in self.outputs if key in state}
            for link in self.links[at]:
                update = yield link, state
                if not isinstance(update, dict | None):
                    raise FlowError(f"node '{link.name}' returned a {type(update).__name__}: a plain loop takes a dict or None")
                self._write(update or {}, state)

    def _write(self, update: Mapping[str, Any], state: dict[str, Any]) -> None:
        for key, value in update.items():
            if key in self.plain_channels:
                state[key] = value
            elif key in self.channels:
                state[key] = apply_update(self.channels[key], state, key, value)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._call_with_config(cast(Any, self.play), input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._acall_with_config(cast(Any, self.aplay), input, config, **kwargs)

    def play(self, input: Any, config: RunnableConfig | None) -> Any:
        """`invoke` without an entry of its own in traces."""
        moves = self._moves(input)
        update: Any = None
        while True:
            try:
                link, state = moves.send(update)
            except StopIteration as done:
                return done.value
            update = link.invoke(state, config)

    async def aplay(self, input: Any, config: RunnableConfig | None) -> Any:
        """`ainvoke` without an entry of its own in traces; functions that may block run in threads."""
        moves = self._moves(input)
        update: Any = None
        while True:
            try:
                link, state = moves.send(update)
            except StopIteration as done:
                return done.value
            update = await link.ainvoke(state, config)


class _GraphLink(ChainLink):
    """A graph within the graph."""

    def invoke(self, state: Mapping[str, Any], config: RunnableConfig | None) -> Any:
        return cast(PlainLoop, self.node).play(self.visible(state), config)

    async def ainvoke(self, state: Mapping[str, Any], config: RunnableConfig | None) -> Any:
        return await cast(PlainLoop, self.node).aplay(self.visible(state), config)


class ParallelAttempts(Runnable[Any, Any]):
    """The episode of a run whose episodes are independent, played so many at a time, in threads. Each is the same as if alone.

    The first call plays its episode and the next ones of the run; the calls for those get what was played. An episode that fails
    raises its error when it is its turn, so that those before it count.

    Args:
        episode: plays one episode, from `AttemptInput`.
        at_once: number of episodes that are played at the same time.
    """

    def __init__(self, episode: Runnable[Any, Any], at_once: int) -> None:
        self.episode, self.at_once = episode, at_once
        self._played: dict[int, Future[Any]] = {}

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        first = input["episode"]
        if first not in self._played:
            together = range(first, max(first + 1, min(first + self.at_once, input["episodes"])))
            with ThreadPoolExecutor(len(together)) as pool:
                self._played = {n: pool.submit(self.episode.invoke, {**input, "episode": n}) for n in together}
        return self._played.pop(first).result()
