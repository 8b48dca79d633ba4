"""Passes of a local model that many sequences share, each with its own keys, values and adapter.

The tokens of all sequences stand in one row: linear layers see one large matrix, and no row is padded. Attention runs prompt by prompt
over each one's own cache, and for the single new tokens of replies together (slabs.py). Prompts of any length and new tokens of replies
may share a pass. A token's result does not depend on the other sequences in the pass, bit for bit where matrix products do not (see
`MIN_ROWS`).
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from .adapters import Adapter, AdapterSwitch
from .llama import KINDS, llama_logits
from .model import LocalChatModel
from .prefixes import common_prefix_length
from .slabs import Slab, SlabGroup, SlabPool, SlabRow, allocate_pages

__all__ = ["KVCache", "PackedNetwork", "PrefixCache", "SequenceInput"]

log = logging.getLogger(__name__)

MIN_ROWS = 4
"""The number of rows in a pass is a multiple of this. BLAS libraries compute products of fewer rows in another way, as
elementwise functions compute the rest at the end of a vector; then a token's numbers would depend, in their last bits, on the
other tokens of the pass. With four rows they did not on most processors that were tried; on one, logits differ by up to 1e-4."""

ATTENTION_NAME = "learngraph_packed"
MAX_LOGPROB_DIFFERENCE = 1e-3
"""Greatest difference of a packed pass from a plain one, in nats in float32. If it is larger, each sequence has its own
pass."""

_Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From ids and positions, (1, rows), and the indices of rows, to the logits after these rows."""

_current = threading.local()


