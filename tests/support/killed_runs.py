"""Runs whose model fails on the way, and memories that other threads empty: what a method has to come through."""

from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.wiring import run
from learngraph.memory.records import Task, Trajectory
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore
from learngraph.memory.storage.serializer import serializer


def play_past_deaths(make: Callable[[Journal, RecordStore[Trajectory]], Any], task: Task, episodes: int) -> dict[str, Any]:
    """The end of a run. After each RuntimeError its graph is made anew, as by another process, over what a killed one leaves:
    the journal and the memory that `make` is given, and the checkpoints."""
    records, saver, journal = RecordStore(InMemoryStore(), ("t",), Trajectory), InMemorySaver(serde=serializer()), Journal()
    plan: Any = run.RunInput(task=task, run="r", episode=0, episodes=episodes)
    while True:
        graph = run.build(make(journal, records), checkpointer=saver)
        try:
            return dict(graph.invoke(plan, {"configurable": {"thread_id": "1"}}))
        except RuntimeError:
            plan = None


class Emptied(dict[Any, str]):
    """A cache that another thread empties as soon as something was put in."""

    def __setitem__(self, key: Any, value: str) -> None:
        super().__setitem__(key, value)
        self.clear()
