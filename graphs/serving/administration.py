"""A tenant's requests besides chats: look at exchanges, delete them, train, and manage adapters and their versions.

All rows are plain data, as the HTTP API returns them.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.claas.replay import Replay
from ...memory.claas.replay_queries import ReplayRow
from ...memory.errors import AdapterConflict, ReplayError, Unavailable, UnknownAdapter, UserError, hide_paths, public_text
from ...memory.records import ExchangeQuery
from ...nodes.learn.chat_turn import DEFAULT_SCOPE, Engine
from ..claas import CLaaS
from .learning_task import LearningTask
from .metrics import ServiceMetrics
from .obstacles import KINDS, Obstacle, find_obstacles, summarize_obstacles
from .versions import LiveVersions, ServedAdapter, gradient_steps_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Administration"]

RECORD_STATES = ("pending", "ready", "held", "leased", "consumed", "rejected")
READY_SECONDS = 5.0
"""Seconds in which the engine must answer to count as ready: it does so between two passes."""
VITALS_SECONDS = 1.0
"""Seconds for which an engine's sign of life is passed on: whoever has no key asks for it, too."""
NOT_STORED = "what is said cannot be stored (a full disk, perhaps): the service's log says why"
"""Reason for which the service is degraded, and not ready where nothing is answered without a record."""
CLOSED = "the files of an adapter cannot be read, and its chats are refused, until they are put right; the log and learngraph_lost name it"
"""Reason for which the service is degraded: one adapter's damage."""
HELD_OUT = (
    "held out: a share of the exchanges (--replay.held-out-share) is never trained on, and the gate reads those that were liked"
)
"""Reason of the state `held_out`."""
SURVEY_SHARE = 0.05
"""Largest share of the time that surveys of all adapters' obstacles take, where they are asked for all the time."""


