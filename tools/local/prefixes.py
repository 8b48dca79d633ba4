"""Keys and values of prompts that a model keeps between calls, so that a prompt that grows costs only its new tokens."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer
from typing_extensions import override

__all__ = ["Prefix", "Prefixes"]


@dataclass
class Prefix:
    """Tokens whose keys and values are in `cache`, and the log-probabilities of the next token, shape (vocabulary,)."""

    cache: Any
    ids: list[int] = field(default_factory=list)
    logps: torch.Tensor | None = None
    weights: int = 0


class _RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A cache layer with spare room, so that a step copies the new keys and values only."""

    @override
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.get_seq_length()
        end = size + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.room: list[torch.Tensor] = []
        if not self.room or self.room[0].shape[-2] < end:
            room = [new.new_empty(*new.shape[:-2], end + end // 2 + 64, new.shape[-1]) for new in (key_states, value_states)]
            for old, spare in zip((self.keys, self.values), room, strict=True):
                if size and old is not None:
                    spare[..., :size, :] = old
            self.room = room
        self.room[0][..., size:end, :], self.room[1][..., size:end, :] = key_states, value_states
        self.keys, self.values = (room[..., :end, :] for room in self.room)
        return self.keys, self.values


class Prefixes:
    """The prefixes that were used last. Threads may take and keep them at the same time.

    Args:
        config: the network's.
        can_cut: whether its caches can be cut back; if not, nothing is kept.
        count: most prefixes.
    """

    def __init__(self, config: Any, can_cut: bool, count: int) -> None:
        self._config, self._can_cut, self._count = config, can_cut, count
        self._kept: list[Prefix] = []
        self._lock = threading.RLock()
        self.weights_version = 0
        """The number of changes of the weights."""

    def clear(self) -> None:
        """Drop all prefixes, after a change of the weights; those that are taken are not kept any more."""
        with self._lock:
            self.weights_version += 1
            self._kept.clear()

    def _empty(self, ids: list[int] | None = None) -> Prefix:
        cache = DynamicCache(config=self._config)
        if self._can_cut:
            cache.layers = [_RoomyLayer() for _ in cache.layers]  # type: ignore[no-untyped-call]
        return Prefix(cache, ids or [], weights=self.weights_version)

    def take(self, prompt: list[int]) -> Prefix:
        """The cached prefix that shares most with the prompt, cut back to the shared part. The caller gives it back to
        `keep`.

        It is taken out of the cache meanwhile, so that an error or another thread cannot leave it half changed. It has
        log-probabilities only if it is the whole prompt. If most of a prefix would be cut off, the shared part is copied.
        """
        with self._lock:
            found, shared = None, 0
            for kept in self._kept:
                if (length := common_prefix_length(kept.ids, prompt)) > shared:
                    found, shared = kept, length
            if found is not None and shared == len(prompt) < len(found.ids):
                shared -= 1  # what follows the prompt is not known any more: its last token must be computed again
            if found is None or not shared:
                return self._empty()
            if 2 * shared < len(found.ids):
                fresh = self._empty(prompt[:shared])
                with torch.inference_mode():
                    for i, layer in enumerate(found.cache.layers):
                        fresh.cache.update(layer.keys[..., :shared, :], layer.values[..., :shared, :], i)
                return fresh
            self._kept = [kept for kept in self._kept if kept is not found]
            if shared < len(found.ids):
                found.cache.crop(shared - len(found.ids))
            if shared < len(prompt):
                found.logps = None
            found.ids = prompt[:shared]
            return found

    def keep(self, prefix: Prefix) -> None:
        """Keep a prefix for later prompts; it is the one used last."""
        with self._lock:
            if self._can_cut and prefix.weights == self.weights_version:
                self._kept.append(prefix)
                del self._kept[: -self._count]


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two lists, or two tuples."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is much faster than comparing numbers
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
