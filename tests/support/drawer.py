"""A store of trajectories in a dictionary."""

from collections.abc import Iterable

from learngraph.memory.records import Trajectory


class Drawer:
    """Keeps what it is given by its id, and counts its writes."""

    def __init__(self) -> None:
        self.kept: dict[str, Trajectory] = {}
        self.writes = 0

    def put(self, records: Iterable[Trajectory], /) -> None:
        self.writes += 1
        self.kept |= {record.id: record for record in records}

    def all(self) -> list[Trajectory]:
        return list(self.kept.values())

    def delete(self, ids: Iterable[str], /) -> None:
        for name in ids:
            del self.kept[name]
