"""The forward pass that is written out here, and reordered weights: what transformers computes, and independent of other rows."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from learngraph.tools.local.adapters import AdapterSwitch  # noqa: E402
from learngraph.tools.local.llama import KINDS  # noqa: E402
from learngraph.tools.local.model import LocalChatModel  # noqa: E402
from learngraph.tools.local.passes import KVCache, PackedNetwork, SequenceInput  # noqa: E402


def packed(folder: str) -> PackedNetwork:
    model = LocalChatModel(model=folder)
    return PackedNetwork(model, AdapterSwitch(model.network, 4, "all-linear"))


@pytest.mark.parametrize("kind", sorted(kind.removesuffix("ForCausalLM") for kind in KINDS))
def test_it_computes_what_transformers_computes(checkpoint: Callable[..., str], kind: str) -> None:
    folder = checkpoint(kind=kind, head_dim=16, **({"sliding_window": None} if kind == "Mistral" else {}))
    network, plain, draw = packed(folder), LocalChatModel(model=folder).network, random.Random(0)
    assert network._logits == network._llama_logits
    size = plain.config.vocab_size
    rows = [[draw.randrange(size) for _ in range(draw.randint(20, 60))] for _ in range(5)]
    with torch.no_grad():
        expected = [plain(torch.tensor([row])).logits[0].log_softmax(-1) for row in rows]
    caches = [KVCache() for _ in rows]
    while left := [i for i, row in enumerate(rows) if caches[i].size < len(row)]:
        parts = [SequenceInput(caches[i], rows[i][caches[i].size :][: draw.choice([1, 1, 2, 9])]) for i in left]
        for i, found in zip(left, network(parts), strict=True):
            assert float((found - expected[i][caches[i].size - 1]).abs().max()) < 1e-4


def test_large_layers_are_computed_with_reordered_weights_and_each_row_as_if_alone(checkpoint: Callable[..., str]) -> None:
    folder = checkpoint(hidden_size=512, intermediate_size=1024, num_hidden_layers=1, initializer_range=0.1)
    network = packed(folder)
    layer: Any = network._network.model.layers[0].mlp.up_proj
    assert layer.forward._reordered is not None
    assert network._network.model.layers[0].self_attn.k_proj.forward._reordered is None  # small
    prompts = [[(7 * i + j) % 100 for i in range(5 + j % 11)] for j in range(70)]

    def run(chosen: list[list[int]]) -> Any:
        caches = [KVCache() for _ in chosen]
        first = network([SequenceInput(cache, ids) for cache, ids in zip(caches, chosen, strict=True)])
        return torch.stack([first, network([SequenceInput(cache, [3]) for cache in caches])])

    together = run(prompts)
    for count in (1, 2, 3, 4, 5, 9, 33):
        # Nearly: some CPUs compute the last bits of a row by how many rows there are (passes.py).
        assert torch.allclose(run(prompts[:count]), together[:, :count], atol=1e-3, rtol=0)
    x = torch.randn(1, 8, 512)
    plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
    with torch.no_grad():
        assert torch.allclose(layer(x), plain, atol=1e-4)
        assert torch.allclose(copy.deepcopy(layer)(x), plain, atol=1e-4)
        layer.weight.mul_(2)  # weights that change count at once
        assert torch.allclose(layer(x), 2 * plain, atol=1e-4)
    y = layer(x.requires_grad_())
    y.sum().backward()
    assert x.grad is not None
