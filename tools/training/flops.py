"""Counts of floating-point operations: a network's passes by formula, whoever runs them.

A product of a (n, i) matrix and an (i, o) matrix is 2 n i o operations. A pass over n tokens that sees p cached ones costs

    forward    2 n P + 2 k V d + 4 L n (p + n) a
    backward   the same for the gradient by the activations, twice the attention, and 2 n A for the gradient by the adapter

with P the weights of all linear layers below the last (adapters included), k V d the last layer for k positions, L layers of
attention of width a, and A the adapter's weights. Norms, activations and embeddings are left out. It is within a few per cent of
what `torch.utils.flop_counter` counts (tests/tools/training/test_flops.py), which costs time at every operation.
"""

from typing import Any

import torch

__all__ = ["FlopMeter"]


class FlopMeter:
    """Counts the operations of all passes of a network from now on, those for its training as well.

    Args:
        network: a causal transformers model. If LoRA adapters are attached to it later, call `read_sizes` then.
    """

    def __init__(self, network: Any) -> None:
        self._network = network
        self.flops = 0.0
        """Operations so far."""
        self.read_sizes()
        network.register_forward_pre_hook(self._count, with_kwargs=True)

    def count(self) -> float:
        """Operations so far."""
        return self.flops

    def _count(self, network: Any, args: Any, given: dict[str, Any]) -> None:
        ids = given.get("input_ids", args[0] if args else None)
        if ids is None:
            return
        cache: Any = given.get("past_key_values")
        keep: Any = given.get("logits_to_keep") or 0
        past = cache.get_seq_length() if hasattr(cache, "get_seq_length") else 0
        rows, tokens = ids.shape
        heads = tokens if isinstance(keep, int) and keep == 0 else min(keep, tokens) if isinstance(keep, int) else len(keep)
        self.flops += self.pass_flops(rows, tokens, past, heads, trains=torch.is_grad_enabled())

    def pass_flops(self, rows: int, tokens: int, past: int, heads: int, trains: bool) -> float:
        """Operations of one pass.

        Args:
            rows: sequences.
            tokens: of each, padding included.
            past: tokens of each whose keys and values are cached.
            heads: positions of each whose logits are computed.
            trains: whether gradients are computed afterwards.
        """
        body, head, adapter, first, width = self._sizes
        attention = 4.0 * rows * tokens * (past + tokens) * width
        linear, last = 2.0 * rows * tokens * body, 2.0 * rows * heads * head
        flops: float = linear + last + attention
        if trains:  # the first layer's frozen weights pass no gradient on: nothing below them learns
            flops += linear - 2.0 * rows * tokens * first + last + 2 * attention + 2.0 * rows * tokens * adapter
        return flops

    def read_sizes(self) -> None:
        """Read the network's sizes, once: a walk through all modules takes as long as a small pass."""
        last = self._network.get_output_embeddings()
        body = adapter = first = 0
        for name, module in self._network.named_modules():
            if not isinstance(module, torch.nn.Linear) or module is last:
                continue
            size = module.weight.numel()
            body += size
            adapter += size if ".lora_" in name else 0
            reads_embeddings = ".layers.0." in name and any(part in name for part in ("q_proj", "k_proj", "v_proj"))
            first += size if reads_embeddings and ".lora_B" not in name else 0
        config = self._network.config.get_text_config(decoder=True)
        heads = getattr(config, "num_attention_heads", 0)  # none in a recurrent network
        width = config.num_hidden_layers * heads * (getattr(config, "head_dim", None) or config.hidden_size // max(1, heads))
        # Weights of the linear layers below the last, of the last, of the adapters, and of the frozen ones that read embeddings;
        # and the width of all layers' attention.
        self._sizes: tuple[int, int, int, int, int] = (
            body,
            0 if last is None else int(last.weight.numel()),
            adapter,
            first,
            int(width),
        )
