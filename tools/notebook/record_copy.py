"""The record of a what-if: a copy in memory, up to its place. Of one thread LangGraph finds only the latest place within a subgraph."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import NO_WRITES
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from .moments import call_graph, checkpoint_id, loop_of_walks, thread_of
from .pauses import Graph

__all__ = []

Key = tuple[str, str]
"""A checkpoint's namespace, which is that of its subgraph, and its id."""
MARK = NO_WRITES, "edit"
"""Stands among the writes of a task that had ended before an edit, which belong to the edit's moment; LangGraph ignores it."""


def copy_record(saver: Any, in_loop: bool, place: RunnableConfig, *, anew: bool) -> InMemorySaver:
    """A record that ends at a place, with the ids of the old one.

    Args:
        in_loop: whether the saver is called in the loop of walks.
        anew: leave out what has begun at the place, but not what an edit took over. Where the record goes on there by nodes, it is anyway.
    """
    record, given = _read(saver, in_loop, place), place["configurable"]
    tips: dict[str, str] = given.get("checkpoint_map") or {given.get("checkpoint_ns", ""): given["checkpoint_id"]}
    innermost = max(tips, key=len)
    parents = {_key(one): (_key(one)[0], checkpoint_id(one.parent_config)) for one in record if one.parent_config}
    left = {parents[_key(one)] for one in record if one.parent_config and one.metadata.get("source") != "update"}
    anew = anew or (innermost, tips[innermost]) in left
    chain = set[Key]()
    for here in tips.items():
        while here[1] and here not in chain:
            chain.add(here)
            here = parents.get(here, ("", ""))

    def is_kept(one: CheckpointTuple) -> bool:
        ns, around = _key(one)[0], {key for key in (one.metadata.get("parents") or {}).items() if key[0] in tips}
        if ns in tips or not around or (anew and (innermost, tips[innermost]) in around):
            return _key(one) in chain
        return around <= (tips.items() if ":" in ns else chain)  # without an id a subgraph goes on where it had ended

    made = InMemorySaver(serde=saver.serde)
    made.get_next_version = saver.get_next_version  # type: ignore[method-assign]
    inside = {ns.rpartition(":")[2].partition("|")[0] for ns in tips if ns}
    kept = list[CheckpointTuple]()
    for one in filter(is_kept, record):
        key, writes = _key(one), one.pending_writes or []
        if anew and key == (innermost, tips[innermost]):
            writes = [write for write in writes if (write[0], *MARK) in writes]
        elif key in tips.items() and key in left:  # the subgraph around the place has ended since
            writes = [write for write in writes if write[0] not in inside]
        kept.append(one._replace(pending_writes=writes))
    _write(partial(call_graph, made, False), kept)
    return made


def newest_in(saver: Any, in_loop: bool, place: RunnableConfig) -> dict[str, tuple[str, int]]:
    """Namespace -> the newest checkpoint of a place's thread there, and the number of writes that are kept beside it."""
    return _newest(_read(saver, in_loop, place))


def write_back(saver: Any, in_loop: bool, graph: Graph, place: RunnableConfig, since: Mapping[str, Any]) -> bool:
    """Write into a record what the graph's copy of it has more, so that it is the latest there.

    False, and nothing is written, if the record has gone on since then, when `newest_in` was this. So it is of channels whose values
    LangGraph adds up from the writes that are kept with each checkpoint, as soon as the record went on otherwise at all: it keeps the
    writes of one future.
    """
    record = _read(saver, in_loop, place)
    mine = {_key(one): one for one in _read(graph.checkpointer, False, place)}
    if _newest(record) != since or any(since.get(ns, ("",))[0] > id for ns, id in dict(mine.keys()).items()):
        return False
    graphs: list[Any] = [graph, *(one for _, one in graph.get_subgraphs(recurse=True))]
    if (
        any(isinstance(one, DeltaChannel) for part in graphs for one in part.channels.values())
        and {*map(_key, record)} - mine.keys()
    ):
        return False
    _write(partial(call_graph, saver, in_loop), mine.values())
    return True


def _newest(record: Sequence[CheckpointTuple]) -> dict[str, tuple[str, int]]:
    return {_key(one)[0]: (checkpoint_id(one.config), len(one.pending_writes or ())) for one in record}


def _read(saver: Any, in_loop: bool, place: RunnableConfig) -> list[CheckpointTuple]:
    """The checkpoints of a place's thread and of all its subgraphs, the oldest first."""
    thread = RunnableConfig(configurable={"thread_id": place["configurable"]["thread_id"]})

    async def read() -> list[CheckpointTuple]:
        return [one async for one in saver.alist(thread)]

    found = asyncio.run_coroutine_threadsafe(read(), loop_of_walks()).result() if in_loop else list(saver.list(thread))
    return sorted(found, key=lambda one: checkpoint_id(one.config))


def _write(call: Callable[..., Any], record: Iterable[CheckpointTuple]) -> None:
    known = set[tuple[str, str, Any]]()
    for one in record:
        ns, versions = _key(one)[0], one.checkpoint["channel_versions"]
        new = {name: version for name, version in versions.items() if (ns, name, version) not in known}
        known |= {(ns, name, version) for name, version in new.items()}
        parent = checkpoint_id(one.parent_config) if one.parent_config else None
        place = {**thread_of(one.config)["configurable"], "checkpoint_ns": ns, "checkpoint_id": parent}
        call("put", {"configurable": place}, one.checkpoint, one.metadata, new)
        writes: dict[str, list[tuple[str, Any]]] = {}
        for task, *write in one.pending_writes or ():
            writes.setdefault(task, []).append((write[0], write[1]))
        for task, said in writes.items():
            call("put_writes", one.config, said, task)


def _key(one: CheckpointTuple) -> Key:
    return str(one.config["configurable"].get("checkpoint_ns", "")), checkpoint_id(one.config)
