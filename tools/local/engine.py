"""Serving a local model to many at once, with adapters that change while it answers.

    engine = LocalEngine(model, rank=16)
    await engine.load("acme/default@000017-3f9c2ab1d4e0", folder)
    async for part in engine.stream(request, "acme/default@000017-3f9c2ab1d4e0"):
        ...                                      # Piece, Piece, ..., and at last the Reply

One thread owns the network. In each pass every running reply gets one more token, and the prompts of new ones are read, a bounded
number of tokens a pass, so that nobody waits for the end of anybody's reply. What a client gets is put down for its event loop
and picked up there: a slow one holds up nobody, and one that goes away frees its place before the next pass.

A reply is made by one adapter version from its first token to its last, and says which. Versions are read, checked and prepared
beside the network's thread; a swap is then no more than a new entry in a table between two passes. The versions used last stay in
memory, the others are loaded again from their folders when somebody asks for them. Keys and values of one version's prompts are
never another's.

The same request, seed and version give the same tokens, whatever else runs (see `local_passes.LEAST`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...memory.errors import AdapterError, EngineFailed, Unavailable, UserError, VersionNotLoaded
from ...memory.records import ChatRequest, Piece, Reply, Sampling
from .adapters import Adapter, AdapterSwitch, read_adapter
from .chats import ReplyFrame
from .grammar import Grammar, open_grammar_factory
from .model import LocalChatModel, SampledToken, fingerprint, sample_token
from .passes import KVCache, PackedNetwork, PrefixCache, SequenceInput
from .prompts import PromptTokenizer
from .replies import StreamingDecoder, has_call_format, read_calls

__all__ = ["EngineCounts", "LocalEngine"]

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_QUEUED_PIECES = 64
"""Pieces that wait for a slow client before they are put together into one."""
AWAY = "the model does not answer just now; try again"
"""What clients are told when the engine is closed or has failed."""
PENALTIES = ("presence_penalty", "frequency_penalty")


@dataclass
class EngineCounts:
    """What an engine has done since it was made."""

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    """Of all prompts, cached or not."""
    prefilled_tokens: int = 0
    """Those of them that had to be computed."""
    generated_tokens: int = 0
    swaps: int = 0
    """Versions put in place."""
    swap_seconds: float = 0.0
    """What they took of the network's thread, all together ..."""
    longest_swap_seconds: float = 0.0
    """... and one of them at most."""


@dataclass(eq=False)
class _Version:
    label: str
    folder: Path | None
    adapter: Adapter | None = None
    owner: int = 0
    """Of its prefixes: another number each time that it is loaded; 0 is the base model."""
    users: int = 0
    """Requests that were begun on it and are not over. While there are any, it stays in memory."""
    last_used: float = 0.0
    loading: Future[None] | None = None
    drained: Future[None] | None = None
    """Set while it is being unloaded."""


