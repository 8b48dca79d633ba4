"""Passes of a local model that many sequences share, each with its own keys, values and adapter.

The tokens of all sequences stand in one row: linear layers see one large matrix, attention runs sequence by sequence over its
own cache, and nothing is padded. Prompts of any length and single new tokens of other replies may share a pass. A token's
result does not depend on the other sequences in the pass, bit for bit where matrix products do not (see `MIN_ROWS`).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import DynamicCache

from .adapters import Adapter, AdapterSwitch
from .llama import KINDS, llama_logits
from .model import LocalChatModel, common_prefix_length

__all__ = ["KVCache", "PackedNetwork", "PrefixCache", "SequenceInput"]

log = logging.getLogger(__name__)

MIN_ROWS = 4
"""The number of rows in a pass is a multiple of this. BLAS libraries compute products of fewer rows in another way, as
elementwise functions compute the rest at the end of a vector; then a token's numbers would depend, in their last bits, on the
other tokens of the pass. With four rows they did not, on the processors that were tried."""

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

    def make_room(self, end: int, layers: int, like: torch.Tensor) -> torch.Tensor:
        """The buffer, with room for `end` tokens.

        Args:
            like: keys of one layer, shape (1, heads, tokens, head size).
        """
        if self.buffer is None or self.buffer.shape[3] < end:
            _, heads, _, width = like.shape
            room = (end + end // 2) // 64 * 64 + 128  # of few sizes, so that memory that was freed fits again
            wide = like.new_empty(2 * layers, 1, heads, room, width)
            if self.buffer is not None:
                wide[..., : self.size, :] = self.buffer[..., : self.size, :]
            self.buffer = wide
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
        if past.buffer.nbytes <= self._limit:
            self._kept.append(_CachedPrefix(owner, ids, past.buffer))
            self._bytes[owner[0]] += past.buffer.nbytes
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
        self._logits = next((way for way in ways if model.can_share_passes and self._is_exact(way, model)), None)
        self.is_packed = self._logits is not None
        """True if sequences share passes. If not, prefixes are not cached either."""
        self.num_passes = 0
        """Number of passes so far."""

    @torch.inference_mode()
    def __call__(self, parts: Sequence[SequenceInput]) -> torch.Tensor:
        """Log-probabilities of the token after each part, shape (parts, vocabulary), float32, on the CPU."""
        self.num_passes += 1
        if self._logits is None:
            logits = torch.cat([self._single_logits(part) for part in parts])
        else:
            logits = self._packed_logits(self._logits, parts)
        return logits.log_softmax(-1, dtype=torch.float32).cpu()

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
        ids += [0] * short
        positions += [0] * short
        # At least MIN_ROWS rows here too.
        wanted = last[: len(parts)] + [last[0]] * (MIN_ROWS - len(parts))
        numbers = [torch.tensor(row, device=device) for row in ([ids], [positions], wanted)]
        _current.parts, _current.layers = packed, self._config.num_hidden_layers
        try:
            with self._switch.activate(spans):
                logits = compute(*numbers)[: len(parts)]
        finally:
            del _current.parts, _current.layers
        for part in packed:
            part.cache.size += len(part.ids)
        if spans:
            back = torch.empty(len(parts), dtype=torch.long)
            back[torch.tensor(order)] = torch.arange(len(parts))
            logits = logits[back.to(device)]
        return logits

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
    """Attention, sequence by sequence, over each one's own cache. Rows behind the last sequence are left as they are.

    Args:
        query: (1, heads, tokens, head size), of all parts; key and value likewise.

    Returns:
        (1, tokens, heads, head size).
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    settings.pop("is_causal", None)
    parts: list[SequenceInput] = _current.parts
    sizes = [len(part.ids) for part in parts]
    sizes.append(query.shape[2] - sum(sizes))
    *queries, rest = query.split_with_sizes(sizes, 2)
    if not parts[0].seen:
        for part in parts:
            part.open_views(_current.layers, key)
    at, count = 2 * module.layer_idx, len(parts)
    torch._foreach_copy_([part.new[at] for part in parts], key.split_with_sizes(sizes, 2)[:count])
    torch._foreach_copy_([part.new[at + 1] for part in parts], value.split_with_sizes(sizes, 2)[:count])
    scale, grouped = settings.get("scaling"), query.shape[1] != key.shape[1]
    found = []
    for part, own in zip(parts, queries, strict=True):
        keys, values = part.seen[at], part.seen[at + 1]
        if own.shape[2] == 1:  # most of them: without the wrapper, which takes longer than the attention
            found.append(scaled_dot_product_attention(own, keys, values, scale=scale, enable_gqa=grouped))
        else:
            seen, _ = sdpa_attention_forward(module, own, keys, values, part.mask, **settings)
            found.append(seen.transpose(1, 2))
    return torch.cat([*found, rest], 2).transpose(1, 2), None
