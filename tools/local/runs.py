"""Replies that an engine is making: their records, the queues to their clients, and whose turn it is."""

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...memory.errors import UserError
from ...memory.records import ChatRequest, Piece
from .adapters import Adapter
from .chats import ReplyFrame
from .grammar import Grammar
from .model import LocalChatModel
from .passes import KVCache
from .replies import StreamingDecoder
from .sampling import Draw, SampledToken, make_draw

__all__ = ["Channel", "EngineCounts", "LoadedVersion", "ReplyRun"]

MAX_QUEUED_PIECES = 64
"""Most pieces that are queued for a slow client; further ones are joined to the last."""
PENALTIES = ("presence_penalty", "frequency_penalty")


@dataclass
class EngineCounts:
    """The counts of an engine since it was made."""

    finished: int = 0
    """Replies that were made to their end."""
    cancelled: int = 0
    """Replies whose client hung up."""
    failed: int = 0
    prompt_tokens: int = 0
    """Tokens of all prompts, cached or not."""
    prefilled_tokens: int = 0
    """The prompts' tokens that were not in the cache."""
    generated_tokens: int = 0
    swaps: int = 0
    """Versions that were put in place."""


@dataclass(eq=False)
class LoadedVersion:
    """A version of the adapter that requests may name; `label` is empty for the base model."""

    label: str
    folder: Path | None
    adapter: Adapter | None = None
    owner: int = 0
    """Its number as the owner of cached prefixes: a new one each time that it is loaded; 0 is the base model."""
    users: int = 0
    """Requests that run on it. While there are any, it stays in memory."""
    last_used: float = 0.0
    loading: Future[None] | None = None
    drained: Future[None] | None = None
    """Completed when it is unloaded; None: it is not being unloaded."""


class Channel:
    """The queue of one client's pieces, from the network's thread to the client's event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._items: deque[Any] = deque()
        self._some = asyncio.Event()

    def put(self, item: Any) -> None:
        """Add an item, in the event loop, without waiting. Pieces for a client that is too slow are joined."""
        last = self._items[-1] if self._items else None
        if len(self._items) >= MAX_QUEUED_PIECES and isinstance(item, Piece) and isinstance(last, Piece):
            num_tokens = last.num_tokens + item.num_tokens
            self._items[-1] = Piece(last.text + item.text, last.logprobs + item.logprobs, num_tokens)
        else:
            self._items.append(item)
        self._some.set()

    async def get(self) -> Any:
        while not self._items:
            self._some.clear()
            await self._some.wait()
        return self._items.popleft()


@dataclass(eq=False)
class ReplyRun:
    """A reply that is being made. After it was submitted, only the network's thread uses it (except `cancelled`)."""

    request: ChatRequest
    tenant: str
    prompt: list[int]
    version: LoadedVersion
    frame: ReplyFrame
    decoder: StreamingDecoder
    max_tokens: int
    draw: Draw
    channel: Channel
    grammar: Grammar | None = None
    kv_cache: KVCache | None = None
    cached: int = 0
    tokens: list[SampledToken] = field(default_factory=list)
    bias: dict[int, float] = field(default_factory=dict)
    penalties: tuple[float, float] = (0.0, 0.0)
    """For tokens that the reply has, and for each time that it has them."""
    token_counts: dict[int, int] = field(default_factory=dict)
    """Token -> how often the reply has it; for penalties only."""
    num_sent_chars: int = 0
    """Characters of the text that were sent."""
    num_sent_tokens: int = 0
    """Tokens that were made when a piece was sent last."""
    sent_at: float = 0.0
    """When a piece was sent last."""
    unsent_logprobs: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Log-probabilities that were not sent yet, and where in the text their tokens begin."""
    submitted: bool = False
    cancelled: bool = False
    is_over: bool = False

    @property
    def most_tokens(self) -> int:
        """Tokens of its prompt and of its longest reply: what it may need room for."""
        return len(self.prompt) + self.max_tokens


def in_turns(runs: Iterable[ReplyRun], before: Counter[str] | None = None) -> list[tuple[int, ReplyRun]]:
    """Runs with tenants in turn and each tenant's own in their order, each with the number of its tenant's runs before it.

    Args:
        before: tenant -> runs of it that come before all of these; not given: none.
    """
    counts = Counter(before)
    found = []
    for run in runs:
        found.append((counts[run.tenant], run))
        counts[run.tenant] += 1
    return sorted(found, key=lambda each: each[0])


def adjust_logprobs(run: ReplyRun, logps: torch.Tensor) -> torch.Tensor:
    """Log-probabilities with the request's biases and penalties as OpenAI defines them; tokens that its form forbids get
    -inf."""
    presence, frequency = run.penalties
    logps = logps.clone()
    for id_, value in run.bias.items():
        logps[id_] += value
    if presence or frequency:
        for id_, times in run.token_counts.items():
            logps[id_] -= presence + frequency * times
    if run.grammar is not None:
        logps[~torch.from_numpy(run.grammar.token_mask()).to(logps.device)] = -torch.inf
    return logps


def cache_of(run: ReplyRun) -> KVCache:
    """The keys and values of a run whose prompt is being read, or was."""
    assert run.kv_cache is not None
    return run.kv_cache


def hand_over(items: list[tuple[ReplyRun, Any]]) -> None:
    """Put items into the channels of their runs, in the event loop of these channels."""
    for run, item in items:
        run.channel.put(item)


def make_run(
    model: LocalChatModel, request: ChatRequest, *, tenant: str, prompt: list[int], version: LoadedVersion, frame: ReplyFrame
) -> ReplyRun:
    """A run for a request, in the running event loop. `frame`: of the model's chats.

    Raises:
        UserError: a number that no reply can be sampled with.
    """
    template, sampling = model.template, request.sampling
    frame = frame if request.raw is None else ReplyFrame(stop_ids=template.end_ids)
    calls = bool(request.tools) and request.tool_choice != "none" and request.raw is None
    thoughts = template.kind_of_thoughts(prompt) if request.raw is None else "none"
    return ReplyRun(
        request=request,
        tenant=tenant,
        prompt=prompt,
        version=version,
        frame=frame,
        decoder=StreamingDecoder(template.decode, frame, sampling.stop, calls, thoughts),
        max_tokens=min(sampling.max_tokens, model.window - len(prompt)),
        draw=make_draw(sampling, request.top_logprobs or 0, model.network.device),
        channel=Channel(),
        penalties=(float(request.more.get(PENALTIES[0]) or 0), float(request.more.get(PENALTIES[1]) or 0)),
        bias={int(token): float(value) for token, value in (request.more.get("logit_bias") or {}).items()},
    )


def check_request(request: ChatRequest, features: Collection[str], vocabulary: int) -> None:
    """Refuse options that the engine lacks, and biases and penalties that OpenAI's API has not.

    Raises:
        UserError: says which, and what it may be.
    """
    more = request.more
    wanted = {name for name, value in more.items() if value}
    if request.tools and request.tool_choice != "none":
        wanted.add("tools")
    if request.tool_choice not in (None, "auto", "none"):
        wanted.add("tool_choice")
    if request.response_format and request.response_format.get("type") != "text":
        wanted.add("response_format")
    if wanted - set(features):
        raise UserError(f"this model cannot honour {sorted(wanted - set(features))}; it knows {sorted(features)}")
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
