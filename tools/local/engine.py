"""An engine that serves a local model to many clients at once, with adapter versions that change while it answers.

    engine = LocalEngine(model, rank=16)
    await engine.load("acme/default@000017-3f9c2ab1d4e0", folder)
    async for part in engine.stream(request, "acme/default@000017-3f9c2ab1d4e0"):
        ...                                      # Piece, Piece, ..., and at last the Reply

One thread owns the network. Each pass gives every running reply one more token and reads a bounded number of tokens of new
prompts, so that no reply waits for the end of another one. Pieces are queued for each client's event loop: a slow client delays
no other client, and a client that hangs up frees its place before the next pass.

Tenants take turns, so that none waits for the end of another one's replies. The next free place goes to the tenant that has
fewest, and one that has none gets a place at once. While several tenants have replies running, a pass has few tokens of each (see
`SHARED_ROWS`), since everybody in a pass waits for all of it. Tenants share no keys and values of prompts, the base model's
neither.

One adapter version makes a reply from the first token to the last, and the reply names it. Versions are read, checked and
prepared outside the network's thread; a swap is then a new entry in a table between two passes. The versions used last stay in
memory, others are loaded again from their folders when a request needs them. Versions never share keys and values of prompts.

The same request, seed and version give the same tokens, whatever else runs (see `MIN_ROWS` in passes.py).

Why this is written here, beside the engine for vLLM (tools/serving/vllm_engine.py): it runs without a GPU and without another
server, and it changes versions without a pause. A new adapter of 3.6 MB stops the network's thread for 0.03 ms at most, and no
request failed (tests/performance/bench_swap.py); none of 812 failed while versions went live under 200 streams
(tests/performance/bench_serving.py).

Nor does transformers' own continuous batching (5.23) take its place: it makes .39 to .72 of this engine's tokens per CPU second where
two tenants of guard or pocket have an adapter each, .65 to .98 without adapters; a single reply of a Llama of 97 M costs the same. It has
no adapters of requests, one seed for all, and shares prefixes among all (tests/performance/README.md).
"""

import asyncio
import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...memory.errors import AdapterError, EngineFailed, Unavailable, UserError, VersionNotLoaded
from ...memory.records import ChatRequest, Piece, Reply
from .adapters import Adapter, AdapterSwitch, read_adapter
from .fingerprint import fingerprint
from .model import LocalChatModel
from .passes import PackedNetwork, PrefixCache, SequenceInput
from .prompts import PromptTokenizer
from .replies import read_calls
from .runs import (
    PENALTIES,
    EngineCounts,
    LoadedVersion,
    ReplyRun,
    adjust_logprobs,
    cache_of,
    check_request,
    hand_over,
    in_turns,
    make_run,
)
from .sampling import SampledToken, sample_tokens

__all__ = ["LocalEngine"]

log = logging.getLogger(__name__)
T = TypeVar("T")

PIECE_SECONDS = 0.02
"""Shortest time between two pieces of a reply. Each costs the event loop and the client about as much as the network takes for a token
of a small model; nobody reads faster than this."""
SHARED_ROWS = 4
"""Running replies of one tenant that get a token in a pass while other tenants have replies running, too; more if all of them have
more. A pass of 64 replies takes five times as long as one of a single reply, and a tenant's only reply would wait for it."""
SHARED_PREFILL = 32
"""Tokens of one tenant's prompts that a pass reads, on average, while other tenants have replies running."""
MAX_FAILURES = 3
"""Errors of the network's thread, without a finished reply between them, after which the engine gives up."""
AWAY = "the model does not answer just now; try again"
"""Message for clients when the engine is closed or has failed."""


def _require_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise UserError(f"{name} must be 1 or more, got {value}")


def _tokens_within(reply_gib: float, model: LocalChatModel) -> int:
    """Tokens whose keys and values fit into this memory; at least one window of them."""
    tokens = int(reply_gib * 2**30 / model.bytes_per_token)
    if tokens < model.window:
        need = model.window * model.bytes_per_token / 2**30
        raise UserError(
            f"reply_gib {reply_gib:g} is too little for one window of {model.window} tokens, which takes {need:.2f}"
        )
    return tokens


