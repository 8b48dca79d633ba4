"""Training of tiny Llamas on one CPU core: the model, its first attention, and the loop that both fixtures are made by."""

import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenTarget:
    """The distribution of the token after a position."""

    position: int
    probabilities: Mapping[int, float]
    weight: float
    known: bool
    """True if the text so far determines the token: such tokens count in the tally's accuracy."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A training text as token ids with its targets."""

    ids: list[int]
    targets: list[TokenTarget]


@dataclass
class Tally:
    """Right answers and loss since the last line of the record, by source of the batch."""

    correct: int = 0
    total: int = 0
    loss: float = 0.0
    batches: int = 0

    @property
    def accuracy(self) -> float:
        return self.correct / max(self.total, 1)

    def record(self) -> dict[str, float]:
        return {"loss": round(self.loss / max(self.batches, 1), 4)} | ({"known": round(self.accuracy, 4)} if self.total else {})


@dataclass(frozen=True)
class Leg:
    """One part of a training, which starts from the weights of the one before."""

    seed: int
    minutes: float
    """Wall-clock time that the learning rate falls over. Stages end by time, so that another machine makes other weights."""
    shares: Mapping[str, float]
    """Shares of the batches, by source."""
    stop: float = float("inf")
    """Minutes after which the leg is stopped early."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    fall: float = 0.3
    """Part of the time, at the end, in which the learning rate falls linearly."""


class Texts(Protocol):
    """What a model is trained on."""

    def draw_batch(self) -> tuple[str, list[EncodedText]]:
        """A batch and the name of its source."""

    def advance(self, part: float, tallies: Mapping[str, Tally]) -> None:
        """Go on to what is harder, after each 100 steps; `part` of the leg's time is over."""


def new_llama(tokenizer: Any, intermediate_size: int, positions: int, ends: Sequence[int], reply_tokens: int) -> Any:
    """A Llama of 3 layers and width 160 whose replies end with one of the tokens `ends`."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=160,
            intermediate_size=intermediate_size,
            num_hidden_layers=3,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=positions,
            tie_word_embeddings=False,
            attention_bias=True,
            initializer_range=0.02,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    imitate(model)
    model.generation_config = GenerationConfig(
        eos_token_id=[*ends], pad_token_id=tokenizer.pad_token_id, max_new_tokens=reply_tokens
    )
    return model


def imitate(model: Any) -> None:
    """Start the attention where training would take it: heads that look some tokens back, heads that match and copy.

    An initialisation that imitates trained models, as in Trockman and Kolter (2023, arXiv:2305.09828), here of the
    two-layer circuit that recalls what followed an earlier occurrence (Olsson et al., 2022, arXiv:2209.11895). In the
    first layer, biases turn three heads to the tokens 1, 2 and 4 back, which they write into subspaces of their own. In
    the second, the token before the query is matched with the one 1 back (a lesson: copy the token there), 2 back (an
    action: the same) and 4 back (a reward: copy the action 2 back), and the token at the query with the one 1 back (go on
    with a phrase). All of it is trained like everything else; which rewards to follow, for one, is left to training. The
    three scales are where the untrained model recalls best.
    """
    width, size = model.config.hidden_size, model.config.head_dim
    turns = model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)  # radians a token, of RoPE

    def rotation() -> Tensor:
        orthogonal: Tensor = torch.linalg.qr(torch.randn(width, width))[0]
        return orthogonal

    read, spaces, copy = rotation()[:size], rotation(), rotation()
    back = {offset: spaces[:, n * size : (n + 1) * size].T for n, offset in enumerate((1, 2, 4))}
    matches = (
        (back[1], back[1], copy[:size], copy[:size]),  # query, key, value, output
        (back[1], back[2], copy[size : 2 * size], copy[size : 2 * size]),
        (back[1], back[4], back[2], read),
        (back[1], back[4], back[2], read),
        (read, back[1], copy[2 * size : 3 * size], copy[2 * size : 3 * size]),
    )
    # Two more heads of a third layer go on with phrases, by projections of their own: a single one, of 32 dimensions, tells
    # a hundred words apart, but not two thousand tokens.
    reads = [read, read, read, *(rotation()[:size] for _ in range(2))]
    others = [(1, spaces[:, n * size : (n + 1) * size].T) for n in (3, 4)]
    phrases = [
        (own, space, copy[n * size :][:size], copy[n * size :][:size])
        for n, own, (_, space) in zip((3, 4), reads[3:], others, strict=True)
    ]
    with torch.no_grad():
        first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
        for head, ((offset, space), own) in enumerate(zip((*back.items(), *others), reads, strict=True)):
            rows = slice(head * size, (head + 1) * size)
            first.q_proj.bias[rows] = 6 * torch.cat([(turns * offset).cos(), -(turns * offset).sin()])
            first.k_proj.bias[rows] = 6 * torch.cat([torch.ones(size // 2), torch.zeros(size // 2)])
            first.v_proj.weight[rows] = 0.25 * own
            first.o_proj.weight[:, rows] = 0.25 * space.T
        layers = [(second, matches)] + ([(model.model.layers[2].self_attn, phrases)] if len(model.model.layers) > 2 else [])
        for layer, heads in layers:
            for head, (query, key, value, output) in enumerate(heads):
                rows = slice(head * size, (head + 1) * size)
                layer.q_proj.weight[rows] = 1.2 * query
                layer.k_proj.weight[rows] = 1.2 * key
                layer.v_proj.weight[rows] = 0.5 * value
                layer.o_proj.weight[:, rows] = 0.5 * output.T
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)


def train(model: Any, tokenizer: Any, texts: Texts, leg: Leg, out: Path, max_steps: int | None = None) -> None:
    """Train for one leg, or for `max_steps` steps if these end before; `training.jsonl` gets a line every 100 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=leg.learning_rate, betas=(0.9, 0.98), weight_decay=0.05)
    out.mkdir(parents=True, exist_ok=True)
    begun, tokens, tallies = time.monotonic(), 0, dict[str, Tally]()
    with (out / "training.jsonl").open("a", encoding="utf-8") as record:
        for step in range(max_steps if max_steps is not None else 10**9):
            minutes = (time.monotonic() - begun) / 60
            if minutes >= min(leg.minutes, leg.stop):
                break
            part = max(minutes / leg.minutes, step / max_steps if max_steps else 0.0)
            rate = leg.learning_rate * min(1, (step + 1) / 100) * min(1.0, max(0.03, (1 - part) / leg.fall))
            for group in optimizer.param_groups:
                group["lr"] = rate
            name, batch = texts.draw_batch()
            tokens += train_step(model, optimizer, batch, tokenizer.pad_token_id, tallies.setdefault(name, Tally()))
            if (step + 1) % 100 == 0 or step + 1 == max_steps:
                line = {"seed": leg.seed, "minutes": round(minutes, 2), "step": step + 1, "tokens": tokens}
                line |= {source: tally.record() for source, tally in tallies.items()}
                record.write(json.dumps(line) + "\n")
                record.flush()
                log.info("%s", line)
                texts.advance(part, tallies)
                tallies = {}


