"""The adapter versions that answer, and those that the engine holds.

The live version answers a request, or the canary does for a share of the request ids. A version that was live before stays
loaded, so that going back to it takes no longer than writing its name into CURRENT.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
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
from .adapter_state import MAX_NAMED, AdapterState, gradient_steps_of
from .metrics import ServiceMetrics

__all__ = ["LiveVersions"]

LOG = logging.getLogger("learngraph.service")
MAX_PINS = 10_000
"""Most requests whose version is pinned before they begin; beyond that the oldest pin is dropped."""
MAX_RETRY_WAIT = 60.0
"""Seconds between two tries to load a version that cannot be loaded at present; the first tries are closer together."""


def hash_fraction(id: str) -> float:
    """A number from 0 to 1 that depends on the id only: the canary answers ids whose number is below its share."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest(), "big") / 2**64


def is_permanent(error: BaseException) -> bool:
    """True if a version can never be loaded: damaged, deleted, or of another base model. Other failures may pass, for example
    an engine that is away or a disk that does not answer."""
    failure = machine_error(error)
    return isinstance(error, AdapterError) and (failure is None or isinstance(failure, FileNotFoundError))


class LiveVersions:
    """The versions that answer, of all adapters.

    Args:
        engine: holds the versions that answer.
        replay: the buffer of all tenants.
        root: folder of versions, `<root>/<tenant>/<adapter>/`.
        settings: CLaaS's settings.
        metrics: counts loads, swaps and rollbacks.
        clock: seconds, for the metrics.
    """

    def __init__(
        self,
        engine: Engine,
        replay: Replay,
        root: Path,
        settings: CLaaS,
        metrics: ServiceMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._replay = replay
        self._root = root
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._states: dict[tuple[str, str], AdapterState] = {}
        self._pins: OrderedDict[str, str] = OrderedDict()
        self._loading: dict[str, asyncio.Task[None]] = {}
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
        """All (tenant, adapter) with a folder, and `default` adapters with records. Folders of adapters that an
        earlier service was deleting go."""
        for gone in self._root.glob("*/.gone-*"):
            shutil.rmtree(gone, ignore_errors=True)
        found = {scope for scope in self._replay.adapters() if scope[1] == DEFAULT_SCOPE}
        return sorted(found | set(list_adapters(self._root)))

    def names(self, tenant: str) -> list[str]:
        """A tenant's adapters; `default` is always among them."""
        folder, found = self._root / tenant, {DEFAULT_SCOPE}
        if NAME.fullmatch(tenant) and folder.is_dir():
            found |= {path.name for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_dir()}
        return sorted(found)

    def exists(self, tenant: str, adapter: str) -> bool:
        """True if there is this adapter."""
        return (tenant, adapter) in self._states or adapter in self.names(tenant)

    def has_state(self, tenant: str, adapter: str) -> bool:
        """True if an adapter's state is in memory; false for one that was deleted."""
        return (tenant, adapter) in self._states

    def is_current(self, state: AdapterState) -> bool:
        """True if an adapter's state is still in use, not deleted since."""
        return self._states.get((state.versions.tenant, state.versions.adapter)) is state

    def state(self, tenant: str, adapter: str, create: bool = False) -> AdapterState:
        """An adapter's state. `default` is made when it is first asked for, another one with `create` only.

        Raises:
            UnknownAdapter: there is no such adapter, or it was deleted.
            UserError: a name that is not allowed.
        """
        state = self._states.get((tenant, adapter))
        if state is None:
            for what, name in (("a tenant", tenant), ("an adapter", adapter)):
                if not NAME.fullmatch(name):
                    raise UserError(f"{what}'s name is small letters, digits, - and _, at most 63, got {name!r}")
            if not create:
                self.require_adapter(tenant, adapter)
            state = AdapterState(Adapters(self._root, tenant, adapter, self._settings.rollout.keep_versions))
            state.refresh()
            self._states[tenant, adapter] = state
        return state

    def require_adapter(self, tenant: str, adapter: str) -> None:
        """Raise `UnknownAdapter` if the tenant has no such adapter."""
        if adapter != DEFAULT_SCOPE and adapter not in self.names(tenant):
            raise UnknownAdapter(f"there is no adapter {adapter!r}; there are {', '.join(self.names(tenant))}")

    def existing_state(self, tenant: str, adapter: str) -> AdapterState:
        """As `state`, but looks at the disk first: raises `UnknownAdapter` for an adapter that was deleted meanwhile."""
        self.require_adapter(tenant, adapter)
        return self.state(tenant, adapter)

    def states_of(self, tenant: str) -> Iterable[AdapterState]:
        """The states of a tenant's adapters that are in memory."""
        return [state for (owner, _), state in self._states.items() if owner == tenant]

    def forget_state(self, tenant: str, adapter: str) -> None:
        """Drop the state of an adapter that was deleted."""
        self._states.pop((tenant, adapter), None)

    def find_label(self, tenant: str, adapter: str, version: str) -> str:
        """A version's label from its label, its name, or its number of steps.

        Raises:
            UnknownAdapter, UnknownVersion: there is none.
        """
        versions = self.existing_state(tenant, adapter).versions.versions()
        for one in versions:
            if version in (one.label, one.name, one.name.partition("-")[0], str(one.step)):
                return one.label
        known = ", ".join(one.name for one in versions[:5]) or "none yet"
        raise UnknownVersion(f"adapter {adapter!r} has no version {version!r}; the newest are {known}")

    def taint(self, tenant: str, labels: Sequence[str], adapter: str | None = None) -> None:
        """Mark versions that learned from an exchange that was deleted; of one adapter, or of all of the tenant's (None)."""
        by_adapter: dict[str, list[str]] = {}
        for label in labels:
            by_adapter.setdefault(label.rpartition("@")[0].partition("/")[2], []).append(label)
        for name, mine in by_adapter.items():
            if adapter in (None, name) and name in self.names(tenant):  # else the adapter is deleted
                self.state(tenant, name).versions.taint(mine, "learned from an exchange that was deleted")

    # -- routing ----------------------------------------------------------------------------------------------------------

    def pin(self, tenant: str, adapter: str, id: str, wanted: str = "") -> str:
        """The label of the version that will answer request `id`, also if another version goes live before the request
        begins.

        Args:
            wanted: a version's name, label or number of steps, or `base`; empty: the one that is live.
        """
        if not wanted:
            label = self._label_for(tenant, adapter, id)
        elif wanted == "base":
            self.require_adapter(tenant, adapter)
            label = ""
        else:
            label = self.find_label(tenant, adapter, wanted)
            self._keep_named(self.state(tenant, adapter), label)
        self._pins[f"{tenant}/{id}"] = label
        if len(self._pins) > MAX_PINS:
            self._pins.popitem(last=False)
        return label

    def _keep_named(self, state: AdapterState, label: str) -> None:
        """Note that a request named a version; what was named longer ago is unloaded."""
        if label in state.named:
            state.named.remove(label)
        is_full = len(state.named) == MAX_NAMED
        state.named.append(label)
        if is_full:
            self.spawn(self._unload_idle(state))

    def _label_for(self, tenant: str, adapter: str, id: str) -> str:
        state = self.state(tenant, adapter)
        return state.canary if state.canary and hash_fraction(id) < self._settings.rollout.canary_share else state.live

    async def route(self, tenant: str, adapter: str, id: str) -> tuple[str, int]:
        """The label of the version that answers a request, loaded, and the gradient steps behind it."""
        label = self._pins.pop(f"{tenant}/{id}", None)
        if label is None:
            label = self._label_for(tenant, adapter, id)
        if label and label not in self._engine.loaded_versions():
            if label in self.state(tenant, adapter).named:
                await self.load(label)  # another one is no answer to who asked for this one
            else:
                label = await self.require_version(tenant, adapter, label)
        return label, gradient_steps_of(label)

    # -- loading ----------------------------------------------------------------------------------------------------------

    async def load_live(self, tenant: str, adapter: str) -> None:
        """Load what answers for an adapter; what cannot be loaded at present is tried again in the background."""
        state = self.state(tenant, adapter)
        for label in filter(None, (state.live, state.canary)):
            try:
                await self.require_version(tenant, adapter, label)
            except Unavailable:
                self.spawn(self._retry_version(tenant, adapter, label))

    async def require_version(self, tenant: str, adapter: str, label: str) -> str:
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
                state = self.state(tenant, adapter)
                LOG.error("%s cannot be loaded: %s", label, error)
                if label == state.canary:
                    await asyncio.to_thread(self.drop_canary, tenant, adapter, label, str(error))
                elif label == state.live:
                    await self.switch_back(tenant, adapter, None, f"cannot be loaded: {error}", load=False)
                label = state.live
        return label

    async def _retry_version(self, tenant: str, adapter: str, label: str) -> None:
        """Try to load a version until it is loaded, or another one answers."""
        wait = 1.0
        while (state := self._states.get((tenant, adapter))) is not None and label in (state.live, state.canary):
            await asyncio.sleep(wait)
            try:
                await self.require_version(tenant, adapter, label)
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
        began = self._clock()
        tenant, _, adapter = label.rpartition("@")[0].partition("/")
        versions = self.state(tenant, adapter).versions
        version = await asyncio.to_thread(versions.version, label)
        if version.base != self._engine.base and self._engine.base:  # an engine elsewhere may not know its base
            raise AdapterError(f"{label} was learned on base model {version.base}, and this service has {self._engine.base}")
        await self._engine.load(label, await asyncio.to_thread(versions.folder, label))
        self._metrics.load_seconds.observe(self._clock() - began)

    # -- switching --------------------------------------------------------------------------------------------------------

    def on_live_change(self, tenant: str, adapter: str) -> None:
        """Route requests to the version that is live now, and unload versions that no request will need."""
        state = self._states.get((tenant, adapter))
        if state is not None:  # not deleted since
            state.refresh()
            self.spawn(self._unload_idle(state))

    async def _unload_idle(self, state: AdapterState) -> None:
        needed = {state.live, state.canary, state.previous_live, *state.named, *self._pins.values()}
        for label in self._engine.loaded_versions():
            if label.startswith(f"{state.versions.scope}@") and label not in needed:
                await self._engine.unload(label)
        async with state.switch_lock:
            if self.is_current(state):
                await self._prune(state, needed)

    async def _prune(self, state: AdapterState, needed: set[str]) -> None:
        head = await asyncio.to_thread(self._replay.head, state.versions.tenant, state.versions.adapter)
        kept = (head, *needed, *self._rollback_targets(state), *self._engine.loaded_versions())
        await asyncio.to_thread(state.versions.prune, kept)

    def _rollback_targets(self, state: AdapterState) -> list[str]:
        """Versions that falling rewards may lead back to. At most `watch` versions with rewards are on trial at a time
        (nodes/learn/gate.py, `reward_windows`); the newest version before these is the target."""
        rewards = state.rewards_by_version()
        line = (label for label in state.versions.lineage(state.live) if label in rewards)
        return list(islice(line, self._settings.rollout.watch_rewards + 1)) if self._settings.rollout.watch_rewards else []

    async def promote(self, tenant: str, adapter: str, label: str, why: str) -> None:
        """Load a version and make it live; learning goes on from it."""
        began = self._clock()
        state = self.state(tenant, adapter)
        async with state.switch_lock:
            await self.load(label)
            await asyncio.to_thread(state.versions.promote, label, why)
            await asyncio.to_thread(self._replay.set_head, tenant, adapter, label)
            state.refresh()
        self._metrics.swap_seconds.observe(self._clock() - began)
        self.on_live_change(tenant, adapter)

    async def switch_back(
        self, tenant: str, adapter: str, to: str | None, why: str, load: bool = True, rewards_fell: bool = False
    ) -> str:
        """Make an earlier version live and learn on from it; returns its label. The caller holds the adapter's `switch_lock`,
        unless the live version cannot be loaded.

        Args:
            to: a label, the base model (empty), or the version that was live before (None).
            load: load it before it goes live.
            rewards_fell: the reason is live feedback; the gate reads newer held-out feedback only from then on.
        """
        began = self._clock()
        state = self.state(tenant, adapter)
        if load and to:
            await self.load(to)
        if state.canary:
            await asyncio.to_thread(self.drop_canary, tenant, adapter, state.canary, f"rolled back: {why}")
        label = await asyncio.to_thread(state.versions.roll_back, to, why, rewards_fell=rewards_fell)
        await asyncio.to_thread(self._replay.set_head, tenant, adapter, label)
        state.refresh()
        self._metrics.rollbacks.inc()
        self._metrics.swap_seconds.observe(self._clock() - began)
        if load and label and label not in self._engine.loaded_versions():
            try:
                await self.load(label)
            except UserError as error:  # the next request for it tries again
                LOG.warning("%s cannot be loaded yet: %s", label, error)
        self.on_live_change(tenant, adapter)
        return label

    def drop_canary(self, tenant: str, adapter: str, canary: str, why: str) -> None:
        """Withdraw the canary; learning goes on from the live version."""
        state = self.state(tenant, adapter)
        self._replay.set_head(tenant, adapter, state.versions.current)
        state.versions.drop(canary, why)
        state.refresh()
        self._metrics.dropped.inc()
