"""Passes of a local model that many sequences share, each with its own keys, values and adapter.

The tokens of all sequences stand in one row: linear layers see one large matrix, attention runs sequence by sequence over its
own cache, and nothing is padded. Prompts of any length and single new tokens of other replies may share a pass. A token's
result does not depend on the other sequences in the pass, bit for bit where matrix products do not (see `MIN_ROWS`).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from .adapters import Adapter, AdapterSwitch
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

_current = threading.local()


class KVCache:
    """Keys and values of one sequence in every layer, with spare room."""

    def __init__(self) -> None:
        self.size = 0
        """Number of tokens in the cache."""
        self.buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Layer -> keys and values, each of shape (1, heads, room, head size)."""
        self.dynamic_cache: Any = None
        """The cache of a model whose sequences cannot share a pass."""

    def extend(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the keys and values of new tokens, (1, heads, new, head size); returns those of all. `size` grows after the
        pass."""
        end = self.size + keys.shape[-2]
        found = self.buffers.get(layer)
        if found is None or found[0].shape[-2] < end:
            wide = [new.new_empty(*new.shape[:-2], end + end // 2 + 64, new.shape[-1]) for new in (keys, values)]
            if found is not None:
                for old, new in zip(found, wide, strict=True):
                    new[..., : self.size, :] = old[..., : self.size, :]
            found = self.buffers[layer] = (wide[0], wide[1])
        found[0][..., self.size : end, :], found[1][..., self.size : end, :] = keys, values
        return found[0][..., :end, :], found[1][..., :end, :]


PrefixOwner = tuple[str, int]
"""Tenant, and number of the loaded version (0: the base model)."""


@dataclass(frozen=True, slots=True)
class _CachedPrefix:
    owner: PrefixOwner
    ids: tuple[int, ...]
    buffers: dict[int, tuple[torch.Tensor, torch.Tensor]]
    bytes: int


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
            for layer, (keys, values) in best.buffers.items():
                past.extend(layer, keys[..., :shared, :], values[..., :shared, :])
            past.size = shared
            self._kept.remove(best)  # those used last stand last
            self._kept.append(best)
        return past

    def keep(self, owner: PrefixOwner, ids: Sequence[int], past: KVCache) -> None:
        """Keep a sequence. Entries that are a prefix of it are dropped."""
        if past.dynamic_cache is not None or not ids:
            return
        ids = tuple(ids[: past.size])
        size = sum(room.nbytes for rooms in past.buffers.values() for room in rooms)
        for kept in [kept for kept in self._kept if kept.owner == owner and kept.ids == ids[: len(kept.ids)]]:
            self._drop(kept)
        if size <= self._limit:
            self._kept.append(_CachedPrefix(owner, ids, dict(past.buffers), size))
            self._bytes[owner[0]] += size
        while self._bytes.total() > self._limit:
            ((tenant, _),) = self._bytes.most_common(1)
            self._drop(next(kept for kept in self._kept if kept.owner[0] == tenant))

    def _drop(self, kept: _CachedPrefix) -> None:
        self._kept.remove(kept)
        self._bytes[kept.owner[0]] -= kept.bytes
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


class PackedNetwork:
    """The network of a model, for packed passes. One thread only may use it, and no other thread the model at the same time."""

    def __init__(self, model: LocalChatModel, switch: AdapterSwitch) -> None:
        self._network = model.network
        self._switch = switch
        self._config = self._network.config.get_text_config(decoder=True)
        self.is_packed = model.can_share_passes and self._is_packing_exact(model)
        """True if sequences share passes. If not, prefixes are not cached either."""
        self.num_passes = 0
        """Number of passes so far."""

    @torch.inference_mode()
    def __call__(self, parts: Sequence[SequenceInput]) -> torch.Tensor:
        """Log-probabilities of the token after each part, shape (parts, vocabulary), float32, on the CPU."""
        self.num_passes += 1
        if not self.is_packed:
            logits = torch.cat([self._single_logits(part) for part in parts])
        else:
            logits = self._packed_logits(parts)
        return logits.log_softmax(-1, dtype=torch.float32).cpu()

    def _packed_logits(self, parts: Sequence[SequenceInput]) -> torch.Tensor:
        order = sorted(range(len(parts)), key=lambda i: id(parts[i].adapter))  # an adapter's rows stand together
        packed = [parts[i] for i in order]
        short = -sum(len(part.ids) for part in packed) % MIN_ROWS
        if short:
            packed.append(SequenceInput(KVCache(), [0] * short))
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
        # At least MIN_ROWS rows here too.
        wanted = last[: len(parts)] + [last[0]] * (MIN_ROWS - len(parts))
        _current.parts = packed
        was, self._config._attn_implementation = self._config._attn_implementation, ATTENTION_NAME
        try:
            with self._switch.activate(spans):
                output = self._network(
                    input_ids=torch.tensor([ids], device=device),
                    position_ids=torch.tensor([positions], device=device),
                    use_cache=False,
                    logits_to_keep=torch.tensor(wanted, device=device),
                )
        finally:
            self._config._attn_implementation = was
            del _current.parts
        for part in packed:
            part.cache.size += len(part.ids)
        back = torch.empty(len(parts), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(parts))
        logits: torch.Tensor = output.logits[0, : len(parts)]
        return logits[back.to(device)]

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
    def _is_packing_exact(self, model: LocalChatModel) -> bool:
        """True if this network's packed passes give the same as its plain ones; attention may be implemented in unknown
        ways."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, _attention)
        size = len(model.tokenizer)
        rows = [[(7 * i + row) % size for i in range(9 + row)] for row in range(2)]
        plain = [self._network(torch.tensor([row], device=self._network.device), use_cache=False).logits[0] for row in rows]
        pasts = [KVCache(), KVCache()]
        try:
            for start, end in ((0, 4), (4, 7), (7, 8)):
                packed = self._packed_logits(
                    [SequenceInput(past, row[start:end]) for past, row in zip(pasts, rows, strict=True)]
                )
        except (TypeError, AttributeError, RuntimeError) as error:
            log.info("sequences do not share passes: %s", error)
            return False
        apart = max(
            float((logits[7].float().log_softmax(-1) - own.float().log_softmax(-1)).abs().max())
            for logits, own in zip(plain, packed, strict=True)
        )
        close = MAX_LOGPROB_DIFFERENCE if self._network.dtype == torch.float32 else 0.3
        if not apart <= close:
            log.info("sequences do not share passes: they would differ by %g nats", apart)
        return apart <= close


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None, **settings: Any
) -> tuple[torch.Tensor, None]:
    """Attention, sequence by sequence, over each one's own cache.

    Args:
        query: (1, heads, tokens, head size), of all parts; key and value likewise.

    Returns:
        (1, tokens, heads, head size).
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    settings.pop("is_causal", None)
    found, start = [], 0
    for part in _current.parts:
        end = start + len(part.ids)
        keys, values = part.cache.extend(module.layer_idx, key[:, :, start:end], value[:, :, start:end])
        seen, _ = sdpa_attention_forward(module, query[:, :, start:end], keys, values, part.mask, **settings)
        found.append(seen)
        start = end
    return torch.cat(found, 1), None
