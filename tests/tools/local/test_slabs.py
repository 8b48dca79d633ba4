"""Slots of slabs: attention that many replies share is that of each alone, to the last bit, and slots find their next sequence."""

import gc
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learngraph.tools.local.adapters import AdapterSwitch  # noqa: E402
from learngraph.tools.local.model import LocalChatModel  # noqa: E402
from learngraph.tools.local.passes import KVCache, PackedNetwork, PrefixCache, SequenceInput  # noqa: E402
from learngraph.tools.local.slabs import ROOM, SLOTS  # noqa: E402


@pytest.fixture
def network(tiny: str) -> PackedNetwork:
    model = LocalChatModel(model=tiny)
    return PackedNetwork(model, AdapterSwitch(model.network, 4, "all-linear"))


@pytest.mark.slow
def test_replies_come_and_go_and_no_bit_of_another_changes(network: PackedNetwork) -> None:
    draw = random.Random(0)
    texts = [[draw.randrange(40) for _ in range(draw.randint(3, 3 * ROOM))] for _ in range(2 * SLOTS + 5)]
    starts = [draw.randint(1, len(text)) for text in texts]

    def read(caches: list[KVCache], parts: list[tuple[int, list[int]]]) -> torch.Tensor:
        return network([SequenceInput(caches[i], ids) for i, ids in parts])

    alone: dict[tuple[int, int], torch.Tensor] = {}
    for i, text in enumerate(texts):
        caches = {i: KVCache()}
        alone[i, starts[i]] = read(caches, [(i, text[: starts[i]])])[0]  # type: ignore[arg-type]
        for end in range(starts[i] + 1, len(text) + 1):
            alone[i, end] = read(caches, [(i, text[end - 1 : end])])[0]  # type: ignore[arg-type]
    caches = {i: KVCache() for i in range(len(texts))}
    left = list(range(len(texts)))
    while left:
        chosen = draw.sample(left, min(len(left), draw.choice([1, 2, 7, 20, 40])))
        parts = []
        for i in chosen:
            size = caches[i].size
            parts.append((i, texts[i][size : size + 1] if size else texts[i][: starts[i]]))
        for (i, _), logps in zip(parts, read(caches, parts), strict=True):  # type: ignore[arg-type]
            assert torch.equal(logps, alone[i, caches[i].size]), f"text {i} after {caches[i].size} tokens"
        for i in chosen:
            if caches[i].size == len(texts[i]):
                left.remove(i)
                del caches[i]


@pytest.mark.slow
def test_a_slot_is_anothers_when_its_sequence_ends_and_kept_prefixes_stay_as_they_were(network: PackedNetwork) -> None:
    prefixes, ids = PrefixCache(megabytes=8), list(range(10))
    cache = KVCache()
    network([SequenceInput(cache, ids[:9])])
    first = network([SequenceInput(cache, ids[9:])])
    assert (cache.slot, cache.slab is not None) == (0, True)
    prefixes.keep(("acme", 0), ids, cache)
    slab = cache.slab
    del cache
    gc.collect()
    other = KVCache()
    network([SequenceInput(other, [30, 31])])
    network([SequenceInput(other, [32])])
    assert (other.slab, other.slot) == (slab, 0)
    again = prefixes.take(("acme", 0), ids)
    assert again.size == 9
    assert torch.equal(network([SequenceInput(again, ids[9:])]), first)


def test_in_bfloat16_replies_share_the_attention_and_stay_near_what_each_is_alone(tiny: str) -> None:
    model = LocalChatModel(model=tiny, dtype="bfloat16")
    network = PackedNetwork(model, AdapterSwitch(model.network, 4, "all-linear"))
    texts = [[(7 * i + n) % 40 for n in range(3 + 5 * i)] for i in range(SLOTS + 2)]
    caches = [KVCache() for _ in texts]
    network([SequenceInput(cache, text[:-1]) for cache, text in zip(caches, texts, strict=True)])
    together = network([SequenceInput(cache, text[-1:]) for cache, text in zip(caches, texts, strict=True)])
    assert all(cache.slab is not None for cache in caches)
    with torch.inference_mode():
        plain = [model.network(torch.tensor([text])).logits[0, -1].float().log_softmax(-1) for text in texts]
    assert (together - torch.stack(plain)).abs().max() < 0.3


@pytest.mark.slow
def test_a_sequence_with_broken_numbers_breaks_no_later_one_in_its_slot(network: PackedNetwork) -> None:
    good = KVCache()
    network([SequenceInput(good, [1, 2, 3])])
    expected = network([SequenceInput(good, [4])])
    assert good.buffer is not None
    with torch.inference_mode():
        good.buffer.fill_(torch.nan)
    assert bool(network([SequenceInput(good, [5])]).isnan().all())
    slab = good.slab
    del good
    gc.collect()
    cache = KVCache()
    network([SequenceInput(cache, [1, 2, 3])])
    assert torch.equal(network([SequenceInput(cache, [4])]), expected)
    assert cache.slab is slab
