"""Questions to the replay buffer (memory/claas/replay.py): its records, their states and ages, and the steps that were taken."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from ..display import Table, make_table
from ..errors import UnknownExchange, UserError
from ..records import Exchange, ExchangeQuery, Minibatch
from ..storage.branches import branching
from .replay_file import ReplayFile, unpack

if TYPE_CHECKING:
    from .replay_database import ReplayDatabase

__all__ = ["ReplayQueries", "ReplayRow"]

Kind = TypeVar("Kind", bound=type)
ROWS = (
    "SELECT b.body, r.feedback, r.state, r.reason, r.times, r.revision, s.step - r.made, r.job, r.kl, r.made"
    " FROM records r JOIN bodies b USING (n) JOIN scopes s ON s.tenant = r.tenant AND s.adapter = r.adapter WHERE "
)
BATCH = "SELECT tenant, adapter, step, parent, seed, ids, state, version, reason FROM batches WHERE id = ?"


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

    def _ask(self, text: str, *values: Any) -> list[Any]:
        """The rows of a query."""
        with self._database.reading() as base:
            return list(base.execute(text, values).fetchall())

    def _rows(self, where: str, *values: Any) -> list[ReplayRow]:
        rows = []
        for body, feedback, state, reason, times, revision, age, job, kl, _ in self._ask(ROWS + where, *values):
            known_age = None if state in ("consumed", "rejected") else age
            rows.append(ReplayRow(unpack(body, feedback), state, reason, times, revision, known_age, job, kl))
        return rows

    def get(self, tenant: str, id: str) -> ReplayRow | None:
        """A tenant's record; None: it has none of this id."""
        found = self._rows("r.tenant = ? AND r.id = ?", tenant, id)
        return found[0] if found else None

    def rows(self, query: ExchangeQuery) -> list[ReplayRow]:
        """A tenant's records, newest first."""
        where, values = "r.tenant = ?", [query.tenant]
        for name, value in (("adapter", query.adapter), ("state", query.state), ("user", query.user)):
            if value is not None:
                where, values = f'{where} AND r."{name}" = ?', [*values, value]
        if query.is_rated:
            where = f"{where} AND r.revision > 0"
        if query.before is not None:
            where = f"{where} AND r.n < (SELECT n FROM records WHERE tenant = ? AND id = ?)"
            values += [query.tenant, query.before]
        if query.learned_by is not None:
            adapter = query.learned_by.rpartition("@")[0].partition("/")[2]
            found = self._ask(
                "SELECT b.ids FROM updates u JOIN batches b ON b.id = u.batch WHERE u.tenant = ? AND u.adapter = ? AND u.version = ?",
                *(query.tenant, adapter, query.learned_by),
            )
            ids = json.loads(found[0][0]) if found else []
            if not ids:
                return []
            where, values = f"{where} AND r.id IN ({', '.join('?' * len(ids))})", [*values, *ids]
        return self._rows(f"{where} ORDER BY r.n DESC LIMIT ?", *values, query.limit)

    def find_ids(self, tenant: str, user: str | None = None, before: float = math.inf) -> list[str]:
        """Ids of a tenant's exchanges: of an end user, or of all (None), stored before a time in Unix seconds."""
        where, values = ("", ()) if user is None else (' AND "user" = ?', (user,))
        found = self._ask(
            f"SELECT id FROM records WHERE tenant = ? AND appended < ?{where}", tenant, min(before, 1e18), *values
        )
        return [str(id) for (id,) in found]

    def corrections(self, tenant: str, adapter: str, among: int) -> list[Exchange]:
        """Exchanges with a correction, newest first, of an adapter's `among` newest with feedback; rejected ones are left out. No others are
        read whole: a learner asks at each step, and most feedback corrects nothing."""
        newest = "SELECT n FROM records WHERE tenant = ? AND adapter = ? AND revision > 0 ORDER BY n DESC LIMIT ?"
        where = f"r.n IN ({newest}) AND r.state <> 'rejected' AND r.feedback NOT LIKE ? ORDER BY r.n DESC"
        found = [row.exchange for row in self._rows(where, tenant, adapter, among, '%"correction": ""%')]
        return [one for one in found if one.reply.token_ids and one.feedback and one.feedback.correction.strip()]

    def teachers(self, tenant: str, adapter: str, among: int = 10**9) -> list[str]:
        """The end users behind an adapter's `among` newest exchanges with feedback, each once; and an empty name for each of nobody in
        particular."""
        newest = 'SELECT "user" FROM records WHERE tenant = ? AND adapter = ? AND revision > 0 ORDER BY n DESC LIMIT ?'
        found = self._ask(f'SELECT "user", count(*) FROM ({newest}) AS newest GROUP BY 1', tenant, adapter, among)
        return [user for user, count in found for _ in range(1 if user else count)]

    def table(self, tenant: str, limit: int = 100) -> Table:
        """A table of a tenant's newest exchanges and their feedback."""
        head = ("exchange", "reply", "reward", "feedback", "state", "sampled", "age in steps")
        rows = []
        for row in self.rows(ExchangeQuery(tenant, limit=limit)):
            feedback, state = row.exchange.feedback, f"{row.state}: {row.reason}" if row.reason else row.state
            said = (feedback and feedback.reward, feedback and feedback.text)
            rows.append((row.exchange.id, row.exchange.reply.text, *said, state, row.sample_count, row.age))
        return make_table(f"{self!r}, {tenant}", head, rows, sum(self.counts(tenant).values()))

    def job(self, tenant: str, job: str) -> ReplayRow | None:
        """The record of a tenant's job; `rejected`, with the newer job as the reason, if later feedback replaced it."""
        found = self._ask("SELECT id FROM feedbacks WHERE tenant = ? AND job = ?", tenant, job)
        row = self.get(tenant, found[0][0]) if found else None
        if row is None or row.job == job:
            return row
        return replace(row, state="rejected", reason=f"newer feedback replaced it: {row.job}", job=job)

    def uses(self, tenant: str, id: str) -> tuple[tuple[str, str], ...]:
        """(minibatch, version) of every step whose minibatch had a record, oldest first; also after the record was deleted.

        Steps that did not learn from the record count, too: its reply may have been shown to the teacher of another record.
        """
        text = "SELECT u.batch, u.version FROM uses u JOIN batches b ON b.id = u.batch WHERE u.tenant = ? AND u.id = ? ORDER BY b.step"
        return tuple(self._ask(text, tenant, id))

    def counts(self, tenant: str | None = None, adapter: str | None = None) -> dict[str, int]:
        """Number of records by state; states without records are left out."""
        given = {name: value for name, value in (("tenant", tenant), ("adapter", adapter)) if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1 = 1"
        text = f"SELECT state, count(*) FROM records WHERE {where} GROUP BY state ORDER BY state"
        return dict(self._ask(text, *given.values()))

    def ages(self, tenant: str, adapter: str) -> dict[int, int]:
        """Number of ready records by age in gradient steps, youngest first."""
        text = (
            "SELECT s.step - r.made, count(*) FROM records r JOIN scopes s USING (tenant, adapter)"
            " WHERE r.tenant = ? AND r.adapter = ? AND r.state = 'ready' GROUP BY 1 ORDER BY 1"
        )
        return dict(self._ask(text, tenant, adapter))

    def youngest_age(self, tenant: str, adapter: str) -> int:
        """Gradient steps since the newest version that has a ready record; 0 if there is none."""
        text = "SELECT max(made) FROM records INDEXED BY by_age WHERE state = 'ready' AND tenant = ? AND adapter = ?"
        ((made,),) = self._ask(text, tenant, adapter)
        return 0 if made is None else self.step(tenant, adapter) - int(made)

    def other_base(self, base: str) -> str | None:
        """A base model other than this one whose replies wait for feedback, or to be learned from; None: there is none."""
        found = self._ask("SELECT base FROM records WHERE base <> ? AND state NOT IN ('consumed', 'rejected') LIMIT 1", base)
        return str(found[0][0]) if found else None

    def adapters(self) -> list[tuple[str, str]]:
        """(tenant, adapter) of every adapter that ever had a record, sorted."""
        return [(tenant, adapter) for tenant, adapter in self._ask("SELECT tenant, adapter FROM scopes ORDER BY 1, 2")]

    def ready_counts(self) -> dict[tuple[str, str], int]:
        """(tenant, adapter) -> number of records that are ready to be learned from, where there are any."""
        found = self._ask("SELECT tenant, adapter, count(*) FROM records WHERE state = 'ready' GROUP BY 1, 2 ORDER BY 1, 2")
        return {(tenant, adapter): count for tenant, adapter, count in found}

    def step(self, tenant: str, adapter: str) -> int:
        """k: number of gradient steps taken."""
        found = self._ask("SELECT step FROM scopes WHERE tenant = ? AND adapter = ?", tenant, adapter)
        return int(found[0][0]) if found else 0

    def head(self, tenant: str, adapter: str) -> str:
        """Label of the version that the next step starts from; empty: the base model."""
        found = self._ask("SELECT head FROM scopes WHERE tenant = ? AND adapter = ?", tenant, adapter)
        return str(found[0][0]) if found else ""

    def updates(self, tenant: str, adapter: str, limit: int = 100) -> list[dict[str, Any]]:
        """The log of gradient steps, newest first: the `update` of `commit`, and `step`, `batch`, `version`, `parent`, `time`."""
        names = ("step", "batch", "version", "parent", "time")
        text = f"SELECT about, {', '.join(names)} FROM updates WHERE tenant = ? AND adapter = ? ORDER BY step DESC LIMIT ?"
        found = self._ask(text, tenant, adapter, limit)
        return [json.loads(about) | dict(zip(names, values, strict=True)) for about, *values in found]

    def minibatch_sizes(self, tenant: str, adapter: str) -> dict[str, int]:
        """Label of each version -> number of exchanges in the minibatch of the step that made it, deleted ones too."""
        text = "SELECT u.version, b.ids FROM updates u JOIN batches b ON b.id = u.batch WHERE u.tenant = ? AND u.adapter = ?"
        return {version: len(json.loads(ids)) for version, ids in self._ask(text, tenant, adapter)}

    def minibatch(self, id: str) -> Minibatch:
        """The minibatch of this id.

        Raises:
            UserError: there is none.
            UnknownExchange: some of its records were deleted.
        """
        with self._database.reading() as base:
            return self._minibatch(base, id)

    def _minibatch(self, base: Any, id: str) -> Minibatch:
        tenant, adapter, step, parent, seed, ids, *_ = self._batch(base, id)
        if not json.loads(ids):
            raise UnknownExchange(f"minibatch {id!r} cannot be shown again: all records were deleted")
        exchanges = []
        for key in json.loads(ids):
            found = base.execute(ROWS + "r.tenant = ? AND r.id = ?", (tenant, key)).fetchone()
            if found is None:
                raise UnknownExchange(f"minibatch {id!r} cannot be shown again: its record {key!r} was deleted")
            exchanges.append(replace(unpack(found[0], found[1]), step=found[-1]))
        return Minibatch(id, tenant, adapter, step, parent, tuple(exchanges), seed)

    def _batch(self, base: Any, id: str) -> tuple[Any, ...]:
        """`tenant`, `adapter`, `step`, `parent`, `seed`, `ids`, `state`, `version` and `reason` of a minibatch."""
        found = base.execute(BATCH, (id,)).fetchone()
        if found is None:
            raise UserError(f"no minibatch {id!r} was leased")
        return tuple(found)

    def version_of_batch(self, batch_id: str) -> str:
        """Label of the version that a minibatch made; empty: none, or not yet."""
        with self._database.reading() as base:
            return str(self._batch(base, batch_id)[7])

    def tainted_versions(self, tenant: str | None = None) -> tuple[str, ...]:
        """Labels of all versions that learned from records that were deleted since, and of their descendants."""
        which, values = ("1 = 1", ()) if tenant is None else ("tenant = ?", (tenant,))
        return tuple(label for (label,) in self._ask(f"SELECT version FROM taints WHERE {which} ORDER BY version", *values))