class _Channel:
    """From the network's thread to the event loop of one client."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._items: deque[Any] = deque()
        self._some = asyncio.Event()

    def put(self, item: Any) -> None:
        """In the event loop. Never waits: a client that is too slow gets its pieces together."""
        last = self._items[-1] if self._items else None
        if len(self._items) >= MAX_QUEUED_PIECES and isinstance(item, Piece) and isinstance(last, Piece):
            self._items[-1] = Piece(last.text + item.text, last.logprobs + item.logprobs)
        else:
            self._items.append(item)
        self._some.set()

    async def get(self) -> Any:
        while not self._items:
            self._some.clear()
            await self._some.wait()
        return self._items.popleft()


@dataclass(eq=False)
class _ReplyRun:
    """One reply in the making. After it was submitted, only the network's thread touches it (except `cancelled`)."""

    request: ChatRequest
    prompt: list[int]
    version: _Version
    frame: ReplyFrame
    decoder: StreamingDecoder
    max_tokens: int
    generator: torch.Generator
    channel: _Channel
    grammar: Grammar | None = None
    kv_cache: KVCache | None = None
    cached: int = 0
    tokens: list[SampledToken] = field(default_factory=list)
    bias: dict[int, float] = field(default_factory=dict)
    token_counts: dict[int, int] = field(default_factory=dict)
    """Token -> how often it has come; for penalties only."""
    num_sent_chars: int = 0
    """Characters of the text that went out."""
    unsent_logprobs: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Log-probabilities that have not gone out, and where in the text their tokens begin."""
    submitted: bool = False
    cancelled: bool = False
    is_over: bool = False


class LocalEngine:
    """A model in this process behind `stream`, `load`, `unload`: what `nodes.serving` calls an engine.

    Args:
        model: loaded already. From now on its network belongs to the engine's thread: give other work to `run`.
        rank: of adapters, at most.
        targets: the layers that adapters may change: `all-linear`, or names joined by commas.
        slots: versions in memory at once; more are loaded again from their folders when asked for.
        batch: running replies that get their next token in one pass.
        chunk: tokens of prompts in one pass, more or less; running replies wait that long for their next token.
        streams: replies in the making at once; others wait, first come first served.
        cache_megabytes: memory for the keys and values of prompts that later ones may begin with.
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
        cache_megabytes: float = 256,
    ) -> None:
        for name, value in {
            "slots": max_loras,
            "batch": max_batch_size,
            "chunk": max_prefill_tokens,
            "streams": max_streams,
        }.items():
            if value < 1:
                raise UserError(f"{name} must be 1 or more, got {value}")
        self.model = model
        self.base = fingerprint(model)
        """Fingerprint of the base model; adapters of another are refused."""
        self.window = model.window
        self.counts = EngineCounts()
        model.clear_cache()
        self._switch = AdapterSwitch(model.network, rank, targets)
        self._passes = PackedNetwork(model, self._switch)
        self._prefixes = PrefixCache(cache_megabytes)
        self._max_loras, self._max_batch_size, self._max_prefill_tokens, self._max_streams = (
            max_loras,
            max_batch_size,
            max_prefill_tokens,
            max_streams,
        )
        self._frame = model.chat_frame()
        self._grammars = open_grammar_factory(model)
        tools, forms = _supports_tools(model), self._grammars is not None
        known = {"tools": tools, "response_format": forms, "tool_choice": tools and forms}
        self.features = frozenset({"raw", "logit_bias", *PENALTIES, *(name for name, able in known.items() if able)})
        """What it honours beyond the core: see `nodes.serving`."""
        self._base = _Version("", None)
        self._versions: dict[str, _Version] = {}
        self._versions_lock = threading.Lock()  # of versions: who uses them, and who is in memory
        self._owners = itertools.count(1)
        self._readers = ThreadPoolExecutor(1, "adapters")
        self._prompts = PromptTokenizer(model)
        self._wake = threading.Condition()
        self._inbox: deque[_ReplyRun] = deque()
        self._unloaded_adapters: deque[Adapter | None] = deque()
        self._swaps: deque[tuple[_Version, Adapter, Future[None]]] = deque()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closing = False
        self._waiting: deque[_ReplyRun] = deque()  # the network's thread only, from here on
        self._prefilling: deque[_ReplyRun] = deque()
        self._generating: deque[_ReplyRun] = deque()
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[_ReplyRun, Any]]] = {}
        self._thread = threading.Thread(target=self._work, name="network", daemon=True)
        self._thread.start()

    # Requests

    async def stream(self, request: ChatRequest, version: str = "") -> AsyncIterator[Piece | Reply]:
        """A reply as it grows, and at last as a whole. Closing the iterator ends the generation.

        `version` is the label of a version that was loaded; empty: the base model.

        Raises:
            WindowError: the prompt leaves no room in the model's window.
            VersionNotLoaded: it was not loaded.
            AdapterError: it had to be loaded again, and its folder has changed or gone.
            UserError: the request asks for what this engine has not (see `features`), or its messages cannot be rendered.
            Unavailable: the engine is closed.
        """
        self._check_features(request)
        if self._closing:
            raise Unavailable("the engine is closed", AWAY)
        held, run = self._acquire_version(version), None
        try:
            async with self._prompts.tokenize(request) as prompt:
                run = self._make_run(request, prompt, held)
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

    def _cancel_run(self, run: _ReplyRun) -> None:
        """Nobody reads it any more."""
        run.cancelled = True
        if not run.submitted:
            self._release_run(run)
        elif not run.is_over:
            with self._wake:
                self._wake.notify()

    def _make_run(self, request: ChatRequest, prompt: list[int], version: _Version) -> _ReplyRun:
        """All that can be refused is refused here, before anything is queued."""
        model, sampling = self.model, request.sampling
        frame = self._frame if request.raw is None else ReplyFrame(stop_ids=model.end_ids)
        calls = bool(request.tools) and request.tool_choice != "none" and request.raw is None
        generator = torch.Generator()
        if sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(sampling.seed % 2**64)
        return _ReplyRun(
            request=request,
            prompt=prompt,
            version=version,
            frame=frame,
            decoder=StreamingDecoder(model.decode, frame, sampling.stop, calls),
            max_tokens=min(sampling.max_tokens, self.window - len(prompt)),
            generator=generator,
            channel=_Channel(),
            bias={int(token): float(value) for token, value in (request.more.get("logit_bias") or {}).items()},
        )

    def _check_features(self, request: ChatRequest) -> None:
        wanted = {name for name, value in request.more.items() if value}
        if request.tools and request.tool_choice != "none":
            wanted.add("tools")
        if request.tool_choice not in (None, "auto", "none"):
            wanted.add("tool_choice")
        if request.response_format and request.response_format.get("type") != "text":
            wanted.add("response_format")
        if wanted - self.features:
            raise UserError(f"this model cannot honour {sorted(wanted - self.features)}; it knows {sorted(self.features)}")
        _check_sampling(request.sampling, request.more, len(self.model.tokenizer))

    def _submit(self, run: _ReplyRun) -> None:
        with self._wake:
            if self._closing:
                raise Unavailable("the engine is closed", AWAY)
            run.submitted = True
            self._inbox.append(run)
            self._wake.notify()

    # Versions

    def loaded_versions(self) -> tuple[str, ...]:
        """Labels that can be asked for, in memory or not."""
        with self._versions_lock:
            return tuple(label for label, version in self._versions.items() if version.drained is None)

    async def load(self, version: str, folder: Path | str) -> None:
        """Make a version ready; the same label and folder again does nothing. Running requests go on, on what they began with.
        One that is being unloaded is loaded again when that is done.

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
                found = self._versions[version] = _Version(version, folder)
            found.users += 1
            found.last_used = time.monotonic()
        try:
            await self._ensure_in_memory(found)
        except BaseException as error:
            with self._versions_lock:
                if not found.owner and (found.users == 1 or isinstance(error, AdapterError)):
                    self._versions.pop(version, None)  # it was never here
            raise
        finally:
            self._release_version(found)

    async def unload(self, version: str) -> None:
        """Forget a version once the requests that run on it are over. New ones are refused from now on; unknown labels are nothing."""
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

    def _forget_version(self, version: _Version) -> None:
        """With the table locked. Its prefixes are nobody's from now on, and go as those used longest ago."""
        self._versions.pop(version.label, None)
        version.adapter = None
        if version.drained is not None and not version.drained.done():
            version.drained.set_result(None)

    def _acquire_version(self, label: str) -> _Version:
        with self._versions_lock:
            version = self._versions.get(label) if label else self._base
            if version is None or version.drained is not None:
                known = [label for label, found in self._versions.items() if found.drained is None]
                raise VersionNotLoaded(f"adapter version {label!r} is not loaded; loaded are {known or 'none'}")
            version.users += 1
            version.last_used = time.monotonic()
            return version

    def _release_run(self, run: _ReplyRun) -> None:
        """Once for each run, by whoever has it last."""
        if not run.is_over:
            run.is_over = True
            self._release_version(run.version)

    def _release_version(self, version: _Version) -> None:
        with self._versions_lock:
            version.users -= 1
            if not version.users and version.drained is not None:
                self._forget_version(version)
        if self._swaps:
            with self._wake:
                self._wake.notify()

    async def _ensure_in_memory(self, version: _Version) -> None:
        """Wait until a version is in memory, where it stays while it has users."""
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

    def _read_version(self, version: _Version, done: Future[None]) -> None:
        """On the readers' thread: all that takes time."""
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
        """On the network's thread, between two passes: put what was read in place, and the one used longest ago out of it."""
        for _ in range(len(self._swaps)):
            version, adapter, done = self._swaps.popleft()
            start = time.perf_counter()
            with self._versions_lock:
                here = [other for other in self._versions.values() if other.adapter is not None]
                if len(here) >= self._max_loras:
                    idle = [other for other in here if not other.users]
                    if not idle:
                        self._swaps.append((version, adapter, done))  # until a reply is over
                        continue
                    out = min(idle, key=lambda other: other.last_used)
                    self._unloaded_adapters.append(
                        out.adapter
                    )  # whoever reads the next one frees its memory; that takes time too
                    out.adapter = None
                version.adapter, version.owner = adapter, next(self._owners)
            taken = time.perf_counter() - start
            self.counts.swaps += 1
            self.counts.swap_seconds += taken
            self.counts.longest_swap_seconds = max(self.counts.longest_swap_seconds, taken)
            done.set_result(None)

    # Other work, and the end

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the network's thread, between two passes. Replies get one pass at least between two such calls."""
        done: Future[T] = Future()
        with self._wake:
            if self._closing:
                raise Unavailable("the engine is closed", AWAY)
            self._jobs.append((done, work))
            self._wake.notify()
        return await asyncio.wrap_future(done)

    async def close(self) -> None:
        """End all replies in the making (their clients get `Unavailable`) and the thread. May be called again."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._prompts.close)

    # The network's thread

    def _work(self) -> None:
        try:
            while True:
                with self._wake:
                    while not self._has_work():
                        self._wake.wait()
                    if self._closing:
                        break
                    self._waiting.extend(self._inbox)
                    self._inbox.clear()
                    job = self._jobs.popleft() if self._jobs else None
                if self._swaps:
                    self._apply_swaps()
                self._clear()
                if job is not None:
                    self._run_job(*job)
                self._admit()
                self._run_pass()
                self._deliver()
            self._fail_all(Unavailable("the engine was closed", AWAY))
        except BaseException as error:
            log.exception("the network's thread has died")
            with self._wake:
                self._closing = True
            self._fail_all(Unavailable(f"the engine has failed: {error!r}", AWAY))

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
        """Those whose clients have gone lose their places."""
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
        while self._waiting and len(self._prefilling) + len(self._generating) < self._max_streams:
            run = self._waiting.popleft()
            self.counts.requests += 1
            self.counts.prompt_tokens += len(run.prompt)
            self._prefilling.append(run)

    def _run_pass(self) -> None:
        """One pass: prompts of new requests, in order, and the next token of running ones, by turns."""
        runs: list[_ReplyRun] = []
        parts: list[SequenceInput] = []
        tokens = 0
        for run in self._prefilling:
            if run.kv_cache is None:  # not before its turn: prompts before it may begin alike
                run.kv_cache = self._prefixes.take(run.version.owner, run.prompt)
                run.cached = run.kv_cache.size
            # Always whole chunks, so that what a prompt is cut into does not depend on others.
            new = run.prompt[run.kv_cache.size : run.kv_cache.size + self._max_prefill_tokens]
            if runs and tokens + len(new) > self._max_prefill_tokens:
                break
            tokens += len(new)
            runs.append(run)
            parts.append(SequenceInput(run.kv_cache, new, run.version.adapter))
        reading = len(runs)
        for _ in range(min(self._max_batch_size, len(self._generating))):
            run = self._generating.popleft()
            assert run.kv_cache is not None
            runs.append(run)
            parts.append(SequenceInput(run.kv_cache, [run.tokens[-1].id], run.version.adapter))
        if not runs:
            return
        try:
            logps = self._passes(parts)
        except Exception as error:  # out of memory, say: these fail, the others go on
            log.exception("a pass with %d sequences has failed", len(runs))
            for run in runs[:reading]:
                self._prefilling.remove(run)
            for run in runs:
                self._fail(run, EngineFailed(f"the model failed at this request: {error}"))
            return
        self.counts.prefilled_tokens += tokens
        for row, run in enumerate(runs):
            assert run.kv_cache is not None
            if row < reading:
                if run.kv_cache.size < len(run.prompt):
                    continue
                self._prefilling.remove(run)
                self._keep_prefix(run)
            try:
                self._sample_token(run, logps[row])
            except Exception as error:
                log.exception("a reply has failed")
                self._fail(run, error if isinstance(error, UserError) else EngineFailed(f"this reply failed: {error!r}"))
            if not run.is_over:
                self._generating.append(run)

    def _keep_prefix(self, run: _ReplyRun) -> None:
        assert run.kv_cache is not None
        ids = [*run.prompt, *(token.id for token in run.tokens)]
        self._prefixes.keep(run.version.owner, ids, run.kv_cache)

    def _sample_token(self, run: _ReplyRun, logps: torch.Tensor) -> None:
        """Draw a token from log-probabilities (vocabulary,), and send what may be shown now."""
        sampling = run.request.sampling
        top = run.request.top_logprobs
        token = sample_token(
            self._adjust_logprobs(run, logps),
            sampling.temperature,
            sampling.top_p,
            run.generator,
            num_top_logprobs=top or 0,
            model_logprobs=logps,
        )
        self.counts.generated_tokens += 1
        run.tokens.append(token)
        if run.grammar is not None:
            run.grammar.advance(token.id)
        run.token_counts[token.id] = run.token_counts.get(token.id, 0) + 1
        ended = token.id in run.frame.stop_ids
        if not ended:
            if top is not None:
                entry = self.model.openai_logprob(token.id, token.model_logprob)
                entry["top_logprobs"] = [self.model.openai_logprob(id_, value) for id_, value in token.top_logprobs]
                run.unsent_logprobs.append((run.decoder.decoded_length, entry))
            run.decoder.add(token.id)
        if ended or run.decoder.is_stopped or len(run.tokens) >= run.max_tokens:
            self._finish(run, "stop" if ended or run.decoder.is_stopped else "length")
        else:
            self._send(run)

    def _adjust_logprobs(self, run: _ReplyRun, logps: torch.Tensor) -> torch.Tensor:
        """With the request's biases and penalties, as OpenAI defines them, and without what its form does not allow."""
        presence, frequency = (float(run.request.more.get(name) or 0) for name in PENALTIES)
        if not run.bias and not presence and not frequency and run.grammar is None:
            return logps
        logps = logps.clone()
        for id_, value in run.bias.items():
            logps[id_] += value
        if presence or frequency:
            for id_, times in run.token_counts.items():
                logps[id_] -= presence + frequency * times
        if run.grammar is not None:
            logps[~torch.from_numpy(run.grammar.token_mask())] = -torch.inf
        return logps

    def _send(self, run: _ReplyRun) -> None:
        text = run.decoder.text[run.num_sent_chars :]
        if text:
            entries = tuple(entry for at, entry in run.unsent_logprobs if at < run.decoder.text_end)
            del run.unsent_logprobs[: len(entries)]
            run.num_sent_chars += len(text)
            self._queue_item(run, Piece(text, entries))

    def _finish(self, run: _ReplyRun, finish: str) -> None:
        run.decoder.end()
        text = run.decoder.text
        calls: tuple[dict[str, Any], ...] = ()
        if run.decoder.detects_calls:
            text, calls = read_calls(text)
            finish = "tool_calls" if calls else finish
        rest = text[run.num_sent_chars :]
        entries = tuple(entry for at, entry in run.unsent_logprobs if not run.decoder.is_stopped or at < run.decoder.text_end)
        if rest or (entries and not calls):
            self._queue_item(run, Piece(rest, entries if not calls else ()))
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
        )
        self.counts.finished += 1
        self._release_run(run)
        self._queue_item(run, reply)

    def _fail(self, run: _ReplyRun, error: Exception) -> None:
        self.counts.failed += 1
        self._release_run(run)
        self._queue_item(run, error)

    def _fail_all(self, error: Unavailable) -> None:
        with self._wake:
            runs = [*self._inbox, *self._waiting, *self._prefilling, *self._generating]
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

    def _queue_item(self, run: _ReplyRun, item: Any) -> None:
        self._outbox.setdefault(run.channel.loop, []).append((run, item))

    def _deliver(self) -> None:
        """One call a pass to each event loop, whatever the number of its clients."""
        for loop, items in self._outbox.items():
            try:
                loop.call_soon_threadsafe(_hand_over, items)
            except RuntimeError:  # the loop is closed, and its clients with it
                for run, _ in items:
                    run.cancelled = True
        self._outbox = {}


