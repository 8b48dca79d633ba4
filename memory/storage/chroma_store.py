"""A LangGraph store on Chroma: the memory of an agent across runs, in a directory or behind a Chroma server.

Chroma holds the durable copy. Reads are served from memory, so that retrieval is exact. A directory belongs to one process,
which loads it on opening and writes every change to Chroma before it shows it. A directory with snapshots of what is derived
from its items (memory/storage/snapshot.py) is loaded by the first search instead, and before that item by item. A server may
have many clients, so each batch fetches the items that its operations touch.

One record of Chroma is one item: its id is the JSON list `[*namespace, key]`, and its metadata holds the value as JSON
(`value`), `namespace` (a JSON list, and `ns0`, `ns1`, … for filters), `key`, `created_at` and `updated_at`. Items with
vectors are in a collection of their own; an item with several vectors has further records (`of`) there.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit

import numpy as np
from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
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
from numpy.typing import NDArray
from typing_extensions import override

from ..errors import UserError, import_package
from .snapshot import folder_name

__all__ = ["ChromaStore", "embedder_name"]

SCHEMA = 1
"""Version of the layout described above, recorded in the collection; a store with a newer one is refused."""

Namespace = tuple[str, ...]
VectorArray = NDArray[np.float32]


ANSWER_SECONDS = 30.0
"""Seconds that a server may take for an answer."""
RESTART_SECONDS = 60.0
"""Seconds in which a server may restart, or the network to it come back, while a batch waits."""

T = TypeVar("T")


class ServerOutage(UserError):
    """An error: no Chroma server answers."""


@dataclass(slots=True)
class _Entry:
    """A stored item. Its value stays JSON text, so that no caller can change the stored one."""

    namespace: Namespace
    key: str
    text: str
    created_at: datetime
    updated_at: datetime
    vectors: VectorArray | None = None  # (number of vectors, dims), of unit length (or zero); None: not indexed

    @property
    def id(self) -> str:
        return json.dumps([*self.namespace, self.key])

    def item(self) -> Item:
        return Item(
            value=json.loads(self.text),
            key=self.key,
            namespace=self.namespace,
            created_at=self.created_at,
            updated_at=self.updated_at,
        )

    def search_item(self, score: float | None) -> SearchItem:
        return SearchItem(self.namespace, self.key, json.loads(self.text), self.created_at, self.updated_at, score)


class ChromaStore(BaseStore):
    """LangGraph's `BaseStore` on Chroma: durable, exact, safe to kill, usable from threads and from asyncio.

    Open one with `ChromaStore.open("runs/zork/memory")`, `ChromaStore.open("http://127.0.0.1:8000")` or
    `ChromaStore.memory()`, and close it (or use `with`).

    Without `index` no embedding model is needed and a search's `query` is ignored. With
    `index={"dims": 384, "embed": <Embeddings, function or provider string>, "fields": ["text"]}` a search with a query
    ranks by exact cosine similarity, an item with several vectors by its best one. Every operation means the same as in
    LangGraph's `InMemoryStore`, except that an item keeps its `created_at` when it is written again, that values go through
    JSON (tuples become lists), and that a namespace whose last item is deleted is no longer listed.

    Within one batch, reads see the state before the batch, and the last of several writes to a key wins.
    """

    def __init__(self, *, index: IndexConfig | None = None, chroma: _Chroma | None = None) -> None:
        self.index_config = index
        self.embeddings: Embeddings | None = ensure_embeddings(index["embed"]) if index else None
        self._dims = index["dims"] if index else 0
        self._fields = [tokenize_path(path) for path in ((index and index.get("fields")) or ["$"])]
        self._chroma = chroma
        self._lock = threading.RLock()
        self._items: dict[Namespace, dict[str, _Entry]] = {}
        self._matrices: dict[Namespace, tuple[list[_Entry], NDArray[np.intp], VectorArray]] = {}
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
    def open(cls, where: str | os.PathLike[str], *, index: IndexConfig | None = None) -> Self:
        """Open the memory in a directory (made if missing), or the one behind a Chroma server (`http://host:port`).

        Raises:
            UserError: a process (perhaps this one) has the directory open; it holds no memory, a damaged one or one of a
                newer version; the memory was indexed by another embedder; no server answers.
        """
        embedder = (embedder_name(index["embed"]), index["dims"]) if index else None
        chroma = _Chroma(os.fspath(where), embedder)
        try:
            return cls(index=index, chroma=chroma)
        except BaseException:
            chroma.close()
            raise

    def close(self) -> None:
        """Release the directory and its files. A second close does nothing."""
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
            if self._chroma is None or self._chroma.owned:
                self._fetch(ops)
                return self._run_once(ops, embedded, asked)
            return self._chroma.outlast_restarts(lambda: self._run_at_server(ops, embedded, asked))

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

        None if that cannot be told: the store owns no directory, has vectors, or Chroma's tables are others than we know.
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

    def _run_at_server(
        self, ops: Sequence[Op], embedded: Mapping[str, Sequence[float]], asked: Mapping[str, VectorArray]
    ) -> list[Result]:
        """The same as `_run_once`, of what others have written since. Done twice, it is as good as done once."""
        assert self._chroma is not None
        self._items, self._matrices = {}, {}
        self._show(self._chroma.read_for(ops))
        return self._run_once(ops, embedded, asked)

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

    def _under(self, prefix: Namespace) -> Iterator[_Entry]:
        for namespace, entries in self._items.items():
            if namespace[: len(prefix)] == prefix:
                yield from entries.values()

    def _search(self, op: SearchOp, asked: Mapping[str, VectorArray]) -> list[SearchItem]:
        prefix, stop = tuple(op.namespace_prefix), op.offset + op.limit
        if op.query and asked:
            return self._nearest(op, prefix, asked[op.query])
        kept: list[_Entry] = []
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
        page: list[tuple[_Entry, float]] = []
        for i in near[np.argsort(-scores[near], kind="stable")]:
            if len(page) >= wanted:
                break
            if _matches(entries[i], op.filter):
                page.append((entries[i], float(scores[i])))
        return [e.search_item(None if e.vectors is None else score) for e, score in page[op.offset :]]

    def _list(self, op: ListNamespacesOp) -> list[Namespace]:
        names = [n for n in self._items if all(_fits(n, c) for c in op.match_conditions or ())]
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
            kept.append(_Entry(put.namespace, put.key, _json(put), old.created_at if old else now, now, vectors))
        self._writes.update({put.namespace for put in puts})
        if self._chroma:
            before = [e for new in kept if (e := self._items.get(new.namespace, {}).get(new.key))]
            self._chroma.write(kept, gone, before)
            for namespace in {entry.namespace for entry in gone}:
                if (folder := self.snapshot_folder(namespace)) is not None:  # what is deleted is nowhere kept
                    shutil.rmtree(folder, ignore_errors=True)
        self._show(kept)
        for entry in gone:
            del self._items[entry.namespace][entry.key]
            if not self._items[entry.namespace]:
                del self._items[entry.namespace]
        self._matrices = {}

    def _show(self, entries: Iterable[_Entry]) -> None:
        for entry in entries:
            self._items.setdefault(entry.namespace, {})[entry.key] = entry
            self._latest = max(self._latest, entry.updated_at)


_NO_INDEX = {"sync_threshold": 300}
"""Records after which Chroma writes its vector index of the items, whose vectors mean nothing, and forgets their log, which it reads at
every write. Its own value, 1000, makes a write of 20 records take 20 ms of CPU in place of 13; far fewer do so from 100,000 items on,
as the index is written whole. Stores that were made before keep theirs."""
_DATABASE = "chroma.sqlite3"
SNAPSHOTS = "snapshots"
"""Folder of the snapshots in a store's directory."""
_VERSIONS = """
SELECT k.string_value, c.string_value, u.string_value FROM embedding_metadata n
JOIN embeddings e ON e.id = n.id AND e.segment_id = (SELECT id FROM segments WHERE collection = ? AND scope = 'METADATA')
JOIN embedding_metadata k ON k.id = n.id AND k.key = 'key' JOIN embedding_metadata c ON c.id = n.id AND c.key = 'created_at'
JOIN embedding_metadata u ON u.id = n.id AND u.key = 'updated_at' WHERE n.key = 'namespace' AND n.string_value = ?
"""
"""The items of a namespace without their values: Chroma itself reads either all metadata of a record or none. Where its tables
are others, there are no snapshots."""
_LATEST = "SELECT max(string_value) FROM embedding_metadata WHERE key = 'updated_at'"
_FIRST_REQUEST = "/api/v2/tenants/default_tenant/databases/default_database"
"""One of the requests that Chroma's client sends as it is made. It is answered from the server's database."""
_AWAY = (502, 503, 504)
"""Statuses by which a proxy says that the server behind it does not answer."""
_DONE = {"open": "opened", "read": "read", "write": "written"}


