"""Any LangGraph store, of which branches (memory/storage/branches.py) can be made: a what-if reads it as it was and writes apart from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, ListNamespacesOp, Op, PutOp, Result, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

from .branches import ABSENT, BranchError, History, current_branch, moment_of_time

__all__ = ["BranchingStore", "StoreView"]

FETCHED = 256
"""Items that a search in a branch asks for at first, beyond its limit."""
Address = tuple[tuple[str, ...], str]


class BranchingStore(BaseStore):
    """A store that behaves as the one inside, and whose branches see it as it was at a moment.

    What is replaced or deleted is remembered in this process. Items that others write into the store inside are seen by their times
    alone.

    Args:
        store: any LangGraph store.
    """

    supports_ttl = True

    def __init__(self, store: BaseStore) -> None:
        self.store = store
        self.supports_ttl, self.ttl_config = store.supports_ttl, store.ttl_config
        self._history = History[Item]()

    def __getattr__(self, name: str) -> Any:
        if name == "store":
            raise AttributeError(name)
        return getattr(self.store, name)

    def __repr__(self) -> str:
        return f"BranchingStore({self.store!r})"

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        if (branch := current_branch()) is not None:
            return self._batch_in_branch(branch, asked)
        puts = _written_addresses(asked)
        self._note(puts, self.store.batch([GetOp(*address) for address in puts]) if puts else [])
        return self.store.batch(asked)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        if (branch := current_branch()) is not None:
            return self._batch_in_branch(branch, asked)
        puts = _written_addresses(asked)
        self._note(puts, await self.store.abatch([GetOp(*address) for address in puts]) if puts else [])
        return await self.store.abatch(asked)

    def _batch_in_branch(self, branch: Any, ops: list[Op]) -> list[Result]:
        with branch.outside():
            found: list[Result] = branch.copy(self).batch(ops)
        puts = [op for op in ops if isinstance(op, PutOp)]
        if puts:
            branch.note(self, "batch", (puts,), {})
        return found

    def _note(self, addresses: Iterable[Address], before: Iterable[Result]) -> None:
        """Note what is about to be replaced."""
        for address, item in zip(addresses, before, strict=True):
            self._history.note(address, item if isinstance(item, Item) else ABSENT)

    def as_of(self, moment: str) -> StoreView:
        """A store that shows this one as it was at a moment, and takes writes in without passing them on."""
        return StoreView(self.store, self._history, moment)

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """(namespace, key) -> value, of the items written since a moment; `ABSENT` for those deleted."""
        found: dict[Any, Any] = {}
        for namespace, key in self._history.keys_since(moment):
            item = self.store.get(namespace, key)
            found[namespace, key] = ABSENT if item is None else item.value
        return found


class StoreView(BaseStore):
    """A store as it was at a moment, with writes of its own on top.

    It holds only the items that differ from those of the store: the others are read there.

    Args:
        store: any LangGraph store.
        history: the changes of its items by (namespace, key), to which later ones are added.
        moment: the moment; empty: the store is seen as it is at each time.
    """

    def __init__(self, store: BaseStore, history: History[Item], moment: str) -> None:
        self._store, self._history, self._moment = store, history, moment
        self._own = InMemoryStore(index=getattr(store, "index_config", None))
        self._differs: dict[Address, bool] = {}  # address -> whether this view wrote it

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        self._undo()
        return [self._answer(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)

    def writes_since(self, moment: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for address in [address for address, mine in self._differs.items() if mine]:
            item = self._own.get(*address)
            found[address] = ABSENT if item is None else item.value
        return found

    def _undo(self) -> None:
        """Take in what the store's history says to have been there, for all that was written later."""
        if self._moment:
            for change in self._history:  # the first write after the moment tells what was there
                if change.moment >= self._moment and change.key not in self._differs:
                    self._differs[change.key] = False
                    if change.before is not ABSENT:
                        self._put(change.key, change.before.value, change.before)

    def _put(self, address: Any, value: Any, times: Item | None, index: Any = None) -> None:
        self._own.put(address[0], address[1], value, index)
        made = self._own.get(*address)
        if times is not None and made is not None:
            made.created_at, made.updated_at = times.created_at, times.updated_at

    def _is_shown(self, item: Item) -> bool:
        """True if the store's item is also the view's."""
        if (item.namespace, item.key) in self._differs:
            return False
        return not self._moment or moment_of_time(item.created_at) < self._moment

    def _answer(self, op: Op) -> Result:
        match op:
            case GetOp():
                if (op.namespace, op.key) in self._differs:
                    return self._own.get(op.namespace, op.key)
                item = self._store.get(op.namespace, op.key)
                return item if item is not None and self._is_shown(item) else None
            case PutOp():
                before = self._answer(GetOp(op.namespace, op.key))
                self._differs[op.namespace, op.key] = True
                if op.value is None:
                    self._own.delete(op.namespace, op.key)
                else:
                    self._put((op.namespace, op.key), op.value, None, op.index)
                    made = self._own.get(op.namespace, op.key)
                    if isinstance(before, Item) and made is not None:
                        made.created_at = before.created_at
                return None
            case SearchOp():
                return self._search(op)
            case ListNamespacesOp():
                return self._namespaces(op)
        raise BranchError(f"a store answers Get, Put, Search and ListNamespaces, not {op!r}")

    def _search(self, op: SearchOp) -> list[SearchItem]:
        wanted, fetch = op.offset + op.limit, op.offset + op.limit + FETCHED
        while True:
            (found,) = self._store.batch([op._replace(limit=fetch, offset=0)])
            page: list[Any] = list(found)  # type: ignore[arg-type]
            shown = [item for item in page if self._is_shown(item)]
            if len(shown) >= wanted or len(page) < fetch:
                break
            fetch *= 4
        (mine,) = self._own.batch([op._replace(limit=1 << 30, offset=0)])
        shown += mine  # type: ignore[arg-type]
        if op.query:
            shown.sort(key=lambda item: -(item.score if item.score is not None else -1.0))
        return shown[op.offset : wanted]

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        deep = op._replace(limit=1 << 30, offset=0, max_depth=None)
        (there,), (mine,) = self._store.batch([deep]), self._own.batch([deep])
        found = {*there, *mine}  # type: ignore[misc]
        kept = [one for one in found if self._search(SearchOp(one, limit=1))]
        cut = {one[: op.max_depth] if op.max_depth else one for one in kept}
        return sorted(cut)[op.offset : op.offset + op.limit]


def _written_addresses(ops: Iterable[Op]) -> list[Address]:
    return list(dict.fromkeys((op.namespace, op.key) for op in ops if isinstance(op, PutOp)))
