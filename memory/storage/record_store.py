"""A typed collection of records over any LangGraph store, and records as plain JSON.

A record becomes a plain object of its fields (nested records too, tuples as lists), which any other tool can read. Reading
follows the record's type hints and is strict: an unknown field is an error and is not dropped.
"""

from __future__ import annotations

import functools
import json
import os
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from langgraph.store.base import BaseStore, GetOp, InvalidNamespaceError, Item, PutOp, SearchOp, validate_op_namespace

from ..errors import UserError, asks_store
from .branches import ABSENT, MAX_CHANGES, History, branching, current_branch, moment_of_time
from .branching_store import StoreView
from .open_store import MOST_ITEMS, all_items, is_all
from .snapshot import Snapshots, snapshots_of

__all__ = ["BadRecord", "Record", "RecordStore", "as_jsonl", "exchange", "read_jsonl", "to_json", "write_jsonl"]

T = TypeVar("T")


class BadRecord(UserError, ValueError):
    """An error: the data is not the expected record. The message names the place, the field, and both types."""


class Record(Protocol):
    """A frozen dataclass with an `id` that is derived, never random, so a record stored twice is stored once."""

    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=Record)
_READ_AT_ONCE = 1_000
"""Records that are read in one batch."""


@branching("put", "delete")
class RecordStore(Generic[R]):
    """The records of one type in one namespace of a store.

    Args:
        store: any LangGraph store.
        namespace: labels of the namespace.
        record: the type of the records.
        changes_kept: writes that what-ifs can look behind (memory/storage/branches.py); each keeps the record that it replaced in memory.
        on_damage: told of items that are no such record, which are then left out; None: they are errors.

    Raises:
        UserError: the labels are no valid namespace.
    """

    def __init__(
        self,
        store: BaseStore,
        namespace: Sequence[str],
        record: type[R],
        *,
        changes_kept: int = MAX_CHANGES,
        on_damage: Callable[[BadRecord], None] | None = None,
    ) -> None:
        self.store, self._on_damage = store, on_damage
        self.namespace = tuple(namespace)
        self.record = record
        try:
            validate_op_namespace(GetOp(self.namespace, ""))
        except InvalidNamespaceError as error:
            raise UserError(f"{self.namespace} cannot be the namespace of a record store: {error}") from error
        self._history = History[Any](limit=changes_kept)

    def __repr__(self) -> str:
        return f"RecordStore({'/'.join(self.namespace)}, {self.record.__name__})"

    def put(self, records: Iterable[R], /) -> None:
        """Store these records in one batch; one with a stored id replaces it."""
        self._write([PutOp(self.namespace, r.id, to_json(r), index=False) for r in records])

    @asks_store
    def _write(self, puts: Sequence[PutOp]) -> None:
        if puts:
            before = self.store.batch([*(GetOp(put.namespace, put.key) for put in puts), *puts])
            self._note_writes(puts, before)

    def _note_writes(self, puts: Sequence[PutOp], before: Iterable[Any]) -> None:
        """Note what writes of this collection have replaced: the items that were read in the same batch, first of all."""
        for put, item in zip(puts, before, strict=False):
            self._history.note((put.namespace, put.key), item if isinstance(item, Item) else ABSENT)

    @asks_store
    def get(self, id: str, /) -> R | None:
        return cast("R | None", self._read(self.store.get(self.namespace, id), id))

    @asks_store
    def get_many(self, ids: Sequence[str], /) -> list[R]:
        """The records with these ids, in their order; an id without a record has none."""
        found: list[R] = []
        for start in range(0, len(ids), _READ_AT_ONCE):
            items = self.store.batch([GetOp(self.namespace, id) for id in ids[start : start + _READ_AT_ONCE]])
            found += self._records([item for item in items if item is not None])
        return found

    @property
    def snapshots(self) -> Snapshots | None:
        """Where snapshots of what is derived from the records can be kept; None if the store has no place for them."""
        return snapshots_of(self.store, self.namespace)

    def all(self) -> list[R]:
        """All stored records, oldest first (by the store's clock, then by id)."""
        return [record for _, record in self.with_moments()]

    @asks_store
    def read_few(self, count: int) -> list[R] | None:
        """All stored records as `all` gives them, where there are fewer than so many; else None, without reading the others."""
        if len(items := self.store.search(self.namespace, limit=count)) >= count:
            return None
        mine = [one for one in items if one.namespace == self.namespace]
        return list(self._records(sorted(mine, key=lambda one: (one.created_at, one.key)))) if is_all(items) else self.all()

    def with_moments(self) -> list[tuple[str, R]]:
        """All stored records as `all` gives them, each with the moment (memory/storage/branches.py) of its first writing."""
        items = self._items()
        items.sort(key=lambda item: (item.created_at, item.key))
        return [(moment_of_time(item.created_at), record) for item in items for record in self._records([item])]

    def as_of(self, moment: str) -> RecordStore[R]:
        """The records as they were at a moment (memory/storage/branches.py), with writes that do not reach the store.

        A record that another process changed since counts with its present value, unless the store is a `BranchingStore`.
        """
        seen = StoreView(self.store, self._history, moment)
        return RecordStore(seen, self.namespace, self.record, on_damage=self._on_damage)

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """id -> record, of those written since a moment; `ABSENT` for those deleted."""
        found = {id: self.get(str(id)) for _, id in self._history.keys_since(moment)}
        return {id: ABSENT if record is None else record for id, record in found.items()}

    def _records(self, items: Iterable[Any]) -> Iterator[R]:
        for item in items:
            try:
                yield self._record(item.key, item.value)
            except BadRecord as damage:
                if self._on_damage is None:
                    raise
                self._on_damage(damage)

    def _read(self, result: Any, id: str | None) -> Any:
        """The record in the result of a batch, or None; without an id, the records."""
        if id is not None:
            return next(self._records([result]), None) if result else None
        return list(self._records(one for one in result if one.namespace == self.namespace)) if is_all(result) else self.all()

    def count(self) -> int:
        """The number of stored records, without reading them."""
        return len(self._items())

    @asks_store
    def _items(self) -> list[Any]:
        return [item for item in all_items(self.store, self.namespace) if item.namespace == self.namespace]

    def delete(self, ids: Iterable[str], /) -> None:
        """Delete the records with these ids; an unknown id is no error."""
        self._write([PutOp(self.namespace, id, None) for id in ids])

    def _record(self, key: str, value: dict[str, Any]) -> R:
        return from_json(self.record, value, f"item {key!r} in {'/'.join(self.namespace)}")


