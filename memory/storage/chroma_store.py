"""A LangGraph store on Chroma: the memory of an agent across runs, in a directory or behind a Chroma server.

Chroma holds the durable copy. Reads are served from memory, so that retrieval is exact. A directory belongs to one process,
which loads the directory on opening and writes every change to Chroma before it shows the change. A directory with snapshots of what is derived
from its items (memory/storage/snapshot.py) is loaded by the first search instead, and before that item by item. A server may
have many clients, so each batch fetches the items that its operations touch.
"""

import asyncio
import json
import os
import re
import shutil
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)
from langgraph.store.memory import _compare_values, _does_match
from numpy.typing import NDArray
from typing_extensions import override

from ..errors import UserError
from .chroma_collections import SNAPSHOTS, ChromaCollections, Namespace, StoredItem, VectorArray
from .outages import RESTART_SECONDS
from .snapshot import folder_name

__all__ = ["ChromaStore", "embedder_name"]

NO_INDEX = "a search by query needs an index: ChromaStore.open(PATH, index={'dims': 384, 'embed': your embeddings})"


class ChromaStore(BaseStore):
    """LangGraph's `BaseStore` on Chroma: durable, exact, safe to kill, usable from threads and from asyncio.

    Open one with `ChromaStore.open("runs/zork/memory")`, `ChromaStore.open("http://127.0.0.1:8000")` or
    `ChromaStore.memory()`, and close it (or use `with`).

    Without `index` no embedding model is needed, and a search with a `query` is refused. With
    `index={"dims": 384, "embed": <Embeddings, function or provider string>, "fields": ["text"]}` a search with a query
    ranks by exact cosine similarity, an item with several vectors by its best one. Every operation means the same as in
    LangGraph's `InMemoryStore`, except that an item keeps its `created_at` when it is written again, that values go through
    JSON (tuples become lists), and that a namespace whose last item is deleted is no longer listed.

    Within one batch, reads see the state before the batch, and the last of several writes to a key wins.
    """

    def __init__(self, *, index: IndexConfig | None = None, chroma: ChromaCollections | None = None) -> None:
        self.index_config = index
        self.embeddings: Embeddings | None = ensure_embeddings(index["embed"]) if index else None
        self._dims = index["dims"] if index else 0
        self._fields = [tokenize_path(path) for path in ((index and index.get("fields")) or ["$"])]
        self._chroma = chroma
        self._lock = threading.RLock()
        self._items: dict[Namespace, dict[str, StoredItem]] = {}
        self._matrices: dict[Namespace, tuple[list[StoredItem], NDArray[np.intp], VectorArray]] = {}
        self._latest = datetime.min.replace(tzinfo=UTC)
        self._pid = os.getpid()
        self._closed = False
        self._writes: Counter[Namespace] = Counter()  # batches
        self._savers: list[weakref.WeakMethod[Callable[[], object]]] = []
        self._fetched: set[tuple[Namespace, str]] | None = None  # what is loaded, present or not; None: everything
        if chroma and chroma.owned:
            latest = chroma.latest() if chroma.has_snapshots else None
            if latest is None:
                self._show(chroma.read())
            else:
                self._fetched, self._latest = set(), latest

    @classmethod
    def memory(cls, *, index: IndexConfig | None = None) -> Self:
        """A store in this process's memory. It writes nothing and is gone when closed."""
        return cls(index=index)

    @classmethod
    def open(
        cls, where: str | os.PathLike[str], *, index: IndexConfig | None = None, patience: float = RESTART_SECONDS
    ) -> Self:
        """Open the memory in a directory (made if missing), or the one behind a Chroma server (`http://host:port`).

        Args:
            where: the directory, or the server.
            index: LangGraph's configuration of a vector index.
            patience: seconds for which a batch waits for a server that does not answer.

        Raises:
            UserError: a process (perhaps this one) has the directory open; it holds no memory, a damaged one or one of a
                newer version; the memory was indexed by another embedder; no server answers.
        """
        embedder = (embedder_name(index["embed"]), index["dims"]) if index else None
        chroma = ChromaCollections(os.fspath(where), embedder, patience)
        try:
            return cls(index=index, chroma=chroma)
        except BaseException:
            chroma.close()
            raise

    def close(self) -> None:
        """Release the directory and its files; its database then holds no text of a deleted item. A second close does nothing."""
        try:
            if not self._closed and self._pid == os.getpid():
                for saver in self._savers:
                    if (save := saver()) is not None:
                        save()
        finally:
            with self._lock:
                if not self._closed:
                    self._closed = True
                    self._items, self._matrices = {}, {}
                    if self._chroma:
                        self._chroma.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @override
    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = _validate_ops(ops)
        texts, queries = self._texts(ops)
        if self.embeddings is None or not (texts or queries):
            return self._run(ops, {}, {})
        rows = self.embeddings.embed_documents(texts) if texts else []
        asked = {query: self._unit([self.embeddings.embed_query(query)]) for query in queries}
        return self._run(ops, dict(zip(texts, rows, strict=True)), asked)

    @override
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        ops = _validate_ops(ops)
        texts, queries = self._texts(ops)
        if self.embeddings is None or not (texts or queries):
            return await asyncio.to_thread(self._run, ops, {}, {})
        rows = await self.embeddings.aembed_documents(texts) if texts else []
        asked = await asyncio.gather(*(self.embeddings.aembed_query(query) for query in queries))
        units = {query: self._unit([row]) for query, row in zip(queries, asked, strict=True)}
        return await asyncio.to_thread(self._run, ops, dict(zip(texts, rows, strict=True)), units)

    def _texts(self, ops: Sequence[Op]) -> tuple[list[str], list[str]]:
        """The texts that a batch needs embedded, each once: (of its writes, of its queries)."""
        if self.embeddings is None:
            if any(isinstance(op, SearchOp) and op.query for op in ops):
                raise UserError(NO_INDEX)  # LangGraph's stores answer with the first items, as if these were the nearest
            return [], []
        texts = {text: None for put in _last_puts(ops) for text in self._indexed_texts(put)}
        queries = {op.query: None for op in ops if isinstance(op, SearchOp) and op.query}
        return list(texts), list(queries)

    def _indexed_texts(self, put: PutOp) -> list[str]:
        """The texts of an item that get a vector each."""
        if put.value is None or put.index is False or self.embeddings is None:
            return []
        fields = self._fields if put.index is None else [tokenize_path(path) for path in put.index]
        return [text for tokens in fields for text in get_text_at_path(put.value, "$" if tokens == ["$"] else tokens)]

    def _unit(self, rows: Sequence[Sequence[float]]) -> VectorArray:
        """Rows as float32 of unit length, (n, dims); a zero row stays zero and is similar to nothing."""
        matrix = np.asarray(rows, dtype=np.float32)
        if matrix.ndim != 2 or matrix.shape[1] != self._dims:
            raise UserError(
                f"the index says dims={self._dims}, the embedder gave vectors of shape {matrix.shape[1:]}: "
                "give the embedder's own dimension"
            )
        norm = np.linalg.norm(matrix, axis=1, keepdims=True)
        return cast(VectorArray, matrix / np.where(norm == 0, 1, norm))

    def _run(
        self, ops: Sequence[Op], embedded: Mapping[str, Sequence[float]], asked: Mapping[str, VectorArray]
    ) -> list[Result]:
        with self._lock:
            if self._closed:
                raise UserError("the memory is closed: open it again before using it")
            if self._pid != os.getpid():
                raise UserError(
                    f"the memory was opened in process {self._pid}, this is its fork {os.getpid()}: start workers by "
                    "spawn, and let them share a 'chroma run' server"
                )
            chroma = self._chroma
            if chroma is None or chroma.owned:
                self._fetch(ops)
                return self._run_once(ops, embedded, asked)

            def run_at_server() -> list[Result]:  # of what others have written since; done twice, it is as good as done once
                self._items, self._matrices = {}, {}
                self._show(chroma.read_for(ops))
                return self._run_once(ops, embedded, asked)

            return chroma.outlast_restarts(run_at_server)

    def _fetch(self, ops: Sequence[Op]) -> None:
        """Load what these operations touch, of a directory that was not loaded on opening."""
        if self._fetched is None or self._chroma is None:
            return
        touched = {(op.namespace, op.key) for op in ops if isinstance(op, GetOp | PutOp)} - self._fetched
        if len(touched) < len(ops) and any(isinstance(op, SearchOp | ListNamespacesOp) for op in ops):
            self._items, self._matrices, self._fetched = {}, {}, None
            self._show(self._chroma.read())
        elif touched:
            self._show(self._chroma.read(ids=sorted(json.dumps([*namespace, key]) for namespace, key in touched)))
            self._fetched |= touched

    def snapshot_folder(self, namespace: Namespace) -> Path | None:
        """The folder for snapshots of what is derived from the items of a namespace; None unless the store owns a directory."""
        if self._chroma is None or not self._chroma.owned:
            return None
        return Path(self._chroma.where).absolute() / SNAPSHOTS / folder_name(namespace)

    def versions(self, namespace: Namespace) -> dict[str, tuple[str, str]] | None:
        """key -> (time of creation, time of the last write) of all items of a namespace, without loading them.

        None if that cannot be told: the store owns no directory, or Chroma's tables are others than we know.
        """
        with self._lock:
            if self._chroma is None or not self._chroma.owned or self._closed:
                return None
            return self._chroma.versions(namespace)

    def count_writes(self, namespace: Namespace) -> int:
        """The number of batches that have written into a namespace since the store was opened."""
        with self._lock:
            return self._writes[namespace]

    def before_close(self, call: Callable[[], object]) -> None:
        """Call a bound method, if its object still lives, before the store is closed."""
        self._savers.append(weakref.WeakMethod(call))

    def _run_once(
        self, ops: Sequence[Op], embedded: Mapping[str, Sequence[float]], asked: Mapping[str, VectorArray]
    ) -> list[Result]:
        results = [self._read(op, asked) for op in ops]
        puts = _last_puts(ops)
        if puts:
            self._write(puts, embedded)
        return results

    def _read(self, op: Op, asked: Mapping[str, VectorArray]) -> Result:
        match op:
            case GetOp():
                entry = self._items.get(op.namespace, {}).get(op.key)
                return entry.item() if entry else None
            case SearchOp():
                return self._search(op, asked)
            case ListNamespacesOp():
                return self._list(op)
            case PutOp():
                return None
            case _:
                raise ValueError(f"a store knows GetOp, SearchOp, ListNamespacesOp and PutOp, got {type(op).__name__}")

    def _under(self, prefix: Namespace) -> Iterator[StoredItem]:
        for namespace, entries in self._items.items():
            if namespace[: len(prefix)] == prefix:
                yield from entries.values()

    def _search(self, op: SearchOp, asked: Mapping[str, VectorArray]) -> list[SearchItem]:
        prefix, stop = tuple(op.namespace_prefix), op.offset + op.limit
        if op.query and asked:
            return self._nearest(op, prefix, asked[op.query])
        kept: list[StoredItem] = []
        for entry in self._under(prefix):
            if len(kept) >= stop:
                break
            if _matches(entry, op.filter):
                kept.append(entry)
        return [entry.search_item(None) for entry in kept[op.offset : stop]]

    def _nearest(self, op: SearchOp, prefix: Namespace, query: VectorArray) -> list[SearchItem]:
        """Exact cosine ranking; items without vectors come last, without a score."""
        if prefix not in self._matrices:
            entries = list(self._under(prefix))
            owners = np.repeat(np.arange(len(entries)), [0 if e.vectors is None else len(e.vectors) for e in entries])
            rows = [e.vectors for e in entries if e.vectors is not None]
            matrix = np.concatenate(rows) if rows else np.zeros((0, self._dims), np.float32)
            self._matrices[prefix] = entries, owners, matrix
        entries, owners, matrix = self._matrices[prefix]
        scores = np.full(len(entries), -np.inf, np.float32)
        np.maximum.at(scores, owners, (matrix @ query[0]))
        wanted, near = op.offset + op.limit, np.arange(len(entries))
        if 0 < wanted < len(entries) and not op.filter:  # sort only the best, and those that tie with the last of them
            near = np.flatnonzero(scores >= np.partition(scores, -wanted)[-wanted])
        page: list[tuple[StoredItem, float]] = []
        for i in near[np.argsort(-scores[near], kind="stable")]:
            if len(page) >= wanted:
                break
            if _matches(entries[i], op.filter):
                page.append((entries[i], float(scores[i])))
        return [e.search_item(None if e.vectors is None else score) for e, score in page[op.offset :]]

    def _list(self, op: ListNamespacesOp) -> list[Namespace]:
        names = [n for n in self._items if all(_does_match(c, n) for c in op.match_conditions or ())]
        return sorted({n[: op.max_depth] for n in names})[op.offset : op.offset + op.limit]

    def _write(self, puts: Sequence[PutOp], embedded: Mapping[str, Sequence[float]]) -> None:
        """Write to Chroma, then show the change: a write that fails changes nothing that is shown."""
        kept, gone = [], []
        for put in puts:
            old = self._items.get(put.namespace, {}).get(put.key)
            if put.value is None:
                gone += [old] if old else []
                continue
            # No two writes share a time, so that loading restores the order of writing.
            self._latest = now = max(datetime.now(UTC), self._latest + timedelta(microseconds=1))
            rows = [embedded[text] for text in self._indexed_texts(put)]
            vectors = self._unit(rows) if rows else None
            kept.append(StoredItem(put.namespace, put.key, _json(put), old.created_at if old else now, now, vectors))
        self._writes.update({put.namespace for put in puts})
        if self._chroma:
            self._chroma.write(kept, gone)
            for namespace in {entry.namespace for entry in gone}:
                if (folder := self.snapshot_folder(namespace)) is not None:  # what is deleted is nowhere kept
                    shutil.rmtree(folder, ignore_errors=True)
        self._show(kept)
        for entry in gone:
            del self._items[entry.namespace][entry.key]
            if not self._items[entry.namespace]:
                del self._items[entry.namespace]
        self._matrices = {}

    def _show(self, entries: Iterable[StoredItem]) -> None:
        for entry in entries:
            self._items.setdefault(entry.namespace, {})[entry.key] = entry
            self._latest = max(self._latest, entry.updated_at)


