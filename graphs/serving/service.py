"""CLaaS as a service: chats, feedback and versions of many tenants on one base model, and a learner that works in between.

`Service` runs the two graphs of graphs/claas.py. A chat is a run of the serving graph without a checkpointer: what lasts of it is
its record in the replay buffer, which is on disk before the last token is sent. So there is no pause to resume when feedback comes: its
last node, `keep`, runs alone, in a thread of its own kind (0.6 ms of CPU; with a checkpointer's pause and LangGraph's engine it was
4.8). Learning is a background task (graphs/serving/learning_task.py) that runs the learning graph, one step at a time for all tenants together.

Which version answers a request is decided by its id: the live one, or the canary for a share of the ids. A version that was live
stays loaded, so that going back takes no longer than writing its name into CURRENT.

No web server and no model in here: `tools/serving/chat_server.py` and the engines are joined to it in graphs/cli/serve.py.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, cast

from ...memory.claas.adapters import Adapters, list_adapters
from ...memory.claas.replay import Receipt, Replay, ReplayRow
from ...memory.errors import AdapterConflict, AdapterError, Unavailable, UnknownAdapter, UnknownVersion, UserError
from ...memory.records import ChatRequest, Exchange, Feedback, Piece
from ...nodes.learn.chat_turn import DEFAULT_SCOPE, STREAM_CALLBACK, Engine, KeepFeedback
from ...nodes.learn.gate import reward_drop, reward_windows
from ...nodes.learn.gradient_step import AdapterLearner, lineage
from ...nodes.state import ServedChat
from ..claas import CLaaS, build_learning, build_serving
from .learning_task import LearningTask
from .meter import Meter

__all__ = ["Service"]

LOG = logging.getLogger("learngraph.service")
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
MAX_PINS = 10_000
"""Requests whose version was asked for before they came; the oldest is forgotten beyond that."""
CLOSE_TIMEOUT = 1.0
"""Seconds that the engine has to end, once nobody waits for a reply."""
MAX_RETRY_WAIT = 60.0
"""Seconds between two tries to load a version that cannot be loaded just now; the first are closer together."""
FEEDBACK_THREADS = 4
"""Threads for feedback; those that wait for the disk at the same time wait for it once (memory/claas/replay_file.py)."""


def steps_of(label: str) -> int:
    """Gradient steps behind a version, which its name begins with; 0 for the base model."""
    return int(label.rpartition("@")[2].partition("-")[0]) if label else 0


def hash_fraction(id: str) -> float:
    """A number from 0 to 1 that an id always has: below the canary's share, the canary answers."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest(), "big") / 2**64


def is_permanent(error: BaseException) -> bool:
    """Whether a version can never be loaded: damaged, deleted, or of another base model. Anything else may pass: the engine is away,
    the disk does not answer."""
    away = isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError)
    return isinstance(error, AdapterError) and not away


@dataclass
class _AdapterState:
    """What is remembered of an adapter between requests; all of it can be read from disk again."""

    versions: Adapters
    live: str = ""
    """Labels of the live version and the canary, as requests are routed: read from disk when they may have changed."""
    canary: str = ""
    previous_live: str = ""
    """What was live before: it stays loaded."""
    rewards: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    """Exchange id -> (label, reward), oldest first."""
    has_new_rewards: bool = False
    """Rewards have come that nobody has looked at."""
    switch_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def refresh(self) -> None:
        """What answers from now on."""
        live = self.versions.current
        if live != self.live:
            self.previous_live = self.live
        self.live, self.canary = live, self.versions.canary

    def by_version(self) -> dict[str, list[float]]:
        """Label -> rewards, oldest first."""
        found: dict[str, list[float]] = {}
        for label, reward in self.rewards.values():
            found.setdefault(label, []).append(reward)
        return found


