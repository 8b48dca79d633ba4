"""CLaaS as a service: chats and feedback of many tenants on one base model, and a learner that works in between.

`Service` runs the two graphs of graphs/claas.py. A chat is a run of the serving graph without a checkpointer: its record in the
replay buffer is on disk before the last token is sent, so there is no paused run to resume when feedback comes. Feedback runs
the graph's last node, `keep`, alone in a thread of its own: 0.6 ms of CPU, against 4.8 ms with a checkpointer's pause and
LangGraph's engine. Learning is a background task (graphs/serving/learning_task.py) that runs the learning graph, one step at a
time for all tenants together. Which version answers a request is decided in graphs/serving/versions.py.

This file knows no web server and no model: graphs/cli/serve.py joins it to `tools/serving/chat_server.py` and to an engine.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from ...memory.claas.adapters import Adapters
from ...memory.claas.replay import Replay
from ...memory.errors import ReplayError, UnknownExchange, UserError
from ...memory.records import ChatCall, Exchange, Feedback, FeedbackReceipt, Piece
from ...memory.telemetry import span
from ...nodes.learn.chat_turn import DEFAULT_SCOPE, STREAM_CALLBACK, Engine, KeepFeedback
from ...nodes.learn.gradient_step import AdapterLearner
from ..claas import CLaaS, build_learning, build_serving
from .administration import HELD_OUT, Administration, shown_state
from .feedback import FeedbackWatch
from .learning_task import LearningTask
from .metrics import ServiceMetrics
from .versions import DELETED, LiveVersions, ServedAdapter, gradient_steps_of

__all__ = ["Service"]

LOG = logging.getLogger("learngraph.service")
CLOSE_TIMEOUT = 1.0
"""Seconds that the engine may take to end when the service closes."""
MAX_UNRECORDED = 10_000
"""Newest replies without a record of which the service knows why they take no feedback."""
BUFFER_LOST = (
    "the replay buffer knows nothing of its versions: what was said so far is gone, and learning goes on from the live version"
)
LOG_LOST = (
    "its states.jsonl is gone: the base model answers; GET /v1/adapters lists its versions, and POST /v1/adapters/NAME/promote brings "
    "one back"
)
LINE_LOST = "the last line of its states.jsonl was garbage and was taken out: what the line before it says answers; GET /v1/adapters lists its versions"
FOLDER_LOST = (
    "its folder of versions is gone: the base model answers, and what is learned from now on starts there, unless you stop the service "
    "and put the folder back from a copy"
)
WEIGHTS_LOST = (
    "the files of the version that answered are gone or damaged, the log says which: the newest one before it that is whole answers, "
    "or the base model"
)
FEEDBACK_THREADS = 4
"""Threads for feedback. Those that write at the same time share one wait for the disk (memory/claas/replay_file.py)."""


class Service(Administration):
    """A model that many tenants chat with, and that learns for each of them separately.

    Args:
        engine: answers.
        learner: takes the gradient steps; None: nothing learns.
        replay: the buffer of all tenants.
        root: folder of versions, `<root>/<tenant>/<adapter>/`.
        settings: CLaaS's settings.
        model: the model's public name.
        retention: chats whose replies must stay as likely as under the base model.
        must_store: a chat whose exchange cannot be stored is not answered.
        rest: seconds that the learner rests after each second of a step, while replies are under way: at most 10 at a time.

    `async with service:` starts the learner, and at the end closes everything, the engine and the buffer too.
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
        must_store: bool = True,
        rest: float = 0.0,
    ) -> None:
        if learner is not None and learner.base != engine.base:
            raise UserError(f"service: the engine answers with base model {engine.base}, the learner learns on {learner.base}")
        settings = settings or CLaaS()
        self.learner = learner
        self.window = engine.window
        self.features = engine.features
        metrics = ServiceMetrics()
        live = LiveVersions(engine, replay, root, settings, metrics)
        learning: LearningTask | None = None
        if learner is not None:
            graph = build_learning(learner, replay, self.versions, settings, live.load, retention)
            learning = LearningTask(graph, replay, metrics, live, rest=rest, quiet_seconds=self._quiet_seconds)
        super().__init__(model, engine, replay, live, learning, metrics, settings)
        self._must_store = must_store
        self._last_reply = -math.inf
        self._watch = FeedbackWatch(live, replay, settings.rollout, metrics, self._wake_learning)
        self._serving = build_serving(engine, replay, live.route, must_store, interrupt_after=["record"])
        self._unrecorded: deque[str] = deque(maxlen=MAX_UNRECORDED)
        self._keep = KeepFeedback(replay)
        # A pool of its own, so that feedback does not queue behind chats that are being stored.
        self._feedback_threads = ThreadPoolExecutor(FEEDBACK_THREADS, "feedback")

    # -- start and end ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read what was learned so far, mark tainted versions, load the live ones, and go on with an unfinished step.

        An adapter whose files are gone or damaged does not keep the others from starting: requests for it report the damage.
        """
        for tenant, adapter in await asyncio.to_thread(self._live.list_adapters):
            try:
                served = await asyncio.to_thread(self._live.adapter, tenant, adapter, True)
                await asyncio.to_thread(self._note_losses, served)
                await asyncio.to_thread(served.versions.taint, self.replay.tainted_versions(tenant), DELETED)
                await asyncio.to_thread(self._watch.restore_rewards, served)
                live = served.live
                await self._live.load_live(served)
                if served.live != live:
                    self._lost[served.scope] = WEIGHTS_LOST
            except Exception as error:
                LOG.error("%s/%s cannot be opened, the other adapters can: %s", tenant, adapter, error, exc_info=error)
        self._state = "open"
        if self._learning is not None:
            self._learning.start()

    def _note_losses(self, served: ServedAdapter) -> None:
        """Say which of an adapter's files are gone, and learn on from what is left."""
        if served.versions.has_lost_log:
            self._lost[served.scope] = LOG_LOST
        elif served.versions.has_lost_line:
            self._lost[served.scope] = LINE_LOST
        elif served.live and not self.replay.step(*served.scope):
            self.replay.adopt(*served.scope, served.live, gradient_steps_of(served.live))
            self._lost[served.scope] = BUFFER_LOST
        elif self.replay.head(*served.scope) and not served.versions.log():
            self._lost[served.scope] = FOLDER_LOST
        if served.scope in self._lost:
            LOG.warning("%s/%s: %s", *served.scope, self._lost[served.scope])

    async def close(self) -> None:
        """Close the learner, the engine and the buffer. The next service repeats a step that is under way."""
        if self._state == "closed":
            return
        self._state = "closed"
        if self._learning is not None:
            await self._learning.close()
        close_learner = getattr(self.learner, "close", None)
        if close_learner is not None:
            await asyncio.to_thread(close_learner)
        await self._live.close()
        with suppress(TimeoutError):  # its thread may be in the middle of a step, whose result is not needed any more
            await asyncio.wait_for(self.engine.close(), CLOSE_TIMEOUT)
        await asyncio.to_thread(self._feedback_threads.shutdown)
        await asyncio.to_thread(self.replay.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # -- chats ------------------------------------------------------------------------------------------------------------

    def versions(self, tenant: str, adapter: str = DEFAULT_SCOPE) -> Adapters:
        """The versions of a tenant's adapter.

        Raises:
            UnknownAdapter: the tenant has no such adapter.
        """
        return self._live.adapter(tenant, adapter).versions

    async def models(self, tenant: str) -> list[dict[str, Any]]:
        """The models that a tenant can name: `MODEL` (the adapter `default`), and `MODEL:ADAPTER`."""
        rows = []
        for adapter in self._live.names(tenant):
            served = self._live.adapter(tenant, adapter)
            label = served.live
            created = (await asyncio.to_thread(served.versions.version, label)).created if label else 0
            name = self.model if adapter == DEFAULT_SCOPE else f"{self.model}:{adapter}"
            rows.append({"id": name, "created": int(created), "version": label})
        return sorted(rows, key=lambda row: row["id"] != self.model)

    def version(self, tenant: str, adapter: str, id: str, wanted: str = "") -> str:
        """The label of the version that will answer request `id`; empty: the base model.

        Args:
            wanted: a version's name, label or number of steps, or `base`; empty: the one that is live.

        Raises:
            UnknownAdapter, UnknownVersion: there is none.
        """
        return self._live.pin(tenant, adapter, id, wanted)

    async def chat(self, call: ChatCall) -> AsyncIterator[Piece | Exchange]:
        """Pieces of the reply, and last the exchange, which is on disk by then. Closing the iterator cancels the generation.

        Raises:
            UserError: the engine's; `UnknownAdapter`; `Unavailable` before `start` and after `close`.
        """
        self._require_open()
        served = self._live.adapter(call.tenant, call.adapter)
        began, is_first, is_finished = time.perf_counter(), True, False
        self._metrics.requests.inc()
        self._running[call.tenant] += 1
        try:
            async with aclosing(self._run_serving(call)) as stream:
                async for item in stream:
                    if is_first:
                        is_first = False
                        self._metrics.ttft_seconds.observe(time.perf_counter() - began)
                    if isinstance(item, Exchange):
                        is_finished = True
                        self._metrics.latency_seconds.observe(time.perf_counter() - began)
                        asked, said = item.reply.lengths
                        self._metrics.prompt_tokens.inc(asked)
                        self._metrics.reply_tokens.inc(said)
                        if call.store and not self._live.has(served):  # the adapter was deleted meanwhile
                            await asyncio.to_thread(self.replay.delete, call.tenant, call.id)
                    yield item
        finally:
            self._running[call.tenant] -= 1
            self._last_reply = time.monotonic()
            if not is_finished:
                self._metrics.unfinished.inc()

    async def _run_serving(self, call: ChatCall) -> AsyncGenerator[Piece | Exchange, None]:
        """A run of the serving graph up to `await_feedback`: its pieces as they come, and at last the exchange.

        The node hands its pieces over directly: by LangGraph's stream a token takes ten rounds of the event loop.
        """
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        exchanges: list[Exchange] = []

        def receive(item: Piece | Exchange) -> None:
            if isinstance(item, Exchange):
                exchanges.append(item)  # from the thread that stored it
            else:
                pieces.put_nowait(item)

        state = {each.name: getattr(call, each.name) for each in fields(call)}
        # For an engine that is an agent:
        whose = {"thread_id": call.id, "tenant": call.tenant, "adapter": call.adapter, "user": call.user or None}
        run = asyncio.create_task(self._serving.ainvoke(state, {"configurable": {STREAM_CALLBACK: receive, **whose}}))
        run.add_done_callback(lambda done: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            with self._noting_failures(call.store):
                is_kept = (await run)["state"] != "not kept"
            if call.store and not is_kept:
                self._storage_failed = True
                self._unrecorded.append(f"{call.tenant}/{call.id}")
                self._metrics.unrecorded.inc()
            yield exchanges[0]
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    @contextmanager
    def _noting_failures(self, is_stored: bool = True) -> Iterator[None]:
        """Note whether what is said can be stored; `is_stored`: something was to be."""
        try:
            yield
            self._storage_failed &= not is_stored
        except ReplayError:
            self._storage_failed = True
            raise

    def _quiet_seconds(self) -> float:
        """Seconds since the last reply ended; 0 while one is under way."""
        return 0.0 if self._running.total() else time.monotonic() - self._last_reply

    # -- feedback ---------------------------------------------------------------------------------------------------------

    async def feedback(self, tenant: str, response_id: str, feedback: Feedback, key: str = "") -> FeedbackReceipt:
        """Store feedback on a reply: run the last node of the serving graph, `keep`, on what `record` stored.

        Raises:
            UnknownExchange, ExpiredExchange, FeedbackConflict: as `Replay.add_feedback`.
        """
        self._require_open()
        with span("upsert_memory", {"gen_ai.response.id": response_id, "gen_ai.request.model": self.model}) as traced:
            receipt, exchange = await asyncio.get_running_loop().run_in_executor(
                self._feedback_threads, self._store_feedback, tenant, response_id, feedback, key
            )
            if not receipt.is_repeat:
                traced.add_evaluation(feedback.source, feedback.reward, feedback.text)
                self._metrics.feedbacks.inc()
                self._watch.note_feedback(exchange, feedback)
                self._wake_learning(tenant, exchange.adapter)
        return receipt

    def _wake_learning(self, tenant: str, adapter: str) -> None:
        if self._learning is not None:
            self._learning.wake(tenant, adapter)

    def _store_feedback(self, tenant: str, id: str, feedback: Feedback, key: str) -> tuple[FeedbackReceipt, Exchange]:
        """All in one thread, so that the event loop, which passes on the tokens of all streams, has no part in it."""
        row = self.replay.get(tenant, id)
        if row is None and f"{tenant}/{id}" in self._unrecorded:
            raise UnknownExchange(
                f"{id!r} was answered without a record, since the service could not store one (a full disk, perhaps): it takes no feedback"
            )
        if row is None:
            self.replay.add_feedback(tenant, id, feedback, key)  # raises, in its own words
            raise AssertionError("unreachable")
        with self._noting_failures():
            kept = self._keep({"tenant": tenant, "id": id, "feedback": feedback, "key": key})
        return FeedbackReceipt(kept["job"], id, shown_state(kept["state"]), kept["repeated"]), row.exchange

    def advice(self, feedback: Feedback, state: str = "ready") -> str:
        """A sentence on what becomes of feedback in this state, or a hint at what would teach more; mostly empty."""
        settings = self.settings
        if state == "held_out":
            return HELD_OUT
        if self._learning is not None and feedback.is_mixed and settings.loss.uses_words and settings.loss.teacher.reads_text:
            return (
                "a reward above 0 with words: the words are learned from, and if the model reads them as a correction, they contradict "
                "the reward, which then does not count"
            )
        if (
            self._learning is None
            or settings.loss.kind != "sdpo"
            or not settings.loss.teacher.reads_text
            or feedback.text.strip()
        ):
            return ""
        return (
            "a reward alone teaches little here: sdpo learns from words (or from another reply to the same prompt that did well); "
            "send a text, or start the service with --loss.kind mixed to learn from both"
        )
