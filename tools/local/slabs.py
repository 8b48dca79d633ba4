"""Keys and values of many replies in common tensors, so that one product a layer computes the attention of all their new tokens.

Attention sequence by sequence takes half of a pass of 16 replies of a small model. Here each reply has a slot in a slab, beside others
of about its length. A slab's room grows with the reply alone, by `ROOM` tokens at a time, and the products of a slot have the same
shapes whatever the other slots hold: a token's numbers do not depend on the other replies of a pass, to the last bit.
"""

import heapq
import math
import mmap
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Slab", "SlabGroup", "SlabPool", "SlabRow"]

ROOM = 64
"""Tokens by which the room of a sequence grows."""
SLOTS = 16
"""Sequences of a slab."""


def allocate_pages(shape: Sequence[int], like: Tensor) -> Tensor:
    """A tensor for keys and values, in memory pages of its own, which go back to the system when it ends. It begins as zeros on a CPU.

    Blocks of so many sizes, which live for a pass or for hours, leave holes in malloc's memory: under mixed traffic a server grew by
    160 MB in five minutes, with nothing more in use.
    """
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not size:
        return like.new_empty(shape)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=like.dtype).view(*shape)


class Slab:
    """Keys and values of up to `SLOTS` sequences in every layer.

    Args:
        room: most tokens of a sequence.
        like: keys and values of a sequence, shape (2 x layers, 1, heads, tokens, width).
    """

    def __init__(self, room: int, like: Tensor) -> None:
        layers, _, heads, _, width = like.shape
        self.room = room
        self.tensor = allocate_pages((layers, SLOTS, heads, room, width), like)
        """The keys of the first layer, its values, the keys of the second layer, ... Memory of slots that were never used is not
        touched."""
        self.free = list(range(SLOTS))
        """A heap of the slots without a sequence."""

    def take(self, past: Tensor) -> int:
        """A slot for a sequence, with its keys and values so far, of shape (2 x layers, 1, heads, tokens, width)."""
        slot = heapq.heappop(self.free)
        own, size = self.tensor[:, slot], past.shape[3]
        own[:, :, :size] = past[:, 0]
        own[:, :, size:] = 0  # what is masked must be numbers, too
        return slot


class SlabPool:
    """The slabs of a network. One thread only may use it."""

    def __init__(self) -> None:
        self._slabs: list[Slab] = []
        self._released: list[tuple[Slab, int]] = []

    def place(self, cache: Any) -> Slab:
        """The slab where the sequence of a `KVCache` has a slot with room for one more token. It has one token at least, and moves there
        if need be."""
        slab: Slab | None = cache.slab
        if slab is not None and cache.size < slab.room:
            return slab
        while self._released:
            slab, slot = self._released.pop()
            heapq.heappush(slab.free, slot)
        room = cache.size // ROOM * ROOM + ROOM
        found = next((slab for slab in self._slabs if slab.room == room and slab.free), None)
        if found is None:
            self._slabs = [slab for slab in self._slabs if len(slab.free) < SLOTS]
            found = Slab(room, cache.buffer)
            self._slabs.append(found)
        slot = found.take(cache.buffer[..., : cache.size, :])
        if cache.release is not None:
            cache.release()
        cache.slab, cache.slot, cache.buffer = found, slot, found.tensor[:, slot : slot + 1]
        # Caches end in any thread. The slot is free for others when this pool is used next.
        cache.release = weakref.finalize(cache, self._released.append, (found, slot))
        cache.release.atexit = False
        return found


class SlabGroup:
    """The new tokens of a pass whose sequences are in one slab, one token each.

    Args:
        slab: theirs.
        slots: of the sequences.
        positions: of their new tokens.
        rows: of the new tokens in the pass.
    """

    def __init__(self, slab: Slab, slots: Sequence[int], positions: Sequence[int], rows: Sequence[int]) -> None:
        _, _, heads, room, _ = slab.tensor.shape
        self._tensors = slab.tensor.unbind()
        self._used = used = max(slots) + 1  # slots up to here are computed, those between without a new token in vain
        sources, last = [rows[0]] * used, [0] * used
        for slot, position, row in zip(slots, positions, rows, strict=True):
            sources[slot], last[slot] = row, position
        first = torch.tensor(slots) * (heads * room) + torch.tensor(positions)
        places = (first[:, None] + torch.arange(0, heads * room, room)).flatten()
        mask = torch.zeros(used, room).masked_fill_(torch.arange(room) > torch.tensor(last)[:, None], -torch.inf)
        like = slab.tensor
        self._rows, self._slots, self._sources = (torch.tensor(of, device=like.device) for of in (rows, slots, sources))
        self._places = places.to(like.device)
        self._mask = mask.repeat_interleave(heads, 0)[:, None].to(like)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, result: Tensor) -> None:
        """Write keys and values of the new tokens into the slab, and their attention into `result`.

        Args:
            query: of the whole pass, (rows, query heads, width); key and value likewise.
            result: (rows, query heads, width).
        """
        keys, values = self._tensors[2 * layer], self._tensors[2 * layer + 1]
        width, used = query.shape[2], self._used
        keys.view(-1, width).index_copy_(0, self._places, key.index_select(0, self._rows).view(-1, width))
        values.view(-1, width).index_copy_(0, self._places, value.index_select(0, self._rows).view(-1, width))
        asked = query.index_select(0, self._sources).view(used * keys.shape[1], -1, width)
        seen = _attend(asked, keys[:used].flatten(0, 1), values[:used].flatten(0, 1), self._mask, scale)
        result.index_copy_(0, self._rows, seen.view(used, -1, width).index_select(0, self._slots))


class SlabRow:
    """A `SlabGroup` of one sequence, which takes a third of the time."""

    def __init__(self, slab: Slab, slot: int, position: int, row: int) -> None:
        self._row = row
        self._seen = slab.tensor[:, slot].unbind()
        self._new = slab.tensor[:, slot, :, position].unbind()
        self._mask = slab.tensor.new_zeros(1, 1, slab.room)
        self._mask[..., position + 1 :] = -torch.inf

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, result: Tensor) -> None:
        """As `SlabGroup.attend`, with the same numbers."""
        row = self._row
        self._new[2 * layer].copy_(key[row])
        self._new[2 * layer + 1].copy_(value[row])
        keys, values = self._seen[2 * layer], self._seen[2 * layer + 1]
        asked = query[row].view(keys.shape[0], -1, query.shape[2])
        result[row] = _attend(asked, keys, values, self._mask, scale).view(-1, query.shape[2])


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention by products of batches.

    Args:
        query: (batch, queries, width).
        keys: (batch, room, width); values likewise.
        mask: (batch or 1, 1, room), added to the scores.
    """
    scores = torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1, dtype=torch.float32).to(values), values)
