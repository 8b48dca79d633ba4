"""Durable storage of trajectories, as every memory of attempts uses it."""

from collections.abc import Iterable
from typing import Protocol

from ..records import Trajectory

__all__ = ["TrajectoryStore", "dated_records"]


class TrajectoryStore(Protocol):
    """Durable storage of trajectories, such as `memory.storage.record_store.RecordStore` over any LangGraph store."""

    def put(self, records: Iterable[Trajectory], /) -> None:
        """Store these trajectories; one with a stored id replaces it."""

    def all(self) -> Iterable[Trajectory]:
        """All stored trajectories, oldest first."""

    def delete(self, ids: Iterable[str], /) -> None:
        """Delete the trajectories with these ids."""


def dated_records(store: TrajectoryStore) -> list[tuple[str, Trajectory]]:
    """All trajectories of a store, oldest first, each with the moment of its writing, which is empty where the store does not know it."""
    dated = getattr(store, "with_moments", None)
    return list(dated()) if dated is not None else [("", one) for one in store.all()]