class _Chroma:
    """The collections behind a store: a directory that this process owns (`owned`), or a server shared with others."""

    def __init__(self, where: str, embedder: tuple[str, int] | None) -> None:
        chromadb = import_package(
            "chromadb", "a memory in a folder or on a Chroma server needs chromadb", "pip install chromadb"
        )
        import httpx
        from chromadb.config import Settings

        self.owned = "://" not in where
        self.where = where if self.owned else where.rstrip("/")
        self._client: Any = None
        self._lock: Any = None
        settings = Settings(anonymized_telemetry=False)
        try:
            if self.owned:
                directory = Path(where)
                fresh = self._own(directory)
                with self._errors("open"):
                    self._client = chromadb.PersistentClient(os.path.abspath(where), settings=settings)
            else:
                url = urlsplit(where)
                if url.scheme not in ("http", "https") or not url.hostname:
                    raise UserError(f"memory at {where}: give a directory, or a server as http://host:port")
                with self._errors("open"):
                    port = url.port or 8000
                    # Chroma's client waits for ever, also for a server that the network no longer reaches, and has no option. It
                    # sends its first requests as it is made: one of them is sent beforehand, with a limit.
                    httpx.get(f"{url.scheme}://{url.hostname}:{port}{_FIRST_REQUEST}", timeout=ANSWER_SECONDS)
                    self._client = chromadb.HttpClient(url.hostname, port, ssl=url.scheme == "https", settings=settings)
                    self._client._server._session.timeout = ANSWER_SECONDS
            with self._errors("open"):
                self._open(embedder)
            if self.owned and fresh:
                self._sign(directory)
        except BaseException:
            self.close()
            raise

    @property
    def has_snapshots(self) -> bool:
        """True if there may be snapshots in the directory."""
        return self.owned and (Path(self.where) / SNAPSHOTS).is_dir()

    def versions(self, namespace: Namespace) -> dict[str, tuple[str, str]] | None:
        """As `ChromaStore.versions`."""
        rows = self._query(_VERSIONS, str(self._items.id), json.dumps(namespace))
        return None if rows is None else {key: (created, updated) for key, created, updated in rows}

    def latest(self) -> datetime | None:
        """The time of the last write; None if it cannot be told, or nothing was written."""
        rows = self._query(_LATEST)
        return datetime.fromisoformat(rows[0][0]) if rows and rows[0][0] else None

    def _query(self, query: str, *arguments: str) -> list[Any] | None:
        """The rows of a query to Chroma's database; None if it is not as we know it, or there are vectors, which it would not show."""
        if self._vectors is not None:
            return None
        with self._errors("read"):
            self._items.count()  # Chroma applies what is still in its log
        try:
            with closing(sqlite3.connect(f"{Path(self.where, _DATABASE).absolute().as_uri()}?mode=ro", uri=True)) as connection:
                return connection.execute(query, arguments).fetchall()
        except sqlite3.Error:
            return None

    def outlast_restarts(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is begun anew while the server does not answer, for `RESTART_SECONDS` at most."""
        until = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                return work()
            except ServerOutage:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def _own(self, directory: Path) -> bool:
        """Lock the directory; True if there is no memory in it yet."""
        from filelock import FileLock, Timeout

        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(directory / "owner.lock", thread_local=False)  # any thread may close the store
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(self._owner_message(directory)) from None
        except OSError as error:
            raise UserError(f"memory at {self.where} cannot be opened: {error.strerror or error}") from error
        self._lock = lock
        database, signed = directory / _DATABASE, (directory / "owner.pid").exists()
        if database.exists() and (database.stat().st_size or not signed):
            self._sign(directory)
            self._check(database)
            return False
        others = sorted(p.name for p in directory.iterdir() if p.name not in ("owner.lock", "owner.pid"))
        if signed or others:
            raise UserError(
                f"memory at {self.where} is damaged or no memory: chroma.sqlite3 is missing or empty, there is "
                f"{', '.join(others[:5]) or 'nothing else'}; restore it from a copy, or name an empty directory"
            )
        return True

    def _check(self, database: Path) -> None:
        """Raise `UserError` if the file is damaged. Chroma itself would write to it first."""
        try:
            with closing(sqlite3.connect(database)) as connection:
                found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            found = str(error)
        found = " ".join(found.split())
        if found != "ok":
            raise UserError(
                f"memory at {self.where} is damaged (chroma.sqlite3: {found}); nothing was changed: restore the "
                "directory from a copy, or name a new one"
            )

    def _sign(self, directory: Path) -> None:
        """Write this process's id into the directory, for the error message in other processes."""
        with self._errors("open"):
            (directory / "owner.pid").write_text(str(os.getpid()), encoding="utf-8")

    def _owner_message(self, directory: Path) -> str:
        try:
            pid = (directory / "owner.pid").read_text(encoding="utf-8")
        except OSError:
            pid = ""
        if pid == str(os.getpid()):
            return f"memory at {self.where} is already open in this process: share that store, or close it first"
        return (
            f"memory at {self.where} is open in {f'process {pid}' if pid else 'another process'}; to share it, start "
            f"'chroma run --path {self.where}' in its place and pass --memory http://127.0.0.1:8000"
        )

    def _open(self, embedder: tuple[str, int] | None) -> None:
        """Find or make the collections, and check their layout and embedder."""
        self._items = self._client.get_or_create_collection(
            "learngraph-items", metadata={"schema": SCHEMA}, embedding_function=None, configuration={"hnsw": _NO_INDEX}
        )
        schema = (self._items.metadata or {}).get("schema")
        if schema != SCHEMA:
            raise UserError(
                f"memory at {self.where} has layout {schema}, this learngraph knows layout {SCHEMA}: "
                "install the version that wrote it, or a newer one"
            )
        self._vectors = self._vector_collection()
        if embedder is None:
            return
        name, dims = embedder
        if self._vectors is None:
            self._vectors = self._client.create_collection(
                "learngraph-vectors",
                metadata={"embedder": name, "dims": dims},
                embedding_function=None,
                get_or_create=True,
            )
        made = self._vectors.metadata or {}
        if (made.get("embedder"), made.get("dims")) != embedder:
            raise UserError(
                f"memory at {self.where} was indexed by {made.get('embedder')} ({made.get('dims')} dimensions), "
                f"asked for {name} ({dims}): open it with that embedder, or export it into a new directory"
            )

    def _vector_collection(self) -> Any:
        from chromadb.errors import NotFoundError

        try:
            return self._client.get_collection("learngraph-vectors", embedding_function=None)
        except NotFoundError:
            return None

    def read(self, *, ids: Sequence[str] | None = None, where: dict[str, Any] | None = None) -> list[_Entry]:
        """All items, or those with these ids, or those with this metadata; in the order of their creation."""
        chosen: dict[str, Any] = {k: v for k, v in (("ids", ids), ("where", where)) if v is not None}
        with self._errors("read"):
            plain = self._items.get(**chosen, include=["metadatas"])
            entries = {id: _entry(meta) for id, meta in zip(plain["ids"], plain["metadatas"], strict=True)}
            if self._vectors is None and not self.owned:  # another client may have made it since
                self._vectors = self._vector_collection()
            if self._vectors is not None:
                found = self._vectors.get(**chosen, include=["metadatas", "embeddings"])
                if ids:
                    further = {"of": {"$in": list(ids)}}
                    more = self._vectors.get(where=further, include=["metadatas", "embeddings"])
                    found = {
                        "ids": found["ids"] + more["ids"],
                        "metadatas": found["metadatas"] + more["metadatas"],
                        "embeddings": [*found["embeddings"], *more["embeddings"]],
                    }
                self._join_vectors(entries, found)
        return sorted(entries.values(), key=lambda e: (e.created_at, e.id))

    @staticmethod
    def _join_vectors(entries: dict[str, _Entry], found: Mapping[str, Any]) -> None:
        """Join items and their vectors. Vectors left by an interrupted write are older than their item and are ignored."""
        rows: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        for id, meta, row in zip(found["ids"], found["metadatas"], found["embeddings"], strict=True):
            rows.setdefault((meta.get("of", id), meta["updated_at"]), []).append((meta["part"], row))
            if "of" not in meta:
                entry = _entry(meta)
                if id not in entries or entries[id].updated_at < entry.updated_at:
                    entries[id] = entry
        for id, entry in entries.items():
            if parts := rows.get((id, entry.updated_at.isoformat())):
                matrix = np.asarray([row for _, row in sorted(parts, key=lambda part: part[0])], dtype=np.float32)
                entry.vectors = matrix

    def read_for(self, ops: Sequence[Op]) -> list[_Entry]:
        """The items that these operations touch, from a server that others write to as well."""
        prefixes = {tuple(op.namespace_prefix) for op in ops if isinstance(op, SearchOp)}
        if any(isinstance(op, ListNamespacesOp) for op in ops) or () in prefixes:
            return self.read()
        entries = [e for prefix in sorted(prefixes) for e in self.read(where=_where(prefix))]
        ids = {json.dumps([*op.namespace, op.key]) for op in ops if isinstance(op, GetOp | PutOp)}
        return entries + (self.read(ids=sorted(ids)) if ids else [])

    def write(self, kept: Sequence[_Entry], gone: Sequence[_Entry], before: Sequence[_Entry]) -> None:
        """Upsert `kept`, delete `gone`; `before` are the entries that `kept` replaces.

        Each collection gets one upsert, which Chroma commits whole (in pieces above its own limit of some thousand records).
        """
        with self._errors("write"):
            plain = [(e.id, [0.0], _metadata(e)) for e in kept if e.vectors is None]
            indexed = [record for e in kept if e.vectors is not None for record in _records(e)]
            self._upsert(self._items, plain)
            self._upsert(self._vectors, indexed)
            old = [*before, *gone]
            self._delete(self._items, {e.id for e in old if e.vectors is None} - {id for id, _, _ in plain})
            parts = {id for e in old if e.vectors is not None for id in _ids(e)}
            self._delete(self._vectors, parts - {id for id, _, _ in indexed})

    def _upsert(self, collection: Any, records: Sequence[tuple[str, list[float], dict[str, Any]]]) -> None:
        size = self._client.get_max_batch_size()
        for i in range(0, len(records), size):
            ids, rows, metadatas = zip(*records[i : i + size], strict=True)
            collection.upsert(ids=list(ids), embeddings=list(rows), metadatas=list(metadatas))

    def _delete(self, collection: Any, ids: set[str]) -> None:
        size, rest = self._client.get_max_batch_size(), sorted(ids)
        for i in range(0, len(rest), size):
            collection.delete(ids=rest[i : i + size])

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Turn Chroma's errors into `UserError`: a full disk, a damaged directory, a server that does not answer."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            if not self.owned:
                raise self._server_error(error, text, doing) or error from error
            if _full(error, self.where):
                raise UserError(
                    f"memory at {self.where}: the disk is full, the last write may be missing; make room and run again"
                ) from error
            if doing == "write" and not type(error).__module__.startswith("chromadb"):
                raise
            raise UserError(
                f"memory at {self.where} cannot be {_DONE[doing]} ({type(error).__name__}: {text}); nothing was deleted: "
                "restore the directory from a copy, or name a new one"
            ) from error

    def _server_error(self, error: Exception, text: str, doing: str) -> UserError | None:
        """The error of a Chroma server as a sentence; None for errors that are not its."""
        from chromadb.errors import ChromaError, NotFoundError

        # Chroma's client turns an answer that is not Chroma's own, a proxy's for one, into a bare `Exception` without its status.
        status = getattr(getattr(error.__context__, "response", None), "status_code", 0)
        broke = type(error).__module__.split(".")[0] in ("httpx", "httpcore", "orjson")  # orjson: an answer that was cut
        unknown = doing == "open" and isinstance(error, ValueError)  # Chroma's word for no server
        if broke or unknown or (status in _AWAY and not isinstance(error, ChromaError)):
            return ServerOutage(
                f"no Chroma server answers at {self.where} ({text or f'status {status}'}): start one with "
                "'chroma run --path <directory>'"
            )
        if isinstance(error, NotFoundError):
            return UserError(
                f"memory at {self.where}: the server has it no longer; it was deleted there, or the server runs on another "
                "directory. Start the server on its directory again, or open the memory again to begin an empty one"
            )
        if isinstance(error, ChromaError) or type(error) is Exception:
            return UserError(f"memory at {self.where} cannot be {_DONE[doing]}: the server says {text or f'status {status}'}")
        return None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _metadata(entry: _Entry) -> dict[str, Any]:
    return {
        **{f"ns{i}": label for i, label in enumerate(entry.namespace)},
        "namespace": json.dumps(entry.namespace),
        "key": entry.key,
        "value": entry.text,
        "created_at": entry.created_at.isoformat(),
        "updated_at": entry.updated_at.isoformat(),
    }


def _entry(meta: Mapping[str, Any]) -> _Entry:
    return _Entry(
        tuple(json.loads(meta["namespace"])),
        meta["key"],
        meta["value"],
        datetime.fromisoformat(meta["created_at"]),
        datetime.fromisoformat(meta["updated_at"]),
    )


def _ids(entry: _Entry) -> list[str]:
    """The record ids of an indexed item, one per vector."""
    assert entry.vectors is not None
    return [f"{entry.id}#{part}" if part else entry.id for part in range(len(entry.vectors))]


def _records(entry: _Entry) -> list[tuple[str, list[float], dict[str, Any]]]:
    """An indexed item: its record with its first vector, then one record for each further vector."""
    assert entry.vectors is not None
    full = _metadata(entry)
    further = {k: v for k, v in full.items() if k not in ("key", "value", "created_at")} | {"of": entry.id}
    return [
        (id, row.tolist(), (further if part else full) | {"part": part})
        for part, (id, row) in enumerate(zip(_ids(entry), entry.vectors, strict=True))
    ]


def _where(prefix: Namespace) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{f"ns{i}": label} for i, label in enumerate(prefix)]
    return parts[0] if len(parts) == 1 else {"$and": parts}


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


