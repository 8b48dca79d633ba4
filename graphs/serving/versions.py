"""The adapter versions that answer, and those that the engine holds.

The live version answers a request, or the canary does for a share of the request ids. A version that was live before stays
loaded, so that going back to it takes no longer than a line in its adapter's log.
"""

import asyncio
import logging
import math
import shutil
import time
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from ...memory.claas.adapters import Adapters, list_adapters
from ...memory.claas.replay import Replay
from ...memory.claas.replay_file import NAME
from ...memory.errors import AdapterError, Unavailable, UnknownAdapter, UnknownVersion, UserError, machine_error
from ...nodes.learn.chat_turn import DEFAULT_SCOPE, Engine
from ..claas import CLaaS
from .metrics import ServiceMetrics

__all__ = ["LiveVersions", "ServedAdapter"]

LOG = logging.getLogger("learngraph.service")
DELETED = "learned from an exchange that was deleted"
"""Reason for the mark on a version."""
MAX_NAMED = 4
"""Most versions of an adapter that stay loaded because requests named them."""
MAX_PINS, PIN_SECONDS = 10_000, 600.0
"""Most requests whose version is pinned before they begin, and for how long: that of a client who has hung up never begins."""
MAX_RETRY_WAIT = 60.0
"""Seconds between two tries to load a version that cannot be loaded at present; the first tries are closer together."""