def _validate_ops(ops: Iterable[Op]) -> list[Op]:
    ops = list(ops)
    for op in ops:
        validate_op_namespace(op)
    return ops


def _last_puts(ops: Iterable[Op]) -> list[PutOp]:
    return list({(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}.values())


def _json(put: PutOp) -> str:
    try:
        "".join((*put.namespace, put.key)).encode()
        return json.dumps(put.value if isinstance(put.value, dict) else dict(put.value or {}))
    except (TypeError, ValueError) as error:
        raise UserError(f"item {put.key!r} in {put.namespace} cannot be stored as JSON: {error}") from error


def embedder_name(embed: object) -> str:
    """The name that identifies an embedder: its model's name if it has one, else that of its class or function."""
    if isinstance(embed, str):
        return embed
    for attribute in ("model_name", "model"):
        if isinstance(name := getattr(embed, attribute, None), str):
            return name
    kind = embed if hasattr(embed, "__qualname__") else type(embed)
    return f"{kind.__module__}.{kind.__qualname__}"


def _matches(entry: StoredItem, wanted: Mapping[str, Any] | None) -> bool:
    if not wanted:
        return True
    value = json.loads(entry.text)
    return all(_compare_values(_field(value, key), condition) for key, condition in wanted.items())


def _field(value: Any, key: str) -> Any:
    """The field that a filter names: `color`, or `user.name` for a nested one, as in LangGraph's SQL stores."""
    if key in value:
        return value[key]
    if not re.fullmatch(r"[\w.-]+", key):  # the SQL stores refuse these, so no filter works only here
        raise ValueError(f"Invalid filter key: {key!r}; use letters, digits, '_', '-' and '.'")
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
