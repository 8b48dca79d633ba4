"""Questions to the replay buffer (memory/claas/replay.py): its records, their states and ages, and the steps that were taken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from ..display import Table, make_table
from ..errors import UserError
from ..records import Exchange, ExchangeQuery, Minibatch
from ..storage.branches import branching
from .replay_file import ReplayFile, Statements, unpack

if TYPE_CHECKING:
    from .replay_database import ReplayDatabase

__all__ = ["ReplayQueries", "ReplayRow"]

Kind = TypeVar("Kind", bound=type)
RECORD_TABLES = "records r JOIN bodies b USING (n)"
ROW_COLUMNS = "r.n, r.state, r.reason, r.times, r.revision, r.made, r.job, r.kl, r.feedback, b.about, b.prompt, b.tokens, b.logprobs, r.tenant"


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """A record of the buffer in its current state."""

    exchange: Exchange
    """The exchange with its feedback."""
    state: str
    """`pending`, `ready`, `held`, `leased`, `consumed` or `rejected`."""
    reason: str
    """Reason of its rejection; empty if it was not rejected."""
    sample_count: int
    """Times that it was sampled."""
    revision: int
    """Number of different feedbacks; 0: none."""
    age: int | None
    """Gradient steps since the version that made it; None if it is consumed or rejected."""
    job: str
    """Job of the newest feedback; empty: none."""
    kl: float | None
    """Last estimate of KL(mu || pi) per token, in nats; None: none yet."""


def repeating(memory: Kind) -> Kind:
    """Class decorator: a public method whose database went away is called again. What it did before, it does not do twice."""

    def repeat(method: Any) -> Any:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._database.repeat_if_away(lambda: method(self, *args, **kwargs))

        return call

    for name, member in list(vars(memory).items()):
        if isinstance(member, FunctionType) and not name.startswith("_") and name not in ("close", "as_of", "writes_since"):
            setattr(memory, name, repeat(member))
    return memory


@branching()
@repeating
class ReplayQueries:
    """The part of the buffer that only reads."""

    _database: ReplayFile | ReplayDatabase

    def get(self, tenant: str, id: str) -> ReplayRow | None:
        """A tenant's record; None: it has none of this id."""
        with self._database.reading() as base:
            found = self._rows(base, "r.tenant = ? AND r.id = ?", (tenant, id), 1)
        return found[0] if found else None

    def rows(self, query: ExchangeQuery) -> list[ReplayRow]:
        """A tenant's records, newest first."""
        where, values = "r.tenant = ?", [query.tenant]
        for name, value in (("adapter", query.adapter), ("state", query.state)):
            if value is not None:
                where, values = f"{where} AND r.{name} = ?", [*values, value]
        if query.before is not None:
            where = f"{where} AND r.n < (SELECT n FROM records WHERE tenant = ? AND id = ?)"
            values += [query.tenant, query.before]
        with self._database.reading() as base:
            if query.learned_by is not None:
                found = base.execute(
                    "SELECT b.ids FROM updates u JOIN batches b ON b.id = u.batch WHERE u.tenant = ? AND u.adapter = ? AND u.version = ?",
                    (query.tenant, query.learned_by.rpartition("@")[0].partition("/")[2], query.learned_by),
                ).fetchone()
                ids = json.loads(found[0]) if found else []
                if not ids:
                    return []
                where, values = f"{where} AND r.id IN ({', '.join('?' * len(ids))})", [*values, *ids]
            return self._rows(base, where, values, query.limit)

    def _rows(self, base: Statements, where: str, values: Sequence[Any], limit: int) -> list[ReplayRow]:
        found = base.execute(
            f"SELECT {ROW_COLUMNS}, s.step FROM {RECORD_TABLES} JOIN scopes s ON s.tenant = r.tenant AND s.adapter = r.adapter"
            f" WHERE {where} ORDER BY r.n DESC LIMIT ?",
            (*values, limit),
        ).fetchall()
        rows = []
        for _, state, reason, times, revision, made, job, kl, feedback, *body, tenant, step in found:
            age = None if state in ("consumed", "rejected") else step - made
            rows.append(ReplayRow(unpack(tenant, body, feedback), state, reason, times, revision, age, job, kl))
        return rows

    def held_out_exchanges(self, tenant: str, adapter: str, limit: int) -> list[Exchange]:
        """The newest exchanges that are never trained on."""
        return [row.exchange for row in self.rows(ExchangeQuery(tenant, adapter, "held", limit))]

    def table(self, tenant: str, limit: int = 100) -> Table:
        """A table of a tenant's newest exchanges and their feedback."""
        found = self.rows(ExchangeQuery(tenant, limit=limit))
        head = ("exchange", "reply", "reward", "feedback", "state", "sampled", "age in steps")
        rows = []
        for row in found:
            feedback, state = row.exchange.feedback, f"{row.state}: {row.reason}" if row.reason else row.state
            said = (feedback and feedback.reward, feedback and feedback.text)
            rows.append((row.exchange.id, row.exchange.reply.text, *said, state, row.sample_count, row.age))
        return make_table(f"{self!r}, {tenant}", head, rows, sum(self.counts(tenant).values()))

    def job(self, tenant: str, job: str) -> ReplayRow | None:
        """The record of a tenant's job; `rejected`, with the newer job as the reason, if later feedback replaced it."""
        with self._database.reading() as base:
            found = base.execute("SELECT id FROM feedbacks WHERE tenant = ? AND job = ?", (tenant, job)).fetchone()
        row = self.get(tenant, found[0]) if found else None
        if row is None or row.job == job:
            return row
        return replace(row, state="rejected", reason=f"newer feedback replaced it: {row.job}", job=job)

    def uses(self, tenant: str, id: str) -> tuple[tuple[str, str], ...]:
        """(minibatch, version) of every step whose minibatch had a record, oldest first; also after the record was deleted.

        Steps that did not learn from the record count, too: its reply may have been shown to the teacher of another record.
        """
        with self._database.reading() as base:
            return tuple(
                base.execute(
                    "SELECT u.batch, u.version FROM uses u JOIN batches b ON b.id = u.batch WHERE u.tenant = ? AND u.id = ? ORDER BY b.step",
                    (tenant, id),
                ).fetchall()
            )

    def counts(self, tenant: str | None = None, adapter: str | None = None) -> dict[str, int]:
        """Number of records by state; states without records are left out."""
        where = [(name, value) for name, value in (("tenant", tenant), ("adapter", adapter)) if value is not None]
        text = " AND ".join(f"{name} = ?" for name, _ in where) or "1 = 1"
        with self._database.reading() as base:
            return dict(
                base.execute(
                    f"SELECT state, count(*) FROM records WHERE {text} GROUP BY state ORDER BY state",
                    [value for _, value in where],
                ).fetchall()
            )

    def ages(self, tenant: str, adapter: str) -> dict[int, int]:
        """Number of ready records by age in gradient steps, youngest first."""
        with self._database.reading() as base:
            return dict(
                base.execute(
                    "SELECT s.step - r.made, count(*) FROM records r JOIN scopes s USING (tenant, adapter)"
                    " WHERE r.tenant = ? AND r.adapter = ? AND r.state = 'ready' GROUP BY 1 ORDER BY 1",
                    (tenant, adapter),
                ).fetchall()
            )

    def youngest_age(self, tenant: str, adapter: str) -> int:
        """Gradient steps since the newest version that has a ready record; 0 if there is none."""
        with self._database.reading() as base:
            found = base.execute(
                "SELECT max(made) FROM records INDEXED BY by_age WHERE state = 'ready' AND tenant = ? AND adapter = ?",
                (tenant, adapter),
            ).fetchone()
        return 0 if found[0] is None else self.step(tenant, adapter) - int(found[0])

    def other_base(self, base: str) -> str | None:
        """A base model other than this one whose replies wait for feedback, or to be learned from; None: there is none."""
        with self._database.reading() as database:
            found = database.execute(
                "SELECT base FROM records WHERE base <> ? AND state NOT IN ('consumed', 'rejected') LIMIT 1", (base,)
            ).fetchone()
        return str(found[0]) if found else None

    def adapters(self) -> list[tuple[str, str]]:
        """(tenant, adapter) of every adapter that ever had a record, sorted."""
        with self._database.reading() as base:
            return [tuple(row) for row in base.execute("SELECT tenant, adapter FROM scopes ORDER BY 1, 2").fetchall()]

    def scopes(self) -> list[tuple[str, str, int]]:
        """(tenant, adapter, number of ready records) of every adapter, sorted by the age of the oldest ready record, oldest first."""
        with self._database.reading() as base:
            found = base.execute(
                "SELECT s.tenant, s.adapter, count(r.n), min(r.n) FROM scopes s LEFT JOIN records r ON r.tenant = s.tenant"
                " AND r.adapter = s.adapter AND r.state = 'ready' GROUP BY 1, 2"
            ).fetchall()
        return [
            (tenant, adapter, count)
            for tenant, adapter, count, _ in sorted(found, key=lambda row: (row[3] is None, row[3], row[:2]))
        ]

    def step(self, tenant: str, adapter: str) -> int:
        """k: number of gradient steps taken."""
        return int(self._scope(tenant, adapter)[0])

    def head(self, tenant: str, adapter: str) -> str:
        """Label of the version that the next step starts from; empty: the base model."""
        return str(self._scope(tenant, adapter)[1])

    def _scope(self, tenant: str, adapter: str) -> tuple[int, str]:
        with self._database.reading() as base:
            found = base.execute("SELECT step, head FROM scopes WHERE tenant = ? AND adapter = ?", (tenant, adapter)).fetchone()
        return found or (0, "")

    def updates(self, tenant: str, adapter: str, limit: int = 100) -> list[dict[str, Any]]:
        """The log of gradient steps, newest first: the `update` of `commit`, and `step`, `batch`, `version`, `parent`, `time`."""
        with self._database.reading() as base:
            found = base.execute(
                "SELECT about, step, batch, version, parent, time FROM updates WHERE tenant = ? AND adapter = ? ORDER BY step DESC LIMIT ?",
                (tenant, adapter, limit),
            ).fetchall()
        return [
            {**json.loads(about), "step": step, "batch": batch, "version": version, "parent": parent, "time": when}
            for about, step, batch, version, parent, when in found
        ]

    def minibatch_sizes(self, tenant: str, adapter: str) -> dict[str, int]:
        """Label of each version -> number of exchanges in the minibatch of the step that made it, deleted ones too."""
        with self._database.reading() as base:
            found = base.execute(
                "SELECT u.version, b.ids FROM updates u JOIN batches b ON b.id = u.batch WHERE u.tenant = ? AND u.adapter = ?",
                (tenant, adapter),
            ).fetchall()
        return {version: len(json.loads(ids)) for version, ids in found}

    def minibatch(self, id: str) -> Minibatch:
        """The minibatch of this id.

        Raises:
            UserError: there is none, or some of its records were deleted.
        """
        with self._database.reading() as base:
            return self._minibatch(base, id)

    def _minibatch(self, base: Statements, id: str) -> Minibatch:
        tenant, adapter, step, parent, seed, ids, *_ = self._batch(base, id)
        exchanges = []
        for key in json.loads(ids):
            found = base.execute(
                f"SELECT {ROW_COLUMNS} FROM {RECORD_TABLES} WHERE r.tenant = ? AND r.id = ?", (tenant, key)
            ).fetchone()
            if found is None:
                raise UserError(f"minibatch {id!r} cannot be shown again: its record {key!r} is gone")
            made, feedback, body = found[5], found[8], found[9:13]
            exchanges.append(replace(unpack(tenant, body, feedback), step=made))
        return Minibatch(id, tenant, adapter, step, parent, tuple(exchanges), seed)

    def _batch(self, base: Statements, id: str) -> tuple[Any, ...]:
        found = base.execute(
            "SELECT tenant, adapter, step, parent, seed, ids, state, version, reason FROM batches WHERE id = ?", (id,)
        ).fetchone()
        if found is None:
            raise UserError(f"no minibatch {id!r} was leased")
        return tuple(found)

    def version_of_batch(self, batch_id: str) -> str:
        """Label of the version that a minibatch made; empty: none, or not yet."""
        with self._database.reading() as base:
            return str(self._batch(base, batch_id)[7] or "")

    def leased_batches(self) -> list[str]:
        """Ids of leased minibatches, which a restarted learner has to finish."""
        with self._database.reading() as base:
            return [id for (id,) in base.execute("SELECT id FROM batches WHERE state = 'leased' ORDER BY id")]

    def tainted_versions(self, tenant: str | None = None) -> tuple[str, ...]:
        """Labels of all versions that learned from records that were deleted since, and of their descendants."""
        which, values = ("1 = 1", ()) if tenant is None else ("tenant = ?", (tenant,))
        with self._database.reading() as base:
            found = base.execute(f"SELECT version FROM taints WHERE {which} ORDER BY version", values).fetchall()
        return tuple(label for (label,) in found)