def train_step(model: Any, optimizer: Any, batch: Sequence[EncodedText], pad: int, tally: Tally) -> int:
    """One step of gradient descent on a batch; returns the tokens of the padded batch."""
    width = max(len(text.ids) for text in batch)
    ids = torch.tensor([text.ids + [pad] * (width - len(text.ids)) for text in batch])  # (texts, width)
    targets = [(row * width + t.position, t) for row, text in enumerate(batch) for t in text.targets]
    most = max(len(t.probabilities) for _, t in targets)
    fill = [0] * most
    at = torch.tensor([position for position, _ in targets])
    tokens = torch.tensor([[*t.probabilities, *fill][:most] for _, t in targets])  # (targets, most)
    shares = torch.tensor([[*t.probabilities.values(), *map(float, fill)][:most] for _, t in targets])
    weights = torch.tensor([t.weight for _, t in targets])
    known = torch.tensor([t.known for _, t in targets])

    # Padding is on the right: a causal model needs no mask for what comes after the labels.
    hidden = model.model(ids, use_cache=False).last_hidden_state.flatten(0, 1)[at]
    logits: Tensor = model.lm_head(hidden).float()
    chosen = logits.log_softmax(-1).gather(1, tokens)
    # Agents normalise over the admissible actions: what counts is the likelihood of the label among all tokens, and
    # once more among those that go on with an admissible action. Less the entropy of the label: 0 is perfect.
    among = chosen - chosen.masked_fill(shares == 0, -torch.inf).logsumexp(1, keepdim=True)
    surplus = (shares * (2 * shares.clamp(min=1e-9).log() - chosen - among)).sum(1)
    loss = (surplus * weights).sum() / weights.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    best = tokens.gather(1, shares.argmax(1, keepdim=True))[:, 0]
    tally.correct += int((logits.argmax(1) == best)[known].sum())
    tally.total += int(known.sum())
    tally.loss += float(loss.detach())
    tally.batches += 1
    return ids.numel()


def sorted_batches(texts: list[EncodedText], size: int, draw: random.Random) -> list[list[EncodedText]]:
    """Batches of `size` texts of about the same length, which saves padding, in random order."""
    texts.sort(key=lambda text: len(text.ids))
    batches = [texts[n : n + size] for n in range(0, len(texts), size)]
    draw.shuffle(batches)
    return batches