def hash_fraction(id: str) -> float:
    """A number from 0 to 1 that depends on the id only: the canary answers ids whose number is below its share."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest(), "big") / 2**64


def gradient_steps_of(label: str) -> int:
    """The number of gradient steps behind a version, which its name begins with; 0 for the base model."""
    return int(label.rpartition("@")[2].partition("-")[0]) if label else 0


def is_permanent(error: BaseException) -> bool:
    """True if a version can never be loaded: damaged, deleted, or of another base model. Other failures may pass, for example
    an engine that is away or a disk that does not answer."""
    failure = machine_error(error)
    return isinstance(error, AdapterError) and (failure is None or isinstance(failure, FileNotFoundError))


@dataclass(eq=False)
class ServedAdapter:
    """An adapter between requests: the versions that answer, and its newest rewards. All of it can be read from disk again."""

    versions: Adapters
    live: str = ""
    """Label of the version that answers requests; empty: the base model."""
    canary: str = ""
    """Label of the canary; empty: there is none."""
    previous_live: str = ""
    """Label of the version that was live before. It stays loaded."""
    rewards: OrderedDict[str, tuple[str, float, float]] = field(default_factory=OrderedDict)
    """Exchange id -> (label, reward, Unix time of the reply), oldest first."""
    has_new_rewards: bool = False
    """True if there are rewards that the watch has not seen."""
    named: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NAMED))
    """Labels of the versions that requests named last. They stay loaded."""
    switch_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def scope(self) -> tuple[str, str]:
        """(tenant, adapter)."""
        return self.versions.tenant, self.versions.adapter

    def refresh(self) -> None:
        """Read from disk which versions answer from now on."""
        live = self.versions.current
        if live != self.live:
            self.previous_live = self.live
        self.live = live
        self.canary = self.versions.canary

    def rewards_by_version(self, since: float = -math.inf) -> dict[str, list[float]]:
        """Label -> rewards of replies that were made at `since` (Unix time) or later, oldest first."""
        found: dict[str, list[float]] = {}
        for label, reward, created in self.rewards.values():
            if created >= since:
                found.setdefault(label, []).append(reward)
        return found


class LiveVersions:
    """The versions that answer, of all adapters.

    Args:
        engine: holds the versions that answer.
        replay: the buffer of all tenants.
        root: folder of versions, `<root>/<tenant>/<adapter>/`.
        settings: CLaaS's settings.
        metrics: counts loads, swaps and rollbacks.
    """

    def __init__(self, engine: Engine, replay: Replay, root: Path, settings: CLaaS, metrics: ServiceMetrics) -> None:
        self._engine = engine
        self._replay = replay
        self._root = root
        self._settings = settings
        self._metrics = metrics
        self._adapters: dict[tuple[str, str], ServedAdapter] = {}
        self._pins: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self.closed = set[tuple[str, str]]()
        """(tenant, adapter) of adapters whose files could not be read when they were asked for last."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Background work under way."""

    async def close(self) -> None:
        """Cancel all loading and other background work."""
        under_way = [*self.tasks, *self._loading.values()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background; its errors go to the log."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("%s", error, exc_info=error)

    # -- adapters ---------------------------------------------------------------------------------------------------------

    def list_adapters(self) -> list[tuple[str, str]]:
        """All (tenant, adapter) with a folder or with learned versions, and `default` adapters with records; removes half-deleted folders."""
        for gone in self._root.glob("*/.gone-*"):
            shutil.rmtree(gone, ignore_errors=True)
        found = {scope for scope in self._replay.adapters() if scope[1] == DEFAULT_SCOPE or self._replay.head(*scope)}
        return sorted(found | set(list_adapters(self._root)))

    def names(self, tenant: str) -> list[str]:
        """A tenant's adapters; `default` is always among them."""
        folder, found = self._root / tenant, {DEFAULT_SCOPE}
        if NAME.fullmatch(tenant) and folder.is_dir():
            found |= {path.name for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_dir()}
        return sorted(found)

    def exists(self, tenant: str, adapter: str) -> bool:
        """True if there is this adapter."""
        return (tenant, adapter) in self._adapters or adapter in self.names(tenant)

    def is_frozen(self, tenant: str, adapter: str) -> bool:
        """True if an adapter is to learn no more."""
        return (served := self._adapters.get((tenant, adapter))) is not None and served.versions.is_frozen

    def has(self, served: ServedAdapter) -> bool:
        """True if an adapter is still served, not deleted since."""
        return self._adapters.get(served.scope) is served

    def adapter(self, tenant: str, adapter: str, create: bool = False) -> ServedAdapter:
        """An adapter. `default` is made when it is first asked for, another one with `create` only.

        Raises:
            UnknownAdapter: there is no such adapter, or it was deleted.
            UserError: a name that is not allowed.
        """
        served = self._adapters.get((tenant, adapter))
        if served is None:
            for what, name in (("a tenant", tenant), ("an adapter", adapter)):
                if not NAME.fullmatch(name):
                    raise UserError(f"{what}'s name is small letters, digits, - and _, at most 63, got {name!r}")
        if not create and adapter != DEFAULT_SCOPE and adapter not in self.names(tenant):
            raise UnknownAdapter(f"there is no adapter {adapter!r}; there are {', '.join(self.names(tenant))}")
        if served is None:
            try:
                served = ServedAdapter(Adapters(self._root, tenant, adapter, self._settings.rollout.keep_versions))
                served.refresh()
            except AdapterError:
                self.closed.add((tenant, adapter))
                raise
            self.closed.discard((tenant, adapter))
            self._adapters[tenant, adapter] = served
        return served

    def adapters_of(self, tenant: str) -> Iterable[ServedAdapter]:
        """A tenant's adapters that are in memory."""
        return [served for (owner, _), served in self._adapters.items() if owner == tenant]

    def forget(self, served: ServedAdapter) -> None:
        """Serve an adapter no more that was deleted."""
        self._adapters.pop(served.scope, None)

    def find_label(self, tenant: str, adapter: str, version: str) -> str:
        """A version's label from its label, its name, or its number of steps.

        Raises:
            UnknownAdapter, UnknownVersion: there is none.
        """
        versions = self.adapter(tenant, adapter).versions.versions()
        for one in versions:
            if version in (one.label, one.name, one.name.partition("-")[0], str(one.step)):
                return one.label
        known = ", ".join(one.name for one in versions[:5])
        newest = f"the newest are {known}" if known else "it has none yet"
        raise UnknownVersion(f"adapter {adapter!r} has no version {version!r}; {newest}")

    def taint(self, tenant: str, labels: Sequence[str]) -> None:
        """Mark versions that learned from an exchange that was deleted."""
        for name in {label.rpartition("@")[0].partition("/")[2] for label in labels} & set(self.names(tenant)):
            self.adapter(tenant, name).versions.taint(labels, DELETED)

    # -- routing ----------------------------------------------------------------------------------------------------------

    def pin(self, tenant: str, adapter: str, id: str, wanted: str = "") -> str:
        """The label of the version that will answer request `id`, also if another version goes live before the request
        begins.

        Args:
            wanted: a version's name, label or number of steps, or `base`; empty: the one that is live.
        """
        served = self.adapter(tenant, adapter)
        label = self._label_for(served, id)
        if wanted:
            label = "" if wanted == "base" else self.find_label(tenant, adapter, wanted)
        if label and wanted:
            if label in served.named:
                served.named.remove(label)
            is_full = len(served.named) == MAX_NAMED
            served.named.append(label)
            if is_full:  # what was named longest ago is unloaded
                self.spawn(self._unload_idle(served))
        now = time.monotonic()
        while self._pins and (len(self._pins) >= MAX_PINS or now - next(iter(self._pins.values()))[1] > PIN_SECONDS):
            self._pins.popitem(last=False)
        self._pins[f"{tenant}/{id}"] = label, now
        return label

    def _label_for(self, served: ServedAdapter, id: str) -> str:
        is_for_canary = served.canary and hash_fraction(id) < self._settings.rollout.canary_share
        return served.canary if is_for_canary else served.live

    async def route(self, tenant: str, adapter: str, id: str) -> tuple[str, int]:
        """The label of the version that answers a request, loaded, and the gradient steps behind it."""
        served = self.adapter(tenant, adapter)
        pin = self._pins.pop(f"{tenant}/{id}", None)
        label = self._label_for(served, id) if pin is None else pin[0]
        if label and label not in self._engine.loaded_versions():
            if label in served.named:
                await self.load(label)  # another one is no answer to who asked for this one
            else:
                label = await self._require(served, label)
        return label, gradient_steps_of(label)

    # -- loading ----------------------------------------------------------------------------------------------------------

    async def load_live(self, served: ServedAdapter) -> None:
        """Load what answers for an adapter; what cannot be loaded at present is tried again in the background."""
        for label in filter(None, (served.live, served.canary)):
            try:
                await self._require(served, label)
            except Unavailable:
                self.spawn(self._retry(served, label))

    async def _require(self, served: ServedAdapter, label: str) -> str:
        """Load a version; if it can never be loaded (damaged, of another base model), go back until one can, and return its
        label.

        Raises:
            Unavailable: it cannot be loaded at present; it stays live.
        """
        while label:
            try:
                await self.load(label)
                return label
            except UserError as error:
                if not is_permanent(error):
                    LOG.warning("%s cannot be loaded at present: %s", label, error)
                    raise Unavailable("the version that answers cannot be loaded at present; try again") from error
                LOG.error("%s cannot be loaded: %s", label, error)
                if label == served.canary:
                    await asyncio.to_thread(self.drop_canary, served, str(error))
                elif label == served.live:
                    await self.switch_back(served, None, f"cannot be loaded: {error}", load=False)
                label = served.live
        return label

    async def _retry(self, served: ServedAdapter, label: str) -> None:
        """Try to load a version until it is loaded, or another one answers."""
        wait = 1.0
        while self.has(served) and label in (served.live, served.canary):
            await asyncio.sleep(wait)
            try:
                await self._require(served, label)
                return
            except Unavailable:
                wait = min(2 * wait, MAX_RETRY_WAIT)

    async def load(self, label: str) -> None:
        """Load a version into the engine, once however many callers ask for it."""
        task = self._loading.get(label)
        if task is None:
            task = asyncio.create_task(self._load(label))
            self._loading[label] = task
            task.add_done_callback(lambda done: self._loading.pop(label, None))
        await asyncio.shield(task)

    async def _load(self, label: str) -> None:
        began = time.perf_counter()
        tenant, _, adapter = label.rpartition("@")[0].partition("/")
        versions = self.adapter(tenant, adapter).versions
        version = await asyncio.to_thread(versions.version, label)
        if version.base != self._engine.base and self._engine.base:  # an engine elsewhere may not know its base
            raise AdapterError(f"{label} was learned on base model {version.base}, and this service has {self._engine.base}")
        await self._engine.load(label, await asyncio.to_thread(versions.folder, label))
        self._metrics.load_seconds.observe(time.perf_counter() - began)

    # -- switching --------------------------------------------------------------------------------------------------------

    def on_live_change(self, tenant: str, adapter: str) -> None:
        """Route requests to the version that is live now, and unload versions that no request will need."""
        served = self._adapters.get((tenant, adapter))
        if served is not None:  # not deleted since
            served.refresh()
            self.spawn(self._unload_idle(served))

    async def _unload_idle(self, served: ServedAdapter) -> None:
        """Unload versions that no request will need, and delete from disk what nothing leads back to.

        Falling rewards lead back to the newest version before those on trial, of which there are at most `watch_rewards` with rewards
        (nodes/learn/gate.py, `reward_windows`).
        """
        needed = {served.live, served.canary, served.previous_live, *served.named, *(label for label, _ in self._pins.values())}
        for label in self._engine.loaded_versions():
            if label.startswith(f"{served.versions.scope}@") and label not in needed:
                await self._engine.unload(label)
        async with served.switch_lock:
            if self.has(served):
                rewards, watched = served.rewards_by_version(), self._settings.rollout.watch_rewards
                line = (label for label in served.versions.lineage(served.live) if label in rewards)
                needed |= set(islice(line, watched + 1 if watched else 0)) | set(self._engine.loaded_versions())
                needed.add(await asyncio.to_thread(self._replay.head, *served.scope))
                await asyncio.to_thread(served.versions.prune, tuple(needed))

    async def promote(self, served: ServedAdapter, label: str, why: str) -> None:
        """Load a version and make it live; learning goes on from it."""
        began = time.perf_counter()
        async with served.switch_lock:
            await self.load(label)
            await asyncio.to_thread(served.versions.promote, label, why)
            await self._learn_on_from(served, label, began)

    async def _learn_on_from(self, served: ServedAdapter, label: str, began: float) -> None:
        await asyncio.to_thread(self._replay.set_head, *served.scope, label)
        self.on_live_change(*served.scope)
        self._metrics.swap_seconds.observe(time.perf_counter() - began)

    async def switch_back(
        self, served: ServedAdapter, to: str | None, why: str, load: bool = True, rewards_fell: bool = False
    ) -> None:
        """Make an earlier version live and learn on from it. The caller holds the adapter's `switch_lock`, unless the live version
        cannot be loaded.

        Args:
            served: the adapter.
            to: a label, the base model (empty), or the version that was live before (None).
            why: the reason, for the log.
            load: load it before it goes live.
            rewards_fell: the reason is live feedback; the gate reads newer feedback only from then on.
        """
        began = time.perf_counter()
        if load and to:
            await self.load(to)
        if served.canary:
            await asyncio.to_thread(self.drop_canary, served, f"rolled back: {why}")
        label = await asyncio.to_thread(served.versions.roll_back, to, why, rewards_fell=rewards_fell)
        await self._learn_on_from(served, label, began)
        self._metrics.rollbacks.inc()
        if load and label and label not in self._engine.loaded_versions():
            try:
                await self.load(label)
            except UserError as error:  # the next request for it tries again
                LOG.warning("%s cannot be loaded yet: %s", label, error)

    def drop_canary(self, served: ServedAdapter, why: str) -> None:
        """Withdraw the canary; learning goes on from the live version."""
        canary = served.canary
        self._replay.set_head(*served.scope, served.versions.current)
        served.versions.drop(canary, why)
        served.refresh()
        self._metrics.dropped.inc()
