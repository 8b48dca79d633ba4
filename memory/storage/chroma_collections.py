"""The collections of a Chroma store: how items are laid out there, who owns a directory, and what its errors mean.

One record of Chroma is one item: its id is the JSON list `[*namespace, key]`, and its metadata holds the value as JSON
(`value`), `namespace` (a JSON list, and `ns0`, `ns1`, … for filters), `key`, `created_at` and `updated_at`; of an indexed item
also `vectors`, float32 in base64. Chroma's own index would be approximate, and holds nothing.
"""

import base64
import errno
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from langgraph.store.base import GetOp, Item, ListNamespacesOp, Op, PutOp, SearchItem, SearchOp
from numpy.typing import NDArray

from ..errors import Unavailable, UserError, import_package
from .outages import RESTART_SECONDS, outlast

__all__ = ["ChromaCollections", "StoredItem"]

Namespace = tuple[str, ...]
VectorArray = NDArray[np.float32]

SCHEMA = 2
"""Version of the layout described above, recorded in the collection; a store with another one is refused."""

ANSWER_SECONDS = 30.0
"""Seconds that a server may take for an answer."""

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class ServerOutage(Unavailable):
    """An error: no Chroma server answers."""


@dataclass(slots=True)
class StoredItem:
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
        times = {"created_at": self.created_at, "updated_at": self.updated_at}
        return Item(value=json.loads(self.text), key=self.key, namespace=self.namespace, **times)

    def search_item(self, score: float | None) -> SearchItem:
        return SearchItem(self.namespace, self.key, json.loads(self.text), self.created_at, self.updated_at, score)


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
_EMPTY_LOG = """
UPDATE embeddings_queue SET metadata = NULL WHERE metadata IS NOT NULL AND seq_id <= (
SELECT m.seq_id FROM max_seq_id m JOIN segments s ON s.id = m.segment_id WHERE s.scope = 'METADATA' AND s.collection = ?)
"""
"""Takes the metadata out of the log where Chroma has stored them. The rows stay: its vector index may not have read them yet, which
needs no metadata, and it numbers new rows from the last one."""
_FIRST_REQUEST = "/api/v2/tenants/default_tenant/databases/default_database"
"""One of the requests that Chroma's client sends as it is made. It is answered from the server's database."""
_AWAY = (502, 503, 504)
"""Statuses by which a proxy says that the server behind it does not answer."""
_DONE = {"open": "opened", "read": "read", "write": "written"}