class KVCache:
    """Keys and values of one sequence in every layer, with spare room."""

    def __init__(self) -> None:
        self.size = 0
        """Number of tokens in the cache."""
        self.buffer: torch.Tensor | None = None
        """Shape (2 x layers, 1, heads, room, head size): the keys of the first layer, its values, the keys of the second layer, ..."""
        self.dynamic_cache: Any = None
        """The cache of a model whose sequences cannot share a pass."""
        self.slab: Slab | None = None
        """The slab that `buffer` is a slot of; None: `buffer` is the sequence's own."""
        self.slot = 0
        self.release: Callable[[], Any] | None = None
        """Gives the slot back, once; it is called when this object ends."""

    def make_room(self, end: int, layers: int, like: torch.Tensor) -> torch.Tensor:
        """The buffer, with room for `end` tokens.

        Args:
            like: keys of one layer, shape (1, heads, tokens, head size).
        """
        if self.buffer is None or self.buffer.shape[3] < end:
            _, heads, _, width = like.shape
            room = (end + end // 2) // 64 * 64 + 128
            wide = allocate_pages((2 * layers, 1, heads, room, width), like)
            if self.buffer is not None:
                wide[..., : self.size, :] = self.buffer[..., : self.size, :]
            if self.release is not None:
                self.release()
            self.buffer, self.slab, self.release = wide, None, None
        return self.buffer


PrefixOwner = tuple[str, int]
"""Tenant, and number of the loaded version (0: the base model)."""


@dataclass(frozen=True, slots=True)
class _CachedPrefix:
    owner: PrefixOwner
    ids: tuple[int, ...]
    buffer: torch.Tensor


class PrefixCache:
    """Keys and values of prompts and replies, for later prompts that begin alike.

    Each entry belongs to one tenant and one loaded version, and is given to these only: the time that a prompt takes, and the
    number of its cached tokens, tell nothing of what other tenants asked. If memory is short, the tenant that uses most of it
    gives up the entry it used longest ago. Entries do not change: `take` copies, and a sequence that grows after it was kept
    writes behind the kept part only.

    Args:
        megabytes: most memory that it uses.
    """

    def __init__(self, megabytes: float) -> None:
        self._limit = megabytes * 2**20
        self._kept: list[_CachedPrefix] = []
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    @torch.inference_mode()
    def take(self, owner: PrefixOwner, prompt: Sequence[int]) -> KVCache:
        """A new sequence with the cached part of a prompt. At least the prompt's last token is left to compute."""
        past, prompt = KVCache(), tuple(prompt)
        best, shared = None, 0
        for kept in self._kept:
            if kept.owner == owner and (length := common_prefix_length(kept.ids, prompt)) > shared:
                best, shared = kept, length
        shared = min(shared, len(prompt) - 1)
        if best is not None and shared:
            past.make_room(shared, len(best.buffer) // 2, best.buffer[0])[..., :shared, :] = best.buffer[..., :shared, :]
            past.size = shared
            self._kept.remove(best)  # those used last stand last
            self._kept.append(best)
        return past

    def keep(self, owner: PrefixOwner, ids: Sequence[int], past: KVCache) -> None:
        """Keep a sequence. Entries that are a prefix of it are dropped."""
        if past.buffer is None or not ids:
            return
        ids = tuple(ids[: past.size])
        for kept in [kept for kept in self._kept if kept.owner == owner and kept.ids == ids[: len(kept.ids)]]:
            self._drop(kept)
        buffer = past.buffer
        if past.slab is not None:  # the slot will be another's
            own = past.buffer[..., : past.size, :]
            buffer = allocate_pages(own.shape, own).copy_(own)
        if buffer.nbytes <= self._limit:
            self._kept.append(_CachedPrefix(owner, ids, buffer))
            self._bytes[owner[0]] += buffer.nbytes
        while self._bytes.total() > self._limit:
            ((tenant, _),) = self._bytes.most_common(1)
            self._drop(next(kept for kept in self._kept if kept.owner[0] == tenant))

    def _drop(self, kept: _CachedPrefix) -> None:
        self._kept.remove(kept)
        self._bytes[kept.owner[0]] -= kept.buffer.nbytes
        if not self._bytes[kept.owner[0]]:
            del self._bytes[kept.owner[0]]


@dataclass(slots=True)
class SequenceInput:
    """The part of one sequence in a pass."""

    cache: KVCache
    ids: Sequence[int]
    """New tokens, at least one."""
    adapter: Adapter | None = None
    """None: the base model."""
    is_grouped: bool = field(default=False, init=False)
    """True if its attention is computed with that of others in a `SlabGroup`."""
    mask: torch.Tensor | None = field(default=None, init=False)
    seen: tuple[torch.Tensor, ...] = field(default=(), init=False)
    """Of a pass: keys and values up to the new tokens, in the order of `KVCache.buffer`; each of shape (1, heads, tokens, head size)."""
    new: tuple[torch.Tensor, ...] = field(default=(), init=False)
    """The same of the new tokens only."""

    def open_views(self, layers: int, like: torch.Tensor) -> None:
        """Set `seen` and `new`, for all layers at once: views take about as long as the attention of a token."""
        past, new = self.cache.size, len(self.ids)
        buffer = self.cache.make_room(past + new, layers, like)
        self.seen = buffer.narrow(3, 0, past + new).unbind()
        self.new = buffer.narrow(3, past, new).unbind()


class PackedNetwork:
    """The network of a model, for packed passes. One thread only may use it, and no other thread the model at the same time."""

    def __init__(self, model: LocalChatModel, switch: AdapterSwitch) -> None:
        self._network = model.network
        self._switch = switch
        self._config = self._network.config.get_text_config(decoder=True)
        ways = [self._transformers_logits]
        if type(self._network).__name__ in KINDS:
            ways.insert(0, self._llama_logits)
        self._slabs = SlabPool()
        self._logits = next((way for way in ways if model.can_share_passes and self._is_exact(way, model)), None)
        self.is_packed = self._logits is not None
        """True if sequences share passes. If not, prefixes are not cached either."""
        self.num_passes = 0
        """Number of passes so far."""

    @torch.inference_mode()
    def __call__(self, parts: Sequence[SequenceInput]) -> torch.Tensor:
        """Log-probabilities of the token after each part, shape (parts, vocabulary), float32, on the network's device."""
        self.num_passes += 1
        if self._logits is None:
            logits = torch.cat([self._single_logits(part) for part in parts])
        else:
            logits = self._packed_logits(self._logits, parts)
        return logits.log_softmax(-1, dtype=torch.float32)

    def _packed_logits(self, compute: _Forward, parts: Sequence[SequenceInput]) -> torch.Tensor:
        order = sorted(range(len(parts)), key=lambda i: id(parts[i].adapter))  # an adapter's rows stand together
        packed = [parts[i] for i in order]
        ids: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        spans: list[tuple[int, int, Adapter]] = []
        device = self._network.device
        for part in packed:
            start, past, new = len(ids), part.cache.size, len(part.ids)
            ids += part.ids
            positions += range(past, past + new)
            last.append(len(ids) - 1)
            part.mask = None
            if past and new > 1:
                part.mask = torch.ones(new, past + new, dtype=torch.bool, device=device).tril_(past)[None, None]
            if part.adapter is not None:
                if spans and spans[-1][2] is part.adapter:
                    start = spans.pop()[0]
                spans.append((start, len(ids), part.adapter))
        short = -len(ids) % MIN_ROWS
        if spans and spans[-1][1] == len(ids):  # nobody reads the rows that fill up, and a product of all rows has fewer steps
            spans[-1] = (spans[-1][0], len(ids) + short, spans[-1][2])
        ids += [0] * short
        positions += [0] * short
        # At least MIN_ROWS rows here too.
        wanted = last[: len(parts)] + [last[0]] * (MIN_ROWS - len(parts))
        numbers = [torch.tensor(row, device=device) for row in ([ids], [positions], wanted)]
        _current.parts, _current.layers = packed, self._config.num_hidden_layers
        _current.groups = self._group(packed, last)
        try:
            with self._switch.activate(spans):
                logits = compute(*numbers)[: len(parts)]
        finally:
            del _current.parts, _current.layers, _current.groups
        for part in packed:
            part.cache.size += len(part.ids)
        if spans:
            back = torch.empty(len(parts), dtype=torch.long)
            back[torch.tensor(order)] = torch.arange(len(parts))
            logits = logits[back.to(device)]
        return logits

    def _group(self, parts: Sequence[SequenceInput], rows: Sequence[int]) -> list[SlabGroup | SlabRow]:
        """The groups of the parts that are one new token behind others, whose attention is computed together.

        Args:
            rows: of the parts' last tokens.
        """
        found: dict[Slab, list[tuple[int, int, int]]] = {}
        for part, row in zip(parts, rows[: len(parts)], strict=True):
            cache = part.cache
            part.is_grouped = bool(cache.size) and len(part.ids) == 1
            if part.is_grouped:
                found.setdefault(self._slabs.place(cache), []).append((cache.slot, cache.size, row))
        return [
            SlabRow(slab, *of[0]) if len(of) == 1 else SlabGroup(slab, *zip(*of, strict=True)) for slab, of in found.items()
        ]

    def _transformers_logits(self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        was, self._config._attn_implementation = self._config._attn_implementation, ATTENTION_NAME
        try:
            output = self._network(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=wanted)
        finally:
            self._config._attn_implementation = was
        logits: torch.Tensor = output.logits[0]
        return logits

    def _llama_logits(self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        def attend(layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return _attention(layer, query, key, value, scaling=layer.scaling)[0]

        return llama_logits(self._network, ids, positions, wanted, attend)

    def _single_logits(self, part: SequenceInput) -> torch.Tensor:
        if part.cache.dynamic_cache is None:
            part.cache.dynamic_cache = DynamicCache(config=self._network.config)
        spans = [] if part.adapter is None else [(0, len(part.ids), part.adapter)]
        with self._switch.activate(spans):
            output = self._network(
                input_ids=torch.tensor([list(part.ids)], device=self._network.device),
                past_key_values=part.cache.dynamic_cache,
                use_cache=True,
                logits_to_keep=1,
            )
        part.cache.size += len(part.ids)
        logits: torch.Tensor = output.logits[0, -1:]
        return logits

    @torch.inference_mode()
    def _is_exact(self, compute: _Forward, model: LocalChatModel) -> bool:
        """True if packed passes of this kind give the same as the network's plain ones; attention may be implemented in unknown
        ways."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, _attention)
        size = len(model.tokenizer)
        rows = [[(7 * i + row) % size for i in range(9 + row)] for row in range(2)]
        plain = [self._network(torch.tensor([row], device=self._network.device), use_cache=False).logits[0] for row in rows]
        pasts = [KVCache(), KVCache()]
        try:
            for start, end in ((0, 4), (4, 7), (7, 8)):
                parts = [SequenceInput(past, row[start:end]) for past, row in zip(pasts, rows, strict=True)]
                packed = self._packed_logits(compute, parts)
        except (TypeError, AttributeError, RuntimeError) as error:
            log.info("sequences do not share passes by %s: %s", compute.__name__, error)
            return False
        apart = max(
            float((logits[7].float().log_softmax(-1) - own.float().log_softmax(-1)).abs().max())
            for logits, own in zip(plain, packed, strict=True)
        )
        close = MAX_LOGPROB_DIFFERENCE if self._network.dtype == torch.float32 else 0.3
        if not apart <= close:
            log.info("sequences do not share passes by %s: they would differ by %g nats", compute.__name__, apart)
        return apart <= close


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None, **settings: Any
) -> tuple[torch.Tensor, None]:
    """Attention of each part over its own cache. Rows behind the last part are left as they are.

    Args:
        query: (1, heads, tokens, head size), of all parts; key and value likewise.

    Returns:
        (1, tokens, heads, head size).
    """
    result = query[0].transpose(0, 1).contiguous()
    at = 0
    for part in _current.parts:
        end = at + len(part.ids)
        if not part.is_grouped:
            if not part.seen:
                part.open_views(_current.layers, key)
            result[at:end] = _attend_alone(part, module, query[:, :, at:end], key[:, :, at:end], value[:, :, at:end], settings)
        at = end
    if _current.groups:
        scale = settings.get("scaling") or query.shape[3] ** -0.5
        keys, values, queries = (tensor[0].transpose(0, 1) for tensor in (key, value, query))
        for group in _current.groups:
            group.attend(module.layer_idx, queries, keys, values, scale, result)
    return result[None], None


def _attend_alone(
    part: SequenceInput, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: dict[str, Any]
) -> torch.Tensor:
    """Write a part's new keys and values of a layer into its cache. Returns its attention, (tokens, heads, head size)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    at = 2 * module.layer_idx
    part.new[at].copy_(key)
    part.new[at + 1].copy_(value)
    settings = {name: value for name, value in settings.items() if name != "is_causal"}
    seen, _ = sdpa_attention_forward(module, query, part.seen[at], part.seen[at + 1], part.mask, **settings)
    return seen[0]