@asks_store
def exchange(
    asked: Sequence[tuple[RecordStore[Any], str | None]], puts: Sequence[tuple[RecordStore[Any], Record]] = ()
) -> list[Any]:
    """Read records of several collections of one store, and write others, in one batch.

    Args:
        asked: collections, each with an id, or with None for all of its records.
        puts: collections, each with a record to be stored.

    Returns:
        For each that is asked for the record as it was before the writes, or None; where all are, a list of them in no order.
    """
    if not asked and not puts:
        return []
    if current_branch() is not None:  # each collection has a copy of its own there
        found = [records.all() if id is None else records.get(id) for records, id in asked]
        for records, record in puts:
            records.put([record])
        return found
    reads = [SearchOp(one.namespace, limit=MOST_ITEMS) if id is None else GetOp(one.namespace, id) for one, id in asked]
    writes = [PutOp(records.namespace, record.id, to_json(record), index=False) for records, record in puts]
    store = (asked or puts)[0][0].store
    results = store.batch([*reads, *(GetOp(put.namespace, put.key) for put in writes), *writes])
    for (records, _), put, item in zip(puts, writes, results[len(reads) :], strict=False):
        records._note_writes([put], [item])
    return [records._read(result, id) for (records, id), result in zip(asked, results, strict=False)]


def as_jsonl(records: Iterable[Any], /) -> Iterator[str]:
    """One line per record."""
    return (json.dumps(to_json(record)) + "\n" for record in records)


