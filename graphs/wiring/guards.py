"""A drawing cannot lie: what a node starts past its arrows is stopped while the graph runs.

LangGraph passes a Send or a Command on wherever it leads, also where the drawing has no arrow. It hands what a node returned to each
of the node's branches, and what a branch decided to that branch's writer; the guards stand at these two places.
"""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import END, START
from langgraph.graph._branch import BranchSpec
from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry
from langgraph.types import Command, Send

from ...memory.errors import did_you_mean
from ...nodes.channels import node_channels
from .arrows import ENDS, Builder, Wiring, unwrap
from .joins import may_stop
from .mermaid import FlowError
from .node_errors import ends_here, explain_key

__all__ = []


@dataclass(frozen=True)
class Arrows:
    """The arrows that leave a node of a drawing."""

    source: str
    targets: Collection[str]
    """Names of the nodes that they lead to, as in LangGraph."""
    is_routed: bool
    """True if a router decides among arrows."""
    must_lead: bool = False
    """True if one branch alone leads on, and none of its arrows to END."""
    may_end: bool = False
    """True if its Commands may lead to END: an arrow does, or the node is one of a compiled graph."""
    always: Collection[str] = ()
    """Names of the nodes that a plain arrow starts anyway: a Send would start them a second time. Empty for a node of a compiled graph,
    which may do so."""
    may_rest: bool = False
    """True if a node of Commands may return none, and so end."""
    joins: Collection[str] = ()
    """Channels of the joins that learn when an arrow to END is taken."""
    is_lent: bool = False
    """True for a node of a compiled graph."""
    builder: Any = None
    """Knows the state's channels, and all nodes."""
    inputs: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Target of its arrows -> the channels that it reads, for those whose types say so."""

    def end_marks(self) -> list[ChannelWriteEntry]:
        """Writes by which the joins learn that an arrow to END is taken: from then on the run may end although members have not come."""
        return [ChannelWriteEntry(channel, END) for channel in self.joins]

    def check(self, target: str, what: str, remedy: str) -> None:
        """Refuse a move to a node that no arrow leads to.

        Raises:
            FlowError: says what moves there, and what would let it.
        """
        if target in self.targets:
            return
        places = ", ".join(f"'{'END' if one == END else one}'" for one in self.targets) or "no node"
        raise FlowError(
            f"{what} of '{self.source}' leads to '{target}', but no arrow does: from '{self.source}' the drawing leads to {places}. "
            f"{remedy}"
        )

    def check_send(self, target: str) -> None:
        """Refuse a Send to a node that a plain arrow starts as well: LangGraph would run both.

        Raises:
            FlowError: says so, and what to draw.
        """
        if target in self.always:
            said = f"a Send of '{self.source}' leads to '{target}', and so does its plain arrow: it would run once for each"
            raise FlowError(f"{said}. Draw '{self.source} -.-> {target}' in place of '{self.source} --> {target}'")

    def check_piece(self, send: Send) -> None:
        """Refuse a piece of work with a channel that its node does not read, but one much like it. A channel of the state is not misspelt.

        Raises:
            FlowError: says which.
        """
        reads = self.inputs.get(send.node, ())
        for name in send.arg if isinstance(send.arg, Mapping) and reads else ():
            if name not in {*reads, *self.builder.channels} and (hint := did_you_mean(str(name), set(reads) - send.arg.keys())):
                raise FlowError(f"the fan-out of '{self.source}' hands '{send.node}' `{name}`, which it does not read{hint}")

    def check_commands(self, returned: Any) -> bool:
        """Refuse Commands and Sends that a node returned past the arrows; True if it takes an arrow to END."""
        if isinstance(returned, dict | None):
            return END in self.always or self.may_rest
        to_end, is_led = END in self.always, False
        for one in returned if isinstance(returned, list | tuple) else (returned,):
            goes = one.goto if isinstance(one, Command) else one if isinstance(one, Send) else ()
            for go in (goes,) if isinstance(goes, str | Send) else goes:
                is_led = True
                if go == END:
                    if not self.may_end:
                        self.check("END", "a Command", f"Draw '{self.source} -.-> END' if the run may end there")
                    to_end = True
                    continue
                to, a = go.node if isinstance(go, Send) else go, self.source
                if to == "END":
                    end = "that of LangGraph is '__end__': from langgraph.graph import END, and let it return Command(goto=END)"
                    raise FlowError(f"a Command of '{a}' leads to the text 'END', which is no node and no end; {end}")
                if isinstance(go, Send):
                    self.check_send(to)
                says = f"let the Commands of '{a}' say so: -> Command[Literal['{to}']], or destinations={{'{a}': ['{to}']}} of wire"
                self.check(to, "a Command", f"Draw '{a} -->|{to}| {to}', and {says}")
                if self.is_routed:
                    both = f"a Command of '{a}' leads to '{to}', and its router leads on as well: both would run"
                    raise FlowError(f"{both}. Let the router decide alone, or give none, and {says}")
        return to_end or (self.may_rest and not is_led)


class _DrawnOutcomes(dict[Any, str]):
    """Outcome of a router -> node. An outcome without an arrow is an error that says so."""

    def __init__(self, source: str, leads: Mapping[Any, str]) -> None:
        super().__init__(leads)
        self.source = source

    def __missing__(self, outcome: Any) -> str:
        known = [str(one) for one in self]
        hint = did_you_mean(str(outcome), known)
        raise FlowError(f"the router of '{self.source}' returned {outcome!r}, but its arrows are {known}{hint}")


class DrawnBranch(BranchSpec):
    """A branch of LangGraph that goes along drawn arrows alone."""

    arrows: Arrows

    def run(self, writer: Any, reader: Any = None) -> Any:
        """The branch's writer, as LangGraph asks for it."""
        source = self.arrows.source

        def write(packets: Any, static: bool = False) -> Any:
            if not packets and self.arrows.must_lead:
                chose = "the router" if self.arrows.is_routed else "the fan-out"
                raise FlowError(f"{chose} of '{source}' returned nothing to do, {ends_here(source)}")
            for packet in packets:
                if isinstance(packet, Send):
                    self.arrows.check_send(packet.node)
                    self.arrows.check_piece(packet)
                    given = f"fan_outs={{'{source}': a function that returns Sends to nodes that are drawn}}"
                    self.arrows.check(packet.node, "a Send", f"Draw '{source} -.-> {packet.node}', or give {given}")
            to_end = not static and (END in packets if packets else END in self.arrows.targets)
            return [*writer(packets, static), *(self.arrows.end_marks() if to_end else ())]

        return super().run(write, reader)

    def _route(self, input: Any, config: RunnableConfig, *, reader: Any, writer: Any) -> Any:
        with self._explaining(input, config, reader):
            return super()._route(input, config, reader=reader, writer=writer)

    async def _aroute(self, input: Any, config: RunnableConfig, *, reader: Any, writer: Any) -> Any:
        with self._explaining(input, config, reader):
            return await super()._aroute(input, config, reader=reader, writer=writer)

    def _explaining(self, input: Any, config: RunnableConfig, reader: Any) -> AbstractContextManager[None]:
        at, of = self.arrows, "router" if self.arrows.is_routed else "fan-out"
        which, own = f"the {of} of '{at.source}'", self.input_schema
        return explain_key(which, lambda: reader(config) if reader else input, at.builder, at.source, own)

    def _finish(self, writer: Any, input: Any, result: Any, config: RunnableConfig) -> Any:
        is_several = isinstance(result, list | tuple) and len(result) > 1 and not any(isinstance(one, Send) for one in result)
        if is_several and self.ends and not self.arrows.is_lent:
            a = self.arrows.source
            raise FlowError(
                f"the router of '{a}' returned {result!r:.60}, and a router chooses one label. To start several nodes, let '{a}' return "
                f"Command(goto=[...]), or give fan_outs={{'{a}': a function that returns Sends}}"
            )
        return super()._finish(writer, input, result, config)