class LocalEngine:
    """A model in this process as an `Engine` (nodes/learn/chat_turn.py).

    Args:
        model: a loaded model. From now on its network belongs to the engine's thread: give other work to `run`.
        rank: highest rank of adapters.
        targets: the layers that adapters may change: `all-linear`, or names joined by commas.
        max_loras: versions in memory at once; others are loaded again from their folders when needed.
        max_batch_size: running replies that get their next token in one pass.
        max_prefill_tokens: about how many tokens of prompts one pass reads; running replies wait that long for their next
            token.
        max_streams: replies being made at once; others wait, in the order in which they came and tenants in turn. A tenant that
            has none does not wait.
        reply_gib: memory for the keys and values of replies under way. A request is admitted when there is room for its prompt and its
            longest reply; a tenant with replies under way leaves the room of one window to others.
        cache_megabytes: memory for the keys and values of prompts, for later prompts that begin alike.
        on_failure: called when the network's thread has ended by an error that it could not leave behind (see `_work`).

    Raises:
        UserError: a number that is below 1, or layers that the model does not have.
    """

    def __init__(
        self,
        model: LocalChatModel,
        rank: int = 32,
        targets: str = "all-linear",
        max_loras: int = 8,
        max_batch_size: int = 64,
        max_prefill_tokens: int = 256,
        max_streams: int = 256,
        reply_gib: float = 4.0,
        cache_megabytes: float = 256,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        _require_positive(
            max_loras=max_loras, max_batch_size=max_batch_size, max_prefill_tokens=max_prefill_tokens, max_streams=max_streams
        )
        self.model = model
        self.base = fingerprint(model)
        """Fingerprint of the base model; adapters of another one are refused."""
        self.window = model.window
        self.counts = EngineCounts()
        model.clear_cache()
        self._switch = AdapterSwitch(model.network, rank, targets)
        self._passes = PackedNetwork(model, self._switch)
        self._prefixes = PrefixCache(cache_megabytes)
        self._max_loras = max_loras
        self._max_batch_size = max_batch_size
        self._max_prefill_tokens = max_prefill_tokens
        self._max_streams = max_streams
        self._max_tokens = _tokens_within(reply_gib, model)
        self._frame = model.template.chat_frame()
        self._grammars = model.grammar_factory
        calls, forms = model.template.writes_calls, self._grammars is not None
        able = {"tools": calls, "response_format": forms, "tool_choice": calls and forms}
        self.features = frozenset(("raw", "logit_bias", *PENALTIES, *(name for name in able if able[name])))  # beyond the core
        self._base = LoadedVersion("", None)
        self._versions: dict[str, LoadedVersion] = {}
        self._versions_lock = threading.Lock()  # guards who uses which version, and which are in memory
        self._owners = itertools.count(1)
        self._readers = ThreadPoolExecutor(1, "adapters")
        self._prompts = PromptTokenizer(model)
        self._wake = threading.Condition()
        self._inbox: deque[ReplyRun] = deque()
        self._unloaded_adapters: deque[Adapter | None] = deque()
        self._swaps: deque[tuple[LoadedVersion, Adapter, Future[None]]] = deque()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closing = False
        self._on_failure = on_failure
        self._live: set[ReplyRun] = set()
        """Submitted replies that have not ended, in whichever queue they are, or between two."""
        self._waiting: deque[ReplyRun] = deque()  # from here on: used by the network's thread only
        self._prefilling: deque[ReplyRun] = deque()
        self._generating: deque[ReplyRun] = deque()  # those whose last token is longest ago first
        self._prefill_debts: Counter[str] = Counter()  # tenant -> tokens of prompts that it read before its turn
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[ReplyRun, Any]]] = {}
        self._thread = threading.Thread(target=self._work, name="network", daemon=True)
        self._thread.start()

    # Requests

    async def stream(self, request: ChatRequest, version: str = "", tenant: str = "") -> AsyncIterator[Piece | Reply]:
        """The pieces of a reply, and last the whole reply. Closing the iterator ends the generation.

        Args:
            version: label of a version that was loaded; empty: the base model.
            tenant: whose request it is. Tenants take turns, and share no cached prompts.

        Raises:
            WindowError: the prompt leaves no room in the model's window.
            VersionNotLoaded: the version was not loaded.
            AdapterError: the version had to be loaded again, and its folder has changed or is missing.
            UserError: the request needs a feature that this engine lacks, or its messages cannot be rendered.
            Unavailable: the engine is closed.
        """
        check_request(request, self.features, len(self.model.tokenizer))
        if self._closing:
            raise Unavailable("the engine is closed", AWAY)
        held, run = self._acquire_version(version), None
        try:
            async with self._prompts.tokenize(request, tenant) as prompt:
                run = make_run(self.model, request, tenant=tenant, prompt=prompt, version=held, frame=self._frame)
                if self._grammars is not None and (request.response_format or request.tool_choice):
                    run.grammar = await asyncio.to_thread(self._grammars.make, request)
                await self._ensure_in_memory(held)
                self._submit(run)
                while True:
                    item = await run.channel.get()
                    if isinstance(item, BaseException):
                        raise item
                    yield item
                    if isinstance(item, Reply):
                        return
        finally:
            if run is None:
                self._release_version(held)
            else:
                self._cancel_run(run)

    def _cancel_run(self, run: ReplyRun) -> None:
        """Give up a reply whose client is gone."""
        run.cancelled = True
        if not run.submitted:
            self._release_run(run)
        elif not run.is_over:
            with self._wake:
                self._wake.notify()

    def _submit(self, run: ReplyRun) -> None:
        with self._wake:
            if self._closing:
                raise Unavailable("the engine is closed", AWAY)
            run.submitted = True
            self._live.add(run)
            self._inbox.append(run)
            self._wake.notify()

    async def vitals(self) -> dict[str, float]:
        """Numbers of the network's thread, from itself: `waiting` and `running` replies, `tokens` made since the start, `memory`, the share
        of `reply_gib` that replies under way may come to use.

        Raises:
            Unavailable: the thread has ended. While it is busy, the answer waits for the end of a pass.
        """
        return await self.run(self._read_vitals)

    def _read_vitals(self) -> dict[str, float]:
        running = (*self._prefilling, *self._generating)
        reserved = sum(run.most_tokens for run in running)
        found = {"waiting": len(self._waiting), "running": len(running), "tokens": self.counts.generated_tokens}
        return found | {"memory": reserved / self._max_tokens}

    # Versions

    def loaded_versions(self) -> tuple[str, ...]:
        """The labels that requests may name, in memory or not."""
        with self._versions_lock:
            return tuple(label for label, version in self._versions.items() if version.drained is None)

    async def load(self, version: str, folder: Path | str) -> None:
        """Make a version ready. The same label and folder again does nothing. Running requests keep the version they began
        with. A version that is being unloaded is loaded again afterwards.

        Raises:
            AdapterError: missing or corrupt files, another base, or a rank, layers, shapes or numbers that do not fit.
            UserError: the label is empty, or has another folder.
        """
        folder = Path(folder)
        if not version:
            raise UserError("an adapter version needs a label; the empty one is the base model's")
        while (leaving := self._versions.get(version)) is not None and leaving.drained is not None:
            await self.unload(version)
        with self._versions_lock:
            found = self._versions.get(version)
            if found is not None and found.folder != folder:
                raise UserError(
                    f"version {version} was loaded from another folder; versions do not change, give it a new label"
                )
            if found is None:
                found = self._versions[version] = LoadedVersion(version, folder)
            found.users += 1
            found.last_used = time.monotonic()
        try:
            await self._ensure_in_memory(found)
        except BaseException as error:
            with self._versions_lock:
                if not found.owner and (found.users == 1 or isinstance(error, AdapterError)):
                    self._versions.pop(version, None)  # it was never loaded
            raise
        finally:
            self._release_version(found)

    async def unload(self, version: str) -> None:
        """Drop a version when the requests on it have ended. New requests are refused at once; unknown labels are ignored."""
        with self._versions_lock:
            found = self._versions.get(version)
            if found is None:
                return
            if found.drained is None:
                found.drained = Future()
            drained = found.drained
            if not found.users:
                self._forget_version(found)
        await asyncio.shield(asyncio.wrap_future(drained))

    def _forget_version(self, version: LoadedVersion) -> None:
        """Drop a version; the caller holds the lock. Its cached prefixes have no owner any more and will be evicted."""
        self._versions.pop(version.label, None)
        version.adapter = None
        if version.drained is not None and not version.drained.done():
            version.drained.set_result(None)

    def _acquire_version(self, label: str) -> LoadedVersion:
        with self._versions_lock:
            version = self._versions.get(label) if label else self._base
            if version is None or version.drained is not None:
                known = [label for label, found in self._versions.items() if found.drained is None]
                raise VersionNotLoaded(f"adapter version {label!r} is not loaded; loaded are {known or 'none'}")
            version.users += 1
            version.last_used = time.monotonic()
            return version

    def _release_run(self, run: ReplyRun) -> None:
        """Release a run's version, once."""
        if not run.is_over:
            run.is_over = True
            self._live.discard(run)
            self._release_version(run.version)

    def _release_version(self, version: LoadedVersion) -> None:
        with self._versions_lock:
            version.users -= 1
            if not version.users and version.drained is not None:
                self._forget_version(version)
        if self._swaps:
            with self._wake:
                self._wake.notify()

    async def _ensure_in_memory(self, version: LoadedVersion) -> None:
        """Load a version into memory if it is not there. It stays there while it has users."""
        if version is self._base:
            return
        with self._versions_lock:
            if version.adapter is not None:
                return
            if version.loading is None or version.loading.done():
                if self._closing:
                    raise Unavailable("the engine is closed", AWAY)
                version.loading = Future()
                self._readers.submit(self._read_version, version, version.loading)
            loading = version.loading
        await asyncio.shield(asyncio.wrap_future(loading))

    def _read_version(self, version: LoadedVersion, done: Future[None]) -> None:
        """Read and check a version, on the readers' thread."""
        try:
            self._unloaded_adapters.clear()
            assert version.folder is not None  # only the base model has none
            adapter = read_adapter(version.folder, self._switch, self.base)
        except BaseException as error:
            done.set_exception(error)
            return
        with self._wake:
            if not self._closing:
                self._swaps.append((version, adapter, done))
                self._wake.notify()
                return
        done.set_exception(Unavailable("the engine is closed", AWAY))

    def _apply_swaps(self) -> None:
        """Put versions that were read in place, on the network's thread between two passes, and evict those used longest
        ago."""
        for _ in range(len(self._swaps)):
            version, adapter, done = self._swaps[0]
            with self._versions_lock:
                here = [other for other in self._versions.values() if other.adapter is not None]
                if len(here) >= self._max_loras:
                    idle = [other for other in here if not other.users]
                    if not idle:
                        self._swaps.rotate(-1)  # wait until a reply has ended
                        continue
                    out = min(idle, key=lambda other: other.last_used)
                    self._unloaded_adapters.append(out.adapter)  # the readers' thread frees the memory, which takes time too
                    out.adapter = None
                version.adapter, version.owner = adapter, next(self._owners)
            self._swaps.popleft()
            self.counts.swaps += 1
            done.set_result(None)

    # Other work, and the end

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the network's thread, between two passes. Replies get at least one pass between two such calls."""
        done: Future[T] = Future()
        with self._wake:
            if self._closing:
                raise Unavailable("the engine is closed", AWAY)
            self._jobs.append((done, work))
            self._wake.notify()
        return await asyncio.wrap_future(done)

    async def close(self) -> None:
        """End all replies (their clients get `Unavailable`) and the threads. May be called again."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._prompts.close)

    # The network's thread

    def _work(self) -> None:
        """Make passes until the engine is closed.

        What fails at one reply ends that reply (`_fail_alone`), what fails at a pass ends its replies (`_run_parts`). An error anywhere
        else ends the requests under way, and work begins anew with the next. `MAX_FAILURES` such errors without a finished reply
        between them, or an error while requests are ended, end the engine.
        """
        failures, finished = 0, 0
        try:
            while True:
                try:
                    if self._run_round():
                        continue
                    break
                except Exception as error:
                    log.exception("the network's thread has failed; it begins anew with the next requests")
                    failures = 1 if self.counts.finished > finished else failures + 1
                    finished = self.counts.finished
                    if failures == MAX_FAILURES:
                        raise
                    self._fail_all(Unavailable(f"the engine has failed, and has started again: {error!r}", AWAY))
            self._fail_all(Unavailable("the engine was closed", AWAY))
        except BaseException as error:
            log.exception("the network's thread has died")
            with self._wake:
                self._closing = True
            with suppress(Exception):
                self._fail_all(Unavailable(f"the engine has failed: {error!r}", AWAY))
            self._on_failure()

    def _run_round(self) -> bool:
        """Wait for work, and do what there is: swaps, one job, one pass. False: the engine is being closed."""
        with self._wake:
            while not self._has_work():
                self._wake.wait()
            if self._closing:
                return False
            self._waiting.extend(self._inbox)
            self._inbox.clear()
        if self._swaps:
            self._apply_swaps()
        self._clear()
        if self._jobs:
            self._run_job(*self._jobs.popleft())
        self._admit()
        self._run_pass()
        self._deliver()
        return True

    def _has_work(self) -> bool:
        if self._closing or self._inbox or self._jobs or self._waiting or self._prefilling or self._generating:
            return True
        return bool(self._swaps) and self._has_free_slot()

    def _has_free_slot(self) -> bool:
        with self._versions_lock:
            here = [version for version in self._versions.values() if version.adapter is not None]
            return len(here) < self._max_loras or any(not version.users for version in here)

    def _run_job(self, done: Future[Any], work: Callable[[], Any]) -> None:
        if not done.set_running_or_notify_cancel():
            return
        network = self.model.network
        try:
            result = work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)
        finally:
            network.eval()

    def _clear(self) -> None:
        """Remove the runs whose clients hung up."""
        for queue in (self._waiting, self._prefilling, self._generating):
            if any(run.cancelled for run in queue):
                left = [run for run in queue if run.cancelled]
                kept = [run for run in queue if not run.cancelled]
                queue.clear()
                queue.extend(kept)
                for run in left:
                    self.counts.cancelled += 1
                    self._release_run(run)

    def _admit(self) -> None:
        """Give free places to waiting requests: first to those of the tenants that have fewest places."""
        if not self._waiting:
            return
        running = (*self._prefilling, *self._generating)
        free, tokens = self._max_streams - len(running), self._max_tokens - sum(run.most_tokens for run in running)
        admitted: list[ReplyRun] = []
        for places, run in in_turns(self._waiting, Counter(run.tenant for run in running)):
            kept = min(self.window, self._max_tokens - self.window) if places else 0  # for tenants that have no reply under way
            if (len(admitted) >= free and places) or run.most_tokens > tokens - kept:
                break
            tokens -= run.most_tokens
            admitted.append(run)
        for run in admitted:
            self._waiting.remove(run)
            self.counts.prompt_tokens += len(run.prompt)
            self._prefilling.append(run)

    def _run_pass(self) -> None:
        """One pass: the prompts of new requests, and the next token of running ones; in their order, tenants in turn."""
        is_shared = len({run.tenant for run in (*self._prefilling, *self._generating)}) > 1
        reading = self._choose_prefill(is_shared)
        generating = self._choose_generating(is_shared)
        runs = [*(run for run, _ in reading), *generating]
        if not runs:
            return
        parts = [SequenceInput(cache_of(run), new, run.version.adapter) for run, new in reading]
        parts += [SequenceInput(cache_of(run), [run.tokens[-1].id], run.version.adapter) for run in generating]
        self._run_parts(runs, parts, len(reading))

    def _choose_prefill(self, is_shared: bool) -> list[tuple[ReplyRun, Sequence[int]]]:
        """The requests whose prompts the next pass reads, and the tokens of them that it reads.

        Args:
            is_shared: more than one tenant has replies running.
        """
        debts = self._prefill_debts
        for tenant in list(debts):
            debts[tenant] -= SHARED_PREFILL if is_shared else debts[tenant]
            if debts[tenant] <= 0:
                del debts[tenant]
        found: list[tuple[ReplyRun, Sequence[int]]] = []
        tokens = 0
        for _, run in in_turns(self._prefilling):
            if debts[run.tenant] >= SHARED_PREFILL:
                continue
            if run.kv_cache is None:  # only now: an earlier prompt may begin alike
                run.kv_cache = self._prefixes.take((run.tenant, run.version.owner), run.prompt)
                run.cached = run.kv_cache.size
            # Always whole chunks, so that how a prompt is cut does not depend on other prompts.
            new = run.prompt[run.kv_cache.size : run.kv_cache.size + self._max_prefill_tokens]
            if found and tokens + len(new) > self._max_prefill_tokens:
                break
            tokens += len(new)
            if is_shared:
                debts[run.tenant] += len(new)
            found.append((run, new))
        self.counts.prefilled_tokens += tokens
        return found

    def _choose_generating(self, is_shared: bool) -> list[ReplyRun]:
        """The running replies that get their next token in the next pass. They leave the queue."""
        if not is_shared:
            return [self._generating.popleft() for _ in range(min(self._max_batch_size, len(self._generating)))]
        rows = max(SHARED_ROWS, min(Counter(run.tenant for run in self._generating).values(), default=0))
        chosen = [run for turn, run in in_turns(self._generating) if turn < rows][: self._max_batch_size]
        left = [run for run in self._generating if run not in chosen]
        self._generating.clear()
        self._generating.extend(left)
        return chosen

    def _run_parts(self, runs: list[ReplyRun], parts: list[SequenceInput], reading: int) -> None:
        """Run a pass. The first `reading` runs read prompts."""
        try:
            logps = self._passes(parts)
        except Exception as error:  # for example out of memory: these runs fail, the others go on
            log.exception("a pass with %d sequences has failed", len(runs))
            for run in runs[:reading]:
                self._prefilling.remove(run)
            for run in runs:
                self._fail(run, EngineFailed(f"the model failed at this request: {error}"))
            return
        self._draw_tokens(runs, logps, reading)

    def _draw_tokens(self, runs: list[ReplyRun], logps: torch.Tensor, reading: int) -> None:
        """Draw the next token of every reply whose prompt is read, from log-probabilities of shape (runs, vocabulary)."""
        drawing: list[ReplyRun] = []
        rows: list[int] = []
        adjusted: dict[int, torch.Tensor] = {}
        broken = logps[:, 0].isnan().tolist()
        for row, run in enumerate(runs):
            if row < reading:
                if cache_of(run).size < len(run.prompt):
                    continue
                self._prefilling.remove(run)
                self._keep_prefix(run)
            try:
                if broken[row]:
                    raise EngineFailed("the network's log-probabilities are no numbers")
                if run.bias or any(run.penalties) or run.grammar is not None:
                    adjusted[len(rows)] = adjust_logprobs(run, logps[row])
            except Exception as error:
                self._fail_alone(run, error)
            else:
                drawing.append(run)
                rows.append(row)
        if not drawing:
            return
        own = logps if len(rows) == len(runs) else logps[rows]
        wanted = own.clone() if adjusted else own
        for i, changed in adjusted.items():
            wanted[i] = changed
        try:
            tokens: Sequence[SampledToken | None] = sample_tokens(wanted, [run.draw for run in drawing], own)
        except Exception:  # then each row is drawn alone, and the one that cannot be drawn fails alone
            tokens = [None] * len(drawing)
        for row, (run, token) in enumerate(zip(drawing, tokens, strict=True)):
            try:
                self._add_token(run, token or sample_tokens(wanted[[row]], [run.draw], own[[row]])[0])
            except Exception as error:
                self._fail_alone(run, error)
            if not run.is_over:
                self._generating.append(run)

    def _fail_alone(self, run: ReplyRun, error: Exception) -> None:
        """End one reply of a pass by an error."""
        log.error("a reply has failed", exc_info=error)
        self._fail(run, error if isinstance(error, UserError) else EngineFailed(f"this reply failed: {error!r}"))

    def _keep_prefix(self, run: ReplyRun) -> None:
        ids = [*run.prompt, *(token.id for token in run.tokens)]
        self._prefixes.keep((run.tenant, run.version.owner), ids, cache_of(run))

    def _add_token(self, run: ReplyRun, token: SampledToken) -> None:
        """Add a token to a reply, and send the text that is decided."""
        top = run.request.top_logprobs
        self.counts.generated_tokens += 1
        run.tokens.append(token)
        if run.grammar is not None:
            run.grammar.advance(token.id)
        run.token_counts[token.id] = run.token_counts.get(token.id, 0) + 1
        ended, now = token.id in run.frame.stop_ids, time.monotonic()
        is_due = now - run.sent_at >= PIECE_SECONDS
        if not ended:
            if top is not None:
                run.unsent_logprobs.append((run.decoder.decoded_length, self.model.template.openai_logprob(token)))
            run.decoder.add(token.id, show=is_due or top is not None)
        if ended or run.decoder.is_stopped or len(run.tokens) >= run.max_tokens:
            self._finish(run, "stop" if ended or run.decoder.is_stopped else "length")
        elif is_due:
            run.sent_at = now
            self._send(run)

    def _send(self, run: ReplyRun) -> None:
        text = run.decoder.text[run.num_sent_chars :]
        if text:
            sent = sum(at < run.decoder.text_end for at, _ in run.unsent_logprobs)
            entries = tuple(entry for at, entry in run.unsent_logprobs[:sent] if at >= run.decoder.text_begin)
            del run.unsent_logprobs[:sent]
            run.num_sent_chars += len(text)
            self._send_piece(run, text, entries)

    def _send_piece(self, run: ReplyRun, text: str, logprobs: tuple[dict[str, Any], ...]) -> None:
        self._queue_item(run, Piece(text, logprobs, len(run.tokens) - run.num_sent_tokens))
        run.num_sent_tokens = len(run.tokens)

    def _finish(self, run: ReplyRun, finish: str) -> None:
        run.decoder.end()
        text = run.decoder.text
        calls: tuple[dict[str, Any], ...] = ()
        if run.decoder.detects_calls:
            text, calls = read_calls(text)
            finish = "tool_calls" if calls else finish
        rest = text[run.num_sent_chars :]
        first, end = run.decoder.text_begin, run.decoder.text_end
        shown = [(at, entry) for at, entry in run.unsent_logprobs if at >= first or not run.decoder.thoughts]
        entries = tuple(entry for at, entry in shown if not run.decoder.is_stopped or at < end)
        if rest or (entries and not calls):
            self._send_piece(run, rest, entries if not calls else ())
        self._keep_prefix(run)
        reply = Reply(
            text=text,
            prompt_ids=tuple(run.prompt),
            token_ids=tuple(token.id for token in run.tokens),
            logprobs=tuple(token.sampled_logprob for token in run.tokens),
            finish=finish,
            tool_calls=calls,
            version=run.version.label,
            cached=run.cached,
            thoughts=run.decoder.thoughts,
        )
        self.counts.finished += 1
        self._queue_item(run, reply)
        self._release_run(run)

    def _fail(self, run: ReplyRun, error: Exception) -> None:
        self.counts.failed += 1
        self._queue_item(run, error)
        self._release_run(run)

    def _fail_all(self, error: Unavailable) -> None:
        with self._wake:
            runs = [*self._live]
            swaps, jobs = [*self._swaps], [*self._jobs]
            for queue in (self._inbox, self._waiting, self._prefilling, self._generating, self._swaps, self._jobs):
                queue.clear()
        for run in runs:
            self._fail(run, error)
        for _, _, loaded in swaps:
            loaded.set_exception(error)
        for done, _ in jobs:
            if done.set_running_or_notify_cancel():
                done.set_exception(error)
        self._deliver()

    def _queue_item(self, run: ReplyRun, item: Any) -> None:
        self._outbox.setdefault(run.channel.loop, []).append((run, item))

    def _deliver(self) -> None:
        """Send what the pass made: one call to each event loop, whatever the number of its clients."""
        while self._outbox:
            loop, items = self._outbox.popitem()
            try:
                loop.call_soon_threadsafe(hand_over, items)
            except RuntimeError:  # the loop is closed, and its clients are gone
                for run, _ in items:
                    run.cancelled = True
