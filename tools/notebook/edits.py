"""Edits of a run's state: they lead on as the nodes before them did, except where a router reads what they change."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import CONFIG_KEY_SEND, TASKS
from langgraph._internal._runnable import RunnableCallable
from langgraph.channels import LastValue
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel._read import ChannelRead
from langgraph.types import Overwrite, PregelTask, Send, StateUpdate

from .moments import call_graph
from .pauses import Graph, Invocation, innermost
from .record_copy import MARK, copy_record
from .tables import StepperError, to_line

__all__ = []

ARROW = "branch:to:"
"""The beginning of the names of the channels by which LangGraph's arrows start nodes; what is sent goes into one of its own, `TASKS`."""
Place = tuple[Graph, RunnableConfig]
"""A graph with its record, and a place there."""
Write = tuple[str, Any]
"""A channel, and what is written there; a lead is one that starts a node."""


def write_edit(
    graph: Graph,
    place: RunnableConfig,
    channels: Mapping[str, Any],
    *,
    inside: Sequence[Invocation],
    in_loop: bool,
    nodes: Sequence[str],
    ended: Collection[str],
) -> Place:
    """The graph with a record of its own that ends with an edit of a place, and the edit's place.

    The values are written without arrows and routers, and the old tasks follow. Then the routers are asked in copies of the record, before
    the edit and behind it. Where they decide otherwise, their tasks follow, beside the old ones to which no router leads.

    Args:
        inside: the invocations in which the place is.
        in_loop: whether the graph is called in the loop of walks.
        nodes: the nodes that ran before the place; none at the first.
        ended: ids of the place's tasks that have ended already, beside one that asks: of the tasks that follow, those of the same node
            and input are not run again. What they wrote into a channel of the edit gives way to it where it replaces, and else comes
            before it.

    Raises:
        StepperError: all the tasks that follow have ended already, so that nothing would run.
    """
    here, old, nodes = innermost(graph, inside), (graph, place), nodes or ["__start__"]
    saver, write = cast(BaseCheckpointSaver[Any], graph.checkpointer), partial(_write, here, in_loop)

    def key(lead: Write) -> bytes:  # what is sent may have no `==` of its own
        return saver.serde.dumps_typed(lead)[1]

    def redirect(led: list[Write], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Write]:
        plain, edited = (_leads(in_loop, write(at, said, asks=True)) for at, said in ((old, before), (new, after)))
        return led if [*map(key, plain)] == [*map(key, edited)] else edited + _without(led, plain)

    before, nothing = _tasks(in_loop, old), {node: list[Write]() for node in nodes}
    new = write(old, {nodes[-1]: [*channels.items(), *(led := [lead for _, lead in before])]})
    led = redirect(led, nothing, nothing)
    saved = call_graph(saver, in_loop, "get_tuple", place).pending_writes or []
    follow, done = Counter(key(lead) for lead in led), list[tuple[PregelTask, bytes, list[Write]]]()
    for task, lead in before:
        if task.id in ended and follow[key(lead)] > 0:
            follow[key(lead)] -= 1
            done.append((task, key(lead), [write[1:] for write in saved if write[0] == task.id]))
    first = [write for *_, writes in done for write in writes if _is_added_to(here, channels, write)]
    new = write(old, {nodes[-1]: [*first, *channels.items(), *led]})
    ids = defaultdict[bytes, list[str]](list)
    for task, lead in (now := _tasks(in_loop, new)):
        ids[key(lead)].append(task.id)
    for task, same, writes in done:
        was = [one for one in writes if not _is_lead(one[0])]
        left = [one for one in was if one[0] not in channels]
        left += redirect([one for one in writes if _is_lead(one[0])], {task.name: was}, {task.name: left})
        memory: Any = new[0].checkpointer
        memory.put_writes(new[1], [*left, MARK], ids[same].pop(0))
    if now and not any(ids.values()) and any(task.id not in ended for task, _ in before):
        raise StepperError("all that would follow has been done already, so that nothing would run: go on, and edit then")
    return new


def _write(here: Any, in_loop: bool, at: Place, updates: Mapping[str, Sequence[Write]], asks: bool = False) -> Place:
    """A copy of a record that ends with writes by nodes, without their arrows and routers; where it asks them, as they decide then."""

    def put(writes: Sequence[Write], config: RunnableConfig) -> Any:
        config["configurable"][CONFIG_KEY_SEND](writes)  # a router may read what its node returned
        return ChannelRead.do_read(config, select=[*here.builder.channels], fresh=True)

    saver, put_all = copy_record(at[0].checkpointer, in_loop, at[1], anew=False), RunnableCallable(put, trace=False)
    parts = {name: one.copy({"writers": [put_all, *(one.writers[1:] if asks else [])]}) for name, one in here.nodes.items()}
    config = RunnableConfig(configurable={**at[1]["configurable"], "__pregel_checkpointer": saver})
    said = [StateUpdate(writes, node) for node, writes in updates.items()]  # type: ignore[arg-type]
    writer = here.copy({"nodes": parts, "interrupt_before_nodes": ()})
    return at[0].copy({"checkpointer": saver}), call_graph(writer, in_loop, "bulk_update_state", config, [said])


def _tasks(in_loop: bool, at: Place) -> list[tuple[PregelTask, Write]]:
    """The tasks about to run at a place, each with its lead; those that are sent come last."""
    tasks = call_graph(at[0], in_loop, "get_state", at[1]).tasks
    sent = call_graph(at[0].checkpointer, in_loop, "get_tuple", at[1]).checkpoint["channel_values"].get(TASKS, ())
    drawn = [(one, (ARROW + one.name, None)) for one in tasks if one.path[0] == "__pregel_pull"]
    return [*drawn, *((one, (TASKS, sent[int(one.path[1])])) for one in tasks if one.path[0] != "__pregel_pull")]


def sent_at(in_loop: bool, at: Place) -> dict[str, str]:
    """Id of a task about to run at a place -> what was sent to it, in a line."""
    return {task.id: to_line(lead[1].arg, 60) for task, lead in _tasks(in_loop, at) if isinstance(lead[1], Send)}


def _without(led: list[Write], others: list[Write]) -> list[Write]:
    """The leads to nodes that the others do not start, or not as often."""
    started, rest = Counter(map(_target, others)), list[Write]()
    for lead in led:
        started[_target(lead)] -= 1
        rest += [lead] * (started[_target(lead)] < 0)
    return rest


def _is_added_to(here: Graph, channels: Mapping[str, Any], write: Write) -> bool:
    """True of what an ended task wrote if the edit adds to it. Refuse an edit to be added to what replaces all."""
    if (
        (name := write[0]) not in channels
        or isinstance(channels[name], Overwrite)
        or isinstance(here.channels[name], LastValue)
    ):
        return False
    if isinstance(write[1], Overwrite):
        raise StepperError(
            f"a node beside this place has replaced `{name}`, to which nothing adds then: Overwrite(value) replaces it"
        )
    return True


def _leads(in_loop: bool, at: Place) -> list[Write]:
    """The leads to the tasks about to run at a place."""
    return [lead for _, lead in _tasks(in_loop, at)]


def _is_lead(channel: str) -> bool:
    return channel == TASKS or channel.startswith(ARROW)


def _target(lead: Write) -> str:
    return lead[1].node if isinstance(lead[1], Send) else lead[0].removeprefix(ARROW)