def _full(error: BaseException, path: str) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    if "disk is full" in str(error) or "No space left" in str(error):
        return True
    # Chroma hides SQLite's reason behind messages such as "Failed to apply logs", so look at the disk as well.
    return os.path.isdir(path) and shutil.disk_usage(path).free < 1 << 20


def _matches(entry: _Entry, wanted: Mapping[str, Any] | None) -> bool:
    if not wanted:
        return True
    value = json.loads(entry.text)
    return all(_compare(_field(value, key), condition) for key, condition in wanted.items())


def _field(value: Any, key: str) -> Any:
    """The field that a filter names: `color`, or `user.name` for a nested one, as in LangGraph's SQL stores."""
    if key in value:
        return value[key]
    if not re.fullmatch(r"[\w.-]+", key):  # the SQL stores refuse these, so no filter works only here
        raise ValueError(f"Invalid filter key: {key!r}; use letters, digits, '_', '-' and '.'")
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _compare(value: Any, wanted: Any) -> bool:
    """LangGraph's filter: operators, or equality, which for objects compares only the mentioned keys."""
    match wanted:
        case dict() if any(key.startswith("$") for key in wanted):
            return all(_operate(value, operator, operand) for operator, operand in wanted.items())
        case dict():
            return isinstance(value, dict) and all(_compare(value.get(key), w) for key, w in wanted.items())
        case list() | tuple():
            return (
                isinstance(value, list)
                and len(value) == len(wanted)
                and all(_compare(v, w) for v, w in zip(value, wanted, strict=True))
            )
        case _:
            return bool(value == wanted)


def _operate(value: Any, operator: str, operand: Any) -> bool:
    match operator:
        case "$eq":
            return bool(value == operand)
        case "$ne":
            return bool(value != operand)
        case "$gt":
            return float(value) > float(operand)
        case "$gte":
            return float(value) >= float(operand)
        case "$lt":
            return float(value) < float(operand)
        case "$lte":
            return float(value) <= float(operand)
        case _:
            raise ValueError(f"a filter knows $eq, $ne, $gt, $gte, $lt, $lte, got {operator!r}")


def _fits(namespace: Namespace, condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    if condition.match_type == "prefix":
        labels = namespace[: len(path)]
    elif condition.match_type == "suffix":
        labels = namespace[len(namespace) - len(path) :]
    else:
        raise ValueError(f"a namespace is matched by prefix or suffix, got {condition.match_type!r}")
    return all(wanted in ("*", label) for wanted, label in zip(path, labels, strict=True))