class Service:
    """A model that many tenants talk to, and that learns for each of them apart.

    Args:
        engine: what answers.
        learner: what learns; None: nothing does.
        replay: the buffer of all tenants.
        root: the folder of versions, `<root>/<tenant>/<adapter>/`.
        settings: hyper-parameters.
        model: the public name.
        retention: chats whose replies must stay likely, for the gate.
        clock: seconds, for metrics.

    `async with service:` starts the learner and closes everything in the end, the engine and the buffer too.
    """

    def __init__(
        self,
        engine: Engine,
        learner: AdapterLearner | None,
        replay: Replay,
        root: Path,
        settings: CLaaS | None = None,
        model: str = "claas",
        retention: Sequence[Exchange] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.window, self.features = model, engine.window, engine.features
        self.engine, self.learner, self.replay, self.settings = engine, learner, replay, settings or CLaaS()
        if learner is not None and learner.base != engine.base:
            raise UserError(f"service: the engine answers with base model {engine.base}, the learner learns on {learner.base}")
        self._root, self._clock, self._state = root, clock, "new"
        self._scopes: dict[tuple[str, str], _AdapterState] = {}
        self._pins: OrderedDict[str, str] = OrderedDict()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running: Counter[str] = Counter()
        self.meter = Meter()
        self._serving = build_serving(engine, replay, self._route, interrupt_after=["record"])
        self._keep = KeepFeedback(replay)
        self._listeners = ThreadPoolExecutor(
            FEEDBACK_THREADS, "feedback"
        )  # of its own: no queue behind chats that are being stored
        self._trainer: LearningTask | None = None
        if learner is not None:
            graph = build_learning(learner, replay, self.versions, self.settings, self._join_load, retention)
            self._trainer = LearningTask(graph, replay, self.meter, self._on_live_change, exists=self._exists)

    # -- life -------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read what was learned so far, mark what is tainted, load the live versions, and go on with an unfinished step."""
        for tenant, adapter in await asyncio.to_thread(self._list_scopes):
            await asyncio.to_thread(self._restore_rewards, tenant, adapter)
            scope = self._scope(tenant, adapter)
            for label in filter(None, (scope.live, scope.canary)):
                try:
                    await self._require_version(tenant, adapter, label)
                except Unavailable:
                    self._spawn(self._retry_version(tenant, adapter, label))
        self._state = "open"
        if self._trainer is not None:
            self._trainer.start()

    def _list_scopes(self) -> list[tuple[str, str]]:
        """Scopes with a folder, and `default` with records; what a service that died had begun to delete is deleted, or marked."""
        for gone in self._root.glob("*/.gone-*"):
            shutil.rmtree(gone, ignore_errors=True)
        found = {(tenant, adapter) for tenant, adapter, _ in self.replay.scopes() if adapter == DEFAULT_SCOPE}
        found |= set(list_adapters(self._root))
        for tenant in {tenant for tenant, _ in found}:
            self._taint(tenant, self.replay.tainted_versions(tenant))
        return sorted(found)

    def _restore_rewards(self, tenant: str, adapter: str) -> None:
        """The newest rewards, by version."""
        scope = self._scope(tenant, adapter)
        for row in reversed(self.replay.rows(tenant, adapter, limit=4 * self.settings.recent)):
            self._note_reward(scope, row.exchange.id, row.exchange.reply.version, row.exchange.feedback)

    async def close(self) -> None:
        """Let go of the learner, the engine and the buffer. A step that is under way is done again by the next service."""
        if self._state == "closed":
            return
        self._state = "closed"
        if self._trainer is not None:
            await self._trainer.close()
        closing = getattr(self.learner, "close", None)
        if closing is not None:
            await asyncio.to_thread(closing)
        for task in [*self._tasks, *self._loading.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._loading.values(), return_exceptions=True)
        with suppress(TimeoutError):  # its thread may be in the middle of a step, which is nobody's any more
            await asyncio.wait_for(self.engine.close(), CLOSE_TIMEOUT)
        await asyncio.to_thread(self._listeners.shutdown)
        await asyncio.to_thread(self.replay.close)

    async def __aenter__(self) -> Service:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _require_open(self) -> None:
        if self._state != "open":
            raise Unavailable(f"the service is {'shutting down' if self._state == 'closed' else 'starting'}; try again")

    # -- versions ---------------------------------------------------------------------------------------------------------

    def versions(self, tenant: str, adapter: str = DEFAULT_SCOPE) -> Adapters:
        """The versions of a tenant's adapter."""
        return self._scope(tenant, adapter).versions

    def _scope(self, tenant: str, adapter: str, new: bool = False) -> _AdapterState:
        """Raises `UnknownAdapter` for one that is not there, unless it is to be made; `default` is always made."""
        scope = self._scopes.get((tenant, adapter))
        if scope is None:
            for what, name in (("a tenant", tenant), ("an adapter", adapter)):
                if not NAME_PATTERN.fullmatch(name):
                    raise UserError(f"{what}'s name is small letters, digits, - and _, at most 63, got {name!r}")
            if not new and adapter not in self._adapter_names(tenant):  # deleted meanwhile: it does not come back
                raise UnknownAdapter(f"there is no adapter {adapter!r}; there are {', '.join(self._adapter_names(tenant))}")
            scope = _AdapterState(Adapters(self._root, tenant, adapter, self.settings.keep))
            scope.refresh()
            self._scopes[tenant, adapter] = scope
        return scope

    def _existing_scope(self, tenant: str, adapter: str) -> _AdapterState:
        """A scope that is there.

        Raises:
            UnknownAdapter: it is not; only `default` always is.
        """
        if adapter != DEFAULT_SCOPE and adapter not in self._adapter_names(tenant):
            raise UnknownAdapter(f"there is no adapter {adapter!r}; there are {', '.join(self._adapter_names(tenant))}")
        return self._scope(tenant, adapter)

    def _exists(self, tenant: str, adapter: str) -> bool:
        return (tenant, adapter) in self._scopes or adapter in self._adapter_names(tenant)

    def _adapter_names(self, tenant: str) -> list[str]:
        folder, found = self._root / tenant, {DEFAULT_SCOPE}
        if NAME_PATTERN.fullmatch(tenant) and folder.is_dir():
            found |= {path.name for path in folder.iterdir() if NAME_PATTERN.fullmatch(path.name) and path.is_dir()}
        return sorted(found)

    def version(self, tenant: str, adapter: str, id: str) -> str:
        """The label of the version that answers request `id`, which stays so if another goes live before the request comes."""
        label = self._version_for(tenant, adapter, id)
        self._pins[f"{tenant}/{id}"] = label
        if len(self._pins) > MAX_PINS:
            self._pins.popitem(last=False)
        return label

    def _version_for(self, tenant: str, adapter: str, id: str) -> str:
        scope = self._scope(tenant, adapter)
        return scope.canary if scope.canary and hash_fraction(id) < self.settings.canary else scope.live

    async def _route(self, tenant: str, adapter: str, id: str) -> tuple[str, int]:
        label = self._pins.pop(f"{tenant}/{id}", None)
        if label is None:
            label = self._version_for(tenant, adapter, id)
        if label and label not in self.engine.loaded_versions():
            label = await self._require_version(tenant, adapter, label)
        return label, steps_of(label)

    async def _require_version(self, tenant: str, adapter: str, label: str) -> str:
        """Have the engine hold a version; if it never can (damaged, of another base), go back until there is one that it can.

        Raises:
            Unavailable: it cannot just now; what is live stays so.
        """
        while label:
            try:
                await self._join_load(label)
                return label
            except UserError as error:
                if not is_permanent(error):
                    LOG.warning("%s cannot be loaded just now: %s", label, error)
                    raise Unavailable("the version that answers cannot be loaded just now; try again") from error
                scope = self._scope(tenant, adapter)
                LOG.error("%s cannot be loaded: %s", label, error)
                if label == scope.canary:
                    await asyncio.to_thread(self._drop_canary, tenant, adapter, label, str(error))
                elif label == scope.live:
                    await self._switch_back(tenant, adapter, None, f"cannot be loaded: {error}", load=False)
                label = scope.live
        return label

    async def _retry_version(self, tenant: str, adapter: str, label: str) -> None:
        """Try again until it is there, or something else answers."""
        wait = 1.0
        while (scope := self._scopes.get((tenant, adapter))) is not None and label in (scope.live, scope.canary):
            await asyncio.sleep(wait)
            try:
                await self._require_version(tenant, adapter, label)
                return
            except Unavailable:
                wait = min(2 * wait, MAX_RETRY_WAIT)

    async def _join_load(self, label: str) -> None:
        """Load a version, once however many ask for it."""
        task = self._loading.get(label)
        if task is None:
            task = asyncio.create_task(self._load(label))
            self._loading[label] = task
            task.add_done_callback(lambda done: self._loading.pop(label, None))
        await asyncio.shield(task)

    async def _load(self, label: str) -> None:
        began = self._clock()
        tenant, _, adapter = label.rpartition("@")[0].partition("/")
        versions = self.versions(tenant, adapter)
        version = await asyncio.to_thread(versions.version, label)
        if version.base != self.engine.base and self.engine.base:  # an engine elsewhere may not know
            raise AdapterError(f"{label} was learned on base model {version.base}, and this service has {self.engine.base}")
        await self.engine.load(label, await asyncio.to_thread(versions.folder, label))
        self.meter.observe("learngraph_load_seconds", self._clock() - began)

    def _on_live_change(self, tenant: str, adapter: str) -> None:
        """The live version may be another one: requests go to it, and whatever nobody will ask for is let go of."""
        scope = self._scopes.get((tenant, adapter))
        if scope is not None:  # not deleted since
            scope.refresh()
            self._spawn(self._unload_idle(scope))

    async def _unload_idle(self, scope: _AdapterState) -> None:
        needed = {scope.live, scope.canary, scope.previous_live, *self._pins.values()}
        for label in self.engine.loaded_versions():
            if label.startswith(f"{scope.versions.scope}@") and label not in needed:
                await self.engine.unload(label)
        async with scope.switch_lock:
            if self._scopes.get((scope.versions.tenant, scope.versions.adapter)) is scope:  # else it is deleted
                await self._prune(scope, needed)

    async def _prune(self, scope: _AdapterState, needed: set[str]) -> None:
        head = await asyncio.to_thread(self.replay.head, scope.versions.tenant, scope.versions.adapter)
        back = self._rollback_targets(scope)
        await asyncio.to_thread(scope.versions.prune, (head, *needed, *back, *self.engine.loaded_versions()))

    def _rollback_targets(self, scope: _AdapterState) -> list[str]:
        """Versions that falling feedback may lead back to (`windows`): the stretch on trial is at most `watch` versions that have
        rewards, and the newest before these is where it leads."""
        rewards = scope.by_version()
        line = (label for label in lineage(scope.versions, scope.live) if label in rewards)
        return list(islice(line, self.settings.watch + 1)) if self.settings.watch else []

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("%s", error, exc_info=error)

    async def _switch_back(self, tenant: str, adapter: str, to: str | None, why: str, load: bool = True) -> str:
        """CURRENT names another version, and learning goes on from it."""
        began = self._clock()
        scope = self._scope(tenant, adapter)
        if load and to:
            await self._join_load(to)
        if scope.canary:
            await asyncio.to_thread(self._drop_canary, tenant, adapter, scope.canary, f"rolled back: {why}")
        label = await asyncio.to_thread(scope.versions.roll_back, to, why)
        await asyncio.to_thread(self.replay.set_head, tenant, adapter, label)
        scope.refresh()
        self.meter.add("learngraph_rollbacks_total")
        self.meter.observe("learngraph_swap_seconds", self._clock() - began)
        if load and label and label not in self.engine.loaded_versions():
            try:
                await self._join_load(label)
            except UserError as error:  # whoever asks for it next tries again
                LOG.warning("%s cannot be loaded yet: %s", label, error)
        self._on_live_change(tenant, adapter)
        return label

    def _drop_canary(self, tenant: str, adapter: str, canary: str, why: str) -> None:
        versions = self.versions(tenant, adapter)
        self.replay.set_head(tenant, adapter, versions.current)
        versions.drop(canary, why)
        self._scope(tenant, adapter).refresh()
        self.meter.add("learngraph_dropped_total")

    # -- chats ------------------------------------------------------------------------------------------------------------

    async def models(self, tenant: str) -> list[dict[str, Any]]:
        """What a tenant can ask for: `MODEL` (the adapter `default`), and `MODEL:ADAPTER`."""
        rows = []
        for adapter in self._adapter_names(tenant):
            scope = self._scope(tenant, adapter)
            label = scope.live
            created = (await asyncio.to_thread(scope.versions.version, label)).created if label else 0
            rows.append(
                {
                    "id": self.model if adapter == DEFAULT_SCOPE else f"{self.model}:{adapter}",
                    "created": int(created),
                    "version": label,
                }
            )
        return sorted(rows, key=lambda row: row["id"] != self.model)

    async def chat(
        self,
        tenant: str,
        adapter: str,
        request: ChatRequest,
        *,
        id: str,
        family: str = "",
        scenario: str = "",
        turn: int = 0,
        store: bool = True,
    ) -> AsyncIterator[Piece | Exchange]:
        """Pieces of the reply, and last the exchange, which is on disk by then. Closing the iterator cancels the generation.

        Raises:
            UserError: as the engine; `UnknownAdapter`; `Unavailable` before `start` and after `close`.
        """
        self._require_open()
        self._existing_scope(tenant, adapter)
        began, first, ended = self._clock(), True, False
        state = {
            **{"id": id, "tenant": tenant, "adapter": adapter, "request": request, "family": family},
            **{"scenario": scenario, "turn": turn, "store": store},
        }
        self.meter.add("learngraph_requests_total")
        self._running[tenant] += 1
        try:
            async with aclosing(self._turn(state)) as stream:
                async for item in stream:
                    if first:
                        first = False
                        self.meter.observe("learngraph_ttft_seconds", self._clock() - began)
                    if isinstance(item, Exchange):
                        ended = True
                        self.meter.observe("learngraph_latency_seconds", self._clock() - began)
                        self.meter.add("learngraph_prompt_tokens_total", len(item.reply.prompt_ids))
                        self.meter.add("learngraph_reply_tokens_total", len(item.reply.token_ids))
                        if store and (tenant, adapter) not in self._scopes:  # the adapter was deleted meanwhile
                            await asyncio.to_thread(self.replay.delete, tenant, id)
                    yield item
        finally:
            self._running[tenant] -= 1
            if not ended:
                self.meter.add("learngraph_unfinished_total")

    async def _turn(self, state: dict[str, Any]) -> AsyncGenerator[Piece | Exchange, None]:
        """A run of the serving graph up to `await_feedback`: its pieces as they come, and the exchange when it is over.

        Pieces come straight from the node: by LangGraph's stream a token takes ten rounds of the event loop.
        """
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        exchanges: list[Exchange] = []

        def tell(item: Piece | Exchange) -> None:
            if isinstance(item, Exchange):
                exchanges.append(item)  # from the thread that stored it
            else:
                pieces.put_nowait(item)

        run = asyncio.create_task(self._serving.ainvoke(state, {"configurable": {STREAM_CALLBACK: tell}}))
        run.add_done_callback(lambda done: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            await run
            yield exchanges[0]
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    # -- feedback ---------------------------------------------------------------------------------------------------------

    async def feedback(self, tenant: str, response_id: str, feedback: Feedback, key: str = "") -> Receipt:
        """What a reply was worth: the last node of the serving graph, `keep`, on what `record` stored.

        Raises:
            UnknownExchange, ExpiredExchange, FeedbackConflict: as `Replay.give`.
        """
        self._require_open()
        receipt, exchange = await asyncio.get_running_loop().run_in_executor(
            self._listeners, self._store_feedback, tenant, response_id, feedback, key
        )
        if not receipt.is_repeat:
            self.meter.add("learngraph_feedbacks_total")
            scope = self._scope(tenant, exchange.adapter)
            self._note_reward(scope, exchange.id, exchange.reply.version, feedback)
            if feedback.reward is not None and not scope.has_new_rewards:  # one look at many
                scope.has_new_rewards = True
                self._spawn(self._watch(tenant, exchange.adapter))
            if self._trainer is not None:
                self._trainer.wake(tenant, exchange.adapter)
        return receipt

    def advice(self, feedback: Feedback) -> str:
        """What would teach more than this feedback does, by the loss that is set; mostly nothing."""
        settings = self.settings
        if self._trainer is None or settings.loss != "sdpo" or not settings.feedback or feedback.text.strip():
            return ""
        return (
            "a reward alone teaches little here: sdpo learns from words (or from another reply to the same prompt that did well); "
            "send a text, or start the service with --preset reinforce to learn from rewards"
        )

    def _store_feedback(self, tenant: str, id: str, feedback: Feedback, key: str) -> tuple[Receipt, Exchange]:
        """All of it in one thread: the event loop, which has the tokens of all streams to hand on, is asked for nothing."""
        row = self.replay.get(tenant, id)
        if row is None:
            self.replay.add_feedback(tenant, id, feedback, key)  # raises, in its own words
            raise AssertionError("unreachable")
        kept = self._keep(cast(ServedChat, {"tenant": tenant, "id": id, "feedback": feedback, "key": key}))
        return Receipt(kept["job"], id, kept["state"], kept["repeated"]), row.exchange

    def _note_reward(self, scope: _AdapterState, id: str, label: str, feedback: Feedback | None) -> None:
        scope.rewards.pop(id, None)
        if feedback is not None and feedback.reward is not None:
            scope.rewards[id] = (label, feedback.reward)
            while len(scope.rewards) > 8 * self.settings.recent:
                scope.rewards.popitem(last=False)

    async def _watch(self, tenant: str, adapter: str) -> None:
        """Withdraw a version that live feedback says is worse; let a canary that it does not say it of go live."""
        settings, scope = self.settings, self._scope(tenant, adapter)
        async with scope.switch_lock:
            scope.has_new_rewards = False
            if not settings.watch:
                return
            if scope.canary:
                await self._judge_canary(tenant, adapter, scope, scope.canary)
                return
            rewards = scope.by_version()
            line = ((label, rewards.get(label, [])) for label in lineage(scope.versions, scope.live))
            seen = await asyncio.to_thread(reward_windows, line, settings.watch, settings.recent)
            if seen is None:
                return
            found = reward_drop(seen.before, seen.after, settings.fall_margin, settings.watch)
            if found is not None and found.is_drop:
                why = f"live feedback fell from {found.before:.2f} to {found.after:.2f} ({len(seen.after)} rewards)"
                back = await asyncio.to_thread(scope.versions.rollback_target, seen.rollback_to)
                LOG.warning("%s/%s goes back to %s: %s", tenant, adapter, back or "base", why)
                await self._switch_back(tenant, adapter, back, why)

    async def _judge_canary(self, tenant: str, adapter: str, scope: _AdapterState, canary: str) -> None:
        settings, rewards = self.settings, scope.by_version()
        mine, live = (rewards.get(label, [])[-settings.recent :] for label in (canary, scope.live))
        found = reward_drop(live, mine, settings.fall_margin, settings.watch)
        if not await asyncio.to_thread(scope.versions.is_live_descendant, canary):
            why = "canary: it learned from an exchange that was deleted since, or comes from what is live no more"
            await asyncio.to_thread(self._drop_canary, tenant, adapter, canary, why)
        elif found is not None and found.is_drop:
            why = f"canary: {found.after:.2f} against {found.before:.2f} of the live version ({len(mine)} rewards)"
            await asyncio.to_thread(self._drop_canary, tenant, adapter, canary, why)
        elif len(mine) >= settings.watch and (found is not None or settings.canary >= 0.5):
            against = f" against {found.before:.2f} of the version before" if found else ""
            why = f"canary: mean reward {sum(mine) / len(mine):.2f}{against} ({len(mine)} rewards)"
            await asyncio.to_thread(scope.versions.promote, canary, why)
            self.meter.add("learngraph_promoted_total")
        else:
            return
        self._on_live_change(tenant, adapter)
        if self._trainer is not None:
            self._trainer.wake(tenant, adapter)

    # -- what is kept -----------------------------------------------------------------------------------------------------

    async def experiences(
        self,
        tenant: str,
        adapter: str | None = None,
        state: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[dict[str, Any]]:
        """A tenant's exchanges, newest first."""
        return [_exchange_row(row) for row in await asyncio.to_thread(self.replay.rows, tenant, adapter, state, limit, before)]

    async def exchanges(self, tenant: str, limit: int) -> list[dict[str, Any]]:
        """The newest, as `experiences` gives them."""
        return await self.experiences(tenant, limit=limit)

    async def experience(self, tenant: str, id: str) -> dict[str, Any] | None:
        """One of them with its tokens and with the versions that learned from it; None: the tenant has none of this id."""
        row = await asyncio.to_thread(self.replay.get, tenant, id)
        if row is None:
            return None
        uses, reply = await asyncio.to_thread(self.replay.uses, tenant, id), row.exchange.reply
        tokens = {"prompt_ids": reply.prompt_ids, "token_ids": reply.token_ids, "logprobs": reply.logprobs}
        return {
            **_exchange_row(row),
            "uses": [list(use) for use in uses],
            **{name: list(value) for name, value in tokens.items()},
        }

    async def forget(self, tenant: str, id: str | None) -> dict[str, Any]:
        """Delete an exchange, or all of a tenant's. The versions that learned from it are marked as tainted, not withdrawn."""
        counts = await asyncio.to_thread(self.replay.counts, tenant)
        tainted = await asyncio.to_thread(self.replay.delete, tenant, id)
        await asyncio.to_thread(self._taint, tenant, tainted)
        for (owner, _), scope in self._scopes.items():
            if owner == tenant:
                if id is None:
                    scope.rewards.clear()
                else:
                    scope.rewards.pop(id, None)
        return {"deleted": 1 if id is not None else sum(counts.values()), "tainted": list(tainted)}

    def _taint(self, tenant: str, labels: Sequence[str]) -> None:
        by_adapter: dict[str, list[str]] = {}
        for label in labels:
            by_adapter.setdefault(label.rpartition("@")[0].partition("/")[2], []).append(label)
        for adapter, mine in by_adapter.items():
            if adapter in self._adapter_names(tenant):  # else it is deleted
                self.versions(tenant, adapter).taint(mine, "learned from an exchange that was deleted")

    async def job(self, tenant: str, id: str) -> dict[str, Any] | None:
        """What became of a feedback, or of a `train`; None: the tenant has no such job."""
        if self._trainer is not None and (asked := self._trainer.job(tenant, id)) is not None:
            return asked
        row = await asyncio.to_thread(self.replay.job, tenant, id)
        if row is None:
            return None
        uses = await asyncio.to_thread(self.replay.uses, tenant, row.exchange.id)
        return {
            **{"job": id, "kind": "feedback", "state": row.state, "reason": row.reason, "response_id": row.exchange.id},
            **{"adapter": row.exchange.adapter, "versions": list(dict.fromkeys(version for _, version in uses))},
        }

    async def train(self, tenant: str, adapter: str, steps: int = 1) -> dict[str, Any]:
        """Take so many gradient steps as soon as the learner is free, from two ready exchanges on."""
        self._require_open()
        self._existing_scope(tenant, adapter)
        if self._trainer is None:
            raise Unavailable("this service answers only: it was started with --trainer off")
        return self._trainer.request_steps(tenant, adapter, steps)

    # -- adapters ---------------------------------------------------------------------------------------------------------

    async def adapters(self, tenant: str) -> list[dict[str, Any]]:
        """A tenant's adapters with their versions, newest first."""
        return [await asyncio.to_thread(self._adapter_status, tenant, adapter) for adapter in self._adapter_names(tenant)]

    def _adapter_status(self, tenant: str, adapter: str) -> dict[str, Any]:
        scope = self._scope(tenant, adapter)
        whys = {line["label"]: line["why"] for line in scope.versions.log() if line.get("why")}
        rewards = scope.by_version()
        rows = []
        for version in scope.versions.versions():
            mine = rewards.get(version.label, [])
            rows.append(
                {
                    **{
                        name: getattr(version, name)
                        for name in ("label", "name", "step", "parent", "state", "tainted", "created")
                    },
                    **{"why": whys.get(version.label, ""), "gate": version.about.get("gate", [])},
                    **{"reward": sum(mine) / len(mine) if mine else None, "feedbacks": len(mine)},
                }
            )
        return {"adapter": adapter, "live": scope.live, "canary": scope.canary, "versions": rows}

    async def create(self, tenant: str, adapter: str) -> dict[str, Any]:
        """A new adapter, which is the base model until it learns."""
        if adapter in self._adapter_names(tenant):
            raise AdapterConflict(f"there is an adapter {adapter!r} already")
        self._scope(tenant, adapter, new=True)
        return await asyncio.to_thread(self._adapter_status, tenant, adapter)

    async def promote(self, tenant: str, adapter: str, version: str) -> dict[str, Any]:
        """A version goes live though the gate has not seen it, and learning goes on from it.

        Raises:
            AdapterConflict: the gate failed it, or it learned from an exchange that was deleted.
        """
        label = self._label(tenant, adapter, version)
        began, scope = self._clock(), self._scope(tenant, adapter)
        async with scope.switch_lock:
            await self._join_load(label)
            await asyncio.to_thread(scope.versions.promote, label, "asked for")
            await asyncio.to_thread(self.replay.set_head, tenant, adapter, label)
            scope.refresh()
        self.meter.observe("learngraph_swap_seconds", self._clock() - began)
        self._on_live_change(tenant, adapter)
        return await asyncio.to_thread(self._adapter_status, tenant, adapter)

    async def roll_back(self, tenant: str, adapter: str, to: str | None = None) -> dict[str, Any]:
        """Back to a version, to the base model (empty), or to whatever was live before (None)."""
        target = self._label(tenant, adapter, to) if to else to
        async with self._existing_scope(tenant, adapter).switch_lock:
            await self._switch_back(tenant, adapter, target, "asked for")
        return await asyncio.to_thread(self._adapter_status, tenant, adapter)

    def _label(self, tenant: str, adapter: str, version: str) -> str:
        """A version's label from its label, its name, or the number it begins with."""
        versions = self._existing_scope(tenant, adapter).versions.versions()
        for one in versions:
            if version in (one.label, one.name, one.name.partition("-")[0], str(one.step)):
                return one.label
        known = ", ".join(one.name for one in versions[:5]) or "none yet"
        raise UnknownVersion(f"adapter {adapter!r} has no version {version!r}; the newest are {known}")

    async def remove(self, tenant: str, adapter: str, version: str | None = None) -> dict[str, Any]:
        """Delete a version that is neither live nor canary; without one, the whole adapter with what it learned from."""
        scope = self._existing_scope(tenant, adapter)
        if version is not None:
            async with scope.switch_lock:
                label = self._label(tenant, adapter, version)
                await asyncio.to_thread(scope.versions.delete, label)  # refused for what answers
            await self.engine.unload(label)
            return await asyncio.to_thread(self._adapter_status, tenant, adapter)
        with self._trainer.exclude(tenant, adapter) if self._trainer is not None else nullcontext(True) as free:
            if not free:
                raise Unavailable("the learner is at work on this adapter; try again in a moment")
            async with scope.switch_lock:
                if self._scopes.get((tenant, adapter)) is not scope:
                    raise UnknownAdapter(f"there is no adapter {adapter!r} any more")
                await self._remove(tenant, adapter, scope)
        for label in self.engine.loaded_versions():
            if label.startswith(f"{tenant}/{adapter}@"):
                await self.engine.unload(label)
        return {"adapter": adapter, "live": "", "canary": "", "versions": []}

    async def _remove(self, tenant: str, adapter: str, scope: _AdapterState) -> None:
        """First what was learned from, then the folder: a service that is killed in between has an adapter that knows nothing."""
        await asyncio.to_thread(scope.versions.roll_back, "", "the adapter is deleted")
        scope.refresh()
        await asyncio.to_thread(self.replay.set_head, tenant, adapter, "")
        await self._forget_all(tenant, adapter)
        await asyncio.to_thread(scope.versions.remove)
        self._scopes.pop((tenant, adapter), None)
        await self._forget_all(tenant, adapter)  # what was being answered meanwhile

    async def _forget_all(self, tenant: str, adapter: str) -> None:
        while rows := await asyncio.to_thread(self.replay.rows, tenant, adapter, None, 200):
            for row in rows:
                await asyncio.to_thread(self.replay.delete, tenant, row.exchange.id)

    async def export(self, tenant: str, adapter: str, version: str) -> Path:
        """A zip that PEFT can open, alone in a temporary folder; whoever asked removes both."""
        label = self._label(tenant, adapter, version)
        folder = Path(tempfile.mkdtemp(prefix="learngraph-"))
        try:
            path = folder / f"{label.rpartition('@')[2]}.zip"
            return await asyncio.to_thread(self.versions(tenant, adapter).export, label, path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    # -- how it goes ------------------------------------------------------------------------------------------------------

    async def status(self, tenant: str | None = None) -> dict[str, Any]:
        """How the service is; with a tenant, how its adapters are, and nothing of the other tenants."""
        learner = self._trainer.status(tenant) if self._trainer is not None else {"state": "off", "error": ""}
        mine = [label for label in self.engine.loaded_versions() if tenant is None or label.startswith(f"{tenant}/")]
        running = self._running.total() if tenant is None else self._running[tenant]
        why = learner["error"] if learner["state"] == "failed" else "" if self._state == "open" else self._state
        found = {
            **{"state": "degraded" if why else "ok", "why": why, "model": self.model, "base": self.engine.base},
            **{"learner": learner, "loaded": len(mine), "running": running},
        }
        if tenant is not None:
            names = self._adapter_names(tenant)
            found["scopes"] = [await asyncio.to_thread(self._status, tenant, adapter) for adapter in names]
        return found

    def _status(self, tenant: str, adapter: str) -> dict[str, Any]:
        scope = self._scope(tenant, adapter)
        versions = scope.versions
        states = {version.label: version.state for version in versions.versions()}
        states |= {line["label"]: line["state"] for line in versions.log() if line["label"] not in states}
        updates = []
        for update in reversed(self.replay.updates(tenant, adapter, 500)):
            updates.append({**update, "created": update["time"], "outcome": states.get(update["version"], "candidate")})
        paused = self._trainer.pause_reason(tenant, adapter) if self._trainer is not None else ""
        return {
            **{"tenant": tenant, "adapter": adapter, "live": scope.live, "canary": scope.canary, "paused": paused},
            "step": self.replay.step(tenant, adapter),
            "head": self.replay.head(tenant, adapter),
            "counts": self.replay.counts(tenant, adapter),
            "ages": {str(age): n for age, n in self.replay.ages(tenant, adapter).items()},
            "updates": updates,
        }

    async def metrics(self) -> dict[str, Any]:
        """Counters, gauges and histograms, as plain numbers."""
        counts = await asyncio.to_thread(self.replay.counts)
        self.meter.set("learngraph_running", self._running.total())
        self.meter.set("learngraph_loaded_versions", len(self.engine.loaded_versions()))
        for state in ("pending", "ready", "held", "leased", "consumed", "rejected"):
            self.meter.set("learngraph_replay_records", counts.get(state, 0), state=state)
        if self._trainer is not None:
            self.meter.set("learngraph_learner_paused", float(self._trainer.status()["state"] == "failed"))
        return self.meter.told()


def _exchange_row(row: ReplayRow) -> dict[str, Any]:
    """A record as plain data."""
    exchange, feedback = row.exchange, row.exchange.feedback
    return {
        **{"id": exchange.id, "adapter": exchange.adapter, "version": exchange.reply.version, "state": row.state},
        **{"reason": row.reason, "created": exchange.created, "messages": list(exchange.request.messages)},
        **{"raw": exchange.request.raw, "reply": exchange.reply.text, "tool_calls": list(exchange.reply.tool_calls)},
        **{"finish": exchange.reply.finish, "feedback": asdict(feedback) if feedback is not None else None},
        **{"family": exchange.family, "scenario": exchange.scenario, "turn": exchange.turn, "step": exchange.step},
        **{"age": row.age, "times": row.sample_count, "job": row.job, "kl": row.kl},
    }
