"""The forward pass of Llama and of models that are built like it, written out for the rows of packed sequences.

It computes what transformers' modules compute, with the same layers. Their Python takes 2 ms for a pass through three layers, several
times as long as the products of a small model; this takes a quarter. passes.py compares the two before it uses this one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

__all__ = []

KINDS = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Classes of transformers whose networks `llama_logits` can run."""


def llama_logits(
    network: Any, ids: Tensor, positions: Tensor, wanted: Tensor, attend: Callable[[Any, Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Logits of the tokens after some rows, shape (wanted rows, vocabulary).

    Args:
        network: of one of `KINDS`, without dropout.
        ids: the rows' tokens, shape (1, rows).
        positions: each row's position in its sequence, shape (1, rows).
        wanted: indices of the rows whose logits are wanted.
        attend: attention, `attend(attention layer, query, key, value)` with queries of shape (1, heads, rows, head size), and keys and
            values that may have fewer heads. Returns (1, rows, heads, head size).
    """
    model = network.model
    x = model.embed_tokens.forward(ids)
    cos, sin = model.rotary_emb.forward(x, positions)
    half = cos.shape[-1] // 2
    cos, sin = cos.unsqueeze(2), torch.cat((-sin[..., :half], sin[..., half:]), -1).unsqueeze(2)
    rows = ids.shape[1]
    for block in model.layers:
        attention, mlp = block.self_attn, block.mlp
        size = attention.head_dim
        h = _normalize(block.input_layernorm, x)
        query = attention.q_proj.forward(h).view(1, rows, -1, size)
        key = attention.k_proj.forward(h).view(1, rows, -1, size)
        value = attention.v_proj.forward(h).view(1, rows, -1, size)
        if hasattr(attention, "q_norm"):
            query, key = _normalize(attention.q_norm, query), _normalize(attention.k_norm, key)
        heads = query.shape[2]
        both = torch.cat((query, key), 2)
        both = torch.addcmul(both * cos, both.roll(half, -1), sin).transpose(1, 2)  # rotary positions
        seen = attend(attention, both[:, :heads], both[:, heads:], value.transpose(1, 2))
        x = x + attention.o_proj.forward(seen.reshape(1, rows, -1))
        h = _normalize(block.post_attention_layernorm, x)
        x = x + mlp.down_proj.forward(mlp.act_fn(mlp.gate_proj.forward(h)) * mlp.up_proj.forward(h))
    logits: Tensor = network.lm_head.forward(_normalize(model.norm, x[:, wanted]))[0]
    return logits


def _normalize(norm: Any, x: Tensor) -> Tensor:
    weight = norm.weight
    return rms_norm(x, weight.shape, weight, norm.variance_epsilon)
