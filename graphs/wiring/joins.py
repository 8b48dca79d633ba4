"""A run does not end while a join waits: if nothing is left to run and a member of a join has not come, an error says which.

LangGraph ends such a run as if all were done. It keeps who has arrived at a join in a channel, and tells each channel of the last
super-step: the check stands there.
"""

import sys
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any, Self

from langgraph._internal._constants import TASKS
from langgraph._internal._typing import MISSING
from langgraph.channels.last_value import LastValueAfterFinish
from langgraph.channels.named_barrier_value import NamedBarrierValue, NamedBarrierValueAfterFinish
from langgraph.graph import END, StateGraph
from langgraph.graph._node import StateNodeSpec
from langgraph.pregel._loop import PregelLoop

from .arrows import Wiring
from .mermaid import FlowError

__all__ = []


class JoinChannel(NamedBarrierValue[str]):
    """A channel that holds the members that have arrived at a join, and END once the run has taken an arrow to END: members may be missing then."""

    finished: bool | None = None
    """Of a deferred node's join: True once nothing else is left to run; None: the node is not deferred."""

    def copy(self) -> Self:
        """A copy of the channel."""
        return self.from_checkpoint(self.checkpoint())

    def checkpoint(self) -> Any:
        """Those that have arrived, as LangGraph's own channels keep them; of a deferred node's join also `finished`."""
        return self.seen if self.finished is None else (self.seen, self.finished)

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """The channel as it was kept."""
        seen, finished = (
            checkpoint if isinstance(checkpoint, tuple | list) else (checkpoint, None if self.finished is None else False)
        )
        made = super().from_checkpoint(seen)
        made.finished = finished
        return made

    def update(self, values: Sequence[str]) -> bool:
        """Add who arrives; True if that is new."""
        before, self.seen = self.seen, self.seen | set(values)
        return self.seen != before

    @property
    def is_full(self) -> bool:
        """True if all have arrived."""
        return self.seen >= self.names

    def is_available(self) -> bool:
        """True if the join's node is to run."""
        return self.is_full and self.finished is not False

    def consume(self) -> bool:
        """Forget who has arrived, when the join's node runs."""
        if runs := self.is_available():
            self.seen, self.finished = self.seen - self.names, self.finished and False
        return runs

    def finish(self) -> bool:
        """Stop a run that ends while some have arrived and others have not; after an arrow to END the thread's next run starts anew.

        Raises:
            FlowError: names the join, who arrived and who did not.
        """
        if self.is_full and self.finished is False:
            self.finished = True
            return True
        applying = sys._getframe(1)  # LangGraph asks this of a state that is looked at or edited by hand, too
        is_run = applying.f_back is not None and applying.f_back.f_code is PregelLoop.after_tick.__code__
        if not is_run or not self.seen or has_more_to_run(applying.f_locals["channels"]):
            return False
        if END in self.seen:
            self.seen = set()
            return True
        target, came, lacks = self.key.rpartition(":")[2], sorted(self.seen), sorted(self.names - self.seen)
        arrows = ", ".join(f"'{one} --> {target}'" for one in sorted(self.names))
        raise FlowError(
            f"the run would end while the join '{' & '.join(sorted(self.names))} --> {target}' waits: {join_names(came)} arrived, "
            f"{join_names(lacks)} did not, and no arrow to END was taken. Let what is missing run as well, or draw {arrows} on lines "
            f"of their own, where each alone starts '{target}'"
        )


def has_more_to_run(channels: Mapping[str, Any]) -> bool:
    """True if Sends or deferred nodes are still to run."""
    full = [one for one in channels.values() if isinstance(one, JoinChannel) and one.is_full]
    begun = [one for one in channels.values() if isinstance(one, LastValueAfterFinish) and one.value is not MISSING]
    return bool(full or begun) or channels[TASKS].is_available()


def join_names(names: Sequence[str]) -> str:
    """Names in words: `'a' and 'b'`."""
    return " and ".join(f"'{one}'" for one in names)


def may_stop(wiring: Wiring, source: str) -> bool:
    """True if a branch of this node is a compiled graph's, which may lead nowhere, as LangGraph has it."""
    return any(getattr(one, "may_stop", False) for one in (*wiring.routers.get(source, ()), wiring.fan_outs.get(source)))


def joins_to_watch(builder: StateGraph[Any, Any, Any, Any], wiring: Wiring) -> list[str]:
    """The names of the channels of a builder's joins, as LangGraph gives them.

    There are none where a node or router is a compiled graph's, which may lead nowhere, as LangGraph has it.
    """
    if not are_watched(wiring):
        return []
    return [f"join:{'+'.join(starts)}:{target}" for starts, target in builder.waiting_edges if target != END]


def are_watched(wiring: Wiring) -> bool:
    """True if no node or router is a compiled graph's."""
    lent = any(isinstance(node, StateNodeSpec) and getattr(node.runnable, "is_lent", True) for node in wiring.nodes.values())
    return not lent and not any(may_stop(wiring, source) for source in {*wiring.routers, *wiring.fan_outs})


def watch_joins(channels: MutableMapping[str, Any], joins: Collection[str]) -> None:
    """Put a `JoinChannel` in place of LangGraph's channel of each join."""
    for name in joins:
        known = channels[name]
        channel = channels[name] = JoinChannel(str, known.names)
        channel.finished = False if isinstance(known, NamedBarrierValueAfterFinish) else None
        channel.key = name