class ReturnGuard(DrawnBranch):
    """No branch of the drawing: it looks at what its node returned."""

    def run(self, writer: Any, reader: Any = None) -> Any:
        """A writer that writes nothing."""
        return _ReturnCheck(self.arrows)


class _ReturnCheck(Runnable[Any, Any]):
    """It passes on what a node returned, if it leads along the arrows. LangGraph's own RunnableCallable takes 25 us more."""

    def __init__(self, arrows: Arrows) -> None:
        self.arrows = arrows

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if self.arrows.check_commands(input) and self.arrows.joins:
            ChannelWrite.do_write(cast(RunnableConfig, config), self.arrows.end_marks())
        return input

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self.invoke(input, config)


def guard_arrows(builder: Builder, wiring: Wiring, source: str, joins: Collection[str]) -> None:
    """Let a node of a builder, or START, go along its arrows in the drawing alone; its branches are there already.

    `joins` are the channels of the joins that learn when an arrow to END is taken.
    """
    start, drawn = ENDS.get(source, source), [edge for edge in wiring.edges if edge.source == source]
    kinds, branches, stops = {*map(wiring.kind, drawn)}, builder.branches[start], may_stop(wiring, source)
    free = {edge: ENDS.get(edge.target, edge.target) for edge in drawn if not edge.join or edge.target == "END"}
    targets = {*free.values()}
    is_lent = getattr(getattr(builder.nodes.get(source), "runnable", None), "is_lent", False)
    read = {name: node_channels(unwrap(builder.nodes[name])) for name in targets if name in builder.nodes}
    arrows = Arrows(
        source,
        targets,
        "outcome" in kinds,
        must_lead=len(kinds) == len(branches) == 1 and END not in targets and not stops,
        may_end=END in targets or is_lent,
        always={target for edge, target in free.items() if wiring.kind(edge) == "plain" and not (stops or is_lent)},
        may_rest="command" in kinds and END in targets,
        joins=joins,
        is_lent=stops or is_lent,
        builder=builder,
        inputs={name: one.reads for name, one in read.items() if not one.may_read_more},
    )
    for name, spec in branches.items():
        branches[name] = _guarded(
            DrawnBranch(spec.path, _DrawnOutcomes(arrows.source, spec.ends or {}), spec.input_schema), arrows
        )
    if start != START:
        branches["arrows"] = _guarded(ReturnGuard(cast(Any, None), {}), arrows)


def _guarded(branch: DrawnBranch, arrows: Arrows) -> DrawnBranch:
    branch.arrows = arrows
    return branch


def drawn_branches(builder: Builder, source: str) -> list[BranchSpec]:
    """The branches of a node that a drawing shows."""
    return [one for one in builder.branches.get(source, {}).values() if not isinstance(one, ReturnGuard)]
