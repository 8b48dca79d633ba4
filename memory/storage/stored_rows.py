"""Rows with ids in a namespace of a LangGraph store: what `Rows` is for a file, for several processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from .branches import History, branching, moment_of_time
from .open_store import all_items
from .rows import Rows

__all__ = ["StoredRows"]


@branching("append", "rewrite", but=("refresh", "sync", "close"))
class StoredRows(Rows):
    """Rows by id (the row's `id` field), in the order of writing. A row that is there already is not written again.

    What other processes write is seen after `refresh`.

    Args:
        store: any LangGraph store.
        namespace: labels of the namespace.
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str]) -> None:
        super().__init__()
        self.store, self.namespace = store, tuple(namespace)
        self.refresh()

    def __repr__(self) -> str:
        return f"StoredRows({'/'.join(self.namespace)})"

    def refresh(self) -> None:
        """Read the store again."""
        items = [item for item in all_items(self.store, self.namespace) if item.namespace == self.namespace]
        items.sort(key=lambda item: (item.value["number"], item.key))
        with self._lock:
            self._rows = {item.key: item.value["row"] for item in items}
            self._history = History[Mapping[str, Any]]((moment_of_time(item.created_at), item.key) for item in items)

    def as_of(self, moment: str) -> StoredRows:
        """A copy of the rows as they were at a moment (memory/storage/branches.py), in memory."""
        made = StoredRows(InMemoryStore(), self.namespace)
        with self._lock:
            for row in self._history.undo(self._rows, moment).values():
                made.append(row)
            made._history = History()
        return made

    def append(self, row: Mapping[str, Any]) -> None:
        """Write `row` unless there is one with its id."""
        with self._lock:
            if row["id"] in self._rows:
                return
            known = self.store.get(self.namespace, row["id"])
            if known is None:
                value = {"number": len(self._rows), "row": dict(row)}
                self.store.put(self.namespace, row["id"], value, index=False)
            self._history.note(row["id"])
            self._rows[row["id"]] = known.value["row"] if known is not None else row

    def rewrite(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> None:
        """Put the changed row in the place of each; None: delete it. For data that must not be kept."""
        self.refresh()
        with self._lock:
            order = tuple(self._rows)  # noted once for all that are deleted
            for number, (id, row) in enumerate(list(self._rows.items())):
                changed = change(row)
                if changed != row:
                    self._history.note(id, row, order if changed is None else ())
                if changed is None:
                    self.store.delete(self.namespace, id)
                    del self._rows[id]
                    order = ()
                elif changed != row:
                    self.store.put(self.namespace, id, {"number": number, "row": dict(changed)}, index=False)
                    self._rows[id] = changed