def _hand_over(items: list[tuple[_ReplyRun, Any]]) -> None:
    for run, item in items:
        run.channel.put(item)


def _check_sampling(sampling: Sampling, more: dict[str, Any], vocabulary: int) -> None:
    if not (0 <= sampling.temperature < float("inf") and 0 < sampling.top_p <= 1):
        raise UserError(f"temperature {sampling.temperature} and top_p {sampling.top_p}: wanted >= 0, and above 0 up to 1")
    if sampling.max_tokens < 1:
        raise UserError(f"asked for a reply of {sampling.max_tokens} tokens at most; 1 or more would do")
    bias = more.get("logit_bias") or {}
    try:
        wrong = [token for token, value in bias.items() if not 0 <= int(token) < vocabulary or not -100 <= float(value) <= 100]
    except (TypeError, ValueError, AttributeError):
        raise UserError("logit_bias maps token ids to numbers from -100 to 100") from None
    if wrong:
        raise UserError(f"logit_bias of {wrong[:3]}: token ids are from 0 to {vocabulary - 1}, biases from -100 to 100")
    for name in PENALTIES:
        value = more.get(name) or 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not -2 <= value <= 2:
            raise UserError(f"{name} is a number from -2 to 2, got {value!r}")


def _supports_tools(model: LocalChatModel) -> bool:
    template = model.tokenizer.chat_template

    def roundtrip(text: str) -> str:
        return model.decode(model.get_token_ids(text))

    return isinstance(template, str) and has_call_format(model.render_chat, roundtrip, template)