def write_jsonl(records: Sequence[Any], path: str | os.PathLike[str], /) -> int:
    """Write records, one per line, and return their number. `path` is replaced when all is written."""
    target = Path(path)
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(as_jsonl(records))
        part.replace(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from error
    return len(records)


def read_jsonl(record: type[T], path: str | os.PathLike[str], /) -> list[tuple[int, T]]:
    """The records of a file of `write_jsonl`, each with its line number.

    Raises:
        BadRecord: a line is not such a record; names the first wrong one.
        UserError: the file cannot be read.
    """
    found = []
    try:
        for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise BadRecord(f"{where}: not JSON: {error}") from error
                found.append((number, from_json(record, value, where)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return found


def to_json(value: Any) -> Any:
    """A record as a plain object of its fields, recursively; tuples become lists."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, str | float | int):
        return value
    if is_dataclass(value):
        return {
            name: item if type(item := getattr(value, name)) in _PLAIN else to_json(item)
            for name in _names(cast(Hashable, kind))
        }
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    raise TypeError(f"a record holds plain data, got {type(value).__name__}: {value!r}")


def from_json(record: type[T], value: Any, where: str = "value") -> T:
    """The record that `to_json` wrote. A field may be missing only if the record has a default for it.

    Raises:
        BadRecord: a field is unknown, missing or of another type; names `where` and the field.
    """
    try:
        return cast(T, _reader(cast(Hashable, record))(value))
    except _Wrong as wrong:
        field = "".join(reversed(wrong.path)).lstrip(".")
        raise BadRecord(f"{where}: {f'field {field!r}: ' if field else ''}{wrong}") from None


class _Wrong(Exception):
    """An error in a value, and the path to it, innermost part first."""

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.path = list(path)


def _mismatch(what: str, value: Any) -> _Wrong:
    shown = json.dumps(value, default=repr)
    return _Wrong(f"expected {what}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")


_PLAIN = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


@functools.cache
def _names(record: Hashable) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cast(Any, record)))


@functools.cache
def _reader(hint: Hashable) -> Callable[[Any], Any]:
    """The function that reads a value of this type. It is made once per type, since a memory has many records."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint in _PLAIN:
        return _plain(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _object(hint)
    if origin in (Union, types.UnionType):
        return _either([_reader(arg) for arg in args])
    if origin is Literal:
        return _one_of(args)
    if origin is list or (origin is tuple and args[1:] == (...,)):
        return _sequence(origin, _reader(args[0]))
    if origin is dict:
        return _mapping(_reader(args[1]))
    raise TypeError(f"a record's field is plain data, a record, or a union, tuple[X, ...], list or dict of them: {hint}")


def _plain(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise _mismatch(_PLAIN[kind], value)

    return read


def _object(record: type) -> Callable[[Any], Any]:
    hints = get_type_hints(record)
    readers = {f.name: _reader(hints[f.name]) for f in fields(record)}
    plain = {name: hint for name, hint in hints.items() if hint in _PLAIN}  # most values are, and need no call to be read
    needed = {f.name for f in fields(record) if f.default is MISSING and f.default_factory is MISSING}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _mismatch(f"a {record.__name__} as an object", value)
        if value.keys() != readers.keys():
            if unknown := value.keys() - readers.keys():
                raise _Wrong(f"{record.__name__} has no such field; it has {', '.join(readers)}", "." + min(unknown))
            if missing := needed - value.keys():
                raise _Wrong(f"missing, a {record.__name__} needs it", "." + min(missing))
        return record(
            **{
                name: item if type(item) is plain.get(name) else _part(readers[name], item, ".{}", name)
                for name, item in value.items()
            }
        )

    return read


def _part(reader: Callable[[Any], Any], value: Any, form: str, place: object) -> Any:
    """A part of a value; an error in it says where it is."""
    try:
        return reader(value)
    except _Wrong as wrong:
        wrong.path.append(form.format(place))
        raise


def _sequence(kind: Callable[[list[Any]], Any], reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _mismatch("a list", value)
        return kind([_part(reader, item, "[{}]", i) for i, item in enumerate(value)])

    return read


def _mapping(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch("an object", value)
        return {key: _part(reader, item, ".{}", key) for key, item in value.items()}

    return read


def _either(readers: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        wrongs = []
        for reader in readers:
            try:
                return reader(value)
            except _Wrong as wrong:
                wrongs.append(wrong)
        deepest = max(wrongs, key=lambda wrong: len(wrong.path))
        if deepest.path:
            raise deepest
        expected = [str(wrong).removeprefix("expected ").split(", got ")[0] for wrong in wrongs]
        raise _mismatch(" or ".join(expected), value)

    return read


def _one_of(allowed: tuple[Any, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value in allowed:
            return value
        raise _mismatch("one of " + ", ".join(map(json.dumps, allowed)), value)

    return read
