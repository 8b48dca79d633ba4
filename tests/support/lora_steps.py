"""Plain supervised passes and updates of a network with LoRA layers, for tests and benchmarks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learngraph.tools.training import lora
from learngraph.tools.training.lora import Example
from learngraph.tools.training.losses import token_logprobs


def reply_logits(network: Any, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Logits before each token of the replies, (tokens, vocabulary), and these tokens, (tokens,), from one pass."""
    logits, _ = lora._forward_pass(network, examples)
    targets = torch.tensor([token for example in examples for token in example.reply], device=network.device)  # (tokens,)
    return torch.cat(logits), targets


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-E[ log pi(z | s) ] in nats: (tokens, vocabulary), (tokens,) -> ()."""
    return -token_logprobs(logits, targets).mean()


def step(network: Any, optimizer: torch.optim.Optimizer, batch: Sequence[Example]) -> None:
    """One update by the cross-entropy of a batch, in one pass."""
    optimizer.zero_grad(set_to_none=True)
    cross_entropy(*reply_logits(network, batch)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