class ChromaCollections:
    """The collections behind a store: a directory that this process owns (`owned`), or a server shared with others."""

    def __init__(self, where: str, embedder: tuple[str, int] | None, patience: float = RESTART_SECONDS) -> None:
        chromadb = import_package(
            "chromadb", "a memory in a folder or on a Chroma server needs chromadb", "pip install chromadb"
        )
        import httpx
        from chromadb.config import Settings

        self.owned, self._patience = "://" not in where, patience
        self.where = where if self.owned else where.rstrip("/")
        self._client: Any = None
        self._items: Any = None
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
                    raise UserError(
                        f"memory at {where}: give a directory, a Chroma server as http://host:port, or postgresql://user@host/database"
                    )
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
        """The rows of a query to Chroma's database; None if it is not as we know it."""
        with self._errors("read"):
            self._items.count()  # Chroma applies what is still in its log
        try:
            with closing(sqlite3.connect(f"{Path(self.where, _DATABASE).absolute().as_uri()}?mode=ro", uri=True)) as connection:
                return connection.execute(query, arguments).fetchall()
        except sqlite3.Error:
            return None

    def outlast_restarts(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is begun anew while the server does not answer."""
        return outlast(work, lambda error: isinstance(error, ServerOutage), self._patience)

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
        if embedder is None:
            return
        if "embedder" not in self._items.metadata:
            self._items.modify(metadata={**self._items.metadata, "embedder": embedder[0], "dims": embedder[1]})
        made, dims = self._items.metadata["embedder"], self._items.metadata["dims"]
        if (made, dims) != embedder:
            raise UserError(
                f"memory at {self.where} was indexed by {made} ({dims} dimensions), asked for {embedder[0]} ({embedder[1]}): "
                "open it with that embedder, or export it into a new directory"
            )

    def read(self, *, ids: Sequence[str] | None = None, where: dict[str, Any] | None = None) -> list[StoredItem]:
        """All items, or those with these ids, or those with this metadata; in the order of their creation."""
        chosen: dict[str, Any] = {k: v for k, v in (("ids", ids), ("where", where)) if v is not None}
        with self._errors("read"):
            found = self._items.get(**chosen, include=["metadatas"])
        return sorted(map(_entry, found["metadatas"]), key=lambda e: (e.created_at, e.id))

    def read_for(self, ops: Sequence[Op]) -> list[StoredItem]:
        """The items that these operations touch, from a server that others write to as well."""
        prefixes = {tuple(op.namespace_prefix) for op in ops if isinstance(op, SearchOp)}
        if any(isinstance(op, ListNamespacesOp) for op in ops) or () in prefixes:
            return self.read()
        entries = [e for prefix in sorted(prefixes) for e in self.read(where=_where(prefix))]
        ids = {json.dumps([*op.namespace, op.key]) for op in ops if isinstance(op, GetOp | PutOp)}
        return entries + (self.read(ids=sorted(ids)) if ids else [])

    def write(self, kept: Sequence[StoredItem], gone: Sequence[StoredItem]) -> None:
        """Upsert `kept`, which Chroma commits whole (in pieces above its own limit of some thousand records), and delete `gone`."""
        with self._errors("write"):
            size = self._client.get_max_batch_size()
            for i in range(0, len(kept), size):
                part = kept[i : i + size]
                self._items.upsert(
                    ids=[e.id for e in part], embeddings=[[0.0]] * len(part), metadatas=[_metadata(e) for e in part]
                )
            for i in range(0, len(gone), size):
                self._items.delete(ids=[e.id for e in gone[i : i + size]])

    def _compact(self, collection: str) -> None:
        """Empty Chroma's log and write the database anew, unless nothing was written since that was last done."""
        try:
            with closing(sqlite3.connect(Path(self.where, _DATABASE), isolation_level=None)) as connection:
                last = connection.execute("SELECT max(seq_id) FROM embeddings_queue").fetchone()[0] or 0
                if last == connection.execute("PRAGMA user_version").fetchone()[0]:
                    return
                connection.execute(_EMPTY_LOG, (collection,))
                connection.execute("VACUUM")
                connection.execute(f"PRAGMA user_version = {last % (1 << 31)}")
        except sqlite3.Error as error:
            _LOG.warning("memory at %s keeps what was deleted until it is closed again: %s", self.where, error)

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
        """Release the directory, and take out of its database what Chroma keeps of deleted items, and of all others a second time.

        Chroma keeps both as long as it is open: in its log of writes, and in pages of the database that are free. If the process is
        killed, or the disk has no room for the database a second time, the next close does it.

        Its log keeps the names of deleted items, such as a thread's id. The files of Chroma's vector index are left as they are: Chroma
        writes memory into them that it has not cleared, in which parts of any text of the process can stand.
        """
        if self._client is not None:
            self._client.close()
            self._client = None
            if self.owned and self._items is not None:
                self._compact(str(self._items.id))
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _metadata(entry: StoredItem) -> dict[str, Any]:
    vectors = entry.vectors
    return {
        **{f"ns{i}": label for i, label in enumerate(entry.namespace)},
        "namespace": json.dumps(entry.namespace),
        "key": entry.key,
        "value": entry.text,
        "created_at": entry.created_at.isoformat(),
        "updated_at": entry.updated_at.isoformat(),
        # None takes away what a former version of the item had
        "vectors": None if vectors is None else base64.b64encode(vectors.tobytes()).decode(),
        "count": None if vectors is None else len(vectors),
    }


def _entry(meta: Mapping[str, Any]) -> StoredItem:
    vectors = np.frombuffer(base64.b64decode(meta["vectors"]), np.float32) if "vectors" in meta else None
    return StoredItem(
        tuple(json.loads(meta["namespace"])),
        meta["key"],
        meta["value"],
        datetime.fromisoformat(meta["created_at"]),
        datetime.fromisoformat(meta["updated_at"]),
        None if vectors is None else vectors.reshape(meta["count"], -1),
    )


def _where(prefix: Namespace) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{f"ns{i}": label} for i, label in enumerate(prefix)]
    return parts[0] if len(parts) == 1 else {"$and": parts}


def _full(error: BaseException, path: str) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    if "disk is full" in str(error) or "No space left" in str(error):
        return True
    # Chroma hides SQLite's reason behind messages such as "Failed to apply logs", so look at the disk as well.
    return os.path.isdir(path) and shutil.disk_usage(path).free < 1 << 20
