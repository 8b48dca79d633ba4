"""The replay buffer of CLaaS: served exchanges, their feedback, and the gradient steps that used them. One SQLite file (write-ahead
log) for all tenants, or one schema in Postgres, which several processes share; a tenant's rows, draws and errors do not depend on
other tenants.

A record goes `pending` (no feedback yet) -> `ready` (to be learned from) -> `leased` (in an unfinished minibatch) -> `ready` again,
or `consumed` after `max_samplings` samplings. `held` records are never trained on: the gate reads them. `rejected` ones have a reason.

When a method returns, its effect survives a power cut; a method that is interrupted did all or nothing, and may be
called again: so a call waits up to a minute for a Postgres that restarts. A leased minibatch is frozen, and `lease` gives it again
until it is committed or released: a step that was killed is repeated with the same exchanges and seed, and `commit` records it once.

Age is the number of gradient steps between the version that made a record and the head that learns (CLaaS: k - P(i)). When the head
is set back (`set_head`), records of the versions that lead to it are dated anew: undone steps make nothing older.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ..errors import ExpiredExchange, FeedbackConflict, ReplayFull, UnknownExchange, UserError
from ..records import Exchange, Feedback, FeedbackReceipt, Minibatch
from ..storage.branches import ABSENT, History, branching
from ..storage.open_store import is_postgres
from .replay_file import ReplayFile, check_name, digest, json_safe, pack
from .replay_queries import ReplayQueries, repeating
from .settings import ReplaySettings

if TYPE_CHECKING:
    from .replay_database import ReplayDatabase

__all__ = ["Replay"]

MAX_CHANGES = 2_000
"""Latest changes that a what-if can undo: a service that runs for months keeps them in memory."""
MAX_REVISIONS = 100
"""Largest number of feedbacks on one exchange."""
FEEDBACK_COLUMNS = ("revision", "state", "feedback", "positive", "job", "bytes")
"""What feedback changes of a record."""
LINE = """WITH RECURSIVE line(version, made) AS (
    SELECT head, step FROM scopes WHERE tenant = ? AND adapter = ? UNION ALL
    SELECT u.parent, made - 1 FROM line JOIN updates u ON u.tenant = ? AND u.adapter = ? AND u.version = line.version WHERE made > ?)"""
"""The versions that lead to the head, and the gradient step as of which each counts; undone steps are not in between."""


def stratified_sample(
    ready: Sequence[tuple[str, bool]], size: int, random: Random, positive_share: float | None = 0.5
) -> list[int]:
    """Draw `size` records without replacement, by reward and by family; all of them if there are no more.

    Draws are not weighted back to uniform ones by M / (N P(i)). That a rare family counts as much as a common one is what the strata
    are for, and weights would undo it. The share of rewards above 0 leaves the direction of a gradient as it is where rewards have
    two values and are compared with their minibatch: at a share s its expectation is the uniform draw's times
    sqrt(s (1 - s) / (p (1 - p))), p the share in the buffer (tests/equations/test_claas.py). The optimum of `sdpo`, the teacher, is
    the same under any shares. Graded rewards do get a bias; uniform draws have none.

    Args:
        ready: (family, reward > 0) of each record.
        size: number of records.
        random: the only source of randomness.
        positive_share: share with a reward above 0; if one side has too few, the other fills up. Each side takes from its families
            in turn. None: a uniform draw, in which neither rewards nor families matter.

    Returns:
        Indices into `ready`, in the order drawn.
    """
    strata: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
    for i, (family, good) in enumerate(ready):
        side, name = (False, "") if positive_share is None else (good, family)
        strata[side].setdefault(name, []).append(i)
    have = {side: sum(map(len, groups.values())) for side, groups in strata.items()}
    wanted = math.floor(size * (positive_share or 0.0) + 0.5)
    bad = min(size - min(wanted, have[True]), have[False])
    found: list[int] = []
    for side, count in ((True, min(size - bad, have[True])), (False, bad)):
        groups = [random.sample(group, min(len(group), count)) for _, group in sorted(strata[side].items())]
        random.shuffle(groups)
        end = len(found) + count
        while len(found) < end:
            for group in groups:
                if group and len(found) < end:
                    found.append(group.pop())
    random.shuffle(found)
    return found


@branching(
    "append",
    "add_feedback",
    "lease",
    "commit",
    "release",
    "set_head",
    "delete",
    but=("__enter__", "__exit__", "close", "claim", "is_shared"),
)
@repeating
class Replay(ReplayQueries):
    """The buffer, in a SQLite file of one process, or in Postgres for several. Safe for threads.

    Args:
        where: the file, made if it does not exist; or `postgresql://user:password@host/database`.
        settings: what is kept, and for how long.
        clock: Unix time in seconds.

    Raises:
        ReplayError: the file is open in another process, damaged, something else, or cannot be written; the database does not answer.
    """

    def __init__(
        self, where: Path | str, settings: ReplaySettings | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings or ReplaySettings()
        self._clock = clock
        self._history = History[tuple[Any, ...]](limit=MAX_CHANGES)
        self._database: ReplayFile | ReplayDatabase
        if is_postgres(str(where)):
            from .replay_database import ReplayDatabase

            self._database = ReplayDatabase(str(where))
        else:
            self._database = ReplayFile(where)

    @property
    def is_shared(self) -> bool:
        """True if other processes may have the buffer open, too."""
        return self._database.shared

    def claim(self, tenant: str, adapter: str) -> bool:
        """True if this process is the one that learns for an adapter: the first to ask, until it closes the buffer or ends.

        Two that learned at once would do the same step twice. Nothing worse: a minibatch is committed once.
        """
        return self._database.claim(tenant, adapter)

    def close(self) -> None:
        """Close the buffer; a file may then be opened by another process."""
        self._database.close()

    def as_of(self, moment: str) -> Replay:
        """A copy of the buffer as it was at a moment (memory/storage/branches.py), in a temporary file that goes with it.

        Exchanges and feedback that this process stored since are taken back; gradient steps are not.
        """
        folder = tempfile.TemporaryDirectory(prefix="learngraph-replay-")
        path = Path(folder.name) / "replay.sqlite"
        self._database.copy_to(path)
        made = Replay(path, self.settings, self._clock)
        made._folder = folder
        since = dict.fromkeys(self._history.keys_since(moment) if moment else (), ())
        with made._database.writing("") as copy:
            for key in since:
                before = self._history.undo({key: ()}, moment).get(key, ABSENT)
                if before is ABSENT:
                    _remove(copy, "tenant = ? AND id = ?", *key)
                else:
                    columns = ", ".join(f"{name} = ?" for name in FEEDBACK_COLUMNS)
                    copy.execute(f"UPDATE records SET {columns} WHERE tenant = ? AND id = ?", (*before, *key))
                    copy.execute("DELETE FROM feedbacks WHERE tenant = ? AND id = ? AND revision > ?", (*key, before[0]))
        return made

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def writes_since(self, moment: str) -> dict[Any, Any]:
        """Tenant and id -> exchange with its feedback, of those stored since a moment; `ABSENT` for those deleted."""
        found = {key: self.get(*key) for key in self._history.keys_since(moment)}
        return {key: ABSENT if row is None else row.exchange for key, row in found.items()}

    # -- exchanges and feedback ----------------------------------------------------------------------------------------------------

    def append(self, exchange: Exchange) -> None:
        """Store a served exchange; on return it is on disk. The same exchange again changes nothing.

        It is `pending`; one with feedback is handled by `add_feedback`, too. A reply with a flaw takes feedback and is `rejected` then.

        Raises:
            UserError: an invalid name, another exchange under this id, a log-probability that is missing, not finite or above 0,
                something that is not JSON, or more than `max_record_bytes`.
            ReplayFull: everything else of the tenant is leased.
        """
        body = pack(exchange)
        what, size = f"exchange {exchange.id!r}", len(body)
        if size > self.settings.max_record_bytes:
            raise UserError(f"{what} has {size} bytes, at most {self.settings.max_record_bytes} are kept: shorten it")
        tenant, scope = exchange.tenant, (exchange.tenant, exchange.adapter)
        with self._database.writing(tenant) as base:
            stored = "SELECT body FROM records JOIN bodies USING (n) WHERE tenant = ? AND id = ?"
            found = base.execute(stored, (tenant, exchange.id)).fetchone()
            if found is not None:
                if found != (body,):
                    raise UserError(f"{what}: another exchange has this id; ids are given once")
            else:
                self._add_scope(base, scope)
                self._expire(base, *scope)
                self._make_room(base, *scope, 1, size)
                (step,) = base.execute("SELECT step FROM scopes WHERE tenant = ? AND adapter = ?", scope).fetchone()
                ask = f"{LINE} SELECT made FROM line WHERE version = ? LIMIT 1"
                line = base.execute(ask, (*scope, *scope, step - self.settings.max_age, exchange.reply.version)).fetchone()
                made = line[0] if line else min(step, exchange.step)
                n = base.execute(
                    'INSERT INTO records (tenant, id, adapter, version, base, made, family, state, reason, appended, bytes, "user")'
                    " VALUES (?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?) RETURNING n",
                    (
                        *(tenant, exchange.id, exchange.adapter, exchange.reply.version, exchange.base, made, exchange.family),
                        *(exchange.reply.flaw, self._clock(), size, exchange.user),
                    ),
                ).fetchone()[0]
                base.execute("INSERT INTO bodies VALUES (?, ?)", (n, body))
                _count(base, scope, 1, size)
                self._history.note((tenant, exchange.id))
            if exchange.feedback is not None:
                self._add_feedback(base, tenant, exchange.id, exchange.feedback, "")

    def check_disk(self) -> None:
        """Write as much as an exchange, and take it back. Raises `ReplayError`: the disk does not take it, or the database is away."""
        with self._database.writing("") as base:
            base.execute("INSERT INTO bodies VALUES (-1, ?)", ("0" * 65_536,))
            base.execute("DELETE FROM bodies WHERE n = -1")

    def _add_scope(self, base: Any, scope: tuple[str, str]) -> None:
        base.execute("INSERT INTO scopes (tenant, adapter) VALUES (?, ?) ON CONFLICT DO NOTHING", scope)

    def add_feedback(self, tenant: str, id: str, feedback: Feedback, key: str = "") -> FeedbackReceipt:
        """Store the feedback on a reply; on return it is on disk.

        The same feedback again, or the same idempotency `key`, gives the same job and changes nothing. Other feedback replaces the
        earlier one as long as nothing was learned from it.

        Raises:
            UnknownExchange: this tenant has no exchange of this id.
            ExpiredExchange: it came more than `max_pending_hours` after the reply.
            FeedbackConflict: other feedback was learned from or is in a minibatch, or the record was rejected.
        """
        with self._database.writing(tenant) as base:
            return self._add_feedback(base, tenant, id, feedback, key)

    def _add_feedback(self, base: Any, tenant: str, id: str, feedback: Feedback, key: str) -> FeedbackReceipt:
        row = base.execute(
            "SELECT n, adapter, state, reason, revision, appended, bytes, feedback FROM records WHERE tenant = ? AND id = ?",
            (tenant, id),
        ).fetchone()
        if row is None:
            raise UnknownExchange(
                f"no exchange {id!r} is waiting for feedback: name the id of a response that was served to this key"
            )
        n, adapter, state, reason, revision, appended, size, before = row
        content = json.dumps(asdict(feedback))
        mark = digest(content)
        for job, number, its_key, its_mark in base.execute(
            "SELECT job, revision, key, digest FROM feedbacks WHERE tenant = ? AND id = ? ORDER BY revision DESC", (tenant, id)
        ).fetchall():
            if (key and key == its_key) or (number == revision and mark == its_mark):
                return FeedbackReceipt(job, id, state, True)
        if state in ("pending", "rejected") and revision == 0 and self._clock() - appended > self.settings.max_pending_seconds:
            raise ExpiredExchange(
                f"exchange {id!r} waited {self.settings.max_pending_seconds:g} s for feedback, and does no more; "
                "send feedback for a newer one"
            )
        if state not in ("pending", "ready", "held"):
            raise FeedbackConflict(
                f"exchange {id!r} is {state}{f' ({reason})' if reason else ''}: its feedback cannot be changed any more"
            )
        if revision >= MAX_REVISIONS:
            raise FeedbackConflict(f"exchange {id!r}: its feedback was changed {MAX_REVISIONS} times, that is enough")
        grown = len(content) - len(before or "")
        if size + grown > self.settings.max_record_bytes:
            raise UserError(
                f"feedback for exchange {id!r} has {len(content)} bytes; with the exchange, at most {self.settings.max_record_bytes} are kept: "
                "shorten the text"
            )
        self._make_room(base, tenant, adapter, 0, grown, keep=n)
        revision += 1
        job = "job-" + digest(tenant, id, str(revision))
        is_flawed = state == "pending" and bool(reason)  # the engine said why nothing can be learned from it
        is_held = int(digest(id), 16) < self.settings.held_out_share * 16 ** len(digest(id))
        state = "rejected" if is_flawed else "held" if is_held else "ready"
        kept = base.execute(f"SELECT {', '.join(FEEDBACK_COLUMNS)} FROM records WHERE n = ?", (n,)).fetchone()
        self._history.note((tenant, id), kept)
        base.execute(
            "UPDATE records SET state = ?, feedback = ?, positive = ?, revision = ?, job = ?, bytes = bytes + ? WHERE n = ?",
            (state, content, int((feedback.reward or 0.0) > 0), revision, job, grown, n),
        )
        _count(base, (tenant, adapter), 0, grown)
        base.execute("INSERT INTO feedbacks VALUES (?, ?, ?, ?, ?, ?)", (tenant, job, id, revision, key, mark))
        return FeedbackReceipt(job, id, state, False)

    def _expire(self, base: Any, tenant: str, adapter: str) -> None:
        """Reject pending records older than `max_pending_hours`."""
        cutoff = self._clock() - self.settings.max_pending_seconds
        waiting = "WHERE tenant = ? AND adapter = ? AND state = 'pending'"
        oldest = base.execute(f"SELECT appended FROM records {waiting} ORDER BY n LIMIT 1", (tenant, adapter)).fetchone()
        if oldest and oldest[0] < cutoff:
            base.execute(
                f"UPDATE records SET state = 'rejected', reason = 'expired: no feedback came' {waiting} AND appended < ?",
                (tenant, adapter, cutoff),
            )

    def _make_room(self, base: Any, tenant: str, adapter: str, count: int, size: int, keep: int = 0) -> None:
        """Evict records to make room for `count` records and `size` bytes: finished ones first, then the oldest.

        Raises:
            ReplayFull: only leased records are left.
        """
        scope = (tenant, adapter)
        while True:
            ((records,),) = base.execute("SELECT records FROM scopes WHERE tenant = ? AND adapter = ?", scope).fetchall()
            ((used,),) = base.execute("SELECT sum(bytes) FROM scopes WHERE tenant = ?", (tenant,)).fetchall()
            if count and records + count > self.settings.max_records:
                where: tuple[str, ...] = ("tenant = ? AND adapter = ?", *scope)
            elif used + size > self.settings.max_megabytes * 2**20:
                where = ("tenant = ?", tenant)
            else:
                return
            for index, which in (("INDEXED BY done", "state IN ('consumed', 'rejected')"), ("", "state <> 'leased'")):
                oldest = f"SELECT n FROM records {index} WHERE {where[0]} AND {which} AND batch IS NULL AND n <> ? ORDER BY n LIMIT 1"
                if found := base.execute(oldest, (*where[1:], keep)).fetchone():
                    _remove(base, "n = ?", *found)
                    break
            else:
                raise ReplayFull(
                    f"replay buffer of {tenant}: full ({self.settings.max_records} records per adapter, {self.settings.max_megabytes} MB), and all of it "
                    "is leased; try again when the step is done, or raise max_records or max_megabytes"
                )

    # -- steps ------------------------------------------------------------------------------------------------------------

    def lease(
        self,
        tenant: str,
        adapter: str,
        size: int,
        min_exchanges: int = 8,
        seed: int = 0,
        positive_share: float | None = 0.5,
        base_model: str | None = None,
        spared: Set[str] = frozenset(),
    ) -> Minibatch | None:
        """The minibatch of the next gradient step, frozen until `commit` or `release`; None if fewer than `min_exchanges` are ready.

        An unfinished minibatch comes back first, unchanged. Otherwise records older than `max_age` are rejected, and those of other
        base models than `base_model` if it is given; `stratified_sample` takes `size` of the newest others,
        of each end user at most `max_user_share`, and none of the ids `spared` unless nothing else is ready. The draw depends only on the seed,
        the adapter, the step, and the number of this step's released minibatches.
        """
        if size < 1:
            raise UserError(f"a minibatch has at least 1 exchange, asked for {size}")
        scope = (tenant, adapter)
        with self._database.writing(tenant) as base:
            found = base.execute(
                "SELECT id FROM batches WHERE tenant = ? AND adapter = ? AND state = 'leased'", scope
            ).fetchone()
            if found:
                return self._minibatch(base, found[0])
            known = base.execute("SELECT step, head, attempt FROM scopes WHERE tenant = ? AND adapter = ?", scope).fetchone()
            if known is None:
                return None
            step, head, attempt = known
            self._expire(base, tenant, adapter)
            self._reject_too_old(base, tenant, adapter)
            if base_model is not None:
                for other in ("<", ">"):  # which the index finds; it would read all records for "<>"
                    base.execute(
                        "UPDATE records INDEXED BY by_base SET state = 'rejected', reason = 'of another base model'"
                        f" WHERE tenant = ? AND adapter = ? AND state = 'ready' AND base {other} ?",
                        (*scope, base_model),
                    )
            id = f"{tenant}/{adapter}/{step + 1}{f'.{attempt}' if attempt else ''}"
            allowed = self._within_user_share(base, scope, min(size, max(min_exchanges, 1)), Random(f"{seed}/{id}/users"))
            newest = size * self._recent
            ready = base.execute(
                "SELECT n, family, positive, id FROM records INDEXED BY ready WHERE tenant = ? AND adapter = ? AND state = 'ready'"
                " ORDER BY n DESC LIMIT ?",
                (*scope, newest if allowed is None else self.settings.max_records),
            ).fetchall()
            ready = [row for row in ready if allowed is None or row[0] in allowed][newest - 1 :: -1]
            if len(ready) < max(min_exchanges, 1):
                return None
            ready = [row for row in ready if row[3] not in spared] or ready
            random = Random(f"{seed}/{id}")
            places = stratified_sample([(row[1], bool(row[2])) for row in ready], size, random, positive_share)
            drawn = sorted(ready[place][0] for place in places)  # oldest first
            base.executemany("UPDATE records SET state = 'leased', batch = ? WHERE n = ?", [(id, n) for n in drawn])
            ids = [base.execute("SELECT id FROM records WHERE n = ?", (n,)).fetchone()[0] for n in drawn]
            base.execute(
                "INSERT INTO batches (id, tenant, adapter, step, parent, seed, ids, state) VALUES (?, ?, ?, ?, ?, ?, ?, 'leased')",
                (id, *scope, step + 1, head, random.getrandbits(48), json.dumps(ids)),
            )
            return self._minibatch(base, id)

    @property
    def _recent(self) -> int:
        """Size of what a minibatch is drawn from, in minibatches."""
        return max(2, self.settings.max_samplings // 4)

    def _within_user_share(self, base: Any, scope: tuple[str, str], size: int, random: Random) -> set[int] | None:
        """Numbers of the ready records that a minibatch of `size` may be drawn from: some of each end user, and all without a named
        one. None: no limit."""
        rows = base.execute(
            'SELECT n, "user", revision > 0 FROM records INDEXED BY by_user WHERE tenant = ? AND adapter = ? AND "user" <> \'\'',
            scope,
        ).fetchall()
        givers, known = {user for _, user, given in rows if given}, {user for _, user, _ in rows}
        if len(known) < 2 or self.settings.max_user_share == 1:
            return None
        equal = math.ceil(size / max(len(givers), 2))
        most = max(1, equal, math.floor(size * self.settings.max_user_share))
        of_user = {n: user for n, user, _ in rows}
        ready: dict[str, list[int]] = {}
        for (n,) in base.execute(
            "SELECT n FROM records INDEXED BY ready WHERE tenant = ? AND adapter = ? AND state = 'ready' ORDER BY n", scope
        ):
            ready.setdefault(of_user.get(n, ""), []).append(n)
        allowed = set(ready.pop("", ()))
        for mine in ready.values():
            newest = mine[-most * self._recent :]
            allowed.update(random.sample(newest, min(most, len(newest))))
        return allowed

    def _reject_too_old(self, base: Any, tenant: str, adapter: str) -> None:
        limit = self.settings.max_age
        base.execute(
            "UPDATE records INDEXED BY by_age SET state = 'rejected', reason = ? WHERE state = 'ready' AND tenant = ? AND adapter = ?"
            " AND made < (SELECT step FROM scopes s WHERE s.tenant = ? AND s.adapter = ?) - ?",
            (f"too old: more than {limit} gradient steps", tenant, adapter, tenant, adapter, limit),
        )

    def _leased_batch(self, base: Any, id: str) -> tuple[Any, ...]:
        batch = self._batch(base, id)
        if batch[6] != "leased":
            raise UserError(f"the step from minibatch {id!r} does not count: {batch[8] or f'it is {batch[6]}'}")
        return batch

    def commit(
        self,
        batch_id: str,
        version: str,
        update: Mapping[str, Any],
        rejected: Mapping[str, str] | None = None,
        kls: Mapping[str, float] | None = None,
    ) -> None:
        """Record, in one transaction, that a minibatch made `version`: head and step advance, its records count as sampled once more,
        `update` goes into the log of steps. A repeated call changes nothing.

        Args:
            batch_id: id of the minibatch.
            version: label of the version.
            update: numbers of the step.
            rejected: id -> reason, of records that are not drawn again.
            kls: id -> estimate of KL(mu || pi), in nats per token. Records above `max_kl` are rejected; this step learned from them.

        Raises:
            UserError: it made another version, or was withdrawn (a record was deleted, the head was set): the version must not be used.
        """
        if not version:
            raise UserError(f"minibatch {batch_id!r} made no version: release it")
        about = json.dumps(json_safe(update))
        with self._database.writing(_tenant(batch_id)) as base:
            batch = self._batch(base, batch_id)
            if batch[6] == "committed" and batch[7] == version:
                return
            if batch[6] == "committed":
                raise UserError(f"minibatch {batch_id!r} made {batch[7]!r}, and cannot make {version!r}, too")
            tenant, adapter, step, parent, *_ = self._leased_batch(base, batch_id)
            # All records, also rejected ones: a success may have been shown to the teacher of another record.
            base.execute("INSERT INTO uses SELECT tenant, id, batch, ? FROM records WHERE batch = ?", (version, batch_id))
            self._end(base, batch_id, 1, rejected or {}, kls or {})
            base.execute("UPDATE batches SET state = 'committed', version = ? WHERE id = ?", (version, batch_id))
            advance = "UPDATE scopes SET step = ?, head = ?, attempt = 0 WHERE tenant = ? AND adapter = ?"
            base.execute(advance, (step, version, tenant, adapter))
            entry = (tenant, adapter, step, batch_id, version, parent, about, self._clock())
            base.execute("INSERT INTO updates VALUES (?, ?, ?, ?, ?, ?, ?, ?)", entry)
            base.execute(
                "INSERT INTO taints SELECT tenant, ? FROM taints WHERE tenant = ? AND version = ? ON CONFLICT DO NOTHING",
                (version, tenant, parent),
            )
            self._reject_too_old(base, tenant, adapter)

    def release(
        self, batch_id: str, reason: str, counts_as_sampling: bool = False, rejected: Mapping[str, str] | None = None
    ) -> None:
        """End a minibatch from which nothing was learned: its records are ready again, and the next minibatch is drawn anew.

        Args:
            batch_id: id of the minibatch. If it was released before, nothing changes.
            reason: why.
            counts_as_sampling: count it as a sampling of its records, so that useless ones are not drawn for ever.
            rejected: id -> reason, of records that are not drawn again.
        """
        with self._database.writing(_tenant(batch_id)) as base:
            if self._batch(base, batch_id)[6] not in ("released", "withdrawn"):
                self._release(base, batch_id, "released", reason, counts_as_sampling, rejected)

    def _release(
        self, base: Any, id: str, state: str, reason: str, count: bool = False, rejected: Mapping[str, str] | None = None
    ) -> None:
        tenant, adapter, *_ = self._leased_batch(base, id)
        self._end(base, id, int(count), rejected or {}, {})
        base.execute("UPDATE batches SET state = ?, reason = ? WHERE id = ?", (state, reason, id))
        base.execute("UPDATE scopes SET attempt = attempt + 1 WHERE tenant = ? AND adapter = ?", (tenant, adapter))

    def _end(self, base: Any, id: str, sampled: int, rejected: Mapping[str, str], kls: Mapping[str, float]) -> None:
        """Give back the records of a minibatch: ready, consumed or rejected."""
        limit, most = self.settings.max_kl, self.settings.max_samplings
        far = {
            one: f"too far away: KL {kl:.3g} nats, at most {limit:g}"
            for one, kl in kls.items()
            if limit is not None and not kl <= limit
        }
        known = [(kl if math.isfinite(kl) else None, id, one) for one, kl in kls.items()]
        base.executemany("UPDATE records SET kl = ? WHERE batch = ? AND id = ?", known)
        base.execute(
            "UPDATE records SET times = times + ?, state = CASE WHEN times + ? >= ? THEN 'consumed' ELSE 'ready' END WHERE batch = ?",
            (sampled, sampled, most, id),
        )
        reject = "UPDATE records SET state = 'rejected', reason = ? WHERE batch = ? AND id = ?"
        base.executemany(reject, [(reason, id, one) for one, reason in (far | dict(rejected)).items()])
        base.execute("UPDATE records SET batch = NULL WHERE batch = ?", (id,))

    def set_head(self, tenant: str, adapter: str, version: str, give_back: bool = False) -> None:
        """Go on learning from another version (empty: the base model), after a rollback or a failed candidate. k goes on counting.

        An unfinished minibatch is withdrawn: it cannot be committed any more. Records of the versions that lead to `version` are dated
        anew by the steps between them: undone steps do not count.

        Args:
            tenant, adapter: the scope.
            version: label of the new head.
            give_back: the steps from `version` to the present head count as no sampling of their records, which may teach again.
        """
        scope = (check_name(tenant, "tenant"), check_name(adapter, "adapter"))
        with self._database.writing(tenant) as base:
            self._add_scope(base, scope)
            step, head = base.execute("SELECT step, head FROM scopes WHERE tenant = ? AND adapter = ?", scope).fetchone()
            if head == version:
                return
            leased = "SELECT id FROM batches WHERE tenant = ? AND adapter = ? AND state = 'leased'"
            for (id,) in base.execute(leased, scope).fetchall():
                self._release(base, id, "withdrawn", f"learning goes on from {version or 'the base model'}")
            if give_back:
                self._give_back(base, scope, head, version)
            base.execute("UPDATE scopes SET head = ? WHERE tenant = ? AND adapter = ?", (version, *scope))
            base.execute(
                f"{LINE} UPDATE records SET made = line.made FROM line WHERE records.tenant = ? AND records.adapter = ?"
                " AND line.version = records.version AND line.made <> records.made",
                (*scope, *scope, step - self.settings.max_age, *scope),
            )

    def adopt(self, tenant: str, adapter: str, version: str, step: int) -> None:
        """Learn on from a version that was learned by an earlier buffer, which is gone, and count on from its steps."""
        scope = (check_name(tenant, "tenant"), check_name(adapter, "adapter"))
        with self._database.writing(tenant) as base:
            self._add_scope(base, scope)
            base.execute(
                "UPDATE scopes SET head = ?, step = ? WHERE tenant = ? AND adapter = ? AND step = 0", (version, step, *scope)
            )

    def _give_back(self, base: Any, scope: tuple[str, str], head: str, until: str) -> None:
        """Take back a sampling of the records behind the versions from `head` to `until`, without the latter."""
        while head != until:
            found = base.execute(
                "SELECT parent, batch FROM updates WHERE tenant = ? AND adapter = ? AND version = ?", (*scope, head)
            ).fetchone()
            if found is None:
                return
            head, batch = found
            base.execute(
                "UPDATE records SET times = times - 1, state = CASE state WHEN 'consumed' THEN 'ready' ELSE state END"
                " WHERE tenant = ? AND times > 0 AND id IN (SELECT id FROM uses WHERE tenant = ? AND batch = ?)",
                (scope[0], scope[0], batch),
            )

    # -- deletion --------------------------------------------------------------------------------------------------------

    def delete(self, tenant: str, id: str | None = None) -> tuple[str, ...]:
        """Delete a tenant's record, or all of its records: their bytes are overwritten in the file and its log.

        An unfinished minibatch with the record is withdrawn. The log of steps (numbers, no text) and the labels of tainted versions
        stay.

        Returns:
            Labels of the versions that learned from it, and of their descendants. `tainted_versions` gives them again, so that none is
            lost if a crash comes before they are marked.

        Raises:
            UnknownExchange: this tenant never had an exchange of this id.
        """
        which, values = ("tenant = ?", (tenant,)) if id is None else ("tenant = ? AND id = ?", (tenant, id))
        with self._database.writing(tenant) as base:
            known = base.execute(f"SELECT batch FROM records WHERE {which}", values).fetchall()
            used = base.execute(f"SELECT 1 FROM uses WHERE {which} LIMIT 1", values).fetchone()
            if id is not None and not known and not used:
                raise UnknownExchange(f"no exchange {id!r} is kept: name the id of a response that was served to this key")
            for batch in sorted({batch for (batch,) in known if batch}):
                self._release(base, batch, "withdrawn", "a record of it was deleted")
            descendants = (
                f"WITH RECURSIVE down(version) AS (SELECT version FROM uses WHERE {which} UNION"
                " SELECT u.version FROM down JOIN updates u ON u.tenant = ? AND u.parent = down.version) SELECT version FROM down"
            )
            labels = {label for (label,) in base.execute(descendants, (*values, tenant)).fetchall()}
            if id is None:
                labels |= {
                    label for (label,) in base.execute("SELECT version FROM taints WHERE tenant = ?", (tenant,)).fetchall()
                }
                base.execute("DELETE FROM uses WHERE tenant = ?", (tenant,))
                base.execute("UPDATE batches SET ids = '[]' WHERE tenant = ?", (tenant,))
            base.executemany("INSERT INTO taints VALUES (?, ?) ON CONFLICT DO NOTHING", [(tenant, label) for label in labels])
            _remove(base, which, *values)
        self._database.truncate_log()
        return tuple(sorted(labels))

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Replay({self._database.where})"


def _tenant(batch_id: str) -> str:
    return batch_id.partition("/")[0]


def _count(base: Any, scope: tuple[str, str], records: int, size: int) -> None:
    """Add to the number of an adapter's records, and to their size in bytes."""
    text = "UPDATE scopes SET records = records + ?, bytes = bytes + ? WHERE tenant = ? AND adapter = ?"
    base.execute(text, (records, size, *scope))


def _remove(base: Any, where: str, *values: Any) -> None:
    """Delete records with their bodies and feedback."""
    for n, tenant, id, adapter, size in base.execute(
        f"SELECT n, tenant, id, adapter, bytes FROM records WHERE {where}", values
    ).fetchall():
        base.execute("DELETE FROM records WHERE n = ?", (n,))
        base.execute("DELETE FROM bodies WHERE n = ?", (n,))
        base.execute("DELETE FROM feedbacks WHERE tenant = ? AND id = ?", (tenant, id))
        _count(base, (tenant, adapter), -1, -size)
