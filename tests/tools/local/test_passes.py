"""Prefixes of a local model's prompts: what a service's memory grows by, and no further than its limit."""

import pytest

torch = pytest.importorskip("torch")

from learngraph.tools.local.passes import KVCache, PrefixCache  # noqa: E402


def test_kept_prefixes_stay_within_their_limit() -> None:
    prefixes = PrefixCache(megabytes=1)
    for i in range(500):
        past = KVCache()
        past.make_room(100, 1, torch.zeros(1, 2, 100, 8))
        past.size = 100
        prefixes.keep(("acme", i % 3), [i, *range(99)], past)
        held = sum(kept.buffer.nbytes for kept in prefixes._kept)
        assert held == prefixes._bytes["acme"] <= 2**20
    assert past.buffer is not None
    assert len(prefixes) == 2**20 // past.buffer.nbytes  # full, and no more
    assert prefixes._kept[-1].ids[0] == 499  # the oldest went


def test_the_tenant_that_uses_most_makes_room() -> None:
    prefixes = PrefixCache(megabytes=1)

    def keep(tenant: str, first: int) -> None:
        past = KVCache()
        past.make_room(100, 1, torch.zeros(1, 2, 100, 8))
        past.size = 100
        prefixes.keep((tenant, 0), [first, *range(99)], past)

    keep("small", -1)
    for i in range(500):
        keep("large", i)
    assert prefixes.take(("small", 0), [-1, *range(99)]).size == 99
    assert prefixes.take(("large", 0), [0, *range(99)]).size == 0
    assert prefixes.take(("large", 0), [-1, *range(99)]).size == 0  # the other's