class Administration:
    """The part of a service that tenants manage their records and adapters with.

    Args:
        model: the model's public name.
        engine: answers.
        replay: the buffer of all tenants.
        live: the versions that answer.
        learning: the task that learns; None: nothing learns.
        metrics: of the service.
        settings: CLaaS's settings.
    """

    def __init__(
        self,
        model: str,
        engine: Engine,
        replay: Replay,
        live: LiveVersions,
        learning: LearningTask | None,
        metrics: ServiceMetrics,
        settings: CLaaS,
    ) -> None:
        self.model = model
        self.settings = settings
        self.engine = engine
        self.replay = replay
        self._live = live
        self._learning = learning
        self._metrics = metrics
        self._state = "new"
        self._storage_failed, self._must_store = False, True
        self._running: Counter[str] = Counter()
        self._lost: dict[tuple[str, str], str] = {}
        """(tenant, adapter) -> what of its files was gone at the start, and what that means."""
        self._survey_lock, self._surveyed_until = threading.Lock(), float("-inf")
        self._survey: dict[str, list[Obstacle]] = {}
        self._tokens_seen = (0.0, time.monotonic())
        self._vitals: asyncio.Task[dict[str, float]] | None = None
        self._vitals_until = float("-inf")

    def _require_open(self) -> None:
        if self._state != "open":
            raise Unavailable(f"the service is {'shutting down' if self._state == 'closed' else 'starting'}; try again")

    # -- exchanges --------------------------------------------------------------------------------------------------------

    async def experiences(self, query: ExchangeQuery) -> list[dict[str, Any]]:
        """A tenant's exchanges, newest first. `learned_by` is a version of the query's adapter, or else of `default`.

        Raises:
            UnknownAdapter, UnknownVersion: there is none.
        """
        if query.learned_by is not None:
            label = self._live.find_label(query.tenant, query.adapter or DEFAULT_SCOPE, query.learned_by)
            query = replace(query, learned_by=label)
        query = replace(query, state="held") if query.state == "held_out" else query
        return [_exchange_row(row) for row in await asyncio.to_thread(self.replay.rows, query)]

    async def experience(self, tenant: str, id: str) -> dict[str, Any] | None:
        """An exchange with its tokens and the versions that learned from it; None: the tenant has none of this id."""
        row = await asyncio.to_thread(self.replay.get, tenant, id)
        if row is None:
            return None
        uses = await asyncio.to_thread(self.replay.uses, tenant, id)
        reply = row.exchange.reply
        return {
            **_exchange_row(row),
            "uses": [list(use) for use in uses],
            "prompt_ids": list(reply.prompt_ids),
            "token_ids": list(reply.token_ids),
            "logprobs": list(reply.logprobs),
        }

    async def forget(self, tenant: str, ids: Sequence[str] | None, withdraw: bool = False) -> dict[str, Any]:
        """Delete exchanges, or all of a tenant's (None). Versions that learned from them are marked as tainted.

        Args:
            withdraw: a tainted version that answers is withdrawn at once; the newest before it that is not tainted answers instead.

        Returns:
            `deleted`, how many exchanges, `tainted`, the versions' labels, and `withdrawn`, those that answered.
        """
        if ids is None:
            count = sum((await asyncio.to_thread(self.replay.counts, tenant)).values())
            tainted = set(await asyncio.to_thread(self.replay.delete, tenant, None))
        else:
            count = len(ids)
            tainted = {label for id in ids for label in await asyncio.to_thread(self.replay.delete, tenant, id)}
        await asyncio.to_thread(self._live.taint, tenant, sorted(tainted))
        withdrawn = []
        for served in self._live.adapters_of(tenant):
            for known in list(served.rewards) if ids is None else ids:
                served.rewards.pop(known, None)
            if withdraw:
                async with served.switch_lock:  # what answers may change until it is held
                    if {served.live, served.canary} & tainted:
                        withdrawn.append(await self._withdraw(served, tainted))
        return {"deleted": count, "tainted": sorted(tainted), "withdrawn": withdrawn}

    async def _withdraw(self, served: ServedAdapter, tainted: Collection[str]) -> str:
        """Withdraw a tainted live version, or else the tainted canary alone; returns the label. The caller holds `switch_lock`."""
        why, live, canary = "it learned from exchanges that were deleted", served.live, served.canary
        if live in tainted:
            # What else the withdrawn versions learned from teaches again: the next steps learn it without what was deleted.
            back = await asyncio.to_thread(served.versions.rollback_target, live)
            await asyncio.to_thread(self.replay.set_head, *served.scope, back, give_back=True)
            await self._live.switch_back(served, back, why)
            return live
        await asyncio.to_thread(self._live.drop_canary, served, why)
        self._live.on_live_change(*served.scope)
        if self._learning is not None:
            self._learning.wake(*served.scope)
        return canary

    async def find_ids(self, tenant: str, user: str | None, older_than_days: float) -> list[str]:
        """Ids of the tenant's exchanges: of an end user (None: of all), at least so many days old."""
        return await asyncio.to_thread(self.replay.find_ids, tenant, user, time.time() - 86_400 * older_than_days)

    # -- learning ---------------------------------------------------------------------------------------------------------

    async def release(self, tenant: str, id: str) -> dict[str, Any]:
        """Refuse: what is learned in weights waits for nobody."""
        raise UserError(
            "release: this service learns in weights, and holds no exchange for a person; held_up says what it waits for"
        )

    async def job(self, tenant: str, id: str) -> dict[str, Any] | None:
        """The state of a feedback's job, or of a `train` job; None: the tenant has no such job."""
        if self._learning is not None and (asked := self._learning.job(tenant, id)) is not None:
            waits = asked["taken"] < asked["steps"]
            return {**asked, "held_up": await self._held_up(tenant, asked["adapter"]) if waits else []}
        row = await asyncio.to_thread(self.replay.job, tenant, id)
        if row is None:
            return None
        adapter = row.exchange.adapter
        used = list(dict.fromkeys(version for _, version in await asyncio.to_thread(self.replay.uses, tenant, row.exchange.id)))
        states = self._live.adapter(tenant, adapter).versions.states()
        return {
            "job": id,
            "kind": "feedback",
            "state": shown_state(row.state),
            "reason": _reason(row),
            "response_id": row.exchange.id,
            "adapter": adapter,
            "versions": used,
            "outcomes": {label: states.get(label, "deleted") for label in used},
            "held_up": await self._held_up(tenant, adapter) if row.state in ("ready", "leased") else [],
        }

    async def _held_up(self, tenant: str, adapter: str) -> list[dict[str, Any]]:
        return [asdict(each) for each in await asyncio.to_thread(self._obstacles, tenant, adapter)]

    def _obstacles(self, tenant: str, adapter: str) -> list[Obstacle]:
        """The obstacles to an adapter's learning, with their remedies."""
        if self._learning is None:
            return []
        versions = self._live.adapter(tenant, adapter).versions
        turn, pause = self._learning.turn(tenant, adapter), self._learning.pause(tenant, adapter)
        if versions.is_frozen:
            why = "the adapter is frozen: it answers as it is, and keeps feedback for later"
            return [Obstacle("frozen", why, KINDS["frozen"])]
        return list(find_obstacles(self.settings, self.replay, versions, turn, pause))

    def _learning_scopes(self) -> list[tuple[str, str]]:
        """Tenant and adapter of everything that learns."""
        return self._learning.adapters() if self._learning is not None else []

    def _survey_obstacles(self) -> dict[str, list[Obstacle]]:
        """Tenant -> the obstacles of its adapters; tenants without any are there, too.

        A survey is used again until it is twenty times as old as it took to make (`SURVEY_SHARE`), so that many adapters and frequent
        health checks do not keep the service busy.
        """
        with self._survey_lock:
            began = time.monotonic()
            if began >= self._surveyed_until:
                found: dict[str, list[Obstacle]] = {}
                for tenant, adapter in self._learning_scopes():
                    try:
                        found.setdefault(tenant, []).extend(self._obstacles(tenant, adapter))
                    except UserError as error:  # damaged files, or it was deleted meanwhile
                        found[tenant].append(Obstacle("failure", public_text(error), KINDS["failure"]))
                self._survey = found
                self._surveyed_until = time.monotonic() + (time.monotonic() - began) / SURVEY_SHARE
            return self._survey

    async def train(self, tenant: str, adapter: str, steps: int = 1) -> dict[str, Any]:
        """Take this many gradient steps as soon as the learner is free. A step needs at least two ready exchanges."""
        self._require_open()
        self._live.adapter(tenant, adapter)
        if self._learning is None:
            raise Unavailable("this service only answers: it was started with --learner off")
        return self._learning.request_steps(tenant, adapter, steps)

    # -- adapters ---------------------------------------------------------------------------------------------------------

    async def adapters(self, tenant: str) -> list[dict[str, Any]]:
        """A tenant's adapters with their versions, newest first."""
        return [await asyncio.to_thread(self._adapter_row, tenant, adapter) for adapter in self._live.names(tenant)]

    def _adapter_row(self, tenant: str, adapter: str) -> dict[str, Any]:
        served = self._live.adapter(tenant, adapter)
        reasons = _version_reasons(served.versions.log())
        rewards, sizes = served.rewards_by_version(), self.replay.minibatch_sizes(tenant, adapter)
        means = {label: {"reward": sum(mine) / len(mine), "feedbacks": len(mine)} for label, mine in rewards.items()}
        rows = [
            {name: getattr(version, name) for name in ("label", "name", "step", "parent", "state", "tainted", "created")}
            | {"why": reasons.get(version.label, ""), "gate": version.about.get("gate", [])}
            | means.get(version.label, {"reward": None, "feedbacks": 0})
            | {"learned_from": sizes.get(version.label)}
            for version in served.versions.versions()
        ]
        by_version = [{"version": label or "base", "step": gradient_steps_of(label), **mean} for label, mean in means.items()]
        about = {"adapter": adapter, "live": served.live, "canary": served.canary, "frozen": served.versions.is_frozen}
        return {**about, "versions": rows, "rewards": by_version}

    async def create(self, tenant: str, adapter: str) -> dict[str, Any]:
        """Make an adapter, which is the base model until it learns.

        Raises:
            AdapterConflict: there is one of this name.
        """
        if adapter in self._live.names(tenant):
            raise AdapterConflict(f"there is an adapter {adapter!r} already")
        self._live.adapter(tenant, adapter, create=True)
        return await asyncio.to_thread(self._adapter_row, tenant, adapter)

    async def freeze(self, tenant: str, adapter: str, is_frozen: bool) -> dict[str, Any]:
        """Let an adapter answer as it does now, and learn no more, or learn again. Feedback is kept all the while."""
        served = self._live.adapter(tenant, adapter)
        await asyncio.to_thread(served.versions.freeze, is_frozen)
        if self._learning is not None and not is_frozen:
            self._learning.wake(tenant, adapter)
        return await asyncio.to_thread(self._adapter_row, tenant, adapter)

    async def promote(self, tenant: str, adapter: str, version: str) -> dict[str, Any]:
        """Make a version live without the gate, and learn on from it.

        Raises:
            AdapterConflict: the gate failed it, or it learned from an exchange that was deleted.
        """
        label = self._live.find_label(tenant, adapter, version)
        await self._live.promote(self._live.adapter(tenant, adapter), label, "asked for")
        return await asyncio.to_thread(self._adapter_row, tenant, adapter)

    async def roll_back(self, tenant: str, adapter: str, to: str | None = None) -> dict[str, Any]:
        """Go back to a version, to the base model (empty), or to the version that was live before (None)."""
        target = self._live.find_label(tenant, adapter, to) if to else to
        served = self._live.adapter(tenant, adapter)
        async with served.switch_lock:
            await self._live.switch_back(served, target, "asked for")
        return await asyncio.to_thread(self._adapter_row, tenant, adapter)

    async def remove(self, tenant: str, adapter: str, version: str | None = None) -> dict[str, Any]:
        """Delete a version that is neither live nor the canary; without a version, the adapter and all its exchanges.

        Raises:
            Unavailable: a gradient step of the adapter is under way.
        """
        served = self._live.adapter(tenant, adapter)
        if version is not None:
            async with served.switch_lock:
                label = self._live.find_label(tenant, adapter, version)
                await asyncio.to_thread(served.versions.delete, label)  # refused for what answers
            await self.engine.unload(label)
            return await asyncio.to_thread(self._adapter_row, tenant, adapter)
        with self._learning.exclude(tenant, adapter) if self._learning is not None else nullcontext(True) as is_free:
            if not is_free:
                raise Unavailable("the learner is at work on this adapter; try again in a moment")
            async with served.switch_lock:
                if not self._live.has(served):
                    raise UnknownAdapter(f"there is no adapter {adapter!r} any more")
                await asyncio.to_thread(self._remove_adapter, served)
        for label in self.engine.loaded_versions():
            if label.startswith(f"{tenant}/{adapter}@"):
                await self.engine.unload(label)
        return {"adapter": adapter, "live": "", "canary": "", "versions": []}

    def _remove_adapter(self, served: ServedAdapter) -> None:
        """Delete the exchanges first, then the folder: if the service is killed in between, an adapter without exchanges is
        left."""
        served.versions.roll_back("", "the adapter is deleted")
        served.refresh()
        self.replay.set_head(*served.scope, "")
        self._delete_exchanges(served)
        served.versions.remove()
        self._live.forget(served)
        self._delete_exchanges(served)  # those whose replies were being made meanwhile

    def _delete_exchanges(self, served: ServedAdapter) -> None:
        while rows := self.replay.rows(ExchangeQuery(*served.scope, limit=200)):
            for row in rows:
                self.replay.delete(served.scope[0], row.exchange.id)

    async def export(self, tenant: str, adapter: str, version: str) -> Path:
        """A zip that PEFT can open, alone in a temporary folder. The caller deletes both."""
        label = self._live.find_label(tenant, adapter, version)
        folder = Path(tempfile.mkdtemp(prefix="learngraph-"))
        try:
            path = folder / f"{label.rpartition('@')[2]}.zip"
            return await asyncio.to_thread(self._live.adapter(tenant, adapter).versions.export, label, path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    # -- status -----------------------------------------------------------------------------------------------------------

    async def status(self, tenant: str | None = None) -> dict[str, Any]:
        """The state of the service; with a tenant, also of its adapters (`scopes`), and nothing of other tenants."""
        if self._storage_failed:
            with suppress(UserError):
                await self._vital_signs()  # looks whether it still fails
        learner = self._learning.status(tenant) if self._learning is not None else {"state": "off", "error": ""}
        loaded = [label for label in self.engine.loaded_versions() if tenant is None or label.startswith(f"{tenant}/")]
        failed = learner["error"] if learner["state"] == "failed" else "" if self._state == "open" else self._state
        closed = await asyncio.to_thread(self._retry_closed) if tenant is None else set()
        why = NOT_STORED if self._storage_failed else failed or (CLOSED if closed else "")
        found = {
            "state": "degraded" if why else "ok",
            "why": why,
            "model": self.model,
            "base": self.engine.base,
            "storage_failed": self._storage_failed,
            "learner": learner,
            "last_turns": dict(self._learning.outcomes()) if self._learning is not None and tenant is None else {},
            "loaded": len(loaded),
            "running": self._running.total() if tenant is None else self._running[tenant],
        }
        if tenant is None:
            found["lost"] = dict(Counter([*self._lost.values(), *(CLOSED for _ in closed)]))
            survey = await asyncio.to_thread(self._survey_obstacles)
            found["held_up"] = summarize_obstacles(each for obstacles in survey.values() for each in obstacles)
        else:
            names = self._live.names(tenant)
            found["scopes"] = [await asyncio.to_thread(self._learning_row, tenant, adapter) for adapter in names]
        return found

    def _retry_closed(self) -> set[tuple[str, str]]:
        """Open again the adapters that could not be read; returns those that still cannot."""
        for scope in list(self._live.closed):
            with suppress(UserError):
                self._live.adapter(*scope, create=True)
        return set(self._live.closed)

    def _learning_row(self, tenant: str, adapter: str) -> dict[str, Any]:
        """An adapter's progress, with its newest 500 gradient steps."""
        scope, served = (tenant, adapter), self._live.adapter(tenant, adapter)
        outcomes = served.versions.states()
        return {
            "tenant": tenant,
            "adapter": adapter,
            "live": served.live,
            "canary": served.canary,
            "lost": self._lost.get(scope, ""),
            "paused": self._learning.pause(*scope) if self._learning is not None else "",
            "held_up": [asdict(each) for each in self._obstacles(*scope)],
            "step": self.replay.step(*scope),
            "head": self.replay.head(*scope),
            "counts": {shown_state(state): n for state, n in self.replay.counts(*scope).items()},
            "ages": {str(age): n for age, n in self.replay.ages(*scope).items()},
            "updates": [
                {**update, "created": update["time"], "outcome": outcomes.get(update["version"], "candidate")}
                for update in reversed(self.replay.updates(*scope, 500))
            ],
        }

    async def ready(self) -> dict[str, float]:
        """A sign of life from the engine itself, see `Engine.vitals`.

        Raises:
            Unavailable: the service is not open, the engine does not answer, or what is said cannot be stored and must be.
        """
        vitals = await self._vital_signs()
        if self._storage_failed and self._must_store:
            raise Unavailable(NOT_STORED)
        return vitals

    async def _vital_signs(self) -> dict[str, float]:
        """The engine's sign of life, after a look at the disk where it failed; at most once in `VITALS_SECONDS`, however many ask."""
        self._require_open()
        now = time.monotonic()
        if self._vitals is None or (self._vitals.done() and now >= self._vitals_until):
            self._vitals, self._vitals_until = asyncio.create_task(self._ask_engine()), now + VITALS_SECONDS
        return await asyncio.shield(self._vitals)

    async def _ask_engine(self) -> dict[str, float]:
        try:
            async with asyncio.timeout(READY_SECONDS):
                if self._storage_failed:
                    with suppress(ReplayError):
                        await asyncio.to_thread(self.replay.check_disk)
                        self._storage_failed = False
                return await self.engine.vitals()
        except TimeoutError:
            raise Unavailable(f"the model has not answered for {READY_SECONDS:g} s") from None

    async def _note_vitals(self) -> None:
        try:
            vitals = await self._vital_signs()
        except UserError:
            self._metrics.engine_alive.set(0)
            return
        self._metrics.engine_alive.set(1)
        now = time.monotonic()
        for name in ("waiting", "running", "memory"):
            if name in vitals:
                getattr(self._metrics, f"engine_{name}").set(vitals[name])
        if "tokens" in vitals:
            before, since = self._tokens_seen
            if now > since:
                self._metrics.engine_tokens_per_second.set((vitals["tokens"] - before) / (now - since))
            self._tokens_seen = vitals["tokens"], now

    async def metrics(self) -> list[Metric]:
        """The service's metric families, for prometheus_client."""
        await self._note_vitals()
        counts = await asyncio.to_thread(self.replay.counts)
        self._metrics.running.set(self._running.total())
        self._metrics.storage_failed.set(self._storage_failed)
        self._metrics.loaded_versions.set(len(self.engine.loaded_versions()))
        self._metrics.lost.clear()
        for scope in {*self._lost, *await asyncio.to_thread(self._retry_closed)}:
            self._metrics.lost.labels(*scope).set(1)
        for state in RECORD_STATES:
            self._metrics.replay_records.labels(shown_state(state)).set(counts.get(state, 0))
        if self._learning is not None:
            self._metrics.set_adapters(self._learning.outcomes())
            self._metrics.learner_paused.set(self._learning.status()["state"] == "failed")
        survey = await asyncio.to_thread(self._survey_obstacles)
        self._metrics.set_obstacles({tenant: summarize_obstacles(found) for tenant, found in survey.items()})
        return list(self._metrics.registry.collect())


def _version_reasons(log: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Label of a version -> the reason for its state: the newest that the log has, and of one that was rolled back, when that was."""
    reasons = dict[str, str]()
    for line in log:
        why = hide_paths(line.get("why") or "")
        if line.get("back"):
            when = datetime.fromtimestamp(line["time"], UTC).isoformat(" ", "seconds")
            reasons[line["was"]], why = f"rolled back at {when}: {why}", f"gone back to at {when}: {why}"
        if why:
            reasons[line["label"]] = why
    return reasons


def shown_state(state: str) -> str:
    """A record's state as clients see it: to be held is to wait for a person (--learn), which `held` in the buffer does not mean."""
    return "held_out" if state == "held" else state


def _reason(row: ReplayRow) -> str:
    return HELD_OUT if row.state == "held" else hide_paths(row.reason)


def _exchange_row(row: ReplayRow) -> dict[str, Any]:
    exchange, reply = row.exchange, row.exchange.reply
    return {
        **{
            name: getattr(exchange, name) for name in ("id", "adapter", "family", "scenario", "turn", "user", "step", "created")
        },
        **{name: getattr(row, name) for name in ("age", "job", "kl")},
        "state": shown_state(row.state),
        "version": reply.version,
        "reason": _reason(row),
        "messages": list(exchange.request.messages),
        "raw": exchange.request.raw,
        "reply": reply.text,
        "tool_calls": list(reply.tool_calls),
        "finish": reply.finish,
        "feedback": asdict(exchange.feedback) if exchange.feedback is not None else None,
        "times": row.sample_count,
    }
